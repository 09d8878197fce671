//! Heartbeats.
//!
//! A session that holds no Lease renews its session object. A session that holds Leases renews each of them and nothing
//! else, as client-go does. The heartbeat succeeds only if *all* renewals succeed. A Lease that another holder has ends
//! the session; an error leaves the outcome unknown.
//!
//! A leader request is stored in the Lease that the leader renews. The next renewal conflicts with that write, reads
//! the Lease again, and finds the request.

use futures_util::stream::{self, StreamExt};
use tenure_core::port::{HeartbeatResponse, LeaderRequest, StoreError};
use tenure_core::{SessionId, Token};

use super::KubernetesStore;
use super::cache::{CachedLeaseSession, HeldLeaseObject, is_held};
use super::decode::SlotKey;
use super::object::LeaseObject;
use super::record::{Holder, RECORD, SessionRecord, SlotRecord};
use super::store::{ATTEMPTS_MAX, back_off, conflict_error};
use crate::runtime;

/// Maximum number of concurrent renewals: the server limits concurrent requests, and each one uses a connection.
const AT_ONCE: usize = 16;

/// Outcome of renewing one Lease.
enum RenewOutcome {
    Done(Box<LeaseObject>),
    /// Another holder has it, or it was changed externally.
    Lost,
}

impl KubernetesStore {
    pub(super) async fn heartbeat(&self, id: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        for _ in 0..ATTEMPTS_MAX {
            let known = match self.cache.known(id) {
                Some(known) if known.ended => return Ok(HeartbeatResponse::SessionEnded),
                Some(known) => known,
                None => match self.read_cached(id).await? {
                    Some(known) => {
                        self.cache.remember(known.clone());
                        known
                    }
                    None => return Ok(HeartbeatResponse::SessionEnded),
                },
            };
            let response = match known.held.is_empty() {
                true => self.heartbeat_by_session(id, known).await?,
                false => self.heartbeat_by_leases(id, known).await?,
            };
            if let Some(response) = response {
                return Ok(response);
            }
        }
        Err(conflict_error("send a heartbeat"))
    }

    /// Read a session that other servers may use too; `None` if it has ended.
    async fn read_cached(&self, id: &SessionId) -> Result<Option<CachedLeaseSession>, StoreError> {
        // The session object and its Leases are not read at one version; they are used only if they are consistent.
        let found = self.read_session(id).await?.and_then(|reading| CachedLeaseSession::read(&reading, id));
        match found {
            Some(known) => Ok(Some(known)),
            None => Ok(CachedLeaseSession::read(&self.read_all().await?, id)),
        }
    }

    /// Renew the session object. `None` if the session holds a Lease in the meantime.
    async fn heartbeat_by_session(
        &self,
        id: &SessionId,
        mut known: CachedLeaseSession,
    ) -> Result<Option<HeartbeatResponse>, StoreError> {
        let tokens = self.cache.highest_tokens();
        for attempt in 0..ATTEMPTS_MAX {
            known.record.view.heartbeat_count =
                known.heartbeat_count.max(known.record.view.heartbeat_count) + 1;
            known.record.view.heartbeat_at_ms = runtime::wall_ms();
            known.record.remember(&tokens);
            let object = known.record.written(known.object.clone(), runtime::wall_ms());
            if let Some(object) = self.api.put(&object).await? {
                let heartbeat_count = known.record.view.heartbeat_count;
                self.cache.with(id, |now| {
                    now.heartbeat_count = now.heartbeat_count.max(heartbeat_count);
                    now.see(object, known.record);
                });
                return Ok(Some(HeartbeatResponse::Live { epoch: 0, leader_requests: Vec::new() }));
            }
            // A concurrent call of this session, or the end of the session, changed the object.
            let found = self.api.get(known.object.name()).await?;
            let found = found.and_then(|object| Some((SessionRecord::of(&object)?, object)));
            let Some((record, object)) = found.filter(|(r, _)| r.view.id == *id && r.view.live) else {
                self.cache.forget(id);
                return Ok(Some(HeartbeatResponse::SessionEnded));
            };
            let is_foreign = record.view.owner.is_some();
            let holds_now = self.cache.known(id).is_some_and(|now| !now.held.is_empty());
            if holds_now || is_foreign && !record.held_leases.is_empty() {
                return Ok(None);
            }
            (known.object, known.record) = (object, record);
            back_off(attempt).await;
        }
        Err(conflict_error("send a heartbeat"))
    }

