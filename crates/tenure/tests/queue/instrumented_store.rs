//! A store that counts its calls, and whose calls a test can delay or fail.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tenure::port::*;
use tenure::store::memory::MemoryStore;
use tenure::{ElectionKey, Name, SessionId, Token};
use tokio::sync::watch;

/// A fault injected into calls of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call fails without effect.
    Fails,
    /// The call is rejected as invalid.
    #[allow(dead_code, reason = "used by the event tests")]
    Refused,
    /// The call takes effect and fails: the response is lost.
    ResponseLost,
    /// The call waits until the fault is removed.
    Waits,
    /// The call fails, and takes effect when the fault is removed.
    TakesEffectLate,
    /// The call does nothing and reports success.
    Ignored,
    /// The call takes effect at once, and its response arrives when the fault is removed.
    ResponseLate,
}

/// Schedules that make every fire call that includes one of them fail.
#[derive(Clone, Debug)]
pub(crate) struct Poison {
    pub(crate) schedules: &'static [&'static str],
    pub(crate) kind: ErrorKind,
    /// Whether calls that only postpone these schedules fail as well.
    pub(crate) postponing_too: bool,
}

impl Poison {
    fn poisons(&self, firing: &ScheduleFiring) -> bool {
        let named = self.schedules.contains(&firing.key.name.as_str());
        named && (self.postponing_too || firing.error.is_none())
    }
}

/// An instrumented memory store. Clones share everything.
#[derive(Clone)]
pub(crate) struct InstrumentedStore {
    pub(crate) store: MemoryStore,
    calls: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    faults: Arc<watch::Sender<BTreeMap<&'static str, Fault>>>,
    poison: Arc<Mutex<Option<Poison>>>,
    /// Calls with more ticks than this time out.
    max_ticks: Arc<AtomicUsize>,
    /// Number of ticks of each fire call.
    fired: Arc<Mutex<Vec<usize>>>,
}

impl InstrumentedStore {
    pub(crate) fn new(store: MemoryStore) -> InstrumentedStore {
        InstrumentedStore {
            store,
            calls: Arc::default(),
            faults: Arc::new(watch::Sender::new(BTreeMap::new())),
            poison: Arc::default(),
            max_ticks: Arc::new(AtomicUsize::new(usize::MAX)),
            fired: Arc::default(),
        }
    }

    /// Makes calls that would fire these schedules fail without effect; `None` removes the fault.
    #[allow(dead_code, reason = "used by the schedule tests")]
    pub(crate) fn poison(&self, poison: Option<Poison>) {
        *self.poison.lock().unwrap() = poison;
    }

    /// Makes calls that would fire more ticks than this time out without effect.
    #[allow(dead_code, reason = "used by the schedule tests")]
    pub(crate) fn too_many(&self, ticks: usize) {
        self.max_ticks.store(ticks, Ordering::SeqCst);
    }

    /// Number of ticks of each fire call so far.
    #[allow(dead_code, reason = "used by the schedule tests")]
    pub(crate) fn fired(&self) -> Vec<usize> {
        self.fired.lock().unwrap().clone()
    }

    /// Number of calls of this name.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        self.calls.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    pub(crate) fn fault(&self, name: &'static str, fault: Option<Fault>) {
        self.faults.send_modify(|faults| match fault {
            Some(fault) => drop(faults.insert(name, fault)),
            None => drop(faults.remove(name)),
        });
    }

    async fn before(&self, name: &'static str) -> Result<Option<Fault>, StoreError> {
        *self.calls.lock().unwrap().entry(name).or_default() += 1;
        let mut faults = self.faults.subscribe();
        let faults = faults.wait_for(|faults| faults.get(name) != Some(&Fault::Waits)).await.unwrap();
        match faults.get(name) {
            Some(Fault::Fails) => Err(injected_failure()),
            Some(Fault::Refused) => Err(StoreError::new(ErrorKind::Request, "rejected by the test")),
            other => Ok(other.copied()),
        }
    }

    /// Delays the response while [`Fault::ResponseLate`] is set for this call.
    async fn late(&self, name: &str, fault: Option<Fault>) {
        if fault == Some(Fault::ResponseLate) {
            let mut faults = self.faults.subscribe();
            let _ = faults.wait_for(|faults| !faults.contains_key(name)).await;
        }
    }
}

