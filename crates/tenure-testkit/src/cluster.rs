//! Several processes in one test, on one store and one clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::port::{
    AccessStore, AuditEntry, BoxNotificationSource, BrokerEndpoint, Candidacy, ClaimBatchRequest,
    ClaimBatchResponse, ClaimRefusal, CommitResult, Credential, DeadLetterAction, DueResponse, ElectionAdmin,
    ElectionStore, ElectionView, ElectionsObservation, ErrorKind, Event, EventAdmin, EventId, EventStore,
    ExpireSessionRequest, FinishedTask, FireOutcome, FireRequest, GroupAssignment, GroupKey, GroupSettings,
    GroupView, HeartbeatResponse, JoinElectionResponse, JoinGroupRequest, LeaderRequest, MaintenanceRequest,
    MaintenanceResponse, ManualFire, ManualFireResult, NewEvent, NewResource, NewWorker, ObserveScope,
    OffsetChange, OpenSessionRequest, ParkedEvent, ParkedEventFilter, ParkedKey, PartitionCommit,
    PartitionOffsets, Pause, PoolKey, PoolMatchRequest, PoolRequest, PoolRequestAction, PoolRequestId,
    PoolRequestView, PoolSettings, PoolStore, PoolView, PublishReceipt, QueueKey, QueueSettings, QueueView,
    ReadEventsRequest, ReleaseLeaseRequest, ScheduleAdmin, ScheduleFilter, ScheduleKey, ScheduleStats,
    ScheduleStore, ScheduleView, SessionView, SetScheduleOutcome, SetScheduleRequest, SettleResult,
    Settlement, StartOffset, StoreError, StoreGuarantees, Submission, SubmitReceipt, TakeLeaseRequest,
    TakePartitionsRequest, TakenPartition, TaskAction, TaskAdmin, TaskFilter, TaskId, TaskStore, TaskView,
    Term, TickFilter, TickView, TopicKey, TopicSettings, TopicView, WaitReason, WebhookSettings, WorkerView,
};
use tenure::store::memory::MemoryStore;
use tenure::{ElectionKey, Elector, Name, SessionId, Tenure, Token};

use crate::ManualClock;

/// Lease of every replica. It is shorter than the default: a replica that is cut off loses leadership after 7 s, and
/// another one leads after 11 s.
const LEASE: Duration = Duration::from_secs(10);

/// Replicas that campaign in one election, each with its own elector, on a manual clock.
pub struct ElectionCluster {
    clock: ManualClock,
    nodes: BTreeMap<String, Node>,
}

struct Node {
    tenure: Tenure,
    elector: Elector,
    link: PartitionableStore<MemoryStore>,
}

impl ElectionCluster {
    /// A cluster of these replicas with equal priority; the first by name leads.
    pub async fn of<S: Into<String>>(election: &str, names: impl IntoIterator<Item = S>) -> ElectionCluster {
        ElectionCluster::with_priorities(election, names.into_iter().map(|name| (name, 0))).await
    }

    /// A cluster of replicas with priorities.
    pub async fn with_priorities<S: Into<String>>(
        election: &str,
        nodes: impl IntoIterator<Item = (S, i32)>,
    ) -> ElectionCluster {
        let clock = ManualClock::new(1);
        let memory = MemoryStore::with_runtime(Arc::new(clock.clone()));
        let mut cluster = ElectionCluster { clock, nodes: BTreeMap::new() };
        for (name, priority) in nodes {
            cluster.add(election, name.into(), priority, &memory).await;
        }
        cluster.clock.settle().await;
        cluster
    }

    async fn add(&mut self, election: &str, name: String, priority: i32, memory: &MemoryStore) {
        let link = PartitionableStore::new(memory.clone());
        let tenure = Tenure::builder()
            .store(link.clone())
            .name(name.clone())
            .lease(LEASE)
            .runtime(Arc::new(self.clock.clone()))
            .open()
            .await
            .expect("an in-memory store opens");
        let elector =
            tenure.elector(election).priority(priority).start().await.expect("a candidate can join");
        self.nodes.insert(name, Node { tenure, elector, link });
    }

