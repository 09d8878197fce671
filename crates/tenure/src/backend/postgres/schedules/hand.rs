//! Firing by hand: now, or past ticks after all.

use std::collections::{HashMap, HashSet};

use tenure_core::port::{Cause, EventId, FiringTick, Hand, HandFired, HandOutcome, StoreError, TaskId};
use tenure_core::schedule::{Overlap, check_hand, effect};

use super::super::error::garbled;
use super::super::message::{Message, STRICT};
use super::super::store::{int, number};
use super::super::wire::PgRow;
use super::super::{Postgres, get};
use super::set::Stored;
use super::ticks::{Ticks, check_effect};
use super::{TRIES, key_of, restless};

impl Postgres {
    pub(super) async fn fire_some(&self, hand: &Hand) -> Result<Option<Vec<HandFired>>, StoreError> {
        check_hand(hand)?;
        for _ in 0..TRIES {
            let Some(stored) = self.stored(&hand.key).await? else { return Ok(None) };
            match self.try_by_hand(hand, &stored).await? {
                Tried::Changed => {}
                Tried::Gone => return Ok(None),
                Tried::Fired(fired) => return Ok(Some(fired)),
            }
        }
        Err(restless(&hand.key))
    }

    async fn try_by_hand(&self, hand: &Hand, stored: &Stored) -> Result<Tried, StoreError> {
        let definition = &stored.definition;
        let timetable = definition.timetable(&hand.key.namespace);
        let (wanted, cause) = match &hand.ticks {
            Some(ticks) => (ticks.clone(), Cause::Backfill),
            None => (vec![stored.now_ms], Cause::Trigger),
        };
        let mut seen = HashSet::new();
        let is_tick = |at_ms: i64| cause == Cause::Trigger || timetable.is_tick(at_ms);
        let given: Vec<FiringTick> = wanted
            .iter()
            .filter(|at_ms| is_tick(**at_ms) && seen.insert(**at_ms))
            .map(|&at_ms| FiringTick {
                at_ms,
                due_ms: if cause == Cause::Trigger { at_ms } else { timetable.due_at(at_ms) },
                effect: Some(effect(&hand.key, definition, at_ms, cause, hand.payload.as_ref(), None)),
                tracked: definition.overlap != Overlap::Allow,
            })
            .collect();
        if !hand.dry_run {
            let mut effects = given.iter().filter_map(|tick| tick.effect.as_ref());
            effects.try_for_each(|effect| check_effect(effect, None))?;
        }
        let mut ticks = Ticks::default();
        given.iter().for_each(|tick| ticks.push(1, tick));
        let ticks = ticks.written()?;
        let [namespace, name] = key_of(&hand.key);
        let is_now = cause == Cause::Trigger;
        let mut values = vec![
            namespace,
            name,
            int(stored.version),
            is_now.into(),
            hand.dry_run.into(),
            hand.by.as_str().into(),
        ];
        values.extend(ticks.values());
        let message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        let rows = self.shared.calls.run(message.then("schedule_fire_by_hand", &values)?).await?;
        if rows.is_empty() && !given.is_empty() {
            return Ok(Tried::Gone);
        }
        let mut outcomes = HashMap::new();
        for row in &rows {
            let place: usize = number(get::<i32>(row, "n")?, "a tick's place")?;
            let Some(outcome) = outcome(row)? else { return Ok(Tried::Changed) };
            outcomes.insert(given.get(place).ok_or_else(|| garbled("a tick", place))?.at_ms, outcome);
        }
        // What is named a second time was decided about the first time.
        let fired = wanted.into_iter().map(|at_ms| {
            let said = outcomes.get_mut(&at_ms);
            let said = said.map(|outcome| std::mem::replace(outcome, HandOutcome::Already));
            HandFired { at_ms, outcome: said.unwrap_or(HandOutcome::NoTick) }
        });
        Ok(Tried::Fired(fired.collect()))
    }
}

/// What came of an attempt.
enum Tried {
    /// Something else came first.
    Changed,
    /// There is no such schedule any more.
    Gone,
    Fired(Vec<HandFired>),
}

/// What came of a tick; `None`: the schedule is not what it was.
fn outcome(row: &PgRow) -> Result<Option<HandOutcome>, StoreError> {
    let id = |column| get::<Option<i64>>(row, column)?.map(|id| number(id, column)).transpose();
    Ok(match get::<&str>(row, "outcome")? {
        "fired" => {
            Some(HandOutcome::Fired { event: id("event")?.map(EventId), task: id("task")?.map(TaskId) })
        }
        "already" => Some(HandOutcome::Already),
        "ahead" => Some(HandOutcome::Ahead),
        "forgotten" => Some(HandOutcome::Forgotten),
        "changed" => None,
        other => return Err(garbled("what came of a tick", other)),
    })
}
