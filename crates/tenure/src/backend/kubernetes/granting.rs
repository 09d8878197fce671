//! Grants, and their end: what is written where, and in which order.

use std::time::Duration;

use tenure_core::book::Book;
use tenure_core::port::{Candidacy, Joined, Release, Store, StoreError, Take};
use tenure_core::{Moment, SessionId, Token};

use super::Kubernetes;
use super::memo::{Held, Known};
use super::names::lease_name;
use super::reading::{Reading, Slot};
use super::record::{Hold, RECORD, Record};
use super::writing::freed;
use crate::runtime;

/// Which part of a lease a grant may take until it is renewed.
const SLOW: u32 = 100;

impl Kubernetes {
    /// A grant counts once the session's own object says it: whoever wanted to expire the session, which held nothing, has to look again.
    pub(super) async fn settle(
        &self,
        reading: &Reading,
        take: &Take,
        token: Token,
    ) -> Result<bool, StoreError> {
        let hold = Hold { election: take.election.clone(), slot: take.slot, token };
        let lives = self
            .amend(reading, &take.session, |record| {
                record.holds.retain(|other| (&other.election, other.slot) != (&hold.election, hold.slot));
                record.holds.push(hold.clone());
            })
            .await?;
        if !lives || take.slot == 0 {
            return Ok(lives);
        }
        // Whether an election is paused is said by its first slot.
        let first = self.api.get(&lease_name(&take.election, 0)).await?;
        let record = first.and_then(|first| first.note::<Record>(RECORD));
        Ok(record.is_none_or(|record| record.paused.is_none()))
    }

    /// Renews what was granted, if it took a while. A beat that was sent meanwhile, and counts, did not renew it: its holder trusts that beat, and
    /// client-go, which watches nothing but the Lease, must not be less patient. `false` if it is lost already.
    pub(super) async fn confirm(
        &self,
        reading: &Reading,
        take: &Take,
        (held, sent): (&Held, Moment),
    ) -> Result<bool, StoreError> {
        let known = self.memo.known(&take.session);
        let known = known.or_else(|| {
            let (object, record) = reading.sessions.get(&take.session)?.clone();
            Some(Known { beat: reading.beat_of(&take.session), ..Known::new(object, record) })
        });
        let Some(known) = known else { return Ok(false) };
        let lease = Duration::from_millis(known.record.view.lease_ms);
        if runtime::now().since(sent) < lease / SLOW {
            return Ok(true);
        }
        self.renew_one(&known, held).await
    }

    /// Frees what sessions that are over in the book held, then notes that they are over. `false` if something moved.
    pub(super) async fn close(
        &self,
        reading: &Reading,
        books: (&Book, &Book),
        id: &SessionId,
    ) -> Result<bool, StoreError> {
        // The Leases first: a session that holds one is known by it.
        for (key, slot) in freed(books.0, books.1) {
            let held = books.0.kept(&key).and_then(|election| election.leases.get(slot as usize));
            if held.is_some_and(|lease| lease.session.as_ref() == Some(id))
                && self.write(reading, books, (&key, slot)).await?.is_none()
            {
                return Ok(false);
            }
        }
        self.bury(reading, id).await
    }

    /// As [`close`](Self::close), but for one slot that is somebody else's already.
    pub(super) async fn close_rest(
        &self,
        reading: &Reading,
        books: (&Book, &Book),
        id: &SessionId,
        taken: &Slot,
    ) -> Result<(), StoreError> {
        for (key, slot) in freed(books.0, books.1) {
            if (&key, slot) != (&taken.0, taken.1) {
                self.write(reading, books, (&key, slot)).await?;
            }
        }
        self.bury(reading, id).await.map(drop)
    }

    /// Gives back what was granted to a session that is over, or while the election was paused.
    pub(super) async fn give_up(&self, take: &Take, token: Token) -> Result<(), StoreError> {
        let release = Release {
            session: take.session.clone(),
            election: take.election.clone(),
            slot: take.slot,
            token,
            successor: None,
            via: Default::default(),
            leave: false,
        };
        self.release(&release).await
    }

    /// Withdraws a candidacy for another number of slots than somebody else's, who joined at the same moment.
    pub(super) async fn agree(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        let reading = self.read(std::slice::from_ref(&candidacy.election), Some(&candidacy.session)).await?;
        let others = reading.sessions.values().filter(|(_, r)| r.view.live && r.view.id != candidacy.session);
        let standing = others.flat_map(|(_, record)| &record.candidacies);
        let other = standing
            .map(|standing| &standing.candidacy)
            .find(|other| other.election == candidacy.election && other.slots != candidacy.slots);
        let Some(slots) = other.map(|other| other.slots) else { return Ok(Joined::Standing) };
        self.leave(&candidacy.session, &candidacy.election).await?;
        // Whoever of the two wrote last had no claim to.
        let first = reading.leases.get(&(candidacy.election.clone(), 0));
        if let Some(mut object) = first.cloned() {
            let mut record: Record = object.note(RECORD).unwrap_or_default();
            record.slots = slots;
            object.set_note(RECORD, &record);
            self.api.put(&object).await?;
        }
        Ok(Joined::SlotsDiffer { slots })
    }
}
