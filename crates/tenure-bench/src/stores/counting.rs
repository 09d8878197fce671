//! A store that counts how often it is asked.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tenure::port::{
    Ask, Backend, Bureau, Calendar, Candidacy, Desk, Directory, ElectionView, Events, Expire, Joined,
    NewSession, Observation, Office, Pause, Pools, Promises, Pulse, Release, Scheduling, Scope, SessionView,
    Store, StoreError, Take, Tasks, Term, Wakes,
};
use tenure::{ElectionKey, Name, SessionId, Token};

/// Elections on another store, each call counted.
pub(super) struct Counting {
    store: Arc<dyn Backend>,
    calls: Arc<AtomicU64>,
}

impl Counting {
    pub(super) fn new(store: Arc<dyn Backend>) -> (Counting, Arc<AtomicU64>) {
        let calls = Arc::new(AtomicU64::new(0));
        (Counting { store, calls: calls.clone() }, calls)
    }

    fn asked(&self) -> &Arc<dyn Backend> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.store
    }
}

#[async_trait]
impl Store for Counting {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        self.asked().open(session).await
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        self.asked().beat(session).await
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        self.asked().end(session).await
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.asked().join(candidacy).await
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.asked().leave(session, election).await
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        self.asked().observe(session, scope).await
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        self.asked().take(take).await
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        self.asked().release(release).await
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        self.asked().expire(expire).await
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        self.asked().ask(ask).await
    }

    fn watch(&self, sessions: &[SessionId]) {
        self.store.watch(sessions);
    }

    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        self.store.kernel_lock(session)
    }

    fn wakes(&self) -> Wakes {
        self.store.wakes()
    }
}

#[async_trait]
impl Directory for Counting {
    fn promises(&self) -> Promises {
        self.store.promises()
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.asked().elections(namespace).await
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.asked().election(key).await
    }

    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.asked().history(key, limit).await
    }

    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.asked().set_paused(key, pause).await
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.asked().sessions(which).await
    }
}

impl Tasks for Counting {
    fn keeps_work(&self) -> bool {
        false
    }
}

impl Office for Counting {}
impl Desk for Counting {}
impl Pools for Counting {}
impl Events for Counting {}
impl Bureau for Counting {}
impl Scheduling for Counting {}
impl Calendar for Counting {}
