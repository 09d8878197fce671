//! Firing by hand: one now, or past ticks that did not.

use std::collections::HashSet;

use sqlx::Row;
use tenure_core::port::{Cause, EventId, Hand, HandFired, HandOutcome, TaskId};
use tenure_core::schedule::{Definition, Overlap, Progress, check_hand, effect};

use super::super::Sqlite;
use super::super::change::{Change, of_key};
use super::super::connection::query;
use super::super::directory::json as read_json;
use super::effects::{Effects, Tick};
use super::views::progress;
use super::{Failed, number};

/// What a schedule that fires by hand is.
struct Subject {
    id: i64,
    definition: Definition,
    progress: Option<Progress>,
    /// The newest of its ticks that was forgotten.
    forgotten_at: Option<i64>,
}

impl Sqlite {
    pub(super) async fn hand_fire(&self, hand: &Hand) -> Result<Option<Vec<HandFired>>, Failed> {
        check_hand(hand)?;
        let mut change = self.change().await?;
        let Some(row) = change.transaction.one(of_key!(self, "schedule_show", hand.key)).await? else {
            change.commit().await?;
            return Ok(None);
        };
        let (id, definition) = (row.try_get("id")?, read_json(&row, "definition")?);
        let forgotten_at = row.try_get("forgotten_at")?;
        let subject = Subject { id, definition, progress: progress(&row)?, forgotten_at };
        let mut fired = match &hand.ticks {
            None => vec![HandFired { at_ms: change.free_instant(id).await?, outcome: TO_FIRE }],
            Some(ticks) => change.past(hand, &subject, ticks).await?,
        };
        if !hand.dry_run {
            change.fire_these(hand, &subject, &mut fired).await?;
        }
        change.commit().await?;
        Ok(Some(fired))
    }
}

/// What is said of a tick that fires, before it is known what came of it.
const TO_FIRE: HandOutcome = HandOutcome::Fired { event: None, task: None };

impl Change<'_> {
    /// Now; or a little later, if somebody has fired it by hand in this very millisecond.
    async fn free_instant(&mut self, schedule: i64) -> Result<i64, Failed> {
        let free = query(self.store.queries.get("tick_free")).bind(schedule).bind(self.wall_ms);
        let row = self.transaction.one(free).await?;
        Ok(row.map_or(Ok(self.wall_ms), |row| row.try_get(0))?)
    }

    /// What is to be said of each of these.
    async fn past(
        &mut self,
        hand: &Hand,
        subject: &Subject,
        ticks: &[i64],
    ) -> Result<Vec<HandFired>, Failed> {
        let timetable = subject.definition.timetable(&hand.key.namespace);
        let pairs: Vec<(i64, i64)> = ticks.iter().map(|at_ms| (subject.id, *at_ms)).collect();
        let known = self.known_ticks(&pairs).await?;
        let next_at_ms = subject.progress.map_or(i64::MAX, |progress| progress.next_at_ms);
        let mut seen = HashSet::with_capacity(ticks.len());
        let outcome = |(place, &at_ms): (usize, &i64)| {
            let outcome = match () {
                () if !timetable.is_tick(at_ms) => HandOutcome::NoTick,
                () if known.contains(&place) || !seen.insert(at_ms) => HandOutcome::Already,
                () if at_ms >= next_at_ms => HandOutcome::Ahead,
                () if subject.forgotten_at.is_some_and(|newest| at_ms <= newest) => HandOutcome::Forgotten,
                () => TO_FIRE,
            };
            HandFired { at_ms, outcome }
        };
        Ok(ticks.iter().enumerate().map(outcome).collect())
    }

    /// Fires those that are to, and says what came of them.
    async fn fire_these(
        &mut self,
        hand: &Hand,
        subject: &Subject,
        fired: &mut [HandFired],
    ) -> Result<(), Failed> {
        let definition = &subject.definition;
        let timetable = definition.timetable(&hand.key.namespace);
        let tracked = definition.overlap != Overlap::Allow;
        let cause = if hand.ticks.is_none() { Cause::Trigger } else { Cause::Backfill };
        let mut to_fire: Vec<&mut HandFired> =
            fired.iter_mut().filter(|it| matches!(it.outcome, HandOutcome::Fired { .. })).collect();
        let doing =
            |it: &&mut HandFired| effect(&hand.key, definition, it.at_ms, cause, hand.payload.as_ref(), None);
        let all: Vec<_> = to_fire.iter().map(doing).collect();
        let topics = self.topics_of(all.iter()).await?;
        let (mut effects, mut ticks) = (Effects::default(), Vec::with_capacity(all.len()));
        for (it, effect) in to_fire.iter().zip(&all) {
            topics.check(effect)?;
            effects.add(ticks.len(), effect);
            // One that is wanted now is due now.
            let due_ms = if cause == Cause::Trigger { it.at_ms } else { timetable.due_at(it.at_ms) };
            ticks.push(Tick { tracked, ..Tick::new(subject.id, it.at_ms, due_ms, cause) });
        }
        self.perform(effects, &mut ticks).await?;
        self.put_ticks(&ticks, None, &hand.by).await?;
        for (it, tick) in to_fire.iter_mut().zip(&ticks) {
            let event = tick.event.map(|id| EventId(id.cast_unsigned()));
            it.outcome = HandOutcome::Fired { event, task: tick.task.map(|id| TaskId(id.cast_unsigned())) };
        }
        if !ticks.is_empty() {
            let count = query(self.store.queries.get("schedule_hand_fired")).bind(subject.id);
            let count = count.bind(number(ticks.len() as u64)).bind(self.wall_ms);
            self.transaction.execute(count).await?;
        }
        Ok(())
    }
}
