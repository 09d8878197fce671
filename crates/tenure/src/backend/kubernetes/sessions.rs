//! The objects of sessions.

use tenure_core::SessionId;
use tenure_core::port::{SessionView, StoreError};

use super::Kubernetes;
use super::memo::is_held;
use super::names::{lease_name, session_name};
use super::object::Object;
use super::reading::Reading;
use super::record::{Hold, SessionRecord};
use super::store::{TRIES, changing, hold_on};
use crate::runtime;

/// For how long the object of a session that is over is left to it, by the wall clock: so long its id is known to be used.
const REST_MS: i64 = 60_000;

/// After how many leases of silence, and at least how long, by the wall clock, the object of a session that holds nothing is used for another. No candidate
/// watched it, so it stood alone.
const ABANDONED: (i64, i64) = (20, 3_600_000);

impl Kubernetes {
    /// What there is of a session, if it is still where it was: its object, and the Leases that it holds.
    pub(super) async fn read_session(&self, id: &SessionId) -> Result<Option<Reading>, StoreError> {
        let Some(name) = self.memo.name_of(id) else { return Ok(None) };
        let found = self.api.get(&name).await?;
        let found = found.and_then(|object| Some((SessionRecord::of(&object)?, object)));
        let Some((record, object)) = found.filter(|(record, _)| record.view.id == *id) else {
            return Ok(None);
        };
        let mut objects = vec![object];
        for hold in &record.holds {
            objects.extend(self.api.get(&lease_name(&hold.election, hold.slot)).await?);
        }
        Ok(Some(Reading::of(None, objects)))
    }

    /// Likewise, or everything.
    pub(super) async fn find(&self, id: &SessionId) -> Result<Reading, StoreError> {
        match self.read_session(id).await? {
            Some(reading) => Ok(reading),
            None => self.read_all().await,
        }
    }

    /// Changes what is noted of a living session; `false` if it is over.
    pub(super) async fn amend(
        &self,
        reading: &Reading,
        id: &SessionId,
        mut edit: impl FnMut(&mut SessionRecord),
    ) -> Result<bool, StoreError> {
        let Some((object, _)) = reading.sessions.get(id) else { return Ok(false) };
        let (mut object, beat) = (object.clone(), reading.beat_of(id));
        let seen = self.memo.seen();
        for tried in 0..TRIES {
            let found = SessionRecord::of(&object).filter(|record| record.view.id == *id && record.view.live);
            let Some(mut record) = found else { return Ok(false) };
            let before = record.clone();
            record.view.beat = record.view.beat.max(beat);
            edit(&mut record);
            if record == before {
                return Ok(true);
            }
            record.remember(&seen);
            if let Some(object) = self.api.put(&record.written(object.clone(), runtime::wall_ms())).await? {
                self.memo.with(id, |known| known.see(object, record));
                return Ok(true);
            }
            let Some(found) = self.api.get(object.name()).await? else { return Ok(false) };
            object = found;
            hold_on(tried).await;
        }
        Err(changing("write of a session"))
    }

    /// Notes that a session is over, as long as nothing moved.
    pub(super) async fn bury(&self, reading: &Reading, id: &SessionId) -> Result<bool, StoreError> {
        let Some((object, record)) = reading.sessions.get(id).filter(|(_, record)| record.view.live) else {
            return Ok(true);
        };
        let record = over(record, reading.beat_of(id));
        Ok(self.api.put(&record.written(object.clone(), runtime::wall_ms())).await?.is_some())
    }

    /// Notes that our own session is over, which holds nothing any more.
    pub(super) async fn bury_own(&self, id: &SessionId) -> Result<(), StoreError> {
        let reading = self.find(id).await?;
        self.bury(&reading, id).await.map(drop)
    }

    /// The object for a new session: one that nobody needs any more, or a new one.
    pub(super) fn vacant(&self, reading: &Reading, id: &SessionId) -> Object {
        let now = runtime::wall_ms();
        let is_idle = |record: &SessionRecord| {
            let silent_ms = now - record.view.beat_at_ms;
            let lease_ms = i64::try_from(record.view.lease_ms).unwrap_or(i64::MAX);
            match record.over_at_ms {
                Some(at) => now - at > REST_MS,
                None => {
                    let held = |hold: &Hold| {
                        let object = reading.leases.get(&(hold.election.clone(), hold.slot));
                        object.is_some_and(|object| is_held(object, &record.identity, hold.token))
                    };
                    let patience_ms = ABANDONED.1.max(lease_ms.saturating_mul(ABANDONED.0));
                    silent_ms > patience_ms && !record.holds.iter().any(held)
                }
            }
        };
        let idle = reading.sessions.values().find(|(_, record)| is_idle(record)).map(|(object, _)| object);
        let used = reading.waste.first().or(idle).cloned();
        used.unwrap_or_else(|| Object::new(&self.api.namespace, &session_name(id)))
    }
}

fn over(record: &SessionRecord, beat: u64) -> SessionRecord {
    let view = SessionView { live: false, beat, ..record.view.clone() };
    let over_at_ms = Some(runtime::wall_ms());
    SessionRecord { view, over_at_ms, candidacies: Vec::new(), holds: Vec::new(), ..record.clone() }
}
