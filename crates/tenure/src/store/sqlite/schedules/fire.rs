//! Firing schedules in one transaction, under the lease of the scheduler.

use std::collections::{BTreeSet, HashSet};

use sqlx::Row;
use tenure_core::port::{FireOutcome, FireRequest, ScheduleFiring, TickCause, TickOutcome};
use tenure_core::rules::schedule::{ScheduleTickState, validate_fire};
use tenure_core::rules::work::clip;
use tenure_core::{SessionId, Token};

use super::super::SqliteStore;
use super::super::bulk::{portions, repeated};
use super::super::connection::query;
use super::super::write_transaction::{WriteTransaction, number as token_number};
use super::effects::{TickEffects, TickRow};
use super::{CallError, json, number};

/// A schedule that is unchanged since it was read.
#[derive(Clone, Copy)]
struct CurrentSchedule {
    id: i64,
    /// Whether the first tick to fire, or a later one, already has a row: it was fired, skipped or overlapped.
    has_later_ticks: bool,
}

/// Rows to write for one fire request, collected before they are written.
#[derive(Default)]
struct FireWrites {
    ticks: Vec<TickRow>,
    effects: TickEffects,
    /// Schedule, last tick, first tick and number of ticks.
    skipped_ranges: Vec<(i64, i64, i64, i64)>,
    advances: Vec<Advance>,
    /// Schedule, instant of the retry and error.
    postponed: Vec<(i64, Option<i64>, String)>,
    /// Schedules with tracked runs.
    tracked_schedules: BTreeSet<i64>,
}

/// The new tick state of a schedule, and the numbers of fired, skipped and overlapped ticks.
struct Advance {
    schedule: i64,
    tick_state: Option<ScheduleTickState>,
    due_at_ms: Option<i64>,
    fired: i64,
    skipped: i64,
    overlapped: i64,
}

impl SqliteStore {
    pub(super) async fn fire_schedules(
        &self,
        fire: &FireRequest,
    ) -> Result<Option<Vec<FireOutcome>>, CallError> {
        validate_fire(fire)?;
        let mut tx = self.begin_write().await?;
        let Some(scheduler_name) = tx.scheduler(&fire.session, fire.token).await? else {
            tx.commit().await?;
            return Ok(None);
        };
        let current = tx.current_schedules(&fire.firings).await?;
        let decided = tx.decided_ticks(&fire.firings, &current).await?;
        let unchanged = fire.firings.iter().zip(&current).filter(|(_, current)| current.is_some());
        let effects = unchanged.flat_map(|(firing, _)| &firing.ticks).filter_map(|tick| tick.effect.as_ref());
        let topics = tx.topics_of(effects).await?;
        let mut writes = FireWrites::default();
        let mut fired = Vec::with_capacity(fire.firings.len());
        for (firing, current) in fire.firings.iter().zip(current) {
            let Some(current) = current else {
                fired.push(FireOutcome::Stale);
                continue;
            };
            let effects = firing.ticks.iter().filter_map(|tick| tick.effect.as_ref());
            let rejection = effects.map(|effect| topics.check(effect)).find_map(Result::err);
            fired.push(match rejection.filter(|_| firing.error.is_none()) {
                Some(error) => FireOutcome::Rejected(error.message),
                None => {
                    writes.add(current.id, firing, &decided);
                    FireOutcome::Fired
                }
            });
        }
        tx.write_fired(writes, fire.token, &scheduler_name).await?;
        tx.commit().await?;
        Ok(Some(fired))
    }
}

impl FireWrites {
    fn add(&mut self, id: i64, firing: &ScheduleFiring, decided: &HashSet<(i64, i64)>) {
        if let Some(error) = &firing.error {
            self.postponed.push((id, firing.due_at_ms, clip(error)));
            return;
        }
        let (mut fired, mut overlapped) = (0, 0);
        // A tick that already has a row never fires again, even if the next tick of the schedule was set back.
        for tick in firing.ticks.iter().filter(|tick| !decided.contains(&(id, tick.tick_at_ms))) {
            let mut row = TickRow::new(id, tick.tick_at_ms, tick.due_at_ms, TickCause::Schedule);
            match &tick.effect {
                Some(effect) => {
                    self.effects.add(self.ticks.len(), effect);
                    row.tracked = tick.tracked;
                    fired += 1;
                }
                None => {
                    row.state = TickOutcome::Overlapped;
                    overlapped += 1;
                }
            }
            if tick.tracked || tick.effect.is_none() {
                self.tracked_schedules.insert(id);
            }
            self.ticks.push(row);
        }
        let skipped = firing.skipped.map_or(0, |skipped| number(skipped.tick_count));
        self.skipped_ranges
            .extend(firing.skipped.map(|range| (id, range.last_tick_at_ms, range.first_tick_at_ms, skipped)));
        let (tick_state, due_at_ms) = (firing.tick_state, firing.due_at_ms);
        self.advances.push(Advance { schedule: id, tick_state, due_at_ms, fired, skipped, overlapped });
    }
}

