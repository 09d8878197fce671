//! Handing out tasks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::SessionId;
use tenure_core::claim::{Demand, check_seats};
use tenure_core::port::{
    Authority, CLAIM_BYTES, ClaimAnswer, ClaimAsk, ClaimRefusal, ClaimedTask, Fallback, Json, Mode, Profile,
    QueueSettings, RateLimit, Seat, TaskId,
};

use super::super::Sqlite;
use super::super::change::{Change, number as token_number};
use super::super::connection::query;
use super::super::directory;
use super::views::{backoff, carried, leader_token, queue_settings, token, unsigned};
use super::{Failed, json, ms, number};

/// How many due tasks one claim makes ready; the rest is for the next.
const DUE_MAX: i64 = 10_000;

/// How often one claim looks for others in the place of those that it had to hold back.
const ROUNDS: u32 = 12;

/// The queue as a claim finds it.
struct Look {
    queue: i64,
    settings: QueueSettings,
    /// Which turn was last.
    turn: i64,
    rate_used_to: f64,
    /// How many more may be claimed at once.
    room: u64,
    next_run_at: Option<i64>,
}

/// A ready task, as far as it matters for who gets it.
struct Head {
    id: i64,
    demand: i64,
    ready_at: i64,
    concurrency: Option<String>,
    concurrency_limit: i64,
    /// How many parents it has.
    parents: i64,
    /// Of its payload.
    bytes: i64,
}

/// What was decided, before it is written.
#[derive(Default)]
struct Handing {
    /// Task and seat, in the order of handing out.
    given: Vec<(i64, usize)>,
    /// Of each that is given, the bytes of its payload, and whether it has parents.
    weights: Vec<(i64, bool)>,
    /// Still wanted, by seat.
    wanted: Vec<usize>,
    /// How many may still be given, whatever is wanted.
    room: usize,
    /// How many with a key are claimed, those just given included.
    keys: HashMap<String, i64>,
    /// Demands that are given to some of these workers later.
    later: BTreeSet<i64>,
    /// There may be more: not all that was held back could be replaced.
    unfinished: bool,
}

impl Sqlite {
    pub(super) async fn hand_out(&self, ask: &ClaimAsk) -> Result<ClaimAnswer, Failed> {
        check_seats(&ask.seats)?;
        let mut change = self.change().await?;
        let now = change.wall_ms;
        let look = match self.look(&mut change, ask).await? {
            Ok(Some(look)) => look,
            Ok(None) => {
                change.commit().await?;
                let tasks = ask.seats.iter().map(|_| Vec::new()).collect();
                return Ok(ClaimAnswer::Served { tasks, next_in: None });
            }
            Err(refusal) => {
                change.commit().await?;
                return Ok(ClaimAnswer::Refused(refusal));
            }
        };
        self.see_workers(&mut change, ask).await?;
        let rate = look.settings.rate.map(|rate| Bucket { rate, used_to: look.rate_used_to });
        let allowed = rate.as_ref().map_or(u64::MAX, |rate| rate.allowed(now)).min(look.room);
        let demands = self.demands_ready(&mut change, look.queue).await?;
        let mut handing = Handing {
            wanted: ask.seats.iter().map(|seat| seat.limit as usize).collect(),
            room: usize::try_from(allowed).unwrap_or(usize::MAX),
            ..Handing::default()
        };
        self.choose(&mut change, &ask.seats, &demands, &look, &mut handing).await?;
        self.lighten(&mut change, &mut handing).await?;
        let given = handing.given.len();
        let ordered = matches!(ask.authority, Authority::Leader { .. });
        let tasks = self.give(&mut change, ask, &demands, &handing, ordered.then_some(look.turn)).await?;
        let used_to = rate.as_ref().map_or(look.rate_used_to, |rate| rate.spend(now, given));
        let set_back = rate.as_ref().is_some_and(|rate| rate.is_beyond(now));
        if set_back || (given > 0 && (ordered || rate.is_some())) {
            let turns = if ordered { number(given as u64) } else { 0 };
            let spend = query(self.queries.get("queue_spend")).bind(look.queue).bind(turns).bind(used_to);
            change.transaction.execute(spend).await?;
        }
        let next_in = if handing.wanted.iter().all(|left| *left == 0) {
            None
        } else {
            let rate = look.settings.rate.map(|rate| Bucket { rate, used_to });
            self.next_in(&mut change, &look, &handing, rate).await?
        };
        change.commit().await?;
        Ok(ClaimAnswer::Served { tasks, next_in })
    }

