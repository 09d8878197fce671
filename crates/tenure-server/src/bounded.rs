//! A store that always answers in time, if only to say that it did not.
//!
//! A request that waits for a store which hangs would hold its place for ever. So every call that a request makes is
//! bounded; whether what was asked happened is then unknown, as after every error of a store.

use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure::port::{
    Adopt, AsideFilter, AsideKey, AsideView, Ask, Backend, Begin, Bureau, Calendar, Candidacy, ClaimAnswer,
    ClaimAsk, ClaimRefusal, Committed, Credential, DeadOrder, Deed, Desk, Directory, DueLook, ElectionView,
    Event, EventId, Events, Expire, Finding, Finished, Fire, Fired, GroupKey, GroupLook, GroupSettings,
    GroupView, Hand, HandFired, Handle, Join, Joined, MemberOrder, Membership, Moved, NewEvent, NewRequest,
    NewResource, NewSession, NewWorker, Observation, Office, Order, Pause, PoolKey, PoolMatch, PoolSettings,
    PoolView, Pools, Post, Promises, Published, Pulse, Push, QueueKey, QueueSettings, QueueView, ReadAsk,
    Release, RequestId, RequestView, ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleStats, ScheduleView,
    Scheduling, Scope, SessionView, SetSchedule, Settled, Settlement, ShareCommit, SlotEnds, Store,
    StoreError, Submission, Submitted, Take, TakeShares, Taken, TaskFilter, TaskId, TaskView, Tasks, Tend,
    Tended, Term, TickFilter, TickView, TopicKey, TopicSettings, TopicView, Trouble, Wakes, Why, WorkerView,
};
use tenure::{ElectionKey, Name, SessionId, Token};

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
    async fn clock_seconds(&self) -> Answer<Option<f64>> {
        self.within(self.inner.clock_seconds()).await
    }
    async fn examine(&self) -> Answer<Vec<Finding>> {
        self.within(self.inner.examine()).await
    }
}

#[async_trait]
impl Office for Bounded {
    async fn credentials(&self) -> Answer<Vec<Credential>> {
        self.within(self.inner.credentials()).await
    }
    async fn put_credential(&self, credential: &Credential) -> Answer<()> {
        self.within(self.inner.put_credential(credential)).await
    }
    async fn record(&self, deed: &Deed) -> Answer<()> {
        self.within(self.inner.record(deed)).await
    }
    async fn deeds(&self, namespace: Option<&Name>, before: Option<i64>, limit: u32) -> Answer<Vec<Deed>> {
        self.within(self.inner.deeds(namespace, before, limit)).await
    }
    async fn forget(&self, before_ms: i64) -> Answer<()> {
        self.within(self.inner.forget(before_ms)).await
    }
}

