//! Session objects.

use tenure_core::SessionId;
use tenure_core::port::{SessionView, StoreError};

use super::KubernetesStore;
use super::cache::is_held;
use super::decode::LeaseReading;
use super::names::{lease_name, session_name};
use super::object::LeaseObject;
use super::record::{HeldLeaseRecord, SessionRecord};
use super::store::{ATTEMPTS_MAX, back_off, conflict_error};
use crate::runtime;

/// Time for which the object of an ended session is kept, so that its id is known to be used.
const ENDED_RETENTION_MS: i64 = 60_000;

/// Silence after which the object of a session without Leases is reused: a number of leases, and a minimum in
/// milliseconds. No other candidate watches such a session, so nothing depends on it.
const ABANDONED_AFTER: (i64, i64) = (20, 3_600_000);

impl KubernetesStore {
    /// Read a session object and its Leases; `None` if the object now belongs to another session.
    pub(super) async fn read_session(&self, id: &SessionId) -> Result<Option<LeaseReading>, StoreError> {
        let Some(name) = self.cache.name_of(id) else { return Ok(None) };
        let found = self.api.get(&name).await?;
        let found = found.and_then(|object| Some((SessionRecord::of(&object)?, object)));
        let Some((record, object)) = found.filter(|(record, _)| record.view.id == *id) else {
            return Ok(None);
        };
        let mut objects = vec![object];
        for hold in &record.held_leases {
            objects.extend(self.api.get(&lease_name(&hold.election, hold.slot)).await?);
        }
        Ok(Some(LeaseReading::of(None, objects)))
    }

    /// Read a session object and its Leases, or all objects if that fails.
    pub(super) async fn find(&self, id: &SessionId) -> Result<LeaseReading, StoreError> {
        match self.read_session(id).await? {
            Some(reading) => Ok(reading),
            None => self.read_all().await,
        }
    }

    /// Change the record of a live session; `false` if it has ended.
    pub(super) async fn update_session(
        &self,
        reading: &LeaseReading,
        id: &SessionId,
        mut edit: impl FnMut(&mut SessionRecord),
    ) -> Result<bool, StoreError> {
        let Some((object, _)) = reading.sessions.get(id) else { return Ok(false) };
        let (mut object, heartbeat_count) = (object.clone(), reading.heartbeat_of(id));
        let tokens = self.cache.highest_tokens();
        for attempt in 0..ATTEMPTS_MAX {
            let found = SessionRecord::of(&object).filter(|record| record.view.id == *id && record.view.live);
            let Some(mut record) = found else { return Ok(false) };
            let before = record.clone();
            record.view.heartbeat_count = record.view.heartbeat_count.max(heartbeat_count);
            edit(&mut record);
            if record == before {
                return Ok(true);
            }
            record.remember(&tokens);
            if let Some(object) = self.api.put(&record.written(object.clone(), runtime::wall_ms())).await? {
                self.cache.with(id, |known| known.see(object, record));
                return Ok(true);
            }
            let Some(found) = self.api.get(object.name()).await? else { return Ok(false) };
            object = found;
            back_off(attempt).await;
        }
        Err(conflict_error("write a session"))
    }

    /// Mark a session as ended; `false` on a conflict.
    pub(super) async fn mark_ended(
        &self,
        reading: &LeaseReading,
        id: &SessionId,
    ) -> Result<bool, StoreError> {
        let Some((object, record)) = reading.sessions.get(id).filter(|(_, record)| record.view.live) else {
            return Ok(true);
        };
        let record = ended_record(record, reading.heartbeat_of(id));
        Ok(self.api.put(&record.written(object.clone(), runtime::wall_ms())).await?.is_some())
    }

    /// Mark a session of this process as ended; it no longer holds a Lease.
    pub(super) async fn mark_own_ended(&self, id: &SessionId) -> Result<(), StoreError> {
        let reading = self.find(id).await?;
        self.mark_ended(&reading, id).await.map(drop)
    }

    /// Object for a new session: an unused one, or a new one.
    pub(super) fn reusable_object(&self, reading: &LeaseReading, id: &SessionId) -> LeaseObject {
        let now = runtime::wall_ms();
        let is_idle = |record: &SessionRecord| {
            let silent_ms = now - record.view.heartbeat_at_ms;
            let lease_ms = i64::try_from(record.view.lease_ms).unwrap_or(i64::MAX);
            match record.ended_at_ms {
                Some(at) => now - at > ENDED_RETENTION_MS,
                None => {
                    let held = |hold: &HeldLeaseRecord| {
                        let object = reading.leases.get(&(hold.election.clone(), hold.slot));
                        object.is_some_and(|object| is_held(object, &record.identity, hold.token))
                    };
                    let wait_ms = ABANDONED_AFTER.1.max(lease_ms.saturating_mul(ABANDONED_AFTER.0));
                    silent_ms > wait_ms && !record.held_leases.iter().any(held)
                }
            }
        };
        let idle = reading.sessions.values().find(|(_, record)| is_idle(record)).map(|(object, _)| object);
        let used = reading.undecodable.first().or(idle).cloned();
        used.unwrap_or_else(|| LeaseObject::new(&self.api.namespace, &session_name(id)))
    }
}

fn ended_record(record: &SessionRecord, heartbeat_count: u64) -> SessionRecord {
    let view = SessionView { live: false, heartbeat_count, ..record.view.clone() };
    let ended_at_ms = Some(runtime::wall_ms());
    SessionRecord { view, ended_at_ms, candidacies: Vec::new(), held_leases: Vec::new(), ..record.clone() }
}
