//! Due schedules and firing.

use super::effects::TickEffects;
use super::{ScheduleRecord, SchedulesState, SkippedTicksRecord, TickRecord, Work};
use crate::Token;
use crate::model::work::LeaseObservation;
use crate::port::{
    DUE_MAX, DueResponse, DueSchedule, FireOutcome, FireRequest, FiringTick, ScheduleFiring, ScheduleKey,
    StoreError, TaskId, TickCause, TickOutcome,
};
use crate::rules::schedule::{OverlapPolicy, UnfinishedRuns, unfinished_runs, validate_fire};
use crate::rules::work::clip;

impl Work {
    /// See [`ScheduleStore::due_schedules`](crate::port::ScheduleStore::due_schedules).
    pub fn due_schedules(&self, limit: u32, now_ms: i64) -> DueResponse {
        let limit = limit.clamp(1, DUE_MAX) as usize;
        let is_due = |(due_ms, _): &&(i64, ScheduleKey)| *due_ms <= now_ms;
        let due = self.schedules_state.due.iter().take_while(is_due).take(limit);
        let these: Vec<&ScheduleKey> = due.map(|(_, key)| key).collect();
        let next = self.schedules_state.due.iter().nth(these.len()).map(|(due_ms, _)| *due_ms);
        DueResponse {
            has_more: next.is_some_and(|due_ms| due_ms <= now_ms),
            schedules: these.into_iter().filter_map(|key| self.due_schedule(key)).collect(),
            store_now_at_ms: now_ms,
            next_due_at_ms: next,
        }
    }

    fn due_schedule(&self, key: &ScheduleKey) -> Option<DueSchedule> {
        let schedule = self.schedules_state.schedules.get(key)?;
        Some(DueSchedule {
            key: key.clone(),
            version: schedule.version,
            definition: schedule.definition.clone(),
            tick_state: schedule.progress?,
            unfinished_runs: self.load(schedule),
            consecutive_failures: schedule.consecutive_failures,
        })
    }

    fn load(&self, schedule: &ScheduleRecord) -> UnfinishedRuns {
        if schedule.definition.overlap_policy == OverlapPolicy::Allow {
            return UnfinishedRuns::default();
        }
        let unfinished = schedule.unfinished.iter().filter(|task| self.is_unfinished(**task));
        unfinished_runs(unfinished.count() as u64)
    }

    /// See [`ScheduleStore::fire`](crate::port::ScheduleStore::fire).
    pub fn fire(
        &mut self,
        fire: &FireRequest,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Result<Option<Vec<FireOutcome>>, StoreError> {
        validate_fire(fire)?;
        let Some(by) = observation.scheduler(&fire.session, fire.token) else { return Ok(None) };
        let mut effects = TickEffects::default();
        let mut fired = Vec::with_capacity(fire.firings.len());
        for firing in &fire.firings {
            // Check every firing against the same state: no effect is applied yet, and each schedule occurs once.
            fired.push(self.judge(firing));
            if fired.last() == Some(&FireOutcome::Fired) {
                self.schedules_state.advance(firing, fire.token, &by, now_ms, &mut effects);
                self.drop_finished_runs(&firing.key);
            }
        }
        self.perform(effects, now_ms)?;
        Ok(Some(fired))
    }

    fn judge(&self, firing: &ScheduleFiring) -> FireOutcome {
        if !self.schedules_state.schedules.get(&firing.key).is_some_and(|schedule| schedule.stands(firing)) {
            return FireOutcome::Stale;
        }
        let effects = firing.ticks.iter().filter_map(|tick| tick.effect.as_ref());
        let refused = effects.map(|effect| self.check_effect(effect)).find_map(Result::err);
        match refused.filter(|_| firing.error.is_none()) {
            Some(error) => FireOutcome::Rejected(error.message),
            None => FireOutcome::Fired,
        }
    }

    /// Removes finished tasks from the unfinished runs.
    fn drop_finished_runs(&mut self, key: &ScheduleKey) {
        let Some(schedule) = self.schedules_state.schedules.get(key) else { return };
        let over = schedule.unfinished.iter().filter(|task| !self.is_unfinished(**task));
        let over: Vec<TaskId> = over.copied().collect();
        if let Some(schedule) = self.schedules_state.schedules.get_mut(key) {
            over.iter().for_each(|task| {
                schedule.unfinished.remove(task);
            });
        }
    }
}

impl ScheduleRecord {
    /// Whether the schedule is unchanged since it was read.
    fn stands(&self, firing: &ScheduleFiring) -> bool {
        let next = self.progress.map(|progress| progress.next_tick_at_ms);
        self.version == firing.version && next == Some(firing.next_tick_at_ms) && self.paused.is_none()
    }
}

impl SchedulesState {
    /// Applies a decision to a schedule and collects its ticks.
    fn advance(
        &mut self,
        firing: &ScheduleFiring,
        token: Token,
        by: &str,
        now_ms: i64,
        effects: &mut TickEffects,
    ) {
        let Some(schedule) = self.schedules.get_mut(&firing.key) else { return };
        if let Some(last_error) = &firing.error {
            schedule.last_error = Some(clip(last_error));
            schedule.consecutive_failures = schedule.consecutive_failures.saturating_add(1);
            self.put_due(&firing.key, firing.due_at_ms);
            return;
        }
        (schedule.last_error, schedule.consecutive_failures) = (None, 0);
        schedule.progress = firing.tick_state;
        for tick in &firing.ticks {
            // A tick that was decided before does not fire again, even if the stored next tick was moved back.
            if schedule.knows(tick.tick_at_ms) {
                continue;
            }
            let row = decided(tick, token, by, now_ms);
            match row.state {
                TickOutcome::Fired => {
                    schedule.fired += 1;
                    schedule.last_fired_ms = Some(now_ms);
                }
                _ => schedule.overlapped += 1,
            }
            effects.add(&firing.key, tick.tick_at_ms, row, tick.effect.as_ref());
        }
        if let Some(range) = firing.skipped {
            schedule.skipped = schedule.skipped.saturating_add(range.tick_count);
            self.put_skip(
                &firing.key,
                SkippedTicksRecord { range, decided_ms: now_ms, token, by: by.into() },
            );
        }
        self.put_due(&firing.key, firing.due_at_ms);
    }
}

fn decided(tick: &FiringTick, token: Token, by: &str, now_ms: i64) -> TickRecord {
    TickRecord {
        state: if tick.effect.is_some() { TickOutcome::Fired } else { TickOutcome::Overlapped },
        cause: TickCause::Schedule,
        due_ms: tick.due_at_ms,
        decided_ms: now_ms,
        token: Some(token),
        by: by.into(),
        event: None,
        task: None,
        tracked: tick.tracked && tick.effect.is_some(),
    }
}
