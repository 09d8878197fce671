//! Implementation of [`ElectionStore`] on Kubernetes.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::model::elections::Elections;
use tenure_core::port::{
    BoxNotificationSource, Candidacy, ElectionStore, ElectionsObservation, ErrorKind, ExpireSessionRequest,
    HeartbeatResponse, JoinElectionResponse, LeaderRequest, ObserveScope, OpenSessionRequest,
    ReleaseLeaseRequest, SessionView, StoreError, TakeLeaseRequest, TakeoverMode,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::cache::{CachedLeaseSession, HeldLeaseObject};
use super::decode::{LeaseReading, SlotKey, slot_key};
use super::encode::{changed, lease_object};
use super::names::lease_name;
use super::object::LeaseObject;
use super::record::{HeldLeaseRecord, SessionRecord};
use super::watch_scope::{NAMED_MAX, WatchScope};
use super::{KubernetesStore, watch};
use crate::runtime;

/// Maximum number of attempts of a change that conflicts with other changes. Each conflict means progress of another
/// process, so this many in a row indicate an overloaded API server.
pub(super) const ATTEMPTS_MAX: u32 = 64;

/// Wait a short, random time after a conflict.
pub(super) async fn back_off(attempt: u32) {
    let pause = Duration::from_micros(500 << attempt.min(6));
    runtime::sleep_until(runtime::now() + runtime::jittered(pause)).await;
}

pub(super) fn conflict_error(what: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        format!(
            "all {ATTEMPTS_MAX} attempts to {what} conflicted with other changes in Kubernetes; check the load of the API server"
        ),
    )
}

impl KubernetesStore {
    /// Read the Leases and sessions of the given elections, and of the elections that the session has used, at one
    /// version. Reads all objects if that is not sufficient.
    pub(super) async fn read(
        &self,
        keys: &[ElectionKey],
        session: Option<&SessionId>,
    ) -> Result<LeaseReading, StoreError> {
        self.watch_scope.add(keys);
        let used = session.map(|id| self.cache.elections_used(id)).unwrap_or_default();
        let scope: BTreeSet<ElectionKey> = keys.iter().cloned().chain(used).collect();
        if scope.is_empty() || scope.len() > NAMED_MAX || self.cache.takes_wide_read() {
            return self.read_all().await;
        }
        let mut reading = self.read_of(Some(scope)).await?;
        if let Some(id) = session.filter(|id| !reading.sessions.contains_key(id)) {
            // The session does not use these elections yet.
            let Some(name) = self.cache.name_of(id) else { return self.read_all().await };
            self.api.get(&name).await?.into_iter().for_each(|object| reading.add(object));
        }
        if reading.is_complete() {
            return Ok(reading);
        }
        self.cache.force_wide_reads();
        self.read_all().await
    }

    /// Read all objects of Tenure at one version.
    pub(super) async fn read_all(&self) -> Result<LeaseReading, StoreError> {
        self.read_of(None).await
    }

    /// Read the objects in scope, and the Leases of these elections that other clients created.
    async fn read_of(&self, scope: WatchScope) -> Result<LeaseReading, StoreError> {
        let objects = self.api.list(&scope).await?.objects;
        let mut reading = LeaseReading::of(scope, objects);
        for key in reading.missing() {
            if let Some(object) = self.api.get(&lease_name(&key, 0)).await?.filter(|o| slot_key(o).is_some())
            {
                reading.add(object);
            }
        }
        self.cache.remember_tokens(&reading);
        Ok(reading)
    }

    /// Write the Lease of a slot after a change; `None` on a conflict.
    pub(super) async fn write(
        &self,
        reading: &LeaseReading,
        models: (&Elections, &Elections),
        (key, slot): (&ElectionKey, u32),
    ) -> Result<Option<LeaseObject>, StoreError> {
        let object = lease_object(&self.api.namespace, reading, models, (key, slot), runtime::wall_ms())?;
        self.api.put(&object).await
    }
}