impl WriteTransaction<'_> {
    /// The name of the scheduler; `None` if the session does not hold the lease under this token.
    pub(super) async fn scheduler(
        &mut self,
        session: &SessionId,
        token: Token,
    ) -> Result<Option<String>, CallError> {
        let select = query(self.store.queries.get("scheduler_leader"));
        let select = select.bind(session.as_str()).bind(token_number(token));
        Ok(self.transaction.one(select).await?.map(|row| row.try_get("name")).transpose()?)
    }

    /// For each firing: the schedule, if it is unchanged since it was read.
    async fn current_schedules(
        &mut self,
        firings: &[ScheduleFiring],
    ) -> Result<Vec<Option<CurrentSchedule>>, CallError> {
        let mut current = Vec::with_capacity(firings.len());
        for chunk in portions(firings) {
            let statement = repeated(self.store.queries.get("schedule_state_get"), chunk.len());
            let mut select = query(&statement);
            for (index, firing) in chunk.iter().enumerate() {
                select = select
                    .bind(number(index as u64))
                    .bind(firing.key.namespace.as_str())
                    .bind(firing.key.name.as_str())
                    .bind(number(firing.version))
                    .bind(firing.next_tick_at_ms)
                    .bind(firing.ticks.first().map_or(firing.next_tick_at_ms, |tick| tick.tick_at_ms));
            }
            let first = current.len();
            current.resize(first + chunk.len(), None);
            for row in self.transaction.all(select).await? {
                let index = usize::try_from(row.try_get::<i64, _>("list_index")?).unwrap_or(usize::MAX);
                if let Some(current) = current[first..].get_mut(index) {
                    *current = Some(CurrentSchedule {
                        id: row.try_get("id")?,
                        has_later_ticks: row.try_get("has_later_ticks")?,
                    });
                }
            }
        }
        Ok(current)
    }

    /// The ticks of these firings that already have a row: fired, skipped or overlapped. Searches only the schedules
    /// with `has_later_ticks`, which are rare.
    async fn decided_ticks(
        &mut self,
        firings: &[ScheduleFiring],
        current: &[Option<CurrentSchedule>],
    ) -> Result<HashSet<(i64, i64)>, CallError> {
        let ticks = firings.iter().zip(current).filter_map(|(firing, current)| {
            let current = current.filter(|current| current.has_later_ticks)?;
            Some(firing.ticks.iter().map(move |tick| (current.id, tick.tick_at_ms)))
        });
        let ticks: Vec<(i64, i64)> = ticks.flatten().collect();
        Ok(self.find_decided(&ticks).await?.into_iter().map(|index| ticks[index]).collect())
    }

    async fn write_fired(
        &mut self,
        mut writes: FireWrites,
        token: Token,
        scheduler_name: &str,
    ) -> Result<(), CallError> {
        if !writes.tracked_schedules.is_empty() {
            let end_tracking =
                query(self.store.queries.get("tick_end_tracking")).bind(json(&writes.tracked_schedules)?);
            self.transaction.execute(end_tracking).await?;
        }
        self.apply_effects(writes.effects, &mut writes.ticks).await?;
        self.put_ticks(&writes.ticks, Some(token), scheduler_name).await?;
        if !writes.skipped_ranges.is_empty() {
            let put = query(self.store.queries.get("skipped_tick_put")).bind(json(&writes.skipped_ranges)?);
            let put = put.bind(self.wall_ms).bind(token_number(token)).bind(scheduler_name);
            self.transaction.execute(put).await?;
        }
        for rows in portions(&writes.advances) {
            let statement = repeated(self.store.queries.get("schedule_advance"), rows.len());
            let mut advance = query(&statement);
            for row in rows {
                advance = advance
                    .bind(row.schedule)
                    .bind(row.tick_state.map(|tick_state| tick_state.next_tick_at_ms))
                    .bind(row.tick_state.and_then(|tick_state| tick_state.last_tick_at_ms))
                    .bind(row.due_at_ms)
                    .bind(row.fired)
                    .bind(row.skipped)
                    .bind(row.overlapped)
                    .bind((row.fired > 0).then_some(self.wall_ms));
            }
            self.transaction.execute(advance).await?;
        }
        if !writes.postponed.is_empty() {
            let postponed = query(self.store.queries.get("schedule_postpone")).bind(json(&writes.postponed)?);
            self.transaction.execute(postponed).await?;
        }
        Ok(())
    }
}
