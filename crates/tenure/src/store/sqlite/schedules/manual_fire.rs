//! Manual firing: one extra tick now, or past ticks that have not fired.

use std::collections::HashSet;

use sqlx::Row;
use tenure_core::port::{EventId, ManualFire, ManualFireOutcome, ManualFireResult, TaskId, TickCause};
use tenure_core::rules::schedule::{
    OverlapPolicy, ScheduleDefinition, ScheduleTickState, effect, validate_manual_fire,
};

use super::super::SqliteStore;
use super::super::connection::query;
use super::super::election_admin::json as read_json;
use super::super::write_transaction::{WriteTransaction, of_key};
use super::effects::{TickEffects, TickRow};
use super::views::tick_state;
use super::{CallError, number};

/// The schedule of a manual fire.
struct ManualFireSchedule {
    id: i64,
    definition: ScheduleDefinition,
    tick_state: Option<ScheduleTickState>,
    /// The newest pruned tick.
    pruned_until_ms: Option<i64>,
}

impl SqliteStore {
    pub(super) async fn fire_manual_ticks(
        &self,
        request: &ManualFire,
    ) -> Result<Option<Vec<ManualFireResult>>, CallError> {
        validate_manual_fire(request)?;
        let mut tx = self.begin_write().await?;
        let Some(row) = tx.transaction.one(of_key!(self, "schedule_get", request.key)).await? else {
            tx.commit().await?;
            return Ok(None);
        };
        let (id, definition) = (row.try_get("id")?, read_json(&row, "definition")?);
        let pruned_until_ms = row.try_get("pruned_until_at_ms")?;
        let schedule = ManualFireSchedule { id, definition, tick_state: tick_state(&row)?, pruned_until_ms };
        let mut fired = match &request.ticks {
            None => vec![ManualFireResult { tick_at_ms: tx.first_free_instant(id).await?, outcome: PENDING }],
            Some(ticks) => tx.check_ticks(request, &schedule, ticks).await?,
        };
        if !request.dry_run {
            tx.fire_ticks(request, &schedule, &mut fired).await?;
        }
        tx.commit().await?;
        Ok(Some(fired))
    }
}

/// The outcome of a tick that will fire, before its ids are known.
const PENDING: ManualFireOutcome = ManualFireOutcome::Fired { event_id: None, task_id: None };

impl WriteTransaction<'_> {
    /// The current instant, or a later one if a manual tick exists in this millisecond.
    async fn first_free_instant(&mut self, schedule: i64) -> Result<i64, CallError> {
        let select = query(self.store.queries.get("tick_first_free")).bind(schedule).bind(self.wall_ms);
        let row = self.transaction.one(select).await?;
        Ok(row.map_or(Ok(self.wall_ms), |row| row.try_get(0))?)
    }

    /// The outcome of each tick, before firing.
    async fn check_ticks(
        &mut self,
        request: &ManualFire,
        schedule: &ManualFireSchedule,
        ticks: &[i64],
    ) -> Result<Vec<ManualFireResult>, CallError> {
        let timetable = schedule.definition.timetable(&request.key.namespace);
        let pairs: Vec<(i64, i64)> = ticks.iter().map(|tick_at_ms| (schedule.id, *tick_at_ms)).collect();
        let decided = self.find_decided(&pairs).await?;
        let next_tick_at_ms = schedule.tick_state.map_or(i64::MAX, |tick_state| tick_state.next_tick_at_ms);
        let mut seen = HashSet::with_capacity(ticks.len());
        let outcome = |(index, &tick_at_ms): (usize, &i64)| {
            let outcome = match () {
                () if !timetable.is_tick(tick_at_ms) => ManualFireOutcome::NotATick,
                () if decided.contains(&index) || !seen.insert(tick_at_ms) => ManualFireOutcome::AlreadyFired,
                () if tick_at_ms >= next_tick_at_ms => ManualFireOutcome::InFuture,
                () if schedule.pruned_until_ms.is_some_and(|newest| tick_at_ms <= newest) => {
                    ManualFireOutcome::Pruned
                }
                () => PENDING,
            };
            ManualFireResult { tick_at_ms, outcome }
        };
        Ok(ticks.iter().enumerate().map(outcome).collect())
    }

    /// Fire the pending ticks and set their outcomes.
    async fn fire_ticks(
        &mut self,
        request: &ManualFire,
        schedule: &ManualFireSchedule,
        fired: &mut [ManualFireResult],
    ) -> Result<(), CallError> {
        let definition = &schedule.definition;
        let timetable = definition.timetable(&request.key.namespace);
        let tracked = definition.overlap_policy != OverlapPolicy::Allow;
        let cause = if request.ticks.is_none() { TickCause::Trigger } else { TickCause::Backfill };
        let mut to_fire: Vec<&mut ManualFireResult> =
            fired.iter_mut().filter(|it| matches!(it.outcome, ManualFireOutcome::Fired { .. })).collect();
        let effect_of = |it: &&mut ManualFireResult| {
            effect(&request.key, definition, it.tick_at_ms, cause, request.payload.as_ref(), None)
        };
        let tick_effects: Vec<_> = to_fire.iter().map(effect_of).collect();
        let topics = self.topics_of(tick_effects.iter()).await?;
        let (mut effects, mut ticks) = (TickEffects::default(), Vec::with_capacity(tick_effects.len()));
        for (it, effect) in to_fire.iter().zip(&tick_effects) {
            topics.check(effect)?;
            effects.add(ticks.len(), effect);
            // A triggered tick is due now.
            let due_at_ms =
                if cause == TickCause::Trigger { it.tick_at_ms } else { timetable.due_at(it.tick_at_ms) };
            ticks.push(TickRow { tracked, ..TickRow::new(schedule.id, it.tick_at_ms, due_at_ms, cause) });
        }
        self.apply_effects(effects, &mut ticks).await?;
        self.put_ticks(&ticks, None, &request.requested_by).await?;
        for (it, tick) in to_fire.iter_mut().zip(&ticks) {
            let event_id = tick.event_id.map(|id| EventId(id.cast_unsigned()));
            it.outcome = ManualFireOutcome::Fired {
                event_id,
                task_id: tick.task_id.map(|id| TaskId(id.cast_unsigned())),
            };
        }
        if !ticks.is_empty() {
            let count = query(self.store.queries.get("schedule_fire_manually")).bind(schedule.id);
            let count = count.bind(number(ticks.len() as u64)).bind(self.wall_ms);
            self.transaction.execute(count).await?;
        }
        Ok(())
    }
}
