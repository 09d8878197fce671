//! The path of the machine: one message for each call.

use async_trait::async_trait;
use tenure_core::port::{
    Adopt, Ask, Candidacy, Expire, Joined, NewSession, Observation, Pulse, Release, Scope, Store, StoreError,
    Take, Takeover, Wake, Wakes,
};
use tenure_core::{ElectionKey, SessionId, Token};

use super::error::garbled;
use super::message::{Message, STRICT};
use super::value::Value;
use super::{Postgres, get, get_json};

/// After how many terms of a slot the history is pruned to the last hundred, which is all that is ever shown of it.
const PRUNE_EVERY: u64 = 16;

#[async_trait]
impl Store for Postgres {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        session.check()?;
        let (takeover, held) = match session.takeover {
            Takeover::Lease => ("lease", None),
            // Before there is a row: whoever sees the row may then rely on the lock. If this call is given up, so is it.
            Takeover::Connection => ("connection", self.shared.connections.hold(session).await?),
        };
        let lease_ms = i64::try_from(session.lease.as_millis()).unwrap_or(i64::MAX);
        let values = [
            session.id.as_str().into(),
            session.name.as_str().into(),
            Value::Int(lease_ms),
            takeover.into(),
            session.owner.as_deref().into(),
        ];
        self.shared.calls.warm_up_with(self.nothing_by_nobody()?);
        let message = self.strict_message().then("session_open", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(Pulse::Gone) };
        if let Some(held) = held {
            self.shared.connections.keep(&session.id, held);
        }
        Ok(Pulse::Alive { epoch: epoch(get(row, "epoch")?)?, asks: Vec::new() })
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        let message = self.strict_message().then("session_beat", &[session.as_str().into()])?;
        let rows = self.shared.beats.run(message).await?;
        let Some(row) = rows.first() else { return Ok(Pulse::Gone) };
        Ok(Pulse::Alive { epoch: epoch(get(row, "epoch")?)?, asks: get_json(row, "asks")? })
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        let hint = hint(&Wake::Ended(session.clone()));
        let message = Message::fresh(&self.queries)
            .then("session_lock", &[session.as_str().into()])?
            .then("session_end", &[session.as_str().into(), hint.as_str().into()])?;
        self.shared.calls.run(message).await?;
        self.shared.connections.let_go(session);
        Ok(())
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        let Candidacy { session, election, .. } = candidacy;
        let (session, slots) = (Value::from(session.as_str()), Value::from(candidacy.slots));
        let requires = json(&candidacy.requires)?;
        let hint = hint(&Wake::Changed(election.clone()));
        let [namespace, name] = key(election);
        let upsert = [namespace.clone(), name.clone(), slots.clone(), requires.clone(), session.clone()];
        let join = [
            namespace,
            name,
            session.clone(),
            candidacy.id.as_str().into(),
            Value::Int(candidacy.priority.into()),
            candidacy.observer.into(),
            json(&candidacy.capabilities)?,
            json(&candidacy.metadata)?,
            slots,
            requires,
            hint.as_str().into(),
        ];
        let message = Message::fresh(&self.queries)
            .then("candidate_lock", &[session])?
            .then("election_upsert", &upsert)?
            .then("election_lock", &key(election))?
            .then("candidate_join", &join)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| garbled("a candidacy", "no row"))?;
        Ok(match (get(row, "live")?, get(row, "standing")?) {
            (false, _) => Joined::Gone,
            (true, true) => Joined::Standing,
            (true, false) => Joined::SlotsDiffer { slots: number(get::<i32>(row, "slots")?, "slots")? },
        })
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        let hint = hint(&Wake::Changed(election.clone()));
        let [namespace, name] = key(election);
        let values = [namespace, name, session.as_str().into(), hint.as_str().into()];
        self.call("candidate_leave", &values).await.map(drop)
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        let (word, keys) = match scope {
            Scope::Contested => ("contested", &[][..]),
            Scope::Standing => ("standing", &[][..]),
            Scope::Only(keys) => ("only", keys.as_slice()),
            Scope::All => ("all", &[][..]),
        };
        self.look(word, session.as_str(), keys, None).await
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        let hint = hint(&Wake::Changed(take.election.clone()));
        let [namespace, name] = key(&take.election);
        let (slot, taker) = (Value::from(take.slot), Value::from(take.session.as_str()));
        let (token, holder) =
            (int(take.token.as_u64()), Value::from(take.holder.as_ref().map(SessionId::as_str)));
        let seen = [namespace.clone(), name.clone(), slot.clone(), token.clone(), holder.clone()];
        let mut message = Message::fresh(&self.queries)
            .plain(STRICT, self.shared.strict)
            .then("session_wait", std::slice::from_ref(&taker))?;
        if let Some(expire) = &take.expire {
            let (id, beat) = expire_values(expire);
            let values = [id.clone(), beat, taker.clone()]
                .into_iter()
                .chain(seen)
                .chain([expire.epoch.into(), take.epoch.into()]);
            let values: Vec<_> = values.collect();
            message = message.then("session_lock", &[id])?.then("session_expire", &values)?;
        }
        let lock = [namespace.clone(), name.clone(), slot.clone(), taker.clone()];
        let epoch = take.epoch.into();
        let values = [namespace, name, slot, taker, token, holder, hint.as_str().into(), epoch];
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

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        let Release { session, election, slot, token, successor, via, leave } = release;
        let hint = hint(&Wake::Released {
            election: election.clone(),
            slot: *slot,
            token: *token,
            by: session.clone(),
            successor: successor.clone(),
            via: *via,
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
            via.as_str().into(),
            hint.as_str().into(),
        ];
        let mut message = Message::lazy(&self.queries).then("lease_release", &values)?;
        if *leave {
            // After the lease, as whoever ends or expires a session does it.
            message = message.then("candidate_drop", &candidate)?;
        }
        self.shared.calls.run(message).await.map(drop)
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        let (id, beat) = expire_values(expire);
        let mut values = vec![Value::Null; 10];
        (values[0], values[1], values[8]) = (id.clone(), beat, expire.epoch.into());
        let message = Message::fresh(&self.queries)
            .then("session_wait", std::slice::from_ref(&id))?
            .then("session_lock", &[id])?
            .then("session_expire", &values)?;
        self.shared.calls.run(message).await.map(drop)
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        let [namespace, name] = key(&ask.election);
        let values = [
            namespace,
            name,
            ask.slot.into(),
            int(ask.token.as_u64()),
            ask.kind.word().into(),
            ask.kind.successor().map(SessionId::as_str).into(),
            ask.by.as_str().into(),
        ];
        Ok(!self.call("request_put", &values).await?.is_empty())
    }

    fn adopts(&self) -> bool {
        true
    }

    async fn adopt(&self, adopt: &Adopt) -> Result<bool, StoreError> {
        let [namespace, name] = key(&adopt.election);
        let (slot, session) = (Value::from(adopt.slot), Value::from(adopt.session.as_str()));
        let lease = [namespace.clone(), name.clone(), slot.clone(), session.clone()];
        let values =
            [namespace, name, slot, int(adopt.token.as_u64()), session.clone(), adopt.by.as_str().into()];
        let message = Message::fresh(&self.queries)
            .plain(STRICT, self.shared.strict)
            .then("session_wait", &[session])?
            .then("lease_adopt_make", &lease[..3])?
            .then("lease_adopt_lock", &lease)?
            .then("lease_adopt", &values)?;
        Ok(!self.shared.calls.run(message).await?.is_empty())
    }

    fn watch(&self, sessions: &[SessionId]) {
        self.shared.connections.watch(sessions);
    }

    fn wakes(&self) -> Wakes {
        self.shared.ears.open()
    }
}

