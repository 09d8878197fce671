//! Stores that are away, that hang, and that give no hints.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tenure::backend::memory::Memory;
use tenure::port::{
    Ask, Backend, Candidacy, Directory, ElectionView, Expire, Joined, NewSession, Observation, Office, Pause,
    Promises, Pulse, Release, Scope, SessionView, Store, StoreError, Take, Term, Trouble, Wake, WakeSource,
    Wakes,
};
use tenure::{ElectionKey, Name, SessionId, Token};

use super::support::{key, on, stand, take};

/// A store in memory that looks away when it is told to, and never gives a hint.
#[derive(Clone)]
struct Moody {
    inner: Memory,
    away: Arc<AtomicBool>,
    /// It has stopped for good.
    stopped: Arc<AtomicBool>,
}

impl Moody {
    fn new() -> Moody {
        Moody { inner: Memory::new(), away: Arc::default(), stopped: Arc::default() }
    }

    fn there(&self) -> Result<(), StoreError> {
        match self.away.load(Ordering::Relaxed) {
            true => Err(StoreError::new(Trouble::Unreachable, "nobody answers at secret.host")),
            false => Ok(()),
        }
    }
}

struct Silence;

#[async_trait]
impl WakeSource for Silence {
    async fn next(&mut self) -> Option<Wake> {
        std::future::pending().await
    }
}

#[async_trait]
impl Store for Moody {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        self.there()?;
        self.inner.open(session).await
    }
    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        self.there()?;
        self.inner.beat(session).await
    }
    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        self.inner.end(session).await
    }
    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.inner.join(candidacy).await
    }
    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.inner.leave(session, election).await
    }
    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        self.there()?;
        self.inner.observe(session, scope).await
    }
    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        self.inner.take(take).await
    }
    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        self.inner.release(release).await
    }
    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        self.inner.expire(expire).await
    }
    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        self.inner.ask(ask).await
    }
    fn wakes(&self) -> Wakes {
        Box::new(Silence)
    }
}

#[async_trait]
impl Directory for Moody {
    fn promises(&self) -> Promises {
        self.inner.promises()
    }
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.inner.elections(namespace).await
    }
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.inner.election(key).await
    }
    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.inner.history(key, limit).await
    }
    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.inner.set_paused(key, pause).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.there()?;
        self.inner.sessions(which).await
    }
    async fn failed(&self) -> StoreError {
        match self.stopped.load(Ordering::Relaxed) {
            true => StoreError::new(Trouble::Unavailable, "the disk of secret.host is full"),
            false => std::future::pending().await,
        }
    }
}

impl Office for Moody {}

/// A server whose Raft had stopped was healthy for ever, so that nobody restarted it.
#[tokio::test]
async fn a_server_whose_store_has_stopped_for_good_is_neither_healthy_nor_ready() {
    let moody = Moody::new();
    let inside = on(Arc::new(moody.clone()) as Arc<dyn Backend>);
    inside.get("/healthz").await.of(200);
    moody.stopped.store(true, Ordering::Relaxed);
    let alive = inside.get("/healthz").await;
    assert!(!String::from_utf8_lossy(&alive.bytes).contains("secret.host"), "strangers learn no addresses");
    alive.problem(503, "store-failed", None);
    let ready = inside.get("/readyz").await;
    assert!(String::from_utf8_lossy(&ready.bytes).contains("stopped for good"));
    ready.problem(503, "not-ready", None);
}

#[tokio::test]
async fn without_hints_the_board_still_sees_everything() {
    let store: Arc<dyn Backend> = Arc::new(Moody::new());
    let inside = on(store.clone());
    inside.app.board().known().await.unwrap();
    let session = stand(store.as_ref(), "web-1", "nightly", 0).await;
    take(store.as_ref(), &session, "nightly").await;
    let mut changes = inside.app.board().changes();
    while inside.app.board().seen().elections.get(&key("nightly")).is_none_or(|e| e.holders().count() == 0) {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn while_the_store_is_away_the_last_is_shown_with_its_age_and_the_trouble() {
    let moody = Moody::new();
    let store: Arc<dyn Backend> = Arc::new(moody.clone());
    let inside = on(store.clone());
    let session = stand(store.as_ref(), "web-1", "nightly", 0).await;
    take(store.as_ref(), &session, "nightly").await;
    inside.app.board().look_at_all().await.unwrap();
    moody.away.store(true, Ordering::Relaxed);
    let mut changes = inside.app.board().changes();
    while inside.app.board().seen().trouble.is_none() {
        changes.changed().await.unwrap();
    }
    let answer = inside.get("/v1/elections/nightly/leader").await;
    assert_eq!(answer.header("tenure-trouble"), "unreachable");
    assert_eq!(answer.of(200)["id"], "web-1");
    inside.get("/v1/elections/nightly?consistent=true").await.problem(503, "store-unavailable", None);
    let state = inside.get("/v1/store").await.of(200);
    assert_eq!((&state["ok"], &state["trouble"]), (&false.into(), &"unreachable".into()));
    moody.away.store(false, Ordering::Relaxed);
    while inside.app.board().seen().trouble.is_some() {
        changes.changed().await.unwrap();
    }
    assert_eq!(inside.get("/v1/elections/nightly?consistent=true").await.of(200)["leader"], "web-1");
}

#[tokio::test]
async fn a_server_whose_store_was_never_there_says_so_instead_of_knowing_nothing() {
    let moody = Moody::new();
    moody.away.store(true, Ordering::Relaxed);
    let inside = on(Arc::new(moody));
    inside.get("/v1/elections").await.problem(503, "store-unavailable", None);
    inside.get("/v1/elections/nightly").await.problem(503, "store-unavailable", None);
}

impl tenure::port::Tasks for Moody {}
impl tenure::port::Desk for Moody {}
impl tenure::port::Pools for Moody {}

impl tenure::port::Events for Moody {}

impl tenure::port::Bureau for Moody {}
impl tenure::port::Scheduling for Moody {}
impl tenure::port::Calendar for Moody {}
