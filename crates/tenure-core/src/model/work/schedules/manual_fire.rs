//! Manual firing: one tick now, or past ticks that have not fired.

use std::collections::HashSet;

use super::effects::TickEffects;
use super::{ScheduleRecord, TickRecord, Work};
use crate::Name;
use crate::port::{ManualFire, ManualFireOutcome, ManualFireResult, StoreError, TickCause, TickOutcome};
use crate::rules::schedule::{OverlapPolicy, effect, validate_manual_fire};

/// Outcome of a tick that fires, before the ids of its event or task are known.
const TO_FIRE: ManualFireOutcome = ManualFireOutcome::Fired { event_id: None, task_id: None };

impl Work {
    /// See [`ScheduleAdmin::fire_manually`](crate::port::ScheduleAdmin::fire_manually).
    pub fn fire_manually(
        &mut self,
        manual_fire: &ManualFire,
        now_ms: i64,
    ) -> Result<Option<Vec<ManualFireResult>>, StoreError> {
        validate_manual_fire(manual_fire)?;
        let Some(schedule) = self.schedules_state.schedules.get(&manual_fire.key) else { return Ok(None) };
        let mut outcomes = match &manual_fire.ticks {
            None => vec![ManualFireResult { tick_at_ms: schedule.free_instant(now_ms), outcome: TO_FIRE }],
            Some(ticks) => schedule.past(&manual_fire.key.namespace, ticks),
        };
        if manual_fire.dry_run {
            return Ok(Some(outcomes));
        }
        let effects = self.gather(manual_fire, schedule, &outcomes, now_ms)?;
        let count = effects.ticks.len() as u64;
        let mut came = self.perform(effects, now_ms)?.into_iter();
        for it in outcomes.iter_mut().filter(|it| it.outcome == TO_FIRE) {
            if let Some((_, tick)) = came.next() {
                it.outcome = ManualFireOutcome::Fired { event_id: tick.event, task_id: tick.task };
            }
        }
        if let Some(schedule) = self.schedules_state.schedules.get_mut(&manual_fire.key).filter(|_| count > 0)
        {
            schedule.fired += count;
            schedule.last_fired_ms = Some(now_ms);
        }
        Ok(Some(outcomes))
    }

    /// The ticks that fire, with their effects. Fails if the target rejects one of them.
    fn gather(
        &self,
        manual_fire: &ManualFire,
        schedule: &ScheduleRecord,
        outcomes: &[ManualFireResult],
        now_ms: i64,
    ) -> Result<TickEffects, StoreError> {
        let definition = &schedule.definition;
        let timetable = definition.timetable(&manual_fire.key.namespace);
        let cause = if manual_fire.ticks.is_none() { TickCause::Trigger } else { TickCause::Backfill };
        let mut effects = TickEffects::default();
        for ManualFireResult { tick_at_ms: at_ms, .. } in outcomes.iter().filter(|it| it.outcome == TO_FIRE) {
            let effect =
                effect(&manual_fire.key, definition, *at_ms, cause, manual_fire.payload.as_ref(), None);
            self.check_effect(&effect)?;
            let tick = TickRecord {
                state: TickOutcome::Fired,
                cause,
                // A triggered tick is due at its own instant, without jitter.
                due_ms: if cause == TickCause::Trigger { *at_ms } else { timetable.due_at(*at_ms) },
                decided_ms: now_ms,
                token: None,
                by: manual_fire.requested_by.clone(),
                event: None,
                task: None,
                tracked: definition.overlap_policy != OverlapPolicy::Allow,
            };
            effects.add(&manual_fire.key, *at_ms, tick, Some(&effect));
        }
        Ok(effects)
    }
}

impl ScheduleRecord {
    /// The current instant, or the next free millisecond if a tick was already triggered at this instant.
    fn free_instant(&self, now_ms: i64) -> i64 {
        (now_ms..).find(|at_ms| !self.ticks.contains_key(&(*at_ms, true))).unwrap_or(now_ms)
    }

    /// The outcome of each of these past ticks.
    fn past(&self, namespace: &Name, ticks: &[i64]) -> Vec<ManualFireResult> {
        let timetable = self.definition.timetable(namespace);
        let next_at_ms = self.progress.map_or(i64::MAX, |progress| progress.next_tick_at_ms);
        let mut seen = HashSet::with_capacity(ticks.len());
        let outcome = |at_ms: i64| match () {
            () if !timetable.is_tick(at_ms) => ManualFireOutcome::NotATick,
            () if self.knows(at_ms) || !seen.insert(at_ms) => ManualFireOutcome::AlreadyFired,
            () if at_ms >= next_at_ms => ManualFireOutcome::InFuture,
            () if self.may_be_pruned(at_ms) => ManualFireOutcome::Pruned,
            () => TO_FIRE,
        };
        let outcomes: Vec<ManualFireOutcome> = ticks.iter().copied().map(outcome).collect();
        ticks
            .iter()
            .zip(outcomes)
            .map(|(at_ms, outcome)| ManualFireResult { tick_at_ms: *at_ms, outcome })
            .collect()
    }
}
