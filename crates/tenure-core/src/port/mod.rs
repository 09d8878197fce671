//! What a store must be able to do.
//!
//! The store owns the truth: who holds what, under which token, and which sessions live. A backend implements ten
//! traits. [`Store`] is the path of the machine: few calls, each one atomic, each either done, refused, or of unknown
//! outcome. [`Directory`] is the path of people: it reads, and it leaves requests that a leader will find. [`Office`] is what a
//! server keeps for itself: who may do what, and who did. [`Tasks`], [`Desk`] and [`Pools`] are about work and resources,
//! [`Events`] and [`Bureau`] about events, [`Scheduling`] and [`Calendar`] about schedules.
//!
//! A call that returns [`StoreError`] may or may not have happened. The machine is written for that: nothing it
//! concludes from an error ever extends trust, and everything it repeats is guarded by a compare-and-swap.

mod ask;
mod claims;
mod election;
mod error;
mod events;
mod fitness;
mod lease;
mod members;
mod office;
mod passing;
mod schedules;
mod session;
mod wake;

use std::os::fd::OwnedFd;

use async_trait::async_trait;

pub use self::ask::{Ask, AskKind, Via};
pub use self::claims::{
    Authority, BASE_PRIORITY, Backoff, CLAIM_BYTES, CLAIM_MAX, ClaimAnswer, ClaimAsk, ClaimRefusal,
    ClaimedTask, DEPTH_MAX, Desk, FAILURES_KEPT, Failure, Fallback, Finished, Handle, Json, KindStats,
    LIST_MAX, Mode, NewRequest, NewResource, NewTask, NewWorker, Order, Outcome, PAYLOAD_MAX, PRIORITY_MAX,
    PRIORITY_STEP_MS, Parent, PoolKey, PoolMatch, PoolSettings, PoolView, Pools, Post, Profile, QueueKey,
    QueueSettings, QueueView, RateLimit, RequestId, RequestState, RequestView, ResourceView, SUBMIT_MAX,
    Seat, Settled, Settlement, Spread, Submission, Submitted, TaskFilter, TaskId, TaskState, TaskView, Tasks,
    Tend, Tended, Why, WorkerView, claims_election,
};
pub use self::election::{
    Candidacy, CandidateView, ElectionView, Joined, LeaseView, Observation, Pause, Scope, Term,
};
pub use self::error::{StoreError, Trouble};
pub use self::events::{
    Aside, AsideFilter, AsideKey, AsideView, Begin, Blocker, Bureau, Committed, DeadOrder, EVENT_BYTES_MAX,
    Event, EventId, Events, GROUPS_MAX, GroupKey, GroupLook, GroupSettings, GroupView, HEADERS_MAX, Join,
    KEY_MAX, LAG_COUNTED, Member, Moved, NewEvent, PUBLISH_MAX, Payload, Position, Published, Push, PushView,
    READ_BYTES, ReadAsk, SLOTS, SLOTS_MAX, SetAside, Share, ShareCommit, SlotEnds, SlotView, TakeShares,
    Taken, TopicKey, TopicSettings, TopicView, UNIT_MAX,
};
pub use self::fitness::{Finding, Promises, Verdict};
pub use self::lease::{Adopt, Release, Take};
pub use self::members::{MemberOrder, MemberView, Membership};
pub use self::office::{Credential, Deed, Grant, GrantError, Office, Proof, Realm, Verb};
pub use self::schedules::{
    CALL_TIMEOUT_MS, Calendar, Cause, DUE_MAX, DueLook, DueSchedule, Effect, Expect, Fire, Fired, Firing,
    FiringTick, Hand, HandFired, HandOutcome, ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleStats,
    ScheduleView, Scheduling, SetSchedule, TICKS_KEPT_MS, TickFilter, TickState, TickView, calls_queue,
    scheduler_election,
};
pub use self::session::{Expire, NewSession, Pulse, SessionView, Takeover};
pub use self::wake::{Wake, WakeSource, Wakes};
use crate::{ElectionKey, Name, SessionId, Timing, Token};

