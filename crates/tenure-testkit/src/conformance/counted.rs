//! A store whose tokens grow by more than one, as one whose tokens grow by one.
//!
//! What a token is, is each store's own affair, as long as it grows: a revision of etcd's, an index of a log. The reference store counts. So
//! that one suite serves all, [`Counted`] numbers the grants of each slot in the order in which they were made. It is shared by all clients
//! of a store under test, and hears of every grant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tenure_core::port::{
    Ask, Bureau, Calendar, Candidacy, Credential, Deed, Desk, Directory, ElectionView, Events, Expire,
    Finding, Joined, NewSession, Observation, Office, Pause, Pools, Promises, Pulse, Release, Scheduling,
    Scope, SessionView, Store, StoreError, Take, Tasks, Term, Wake, WakeSource, Wakes,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};

/// The grants of all slots, in order.
#[derive(Clone, Debug, Default)]
pub struct Grants(Arc<Mutex<BTreeMap<Slot, Vec<Token>>>>);

type Slot = (ElectionKey, u32);

impl Grants {
    fn granted(&self, key: &ElectionKey, slot: u32, token: Token) -> Token {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grants = all.entry((key.clone(), slot)).or_default();
        assert!(
            grants.last().is_none_or(|last| *last < token),
            "tokens of {key} grow: {grants:?}, then {token:?}"
        );
        grants.push(token);
        Token::from_u64(grants.len() as u64)
    }

    /// The number of a token that the store shows.
    fn shown(&self, key: &ElectionKey, slot: u32, token: Token) -> Token {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grants = all.get(&(key.clone(), slot)).map(Vec::as_slice).unwrap_or_default();
        let number = grants.iter().position(|grant| *grant == token).map_or(0, |at| at + 1);
        assert!(
            number > 0 || token == Token::ZERO,
            "{key} shows {token:?}, which was never granted: {grants:?}"
        );
        Token::from_u64(number as u64)
    }

    /// The store's token of a number; of one that was not granted, one that never will be.
    fn meant(&self, key: &ElectionKey, slot: u32, number: Token) -> Token {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grants = all.get(&(key.clone(), slot)).map(Vec::as_slice).unwrap_or_default();
        match usize::try_from(number.as_u64()).unwrap_or(usize::MAX) {
            0 => Token::ZERO,
            n => grants.get(n - 1).copied().unwrap_or(Token::from_u64(u64::MAX >> 1)),
        }
    }

    fn view(&self, mut view: ElectionView) -> ElectionView {
        for lease in &mut view.leases {
            lease.token = self.shown(&view.key, lease.slot, lease.token);
        }
        view
    }

    fn ask(&self, mut ask: Ask) -> Ask {
        ask.token = self.shown(&ask.election, ask.slot, ask.token);
        ask
    }

    fn pulse(&self, pulse: Pulse) -> Pulse {
        match pulse {
            Pulse::Alive { epoch, asks } => {
                Pulse::Alive { epoch, asks: asks.into_iter().map(|ask| self.ask(ask)).collect() }
            }
            Pulse::Gone => Pulse::Gone,
        }
    }

    fn wake(&self, wake: Wake) -> Wake {
        match wake {
            Wake::Released { election, slot, token, by, successor, via } => {
                let token = self.shown(&election, slot, token);
                Wake::Released { election, slot, token, by, successor, via }
            }
            other => other,
        }
    }
}

/// A store, its tokens counted.
pub struct Counted<B> {
    store: B,
    grants: Grants,
}

impl<B> Counted<B> {
    /// One client of a store; all have the same `grants`.
    pub fn new(store: B, grants: &Grants) -> Self {
        Counted { store, grants: grants.clone() }
    }
}

#[async_trait]
impl<B: Store> Store for Counted<B> {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        self.store.open(session).await.map(|pulse| self.grants.pulse(pulse))
    }
    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        self.store.beat(session).await.map(|pulse| self.grants.pulse(pulse))
    }
    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        self.store.end(session).await
    }
    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.store.join(candidacy).await
    }
    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.store.leave(session, election).await
    }
    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        let mut seen = self.store.observe(session, scope).await?;
        seen.elections = seen.elections.into_iter().map(|view| self.grants.view(view)).collect();
        for (key, slot, token) in &mut seen.strays {
            *token = self.grants.shown(key, *slot, *token);
        }
        Ok(seen)
    }
    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        let token = self.grants.meant(&take.election, take.slot, take.token);
        let granted = self.store.take(&Take { token, ..take.clone() }).await?;
        Ok(granted.map(|token| self.grants.granted(&take.election, take.slot, token)))
    }
    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        let token = self.grants.meant(&release.election, release.slot, release.token);
        self.store.release(&Release { token, ..release.clone() }).await
    }
    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        self.store.expire(expire).await
    }
    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        let token = self.grants.meant(&ask.election, ask.slot, ask.token);
        self.store.ask(&Ask { token, ..ask.clone() }).await
    }
    fn watch(&self, sessions: &[SessionId]) {
        self.store.watch(sessions);
    }
    fn wakes(&self) -> Wakes {
        Box::new(CountedWakes { wakes: self.store.wakes(), grants: self.grants.clone() })
    }
}

struct CountedWakes {
    wakes: Wakes,
    grants: Grants,
}

#[async_trait]
impl WakeSource for CountedWakes {
    async fn next(&mut self) -> Option<Wake> {
        self.wakes.next().await.map(|wake| self.grants.wake(wake))
    }
}

#[async_trait]
impl<B: Directory> Directory for Counted<B> {
    fn promises(&self) -> Promises {
        self.store.promises()
    }
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        let views = self.store.elections(namespace).await?;
        Ok(views.into_iter().map(|view| self.grants.view(view)).collect())
    }
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        Ok(self.store.election(key).await?.map(|view| self.grants.view(view)))
    }
    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        let mut terms = self.store.history(key, limit).await?;
        for term in &mut terms {
            term.token = self.grants.shown(key, term.slot, term.token);
        }
        Ok(terms)
    }
    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.store.set_paused(key, pause).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.store.sessions(which).await
    }
    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        self.store.clock_seconds().await
    }
    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.store.examine().await
    }
}

#[async_trait]
impl<B: Office> Office for Counted<B> {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.store.credentials().await
    }
    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.store.put_credential(credential).await
    }
    async fn record(&self, deed: &Deed) -> Result<(), StoreError> {
        self.store.record(deed).await
    }
    async fn deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Deed>, StoreError> {
        self.store.deeds(namespace, before, limit).await
    }
    async fn forget(&self, before_ms: i64) -> Result<(), StoreError> {
        self.store.forget(before_ms).await
    }
}

impl<B: Store> Tasks for Counted<B> {}
impl<B: Store> Desk for Counted<B> {}
impl<B: Store> Pools for Counted<B> {}
impl<B: Store> Events for Counted<B> {}
impl<B: Store> Bureau for Counted<B> {}
impl<B: Store> Scheduling for Counted<B> {}
impl<B: Store> Calendar for Counted<B> {}
