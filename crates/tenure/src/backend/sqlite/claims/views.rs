//! How rows become views.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{
    Fallback, Json, Mode, NewRequest, NewWorker, PoolSettings, QueueKey, QueueSettings, QueueView, RateLimit,
    RequestId, RequestState, RequestView, TaskId, TaskState, TaskView, WorkerView,
};
use tenure_core::{SessionId, Token};

use super::super::connection::{broken, parsed};
use super::super::directory::json;
pub(super) use super::super::row::{backoff, leader_token, pause, token, unsigned};

/// A worker without a session that was not seen for this long is not live.
const SEEN_MS: i64 = 60_000;

pub(super) fn task_view(row: &SqliteRow) -> sqlx::Result<TaskView> {
    let ids = |column| json::<Vec<u64>>(row, column).map(|ids| ids.into_iter().map(TaskId).collect());
    let namespace: &str = row.try_get("namespace")?;
    let concurrency: Option<&str> = row.try_get("concurrency")?;
    Ok(TaskView {
        id: TaskId(row.try_get::<i64, _>("id")?.cast_unsigned()),
        namespace: parsed(row, "namespace")?,
        queue: parsed(row, "queue_name")?,
        kind: row.try_get("kind")?,
        state: state(row)?,
        payload: carried(row.try_get("payload")?)?,
        output: row.try_get::<Option<&str>, _>("output")?.map(carried).transpose()?,
        priority: row.try_get("priority")?,
        requires: json(row, "requires")?,
        prefers: json(row, "prefers")?,
        workers: json(row, "workers")?,
        attempt: row.try_get("attempt")?,
        max_attempts: row.try_get("max_attempts")?,
        backoff: backoff(row)?,
        token: token(row, "token")?,
        turn: row.try_get::<Option<i64>, _>("turn")?.map(i64::cast_unsigned),
        worker: row.try_get("worker")?,
        session: session(row)?,
        progress: row.try_get("progress")?,
        failures: json(row, "failures")?,
        reason: row.try_get("reason")?,
        parents: ids("parent_ids")?,
        children: ids("child_ids")?,
        key: row.try_get("key")?,
        concurrency_key: concurrency.and_then(|key| key.get(namespace.len() + 1..)).map(str::to_owned),
        concurrency_limit: row.try_get("concurrency_limit")?,
        leader_token: leader_token(row)?,
        max_wait_ms: unsigned(row, "max_wait_ms")?,
        max_run_ms: unsigned(row, "max_run_ms")?,
        enqueued_at_ms: row.try_get("enqueued_at")?,
        effective_at_ms: row.try_get("effective_at")?,
        run_at_ms: row.try_get("run_at")?,
        ready_at_ms: row.try_get("ready_at")?,
        claimed_at_ms: row.try_get("claimed_at")?,
        deadline_ms: row.try_get("deadline")?,
        finished_at_ms: row.try_get("finished_at")?,
    })
}

/// A queue without its counts.
pub(super) fn queue_view(row: &SqliteRow) -> sqlx::Result<QueueView> {
    let own = pause(row, "paused_by", "paused_reason", "paused_at")?;
    let all = pause(row, "all_paused_by", "all_paused_reason", "all_paused_at")?;
    Ok(QueueView {
        key: QueueKey::new(parsed(row, "namespace")?, parsed(row, "name")?),
        settings: queue_settings(row)?,
        paused: own.or(all),
        counts: Default::default(),
        oldest_ready_ms: None,
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
        approval: row.try_get("approval")?,
        rate,
        max_claimed: row.try_get("max_claimed")?,
        prefer_ms: row.try_get::<i64, _>("prefer_ms")?.cast_unsigned(),
        keep_ms: row.try_get::<i64, _>("keep_ms")?.cast_unsigned(),
        keep_dead_ms: row.try_get::<i64, _>("keep_dead_ms")?.cast_unsigned(),
    })
}