    /// The queue, if it is there and may be claimed from; what is due in it is ready then.
    async fn look(
        &self,
        change: &mut Change<'_>,
        ask: &ClaimAsk,
    ) -> Result<Result<Option<Look>, ClaimRefusal>, Failed> {
        let seats: Vec<(&str, Option<&str>)> = ask
            .seats
            .iter()
            .map(|seat| (seat.worker.name.as_str(), seat.session.as_ref().map(SessionId::as_str)))
            .collect();
        let (session, token) = match &ask.authority {
            Authority::Leader { session, token } => (Some(session.as_str()), Some(token_number(*token))),
            _ => (None, None),
        };
        let look = query(self.queries.get("claim_look"))
            .bind(ask.queue.namespace.as_str())
            .bind(ask.queue.name.as_str())
            .bind(json(&seats)?)
            .bind(session)
            .bind(token);
        let Some(row) = change.transaction.one(look).await? else { return Ok(Ok(None)) };
        if let Some(refusal) = refusal(&row, ask)? {
            return Ok(Err(refusal));
        }
        let queue = row.try_get("id")?;
        let mut next_run_at: Option<i64> = row.try_get("next_run_at")?;
        if next_run_at.is_some_and(|at| at <= change.wall_ms) {
            let due = query(self.queries.get("task_due")).bind(queue).bind(change.wall_ms).bind(DUE_MAX);
            change.transaction.execute(due).await?;
            let next = change.transaction.one(query(self.queries.get("queue_next_run")).bind(queue)).await?;
            next_run_at = next.map(|row| row.try_get(0)).transpose()?.flatten();
        }
        let settings = queue_settings(&row)?;
        let claimed: Option<i64> = row.try_get("claimed")?;
        let room = settings
            .max_claimed
            .map_or(u64::MAX, |most| u64::from(most).saturating_sub(claimed.unwrap_or(0).cast_unsigned()));
        let (turn, rate_used_to) = (row.try_get("turn")?, row.try_get("rate_used_to")?);
        Ok(Ok(Some(Look { queue, settings, turn, rate_used_to, room, next_run_at })))
    }

    /// A worker without a session shows that it lives by asking.
    async fn see_workers(&self, change: &mut Change<'_>, ask: &ClaimAsk) -> Result<(), Failed> {
        let names: BTreeSet<&str> = ask
            .seats
            .iter()
            .filter(|seat| seat.session.is_none())
            .map(|seat| seat.worker.name.as_str())
            .collect();
        if !names.is_empty() {
            let seen = query(self.queries.get("worker_seen"))
                .bind(ask.queue.namespace.as_str())
                .bind(json(&names)?)
                .bind(change.wall_ms);
            change.transaction.execute(seen).await?;
        }
        Ok(())
    }

    /// The demands of which something is ready.
    async fn demands_ready(
        &self,
        change: &mut Change<'_>,
        queue: i64,
    ) -> Result<BTreeMap<i64, Demand>, Failed> {
        let rows = change.transaction.all(query(self.queries.get("demand_ready")).bind(queue)).await?;
        let demand = |row: &SqliteRow| {
            let demand = Demand {
                kind: row.try_get("kind")?,
                requires: directory::json(row, "requires")?,
                prefers: directory::json(row, "prefers")?,
                workers: directory::json(row, "workers")?,
            };
            Ok((row.try_get("id")?, demand))
        };
        Ok(rows.iter().map(demand).collect::<sqlx::Result<_>>()?)
    }

