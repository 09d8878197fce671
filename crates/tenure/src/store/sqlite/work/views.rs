//! Conversion of rows to views.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{
    AssignmentMode, BrokerFallback, NewWorker, PoolRequest, PoolRequestId, PoolRequestState, PoolRequestView,
    PoolSettings, QueueKey, QueueSettings, QueueView, RateLimit, RawJson, TaskId, TaskState, TaskView,
    WorkerView,
};
use tenure_core::{SessionId, Token};

pub(super) use super::super::columns::{backoff, leader_token, pause, token, unsigned};
use super::super::connection::{decode_error, parsed};
use super::super::election_admin::json;

/// A worker without a session is online for this long after it was last seen.
const ONLINE_WINDOW_MS: i64 = 60_000;

pub(super) fn task_view(row: &SqliteRow) -> sqlx::Result<TaskView> {
    let ids = |column| json::<Vec<u64>>(row, column).map(|ids| ids.into_iter().map(TaskId).collect());
    let namespace: &str = row.try_get("namespace")?;
    let concurrency_key: Option<&str> = row.try_get("concurrency_key")?;
    Ok(TaskView {
        id: TaskId(row.try_get::<i64, _>("id")?.cast_unsigned()),
        namespace: parsed(row, "namespace")?,
        queue: parsed(row, "queue_name")?,
        kind: row.try_get("kind")?,
        state: state(row)?,
        payload: parse_json(row.try_get("payload")?)?,
        result: row.try_get::<Option<&str>, _>("result")?.map(parse_json).transpose()?,
        priority: row.try_get("priority")?,
        required_tags: json(row, "required_tags")?,
        preferred_tags: json(row, "preferred_tags")?,
        allowed_workers: json(row, "allowed_workers")?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        backoff: backoff(row)?,
        token: token(row, "token")?,
        claim_seq: row.try_get::<Option<i64>, _>("claim_seq")?.map(i64::cast_unsigned),
        worker: row.try_get("worker")?,
        session: session(row)?,
        progress: row.try_get("progress")?,
        failures: json(row, "failures")?,
        end_reason: row.try_get("end_reason")?,
        parents: ids("parent_ids")?,
        children: ids("child_ids")?,
        idempotency_key: row.try_get("idempotency_key")?,
        concurrency_key: concurrency_key.and_then(|key| key.get(namespace.len() + 1..)).map(str::to_owned),
        concurrency_limit: row.try_get("concurrency_limit")?,
        leader_token: leader_token(row)?,
        max_wait_ms: unsigned(row, "max_wait_ms")?,
        max_run_ms: unsigned(row, "max_run_ms")?,
        submitted_at_ms: row.try_get("submitted_at_ms")?,
        effective_at_ms: row.try_get("effective_at_ms")?,
        run_at_ms: row.try_get("run_at_ms")?,
        ready_at_ms: row.try_get("ready_at_ms")?,
        claimed_at_ms: row.try_get("claimed_at_ms")?,
        claim_expires_at_ms: row.try_get("claim_expires_at_ms")?,
        finished_at_ms: row.try_get("finished_at_ms")?,
    })
}

/// A queue without its task counts.
pub(super) fn queue_view(row: &SqliteRow) -> sqlx::Result<QueueView> {
    let own = pause(row, "paused_by", "paused_reason", "paused_at_ms")?;
    let of_namespace =
        pause(row, "namespace_paused_by", "namespace_paused_reason", "namespace_paused_at_ms")?;
    Ok(QueueView {
        key: QueueKey::new(parsed(row, "namespace")?, parsed(row, "name")?),
        settings: queue_settings(row)?,
        paused: own.or(of_namespace),
        counts: Default::default(),
        oldest_ready_age_ms: None,
    })
}

pub(super) fn queue_settings(row: &SqliteRow) -> sqlx::Result<QueueSettings> {
    let rate = match (row.try_get::<Option<u32>, _>("rate_count")?, unsigned(row, "rate_per_ms")?) {
        (Some(count), Some(per_ms)) => Some(RateLimit { count, per_ms }),
        _ => None,
    };
    Ok(QueueSettings {
        mode: mode(row)?,
        fallback: fallback(row)?,
        require_approval: row.try_get("require_approval")?,
        rate,
        max_claimed: row.try_get("max_claimed")?,
        preference_window_ms: row.try_get::<i64, _>("preference_window_ms")?.cast_unsigned(),
        retention_ms: row.try_get::<i64, _>("retention_ms")?.cast_unsigned(),
        dead_retention_ms: row.try_get::<i64, _>("dead_retention_ms")?.cast_unsigned(),
    })
}

