//! Schedules in memory: the ledger, asked under the mutex.

use async_trait::async_trait;
use tenure_core::port::{
    Calendar, DueLook, Fire, Fired, Hand, HandFired, Pause, ScheduleFilter, ScheduleKey, ScheduleSet,
    ScheduleStats, ScheduleView, Scheduling, SetSchedule, StoreError, TickFilter, TickView,
};
use tenure_core::{SessionId, Token};

use super::Memory;

#[async_trait]
impl Scheduling for Memory {
    async fn due(&self, limit: u32) -> Result<DueLook, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.due(limit, now)))
    }

    async fn fire(&self, fire: &Fire) -> Result<Option<Vec<Fired>>, StoreError> {
        self.with_ledger(|ledger, book, now| ledger.fire(fire, book, now))
    }

    async fn prune_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        Ok(self.with_ledger(|ledger, book, now| ledger.prune_ticks(session, token, limit, book, now)))
    }
}

#[async_trait]
impl Calendar for Memory {
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        Ok(self.locked().ledger.schedules(filter))
    }

    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        Ok(self.locked().ledger.schedule(key))
    }

    async fn set_schedule(&self, set: &SetSchedule) -> Result<ScheduleSet, StoreError> {
        self.with_ledger(|ledger, _, now| ledger.set_schedule(set, now))
    }

    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        Ok(self.with_ledger(|ledger, _, _| ledger.delete_schedule(key, expect)))
    }

    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        Ok(self.with_ledger(|ledger, _, _| ledger.set_schedule_paused(key, pause)))
    }

    async fn fire_by_hand(&self, hand: &Hand) -> Result<Option<Vec<HandFired>>, StoreError> {
        self.with_ledger(|ledger, _, now| ledger.fire_by_hand(hand, now))
    }

    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        Ok(self.locked().ledger.ticks(filter))
    }

    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        Ok(self.with_ledger(|ledger, _, now| ledger.schedule_stats(now)))
    }

    async fn call_secret(&self, key: &ScheduleKey) -> Result<Option<String>, StoreError> {
        Ok(self.locked().ledger.call_secret(key))
    }
}
