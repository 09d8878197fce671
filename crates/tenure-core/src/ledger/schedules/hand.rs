//! Firing by hand: one now, or past ticks that did not.

use std::collections::HashSet;

use super::effects::Volley;
use super::{Ledger, Schedule, Tick};
use crate::Name;
use crate::port::{Cause, Hand, HandFired, HandOutcome, StoreError, TickState};
use crate::schedule::{Overlap, check_hand, effect};

/// What is said of a tick that fires, before it is known what comes of it.
const TO_FIRE: HandOutcome = HandOutcome::Fired { event: None, task: None };

impl Ledger {
    /// See [`Calendar::fire_by_hand`](crate::port::Calendar::fire_by_hand).
    pub fn fire_by_hand(&mut self, hand: &Hand, now_ms: i64) -> Result<Option<Vec<HandFired>>, StoreError> {
        check_hand(hand)?;
        let Some(schedule) = self.agenda.schedules.get(&hand.key) else { return Ok(None) };
        let mut said = match &hand.ticks {
            None => vec![HandFired { at_ms: schedule.free_instant(now_ms), outcome: TO_FIRE }],
            Some(ticks) => schedule.past(&hand.key.namespace, ticks),
        };
        if hand.dry_run {
            return Ok(Some(said));
        }
        let volley = self.gather(hand, schedule, &said, now_ms)?;
        let count = volley.ticks.len() as u64;
        let mut came = self.perform(volley, now_ms)?.into_iter();
        for it in said.iter_mut().filter(|it| it.outcome == TO_FIRE) {
            if let Some((_, tick)) = came.next() {
                it.outcome = HandOutcome::Fired { event: tick.event, task: tick.task };
            }
        }
        if let Some(schedule) = self.agenda.schedules.get_mut(&hand.key).filter(|_| count > 0) {
            schedule.fired += count;
            schedule.last_fired_ms = Some(now_ms);
        }
        Ok(Some(said))
    }

    /// The ticks that fire and what they do. Refused if one of them can not.
    fn gather(
        &self,
        hand: &Hand,
        schedule: &Schedule,
        said: &[HandFired],
        now_ms: i64,
    ) -> Result<Volley, StoreError> {
        let definition = &schedule.definition;
        let timetable = definition.timetable(&hand.key.namespace);
        let cause = if hand.ticks.is_none() { Cause::Trigger } else { Cause::Backfill };
        let mut volley = Volley::default();
        for HandFired { at_ms, .. } in said.iter().filter(|it| it.outcome == TO_FIRE) {
            let effect = effect(&hand.key, definition, *at_ms, cause, hand.payload.as_ref(), None);
            self.check_effect(&effect)?;
            let tick = Tick {
                state: TickState::Fired,
                cause,
                // One that is wanted now is due now.
                due_ms: if cause == Cause::Trigger { *at_ms } else { timetable.due_at(*at_ms) },
                decided_ms: now_ms,
                token: None,
                by: hand.by.clone(),
                event: None,
                task: None,
                tracked: definition.overlap != Overlap::Allow,
            };
            volley.add(&hand.key, *at_ms, tick, Some(&effect));
        }
        Ok(volley)
    }
}

impl Schedule {
    /// Now; or a little later, if somebody has fired it by hand in this very millisecond.
    fn free_instant(&self, now_ms: i64) -> i64 {
        (now_ms..).find(|at_ms| !self.ticks.contains_key(&(*at_ms, true))).unwrap_or(now_ms)
    }

    /// What is to be said of each of these.
    fn past(&self, namespace: &Name, ticks: &[i64]) -> Vec<HandFired> {
        let timetable = self.definition.timetable(namespace);
        let next_at_ms = self.progress.map_or(i64::MAX, |progress| progress.next_at_ms);
        let mut seen = HashSet::with_capacity(ticks.len());
        let outcome = |at_ms: i64| match () {
            () if !timetable.is_tick(at_ms) => HandOutcome::NoTick,
            () if self.knows(at_ms) || !seen.insert(at_ms) => HandOutcome::Already,
            () if at_ms >= next_at_ms => HandOutcome::Ahead,
            () if self.has_forgotten(at_ms) => HandOutcome::Forgotten,
            () => TO_FIRE,
        };
        let outcomes: Vec<HandOutcome> = ticks.iter().copied().map(outcome).collect();
        ticks.iter().zip(outcomes).map(|(at_ms, outcome)| HandFired { at_ms: *at_ms, outcome }).collect()
    }
}
