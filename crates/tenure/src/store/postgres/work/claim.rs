//! Claims of tasks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tenure_core::port::{
    AssignmentMode, Backoff, CLAIM_MAX, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimRefusal,
    ClaimRequest, ClaimedTask, PRIORITY_STEP_MS, QueueKey, RawJson, StoreError, TaskId,
};
use tenure_core::rules::work::validate_claim_requests;
use tenure_core::{SessionId, Token};

use super::super::error::unexpected_response;
use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::{Column, PgRow};
use super::super::{PostgresStore, get};
use super::claim_cursor::ReadyKey;
use super::submit::text;
use crate::runtime::now;

/// Adjacent requests of one worker, in the form that `tenure.claim_tasks` reads. They are served as one request.
#[derive(Serialize)]
struct WorkerClaimArg<'a> {
    name: &'a str,
    task_kinds: &'a [String],
    tags: &'a [String],
    session: Option<&'a str>,
    claim_timeout_ms: Option<u64>,
    wanted: u32,
}

impl PostgresStore {
    pub(super) async fn claim_tasks(
        &self,
        batch: &ClaimBatchRequest,
    ) -> Result<ClaimBatchResponse, StoreError> {
        validate_claim_requests(&batch.requests)?;
        let (groups, limits) = merge_adjacent(&batch.requests);
        let requests = text(&groups)?;
        let (authority, leader) = match &batch.authority {
            ClaimAuthority::Direct => ("direct", None),
            ClaimAuthority::Leader { session, token } => ("leader", Some((session, *token))),
            ClaimAuthority::Fallback => ("fallback", None),
        };
        let started = now();
        let start = self.shared.claim_cursors.start(&batch.queue, started);
        // The broker assigns in strict order, so it must start at the first ready task and cannot use cursors.
        let full_scan = start.full_scan || leader.is_some();
        let values = [
            batch.queue.namespace.as_str().into(),
            batch.queue.name.as_str().into(),
            authority.into(),
            leader.map(|(session, _)| session.as_str()).into(),
            leader.map_or(Value::Null, |(_, token)| int(token.as_u64())),
            requests.as_str().into(),
            start.cursors.as_str().into(),
            full_scan.into(),
        ];
        let message = Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        let rows = self.shared.claims.run(message.then("task_claim", &values)?).await?;
        let claimed = ClaimRows::read(&batch.queue, &start.kinds, &rows)?;
        let scan_time = claimed.scanned_all.then(|| now().since(started));
        self.shared.claim_cursors.end(&batch.queue, claimed.last, claimed.due_at_ms, scan_time, now());
        Ok(match claimed.refusal {
            Some(refusal) => ClaimBatchResponse::Refused(refusal),
            None => ClaimBatchResponse::Served {
                tasks: distribute(claimed.groups, &limits),
                next_in: claimed.next_in,
            },
        })
    }
}

/// Merge adjacent requests that differ only in their limits. Returns the groups, and for each request its group and
/// limit.
fn merge_adjacent(requests: &[ClaimRequest]) -> (Vec<WorkerClaimArg<'_>>, Vec<(usize, usize)>) {
    let mut groups: Vec<WorkerClaimArg<'_>> = Vec::new();
    let mut limits = Vec::with_capacity(requests.len());
    let mut remaining = CLAIM_MAX;
    for request in requests {
        let limit = request.limit.min(remaining);
        remaining -= limit;
        let (worker, session) = (&request.worker, request.session.as_ref().map(SessionId::as_str));
        let same = |last: &&mut WorkerClaimArg<'_>| {
            (last.name, last.task_kinds, last.tags) == (&*worker.name, &*worker.task_kinds, &*worker.tags)
                && (last.session, last.claim_timeout_ms) == (session, request.claim_timeout_ms)
        };
        match groups.last_mut().filter(same) {
            Some(last) => last.wanted += limit,
            None => groups.push(WorkerClaimArg {
                name: &worker.name,
                task_kinds: &worker.task_kinds,
                tags: &worker.tags,
                session,
                claim_timeout_ms: request.claim_timeout_ms,
                wanted: limit,
            }),
        }
        limits.push((groups.len() - 1, limit as usize));
    }
    (groups, limits)
}

/// Distribute the tasks of each group to its requests, in order.
fn distribute(
    groups: BTreeMap<usize, Vec<(ReadyKey, ClaimedTask)>>,
    limits: &[(usize, usize)],
) -> Vec<Vec<ClaimedTask>> {
    let mut groups: HashMap<usize, _> = groups
        .into_iter()
        .map(|(group, mut tasks)| {
            tasks.sort_by_key(|(key, _)| *key);
            (group, tasks.into_iter().map(|(_, task)| task))
        })
        .collect();
    let mut take = |&(group, limit): &(usize, usize)| match groups.get_mut(&group) {
        Some(tasks) => tasks.by_ref().take(limit).collect(),
        None => Vec::new(),
    };
    limits.iter().map(&mut take).collect()
}

/// The decoded result of `tenure.claim_tasks`.
#[derive(Default)]
struct ClaimRows {
    groups: BTreeMap<usize, Vec<(ReadyKey, ClaimedTask)>>,
    last: HashMap<i32, (Arc<str>, ReadyKey)>,
    refusal: Option<ClaimRefusal>,
    next_in: Option<Duration>,
    /// The time up to which scheduled tasks were made ready.
    due_at_ms: Option<i64>,
    scanned_all: bool,
}