    /// The replicas that currently trust their leadership.
    pub fn leaders(&self) -> Vec<&str> {
        self.nodes
            .iter()
            .filter(|(_, node)| node.elector.is_leader())
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The elector of a replica.
    pub fn elector(&self, name: &str) -> &Elector {
        &self.node(name).elector
    }

    /// Advances the clock.
    pub async fn advance(&self, by: Duration) {
        self.clock.advance(by).await;
    }

    /// The clock of all replicas.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Cuts a replica off from the store in both directions.
    pub fn cut_off(&self, name: &str) {
        self.node(name).link.cut(true);
    }

    /// Reconnects a replica to the store.
    pub fn reconnect(&self, name: &str) {
        self.node(name).link.cut(false);
    }

    /// Shuts a replica down gracefully.
    pub async fn stop(&mut self, name: &str) {
        let node = self.nodes.remove(name).unwrap_or_else(|| panic!("there is no replica {name}"));
        drop(node.elector);
        node.tenure.close().await.expect("a replica can be closed");
        self.clock.settle().await;
    }

    fn node(&self, name: &str) -> &Node {
        self.nodes.get(name).unwrap_or_else(|| panic!("there is no replica {name}"))
    }
}

/// A store behind a link that a test can cut.
#[derive(Clone)]
pub struct PartitionableStore<B> {
    store: B,
    cut: Arc<AtomicBool>,
    hung: Arc<AtomicBool>,
    blind: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl<B> PartitionableStore<B> {
    /// Creates a working link.
    pub fn new(store: B) -> Self {
        let (cut, hung, blind) = (Arc::default(), Arc::default(), Arc::default());
        PartitionableStore { store, cut, hung, blind, calls: Arc::default() }
    }

    /// Cuts or restores the link. While the link is cut, every call fails before it reaches the store.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    /// Makes all later calls hang forever (`true`), or lets later calls through again (`false`).
    pub fn hang(&self, hung: bool) {
        self.hung.store(hung, Ordering::SeqCst);
    }

    /// Makes observations fail (`true`) or succeed again (`false`), so that the client misses changes. Other calls
    /// succeed.
    pub fn fail_observations(&self, blind: bool) {
        self.blind.store(blind, Ordering::SeqCst);
    }

    /// Number of store calls.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn linked(&self) -> Result<&B, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.hung.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.cut.load(Ordering::SeqCst) {
            return Err(StoreError::new(ErrorKind::Unreachable, "the test cut the link to the store"));
        }
        Ok(&self.store)
    }
}

#[async_trait]
impl<B: ElectionStore + Clone> ElectionStore for PartitionableStore<B> {
    async fn open_session(&self, session: &OpenSessionRequest) -> Result<HeartbeatResponse, StoreError> {
        self.linked().await?.open_session(session).await
    }
    async fn heartbeat(&self, session: &SessionId) -> Result<HeartbeatResponse, StoreError> {
        self.linked().await?.heartbeat(session).await
    }
    async fn end_session(&self, session: &SessionId) -> Result<(), StoreError> {
        self.linked().await?.end_session(session).await
    }
    async fn join_election(&self, candidacy: &Candidacy) -> Result<JoinElectionResponse, StoreError> {
        self.linked().await?.join_election(candidacy).await
    }
    async fn leave_election(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.linked().await?.leave_election(session, election).await
    }
    async fn observe(
        &self,
        session: &SessionId,
        scope: &ObserveScope,
    ) -> Result<ElectionsObservation, StoreError> {
        let store = self.linked().await?;
        if self.blind.load(Ordering::SeqCst) {
            return Err(StoreError::new(ErrorKind::Unreachable, "the test makes observations fail"));
        }
        store.observe(session, scope).await
    }
    async fn take_lease(&self, take: &TakeLeaseRequest) -> Result<Option<Token>, StoreError> {
        self.linked().await?.take_lease(take).await
    }
    async fn release_lease(&self, release: &ReleaseLeaseRequest) -> Result<(), StoreError> {
        self.linked().await?.release_lease(release).await
    }
    async fn expire_session(&self, expire: &ExpireSessionRequest) -> Result<(), StoreError> {
        self.linked().await?.expire_session(expire).await
    }
    async fn request_leader(&self, query: &LeaderRequest) -> Result<bool, StoreError> {
        self.linked().await?.request_leader(query).await
    }
    fn watch_sessions(&self, sessions: &[SessionId]) {
        self.store.watch_sessions(sessions);
    }
    fn notifications(&self) -> BoxNotificationSource {
        self.store.notifications()
    }
}