/// Passes calls on, each within the bound; in brackets, one that asks nothing of the store.
macro_rules! bounded {
    (impl $port:ident {
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

bounded! {
    impl Tasks {
        [routes_claims -> bool]
        [keeps_work -> bool]
        submit(submission: &Submission) -> Vec<Submitted>;
        claim(ask: &ClaimAsk) -> ClaimAnswer;
        settle(settlements: &[Settlement]) -> Vec<Settled>;
        held(session: &SessionId) -> Vec<(TaskId, Token)>;
        doze(session: &SessionId, queues: &[QueueKey]) -> ();
        tend(tend: &Tend) -> Tended;
        put_post(post: &Post) -> bool;
        post() -> Option<Post>;
    }
}

bounded! {
    impl Desk {
        queues(namespace: Option<&Name>) -> Vec<QueueView>;
        queue(key: &QueueKey) -> Option<QueueView>;
        set_queue(key: &QueueKey, settings: &QueueSettings) -> ();
        set_queue_paused(namespace: &Name, queue: Option<&Name>, pause: Option<&Pause>) -> bool;
        tasks(filter: &TaskFilter) -> Vec<TaskView>;
        task(namespace: &Name, id: TaskId) -> Option<TaskView>;
        order(namespace: &Name, tasks: &[TaskId], order: Order) -> Vec<TaskId>;
        why(namespace: &Name, id: TaskId) -> Option<Vec<Why>>;
        finished(key: &QueueKey, limit: u32) -> Vec<Finished>;
        register(namespace: &Name, worker: &NewWorker) -> ();
        workers(namespace: Option<&Name>) -> Vec<WorkerView>;
        approve(namespace: &Name, worker: &str, by: Option<&str>) -> bool;
    }
}

bounded! {
    impl Pools {
        pools(namespace: Option<&Name>) -> Vec<PoolView>;
        pool(key: &PoolKey) -> Option<PoolView>;
        set_pool(key: &PoolKey, settings: &PoolSettings) -> ();
        add_resources(key: &PoolKey, resources: &[NewResource]) -> ();
        remove_resource(key: &PoolKey, name: &Name) -> bool;
        request(key: &PoolKey, request: &NewRequest) -> RequestView;
        match_pool(ask: &PoolMatch) -> Result<Vec<RequestView>, ClaimRefusal>;
        pool_request(namespace: &Name, id: RequestId) -> Option<RequestView>;
        handle_request(
            namespace: &Name, id: RequestId, owner: &str, token: Option<Token>, handle: Handle
        ) -> bool;
    }
}

bounded! {
    impl Events {
        publish(topic: &TopicKey, events: &[NewEvent]) -> Vec<Published>;
        join_group(join: &Join) -> GroupLook;
        leave_group(group: &GroupKey, session: &SessionId) -> ();
        look_group(group: &GroupKey) -> Option<GroupLook>;
        take_shares(take: &TakeShares) -> Vec<Taken>;
        free_shares(group: &GroupKey, shares: &[(u32, Token)]) -> ();
        read_events(read: &ReadAsk) -> Vec<Event>;
        commit_shares(commits: &[ShareCommit]) -> Vec<Committed>;
        aside_keys(group: &GroupKey, slot: u32) -> Vec<AsideKey>;
        aside_keys_in(group: &GroupKey, slots: &[u32]) -> BTreeMap<u32, Vec<AsideKey>>;
        doze_topic(session: &SessionId, topic: &TopicKey) -> ();
        prune_events(tend: &Tend) -> (u64, bool);
    }
}

bounded! {
    impl Bureau {
        topics(namespace: Option<&Name>) -> Vec<TopicView>;
        topic(key: &TopicKey) -> Option<TopicView>;
        set_topic(key: &TopicKey, settings: &TopicSettings) -> bool;
        delete_topic(key: &TopicKey) -> bool;
        slot_ends(key: &TopicKey) -> Option<Vec<SlotEnds>>;
        event(topic: &TopicKey, id: EventId) -> Option<Event>;
        groups(namespace: Option<&Name>) -> Vec<GroupView>;
        group(key: &GroupKey) -> Option<GroupView>;
        set_group(key: &GroupKey, settings: &GroupSettings, from: Begin) -> bool;
        delete_group(key: &GroupKey) -> bool;
        set_group_paused(key: &GroupKey, pause: Option<&Pause>) -> bool;
        reset_group(key: &GroupKey, to: Begin, slot: Option<u32>, dry_run: bool) -> Vec<Moved>;
        aside(filter: &AsideFilter) -> Vec<AsideView>;
        order_dead(group: &GroupKey, events: &[EventId], order: DeadOrder) -> Vec<EventId>;
        set_push(key: &GroupKey, push: Option<&Push>) -> ();
        pushes() -> Vec<(GroupKey, Push)>;
    }
}

bounded! {
    impl Scheduling {
        due(limit: u32) -> DueLook;
        fire(fire: &Fire) -> Option<Vec<Fired>>;
        prune_ticks(session: &SessionId, token: Token, limit: u32) -> (u64, bool);
    }
}

bounded! {
    impl Calendar {
        schedules(filter: &ScheduleFilter) -> Vec<ScheduleView>;
        schedule(key: &ScheduleKey) -> Option<ScheduleView>;
        set_schedule(set: &SetSchedule) -> ScheduleSet;
        delete_schedule(key: &ScheduleKey, expect: Option<u64>) -> Option<bool>;
        set_schedule_paused(key: &ScheduleKey, pause: Option<&Pause>) -> Option<bool>;
        fire_by_hand(hand: &Hand) -> Option<Vec<HandFired>>;
        ticks(filter: &TickFilter) -> Vec<TickView>;
        schedule_stats() -> Vec<ScheduleStats>;
        call_secret(key: &ScheduleKey) -> Option<String>;
    }
}