impl ClaimRows {
    fn read(
        queue: &QueueKey,
        kinds: &HashMap<i32, Arc<str>>,
        rows: &[PgRow],
    ) -> Result<ClaimRows, StoreError> {
        let mut claimed = ClaimRows::default();
        for row in rows {
            match at::<i32>(row, 0)? {
                -1 => {
                    claimed.refusal = get::<Option<&str>>(row, "refusal")?.map(refusal).transpose()?;
                    claimed.next_in = duration(get(row, "next_in_ms")?)?;
                    claimed.due_at_ms = get(row, "effective_at_ms")?;
                    claimed.scanned_all = get::<Option<bool>>(row, "scanned_all")?.unwrap_or(false);
                }
                group => claimed.add(number(group, "a request index")?, queue, kinds, row)?,
            }
        }
        Ok(claimed)
    }

    fn add(
        &mut self,
        group: usize,
        queue: &QueueKey,
        kinds: &HashMap<i32, Arc<str>>,
        row: &PgRow,
    ) -> Result<(), StoreError> {
        // By position and not by name: this runs for every claimed task.
        let (id, requirements, effective_at): (i64, i32, i64) = (at(row, 1)?, at(row, 3)?, at(row, 4)?);
        let kind: Arc<str> = match at::<Option<&str>>(row, 5)? {
            Some(kind) => kind.into(),
            None => kinds
                .get(&requirements)
                .cloned()
                .ok_or_else(|| unexpected_response("a task", "the kind is missing"))?,
        };
        let (default, priority) = (Backoff::default(), at::<i32>(row, 8)?);
        let (initial, max): (Option<i64>, Option<i64>) = (at(row, 13)?, at(row, 14)?);
        let task = ClaimedTask {
            id: TaskId(number(id, "a task id")?),
            token: Token::from_u64(number(at::<i64>(row, 2)?, "a token")?),
            queue: queue.name.clone(),
            kind: kind.to_string(),
            payload: payload(row, 9)?,
            parent_results: match at::<Option<&str>>(row, 16)? {
                Some(results) => serde_json::from_str(results)
                    .map_err(|error| unexpected_response("parent results", error))?,
                None => BTreeMap::new(),
            },
            attempt: number(at::<i32>(row, 6)?, "an attempt")?,
            max_attempts: number(at::<i32>(row, 7)?, "attempts")?,
            backoff: Backoff {
                initial_ms: initial.map_or(Ok(default.initial_ms), |ms| number(ms, "a backoff"))?,
                max_ms: max.map_or(Ok(default.max_ms), |ms| number(ms, "a backoff"))?,
            },
            priority,
            max_run_ms: at::<Option<i64>>(row, 12)?.map(|ms| number(ms, "a time")).transpose()?,
            claim_expires_at_ms: at(row, 10)?,
            // The inverse of effective_at.
            submitted_at_ms: effective_at + i64::from(priority) * PRIORITY_STEP_MS,
            claim_seq: at::<Option<i64>>(row, 11)?.map(|seq| number(seq, "a claim sequence")).transpose()?,
            leader_token: at::<Option<i64>>(row, 15)?
                .map(|token| number(token, "a token").map(Token::from_u64))
                .transpose()?,
            idempotency_key: at(row, 17)?,
        };
        let key = (effective_at, id);
        let last = self.last.entry(requirements).or_insert_with(|| (kind, key));
        last.1 = last.1.max(key);
        self.groups.entry(group).or_default().push((key, task));
        Ok(())
    }
}

pub(super) fn refusal(text: &str) -> Result<ClaimRefusal, StoreError> {
    Ok(match text.split_once(' ').unwrap_or((text, "")) {
        ("mode", "exclusive") => ClaimRefusal::Mode(AssignmentMode::Exclusive),
        ("mode", "distributed") => ClaimRefusal::Mode(AssignmentMode::Distributed),
        ("not_leader", _) => ClaimRefusal::NotLeader,
        ("paused", _) => ClaimRefusal::Paused,
        ("not_approved", worker) => ClaimRefusal::NotApproved(worker.into()),
        ("session_ended", session) => ClaimRefusal::SessionEnded(SessionId::from_stored(session)),
        _ => return Err(unexpected_response("a refusal", text)),
    })
}

pub(super) fn duration(ms: Option<i64>) -> Result<Option<Duration>, StoreError> {
    ms.map(|ms| Ok(Duration::from_millis(number(ms, "a time")?))).transpose()
}

/// A column of JSON, as its exact text.
fn payload(row: &PgRow, column: usize) -> Result<RawJson, StoreError> {
    // As text: the driver would parse JSON.
    let text: String = row.try_get(column).map_err(|error| unexpected_response("a payload", error))?;
    text.try_into().map_err(|error| unexpected_response("a payload", error))
}

/// A column of a row, by its position.
fn at<'r, T>(row: &'r PgRow, column: usize) -> Result<T, StoreError>
where
    T: Column<'r>,
{
    row.try_get(column).map_err(|error| unexpected_response("a task", error))
}