    /// Decides who gets what. What may not run yet for its concurrency key is held back, and others looked for in its place.
    async fn choose(
        &self,
        change: &mut Change<'_>,
        seats: &[Seat],
        demands: &BTreeMap<i64, Demand>,
        look: &Look,
        handing: &mut Handing,
    ) -> Result<(), Failed> {
        let crews = Crews::of(seats, demands);
        let ready_before = change.wall_ms - ms(look.settings.prefer_ms);
        for round in 0..=ROUNDS {
            let (at_once, later) = crews.demands(&handing.wanted);
            handing.later.clone_from(&later);
            let wanted = handing.wanted.iter().sum::<usize>().min(handing.room);
            if wanted == 0 || (at_once.is_empty() && later.is_empty()) {
                return Ok(());
            }
            if round == ROUNDS {
                handing.unfinished = true;
                return Ok(());
            }
            // The more had to be held back, the further it looks. What was given is still ready in the table.
            let reach = number(((wanted << round).min(4_000).max(wanted) + handing.given.len()) as u64);
            let heads = self.heads(change, &at_once, &later, reach, ready_before).await?;
            self.count_keys(change, &heads, &mut handing.keys).await?;
            let held = crews.serve(&heads, ready_before, handing);
            if held.is_empty() {
                return Ok(());
            }
            change.transaction.execute(query(self.queries.get("task_hold")).bind(json(&held)?)).await?;
        }
        Ok(())
    }

    /// The first ready tasks of these demands, in the order of the queue.
    async fn heads(
        &self,
        change: &mut Change<'_>,
        at_once: &BTreeSet<i64>,
        later: &BTreeSet<i64>,
        reach: i64,
        ready_before: i64,
    ) -> Result<Vec<Head>, Failed> {
        let mut rows = Vec::new();
        if !at_once.is_empty() {
            let heads = query(self.queries.get("task_heads")).bind(json(at_once)?).bind(reach);
            rows = change.transaction.all(heads).await?;
        }
        if !later.is_empty() {
            let heads = query(self.queries.get("task_heads_waited"));
            let heads = heads.bind(json(later)?).bind(reach).bind(ready_before);
            rows.extend(change.transaction.all(heads).await?);
        }
        let mut heads: BTreeMap<(i64, i64), Head> = BTreeMap::new();
        for row in &rows {
            let id = row.try_get("id")?;
            let head = Head {
                id,
                demand: row.try_get("demand")?,
                ready_at: row.try_get("ready_at")?,
                concurrency: row.try_get("concurrency")?,
                concurrency_limit: row.try_get("concurrency_limit")?,
                parents: row.try_get("parents")?,
                bytes: row.try_get("bytes")?,
            };
            heads.insert((row.try_get("effective_at")?, id), head);
        }
        Ok(heads.into_values().collect())
    }

    /// How many with each key are claimed, of those that are not counted yet.
    async fn count_keys(
        &self,
        change: &mut Change<'_>,
        heads: &[Head],
        keys: &mut HashMap<String, i64>,
    ) -> Result<(), Failed> {
        let asked: BTreeSet<&str> = heads
            .iter()
            .filter_map(|it| it.concurrency.as_deref())
            .filter(|key| !keys.contains_key(*key))
            .collect();
        if asked.is_empty() {
            return Ok(());
        }
        let rows = change.transaction.all(query(self.queries.get("key_counts")).bind(json(&asked)?)).await?;
        keys.extend(asked.into_iter().map(|key| (key.to_owned(), 0)));
        for row in &rows {
            keys.insert(row.try_get("key")?, row.try_get("claimed")?);
        }
        Ok(())
    }

