//! Taking and releasing Leases: the order of the writes.

use std::time::Duration;

use tenure_core::model::elections::Elections;
use tenure_core::port::{
    Candidacy, ElectionStore, JoinElectionResponse, ReleaseLeaseRequest, StoreError, TakeLeaseRequest,
};
use tenure_core::{BootInstant, SessionId, Token};

use super::KubernetesStore;
use super::cache::{CachedLeaseSession, HeldLeaseObject};
use super::decode::{LeaseReading, SlotKey};
use super::encode::freed;
use super::names::lease_name;
use super::record::{HeldLeaseRecord, RECORD, SlotRecord};
use crate::runtime;

/// A grant that takes longer than this fraction of the lease is renewed before it is returned.
const SLOW_FRACTION: u32 = 100;

impl KubernetesStore {
    /// Record the grant in the session object. A grant is valid only after this write: a process that wants to expire
    /// the session, which held nothing before, now conflicts and must read again.
    pub(super) async fn record_grant(
        &self,
        reading: &LeaseReading,
        take: &TakeLeaseRequest,
        token: Token,
    ) -> Result<bool, StoreError> {
        let hold = HeldLeaseRecord { election: take.election.clone(), slot: take.slot, token };
        let is_live = self
            .update_session(reading, &take.session, |record| {
                record
                    .held_leases
                    .retain(|other| (&other.election, other.slot) != (&hold.election, hold.slot));
                record.held_leases.push(hold.clone());
            })
            .await?;
        if !is_live || take.slot == 0 {
            return Ok(is_live);
        }
        // The first slot records whether the election is paused.
        let first = self.api.get(&lease_name(&take.election, 0)).await?;
        let record = first.and_then(|first| first.note::<SlotRecord>(RECORD));
        Ok(record.is_none_or(|record| record.paused.is_none()))
    }

    /// Renew the granted Lease if granting took a while. A heartbeat that was sent in the meantime did not renew it,
    /// but the holder trusts that heartbeat; client-go observes only the Lease and would take over earlier than the
    /// trust expires. Returns `false` if the Lease is already lost.
    pub(super) async fn renew_if_slow(
        &self,
        reading: &LeaseReading,
        take: &TakeLeaseRequest,
        (held, sent): (&HeldLeaseObject, BootInstant),
    ) -> Result<bool, StoreError> {
        let known = self.cache.known(&take.session);
        let known = known.or_else(|| {
            let (object, record) = reading.sessions.get(&take.session)?.clone();
            Some(CachedLeaseSession {
                heartbeat_count: reading.heartbeat_of(&take.session),
                ..CachedLeaseSession::new(object, record)
            })
        });
        let Some(known) = known else { return Ok(false) };
        let lease = Duration::from_millis(known.record.view.lease_ms);
        if runtime::now().since(sent) < lease / SLOW_FRACTION {
            return Ok(true);
        }
        self.renew_one(&known, held).await
    }

    /// Free the Leases of an ended session, then mark the session as ended. `false` on a conflict.
    pub(super) async fn free_and_end(
        &self,
        reading: &LeaseReading,
        models: (&Elections, &Elections),
        id: &SessionId,
    ) -> Result<bool, StoreError> {
        // Leases first: the Leases that name a session keep it known.
        for (key, slot) in freed(models.0, models.1) {
            let held = models.0.record(&key).and_then(|election| election.leases.get(slot as usize));
            if held.is_some_and(|lease| lease.session.as_ref() == Some(id))
                && self.write(reading, models, (&key, slot)).await?.is_none()
            {
                return Ok(false);
            }
        }
        self.mark_ended(reading, id).await
    }

    /// Like [`free_and_end`](Self::free_and_end), except for one slot that another session already holds.
    pub(super) async fn free_others(
        &self,
        reading: &LeaseReading,
        models: (&Elections, &Elections),
        id: &SessionId,
        taken: &SlotKey,
    ) -> Result<(), StoreError> {
        for (key, slot) in freed(models.0, models.1) {
            if (&key, slot) != (&taken.0, taken.1) {
                self.write(reading, models, (&key, slot)).await?;
            }
        }
        self.mark_ended(reading, id).await.map(drop)
    }

    /// Release a Lease that was granted to an ended session, or while the election was paused.
    pub(super) async fn release_grant(
        &self,
        take: &TakeLeaseRequest,
        token: Token,
    ) -> Result<(), StoreError> {
        let release = ReleaseLeaseRequest {
            session: take.session.clone(),
            election: take.election.clone(),
            slot: take.slot,
            token,
            successor: None,
            start_reason: Default::default(),
            leave: false,
        };
        self.release_lease(&release).await
    }

    /// Withdraw a candidacy whose number of slots differs from that of a candidate that joined concurrently.
    pub(super) async fn check_slots(
        &self,
        candidacy: &Candidacy,
    ) -> Result<JoinElectionResponse, StoreError> {
        let reading = self.read(std::slice::from_ref(&candidacy.election), Some(&candidacy.session)).await?;
        let others = reading.sessions.values().filter(|(_, r)| r.view.live && r.view.id != candidacy.session);
        let candidacies = others.flat_map(|(_, record)| &record.candidacies);
        let other = candidacies
            .map(|record| &record.candidacy)
            .find(|other| other.election == candidacy.election && other.slots != candidacy.slots);
        let Some(slots) = other.map(|other| other.slots) else { return Ok(JoinElectionResponse::Joined) };
        self.leave_election(&candidacy.session, &candidacy.election).await?;
        // Restore the number of slots that the later writer overwrote.
        let first = reading.leases.get(&(candidacy.election.clone(), 0));
        if let Some(mut object) = first.cloned() {
            let mut record: SlotRecord = object.note(RECORD).unwrap_or_default();
            record.slots = slots;
            object.set_note(RECORD, &record);
            self.api.put(&object).await?;
        }
        Ok(JoinElectionResponse::SlotsDiffer { slots })
    }
}
