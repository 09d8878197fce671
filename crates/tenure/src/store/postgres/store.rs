//! Sessions, candidates and leases: one message for each call.

use async_trait::async_trait;
use tenure_core::port::{
    AdoptLeaseRequest, BoxNotificationSource, Candidacy, ElectionStore, ElectionsObservation,
    ExpireSessionRequest, HeartbeatResponse, JoinElectionResponse, LeaderRequest, Notification, ObserveScope,
    OpenSessionRequest, ReleaseLeaseRequest, StoreError, TakeLeaseRequest, TakeoverMode,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::error::unexpected_response;
use super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::value::Value;
use super::{PostgresStore, get, get_json};

/// Number of terms of a slot after which the history is pruned to the last hundred.
const PRUNE_EVERY: u64 = 16;

#[async_trait]
impl ElectionStore for PostgresStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        session.check()?;
        let (takeover, connection) = match session.takeover {
            TakeoverMode::Lease => ("lease", None),
            // Before the row exists, so that every process that sees the row can rely on the lock. If the caller drops
            // this call, the lock is released.
            TakeoverMode::Connection => ("connection", self.shared.connections.hold(session).await?),
        };
        let lease_ms = i64::try_from(session.lease.as_millis()).unwrap_or(i64::MAX);
        let values = [
            session.id.as_str().into(),
            session.name.as_str().into(),
            Value::Int(lease_ms),
            takeover.into(),
            session.owner.as_deref().into(),
        ];
        self.shared.calls.warm_up_with(self.warm_up_message()?);
        let message = self.sync_message().then("session_open", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(HeartbeatResponse::SessionEnded) };
        if let Some(connection) = connection {
            self.shared.connections.keep(&session.id, connection);
        }
        Ok(HeartbeatResponse::Live { epoch: epoch(get(row, "epoch")?)?, leader_requests: Vec::new() })
    }

    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        let message = self.sync_message().then("session_heartbeat", &[session.as_str().into()])?;
        let rows = self.shared.heartbeats.run(message).await?;
        let Some(row) = rows.first() else { return Ok(HeartbeatResponse::SessionEnded) };
        Ok(HeartbeatResponse::Live {
            epoch: epoch(get(row, "epoch")?)?,
            leader_requests: get_json(row, "leader_requests")?,
        })
    }

    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        let payload = notify_payload(&Notification::SessionEnded(session.clone()));
        let message = Message::fresh(&self.queries)
            .then("session_lock", &[session.as_str().into()])?
            .then("session_end", &[session.as_str().into(), payload.as_str().into()])?;
        self.shared.calls.run(message).await?;
        self.shared.connections.release(session);
        Ok(())
    }

    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        let Candidacy { session, election, .. } = candidacy;
        let (session, slots) = (Value::from(session.as_str()), Value::from(candidacy.slots));
        let required_capabilities = json(&candidacy.required_capabilities)?;
        let payload = notify_payload(&Notification::ElectionChanged(election.clone()));
        let [namespace, name] = key(election);
        let upsert =
            [namespace.clone(), name.clone(), slots.clone(), required_capabilities.clone(), session.clone()];
        let join = [
            namespace,
            name,
            session.clone(),
            candidacy.name.as_str().into(),
            Value::Int(candidacy.priority.into()),
            candidacy.observer.into(),
            json(&candidacy.capabilities)?,
            json(&candidacy.metadata)?,
            slots,
            required_capabilities,
            payload.as_str().into(),
        ];
        let message = Message::fresh(&self.queries)
            .then("candidate_lock_session", &[session])?
            .then("election_upsert", &upsert)?
            .then("election_lock", &key(election))?
            .then("candidate_join", &join)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("a candidacy", "no row"))?;
        Ok(match (get(row, "live")?, get(row, "joined")?) {
            (false, _) => JoinElectionResponse::SessionEnded,
            (true, true) => JoinElectionResponse::Joined,
            (true, false) => {
                JoinElectionResponse::SlotsDiffer { slots: number(get::<i32>(row, "slots")?, "slots")? }
            }
        })
    }

    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let payload = notify_payload(&Notification::ElectionChanged(election.clone()));
        let [namespace, name] = key(election);
        let values = [namespace, name, session.as_str().into(), payload.as_str().into()];
        self.call("candidate_leave", &values).await.map(drop)
    }

    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        let (scope, keys) = match scope {
            ObserveScope::Contested => ("contested", &[][..]),
            ObserveScope::Own => ("own", &[][..]),
            ObserveScope::Listed(keys) => ("listed", keys.as_slice()),
            ObserveScope::All => ("all", &[][..]),
        };
        self.observe_scope(scope, session.as_str(), keys, None).await
    }

    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        let payload = notify_payload(&Notification::ElectionChanged(take.election.clone()));
        let [namespace, name] = key(&take.election);
        let (slot, candidate) = (Value::from(take.slot), Value::from(take.session.as_str()));
        let (token, holder) =
            (int(take.token.as_u64()), Value::from(take.holder.as_ref().map(SessionId::as_str)));
        let observed = [namespace.clone(), name.clone(), slot.clone(), token.clone(), holder.clone()];
        let mut message = Message::fresh(&self.queries)
            .plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication)
            .then("session_lock_timeout", std::slice::from_ref(&candidate))?;
        if let Some(expire) = &take.expire {
            let (id, heartbeat_count) = expire_values(expire);
            let values = [id.clone(), heartbeat_count, candidate.clone()]
                .into_iter()
                .chain(observed)
                .chain([expire.epoch.into(), take.epoch.into()]);
            let values: Vec<_> = values.collect();
            message = message.then("session_lock", &[id])?.then("session_expire", &values)?;
        }
        let lock = [namespace.clone(), name.clone(), slot.clone(), candidate.clone()];
        let epoch = take.epoch.into();
        let values = [namespace, name, slot, candidate, token, holder, payload.as_str().into(), epoch];
        message = message.then("lease_lock", &lock)?;
        if take.token.as_u64() % PRUNE_EVERY == PRUNE_EVERY - 1 {
            message = message.then("term_prune", &key(&take.election))?;
        }
        let message = message.then("lease_take", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let token = get::<Option<i64>>(row, "token")?;
        token.map(|token| Ok(Token::from_u64(number(token, "a token")?))).transpose()
    }

    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        let ReleaseLeaseRequest { session, election, slot, token, successor, start_reason, leave } = release;
        let payload = notify_payload(&Notification::LeaseReleased {
            election: election.clone(),
            slot: *slot,
            token: *token,
            released_by: session.clone(),
            successor: successor.clone(),
            start_reason: *start_reason,
        });
        let [namespace, name] = key(election);
        let candidate = [namespace.clone(), name.clone(), session.as_str().into()];
        let values = [
            namespace,
            name,
            (*slot).into(),
            int(token.as_u64()),
            session.as_str().into(),
            successor.as_ref().map(SessionId::as_str).into(),
            start_reason.as_str().into(),
            payload.as_str().into(),
        ];
        let mut message = Message::lazy(&self.queries).then("lease_release", &values)?;
        if *leave {
            // Delete the candidate after the release: calls that end or expire a session lock rows in the same order.
            message = message.then("candidate_delete", &candidate)?;
        }
        self.shared.calls.run(message).await.map(drop)
    }

    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        let (id, heartbeat_count) = expire_values(expire);
        let mut values = vec![Value::Null; 10];
        (values[0], values[1], values[8]) = (id.clone(), heartbeat_count, expire.epoch.into());
        let message = Message::fresh(&self.queries)
            .then("session_lock_timeout", std::slice::from_ref(&id))?
            .then("session_lock", &[id])?
            .then("session_expire", &values)?;
        self.shared.calls.run(message).await.map(drop)
    }

    async fn request_leader(&self, request: &LeaderRequest) -> Result<bool, StoreError> {
        let [namespace, name] = key(&request.election);
        let values = [
            namespace,
            name,
            request.slot.into(),
            int(request.token.as_u64()),
            request.kind.as_str().into(),
            request.kind.successor().map(SessionId::as_str).into(),
            request.requested_by.as_str().into(),
        ];
        Ok(!self.call("leader_request_put", &values).await?.is_empty())
    }

    fn supports_adoption(&self) -> bool {
        true
    }

    async fn adopt_lease(&self, adopt: &AdoptLeaseRequest) -> Result<bool, StoreError> {
        let [namespace, name] = key(&adopt.election);
        let (slot, session) = (Value::from(adopt.slot), Value::from(adopt.session.as_str()));
        let lease = [namespace.clone(), name.clone(), slot.clone(), session.clone()];
        let values = [
            namespace,
            name,
            slot,
            int(adopt.token.as_u64()),
            session.clone(),
            adopt.granted_by.as_str().into(),
        ];
        let message = Message::fresh(&self.queries)
            .plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication)
            .then("session_lock_timeout", &[session])?
            .then("lease_adopt_create", &lease[..3])?
            .then("lease_adopt_lock", &lease)?
            .then("lease_adopt", &values)?;
        Ok(!self.shared.calls.run(message).await?.is_empty())
    }

    fn watch_sessions(&self, sessions: &[SessionId]) {
        self.shared.connections.watch(sessions);
    }

    fn notifications(&self) -> BoxNotificationSource {
        self.shared.listener.subscribe()
    }
}