    /// Leaves for the next call what would be too much to carry.
    async fn lighten(&self, change: &mut Change<'_>, handing: &mut Handing) -> Result<(), Failed> {
        let children: Vec<i64> = handing
            .given
            .iter()
            .zip(&handing.weights)
            .filter(|(_, (_, has_parents))| *has_parents)
            .map(|((id, _), _)| *id)
            .collect();
        let mut inputs: HashMap<i64, i64> = HashMap::new();
        if !children.is_empty() {
            let bytes = query(self.queries.get("input_bytes")).bind(json(&children)?);
            for row in change.transaction.all(bytes).await? {
                inputs.insert(row.try_get("child")?, row.try_get::<Option<i64>, _>("bytes")?.unwrap_or(0));
            }
        }
        let (mut sum, most) = (0, CLAIM_BYTES as i64);
        let fits = |((id, _), (bytes, _)): &(&(i64, usize), &(i64, bool))| {
            sum += bytes + inputs.get(id).copied().unwrap_or(0);
            sum <= most
        };
        let kept = handing.given.iter().zip(&handing.weights).take_while(fits).count().max(1);
        if kept < handing.given.len() {
            for (_, seat) in handing.given.drain(kept..) {
                handing.wanted[seat] += 1;
            }
            handing.unfinished = true;
        }
        Ok(())
    }

    /// Writes the claims; what each seat got.
    async fn give(
        &self,
        change: &mut Change<'_>,
        ask: &ClaimAsk,
        demands: &BTreeMap<i64, Demand>,
        handing: &Handing,
        turn: Option<i64>,
    ) -> Result<Vec<Vec<ClaimedTask>>, Failed> {
        let mut tasks: Vec<Vec<ClaimedTask>> = ask.seats.iter().map(|_| Vec::new()).collect();
        if handing.given.is_empty() {
            return Ok(tasks);
        }
        let claims: Vec<_> = (1..)
            .zip(&handing.given)
            .map(|(n, (id, seat))| {
                let seat = &ask.seats[*seat];
                let session = seat.session.as_ref().map(SessionId::as_str);
                (*id, seat.worker.name.as_str(), session, seat.hold_ms.map(ms), turn.map(|turn| turn + n))
            })
            .collect();
        let claim = query(self.queries.get("task_claim")).bind(json(&claims)?).bind(change.wall_ms);
        let rows = change.transaction.all(claim).await?;
        let mut inputs = self.inputs(change, &rows).await?;
        let mut claimed = HashMap::with_capacity(rows.len());
        for row in &rows {
            let id: i64 = row.try_get("id")?;
            let kind = demands.get(&row.try_get("demand")?).map(|demand| demand.kind.clone());
            claimed.insert(
                id,
                ClaimedTask {
                    id: TaskId(id.cast_unsigned()),
                    token: token(row, "token")?,
                    queue: ask.queue.name.clone(),
                    kind: kind.unwrap_or_default(),
                    payload: carried(row.try_get("payload")?)?,
                    inputs: inputs.remove(&id).unwrap_or_default(),
                    attempt: row.try_get("attempt")?,
                    max_attempts: row.try_get("max_attempts")?,
                    backoff: backoff(row)?,
                    priority: row.try_get("priority")?,
                    max_run_ms: unsigned(row, "max_run_ms")?,
                    deadline_ms: row.try_get("deadline")?,
                    enqueued_at_ms: row.try_get("enqueued_at")?,
                    turn: unsigned(row, "turn")?,
                    leader_token: leader_token(row)?,
                    key: row.try_get("key")?,
                },
            );
        }
        for (id, seat) in &handing.given {
            tasks[*seat].extend(claimed.remove(id));
        }
        Ok(tasks)
    }

    /// The outputs of the parents of these, by child.
    async fn inputs(
        &self,
        change: &mut Change<'_>,
        rows: &[SqliteRow],
    ) -> Result<HashMap<i64, BTreeMap<TaskId, Json>>, Failed> {
        let mut children: Vec<i64> = Vec::new();
        for row in rows {
            if row.try_get::<i64, _>("parents")? > 0 {
                children.push(row.try_get("id")?);
            }
        }
        let mut inputs: HashMap<i64, BTreeMap<TaskId, Json>> = HashMap::new();
        if children.is_empty() {
            return Ok(inputs);
        }
        let select = query(self.queries.get("task_inputs")).bind(json(&children)?);
        for row in change.transaction.all(select).await? {
            let parent = TaskId(row.try_get::<i64, _>("parent")?.cast_unsigned());
            if let Some(output) = row.try_get::<Option<&str>, _>("output")? {
                inputs.entry(row.try_get("child")?).or_default().insert(parent, carried(output)?);
            }
        }
        Ok(inputs)
    }

