//! A store that counts its calls, and that a test can hold up or break.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tenure::backend::memory::Memory;
use tenure::port::*;
use tenure::{ElectionKey, Name, SessionId, Token};
use tokio::sync::watch;

/// What a test does to calls of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// They fail, and nothing happens.
    Fails,
    /// They are refused, as what makes no sense.
    #[allow(dead_code, reason = "the tests of events need it")]
    Refused,
    /// They fail, though they happened: the answer is lost.
    AnswerLost,
    /// They wait until the fault is taken away.
    Waits,
    /// They fail, and happen all the same, when the fault is taken away.
    HappensLate,
    /// They do nothing, and say that they did.
    Ignored,
    /// They happen at once, and their answers come when the fault is taken away.
    AnswerLate,
}

/// Schedules that spoil each call in which they are.
#[derive(Clone, Debug)]
pub(crate) struct Poison {
    pub(crate) schedules: &'static [&'static str],
    pub(crate) kind: Trouble,
    /// Even if they are only to be put off.
    pub(crate) put_off_too: bool,
}

impl Poison {
    fn spoils(&self, firing: &Firing) -> bool {
        let named = self.schedules.contains(&firing.key.name.as_str());
        named && (self.put_off_too || firing.trouble.is_none())
    }
}

/// A store in memory, seen through. Clones share everything.
#[derive(Clone)]
pub(crate) struct Spy {
    pub(crate) store: Memory,
    calls: Arc<Mutex<BTreeMap<&'static str, u64>>>,
    faults: Arc<watch::Sender<BTreeMap<&'static str, Fault>>>,
    poison: Arc<Mutex<Option<Poison>>>,
    /// More ticks than this take too long.
    most: Arc<AtomicUsize>,
    /// How many ticks each call would fire.
    fired: Arc<Mutex<Vec<usize>>>,
}

impl Spy {
    pub(crate) fn new(store: Memory) -> Spy {
        Spy {
            store,
            calls: Arc::default(),
            faults: Arc::new(watch::Sender::new(BTreeMap::new())),
            poison: Arc::default(),
            most: Arc::new(AtomicUsize::new(usize::MAX)),
            fired: Arc::default(),
        }
    }

    /// Calls that would fire these schedules fail, and nothing happens; unless `None`.
    #[allow(dead_code, reason = "the tests of schedules need it")]
    pub(crate) fn poison(&self, poison: Option<Poison>) {
        *self.poison.lock().unwrap() = poison;
    }

    /// Calls that would fire more ticks than this take too long, and nothing happens.
    #[allow(dead_code, reason = "the tests of schedules need it")]
    pub(crate) fn too_many(&self, ticks: usize) {
        self.most.store(ticks, Ordering::SeqCst);
    }

    /// How many ticks each call to fire would have fired.
    #[allow(dead_code, reason = "the tests of schedules need it")]
    pub(crate) fn fired(&self) -> Vec<usize> {
        self.fired.lock().unwrap().clone()
    }

    /// How often it was called by this name.
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
            Some(Fault::Fails) => Err(broken()),
            Some(Fault::Refused) => Err(StoreError::new(Trouble::Request, "the test refuses this call")),
            other => Ok(other.copied()),
        }
    }

    /// Keeps an answer back, if that is what the test wants.
    async fn late(&self, name: &str, fault: Option<Fault>) {
        if fault == Some(Fault::AnswerLate) {
            let mut faults = self.faults.subscribe();
            let _ = faults.wait_for(|faults| !faults.contains_key(name)).await;
        }
    }
}

fn broken() -> StoreError {
    StoreError::new(Trouble::Unreachable, "the test broke this call")
}

macro_rules! seen_through {
    ($trait:ident { $($plain:item)* } $(async fn $name:ident($($arg:ident: $of:ty),*) -> $ok:ty;)*) => {
        #[async_trait]
        impl $trait for Spy {
            $($plain)*
            $(async fn $name(&self, $($arg: $of),*) -> Result<$ok, StoreError> {
                let fault = self.before(stringify!($name)).await?;
                let result = $trait::$name(&self.store, $($arg),*).await;
                self.late(stringify!($name), fault).await;
                if fault == Some(Fault::AnswerLost) { Err(broken()) } else { result }
            })*
        }
    };
}

seen_through! { Store {
        fn wakes(&self) -> Wakes { self.store.wakes() }
        fn watch(&self, sessions: &[SessionId]) { self.store.watch(sessions) }
    }
    async fn open(session: &NewSession) -> Pulse;
    async fn beat(session: &SessionId) -> Pulse;
    async fn end(session: &SessionId) -> ();
    async fn join(candidacy: &Candidacy) -> Joined;
    async fn leave(session: &SessionId, election: &ElectionKey) -> ();
    async fn observe(session: &SessionId, scope: &Scope) -> Observation;
    async fn take(take: &Take) -> Option<Token>;
    async fn release(release: &Release) -> ();
    async fn expire(expire: &Expire) -> ();
    async fn ask(ask: &Ask) -> bool;
}