#[async_trait]
impl<B: ElectionAdmin> ElectionAdmin for PartitionableStore<B> {
    fn guarantees(&self) -> StoreGuarantees {
        self.store.guarantees()
    }
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.linked().await?.elections(namespace).await
    }
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.linked().await?.election(key).await
    }
    async fn term_history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.linked().await?.term_history(key, limit).await
    }
    async fn set_election_paused(
        &self,
        key: &ElectionKey,
        pause: Option<&Pause>,
    ) -> Result<bool, StoreError> {
        self.linked().await?.set_election_paused(key, pause).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.linked().await?.sessions(which).await
    }
}

#[async_trait]
impl<B: AccessStore> AccessStore for PartitionableStore<B> {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.linked().await?.credentials().await
    }
    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.linked().await?.put_credential(credential).await
    }
    async fn append_audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        self.linked().await?.append_audit(entry).await
    }
    async fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        self.linked().await?.audit_entries(namespace, before, limit).await
    }
    async fn prune_access(&self, before_ms: i64) -> Result<(), StoreError> {
        self.linked().await?.prune_access(before_ms).await
    }
}

/// Forwards each call over the link. Properties of the store are read without the link.
macro_rules! forwarded {
    ($port:ident { $(known $fact:ident;)* $(fn $call:ident($($name:ident: $of:ty),*) -> $response:ty;)* }) => {
        #[async_trait]
        impl<B: $port> $port for PartitionableStore<B> {
            $(fn $fact(&self) -> bool {
                self.store.$fact()
            })*
            $(async fn $call(&self, $($name: $of),*) -> Result<$response, StoreError> {
                self.linked().await?.$call($($name),*).await
            })*
        }
    };
}

forwarded!(TaskStore {
    known routes_to_broker;
    known supports_work;
    fn submit(submission: &Submission) -> Vec<SubmitReceipt>;
    fn claim(query: &ClaimBatchRequest) -> ClaimBatchResponse;
    fn settle(settlements: &[Settlement]) -> Vec<SettleResult>;
    fn held_claims(session: &SessionId) -> Vec<(TaskId, Token)>;
    fn register_queue_waiter(session: &SessionId, queues: &[QueueKey]) -> ();
    fn maintain(maintenance_request: &MaintenanceRequest) -> MaintenanceResponse;
    fn publish_broker_endpoint(post: &BrokerEndpoint) -> bool;
    fn broker_endpoint() -> Option<BrokerEndpoint>;
});

forwarded!(TaskAdmin {
    fn queues(namespace: Option<&Name>) -> Vec<QueueView>;
    fn queue(key: &QueueKey) -> Option<QueueView>;
    fn set_queue(key: &QueueKey, settings: &QueueSettings) -> ();
    fn set_queue_paused(namespace: &Name, queue: Option<&Name>, pause: Option<&Pause>) -> bool;
    fn tasks(filter: &TaskFilter) -> Vec<TaskView>;
    fn task(namespace: &Name, id: TaskId) -> Option<TaskView>;
    fn apply_task_action(namespace: &Name, tasks: &[TaskId], order: TaskAction) -> Vec<TaskId>;
    fn wait_reasons(namespace: &Name, id: TaskId) -> Option<Vec<WaitReason>>;
    fn finished_tasks(key: &QueueKey, limit: u32) -> Vec<FinishedTask>;
    fn register_worker(namespace: &Name, worker: &NewWorker) -> ();
    fn workers(namespace: Option<&Name>) -> Vec<WorkerView>;
    fn set_worker_approval(namespace: &Name, worker: &str, by: Option<&str>) -> bool;
});