#[async_trait]
impl ElectionStore for KubernetesStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        session.check()?;
        if session.takeover == TakeoverMode::Connection {
            return Err(StoreError::new(
                ErrorKind::Request,
                "the Kubernetes store does not support the takeover mode `connection`: a Lease is not bound to a connection; use `lease`",
            ));
        }
        let view = SessionView {
            id: session.id.clone(),
            name: session.name.clone(),
            heartbeat_count: 0,
            lease_ms: u64::try_from(session.lease.as_millis()).unwrap_or(u64::MAX),
            live: true,
            heartbeat_at_ms: runtime::wall_ms(),
            owner: session.owner.clone(),
        };
        let identity = format!("{}_{}", self.host, session.id);
        let record = SessionRecord {
            view,
            identity,
            ended_at_ms: None,
            candidacies: Vec::new(),
            held_leases: Vec::new(),
            highest_tokens: Vec::new(),
        };
        for attempt in 0..ATTEMPTS_MAX {
            let reading = self.read_all().await?;
            if reading.sessions.contains_key(&session.id) {
                // The id is in use, possibly because of an earlier attempt of this call whose response was lost. The id
                // is not used again.
                return Ok(HeartbeatResponse::SessionEnded);
            }
            let object = self.reusable_object(&reading, &session.id);
            let is_new = object.version().is_empty();
            let mut object = record.written(object, runtime::wall_ms());
            let now = object.next_time(runtime::wall_ms());
            object.set_time("acquireTime", now);
            match self.api.put(&object).await? {
                Some(object) => {
                    self.cache.remember(CachedLeaseSession::new(object, record));
                    // A restarted pod may still have its label.
                    self.leader_label.session_ended(&self.api, &session.id);
                    return Ok(HeartbeatResponse::Live { epoch: 0, leader_requests: Vec::new() });
                }
                // The object belonged to this session before and belongs to another one now.
                None if is_new => return Ok(HeartbeatResponse::SessionEnded),
                None => back_off(attempt).await,
            }
        }
        Err(conflict_error("open a session"))
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        self.heartbeat(session).await
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        for attempt in 0..ATTEMPTS_MAX {
            let reading = self.read_all().await?;
            let before = reading.to_model(runtime::wall_ms());
            let mut after = before.clone();
            after.end_session(session, runtime::wall_ms());
            self.cache.forget(session);
            if self.free_and_end(&reading, (&before, &after), session).await? {
                self.leader_label.session_ended(&self.api, session);
                return Ok(());
            }
            back_off(attempt).await;
        }
        Err(conflict_error("end a session"))
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        let key = &candidacy.election;
        self.cache.add_election(&candidacy.session, key);
        for attempt in 0..ATTEMPTS_MAX {
            let reading = self.read(std::slice::from_ref(key), Some(&candidacy.session)).await?;
            let before = reading.to_model(runtime::wall_ms());
            let mut after = before.clone();
            let joined = after.join_election(candidacy, runtime::wall_ms());
            if joined != JoinElectionResponse::Joined {
                return Ok(joined);
            }
            if let Some((_, record)) = reading.sessions.get(&candidacy.session) {
                check_room(record, candidacy)?;
            }
            let first = changed(&reading, &before, &after, key).contains(&0);
            if first && self.write(&reading, (&before, &after), (key, 0)).await?.is_none() {
                back_off(attempt).await;
                continue;
            }
            let joined_at_ms = runtime::wall_ms();
            let is_live = self
                .update_session(&reading, &candidacy.session, |record| {
                    record.add_candidacy(candidacy, joined_at_ms)
                })
                .await?;
            return if is_live {
                self.check_slots(candidacy).await
            } else {
                Ok(JoinElectionResponse::SessionEnded)
            };
        }
        Err(conflict_error("join an election"))
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let reading = self.find(session).await?;
        let gone = |record: &mut SessionRecord| {
            record.candidacies.retain(|candidacy_record| candidacy_record.candidacy.election != *election);
        };
        self.update_session(&reading, session, gone).await.map(drop)
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        let reading = match scope {
            ObserveScope::Listed(keys) => self.read(keys, Some(session)).await?,
            ObserveScope::Own | ObserveScope::Contested => self.read(&[], Some(session)).await?,
            ObserveScope::All => self.read_all().await?,
        };
        Ok(reading.to_model(runtime::wall_ms()).observe(session, scope))
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        let at: SlotKey = (take.election.clone(), take.slot);
        self.cache.add_election(&take.session, &take.election);
        for attempt in 0..ATTEMPTS_MAX {
            let reading = self.read(std::slice::from_ref(&take.election), Some(&take.session)).await?;
            let before = reading.to_model(runtime::wall_ms());
            let mut after = before.clone();
            let granted = after.take_lease(take, runtime::wall_ms());
            let is_live = |elections: &Elections, id: &SessionId| {
                elections.session(id).is_some_and(|session| session.live)
            };
            let expired = take.expire.as_ref().map(|expire| &expire.session);
            let expired = expired.filter(|id| is_live(&before, id) && !is_live(&after, id));
            let Some(token) = granted else {
                // A session without heartbeats is dead, whether or not its lease can be taken.
                match expired {
                    Some(id) if !self.free_and_end(&reading, (&before, &after), id).await? => {
                        back_off(attempt).await;
                        continue;
                    }
                    _ => return Ok(None),
                }
            };
            let sent = runtime::now();
            let Some(object) = self.write(&reading, (&before, &after), (&at.0, at.1)).await? else {
                back_off(attempt).await;
                continue;
            };
            if let Some(id) = expired {
                // Taking this Lease has ended the session; its other Leases may be freed later by any reader.
                let mut rest = before.clone();
                if let Some(expire) = &take.expire {
                    rest.expire_session(expire, runtime::wall_ms());
                }
                if let Err(error) = self.free_others(&reading, (&before, &rest), id, &at).await {
                    tracing::debug!("leases of expired session not freed session={id}: {error}");
                }
            }
            let held = HeldLeaseObject { token, object };
            if !self.record_grant(&reading, take, token).await? {
                self.release_grant(take, token).await?;
                return Ok(None);
            }
            self.cache.granted(&take.session, at, held.clone());
            if !self.renew_if_slow(&reading, take, (&held, sent)).await? {
                self.release_grant(take, token).await?;
                return Ok(None);
            }
            self.leader_label.lease_taken(&self.api, take);
            return Ok(Some(token));
        }
        Err(conflict_error("take a Lease"))
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        let key = &release.election;
        // Update the cache first. Otherwise a concurrent heartbeat would expect the released Lease and end the
        // session.
        self.cache.released(&release.session, key, release.slot, release.token);
        self.leader_label.lease_released(&self.api, release);
        for attempt in 0..ATTEMPTS_MAX {
            let reading = self.read(std::slice::from_ref(key), Some(&release.session)).await?;
            let before = reading.to_model(runtime::wall_ms());
            let mut after = before.clone();
            after.release_lease(release, runtime::wall_ms());
            let given = HeldLeaseRecord { election: key.clone(), slot: release.slot, token: release.token };
            self.update_session(&reading, &release.session, |record| {
                record.held_leases.retain(|lease| *lease != given);
                record.candidacies.retain(|s| !release.leave || s.candidacy.election != *key);
            })
            .await?;
            let row = |elections: &Elections| elections.record(key).map(|election| election.leases.clone());
            if row(&before) == row(&after)
                || self.write(&reading, (&before, &after), (key, release.slot)).await?.is_some()
            {
                return Ok(());
            }
            back_off(attempt).await;
        }
        Err(conflict_error("release a Lease"))
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        for attempt in 0..ATTEMPTS_MAX {
            let reading = self.read_all().await?;
            let before = reading.to_model(runtime::wall_ms());
            let mut after = before.clone();
            if !after.expire_session(expire, runtime::wall_ms())
                || self.free_and_end(&reading, (&before, &after), &expire.session).await?
            {
                return Ok(());
            }
            back_off(attempt).await;
        }
        Err(conflict_error("expire a session"))
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        for attempt in 0..ATTEMPTS_MAX {
            let reading = self.read(std::slice::from_ref(&request.election), None).await?;
            let before = reading.to_model(runtime::wall_ms());
            let mut after = before.clone();
            let accepted = after.request_leader(request);
            let slots = changed(&reading, &before, &after, &request.election);
            if !accepted
                || !slots.contains(&request.slot)
                || self.write(&reading, (&before, &after), (&request.election, request.slot)).await?.is_some()
            {
                return Ok(accepted);
            }
            back_off(attempt).await;
        }
        Err(conflict_error("send a leader request"))
    }

    fn notifications(&self) -> BoxNotificationSource {
        watch::open(self.api.clone(), self.watch_scope.follow())
    }
}

/// Reject a candidacy that does not fit into the annotation.
fn check_room(record: &SessionRecord, candidacy: &Candidacy) -> Result<(), StoreError> {
    let mut record = record.clone();
    record.add_candidacy(candidacy, 0);
    if record.fits() {
        return Ok(());
    }
    let message = format!(
        "this session is a candidate of {} elections, and the annotation of its Lease has no room for another; divide the elections among processes, or use \
         another store",
        record.candidacies.len() - 1
    );
    Err(StoreError::new(ErrorKind::Request, message))
}