pub(super) fn pool_settings(row: &SqliteRow) -> sqlx::Result<PoolSettings> {
    Ok(PoolSettings {
        mode: mode(row)?,
        fallback: fallback(row)?,
        cool_down_ms: row.try_get::<i64, _>("cool_down_ms")?.cast_unsigned(),
        priority: row.try_get("priority")?,
        keep_ms: row.try_get::<i64, _>("keep_ms")?.cast_unsigned(),
    })
}

pub(super) fn worker_view(row: &SqliteRow, now: i64) -> sqlx::Result<WorkerView> {
    let session = session(row)?;
    let (seen_at, beat_at): (Option<i64>, Option<i64>) = (row.try_get("seen_at")?, row.try_get("beat_at")?);
    let live = match &session {
        Some(_) => row.try_get("session_live")?,
        None => seen_at.is_some_and(|at| at > now - SEEN_MS),
    };
    Ok(WorkerView {
        namespace: parsed(row, "namespace")?,
        worker: NewWorker {
            name: row.try_get("name")?,
            kind: row.try_get("kind")?,
            tags: json(row, "tags")?,
            kinds: json(row, "kinds")?,
            queues: json(row, "queues")?,
            location: row.try_get("location")?,
            capacity: row.try_get("capacity")?,
            session,
        },
        approved_by: row.try_get("approved_by")?,
        live,
        seen_at_ms: seen_at.max(beat_at).unwrap_or(0),
        claimed: row.try_get::<i64, _>("claimed")?.cast_unsigned(),
    })
}

/// A request, without its priority.
pub(super) fn request_view(row: &SqliteRow) -> sqlx::Result<RequestView> {
    let (word, granted_at): (&str, Option<i64>) = (row.try_get("state")?, row.try_get("granted_at")?);
    Ok(RequestView {
        id: RequestId(row.try_get::<i64, _>("id")?.cast_unsigned()),
        request: NewRequest {
            key: row.try_get("key")?,
            owner: row.try_get("owner")?,
            requires: json(row, "requires")?,
            prefers: json(row, "prefers")?,
            base: row.try_get("base")?,
            session: session(row)?,
            hold_ms: unsigned(row, "hold_ms")?,
            max_wait_ms: unsigned(row, "max_wait_ms")?,
        },
        state: RequestState::from_word(word).ok_or_else(|| strange("state", word))?,
        resource: row.try_get::<Option<&str>, _>("resource")?.map(|_| parsed(row, "resource")).transpose()?,
        token: row.try_get::<Option<i64>, _>("token")?.map(|token| Token::from_u64(token.cast_unsigned())),
        priority: None,
        created_at_ms: row.try_get("created_at")?,
        granted_at_ms: granted_at,
        // Of one that waits, it is when it is given up.
        deadline_ms: granted_at.and(row.try_get("deadline")?),
        ended_at_ms: row.try_get("ended_at")?,
    })
}

pub(super) fn state(row: &SqliteRow) -> sqlx::Result<TaskState> {
    let word: &str = row.try_get("state")?;
    TaskState::from_word(word).ok_or_else(|| strange("state", word))
}

pub(super) fn mode(row: &SqliteRow) -> sqlx::Result<Mode> {
    Ok(if row.try_get::<&str, _>("mode")? == Mode::Exclusive.as_str() {
        Mode::Exclusive
    } else {
        Mode::Distributed
    })
}

pub(super) fn fallback(row: &SqliteRow) -> sqlx::Result<Fallback> {
    Ok(if row.try_get::<&str, _>("fallback")? == Fallback::Distributed.as_str() {
        Fallback::Distributed
    } else {
        Fallback::None
    })
}

/// JSON that is carried.
pub(super) fn carried(text: &str) -> sqlx::Result<Json> {
    text.parse().map_err(|error| broken("payload", error))
}

fn session(row: &SqliteRow) -> sqlx::Result<Option<SessionId>> {
    row.try_get::<Option<String>, _>("session").map(|id| id.map(SessionId::from))
}

fn strange(column: &str, word: &str) -> sqlx::Error {
    broken(column, std::io::Error::other(format!("{word:?} is not a word that Tenure writes there")))
}