impl PostgresStore {
    /// A takeover and a release that match no rows, so that a connection has prepared and planned these statements before
    /// they are needed.
    fn warm_up_message(&self) -> Result<Message<'_>, StoreError> {
        let (none, zero) = (Value::from(""), Value::Int(0));
        let lease = [none.clone(), none.clone(), zero.clone(), none.clone()];
        let take = [&lease[..], &[zero.clone(), Value::Null, none.clone(), zero.clone()]].concat();
        let release = [none.clone(), none.clone(), zero.clone(), zero, none.clone(), Value::Null];
        let release = [&release[..], &[none.clone(), none.clone()]].concat();
        Message::fresh(&self.queries)
            .then("session_lock_timeout", std::slice::from_ref(&none))?
            .then("session_lock", &[none])?
            .then("session_expire", &[const { Value::Null }; 10])?
            .then("lease_lock", &lease)?
            .then("term_prune", &lease[..2])?
            .then("lease_take", &take)?
            .then("lease_release", &release)
    }

    /// A message whose commit waits for a synchronous standby in strict mode.
    pub(super) fn sync_message(&self) -> Message<'_> {
        Message::new(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication)
    }

    /// Read elections in one snapshot.
    pub(super) async fn observe_scope(
        &self,
        scope: &str,
        session: &str,
        keys: &[ElectionKey],
        namespace: Option<&str>,
    ) -> Result<ElectionsObservation, StoreError> {
        let values = [scope.into(), session.into(), json(keys)?, namespace.into()];
        let rows = self.call("observe", &values).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("elections", "no row"))?;
        Ok(ElectionsObservation {
            epoch: epoch(get(row, "epoch")?)?,
            elections: get_json(row, "elections")?,
            orphaned_leases: get_json(row, "orphaned_leases")?,
        })
    }
}

/// Namespace and name.
pub(super) fn key(election: &ElectionKey) -> [Value<'_>; 2] {
    [election.namespace.as_str().into(), election.name.as_str().into()]
}

/// The payload of a notification.
pub(super) fn notify_payload(notification: &Notification) -> String {
    serde_json::to_string(notification).expect("a notification has no map with keys that are not strings")
}

/// A number as a `bigint`. Greater numbers become the maximum: no such value is stored.
pub(super) fn int(n: u64) -> Value<'static> {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

pub(super) fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Value<'static>, StoreError> {
    serde_json::to_string(value).map(Value::Json).map_err(|error| unexpected_response("an argument", error))
}

fn expire_values(expire: &ExpireSessionRequest) -> (Value<'_>, Value<'_>) {
    (expire.session.as_str().into(), expire.heartbeat_count.map_or(Value::Null, int))
}

fn epoch(n: i64) -> Result<u32, StoreError> {
    number(n, "the epoch")
}

pub(super) fn number<T, N: TryInto<T>>(n: N, what: &str) -> Result<T, StoreError>
where
    N::Error: std::fmt::Display,
{
    n.try_into().map_err(|error| unexpected_response(what, error))
}
