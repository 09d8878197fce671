//! A claim: seats in, tasks out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenure_core::claim::check_seats;
use tenure_core::port::{
    Authority, Backoff, CLAIM_MAX, ClaimAnswer, ClaimAsk, ClaimRefusal, ClaimedTask, Json, Mode,
    PRIORITY_STEP_MS, QueueKey, Seat, StoreError, TaskId,
};
use tenure_core::{SessionId, Token};

use super::super::error::garbled;
use super::super::message::{Message, STRICT};
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::{Column, PgRow};
use super::super::{Postgres, get};
use super::floors::Place;
use super::submit::text;
use crate::runtime::now;

/// Seats of one worker that stand next to each other, as `tenure.claim` reads them: they are served as one.
#[derive(Serialize)]
struct Group<'a> {
    name: &'a str,
    kinds: &'a [String],
    tags: &'a [String],
    session: Option<&'a str>,
    hold_ms: Option<u64>,
    wanted: u32,
}

impl Postgres {
    pub(super) async fn take_tasks(&self, ask: &ClaimAsk) -> Result<ClaimAnswer, StoreError> {
        check_seats(&ask.seats)?;
        let (groups, limits) = grouped(&ask.seats);
        let seats = text(&groups)?;
        let (authority, leader) = match &ask.authority {
            Authority::Direct => ("direct", None),
            Authority::Leader { session, token } => ("leader", Some((session, *token))),
            Authority::Fallback => ("fallback", None),
        };
        let begun = now();
        let start = self.shared.floors.start(&ask.queue, begun);
        // Strict order has no floors: what stands before is the next one.
        let whole = start.whole || leader.is_some();
        let values = [
            ask.queue.namespace.as_str().into(),
            ask.queue.name.as_str().into(),
            authority.into(),
            leader.map(|(session, _)| session.as_str()).into(),
            leader.map_or(Value::Null, |(_, token)| int(token.as_u64())),
            seats.as_str().into(),
            start.floors.as_str().into(),
            whole.into(),
        ];
        let message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        let rows = self.shared.claims.run(message.then("task_claim", &values)?).await?;
        let taken = Taken::read(&ask.queue, &start.kinds, &rows)?;
        let cost = taken.looked.then(|| now().since(begun));
        self.shared.floors.end(&ask.queue, taken.last, taken.due, cost, now());
        Ok(match taken.refusal {
            Some(refusal) => ClaimAnswer::Refused(refusal),
            None => ClaimAnswer::Served { tasks: dealt(taken.groups, &limits), next_in: taken.next_in },
        })
    }
}

/// Merges neighbours that differ in nothing; and for each seat its group and its limit.
fn grouped(seats: &[Seat]) -> (Vec<Group<'_>>, Vec<(usize, usize)>) {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut limits = Vec::with_capacity(seats.len());
    let mut left = CLAIM_MAX;
    for seat in seats {
        let limit = seat.limit.min(left);
        left -= limit;
        let (worker, session) = (&seat.worker, seat.session.as_ref().map(SessionId::as_str));
        let same = |last: &&mut Group<'_>| {
            (last.name, last.kinds, last.tags) == (&*worker.name, &*worker.kinds, &*worker.tags)
                && (last.session, last.hold_ms) == (session, seat.hold_ms)
        };
        match groups.last_mut().filter(same) {
            Some(last) => last.wanted += limit,
            None => groups.push(Group {
                name: &worker.name,
                kinds: &worker.kinds,
                tags: &worker.tags,
                session,
                hold_ms: seat.hold_ms,
                wanted: limit,
            }),
        }
        limits.push((groups.len() - 1, limit as usize));
    }
    (groups, limits)
}

/// Gives each seat its share of what its group got, in order.
fn dealt(
    groups: BTreeMap<usize, Vec<(Place, ClaimedTask)>>,
    limits: &[(usize, usize)],
) -> Vec<Vec<ClaimedTask>> {
    let mut groups: HashMap<usize, _> = groups
        .into_iter()
        .map(|(group, mut tasks)| {
            tasks.sort_by_key(|(place, _)| *place);
            (group, tasks.into_iter().map(|(_, task)| task))
        })
        .collect();
    let mut share = |&(group, limit): &(usize, usize)| match groups.get_mut(&group) {
        Some(tasks) => tasks.by_ref().take(limit).collect(),
        None => Vec::new(),
    };
    limits.iter().map(&mut share).collect()
}

/// An answer, as it was read.
#[derive(Default)]
struct Taken {
    groups: BTreeMap<usize, Vec<(Place, ClaimedTask)>>,
    last: HashMap<i32, (Arc<str>, Place)>,
    refusal: Option<ClaimRefusal>,
    next_in: Option<Duration>,
    /// Up to when what was scheduled has been let go, in ms since 1970.
    due: Option<i64>,
    looked: bool,
}

