//! A store in memory that counts how often events are read.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tenure::backend::memory::Memory;
use tenure::port::{
    Ask, Bureau, Calendar, Candidacy, Desk, Directory, ElectionView, Event, Events, Expire, Joined, NewEvent,
    NewSession, Observation, Office, Pause, Pools, Promises, Published, Pulse, ReadAsk, Release, Scheduling,
    Scope, SessionView, SlotEnds, Store, StoreError, Take, Tasks, Term, TopicKey, TopicView, Wakes,
};
use tenure::{ElectionKey, Name, SessionId, Token};

pub(crate) struct Tally {
    inner: Memory,
    reads: AtomicUsize,
}

impl Tally {
    pub(crate) fn new(inner: Memory) -> Tally {
        Tally { inner, reads: AtomicUsize::new(0) }
    }

    /// How often events were read.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Events for Tally {
    async fn publish(&self, topic: &TopicKey, events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
        self.inner.publish(topic, events).await
    }
    async fn read_events(&self, read: &ReadAsk) -> Result<Vec<Event>, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read_events(read).await
    }
    async fn doze_topic(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        self.inner.doze_topic(session, topic).await
    }
}

#[async_trait]
impl Bureau for Tally {
    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        self.inner.topic(key).await
    }
    async fn slot_ends(&self, key: &TopicKey) -> Result<Option<Vec<SlotEnds>>, StoreError> {
        self.inner.slot_ends(key).await
    }
}

#[async_trait]
impl Store for Tally {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        self.inner.open(session).await
    }
    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
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
        self.inner.wakes()
    }
}

#[async_trait]
impl Directory for Tally {
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
        self.inner.sessions(which).await
    }
}

impl Office for Tally {}
impl Tasks for Tally {}
impl Desk for Tally {}
impl Pools for Tally {}
impl Scheduling for Tally {}
impl Calendar for Tally {}
