//! Schedules, and what became of their ticks.
//!
//! A schedule's row says which tick is next (`next_at`) and when its leader must look (`due_at`, by the wall clock of the process
//! that asks: on one machine there is one). To look is to read the index of `due_at` up to now. To fire is one `BEGIN IMMEDIATE`
//! transaction: who does not hold the lease under its token does nothing; a schedule that is not as it was seen is left alone; for
//! the others ticks are written, events published and tasks submitted by the same code that does so for everybody, and the next
//! tick is set. Everything was decided from the *stored* `next_at`, and is swapped for it in that one transaction. So a death
//! between any two statements undoes all of it, and a second leader, or the same one that asks twice, finds another `next_at`: no
//! tick is lost, and none fires twice. The key of `tenure_ticks` holds even if somebody puts `next_at` back.
//!
//! Each step is one statement for all schedules, and one for each topic and queue: ten thousand firings are a few dozen trips to
//! the connection's thread.
//!
//! A tick whose run may not overlap with the next is `tracked`: its run is under way until its task is finished. Each firing takes
//! the mark from those that are over, so that the next look counts those that are not, and few others.

mod due;
mod effects;
mod fire;
mod hand;
mod people;
mod prune;
mod views;

use async_trait::async_trait;
use tenure_core::port::{
    Calendar, DueLook, Fire, Fired, Hand, HandFired, Pause, ScheduleFilter, ScheduleKey, ScheduleSet,
    ScheduleStats, ScheduleView, Scheduling, SetSchedule, StoreError, TickFilter, TickView,
};
use tenure_core::{SessionId, Token};

use super::Sqlite;
use super::call::{Failed, Told, json, number};

#[async_trait]
impl Scheduling for Sqlite {
    async fn due(&self, limit: u32) -> Result<DueLook, StoreError> {
        self.in_place()?;
        self.due_schedules(limit).await.told(self, "looking for what is due")
    }

    async fn fire(&self, fire: &Fire) -> Result<Option<Vec<Fired>>, StoreError> {
        self.in_place()?;
        self.fire_schedules(fire).await.told(self, "firing schedules")
    }

    async fn prune_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        self.in_place()?;
        self.forget_ticks(session, token, limit).await.told(self, "forgetting old ticks")
    }
}

#[async_trait]
impl Calendar for Sqlite {
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        self.in_place()?;
        self.schedule_views(filter).await.told(self, "listing schedules")
    }

    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        self.in_place()?;
        self.show_schedule(key).await.told(self, "looking at a schedule")
    }

    async fn set_schedule(&self, set: &SetSchedule) -> Result<ScheduleSet, StoreError> {
        self.in_place()?;
        self.keep_schedule(set).await.told(self, "setting a schedule")
    }

    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        self.in_place()?;
        self.drop_schedule(key, expect).await.told(self, "deleting a schedule")
    }

    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        self.in_place()?;
        self.pause_schedule(key, pause).await.told(self, "pausing or resuming a schedule")
    }

    async fn fire_by_hand(&self, hand: &Hand) -> Result<Option<Vec<HandFired>>, StoreError> {
        self.in_place()?;
        self.hand_fire(hand).await.told(self, "firing a schedule by hand")
    }

    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        self.in_place()?;
        self.tick_views(filter).await.told(self, "listing ticks")
    }

    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        self.in_place()?;
        self.count_schedules().await.told(self, "counting schedules")
    }

    async fn call_secret(&self, key: &ScheduleKey) -> Result<Option<String>, StoreError> {
        self.in_place()?;
        self.secret_of(key).await.told(self, "reading the secret of a schedule")
    }
}
