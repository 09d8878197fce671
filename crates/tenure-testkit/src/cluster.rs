//! Several processes in one test, on one store and one clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::memory::Memory;
use tenure::port::{
    AsideFilter, AsideKey, AsideView, Ask, Begin, Bureau, Calendar, Candidacy, ClaimAnswer, ClaimAsk,
    ClaimRefusal, Committed, Credential, DeadOrder, Deed, Desk, Directory, DueLook, ElectionView, Event,
    EventId, Events, Expire, Finished, Fire, Fired, GroupKey, GroupLook, GroupSettings, GroupView, Hand,
    HandFired, Handle, Join, Joined, Moved, NewEvent, NewRequest, NewResource, NewSession, NewWorker,
    Observation, Office, Order, Pause, PoolKey, PoolMatch, PoolSettings, PoolView, Pools, Post, Promises,
    Published, Pulse, Push, QueueKey, QueueSettings, QueueView, ReadAsk, Release, RequestId, RequestView,
    ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleStats, ScheduleView, Scheduling, Scope, SessionView,
    SetSchedule, Settled, Settlement, ShareCommit, SlotEnds, Store, StoreError, Submission, Submitted, Take,
    TakeShares, Taken, TaskFilter, TaskId, TaskView, Tasks, Tend, Tended, Term, TickFilter, TickView,
    TopicKey, TopicSettings, TopicView, Trouble, Wakes, Why, WorkerView,
};
use tenure::{ElectionKey, Elector, Name, SessionId, Tenure, Token};

use crate::Clock;

/// The lease of every replica, shorter than the usual one: a replica that is cut off has lost its leadership after 7 s, and another
/// one leads after 11 s.
const LEASE: Duration = Duration::from_secs(10);

/// Replicas that stand for one election, each with an elector of its own, on a hand-driven clock.
pub struct Cluster {
    clock: Clock,
    nodes: BTreeMap<String, Node>,
}

struct Node {
    tenure: Tenure,
    elector: Elector,
    link: Cuttable<Memory>,
}

impl Cluster {
    /// A cluster of these replicas; where nothing else decides, the first by name leads.
    pub async fn of<S: Into<String>>(election: &str, names: impl IntoIterator<Item = S>) -> Cluster {
        Cluster::with_priorities(election, names.into_iter().map(|name| (name, 0))).await
    }

    /// A cluster of replicas with priorities.
    pub async fn with_priorities<S: Into<String>>(
        election: &str,
        nodes: impl IntoIterator<Item = (S, i32)>,
    ) -> Cluster {
        let clock = Clock::new(1);
        let memory = Memory::with_runtime(Arc::new(clock.clone()));
        let mut cluster = Cluster { clock, nodes: BTreeMap::new() };
        for (name, priority) in nodes {
            cluster.add(election, name.into(), priority, &memory).await;
        }
        cluster.clock.settle().await;
        cluster
    }

    async fn add(&mut self, election: &str, name: String, priority: i32, memory: &Memory) {
        let link = Cuttable::new(memory.clone());
        let tenure = Tenure::builder()
            .store(link.clone())
            .name(name.clone())
            .lease(LEASE)
            .runtime(Arc::new(self.clock.clone()))
            .open()
            .await
            .expect("a store in memory opens");
        let elector =
            tenure.elector(election).priority(priority).start().await.expect("a candidate can stand");
        self.nodes.insert(name, Node { tenure, elector, link });
    }

    /// The replicas that believe they lead, now.
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

    /// Moves the clock on.
    pub async fn advance(&self, by: Duration) {
        self.clock.advance(by).await;
    }

    /// The clock of all of them.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Cuts a replica off from the store: it can neither beat nor hear.
    pub fn cut_off(&self, name: &str) {
        self.node(name).link.cut(true);
    }

    /// Lets a replica reach the store again.
    pub fn reconnect(&self, name: &str) {
        self.node(name).link.cut(false);
    }

    /// Ends a replica in good order.
    pub async fn stop(&mut self, name: &str) {
        let node = self.nodes.remove(name).unwrap_or_else(|| panic!("no replica is named {name}"));
        drop(node.elector);
        node.tenure.close().await.expect("a replica can be closed");
        self.clock.settle().await;
    }

    fn node(&self, name: &str) -> &Node {
        self.nodes.get(name).unwrap_or_else(|| panic!("no replica is named {name}"))
    }
}

/// A store behind a link that a test can cut.
#[derive(Clone)]
pub struct Cuttable<B> {
    store: B,
    cut: Arc<AtomicBool>,
    hung: Arc<AtomicBool>,
    blind: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
}

impl<B> Cuttable<B> {
    /// A link that works.
    pub fn new(store: B) -> Self {
        let (cut, hung, blind) = (Arc::default(), Arc::default(), Arc::default());
        Cuttable { store, cut, hung, blind, calls: Arc::default() }
    }