fn injected_failure() -> StoreError {
    StoreError::new(ErrorKind::Unreachable, "failed by the test")
}

macro_rules! forward {
    ($trait:ident { $($plain:item)* } $(async fn $name:ident($($arg:ident: $of:ty),*) -> $ok:ty;)*) => {
        #[async_trait]
        impl $trait for InstrumentedStore {
            $($plain)*
            $(async fn $name(&self, $($arg: $of),*) -> Result<$ok, StoreError> {
                let fault = self.before(stringify!($name)).await?;
                let result = $trait::$name(&self.store, $($arg),*).await;
                self.late(stringify!($name), fault).await;
                if fault == Some(Fault::ResponseLost) { Err(injected_failure()) } else { result }
            })*
        }
    };
}

forward! { ElectionStore {
        fn notifications(&self) -> BoxNotificationSource { self.store.notifications() }
        fn watch_sessions(&self, sessions: &[SessionId]) { self.store.watch_sessions(sessions) }
    }
    async fn open_session(session: &OpenSessionRequest) -> HeartbeatResponse;
    async fn heartbeat(session: &SessionId) -> HeartbeatResponse;
    async fn end_session(session: &SessionId) -> ();
    async fn join_election(candidacy: &Candidacy) -> JoinElectionResponse;
    async fn leave_election(session: &SessionId, election: &ElectionKey) -> ();
    async fn observe(session: &SessionId, scope: &ObserveScope) -> ElectionsObservation;
    async fn take_lease(take: &TakeLeaseRequest) -> Option<Token>;
    async fn release_lease(release: &ReleaseLeaseRequest) -> ();
    async fn expire_session(expire: &ExpireSessionRequest) -> ();
    async fn request_leader(request: &LeaderRequest) -> bool;
}

forward! { ElectionAdmin {
        fn guarantees(&self) -> StoreGuarantees { self.store.guarantees() }
    }
    async fn elections(namespace: Option<&Name>) -> Vec<ElectionView>;
    async fn election(key: &ElectionKey) -> Option<ElectionView>;
    async fn term_history(key: &ElectionKey, limit: u32) -> Vec<Term>;
    async fn set_election_paused(key: &ElectionKey, pause: Option<&Pause>) -> bool;
    async fn sessions(sessions: Option<&[SessionId]>) -> Vec<SessionView>;
}

forward! { AccessStore {}
    async fn credentials() -> Vec<Credential>;
    async fn put_credential(credential: &Credential) -> ();
    async fn append_audit(entry: &AuditEntry) -> ();
    async fn audit_entries(namespace: Option<&Name>, before: Option<i64>, limit: u32) -> Vec<AuditEntry>;
    async fn prune_access(before_ms: i64) -> ();
}

