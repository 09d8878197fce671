//! Schedules: what fires when, and what has.
//!
//! The store keeps two facts about each schedule ([`Progress`](crate::schedule::Progress)): the tick that is next, and the last
//! one that was decided about. The leader of [`scheduler_election`] looks at what is due, decides
//! ([`schedule::plan`](crate::schedule::plan)), and says so ([`Scheduling::fire`]): in one transaction, under its lease, and only if
//! the schedule still stands as it was seen, ticks are written, events published, tasks submitted, and the next tick is set. So
//! whatever dies between two statements, a tick has fired with all that follows from it, or not at all; and whoever comes next
//! goes on from what is stored.
//!
//! Two traits. [`Scheduling`] is the path of the leader. [`Calendar`] is the path of people.

mod fire;
mod view;

use async_trait::async_trait;

pub use self::fire::{
    Cause, DUE_MAX, DueLook, DueSchedule, Effect, Fire, Fired, Firing, FiringTick, Hand, HandFired,
    HandOutcome,
};
pub use self::view::{
    CALL_TIMEOUT_MS, Expect, ScheduleFilter, ScheduleKey, ScheduleSet, ScheduleStats, ScheduleView,
    SetSchedule, TICKS_KEPT_MS, TickFilter, TickState, TickView,
};
use super::{Pause, QueueKey, StoreError, Trouble};
use crate::{ElectionKey, Name, SessionId, Token};

/// The election whose leader fires what is due: one for the whole store.
pub fn scheduler_election() -> ElectionKey {
    let name = |s: &str| s.parse::<Name>().expect("a literal name");
    ElectionKey::new(name("tenure"), name("scheduler"))
}

/// The queue in which calls wait for a server that makes them: one for the whole store.
pub fn calls_queue() -> QueueKey {
    let name = |s: &str| s.parse::<Name>().expect("a literal name");
    QueueKey::new(name("tenure"), name("calls"))
}

/// The path of the leader. Every call is atomic in the store.
#[async_trait]
pub trait Scheduling: Send + Sync + 'static {
    /// What is due by the store's clock, the longest due first. It costs as much as it finds, however many schedules there are.
    async fn due(&self, limit: u32) -> Result<DueLook, StoreError> {
        let _ = limit;
        no_schedules()
    }

    /// Fires, all in one transaction; `None` if the asker does not lead under that token, and nothing was done. Otherwise one
    /// result for each, in their order: a firing that is stale or refused changes nothing, and the others do not mind. A tick that
    /// was decided about before does not fire again. Rings for who waits for the events and tasks.
    async fn fire(&self, fire: &Fire) -> Result<Option<Vec<Fired>>, StoreError> {
        let _ = fire;
        no_schedules()
    }

    /// How many calls of [`fire`](Self::fire) do more at once than one after the other: one, where a store has one writer.
    fn fires_abreast(&self) -> usize {
        1
    }

    /// Forgets ticks that are older than their schedule keeps them, at most `limit`; `(how many, whether there is more)`. Fenced
    /// by the leader's lease.
    async fn prune_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        let _ = (session, token, limit);
        no_schedules()
    }
}

/// The path of people.
#[async_trait]
pub trait Calendar: Send + Sync + 'static {
    /// Schedules, by namespace and name.
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        let _ = filter;
        no_schedules()
    }

    /// One schedule; `None` if it is not there.
    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        let _ = key;
        no_schedules()
    }

    /// Makes a schedule, or defines it anew ([`schedule::revise`](crate::schedule::revise)), and wakes the leader
    /// ([`Wake::Schedules`](crate::port::Wake)). What makes no sense is an error of kind `Request`, a topic that is not there
    /// included.
    async fn set_schedule(&self, set: &SetSchedule) -> Result<ScheduleSet, StoreError> {
        let _ = set;
        no_schedules()
    }

    /// Deletes a schedule with its history; what it has published or submitted stays. `None` if it is not there; `Some(false)` if
    /// it is not of the version that was expected.
    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        let _ = (key, expect);
        no_schedules()
    }

    /// Pauses or resumes a schedule. `None` if it is not there; `Some(false)` if it was so already. What fell due meanwhile was
    /// missed: its policy says what becomes of that.
    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        let _ = (key, pause);
        no_schedules()
    }

    /// Fires by hand: now, or past ticks again that did not. `None` if there is no such schedule. What its target refuses is an
    /// error of kind `Request`.
    async fn fire_by_hand(&self, hand: &Hand) -> Result<Option<Vec<HandFired>>, StoreError> {
        let _ = hand;
        no_schedules()
    }

    /// The last ticks of a schedule, the newest first.
    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        let _ = filter;
        no_schedules()
    }

    /// How it stands with schedules, by namespace: counted in the store.
    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        no_schedules()
    }

    /// What the calls of a schedule are signed with: for servers.
    async fn call_secret(&self, key: &ScheduleKey) -> Result<Option<String>, StoreError> {
        let _ = key;
        no_schedules()
    }
}

fn no_schedules<T>() -> Result<T, StoreError> {
    Err(StoreError::new(
        Trouble::Unsupported,
        "this store elects leaders and keeps no schedules; use sqlite:, postgres:// or a Tenure server on one of them",
    ))
}