    /// Renew all Leases of the session. `None` if the set of Leases has changed.
    async fn heartbeat_by_leases(
        &self,
        id: &SessionId,
        known: CachedLeaseSession,
    ) -> Result<Option<HeartbeatResponse>, StoreError> {
        let heartbeat_count = known.heartbeat_count + 1;
        // The next heartbeat has another number, whether or not this one arrives.
        self.cache.with(id, |now| now.heartbeat_count = now.heartbeat_count.max(heartbeat_count));
        let holder = &known;
        let renewals = known
            .held
            .iter()
            .map(|(at, held)| async move { (at, self.renew(holder, held, heartbeat_count).await) });
        let renewals: Vec<_> = renewals.collect();
        let mut leader_requests = Vec::new();
        let (mut lost, mut failed) = (None, None);
        let renewals: Vec<_> = stream::iter(renewals).buffer_unordered(AT_ONCE).collect().await;
        for (at, renewal) in renewals {
            let token = known.held[at].token;
            match renewal {
                Ok(RenewOutcome::Done(object)) => {
                    leader_requests.extend(requests_of(&object, at, token));
                    self.cache.with(id, |now| {
                        if let Some(held) = now.held.get_mut(at).filter(|held| held.token == token) {
                            held.object = *object;
                        }
                    });
                }
                Ok(RenewOutcome::Lost) => lost = Some((at.clone(), token)),
                Err(error) => failed = Some(error),
            }
        }
        if let Some((at, token)) = lost {
            return self.lost(id, &known, &at, token).await;
        }
        failed.map_or(Ok(Some(HeartbeatResponse::Live { epoch: 0, leader_requests })), Err)
    }

    async fn renew(
        &self,
        known: &CachedLeaseSession,
        held: &HeldLeaseObject,
        heartbeat_count: u64,
    ) -> Result<RenewOutcome, StoreError> {
        let mut object = held.object.clone();
        let identity = known.record.identity.as_str();
        for attempt in 0..ATTEMPTS_MAX {
            let wall_ms = runtime::wall_ms();
            let mut view = known.record.view.clone();
            (view.heartbeat_count, view.heartbeat_at_ms) = (heartbeat_count, wall_ms);
            let mut record: SlotRecord = object.note(RECORD).unwrap_or_default();
            record.holder = Some(Holder { identity: identity.into(), token: held.token, session: view });
            let now = object.next_time(wall_ms);
            object.set_time("renewTime", now);
            object.set_note(RECORD, &record);
            if let Some(object) = self.api.put(&object).await? {
                return Ok(RenewOutcome::Done(Box::new(object)));
            }
            match self.api.get(object.name()).await? {
                Some(found) if is_held(&found, identity, held.token) => object = found,
                _ => return Ok(RenewOutcome::Lost),
            }
            back_off(attempt).await;
        }
        Err(conflict_error("send a heartbeat"))
    }

    /// Renew one Lease without counting a heartbeat; `false` if the session no longer holds it.
    pub(super) async fn renew_one(
        &self,
        known: &CachedLeaseSession,
        held: &HeldLeaseObject,
    ) -> Result<bool, StoreError> {
        Ok(matches!(self.renew(known, held, known.heartbeat_count).await?, RenewOutcome::Done(_)))
    }

    /// Handle a Lease that is no longer held: it was either just released, or the session has ended.
    async fn lost(
        &self,
        id: &SessionId,
        known: &CachedLeaseSession,
        at: &SlotKey,
        token: Token,
    ) -> Result<Option<HeartbeatResponse>, StoreError> {
        let is_lost = match self
            .cache
            .with(id, |now| now.held.get(at).is_some_and(|held| held.token == token))
        {
            Some(is_lost) => is_lost,
            // The session is not cached; its object tells which Leases it holds.
            None => {
                let object = self.api.get(known.object.name()).await?;
                let record =
                    object.as_ref().and_then(SessionRecord::of).filter(|r| r.view.id == *id && r.view.live);
                record.is_none_or(|r| {
                    r.held_leases.iter().any(|h| (&h.election, h.slot) == (&at.0, at.1) && h.token == token)
                })
            }
        };
        if !is_lost {
            return Ok(None);
        }
        tracing::warn!(election = %at.0, slot = at.1, "lease lost: the Lease object was taken, edited or deleted by another client");
        self.cache.with(id, |now| now.ended = true);
        self.leader_label.session_ended(&self.api, id);
        // Marking the session as ended spares other candidates the wait. If this fails, they wait.
        if known.held.len() == 1 {
            let _ = self.mark_own_ended(id).await;
        }
        Ok(Some(HeartbeatResponse::SessionEnded))
    }
}

impl CachedLeaseSession {
    /// Store the current session object.
    pub(super) fn see(&mut self, object: LeaseObject, record: SessionRecord) {
        (self.object, self.record) = (object, record);
    }
}

/// Requests to the holder of a slot under this token.
fn requests_of(object: &LeaseObject, (key, slot): &SlotKey, token: Token) -> Vec<LeaderRequest> {
    let record: SlotRecord = object.note(RECORD).unwrap_or_default();
    let is_for_lease =
        |request: &LeaderRequest| (&request.election, request.slot, request.token) == (key, *slot, token);
    record.leader_requests.into_iter().filter(is_for_lease).collect()
}