pub(super) fn pool_settings(row: &SqliteRow) -> sqlx::Result<PoolSettings> {
    Ok(PoolSettings {
        mode: mode(row)?,
        fallback: fallback(row)?,
        cooldown_ms: row.try_get::<i64, _>("cooldown_ms")?.cast_unsigned(),
        priority_formula: row.try_get("priority_formula")?,
        request_retention_ms: row.try_get::<i64, _>("request_retention_ms")?.cast_unsigned(),
    })
}

pub(super) fn worker_view(row: &SqliteRow, now: i64) -> sqlx::Result<WorkerView> {
    let session = session(row)?;
    let (last_seen_at_ms, heartbeat_at_ms): (Option<i64>, Option<i64>) =
        (row.try_get("last_seen_at_ms")?, row.try_get("heartbeat_at_ms")?);
    let live = match &session {
        Some(_) => row.try_get("session_live")?,
        None => last_seen_at_ms.is_some_and(|at| at > now - ONLINE_WINDOW_MS),
    };
    Ok(WorkerView {
        namespace: parsed(row, "namespace")?,
        worker: NewWorker {
            name: row.try_get("name")?,
            description: row.try_get("description")?,
            tags: json(row, "tags")?,
            task_kinds: json(row, "task_kinds")?,
            queues: json(row, "queues")?,
            location: row.try_get("location")?,
            capacity: row.try_get("capacity")?,
            session,
        },
        approved_by: row.try_get("approved_by")?,
        online: live,
        last_seen_at_ms: last_seen_at_ms.max(heartbeat_at_ms).unwrap_or(0),
        claimed_count: row.try_get::<i64, _>("claimed_count")?.cast_unsigned(),
    })
}

/// A pool request without its priority.
pub(super) fn pool_request_view(row: &SqliteRow) -> sqlx::Result<PoolRequestView> {
    let (text, granted_at_ms): (&str, Option<i64>) = (row.try_get("state")?, row.try_get("granted_at_ms")?);
    Ok(PoolRequestView {
        id: PoolRequestId(row.try_get::<i64, _>("id")?.cast_unsigned()),
        request: PoolRequest {
            idempotency_key: row.try_get("idempotency_key")?,
            owner: row.try_get("owner")?,
            required_tags: json(row, "required_tags")?,
            preferred_tags: json(row, "preferred_tags")?,
            base_priority: row.try_get("base_priority")?,
            session: session(row)?,
            claim_timeout_ms: unsigned(row, "claim_timeout_ms")?,
            max_wait_ms: unsigned(row, "max_wait_ms")?,
        },
        state: PoolRequestState::from_name(text).ok_or_else(|| unexpected_value("state", text))?,
        resource: row.try_get::<Option<&str>, _>("resource")?.map(|_| parsed(row, "resource")).transpose()?,
        token: row.try_get::<Option<i64>, _>("token")?.map(|token| Token::from_u64(token.cast_unsigned())),
        priority: None,
        created_at_ms: row.try_get("created_at_ms")?,
        granted_at_ms,
        // While the request waits, the column holds the end of the wait.
        expires_at_ms: granted_at_ms.and(row.try_get("expires_at_ms")?),
        ended_at_ms: row.try_get("ended_at_ms")?,
    })
}

pub(super) fn state(row: &SqliteRow) -> sqlx::Result<TaskState> {
    let text: &str = row.try_get("state")?;
    TaskState::from_name(text).ok_or_else(|| unexpected_value("state", text))
}

pub(super) fn mode(row: &SqliteRow) -> sqlx::Result<AssignmentMode> {
    Ok(if row.try_get::<&str, _>("mode")? == AssignmentMode::Exclusive.as_str() {
        AssignmentMode::Exclusive
    } else {
        AssignmentMode::Distributed
    })
}

pub(super) fn fallback(row: &SqliteRow) -> sqlx::Result<BrokerFallback> {
    Ok(if row.try_get::<&str, _>("fallback")? == BrokerFallback::Distributed.as_str() {
        BrokerFallback::Distributed
    } else {
        BrokerFallback::None
    })
}

/// Parse a JSON column.
pub(super) fn parse_json(text: &str) -> sqlx::Result<RawJson> {
    text.parse().map_err(|error| decode_error("payload", error))
}

fn session(row: &SqliteRow) -> sqlx::Result<Option<SessionId>> {
    row.try_get::<Option<String>, _>("session").map(|id| id.map(SessionId::from))
}

fn unexpected_value(column: &str, value: &str) -> sqlx::Error {
    decode_error(column, std::io::Error::other(format!("{value:?} is not a valid value")))
}
