//! Schedules and their ticks.
//!
//! **State.** The tables hold all state. The library computes ticks (`tenure_core::rules::schedule`), so it decides a
//! change from what it has read, and the database compares that with the stored state. A firing compares the version and the
//! next tick, under the lease of the scheduler (`migrations/0001/schedules/fire.sql` explains why no tick is lost or fires
//! twice). A change of a definition, a resumption and a manual firing compare the same, and are decided again if the
//! schedule changed meanwhile. Each is one message and one transaction.
//!
//! **Locks**, in this order: the row of the lease, shared, by a scheduler that fires; the rows of topics, shared, by a tick
//! that publishes; the rows of schedules in `schedule_state`, in the order of their names; then the locks of submissions and
//! publications.

mod admin;
mod fire;
mod manual_fire;
mod schedule_ids;
mod ticks;

use async_trait::async_trait;
use tenure_core::port::{
    DueResponse, ErrorKind, FireOutcome, FireRequest, ManualFire, ManualFireResult, Pause, ScheduleAdmin,
    ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleStore, ScheduleView, SetScheduleOutcome,
    SetScheduleRequest, StoreError, TickFilter, TickView,
};
use tenure_core::{Name, SessionId, Token};

pub(super) use self::schedule_ids::ScheduleIds;
use super::value::Value;
use super::{PostgresStore, from_json, get};

/// Maximum number of attempts of a change while the schedule changes concurrently.
const MAX_ATTEMPTS: u32 = 100;

/// Number of concurrent firings. Each is a transaction of its own; they wait for each other only for partition locks at
/// commit. The limit leaves connections for other calls.
const MAX_CONCURRENT_FIRES: usize = 2;

#[async_trait]
impl ScheduleStore for PostgresStore {
    async fn due_schedules(&self, limit: u32) -> Result<DueResponse, StoreError> {
        self.list_due(limit).await
    }

    async fn fire(&self, fire: &FireRequest) -> Result<Option<Vec<FireOutcome>>, StoreError> {
        self.fire_all(fire).await
    }

    fn max_concurrent_fires(&self) -> usize {
        MAX_CONCURRENT_FIRES
    }

    async fn prune_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        self.prune_old_ticks(session, token, limit).await
    }
}

#[async_trait]
impl ScheduleAdmin for PostgresStore {
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        let after = filter.after.as_ref();
        let values = [
            filter.namespace.as_ref().map(Name::as_str).into(),
            filter.source.as_deref().into(),
            after.map(|key| key.namespace.as_str()).into(),
            after.map(|key| key.name.as_str()).into(),
            filter.limit.into(),
        ];
        let rows = self.call("schedule_list", &values).await?;
        rows.iter().map(|row| from_json(row, "schedule")).collect()
    }

    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        let rows = self.call("schedule_get", &key_of(key)).await?;
        rows.first().map(|row| from_json(row, "schedule")).transpose()
    }

    async fn set_schedule(&self, set: &SetScheduleRequest) -> Result<SetScheduleOutcome, StoreError> {
        self.define(set).await
    }

    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        if_version: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        self.delete(key, if_version).await
    }

    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        match pause {
            Some(pause) => self.pause(key, pause).await,
            None => self.resume(key).await,
        }
    }

    async fn fire_manually(&self, manual: &ManualFire) -> Result<Option<Vec<ManualFireResult>>, StoreError> {
        self.fire_ticks_manually(manual).await
    }

    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        let [namespace, name] = key_of(&filter.key);
        let before = filter.before_ms.map_or(Value::Null, Value::Int);
        let rows = self.call("tick_list", &[namespace, name, before, filter.limit.into()]).await?;
        rows.iter().map(|row| from_json(row, "tick")).collect()
    }

    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        let rows = self.call("schedule_stats", &[]).await?;
        rows.iter().map(|row| from_json(row, "stats")).collect()
    }

    async fn webhook_secret(&self, key: &ScheduleKey) -> Result<Option<String>, StoreError> {
        let rows = self.call("schedule_webhook_secret_get", &key_of(key)).await?;
        rows.first().map(|row| get(row, "secret")).transpose()
    }
}

/// Namespace and name.
fn key_of(key: &ScheduleKey) -> [Value<'_>; 2] {
    [key.namespace.as_str().into(), key.name.as_str().into()]
}

/// The error for a schedule that changed during every attempt.
fn keeps_changing(key: &ScheduleKey) -> StoreError {
    StoreError::new(
        ErrorKind::Unavailable,
        format!(
            "schedule {key} changed concurrently during {MAX_ATTEMPTS} attempts; nothing was changed; try again"
        ),
    )
}
