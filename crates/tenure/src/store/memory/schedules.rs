//! Schedules of the in-memory store.

use async_trait::async_trait;
use tenure_core::port::{
    DueResponse, FireOutcome, FireRequest, ManualFire, ManualFireResult, Pause, ScheduleAdmin,
    ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleStore, ScheduleView, SetScheduleOutcome,
    SetScheduleRequest, StoreError, TickFilter, TickView,
};
use tenure_core::{SessionId, Token};

use super::MemoryStore;

#[async_trait]
impl ScheduleStore for MemoryStore {
    async fn due_schedules(&self, limit: u32) -> Result<DueResponse, StoreError> {
        Ok(self.with_work(|work, _, now| work.due_schedules(limit, now)))
    }

    async fn fire(&self, fire: &FireRequest) -> Result<Option<Vec<FireOutcome>>, StoreError> {
        self.with_work(|work, elections, now| work.fire(fire, elections, now))
    }

    async fn prune_ticks(
        &self,
        session: &SessionId,
        token: Token,
        limit: u32,
    ) -> Result<(u64, bool), StoreError> {
        Ok(self.with_work(|work, elections, now| work.prune_ticks(session, token, limit, elections, now)))
    }
}

#[async_trait]
impl ScheduleAdmin for MemoryStore {
    async fn schedules(&self, filter: &ScheduleFilter) -> Result<Vec<ScheduleView>, StoreError> {
        Ok(self.lock_state().work.schedules(filter))
    }

    async fn schedule(&self, key: &ScheduleKey) -> Result<Option<ScheduleView>, StoreError> {
        Ok(self.lock_state().work.schedule(key))
    }

    async fn set_schedule(&self, set: &SetScheduleRequest) -> Result<SetScheduleOutcome, StoreError> {
        self.with_work(|work, _, now| work.set_schedule(set, now))
    }

    async fn delete_schedule(
        &self,
        key: &ScheduleKey,
        expect: Option<u64>,
    ) -> Result<Option<bool>, StoreError> {
        Ok(self.with_work(|work, _, _| work.delete_schedule(key, expect)))
    }

    async fn set_schedule_paused(
        &self,
        key: &ScheduleKey,
        pause: Option<&Pause>,
    ) -> Result<Option<bool>, StoreError> {
        Ok(self.with_work(|work, _, _| work.set_schedule_paused(key, pause)))
    }

    async fn fire_manually(&self, request: &ManualFire) -> Result<Option<Vec<ManualFireResult>>, StoreError> {
        self.with_work(|work, _, now| work.fire_manually(request, now))
    }

    async fn ticks(&self, filter: &TickFilter) -> Result<Vec<TickView>, StoreError> {
        Ok(self.lock_state().work.ticks(filter))
    }

    async fn schedule_stats(&self) -> Result<Vec<ScheduleStats>, StoreError> {
        Ok(self.with_work(|work, _, now| work.schedule_stats(now)))
    }

    async fn webhook_secret(&self, key: &ScheduleKey) -> Result<Option<String>, StoreError> {
        Ok(self.lock_state().work.webhook_secret(key))
    }
}
