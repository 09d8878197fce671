//! Firing: under the lease, compared with what was seen, all of it or nothing.

use std::collections::{BTreeSet, HashSet};

use sqlx::Row;
use tenure_core::SessionId;
use tenure_core::Token;
use tenure_core::claim::clip;
use tenure_core::port::{Cause, DUE_MAX, Fire, Fired, Firing, ScheduleKey, TickState};

use super::super::Sqlite;
use super::super::change::{Change, number as token_number};
use super::super::connection::query;
use super::effects::{Effects, Tick};
use super::{Failed, json, nonsense, number};

/// A schedule that stands as it was seen.
#[derive(Clone, Copy)]
struct Standing {
    id: i64,
    /// Ticks from the next one on were decided about before.
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

/// Schedule; next tick, last tick, when it is due; how many fired, were skipped, did nothing.
type Advance = (i64, Option<i64>, Option<i64>, Option<i64>, i64, i64, i64);

impl Sqlite {
    pub(super) async fn fire_schedules(&self, fire: &Fire) -> Result<Option<Vec<Fired>>, Failed> {
        check(fire)?;
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

/// Refuses what makes no sense.
fn check(fire: &Fire) -> Result<(), Failed> {
    let most = DUE_MAX as usize;
    if fire.firings.len() > most {
        let message = format!(
            "there are {} firings; at most {most} are fired together: split them",
            fire.firings.len()
        );
        return Err(nonsense(message).into());
    }
    let mut named: HashSet<&ScheduleKey> = HashSet::with_capacity(fire.firings.len());
    match fire.firings.iter().find(|firing| !named.insert(&firing.key)) {
        Some(firing) => {
            let message = format!("the schedule {} is to fire twice in one call; name it once", firing.key);
            Err(nonsense(message).into())
        }
        None => Ok(()),
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
        let next_at = firing.progress.map(|progress| progress.next_at_ms);
        let last_at = firing.progress.and_then(|progress| progress.last_at_ms);
        self.advances.push((id, next_at, last_at, firing.due_ms, fired, skipped, overlapped));
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
        let seen = |firing: &Firing| {
            let ScheduleKey { namespace, name } = &firing.key;
            (namespace.clone(), name.clone(), number(firing.version), firing.next_at_ms)
        };
        let seen: Vec<_> = firings.iter().map(seen).collect();
        let mut standing = vec![None; firings.len()];
        let stand = query(self.store.queries.get("schedule_stand")).bind(json(&seen)?);
        for row in self.transaction.all(stand).await? {
            let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
            if let Some(standing) = standing.get_mut(place) {
                *standing = Some(Standing { id: row.try_get("id")?, ahead: row.try_get("ahead")? });
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
        if !volley.advances.is_empty() {
            let advance = query(self.store.queries.get("schedule_fired")).bind(json(&volley.advances)?);
            self.transaction.execute(advance.bind(self.wall_ms)).await?;
        }
        if !volley.put_off.is_empty() {
            let put_off = query(self.store.queries.get("schedule_put_off")).bind(json(&volley.put_off)?);
            self.transaction.execute(put_off).await?;
        }
        Ok(())
    }
}
