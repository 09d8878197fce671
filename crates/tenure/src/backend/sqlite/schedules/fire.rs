//! Firing: under the lease, compared with what was seen, all of it or nothing.

use std::collections::{BTreeSet, HashSet};

use sqlx::Row;
use tenure_core::claim::clip;
use tenure_core::port::{Cause, Fire, Fired, Firing, TickState};
use tenure_core::schedule::{Progress, check_fire};
use tenure_core::{SessionId, Token};

use super::super::Sqlite;
use super::super::change::{Change, number as token_number};
use super::super::connection::query;
use super::super::rows::{portions, repeated};
use super::effects::{Effects, Tick};
use super::{Failed, json, number};

/// A schedule that stands as it was seen.
#[derive(Clone, Copy)]
struct Standing {
    id: i64,
    /// Ticks from the first that fires on were decided about before.
    ahead: bool,
}

/// What is to be written, gathered before anything is.
#[derive(Default)]
struct Volley {
    ticks: Vec<Tick>,
    effects: Effects,
    /// Schedule, last, first, how many.
    skips: Vec<(i64, i64, i64, i64)>,
    advances: Vec<Advance>,
    /// Schedule, when it is tried again, why.
    put_off: Vec<(i64, Option<i64>, String)>,
    /// Schedules whose runs do not overlap.
    exclusive: BTreeSet<i64>,
}

/// How far a schedule is then, and how many of its ticks fired, were skipped and did nothing.
struct Advance {
    schedule: i64,
    progress: Option<Progress>,
    due_ms: Option<i64>,
    fired: i64,
    skipped: i64,
    overlapped: i64,
}

impl Sqlite {
    pub(super) async fn fire_schedules(&self, fire: &Fire) -> Result<Option<Vec<Fired>>, Failed> {
        check_fire(fire)?;
        let mut change = self.change().await?;
        let Some(leader) = change.scheduler(&fire.session, fire.token).await? else {
            change.commit().await?;
            return Ok(None);
        };
        let standing = change.standing(&fire.firings).await?;
        let known = change.known(&fire.firings, &standing).await?;
        let alive = fire.firings.iter().zip(&standing).filter(|(_, standing)| standing.is_some());
        let effects = alive.flat_map(|(firing, _)| &firing.ticks).filter_map(|tick| tick.effect.as_ref());
        let topics = change.topics_of(effects).await?;
        let mut volley = Volley::default();
        let mut fired = Vec::with_capacity(fire.firings.len());
        for (firing, standing) in fire.firings.iter().zip(standing) {
            let Some(standing) = standing else {
                fired.push(Fired::Stale);
                continue;
            };
            let effects = firing.ticks.iter().filter_map(|tick| tick.effect.as_ref());
            let refused = effects.map(|effect| topics.check(effect)).find_map(Result::err);
            fired.push(match refused.filter(|_| firing.trouble.is_none()) {
                Some(error) => Fired::Refused(error.message),
                None => {
                    volley.add(standing.id, firing, &known);
                    Fired::Yes
                }
            });
        }
        change.write_volley(volley, fire.token, &leader).await?;
        change.commit().await?;
        Ok(Some(fired))
    }
}

impl Volley {
    fn add(&mut self, id: i64, firing: &Firing, known: &HashSet<(i64, i64)>) {
        if let Some(trouble) = &firing.trouble {
            self.put_off.push((id, firing.due_ms, clip(trouble)));
            return;
        }
        let (mut fired, mut overlapped) = (0, 0);
        // What was decided about before is over, whatever is stored about the next tick.
        for tick in firing.ticks.iter().filter(|tick| !known.contains(&(id, tick.at_ms))) {
            let mut row = Tick::new(id, tick.at_ms, tick.due_ms, Cause::Clock);
            match &tick.effect {
                Some(effect) => {
                    self.effects.add(self.ticks.len(), effect);
                    row.tracked = tick.tracked;
                    fired += 1;
                }
                None => {
                    row.state = TickState::Overlapped;
                    overlapped += 1;
                }
            }
            if tick.tracked || tick.effect.is_none() {
                self.exclusive.insert(id);
            }
            self.ticks.push(row);
        }
        let skipped = firing.skipped.map_or(0, |skipped| number(skipped.count));
        self.skips.extend(firing.skipped.map(|range| (id, range.last_ms, range.first_ms, skipped)));
        let (progress, due_ms) = (firing.progress, firing.due_ms);
        self.advances.push(Advance { schedule: id, progress, due_ms, fired, skipped, overlapped });
    }
}

