//! In-memory store that counts reads of events.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use tenure::port::{
    AccessStore, BoxNotificationSource, Candidacy, ElectionAdmin, ElectionStore, ElectionView,
    ElectionsObservation, Event, EventAdmin, EventStore, ExpireSessionRequest, HeartbeatResponse,
    JoinElectionResponse, LeaderRequest, NewEvent, ObserveScope, OpenSessionRequest, PartitionOffsets, Pause,
    PoolStore, PublishReceipt, ReadEventsRequest, ReleaseLeaseRequest, ScheduleAdmin, ScheduleStore,
    SessionView, StoreError, StoreGuarantees, TakeLeaseRequest, TaskAdmin, TaskStore, Term, TopicKey,
    TopicView,
};
use tenure::store::memory::MemoryStore;
use tenure::{ElectionKey, Name, SessionId, Token};

pub(crate) struct CountingStore {
    inner: MemoryStore,
    reads: AtomicUsize,
}

impl CountingStore {
    pub(crate) fn new(inner: MemoryStore) -> CountingStore {
        CountingStore { inner, reads: AtomicUsize::new(0) }
    }

    /// Number of reads of events.
    pub(crate) fn reads(&self) -> usize {
        self.reads.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl EventStore for CountingStore {
    async fn publish(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        self.inner.publish(topic, events).await
    }
    async fn read_events(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.read_events(read).await
    }
    async fn register_topic_waiter(&self, session: &SessionId, topic: &TopicKey) -> Result<(), StoreError> {
        self.inner.register_topic_waiter(session, topic).await
    }
}

#[async_trait]
impl EventAdmin for CountingStore {
    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        self.inner.topic(key).await
    }
    async fn partition_offsets(&self, key: &TopicKey) -> Result<Option<Vec<PartitionOffsets>>, StoreError> {
        self.inner.partition_offsets(key).await
    }
}

#[async_trait]
impl ElectionStore for CountingStore {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        self.inner.open_session(session).await
    }
    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        self.inner.heartbeat(session).await
    }
    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.inner.end_session(session).await
    }
    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.inner.join_election(candidacy).await
    }
    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.inner.leave_election(session, election).await
    }
    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        self.inner.observe(session, scope).await
    }
    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        self.inner.take_lease(take).await
    }
    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        self.inner.release_lease(release).await
    }
    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        self.inner.expire_session(expire).await
    }
    async fn request_leader(&self, ask: &LeaderRequest) -> Result<bool, StoreError> {
        self.inner.request_leader(ask).await
    }
    fn notifications(&self) -> BoxNotificationSource {
        self.inner.notifications()
    }
}

#[async_trait]
impl ElectionAdmin for CountingStore {
    fn guarantees(&self) -> StoreGuarantees {
        self.inner.guarantees()
    }
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.inner.elections(namespace).await
    }
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.inner.election(key).await
    }
    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.inner.term_history(key, limit).await
    }
    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.inner.set_election_paused(key, pause).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.inner.sessions(which).await
    }
}

impl AccessStore for CountingStore {}
impl TaskStore for CountingStore {}
impl TaskAdmin for CountingStore {}
impl PoolStore for CountingStore {}
impl ScheduleStore for CountingStore {}
impl ScheduleAdmin for CountingStore {}