/// The path of the machine. Every call is atomic in the store.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Opens a session; its first beat counts.
    async fn open(&self, session: &NewSession) -> Result<Pulse, StoreError>;

    /// Says that the session lives, *if it is live*, and brings back what is asked of it.
    async fn beat(&self, session: &SessionId) -> Result<Pulse, StoreError>;

    /// Ends the session: frees all that it holds, removes its candidates, wakes the others.
    async fn end(&self, session: &SessionId) -> Result<(), StoreError>;

    /// Stands for an election, or changes how it stands.
    async fn join(&self, candidacy: &Candidacy) -> Result<Joined, StoreError>;

    /// Stands no longer.
    async fn leave(&self, session: &SessionId, election: &ElectionKey) -> Result<(), StoreError>;

    /// Looks at elections.
    async fn observe(&self, session: &SessionId, scope: &Scope) -> Result<Observation, StoreError>;

    /// Takes a lease; `None` if what was seen is no longer so.
    async fn take(&self, take: &Take) -> Result<Option<Token>, StoreError>;

    /// Gives a lease back and wakes the others. Nothing happens if it is not held under that token.
    async fn release(&self, release: &Release) -> Result<(), StoreError>;

    /// Declares a session dead if its beat has not moved, and frees all that it held.
    async fn expire(&self, expire: &Expire) -> Result<(), StoreError>;

    /// Asks something of a holder, and wakes it. `false` if that term is over.
    async fn ask(&self, ask: &Ask) -> Result<bool, StoreError>;

    /// Whether [`adopt`](Self::adopt) is possible.
    fn adopts(&self) -> bool {
        false
    }

    /// Holds a lease here that another store has granted, so that what is guarded here is guarded by it. `false` if a later
    /// grant of the same elector was adopted before, if somebody whom another elector elected holds it, or if the session is gone.
    /// Waits for the transactions that an earlier holder has under its guard.
    async fn adopt(&self, adopt: &Adopt) -> Result<bool, StoreError> {
        let message = format!(
            "this store does not hold leases that {} granted; keep the work in sqlite: or postgres:",
            adopt.by
        );
        Err(StoreError::new(Trouble::Request, message))
    }

    /// Asks to be told, through [`wakes`](Self::wakes), when one of these sessions dies, where the store can know.
    fn watch(&self, sessions: &[SessionId]) {
        let _ = sessions;
    }

    /// A descriptor that says "this session lives" for as long as it is open in any process, where the store has such a
    /// thing: `tenure run` hands it to the watchdog, so that a killed supervisor's lease is free only once its child is
    /// gone.
    fn kernel_lock(&self, session: &SessionId) -> Option<OwnedFd> {
        let _ = session;
        None
    }

    /// The hints of this store. Called once for each open client; a store with none returns a stream that never
    /// yields. The sender's end may be dropped at any time.
    fn wakes(&self) -> Wakes;
}

/// The path of people.
#[async_trait]
pub trait Directory: Send + Sync + 'static {
    /// What this store promises.
    fn promises(&self) -> Promises;

    /// Which store this is, among all that ever grant: tokens of one identity only grow, those of different ones do not compare.
    async fn identity(&self) -> Result<String, StoreError> {
        Ok(self.promises().backend.to_owned())
    }

    /// All elections of a namespace, or of all namespaces.
    async fn elections(&self, namespace: Option<&Name>) -> Result<Vec<ElectionView>, StoreError>;

    /// One election; `None` if nobody ever stood for it.
    async fn election(&self, key: &ElectionKey) -> Result<Option<ElectionView>, StoreError>;

    /// The last terms of an election, newest first.
    async fn history(&self, key: &ElectionKey, limit: u32) -> Result<Vec<Term>, StoreError>;

    /// Pauses (asking the holders to stop) or resumes an election. `false` if it was so already.
    async fn set_paused(&self, key: &ElectionKey, pause: Option<&Pause>) -> Result<bool, StoreError>;

    /// These sessions, as far as the store remembers them, over or not; without a list, all that live. By id.
    async fn sessions(&self, which: Option<&[SessionId]>) -> Result<Vec<SessionView>, StoreError>;

    /// The members, where the store is a cluster that manages its own; `None` elsewhere.
    async fn membership(&self) -> Result<Option<Membership>, StoreError> {
        Ok(None)
    }

    /// Does something about the members, and completes when it is done.
    async fn order_member(&self, order: &MemberOrder) -> Result<(), StoreError> {
        let _ = order;
        let message = "this store has no members of its own; name a Raft cluster with --store raft:?peers=… or http://…";
        Err(StoreError::new(Trouble::Request, message))
    }

    /// The store's own clock in seconds since some moment, where it has one: to compare clock *rates*.
    async fn clock_seconds(&self) -> Result<Option<f64>, StoreError> {
        Ok(None)
    }

    /// The pace that the store's address asks for, where nothing else is said.
    fn pace(&self) -> Option<Timing> {
        None
    }

    /// Completes, with the reason, when this handle can never answer again and its process must be restarted.
    ///
    /// Most stores recover from every failure, and this never completes. A member of a Raft cluster does not, for example when its disk fails.
    async fn failed(&self) -> StoreError {
        std::future::pending().await
    }

    /// What there is to know about this store as it is set up, for `tenure doctor`.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }
}

/// A whole backend.
pub trait Backend:
    Store + Directory + Office + Tasks + Desk + Pools + Events + Bureau + Scheduling + Calendar
{
}
impl<T> Backend for T where
    T: Store + Directory + Office + Tasks + Desk + Pools + Events + Bureau + Scheduling + Calendar
{
}