seen_through! { Directory {
        fn promises(&self) -> Promises { self.store.promises() }
    }
    async fn elections(namespace: Option<&Name>) -> Vec<ElectionView>;
    async fn election(key: &ElectionKey) -> Option<ElectionView>;
    async fn history(key: &ElectionKey, limit: u32) -> Vec<Term>;
    async fn set_paused(key: &ElectionKey, pause: Option<&Pause>) -> bool;
    async fn sessions(which: Option<&[SessionId]>) -> Vec<SessionView>;
}

seen_through! { Office {}
    async fn credentials() -> Vec<Credential>;
    async fn put_credential(credential: &Credential) -> ();
    async fn record(deed: &Deed) -> ();
    async fn deeds(namespace: Option<&Name>, before: Option<i64>, limit: u32) -> Vec<Deed>;
    async fn forget(before_ms: i64) -> ();
}

#[async_trait]
impl Tasks for Spy {
    async fn submit(&self, submission: &Submission) -> Result<Vec<Submitted>, StoreError> {
        self.before("submit").await?;
        self.store.submit(submission).await
    }
    async fn claim(&self, ask: &ClaimAsk) -> Result<ClaimAnswer, StoreError> {
        let fault = self.before("claim").await?;
        if fault == Some(Fault::HappensLate) {
            let (spy, ask) = (self.clone(), ask.clone());
            tokio::spawn(async move {
                let mut faults = spy.faults.subscribe();
                let _ = faults.wait_for(|faults| !faults.contains_key("claim")).await;
                let _ = spy.store.claim(&ask).await;
            });
            return Err(broken());
        }
        let answer = self.store.claim(ask).await;
        self.late("claim", fault).await;
        if fault == Some(Fault::AnswerLost) { Err(broken()) } else { answer }
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        let fault = self.before("settle").await?;
        let answer = self.store.settle(settlements).await;
        if fault == Some(Fault::AnswerLost) { Err(broken()) } else { answer }
    }
    async fn held(&self, session: &SessionId) -> Result<Vec<(TaskId, Token)>, StoreError> {
        self.before("held").await?;
        self.store.held(session).await
    }
    async fn doze(&self, session: &SessionId, queues: &[QueueKey]) -> Result<(), StoreError> {
        match self.before("doze").await? {
            Some(Fault::Ignored) => Ok(()),
            _ => self.store.doze(session, queues).await,
        }
    }
    async fn tend(&self, tend: &Tend) -> Result<Tended, StoreError> {
        self.before("tend").await?;
        self.store.tend(tend).await
    }
    async fn put_post(&self, post: &Post) -> Result<bool, StoreError> {
        self.before("put_post").await?;
        self.store.put_post(post).await
    }
    async fn post(&self) -> Result<Option<Post>, StoreError> {
        self.before("post").await?;
        self.store.post().await
    }
}

seen_through! { Desk {}
    async fn queues(namespace: Option<&Name>) -> Vec<QueueView>;
    async fn queue(key: &QueueKey) -> Option<QueueView>;
    async fn set_queue(key: &QueueKey, settings: &QueueSettings) -> ();
    async fn set_queue_paused(namespace: &Name, queue: Option<&Name>, pause: Option<&Pause>) -> bool;
    async fn tasks(filter: &TaskFilter) -> Vec<TaskView>;
    async fn task(namespace: &Name, id: TaskId) -> Option<TaskView>;
    async fn order(namespace: &Name, tasks: &[TaskId], order: Order) -> Vec<TaskId>;
    async fn why(namespace: &Name, id: TaskId) -> Option<Vec<Why>>;
    async fn finished(key: &QueueKey, limit: u32) -> Vec<Finished>;
    async fn register(namespace: &Name, worker: &NewWorker) -> ();
    async fn workers(namespace: Option<&Name>) -> Vec<WorkerView>;
    async fn approve(namespace: &Name, worker: &str, by: Option<&str>) -> bool;
}

seen_through! { Pools {}
    async fn pools(namespace: Option<&Name>) -> Vec<PoolView>;
    async fn pool(key: &PoolKey) -> Option<PoolView>;
    async fn set_pool(key: &PoolKey, settings: &PoolSettings) -> ();
    async fn add_resources(key: &PoolKey, resources: &[NewResource]) -> ();
    async fn remove_resource(key: &PoolKey, name: &Name) -> bool;
    async fn request(key: &PoolKey, request: &NewRequest) -> RequestView;
    async fn match_pool(ask: &PoolMatch) -> Result<Vec<RequestView>, ClaimRefusal>;
    async fn pool_request(namespace: &Name, id: RequestId) -> Option<RequestView>;
    async fn handle_request(namespace: &Name, id: RequestId, owner: &str, token: Option<Token>, handle: Handle) -> bool;
}

