//! Ports of schedules and ticks.
//!
//! The store keeps two instants per schedule ([`ScheduleTickState`](crate::rules::schedule::ScheduleTickState)): the
//! next tick and the last decided one. The leader of [`scheduler_election`] reads the due schedules, decides
//! ([`plan`](crate::rules::schedule::plan)) and calls [`ScheduleStore::fire`]. One transaction, fenced by the leader's
//! lease, records the ticks, publishes the events, submits the tasks and sets the next tick. It does so only if the
//! schedule is unchanged since it was read. A tick therefore fires with all its effects or not at all, and a new leader
//! continues from the stored state.
//!
//! [`ScheduleStore`] has the operations of the scheduler, [`ScheduleAdmin`] the administrative operations.

mod fire;
mod view;

use async_trait::async_trait;

pub use self::fire::{
    DUE_MAX, DueResponse, DueSchedule, FireOutcome, FireRequest, FiringTick, ManualFire, ManualFireOutcome,
    ManualFireResult, ScheduleFiring, TickCause, TickEffect,
};
pub use self::view::{
    Precondition, ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleView, SetScheduleOutcome,
    SetScheduleRequest, TICK_RETENTION_MS, TickFilter, TickOutcome, TickView, WEBHOOK_TIMEOUT_MS,
};
use super::{ErrorKind, Pause, QueueKey, StoreError};
use crate::{ElectionKey, Name, SessionId, Token};

/// The election of the scheduler, one per store. Its leader fires due ticks.
pub fn scheduler_election() -> ElectionKey {
    let name = |s: &str| s.parse::<Name>().expect("a literal name");
    ElectionKey::new(name("tenure"), name("scheduler"))
}

/// The queue of webhook calls, one per store. The servers claim its tasks and send the requests.
pub fn webhook_queue() -> QueueKey {
    let name = |s: &str| s.parse::<Name>().expect("a literal name");
    QueueKey::new(name("tenure"), name("webhooks"))
}

/// Store operations of the scheduler. Every call is atomic in the store.
#[async_trait]
pub trait ScheduleStore: Send + Sync + 'static {
    /// Schedules that are due by the store's clock, the longest overdue first. The cost depends on the number of due
    /// schedules, not on the total.
    async fn due_schedules(&self, limit: u32) -> Result<DueResponse, StoreError> {
        let _ = limit;
        no_schedules()
    }

    /// Applies all firings in one transaction. Returns `None`, and changes nothing, if the caller does not lead under
    /// that token. Otherwise returns one outcome per firing, in order. A stale or rejected firing changes nothing and
    /// does not affect the others. A tick that was decided before does not fire again. Notifies the waiters of the
    /// affected topics and queues.
    async fn fire(&self, fire: &FireRequest) -> Result<Option<Vec<FireOutcome>>, StoreError> {
        let _ = fire;
        no_schedules()
    }

    /// Maximum useful number of concurrent [`fire`](Self::fire) calls; 1 for a store with a single writer.
    fn max_concurrent_fires(&self) -> usize {
        1
    }

    /// Prunes up to `limit` ticks that are older than the tick history. Returns how many were pruned and whether more
    /// remain. Fenced by the leader's lease.
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

/// Administrative operations on schedules.
#[async_trait]
pub trait ScheduleAdmin: Send + Sync + 'static {
    /// Schedules that match the filter, ordered by namespace and name.
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        let _ = filter;
        no_schedules()
    }

    /// One schedule. `None` if it does not exist.
    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        let _ = key;
        no_schedules()
    }

    /// Creates or redefines a schedule ([`revise`](crate::rules::schedule::revise)) and notifies the scheduler
    /// ([`Notification::SchedulesChanged`](crate::port::Notification::SchedulesChanged)). An invalid definition, or
    /// one whose topic does not exist, is an error of kind `Request`.
    async fn set_schedule(&self, set: &SetScheduleRequest) -> Result<SetScheduleOutcome, StoreError> {
        let _ = set;
        no_schedules()
    }

    /// Deletes a schedule and its tick history. Published events and submitted tasks stay. Returns `None` if the
    /// schedule does not exist, `Some(false)` if it has another version than expected.
    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        let _ = (key, expect);
        no_schedules()
    }

    /// Pauses or resumes a schedule. Returns `None` if it does not exist, `Some(false)` if the state is unchanged.
    /// The misfire policy decides about ticks that became due during the pause.
    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        let _ = (key, pause);
        no_schedules()
    }

    /// Fires one tick now, or past ticks that have not fired. Returns `None` if the schedule does not exist. If the
    /// target rejects a tick, the call fails with kind `Request`.
    async fn fire_manually(&self, request: &ManualFire) -> Result<Option<Vec<ManualFireResult>>, StoreError> {
        let _ = request;
        no_schedules()
    }

    /// The latest ticks of a schedule, newest first.
    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        let _ = filter;
        no_schedules()
    }

    /// Statistics of schedules per namespace, counted in the store.
    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        no_schedules()
    }

    /// The secret that signs the webhooks of a schedule; for servers.
    async fn webhook_secret(&self, key: &ScheduleKey) -> Result<Option<String>, StoreError> {
        let _ = key;
        no_schedules()
    }
}

fn no_schedules<T>() -> Result<T, StoreError> {
    Err(StoreError::new(
        ErrorKind::Unsupported,
        "this store supports only elections, not schedules; use sqlite:, postgres:// or a Tenure server with \
         such a store",
    ))
}