impl Change<'_> {
    /// The name of who leads under this token; `None` if nobody does.
    pub(super) async fn scheduler(
        &mut self,
        session: &SessionId,
        token: Token,
    ) -> Result<Option<String>, Failed> {
        let leads = query(self.store.queries.get("scheduler_leader"));
        let leads = leads.bind(session.as_str()).bind(token_number(token));
        Ok(self.transaction.one(leads).await?.map(|row| row.try_get("name")).transpose()?)
    }

    /// By place: those that stand as they were seen.
    async fn standing(&mut self, firings: &[Firing]) -> Result<Vec<Option<Standing>>, Failed> {
        let mut standing = Vec::with_capacity(firings.len());
        for seen in portions(firings) {
            let statement = repeated(self.store.queries.get("schedule_stand"), seen.len());
            let mut stand = query(&statement);
            for (place, firing) in seen.iter().enumerate() {
                stand = stand
                    .bind(number(place as u64))
                    .bind(firing.key.namespace.as_str())
                    .bind(firing.key.name.as_str())
                    .bind(number(firing.version))
                    .bind(firing.next_at_ms)
                    .bind(firing.ticks.first().map_or(firing.next_at_ms, |tick| tick.at_ms));
            }
            let first = standing.len();
            standing.resize(first + seen.len(), None);
            for row in self.transaction.all(stand).await? {
                let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
                if let Some(standing) = standing[first..].get_mut(place) {
                    *standing = Some(Standing { id: row.try_get("id")?, ahead: row.try_get("ahead")? });
                }
            }
        }
        Ok(standing)
    }

    /// Ticks of these that were decided about before: mostly nobody has to look for them.
    async fn known(
        &mut self,
        firings: &[Firing],
        standing: &[Option<Standing>],
    ) -> Result<HashSet<(i64, i64)>, Failed> {
        let ahead = firings.iter().zip(standing).filter_map(|(firing, standing)| {
            let standing = standing.filter(|standing| standing.ahead)?;
            Some(firing.ticks.iter().map(move |tick| (standing.id, tick.at_ms)))
        });
        let ticks: Vec<(i64, i64)> = ahead.flatten().collect();
        Ok(self.known_ticks(&ticks).await?.into_iter().map(|place| ticks[place]).collect())
    }

    async fn write_volley(&mut self, mut volley: Volley, token: Token, leader: &str) -> Result<(), Failed> {
        if !volley.exclusive.is_empty() {
            let over = query(self.store.queries.get("tick_over")).bind(json(&volley.exclusive)?);
            self.transaction.execute(over).await?;
        }
        self.perform(volley.effects, &mut volley.ticks).await?;
        self.put_ticks(&volley.ticks, Some(token), leader).await?;
        if !volley.skips.is_empty() {
            let put = query(self.store.queries.get("skip_put")).bind(json(&volley.skips)?);
            let put = put.bind(self.wall_ms).bind(token_number(token)).bind(leader);
            self.transaction.execute(put).await?;
        }
        for rows in portions(&volley.advances) {
            let statement = repeated(self.store.queries.get("schedule_fired"), rows.len());
            let mut advance = query(&statement);
            for row in rows {
                advance = advance
                    .bind(row.schedule)
                    .bind(row.progress.map(|progress| progress.next_at_ms))
                    .bind(row.progress.and_then(|progress| progress.last_at_ms))
                    .bind(row.due_ms)
                    .bind(row.fired)
                    .bind(row.skipped)
                    .bind(row.overlapped)
                    .bind((row.fired > 0).then_some(self.wall_ms));
            }
            self.transaction.execute(advance).await?;
        }
        if !volley.put_off.is_empty() {
            let put_off = query(self.store.queries.get("schedule_put_off")).bind(json(&volley.put_off)?);
            self.transaction.execute(put_off).await?;
        }
        Ok(())
    }
}
