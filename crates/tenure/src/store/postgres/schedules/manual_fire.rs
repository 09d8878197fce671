//! Manual firing: a trigger now, or a backfill of past ticks.

use std::collections::{HashMap, HashSet};

use tenure_core::port::{
    EventId, FiringTick, ManualFire, ManualFireOutcome, ManualFireResult, StoreError, TaskId, TickCause,
};
use tenure_core::rules::schedule::{OverlapPolicy, effect, validate_manual_fire};

use super::super::error::unexpected_response;
use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::{int, number};
use super::super::wire::PgRow;
use super::super::{PostgresStore, get};
use super::admin::StoredSchedule;
use super::ticks::{TickColumns, check_effect};
use super::{MAX_ATTEMPTS, keeps_changing, key_of};

impl PostgresStore {
    pub(super) async fn fire_ticks_manually(
        &self,
        manual: &ManualFire,
    ) -> Result<Option<Vec<ManualFireResult>>, StoreError> {
        validate_manual_fire(manual)?;
        for _ in 0..MAX_ATTEMPTS {
            let Some(stored) = self.stored(&manual.key).await? else { return Ok(None) };
            match self.try_fire_manually(manual, &stored).await? {
                ManualFireAttempt::Conflict => {}
                ManualFireAttempt::Deleted => return Ok(None),
                ManualFireAttempt::Fired(fired) => return Ok(Some(fired)),
            }
        }
        Err(keeps_changing(&manual.key))
    }

    async fn try_fire_manually(
        &self,
        manual: &ManualFire,
        stored: &StoredSchedule,
    ) -> Result<ManualFireAttempt, StoreError> {
        let definition = &stored.definition;
        let timetable = definition.timetable(&manual.key.namespace);
        let (wanted, cause) = match &manual.ticks {
            Some(ticks) => (ticks.clone(), TickCause::Backfill),
            None => (vec![stored.now_at_ms], TickCause::Trigger),
        };
        let mut seen = HashSet::new();
        let is_tick = |at_ms: i64| cause == TickCause::Trigger || timetable.is_tick(at_ms);
        let firing: Vec<FiringTick> = wanted
            .iter()
            .filter(|at_ms| is_tick(**at_ms) && seen.insert(**at_ms))
            .map(|&at_ms| FiringTick {
                tick_at_ms: at_ms,
                due_at_ms: if cause == TickCause::Trigger { at_ms } else { timetable.due_at(at_ms) },
                effect: Some(effect(&manual.key, definition, at_ms, cause, manual.payload.as_ref(), None)),
                tracked: definition.overlap_policy != OverlapPolicy::Allow,
            })
            .collect();
        if !manual.dry_run {
            let mut effects = firing.iter().filter_map(|tick| tick.effect.as_ref());
            effects.try_for_each(|effect| check_effect(effect, None))?;
        }
        let mut ticks = TickColumns::default();
        firing.iter().for_each(|tick| ticks.push(1, tick));
        let ticks = ticks.encode()?;
        let [namespace, name] = key_of(&manual.key);
        let is_trigger = cause == TickCause::Trigger;
        let mut values = vec![
            namespace,
            name,
            int(stored.version),
            is_trigger.into(),
            manual.dry_run.into(),
            manual.requested_by.as_str().into(),
        ];
        values.extend(ticks.values());
        let message = Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        let rows = self.shared.calls.run(message.then("schedule_fire_manually", &values)?).await?;
        if rows.is_empty() && !firing.is_empty() {
            return Ok(ManualFireAttempt::Deleted);
        }
        let mut outcomes = HashMap::new();
        for row in &rows {
            let index: usize = number(get::<i32>(row, "index")?, "an index")?;
            let Some(outcome) = outcome(row)? else { return Ok(ManualFireAttempt::Conflict) };
            outcomes.insert(
                firing.get(index).ok_or_else(|| unexpected_response("a tick", index))?.tick_at_ms,
                outcome,
            );
        }
        // A tick that the request lists twice fires once; its second result is `AlreadyFired`.
        let fired = wanted.into_iter().map(|at_ms| {
            let outcome = outcomes.get_mut(&at_ms);
            let outcome = outcome.map(|outcome| std::mem::replace(outcome, ManualFireOutcome::AlreadyFired));
            ManualFireResult { tick_at_ms: at_ms, outcome: outcome.unwrap_or(ManualFireOutcome::NotATick) }
        });
        Ok(ManualFireAttempt::Fired(fired.collect()))
    }
}

/// The result of one attempt to fire manually.
enum ManualFireAttempt {
    /// The schedule changed meanwhile.
    Conflict,
    /// The schedule was deleted.
    Deleted,
    Fired(Vec<ManualFireResult>),
}

/// The outcome of a tick; `None` if the schedule changed meanwhile.
fn outcome(row: &PgRow) -> Result<Option<ManualFireOutcome>, StoreError> {
    let id = |column| get::<Option<i64>>(row, column)?.map(|id| number(id, column)).transpose();
    Ok(match get::<&str>(row, "outcome")? {
        "fired" => Some(ManualFireOutcome::Fired {
            event_id: id("event_id")?.map(EventId),
            task_id: id("task_id")?.map(TaskId),
        }),
        "already_fired" => Some(ManualFireOutcome::AlreadyFired),
        "in_future" => Some(ManualFireOutcome::InFuture),
        "pruned" => Some(ManualFireOutcome::Pruned),
        "conflict" => None,
        other => return Err(unexpected_response("the outcome of a tick", other)),
    })
}