seen_through! { Events {}
    async fn publish(topic: &TopicKey, events: &[NewEvent]) -> Vec<Published>;
    async fn join_group(join: &Join) -> GroupLook;
    async fn leave_group(group: &GroupKey, session: &SessionId) -> ();
    async fn look_group(group: &GroupKey) -> Option<GroupLook>;
    async fn take_shares(take: &TakeShares) -> Vec<Taken>;
    async fn free_shares(group: &GroupKey, shares: &[(u32, Token)]) -> ();
    async fn read_events(read: &ReadAsk) -> Vec<Event>;
    async fn commit_shares(commits: &[ShareCommit]) -> Vec<Committed>;
    async fn aside_keys(group: &GroupKey, slot: u32) -> Vec<AsideKey>;
    async fn doze_topic(session: &SessionId, topic: &TopicKey) -> ();
    async fn prune_events(tend: &Tend) -> (u64, bool);
}

seen_through! { Bureau {}
    async fn topics(namespace: Option<&Name>) -> Vec<TopicView>;
    async fn topic(key: &TopicKey) -> Option<TopicView>;
    async fn set_topic(key: &TopicKey, settings: &TopicSettings) -> bool;
    async fn delete_topic(key: &TopicKey) -> bool;
    async fn slot_ends(key: &TopicKey) -> Option<Vec<SlotEnds>>;
    async fn event(topic: &TopicKey, id: EventId) -> Option<Event>;
    async fn groups(namespace: Option<&Name>) -> Vec<GroupView>;
    async fn group(key: &GroupKey) -> Option<GroupView>;
    async fn set_group(key: &GroupKey, settings: &GroupSettings, from: Begin) -> bool;
    async fn delete_group(key: &GroupKey) -> bool;
    async fn set_group_paused(key: &GroupKey, pause: Option<&Pause>) -> bool;
    async fn reset_group(key: &GroupKey, to: Begin, slot: Option<u32>, dry_run: bool) -> Vec<Moved>;
    async fn aside(filter: &AsideFilter) -> Vec<AsideView>;
    async fn order_dead(group: &GroupKey, events: &[EventId], order: DeadOrder) -> Vec<EventId>;
    async fn set_push(key: &GroupKey, push: Option<&Push>) -> ();
    async fn pushes() -> Vec<(GroupKey, Push)>;
}

#[async_trait]
impl Scheduling for Spy {
    async fn due(&self, limit: u32) -> Result<DueLook, StoreError> {
        let fault = self.before("due").await?;
        let look = self.store.due(limit).await;
        if fault == Some(Fault::AnswerLost) { Err(broken()) } else { look }
    }
    async fn fire(&self, fire: &Fire) -> Result<Option<Vec<Fired>>, StoreError> {
        let fault = self.before("fire").await?;
        let ticks: usize = fire.firings.iter().map(|firing| firing.ticks.len()).sum();
        self.fired.lock().unwrap().push(ticks);
        if ticks > self.most.load(Ordering::SeqCst) {
            return Err(StoreError::new(Trouble::Timeout, "that takes too long"));
        }
        let poison = self.poison.lock().unwrap().clone();
        if let Some(poison) = poison
            && fire.firings.iter().any(|firing| poison.spoils(firing))
        {
            return Err(StoreError::new(poison.kind, "the test poisoned this call"));
        }
        if fault == Some(Fault::HappensLate) {
            let (spy, fire) = (self.clone(), fire.clone());
            tokio::spawn(async move {
                let mut faults = spy.faults.subscribe();
                let _ = faults.wait_for(|faults| !faults.contains_key("fire")).await;
                let _ = spy.store.fire(&fire).await;
            });
            return Err(broken());
        }
        let answer = self.store.fire(fire).await;
        if fault == Some(Fault::AnswerLost) { Err(broken()) } else { answer }
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

seen_through! { Calendar {}
    async fn schedules(filter: &ScheduleFilter) -> Vec<ScheduleView>;
    async fn schedule(key: &ScheduleKey) -> Option<ScheduleView>;
    async fn set_schedule(set: &SetSchedule) -> ScheduleSet;
    async fn delete_schedule(key: &ScheduleKey, expect: Option<u64>) -> Option<bool>;
    async fn set_schedule_paused(key: &ScheduleKey, pause: Option<&Pause>) -> Option<bool>;
    async fn fire_by_hand(hand: &Hand) -> Option<Vec<HandFired>>;
    async fn ticks(filter: &TickFilter) -> Vec<TickView>;
    async fn schedule_stats() -> Vec<ScheduleStats>;
    async fn call_secret(key: &ScheduleKey) -> Option<String>;
}