    /// In how long there may be more without anything new.
    async fn next_in(
        &self,
        change: &mut Change<'_>,
        look: &Look,
        handing: &Handing,
        rate: Option<Bucket>,
    ) -> Result<Option<Duration>, Failed> {
        let now = change.wall_ms;
        if handing.unfinished {
            return Ok(Some(Duration::ZERO));
        }
        let mut moments: Vec<i64> = look.next_run_at.into_iter().collect();
        moments.extend(rate.map(|rate| rate.next_at(now)).filter(|at| *at > now));
        if !handing.later.is_empty() {
            let prefer_ms = ms(look.settings.prefer_ms);
            let next =
                query(self.queries.get("task_heads_next")).bind(json(&handing.later)?).bind(now - prefer_ms);
            if let Some(row) = change.transaction.one(next).await? {
                moments.extend(row.try_get::<Option<i64>, _>(0)?.map(|at| at + prefer_ms));
            }
        }
        let wait = moments.into_iter().min().map(|at| (at - now).max(0).cast_unsigned());
        Ok(wait.map(Duration::from_millis))
    }
}

/// Why this queue is not claimed from in this name, if so.
fn refusal(row: &SqliteRow, ask: &ClaimAsk) -> sqlx::Result<Option<ClaimRefusal>> {
    let settings = queue_settings(row)?;
    if let Some(refusal) = refused(&ask.authority, settings.mode, settings.fallback, row.try_get("leads")?) {
        return Ok(Some(refusal));
    }
    let paused = |column| row.try_get::<Option<i64>, _>(column).map(|at| at.is_some());
    if paused("paused_at")? || paused("all_paused_at")? {
        return Ok(Some(ClaimRefusal::Paused));
    }
    // The first seat for which something is wrong.
    let first =
        |column| row.try_get::<Option<u32>, _>(column).map(|place| place.unwrap_or(u32::MAX) as usize);
    let (gone, unapproved) = (first("gone")?, first("unapproved")?);
    Ok(match ask.seats.get(gone.min(unapproved)) {
        Some(seat) if gone <= unapproved => seat.session.clone().map(ClaimRefusal::Gone),
        Some(seat) => Some(ClaimRefusal::NotApproved(seat.worker.name.clone())),
        None => None,
    })
}

/// Whether what is in this mode may be handed out in this name.
pub(super) fn refused(
    authority: &Authority,
    mode: Mode,
    fallback: Fallback,
    leads: bool,
) -> Option<ClaimRefusal> {
    match (authority, mode) {
        (Authority::Leader { .. }, Mode::Distributed) => Some(ClaimRefusal::Mode(Mode::Distributed)),
        (Authority::Leader { .. }, Mode::Exclusive) => (!leads).then_some(ClaimRefusal::NotLeader),
        (Authority::Fallback, Mode::Exclusive) if fallback == Fallback::Distributed => None,
        (Authority::Direct | Authority::Fallback, Mode::Exclusive) => {
            Some(ClaimRefusal::Mode(Mode::Exclusive))
        }
        (Authority::Direct | Authority::Fallback, Mode::Distributed) => None,
    }
}

/// Seats of workers that are alike as far as matching goes. What one of a crew passed over, the next passes over too.
struct Crews {
    /// By seat: which crew.
    crew: Vec<usize>,
    /// By crew: the demands that it fits, and whether at once.
    fits: Vec<HashMap<i64, bool>>,
}

impl Crews {
    fn of(seats: &[Seat], demands: &BTreeMap<i64, Demand>) -> Crews {
        let mut known: HashMap<(&str, &[String], &[String]), usize> = HashMap::new();
        let mut crews = Crews { crew: Vec::with_capacity(seats.len()), fits: Vec::new() };
        for seat in seats {
            let Profile { name, kinds, tags } = &seat.worker;
            let crew = *known.entry((name, kinds, tags)).or_insert_with(|| {
                let suits = demands.iter().filter(|(_, demand)| demand.suits(&seat.worker));
                crews.fits.push(suits.map(|(id, demand)| (*id, demand.favours(&seat.worker))).collect());
                crews.fits.len() - 1
            });
            crews.crew.push(crew);
        }
        crews
    }