impl Postgres {
    /// What a hand-over needs, planned before there is one: a take-over of nothing by nobody, and its release.
    fn nothing_by_nobody(&self) -> Result<Message<'_>, StoreError> {
        let (none, nought) = (Value::from(""), Value::Int(0));
        let seen = [none.clone(), none.clone(), nought.clone(), none.clone()];
        let take = [&seen[..], &[nought.clone(), Value::Null, none.clone(), nought.clone()]].concat();
        let release = [none.clone(), none.clone(), nought.clone(), nought, none.clone(), Value::Null];
        let release = [&release[..], &[none.clone(), none.clone()]].concat();
        Message::fresh(&self.queries)
            .then("session_wait", std::slice::from_ref(&none))?
            .then("session_lock", &[none])?
            .then("session_expire", &[const { Value::Null }; 10])?
            .then("lease_lock", &seen)?
            .then("term_prune", &seen[..2])?
            .then("lease_take", &take)?
            .then("lease_release", &release)
    }

    /// A message whose commit strict mode must not lose.
    pub(super) fn strict_message(&self) -> Message<'_> {
        Message::new(&self.queries).plain(STRICT, self.shared.strict)
    }

    /// Looks at elections, at one moment.
    pub(super) async fn look(
        &self,
        scope: &str,
        session: &str,
        keys: &[ElectionKey],
        namespace: Option<&str>,
    ) -> Result<Observation, StoreError> {
        let values = [scope.into(), session.into(), json(keys)?, namespace.into()];
        let rows = self.call("observe", &values).await?;
        let row = rows.first().ok_or_else(|| garbled("a look at elections", "no row"))?;
        Ok(Observation {
            epoch: epoch(get(row, "epoch")?)?,
            elections: get_json(row, "elections")?,
            strays: get_json(row, "strays")?,
        })
    }
}

/// Namespace and name.
pub(super) fn key(election: &ElectionKey) -> [Value<'_>; 2] {
    [election.namespace.as_str().into(), election.name.as_str().into()]
}

/// The payload of a notification.
pub(super) fn hint(wake: &Wake) -> String {
    serde_json::to_string(wake).expect("a hint has no map with keys that are not strings")
}

/// A number that the tables keep as a `bigint`. What is beyond it was never there to be seen.
pub(super) fn int(n: u64) -> Value<'static> {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

pub(super) fn json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Value<'static>, StoreError> {
    serde_json::to_string(value).map(Value::Json).map_err(|error| garbled("an argument", error))
}

fn expire_values(expire: &Expire) -> (Value<'_>, Value<'_>) {
    (expire.session.as_str().into(), expire.beat.map_or(Value::Null, int))
}

fn epoch(n: i64) -> Result<u32, StoreError> {
    number(n, "its epoch")
}

pub(super) fn number<T, N: TryInto<T>>(n: N, what: &str) -> Result<T, StoreError>
where
    N::Error: std::fmt::Display,
{
    n.try_into().map_err(|error| garbled(what, error))
}
