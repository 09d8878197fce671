//! Submissions, in a transaction of the library or of the caller.

use std::collections::HashMap;

use serde::Serialize;
use sqlx::PgConnection;
use tenure_core::port::{Backoff, NewTask, ParentRef, StoreError, Submission, SubmitReceipt, TaskId};
use tenure_core::rules::work::{Requirements, validate_submission};

use super::super::error::{explain, unexpected_response};
use super::super::message::Message;
use super::super::store::number;
use super::super::wire::PgRow;
use super::super::{QUERIES, get};

/// Submit tasks in the transaction on this connection. If it commits, the tasks exist and waiting workers are notified.
/// Works behind a pooler in transaction mode.
pub async fn submit(
    conn: &mut PgConnection,
    submission: &Submission,
) -> Result<Vec<SubmitReceipt>, StoreError> {
    let message = submit_message(Message::for_user(&QUERIES), submission, false)?;
    let mut answers = message.run_on(conn).await.map_err(|error| explain(&error, "this connection"))?;
    let rows = answers.pop().unwrap_or_default();
    receipts(&rows)
}

/// The message of a submission. `own`: whether it runs in its own transaction instead of the caller's.
pub(super) fn submit_message<'q>(
    message: Message<'q>,
    submission: &Submission,
    own: bool,
) -> Result<Message<'q>, StoreError> {
    validate_submission(submission)?;
    let mut indexes = HashMap::new();
    let mut distinct: Vec<Requirements> = Vec::new();
    let tasks: Vec<_> = submission
        .tasks
        .iter()
        .map(|task| {
            let index = *indexes.entry(Requirements::of(task)).or_insert_with_key(|requirements| {
                distinct.push(requirements.clone());
                distinct.len() - 1
            });
            TaskArg::of(task, index)
        })
        .collect();
    let requirements: Vec<_> = distinct.iter().map(RequirementsArg::of).collect();
    let (requirements, tasks) = (text(&requirements)?, text(&tasks)?);
    let payloads = texts(submission.tasks.iter().map(|task| Some(task.payload.as_str())));
    let queue = &submission.queue;
    let values = [
        queue.namespace.as_str().into(),
        queue.name.as_str().into(),
        requirements.as_str().into(),
        tasks.as_str().into(),
        payloads.as_str().into(),
        own.into(),
    ];
    message.then("task_submit", &values)
}

/// The receipts of a submission.
pub(super) fn receipts(rows: &[PgRow]) -> Result<Vec<SubmitReceipt>, StoreError> {
    rows.iter()
        .map(|row| {
            let id = TaskId(number(get::<i64>(row, "task_id")?, "a task id")?);
            Ok(SubmitReceipt { id, created: get(row, "created")? })
        })
        .collect()
}

/// JSON as text, and not as `jsonb`, which would rewrite payloads.
pub(in super::super) fn text<T: Serialize + ?Sized>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| unexpected_response("an argument", error))
}

/// Requirements in the form that `tenure.submit_tasks` reads.
#[derive(Serialize)]
pub(in super::super) struct RequirementsArg<'a> {
    kind: &'a str,
    required_tags: &'a [String],
    preferred_tags: &'a [String],
    allowed_workers: &'a [String],
}

impl<'a> RequirementsArg<'a> {
    pub(in super::super) fn of(requirements: &'a Requirements) -> Self {
        let Requirements { kind, required_tags, preferred_tags, allowed_workers } = requirements;
        RequirementsArg { kind, required_tags, preferred_tags, allowed_workers }
    }
}

/// A task in the form that `tenure.submit_tasks` reads, without the options that have their default.
#[derive(Serialize)]
pub(in super::super) struct TaskArg<'a> {
    /// Index of its requirements.
    requirements_index: usize,
    #[serde(skip_serializing_if = "is_zero")]
    priority: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wait_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_run_ms: Option<i64>,
    max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    initial_backoff_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_backoff_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parents: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_indexes: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leader_token: Option<i64>,
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

impl<'a> TaskArg<'a> {
    pub(in super::super) fn of(task: &'a NewTask, requirements_index: usize) -> Self {
        let default_backoff = task.backoff == Backoff::default();
        let by_id = task.parents.iter().filter_map(|parent| match parent {
            ParentRef::Task(id) => Some(to_bigint(id.0)),
            ParentRef::Index(_) => None,
        });
        let by_index = task.parents.iter().filter_map(|parent| match parent {
            ParentRef::Index(index) => Some(*index),
            ParentRef::Task(_) => None,
        });
        let (parents, indexes): (Vec<_>, Vec<_>) = (by_id.collect(), by_index.collect());
        TaskArg {
            requirements_index,
            priority: task.priority,
            run_at_ms: task.run_at_ms,
            max_wait_ms: task.max_wait_ms.map(to_bigint),
            max_run_ms: task.max_run_ms.map(to_bigint),
            max_attempts: task.max_attempts,
            initial_backoff_ms: (!default_backoff).then(|| to_bigint(task.backoff.initial_ms)),
            max_backoff_ms: (!default_backoff).then(|| to_bigint(task.backoff.max_ms)),
            parents: (!parents.is_empty()).then_some(parents),
            parent_indexes: (!indexes.is_empty()).then_some(indexes),
            idempotency_key: task.idempotency_key.as_deref(),
            concurrency_key: task.concurrency_key.as_deref(),
            concurrency_limit: task.concurrency_key.as_ref().map(|_| task.concurrency_limit),
            leader_token: task.leader_token.map(|token| to_bigint(token.as_u64())),
        }
    }
}

/// A number as a `bigint`. Greater numbers become the maximum: as a duration it means for ever, and no such id exists.
fn to_bigint(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Numbers as a PostgreSQL array literal.
pub(in super::super) fn array(numbers: impl Iterator<Item = u64>) -> String {
    let numbers: Vec<String> = numbers.map(|n| to_bigint(n).to_string()).collect();
    format!("{{{}}}", numbers.join(","))
}

/// Texts as a PostgreSQL array literal.
pub(in super::super) fn texts<'a>(texts: impl Iterator<Item = Option<&'a str>>) -> String {
    let mut out = String::from("{");
    for (n, text) in texts.enumerate() {
        if n > 0 {
            out.push(',');
        }
        let Some(text) = text else {
            out.push_str("NULL");
            continue;
        };
        out.push('"');
        for c in text.chars() {
            if matches!(c, '"' | '\\') {
                out.push('\\');
            }
            out.push(c);
        }
        out.push('"');
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_valid_array_literals() {
        assert_eq!(array([1, u64::MAX].into_iter()), "{1,9223372036854775807}");
        assert_eq!(
            texts([Some(r#"{"a":"\n"}"#), None, Some("")].into_iter()),
            r#"{"{\"a\":\"\\n\"}",NULL,""}"#
        );
        assert_eq!(texts(std::iter::empty()), "{}");
    }
}