    /// The demands that somebody who still wants something fits: at once, or later.
    fn demands(&self, wanted: &[usize]) -> (BTreeSet<i64>, BTreeSet<i64>) {
        let busy: BTreeSet<usize> =
            self.crew.iter().zip(wanted).filter(|(_, left)| **left > 0).map(|(crew, _)| *crew).collect();
        let fits = busy.into_iter().flat_map(|crew| &self.fits[crew]);
        let (at_once, later): (Vec<_>, Vec<_>) = fits.partition(|(_, at_once)| **at_once);
        let ids = |list: Vec<(&i64, &bool)>| list.into_iter().map(|(id, _)| *id).collect();
        (ids(at_once), ids(later))
    }

    /// Serves the seats in their order, each in the order of the queue. Those that must be held back.
    fn serve(&self, heads: &[Head], ready_before: i64, handing: &mut Handing) -> Vec<i64> {
        let given: HashSet<i64> = handing.given.iter().map(|(id, _)| *id).collect();
        let mut gone: Vec<bool> = heads.iter().map(|head| given.contains(&head.id)).collect();
        let mut reached = vec![0; self.fits.len()];
        let mut held = Vec::new();
        for (seat, crew) in self.crew.iter().enumerate() {
            let (fits, place) = (&self.fits[*crew], &mut reached[*crew]);
            while handing.wanted[seat] > 0 && handing.room > 0 && *place < heads.len() {
                let (n, head) = (*place, &heads[*place]);
                *place += 1;
                let fit =
                    fits.get(&head.demand).is_some_and(|at_once| *at_once || head.ready_at <= ready_before);
                if gone[n] || !fit {
                    continue;
                }
                gone[n] = true;
                if let Some(claimed) = head.concurrency.as_ref().and_then(|key| handing.keys.get_mut(key)) {
                    if *claimed >= head.concurrency_limit {
                        held.push(head.id);
                        continue;
                    }
                    *claimed += 1;
                }
                handing.given.push((head.id, seat));
                handing.weights.push((head.bytes, head.parents > 0));
                handing.wanted[seat] -= 1;
                handing.room -= 1;
            }
        }
        held
    }
}

/// A rate as a bucket that leaks: `used_to` is the moment up to which it is used up, and it may run ahead of the clock by as much
/// as `per`.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    pub(super) rate: RateLimit,
    pub(super) used_to: f64,
}

impl Bucket {
    /// How long one claim uses it, in milliseconds.
    fn step(&self) -> f64 {
        self.rate.per_ms as f64 / f64::from(self.rate.count.max(1))
    }

    /// By how much it runs ahead of the clock. Not by more than it may, should the clock have been put back.
    fn ahead(&self, now: i64) -> f64 {
        (self.used_to - now as f64).clamp(0.0, self.rate.per_ms as f64)
    }

    /// Whether it runs ahead by more than it may: the clock was put back, and nobody waits until it has caught up.
    fn is_beyond(&self, now: i64) -> bool {
        self.used_to > now as f64 + self.rate.per_ms as f64
    }

    /// How many claims may begin now.
    fn allowed(&self, now: i64) -> u64 {
        // A thousandth of a claim is rounding.
        ((self.rate.per_ms as f64 - self.ahead(now)) / self.step() + 0.001).floor().max(0.0) as u64
    }

    /// Up to when it is used up after these.
    fn spend(&self, now: i64, claims: usize) -> f64 {
        now as f64 + self.ahead(now) + self.step() * claims as f64
    }

    /// When the next claim may begin.
    pub(super) fn next_at(&self, now: i64) -> i64 {
        if self.allowed(now) > 0 {
            return now;
        }
        now + (self.ahead(now) + self.step() - self.rate.per_ms as f64).ceil().max(1.0) as i64
    }
}