impl Taken {
    fn read(queue: &QueueKey, kinds: &HashMap<i32, Arc<str>>, rows: &[PgRow]) -> Result<Taken, StoreError> {
        let mut taken = Taken::default();
        for row in rows {
            match at::<i32>(row, 0)? {
                -1 => {
                    taken.refusal = get::<Option<&str>>(row, "note")?.map(refusal).transpose()?;
                    taken.next_in = duration(get(row, "next_ms")?)?;
                    taken.due = get(row, "effective_at_ms")?;
                    taken.looked = get::<Option<bool>>(row, "looked")?.unwrap_or(false);
                }
                group => taken.add(number(group, "a seat")?, queue, kinds, row)?,
            }
        }
        Ok(taken)
    }

    fn add(
        &mut self,
        group: usize,
        queue: &QueueKey,
        kinds: &HashMap<i32, Arc<str>>,
        row: &PgRow,
    ) -> Result<(), StoreError> {
        // By number, not by name: this is done for every task that there is.
        let (id, demand, effective_at): (i64, i32, i64) = (at(row, 1)?, at(row, 3)?, at(row, 4)?);
        let kind: Arc<str> = match at::<Option<&str>>(row, 5)? {
            Some(kind) => kind.into(),
            None => kinds.get(&demand).cloned().ok_or_else(|| garbled("a task", "its kind is missing"))?,
        };
        let (usual, priority) = (Backoff::default(), at::<i32>(row, 8)?);
        let (first, most): (Option<i64>, Option<i64>) = (at(row, 13)?, at(row, 14)?);
        let task = ClaimedTask {
            id: TaskId(number(id, "a task's number")?),
            token: Token::from_u64(number(at::<i64>(row, 2)?, "a token")?),
            queue: queue.name.clone(),
            kind: kind.to_string(),
            payload: payload(row, 9)?,
            inputs: match at::<Option<&str>>(row, 16)? {
                Some(inputs) => {
                    serde_json::from_str(inputs).map_err(|error| garbled("a task's inputs", error))?
                }
                None => BTreeMap::new(),
            },
            attempt: number(at::<i32>(row, 6)?, "an attempt")?,
            max_attempts: number(at::<i32>(row, 7)?, "attempts")?,
            backoff: Backoff {
                first_ms: first.map_or(Ok(usual.first_ms), |ms| number(ms, "a backoff"))?,
                most_ms: most.map_or(Ok(usual.most_ms), |ms| number(ms, "a backoff"))?,
            },
            priority,
            max_run_ms: at::<Option<i64>>(row, 12)?.map(|ms| number(ms, "a time")).transpose()?,
            deadline_ms: at(row, 10)?,
            // The other way round of how its place was found.
            enqueued_at_ms: effective_at + i64::from(priority) * PRIORITY_STEP_MS,
            turn: at::<Option<i64>>(row, 11)?.map(|turn| number(turn, "a turn")).transpose()?,
            leader_token: at::<Option<i64>>(row, 15)?
                .map(|token| number(token, "a token").map(Token::from_u64))
                .transpose()?,
            key: at(row, 17)?,
        };
        let place = (effective_at, id);
        let last = self.last.entry(demand).or_insert_with(|| (kind, place));
        last.1 = last.1.max(place);
        self.groups.entry(group).or_default().push((place, task));
        Ok(())
    }
}

pub(super) fn refusal(note: &str) -> Result<ClaimRefusal, StoreError> {
    Ok(match note.split_once(' ').unwrap_or((note, "")) {
        ("mode", "exclusive") => ClaimRefusal::Mode(Mode::Exclusive),
        ("mode", "distributed") => ClaimRefusal::Mode(Mode::Distributed),
        ("not-leader", _) => ClaimRefusal::NotLeader,
        ("paused", _) => ClaimRefusal::Paused,
        ("not-approved", worker) => ClaimRefusal::NotApproved(worker.into()),
        ("gone", session) => ClaimRefusal::Gone(SessionId::from_stored(session)),
        _ => return Err(garbled("a refusal", note)),
    })
}

pub(super) fn duration(ms: Option<i64>) -> Result<Option<Duration>, StoreError> {
    ms.map(|ms| Ok(Duration::from_millis(number(ms, "a time")?))).transpose()
}

/// A column of JSON, to the letter.
fn payload(row: &PgRow, column: usize) -> Result<Json, StoreError> {
    // Not as what the driver takes for JSON, which would read it.
    let text: String = row.try_get(column).map_err(|error| garbled("a payload", error))?;
    text.try_into().map_err(|error| garbled("a payload", error))
}

/// A column of a row, by its number.
fn at<'r, T>(row: &'r PgRow, column: usize) -> Result<T, StoreError>
where
    T: Column<'r>,
{
    row.try_get(column).map_err(|error| garbled("a task", error))
}
