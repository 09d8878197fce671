//! All that is not about elections.

use async_trait::async_trait;
use tenure_core::port::{
    AsideFilter, AsideKey, AsideView, Begin, Bureau, Calendar, ClaimAnswer, ClaimAsk, ClaimRefusal,
    Committed, Credential, DeadOrder, Deed, Desk, DueLook, Event, EventId, Events, Finished, Fire, Fired,
    GroupKey, GroupLook, GroupSettings, GroupView, Hand, HandFired, Handle, Join, Moved, NewEvent,
    NewRequest, NewResource, NewWorker, Office, Order, Pause, PoolKey, PoolMatch, PoolSettings, PoolView,
    Pools, Post, Published, Push, QueueKey, QueueSettings, QueueView, ReadAsk, RequestId, RequestView,
    ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleStats, ScheduleView, Scheduling, SetSchedule, Settled,
    Settlement, ShareCommit, SlotEnds, StoreError, Submission, Submitted, TakeShares, Taken, TaskFilter,
    TaskId, TaskView, Tasks, Tend, Tended, TickFilter, TickView, TopicKey, TopicSettings, TopicView, Why,
    WorkerView,
};
use tenure_core::{Name, SessionId, Token};

use super::Paired;

type Answer<T> = Result<T, StoreError>;

/// Passes calls on to the keeper; in brackets, one that asks nothing of it.
macro_rules! kept {
    (impl $port:ident {
        $([$plain:ident -> $said:ty])*
        $($call:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*
    }) => {
        #[async_trait]
        impl $port for Paired {
            $(fn $plain(&self) -> $said {
                self.keeper.$plain()
            })*
            $(async fn $call(&self, $($name: $kind),*) -> Answer<$answer> {
                self.keeper.$call($($name),*).await
            })*
        }
    };
}

kept! {
    impl Office {
        credentials() -> Vec<Credential>;
        put_credential(credential: &Credential) -> ();
        record(deed: &Deed) -> ();
        deeds(namespace: Option<&Name>, before: Option<i64>, limit: u32) -> Vec<Deed>;
        forget(before_ms: i64) -> ();
    }
}

kept! {
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

kept! {
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

kept! {
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

kept! {
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
        doze_topic(session: &SessionId, topic: &TopicKey) -> ();
        prune_events(tend: &Tend) -> (u64, bool);
    }
}

kept! {
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

kept! {
    impl Scheduling {
        [fires_abreast -> usize]
        due(limit: u32) -> DueLook;
        fire(fire: &Fire) -> Option<Vec<Fired>>;
        prune_ticks(session: &SessionId, token: Token, limit: u32) -> (u64, bool);
    }
}

kept! {
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
