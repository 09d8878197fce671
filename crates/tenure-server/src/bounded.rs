//! A store that always answers in time, if only to say that it did not.
//!
//! A request that waits for a store which hangs would hold its place for ever. So every call that a request makes is
//! bounded; whether what was asked happened is then unknown, as after every error of a store.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::port::{
    Adopt, Ask, Backend, Candidacy, Directory, ElectionView, Expire, Finding, Joined, MemberOrder,
    Membership, NewSession, Observation, Pause, Promises, Pulse, Release, Scope, SessionView, Store,
    StoreError, Take, Term, Trouble, Wakes,
};
use tenure::{ElectionKey, Name, SessionId, Timing, Token};

type Answer<T> = Result<T, StoreError>;

/// A store whose every call ends within a bound.
pub(crate) struct Bounded {
    inner: Arc<dyn Backend>,
    limit: Duration,
}

impl Bounded {
    pub(crate) fn new(inner: Arc<dyn Backend>, limit: Duration) -> Bounded {
        Bounded { inner, limit }
    }

    async fn within<T>(&self, call: impl Future<Output = Answer<T>>) -> Answer<T> {
        tokio::time::timeout(self.limit, call).await.unwrap_or_else(|_| {
            let message = format!("the store did not answer within {:?}", self.limit);
            Err(StoreError::new(Trouble::Timeout, message))
        })
    }
}

#[async_trait]
impl Store for Bounded {
    async fn open(&self, session: &NewSession) -> Answer<Pulse> {
        self.within(self.inner.open(session)).await
    }
    async fn beat(&self, session: &SessionId) -> Answer<Pulse> {
        self.within(self.inner.beat(session)).await
    }
    async fn end(&self, session: &SessionId) -> Answer<()> {
        self.within(self.inner.end(session)).await
    }
    async fn join(&self, candidacy: &Candidacy) -> Answer<Joined> {
        self.within(self.inner.join(candidacy)).await
    }
    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Answer<()> {
        self.within(self.inner.leave(session, election)).await
    }
    async fn observe(&self, session: &SessionId, scope: &Scope) -> Answer<Observation> {
        self.within(self.inner.observe(session, scope)).await
    }
    async fn take(&self, take: &Take) -> Answer<Option<Token>> {
        self.within(self.inner.take(take)).await
    }
    async fn release(&self, release: &Release) -> Answer<()> {
        self.within(self.inner.release(release)).await
    }
    async fn expire(&self, expire: &Expire) -> Answer<()> {
        self.within(self.inner.expire(expire)).await
    }
    async fn ask(&self, ask: &Ask) -> Answer<bool> {
        self.within(self.inner.ask(ask)).await
    }
    fn adopts(&self) -> bool {
        self.inner.adopts()
    }
    async fn adopt(&self, adopt: &Adopt) -> Answer<bool> {
        self.within(self.inner.adopt(adopt)).await
    }
    fn watch(&self, sessions: &[SessionId]) {
        self.inner.watch(sessions);
    }
    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        self.inner.kernel_lock(session)
    }
    fn wakes(&self) -> Wakes {
        self.inner.wakes()
    }
}

#[async_trait]
impl Directory for Bounded {
    fn promises(&self) -> Promises {
        self.inner.promises()
    }
    async fn identity(&self) -> Answer<String> {
        self.within(self.inner.identity()).await
    }
    async fn elections(&self, namespace: Option<&Name>) -> Answer<Vec<ElectionView>> {
        self.within(self.inner.elections(namespace)).await
    }
    async fn election(&self, key: &ElectionKey) -> Answer<Option<ElectionView>> {
        self.within(self.inner.election(key)).await
    }
    async fn history(&self, key: &ElectionKey, limit: u32) -> Answer<Vec<Term>> {
        self.within(self.inner.history(key, limit)).await
    }
    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Answer<bool> {
        self.within(self.inner.set_paused(key, pause)).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> Answer<Vec<SessionView>> {
        self.within(self.inner.sessions(which)).await
    }
    async fn membership(&self) -> Answer<Option<Membership>> {
        self.within(self.inner.membership()).await
    }
    /// Bounded by the store itself: a new member has everything to learn first.
    async fn order_member(&self, order: &MemberOrder) -> Answer<()> {
        self.inner.order_member(order).await
    }
    fn pace(&self) -> Option<Timing> {
        self.inner.pace()
    }
    async fn clock_seconds(&self) -> Answer<Option<f64>> {
        self.within(self.inner.clock_seconds()).await
    }
    async fn failed(&self) -> StoreError {
        self.inner.failed().await
    }
    async fn examine(&self) -> Answer<Vec<Finding>> {
        self.within(self.inner.examine()).await
    }
}

/// Passes calls on, each within the bound; in brackets, one that asks nothing of the store.
macro_rules! bounded {
    (impl $port:path {
        $([$plain:ident -> $said:ty])*
        $($call:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*
    }) => {
        #[async_trait]
        impl $port for Bounded {
            $(fn $plain(&self) -> $said {
                self.inner.$plain()
            })*
            $(async fn $call(&self, $($name: $kind),*) -> Answer<$answer> {
                self.within(self.inner.$call($($name),*)).await
            })*
        }
    };
}

tenure::pass_on_work!(bounded);
