//! Schedules: what is due, and what becomes of it.
//!
//! **Who owns the truth.** The tables, as everywhere here. The rules of time are in the library (`tenure_core::schedule`), so a
//! change is decided here from what was seen, and compared with what is so in the database: a firing by its version and next tick,
//! under the leader's lease (`migrations/0005/fire.sql` says why no tick is lost or doubled); a change of a definition, a resumption
//! or a tick by hand by the same, and it is decided anew if something else came first. Each is one message, one transaction.
//!
//! **Locks.** The lease's row, shared, by whoever fires in the name of the leader; topics' rows, shared, by whoever publishes for a
//! tick; then the schedules' rows in `schedule_progress`, in the order of their names; then what submissions and publications lock.

mod fire;
mod hand;
mod numbers;
mod set;
mod ticks;

use async_trait::async_trait;
use tenure_core::port::{
    Calendar, DueLook, Fire, Fired, Hand, HandFired, Pause, ScheduleFilter, ScheduleKey, ScheduleSet,
    ScheduleStats, ScheduleView, Scheduling, SetSchedule, StoreError, TickFilter, TickView, Trouble,
};
use tenure_core::{Name, SessionId, Token};

pub(super) use self::numbers::Numbers;
use super::value::Value;
use super::{Postgres, from_json, get};

/// How often a change is decided anew, because something else came first, before that is told.
const TRIES: u32 = 100;

/// How many firings are under way at once: each is a transaction of its own, and they meet only where their slots are locked, to commit.
/// It leaves connections for others.
const ABREAST: usize = 2;

#[async_trait]
impl Scheduling for Postgres {
    async fn due(&self, limit: u32) -> Result<DueLook, StoreError> {
        self.look_at_due(limit).await
    }

    async fn fire(&self, fire: &Fire) -> Result<Option<Vec<Fired>>, StoreError> {
        self.fire_all(fire).await
    }

    fn fires_abreast(&self) -> usize {
        ABREAST
    }

    async fn prune_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        self.forget_ticks(session, token, limit).await
    }
}

#[async_trait]
impl Calendar for Postgres {
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
        let rows = self.call("schedule_show", &key_of(key)).await?;
        rows.first().map(|row| from_json(row, "schedule")).transpose()
    }

    async fn set_schedule(&self, set: &SetSchedule) -> Result<ScheduleSet, StoreError> {
        self.define(set).await
    }

    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        self.delete(key, expect).await
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

    async fn fire_by_hand(&self, hand: &Hand) -> Result<Option<Vec<HandFired>>, StoreError> {
        self.fire_some(hand).await
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

    async fn call_secret(&self, key: &ScheduleKey) -> Result<Option<String>, StoreError> {
        let rows = self.call("schedule_secret", &key_of(key)).await?;
        rows.first().map(|row| get(row, "secret")).transpose()
    }
}

/// Namespace and name.
fn key_of(key: &ScheduleKey) -> [Value<'_>; 2] {
    [key.namespace.as_str().into(), key.name.as_str().into()]
}

/// A schedule that changed whenever it was about to be changed.
fn restless(key: &ScheduleKey) -> StoreError {
    StoreError::new(
        Trouble::Unavailable,
        format!(
            "the schedule {key} was changed by others {TRIES} times in a row; nothing was done: try again"
        ),
    )
}