forwarded!(PoolStore {
    fn pools(namespace: Option<&Name>) -> Vec<PoolView>;
    fn pool(key: &PoolKey) -> Option<PoolView>;
    fn set_pool(key: &PoolKey, settings: &PoolSettings) -> ();
    fn add_resources(key: &PoolKey, resources: &[NewResource]) -> ();
    fn remove_resource(key: &PoolKey, name: &Name) -> bool;
    fn create_pool_request(key: &PoolKey, request: &PoolRequest) -> PoolRequestView;
    fn match_pool(query: &PoolMatchRequest) -> Result<Vec<PoolRequestView>, ClaimRefusal>;
    fn pool_request(namespace: &Name, id: PoolRequestId) -> Option<PoolRequestView>;
    fn update_pool_request(namespace: &Name, id: PoolRequestId, owner: &str, token: Option<Token>, handle: PoolRequestAction) -> bool;
});

forwarded!(EventStore {
    fn publish(topic: &TopicKey, events: &[NewEvent]) -> Vec<PublishReceipt>;
    fn join_group(join: &JoinGroupRequest) -> GroupAssignment;
    fn leave_group(group: &GroupKey, session: &SessionId) -> ();
    fn group_assignment(group: &GroupKey) -> Option<GroupAssignment>;
    fn take_partitions(take: &TakePartitionsRequest) -> Vec<TakenPartition>;
    fn release_partitions(group: &GroupKey, leases: &[(u32, Token)]) -> ();
    fn read_events(read: &ReadEventsRequest) -> Vec<Event>;
    fn commit_partitions(commits: &[PartitionCommit]) -> Vec<CommitResult>;
    fn parked_keys(group: &GroupKey, slot: u32) -> Vec<ParkedKey>;
    fn register_topic_waiter(session: &SessionId, topic: &TopicKey) -> ();
    fn prune_events(maintenance_request: &MaintenanceRequest) -> (u64, bool);
});

forwarded!(EventAdmin {
    fn topics(namespace: Option<&Name>) -> Vec<TopicView>;
    fn topic(key: &TopicKey) -> Option<TopicView>;
    fn set_topic(key: &TopicKey, settings: &TopicSettings) -> bool;
    fn delete_topic(key: &TopicKey) -> bool;
    fn partition_offsets(key: &TopicKey) -> Option<Vec<PartitionOffsets>>;
    fn event(topic: &TopicKey, id: EventId) -> Option<Event>;
    fn groups(namespace: Option<&Name>) -> Vec<GroupView>;
    fn group(key: &GroupKey) -> Option<GroupView>;
    fn set_group(key: &GroupKey, settings: &GroupSettings, from: StartOffset) -> bool;
    fn delete_group(key: &GroupKey) -> bool;
    fn set_group_paused(key: &GroupKey, pause: Option<&Pause>) -> bool;
    fn reset_group(key: &GroupKey, to: StartOffset, slot: Option<u32>, dry_run: bool) -> Vec<OffsetChange>;
    fn parked_events(filter: &ParkedEventFilter) -> Vec<ParkedEvent>;
    fn apply_dead_letter_action(group: &GroupKey, events: &[EventId], order: DeadLetterAction) -> Vec<EventId>;
    fn set_webhook(key: &GroupKey, push: Option<&WebhookSettings>) -> ();
    fn webhooks() -> Vec<(GroupKey, WebhookSettings)>;
});

forwarded!(ScheduleStore {
    fn due_schedules(limit: u32) -> DueResponse;
    fn fire(fire: &FireRequest) -> Option<Vec<FireOutcome>>;
    fn prune_ticks(session: &SessionId, token: Token, limit: u32) -> (u64, bool);
});

forwarded!(ScheduleAdmin {
    fn schedules(filter: &ScheduleFilter) -> Vec<ScheduleView>;
    fn schedule(key: &ScheduleKey) -> Option<ScheduleView>;
    fn set_schedule(set: &SetScheduleRequest) -> SetScheduleOutcome;
    fn delete_schedule(key: &ScheduleKey, expect: Option<u64>) -> Option<bool>;
    fn set_schedule_paused(key: &ScheduleKey, pause: Option<&Pause>) -> Option<bool>;
    fn fire_manually(manual_fire: &ManualFire) -> Option<Vec<ManualFireResult>>;
    fn ticks(filter: &TickFilter) -> Vec<TickView>;
    fn schedule_stats() -> Vec<ScheduleStats>;
    fn webhook_secret(key: &ScheduleKey) -> Option<String>;
});