    /// Cuts or restores the link. While it is cut, every call fails before it reaches the store.
    pub fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }

    /// Lets every call from now on hang, or not. One that hangs is never answered.
    pub fn hang(&self, hung: bool) {
        self.hung.store(hung, Ordering::SeqCst);
    }

    /// Lets every look at elections from now on fail, or not, and nothing else: what happens meanwhile is missed.
    pub fn blind(&self, blind: bool) {
        self.blind.store(blind, Ordering::SeqCst);
    }

    /// How often the store was called.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn linked(&self) -> Result<&B, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.hung.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.cut.load(Ordering::SeqCst) {
            return Err(StoreError::new(Trouble::Unreachable, "the test cut the link to the store"));
        }
        Ok(&self.store)
    }
}

#[async_trait]
impl<B: Store + Clone> Store for Cuttable<B> {
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError> {
        self.linked().await?.open(session).await
    }
    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError> {
        self.linked().await?.beat(session).await
    }
    async fn end(&self, session: &SessionId) -> Result<(), StoreError> {
        self.linked().await?.end(session).await
    }
    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError> {
        self.linked().await?.join(candidacy).await
    }
    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError> {
        self.linked().await?.leave(session, election).await
    }
    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError> {
        let store = self.linked().await?;
        if self.blind.load(Ordering::SeqCst) {
            return Err(StoreError::new(Trouble::Unreachable, "the test lets nobody look"));
        }
        store.observe(session, scope).await
    }
    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError> {
        self.linked().await?.take(take).await
    }
    async fn release(&self, release: &Release) -> Result<(), StoreError> {
        self.linked().await?.release(release).await
    }
    async fn expire(&self, expire: &Expire) -> Result<(), StoreError> {
        self.linked().await?.expire(expire).await
    }
    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError> {
        self.linked().await?.ask(ask).await
    }
    fn watch(&self, sessions: &[SessionId]) {
        self.store.watch(sessions);
    }
    fn wakes(&self) -> Wakes {
        self.store.wakes()
    }
}

#[async_trait]
impl<B: Directory> Directory for Cuttable<B> {
    fn promises(&self) -> Promises {
        self.store.promises()
    }
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError> {
        self.linked().await?.elections(namespace).await
    }
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError> {
        self.linked().await?.election(key).await
    }
    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError> {
        self.linked().await?.history(key, limit).await
    }
    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        self.linked().await?.set_paused(key, pause).await
    }
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError> {
        self.linked().await?.sessions(which).await
    }
}

#[async_trait]
impl<B: Office> Office for Cuttable<B> {
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        self.linked().await?.credentials().await
    }
    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        self.linked().await?.put_credential(credential).await
    }
    async fn record(&self, deed: &Deed) -> Result<(), StoreError> {
        self.linked().await?.record(deed).await
    }
    async fn deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Deed>, StoreError> {
        self.linked().await?.deeds(namespace, before, limit).await
    }
    async fn forget(&self, before_ms: i64) -> Result<(), StoreError> {
        self.linked().await?.forget(before_ms).await
    }
}

