//! A store in this process's memory: for tests, and for singletons within one process.
//!
//! The truth is one [`Book`] and one [`Ledger`] behind a mutex, shared by every clone, and a [`Cabinet`] behind another. It is gone
//! with the process.

mod events;
mod schedules;
mod work;

use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use tenure_core::book::Book;
use tenure_core::cabinet::Cabinet;
use tenure_core::ledger::Ledger;
use tenure_core::port::{
    Adopt, Ask, Candidacy, Credential, Deed, Directory, ElectionView, Expire, Joined, NewSession,
    Observation, Office, Pause, Promises, Pulse, Release, Scope, SessionView, Store, StoreError, Take, Term,
    Trouble, Wake, Wakes,
};
use tenure_core::{ElectionKey, Name, SessionId, Token};
use tokio::sync::broadcast;

use super::Heard;
use crate::runtime::{Runtime, System};

/// What it promises.
pub const PROMISES: Promises = Promises {
    backend: "memory",
    at_most_one: "in this process",
    netsplit: "none can happen",
    after_crash: "everything is gone with the process",
};

/// A store in memory. Clones share it.
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// let store = tenure::backend::memory::Memory::new();
/// let a = tenure::Tenure::builder().store(store.clone()).name("a").open().await?;
/// let b = tenure::Tenure::builder().store(store).name("b").open().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Memory {
    shelf: Arc<Mutex<Shelf>>,
    cabinet: Arc<Mutex<Cabinet>>,
    wakes: broadcast::Sender<Wake>,
    runtime: Arc<dyn Runtime>,
    /// Another store is another elector, whose tokens begin anew.
    identity: Arc<str>,
}

/// What is changed together: who holds what, and the work that hangs on it.
#[derive(Default)]
struct Shelf {
    book: Book,
    ledger: Ledger,
}

impl Memory {
    /// An empty store.
    pub fn new() -> Self {
        Self::with_runtime(Arc::new(System))
    }

    /// An empty store whose times for people come from this runtime.
    pub fn with_runtime(runtime: Arc<dyn Runtime>) -> Self {
        let identity = format!("memory {:016x}", crate::runtime::random()).into();
        let wakes = broadcast::channel(1024).0;
        Memory { shelf: Arc::default(), cabinet: Arc::default(), wakes, runtime, identity }
    }

    fn locked(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn cabinet(&self) -> MutexGuard<'_, Cabinet> {
        self.cabinet.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Does something to the book, then passes on the hints it gave.
    fn with<T>(&self, act: impl FnOnce(&mut Book, i64) -> T) -> T {
        self.with_both(|shelf, wall| act(&mut shelf.book, wall))
    }

    /// Does something to the ledger, which asks the book who lives, then passes on the hints it gave.
    fn with_ledger<T>(&self, act: impl FnOnce(&mut Ledger, &Book, i64) -> T) -> T {
        self.with_both(|shelf, wall| act(&mut shelf.ledger, &shelf.book, wall))
    }

    fn with_both<T>(&self, act: impl FnOnce(&mut Shelf, i64) -> T) -> T {
        let mut shelf = self.locked();
        let result = act(&mut shelf, self.runtime.wall_ms());
        let wakes = [shelf.book.drain_wakes(), shelf.ledger.drain_wakes()];
        for wake in wakes.into_iter().flatten() {
            // Nobody listening is no trouble.
            let _ = self.wakes.send(wake);
        }
        result
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Store for Memory {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        session.check()?;
        Ok(self.with(|book, wall| book.open(session, wall)))
    }

    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        Ok(self.with(|book, wall| book.beat(session, wall)))
    }

    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        self.with(|book, wall| book.end(session, wall));
        Ok(())
    }

    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        Ok(self.with(|book, wall| book.join(candidacy, wall)))
    }

    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.with(|book, _| book.leave(session, election));
        Ok(())
    }

    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        Ok(self.locked().book.observe(session, scope))
    }

    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        Ok(self.with(|book, wall| book.take(take, wall)))
    }

    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        self.with(|book, wall| book.release(release, wall));
        Ok(())
    }

    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        self.with(|book, wall| book.expire(expire, wall));
        Ok(())
    }

    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        Ok(self.with(|book, _| book.ask(ask)))
    }

    fn adopts(&self) -> bool {
        true
    }

    async fn adopt(&self, adopt: &Adopt) -> Result<bool, StoreError> {
        Ok(self.with(|book, wall| book.adopt(adopt, wall)))
    }

    fn wakes(&self) -> Wakes {
        Box::new(Heard(self.wakes.subscribe()))
    }
}

#[async_trait]
impl Directory for Memory {
    fn promises(&self) -> Promises {
        PROMISES
    }

    async fn identity(&self) -> Result<String, StoreError> {
        Ok(self.identity.as_ref().to_owned())
    }

    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        Ok(self.locked().book.elections(namespace))
    }

    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        Ok(self.locked().book.election(key))
    }

    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        Ok(self.locked().book.history(key, limit))
    }

    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        Ok(self.locked().book.sessions(which))
    }

    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.with(|book, _| book.set_paused(key, pause)).ok_or_else(|| no_such_election(key))
    }
}

#[async_trait]
impl Office for Memory {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        Ok(self.cabinet().credentials())
    }

    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.cabinet().put_credential(credential)
    }

    async fn record(&self, deed: &Deed) -> Result<(), StoreError> {
        self.cabinet().record(deed);
        Ok(())
    }

    async fn deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Deed>, StoreError> {
        Ok(self.cabinet().deeds(namespace, before, limit))
    }

    async fn forget(&self, before_ms: i64) -> Result<(), StoreError> {
        self.cabinet().forget(before_ms);
        Ok(())
    }
}

/// The error for an election that nobody ever stood for.
pub(crate) fn no_such_election(key: &ElectionKey) -> StoreError {
    StoreError::new(
        Trouble::Request,
        format!("there is no election {key}; `tenure leader list` shows those that there are"),
    )
}