#[async_trait]
impl TaskStore for InstrumentedStore {
    async fn submit(&self, submission: &Submission) -> Result<Vec<SubmitReceipt>, StoreError> {
        self.before("submit").await?;
        self.store.submit(submission).await
    }
    async fn claim(&self, request: &ClaimBatchRequest) -> Result<ClaimBatchResponse, StoreError> {
        let fault = self.before("claim").await?;
        if fault == Some(Fault::TakesEffectLate) {
            let (instrumented, request) = (self.clone(), request.clone());
            tokio::spawn(async move {
                let mut faults = instrumented.faults.subscribe();
                let _ = faults.wait_for(|faults| !faults.contains_key("claim")).await;
                let _ = instrumented.store.claim(&request).await;
            });
            return Err(injected_failure());
        }
        let response = self.store.claim(request).await;
        self.late("claim", fault).await;
        if fault == Some(Fault::ResponseLost) { Err(injected_failure()) } else { response }
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<SettleResult>, StoreError> {
        let fault = self.before("settle").await?;
        let response = self.store.settle(settlements).await;
        if fault == Some(Fault::ResponseLost) { Err(injected_failure()) } else { response }
    }
    async fn held_claims(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        self.before("held_claims").await?;
        self.store.held_claims(session).await
    }
    async fn register_queue_waiter(
        &self,
        session: &SessionId,
        queues: &[QueueKey],
    ) -> Result<(), StoreError> {
        match self.before("register_queue_waiter").await? {
            Some(Fault::Ignored) => Ok(()),
            _ => self.store.register_queue_waiter(session, queues).await,
        }
    }
    async fn maintain(&self, request: &MaintenanceRequest) -> Result<MaintenanceResponse, StoreError> {
        self.before("maintain").await?;
        self.store.maintain(request).await
    }
    async fn publish_broker_endpoint(&self, endpoint: &BrokerEndpoint) -> Result<bool, StoreError> {
        self.before("publish_broker_endpoint").await?;
        self.store.publish_broker_endpoint(endpoint).await
    }
    async fn broker_endpoint(&self) -> Result<Option<BrokerEndpoint>, StoreError> {
        self.before("broker_endpoint").await?;
        self.store.broker_endpoint().await
    }
}

forward! { TaskAdmin {}
    async fn queues(namespace: Option<&Name>) -> Vec<QueueView>;
    async fn queue(key: &QueueKey) -> Option<QueueView>;
    async fn set_queue(key: &QueueKey, settings: &QueueSettings) -> ();
    async fn set_queue_paused(namespace: &Name, queue: Option<&Name>, pause: Option<&Pause>) -> bool;
    async fn tasks(filter: &TaskFilter) -> Vec<TaskView>;
    async fn task(namespace: &Name, id: TaskId) -> Option<TaskView>;
    async fn apply_task_action(namespace: &Name, tasks: &[TaskId], action: TaskAction) -> Vec<TaskId>;
    async fn wait_reasons(namespace: &Name, id: TaskId) -> Option<Vec<WaitReason>>;
    async fn finished_tasks(key: &QueueKey, limit: u32) -> Vec<FinishedTask>;
    async fn register_worker(namespace: &Name, worker: &NewWorker) -> ();
    async fn workers(namespace: Option<&Name>) -> Vec<WorkerView>;
    async fn set_worker_approval(namespace: &Name, worker: &str, by: Option<&str>) -> bool;
}

forward! { PoolStore {}
    async fn pools(namespace: Option<&Name>) -> Vec<PoolView>;
    async fn pool(key: &PoolKey) -> Option<PoolView>;
    async fn set_pool(key: &PoolKey, settings: &PoolSettings) -> ();
    async fn add_resources(key: &PoolKey, resources: &[NewResource]) -> ();
    async fn remove_resource(key: &PoolKey, name: &Name) -> bool;
    async fn create_pool_request(key: &PoolKey, request: &PoolRequest) -> PoolRequestView;
    async fn match_pool(request: &PoolMatchRequest) -> Result<Vec<PoolRequestView>, ClaimRefusal>;
    async fn pool_request(namespace: &Name, id: PoolRequestId) -> Option<PoolRequestView>;
    async fn update_pool_request(namespace: &Name, id: PoolRequestId, owner: &str, token: Option<Token>, action: PoolRequestAction) -> bool;
}

forward! { EventStore {}
    async fn publish(topic: &TopicKey, events: &[NewEvent]) -> Vec<PublishReceipt>;
    async fn join_group(join: &JoinGroupRequest) -> GroupAssignment;
    async fn leave_group(group: &GroupKey, session: &SessionId) -> ();
    async fn group_assignment(group: &GroupKey) -> Option<GroupAssignment>;
    async fn take_partitions(take: &TakePartitionsRequest) -> Vec<TakenPartition>;
    async fn release_partitions(group: &GroupKey, leases: &[(u32, Token)]) -> ();
    async fn read_events(read: &ReadEventsRequest) -> Vec<Event>;
    async fn commit_partitions(commits: &[PartitionCommit]) -> Vec<CommitResult>;
    async fn parked_keys(group: &GroupKey, partition: u32) -> Vec<ParkedKey>;
    async fn register_topic_waiter(session: &SessionId, topic: &TopicKey) -> ();
    async fn prune_events(request: &MaintenanceRequest) -> (u64, bool);
}

forward! { EventAdmin {}
    async fn topics(namespace: Option<&Name>) -> Vec<TopicView>;
    async fn topic(key: &TopicKey) -> Option<TopicView>;
    async fn set_topic(key: &TopicKey, settings: &TopicSettings) -> bool;
    async fn delete_topic(key: &TopicKey) -> bool;
    async fn partition_offsets(key: &TopicKey) -> Option<Vec<PartitionOffsets>>;
    async fn event(topic: &TopicKey, id: EventId) -> Option<Event>;
    async fn groups(namespace: Option<&Name>) -> Vec<GroupView>;
    async fn group(key: &GroupKey) -> Option<GroupView>;
    async fn set_group(key: &GroupKey, settings: &GroupSettings, from: StartOffset) -> bool;
    async fn delete_group(key: &GroupKey) -> bool;
    async fn set_group_paused(key: &GroupKey, pause: Option<&Pause>) -> bool;
    async fn reset_group(key: &GroupKey, to: StartOffset, partition: Option<u32>, dry_run: bool) -> Vec<OffsetChange>;
    async fn parked_events(filter: &ParkedEventFilter) -> Vec<ParkedEvent>;
    async fn apply_dead_letter_action(group: &GroupKey, events: &[EventId], action: DeadLetterAction) -> Vec<EventId>;
    async fn set_webhook(key: &GroupKey, webhook: Option<&WebhookSettings>) -> ();
    async fn webhooks() -> Vec<(GroupKey, WebhookSettings)>;
}

#[async_trait]
impl ScheduleStore for InstrumentedStore {
    async fn due_schedules(&self, limit: u32) -> Result<DueResponse, StoreError> {
        let fault = self.before("due_schedules").await?;
        let response = self.store.due_schedules(limit).await;
        if fault == Some(Fault::ResponseLost) { Err(injected_failure()) } else { response }
    }
    async fn fire(&self, fire: &FireRequest) -> Result<Option<Vec<FireOutcome>>, StoreError> {
        let fault = self.before("fire").await?;
        let ticks: usize = fire.firings.iter().map(|firing| firing.ticks.len()).sum();
        self.fired.lock().unwrap().push(ticks);
        if ticks > self.max_ticks.load(Ordering::SeqCst) {
            return Err(StoreError::new(ErrorKind::Timeout, "too many ticks for the test"));
        }
        let poison = self.poison.lock().unwrap().clone();
        if let Some(poison) = poison
            && fire.firings.iter().any(|firing| poison.poisons(firing))
        {
            return Err(StoreError::new(poison.kind, "poisoned by the test"));
        }
        if fault == Some(Fault::TakesEffectLate) {
            let (instrumented, fire) = (self.clone(), fire.clone());
            tokio::spawn(async move {
                let mut faults = instrumented.faults.subscribe();
                let _ = faults.wait_for(|faults| !faults.contains_key("fire")).await;
                let _ = instrumented.store.fire(&fire).await;
            });
            return Err(injected_failure());
        }
        let response = self.store.fire(fire).await;
        if fault == Some(Fault::ResponseLost) { Err(injected_failure()) } else { response }
    }
    async fn prune_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        self.before("prune_ticks").await?;
        self.store.prune_ticks(session, token, limit).await
    }
}

forward! { ScheduleAdmin {}
    async fn schedules(filter: &ScheduleFilter) -> Vec<ScheduleView>;
    async fn schedule(key: &ScheduleKey) -> Option<ScheduleView>;
    async fn set_schedule(set: &SetScheduleRequest) -> SetScheduleOutcome;
    async fn delete_schedule(key: &ScheduleKey, version: Option<u64>) -> Option<bool>;
    async fn set_schedule_paused(key: &ScheduleKey, pause: Option<&Pause>) -> Option<bool>;
    async fn fire_manually(fire: &ManualFire) -> Option<Vec<ManualFireResult>>;
    async fn ticks(filter: &TickFilter) -> Vec<TickView>;
    async fn schedule_stats() -> Vec<ScheduleStats>;
    async fn webhook_secret(key: &ScheduleKey) -> Option<String>;
}