/// Forwards each call over the link; what is known of the store needs none.
macro_rules! forwarded {
    ($port:ident { $(known $fact:ident;)* $(fn $call:ident($($name:ident: $of:ty),*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl<B: $port> $port for Cuttable<B> {
            $(fn $fact(&self) -> bool {
                self.store.$fact()
            })*
            $(async fn $call(&self, $($name: $of),*) -> Result<$answer, StoreError> {
                self.linked().await?.$call($($name),*).await
            })*
        }
    };
}

forwarded!(Tasks {
    known routes_claims;
    known keeps_work;
    fn submit(submission: &Submission) -> Vec<Submitted>;
    fn claim(ask: &ClaimAsk) -> ClaimAnswer;
    fn settle(settlements: &[Settlement]) -> Vec<Settled>;
    fn held(session: &SessionId) -> Vec<(TaskId, Token)>;
    fn doze(session: &SessionId, queues: &[QueueKey]) -> ();
    fn tend(tend: &Tend) -> Tended;
    fn put_post(post: &Post) -> bool;
    fn post() -> Option<Post>;
});

forwarded!(Desk {
    fn queues(namespace: Option<&Name>) -> Vec<QueueView>;
    fn queue(key: &QueueKey) -> Option<QueueView>;
    fn set_queue(key: &QueueKey, settings: &QueueSettings) -> ();
    fn set_queue_paused(namespace: &Name, queue: Option<&Name>, pause: Option<&Pause>) -> bool;
    fn tasks(filter: &TaskFilter) -> Vec<TaskView>;
    fn task(namespace: &Name, id: TaskId) -> Option<TaskView>;
    fn order(namespace: &Name, tasks: &[TaskId], order: Order) -> Vec<TaskId>;
    fn why(namespace: &Name, id: TaskId) -> Option<Vec<Why>>;
    fn finished(key: &QueueKey, limit: u32) -> Vec<Finished>;
    fn register(namespace: &Name, worker: &NewWorker) -> ();
    fn workers(namespace: Option<&Name>) -> Vec<WorkerView>;
    fn approve(namespace: &Name, worker: &str, by: Option<&str>) -> bool;
});

forwarded!(Pools {
    fn pools(namespace: Option<&Name>) -> Vec<PoolView>;
    fn pool(key: &PoolKey) -> Option<PoolView>;
    fn set_pool(key: &PoolKey, settings: &PoolSettings) -> ();
    fn add_resources(key: &PoolKey, resources: &[NewResource]) -> ();
    fn remove_resource(key: &PoolKey, name: &Name) -> bool;
    fn request(key: &PoolKey, request: &NewRequest) -> RequestView;
    fn match_pool(ask: &PoolMatch) -> Result<Vec<RequestView>, ClaimRefusal>;
    fn pool_request(namespace: &Name, id: RequestId) -> Option<RequestView>;
    fn handle_request(namespace: &Name, id: RequestId, owner: &str, token: Option<Token>, handle: Handle) -> bool;
});

forwarded!(Events {
    fn publish(topic: &TopicKey, events: &[NewEvent]) -> Vec<Published>;
    fn join_group(join: &Join) -> GroupLook;
    fn leave_group(group: &GroupKey, session: &SessionId) -> ();
    fn look_group(group: &GroupKey) -> Option<GroupLook>;
    fn take_shares(take: &TakeShares) -> Vec<Taken>;
    fn free_shares(group: &GroupKey, shares: &[(u32, Token)]) -> ();
    fn read_events(read: &ReadAsk) -> Vec<Event>;
    fn commit_shares(commits: &[ShareCommit]) -> Vec<Committed>;
    fn aside_keys(group: &GroupKey, slot: u32) -> Vec<AsideKey>;
    fn doze_topic(session: &SessionId, topic: &TopicKey) -> ();
    fn prune_events(tend: &Tend) -> (u64, bool);
});

forwarded!(Bureau {
    fn topics(namespace: Option<&Name>) -> Vec<TopicView>;
    fn topic(key: &TopicKey) -> Option<TopicView>;
    fn set_topic(key: &TopicKey, settings: &TopicSettings) -> bool;
    fn delete_topic(key: &TopicKey) -> bool;
    fn slot_ends(key: &TopicKey) -> Option<Vec<SlotEnds>>;
    fn event(topic: &TopicKey, id: EventId) -> Option<Event>;
    fn groups(namespace: Option<&Name>) -> Vec<GroupView>;
    fn group(key: &GroupKey) -> Option<GroupView>;
    fn set_group(key: &GroupKey, settings: &GroupSettings, from: Begin) -> bool;
    fn delete_group(key: &GroupKey) -> bool;
    fn set_group_paused(key: &GroupKey, pause: Option<&Pause>) -> bool;
    fn reset_group(key: &GroupKey, to: Begin, slot: Option<u32>, dry_run: bool) -> Vec<Moved>;
    fn aside(filter: &AsideFilter) -> Vec<AsideView>;
    fn order_dead(group: &GroupKey, events: &[EventId], order: DeadOrder) -> Vec<EventId>;
    fn set_push(key: &GroupKey, push: Option<&Push>) -> ();
    fn pushes() -> Vec<(GroupKey, Push)>;
});

forwarded!(Scheduling {
    fn due(limit: u32) -> DueLook;
    fn fire(fire: &Fire) -> Option<Vec<Fired>>;
    fn prune_ticks(session: &SessionId, token: Token, limit: u32) -> (u64, bool);
});

forwarded!(Calendar {
    fn schedules(filter: &ScheduleFilter) -> Vec<ScheduleView>;
    fn schedule(key: &ScheduleKey) -> Option<ScheduleView>;
    fn set_schedule(set: &SetSchedule) -> ScheduleSet;
    fn delete_schedule(key: &ScheduleKey, expect: Option<u64>) -> Option<bool>;
    fn set_schedule_paused(key: &ScheduleKey, pause: Option<&Pause>) -> Option<bool>;
    fn fire_by_hand(hand: &Hand) -> Option<Vec<HandFired>>;
    fn ticks(filter: &TickFilter) -> Vec<TickView>;
    fn schedule_stats() -> Vec<ScheduleStats>;
    fn call_secret(key: &ScheduleKey) -> Option<String>;
});
