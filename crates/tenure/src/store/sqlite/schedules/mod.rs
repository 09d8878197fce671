//! Schedules and ticks.
//!
//! The row of a schedule stores its next tick (`next_tick_at_ms`) and when the scheduler must act (`due_at_ms`, by the wall clock of
//! the machine). Finding due schedules reads the index of `due_at_ms`. Firing is one `BEGIN IMMEDIATE` transaction. It does nothing if
//! the scheduler does not hold its lease under the token, and it skips schedules that changed since they were read. For the others it
//! records ticks, publishes events, submits tasks and sets the next tick. The transaction compares and replaces the stored
//! `next_tick_at_ms` on which the decision was based. So a crash between two statements undoes everything, and a second scheduler or a
//! repeated request finds another `next_tick_at_ms`: no tick is lost, and no tick fires twice. The primary key of `tenure_ticks`
//! protects even against a `next_tick_at_ms` that was set back.
//!
//! Each step is one statement for all schedules, plus one for each topic and queue: 10,000 firings need a few dozen round trips to the
//! thread of the connection.
//!
//! A tick is tracked if its run must not overlap with the next one: the run counts as unfinished until its task finishes. Each firing
//! ends the tracking of finished runs, so that later counts read few rows.

mod admin;
mod due;
mod effects;
mod fire;
mod manual_fire;
mod prune;
mod views;

use async_trait::async_trait;
use tenure_core::port::{
    DueResponse, FireOutcome, FireRequest, ManualFire, ManualFireResult, Pause, ScheduleAdmin,
    ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleStore, ScheduleView, SetScheduleOutcome,
    SetScheduleRequest, StoreError, TickFilter, TickView,
};
use tenure_core::{SessionId, Token};

use super::SqliteStore;
use super::call_error::{CallError, ExplainResult, json, number};

#[async_trait]
impl ScheduleStore for SqliteStore {
    async fn due_schedules(&self, limit: u32) -> Result<DueResponse, StoreError> {
        self.check_file()?;
        self.due_schedules(limit).await.with_context(self, "finding due schedules")
    }

    async fn fire(&self, fire: &FireRequest) -> Result<Option<Vec<FireOutcome>>, StoreError> {
        self.check_file()?;
        self.fire_schedules(fire).await.with_context(self, "firing schedules")
    }

    async fn prune_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        self.check_file()?;
        self.prune_old_ticks(session, token, limit).await.with_context(self, "pruning ticks")
    }
}

#[async_trait]
impl ScheduleAdmin for SqliteStore {
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        self.check_file()?;
        self.schedule_views(filter).await.with_context(self, "listing schedules")
    }

    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        self.check_file()?;
        self.get_schedule(key).await.with_context(self, "reading a schedule")
    }

    async fn set_schedule(&self, request: &SetScheduleRequest) -> Result<SetScheduleOutcome, StoreError> {
        self.check_file()?;
        self.put_schedule(request).await.with_context(self, "changing a schedule")
    }

    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expected_version: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        self.check_file()?;
        self.remove_schedule(key, expected_version).await.with_context(self, "deleting a schedule")
    }

    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        self.check_file()?;
        self.pause_schedule(key, pause).await.with_context(self, "pausing or resuming a schedule")
    }

    async fn fire_manually(&self, request: &ManualFire) -> Result<Option<Vec<ManualFireResult>>, StoreError> {
        self.check_file()?;
        self.fire_manual_ticks(request).await.with_context(self, "firing a schedule manually")
    }

    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        self.check_file()?;
        self.tick_views(filter).await.with_context(self, "listing ticks")
    }

    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        self.check_file()?;
        self.count_schedules().await.with_context(self, "counting schedules")
    }

    async fn webhook_secret(&self, key: &ScheduleKey) -> Result<Option<String>, StoreError> {
        self.check_file()?;
        self.get_webhook_secret(key).await.with_context(self, "reading the webhook secret of a schedule")
    }
}
