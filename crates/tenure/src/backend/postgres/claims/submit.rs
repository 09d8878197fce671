//! Submissions, in a transaction of our own or the caller's.

use std::collections::HashMap;

use serde::Serialize;
use sqlx::PgConnection;
use tenure_core::claim::{Demand, check};
use tenure_core::port::{Backoff, NewTask, Parent, StoreError, Submission, Submitted, TaskId};

use super::super::error::{explain, garbled};
use super::super::message::Message;
use super::super::store::number;
use super::super::wire::PgRow;
use super::super::{QUERIES, get};

/// Submits tasks in the transaction on this connection: they are there if it commits, and whoever sleeps is woken then. It
/// works behind a pooler in transaction mode.
pub async fn submit(conn: &mut PgConnection, submission: &Submission) -> Result<Vec<Submitted>, StoreError> {
    let message = written(Message::for_user(&QUERIES), submission, false)?;
    let mut answers = message.run_on(conn).await.map_err(|error| explain(&error, "this connection"))?;
    let rows = answers.pop().unwrap_or_default();
    read(&rows)
}

/// The message of a submission. `own`: in a transaction that is over at once.
pub(super) fn written<'q>(
    message: Message<'q>,
    submission: &Submission,
    own: bool,
) -> Result<Message<'q>, StoreError> {
    check(submission)?;
    let mut places = HashMap::new();
    let mut demands: Vec<Demand> = Vec::new();
    let tasks: Vec<_> = submission
        .tasks
        .iter()
        .map(|task| {
            let demand = Demand::of(task);
            let d = *places.entry(demand).or_insert_with_key(|demand| {
                demands.push(demand.clone());
                demands.len() - 1
            });
            Row::of(task, d)
        })
        .collect();
    let demands: Vec<_> = demands.iter().map(Asked::of).collect();
    let (demands, tasks) = (text(&demands)?, text(&tasks)?);
    let payloads = texts(submission.tasks.iter().map(|task| Some(task.payload.as_str())));
    let queue = &submission.queue;
    let values = [
        queue.namespace.as_str().into(),
        queue.name.as_str().into(),
        demands.as_str().into(),
        tasks.as_str().into(),
        payloads.as_str().into(),
        own.into(),
    ];
    message.then("task_submit", &values)
}

/// What came of it.
pub(super) fn read(rows: &[PgRow]) -> Result<Vec<Submitted>, StoreError> {
    rows.iter()
        .map(|row| {
            let id = TaskId(number(get::<i64>(row, "id")?, "a task's number")?);
            Ok(Submitted { id, new: get(row, "new")? })
        })
        .collect()
}

/// JSON that the server takes as it stands: not as `jsonb`, which would rewrite payloads.
pub(in super::super) fn text<T: Serialize + ?Sized>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| garbled("an argument", error))
}

/// A demand, as `tenure.submit_all` reads it.
#[derive(Serialize)]
pub(in super::super) struct Asked<'a> {
    kind: &'a str,
    requires: &'a [String],
    prefers: &'a [String],
    workers: &'a [String],
}

impl<'a> Asked<'a> {
    pub(in super::super) fn of(demand: &'a Demand) -> Self {
        let Demand { kind, requires, prefers, workers } = demand;
        Asked { kind, requires, prefers, workers }
    }
}

/// A task, as `tenure.submit_all` reads it: what is as usual is left out.
#[derive(Serialize)]
pub(in super::super) struct Row<'a> {
    /// The place of its demand.
    d: usize,
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
    backoff_first_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_most_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parents: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    indexes: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
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

impl<'a> Row<'a> {
    pub(in super::super) fn of(task: &'a NewTask, d: usize) -> Self {
        let usual = task.backoff == Backoff::default();
        let by_id = task.parents.iter().filter_map(|parent| match parent {
            Parent::Task(id) => Some(whole(id.0)),
            Parent::Index(_) => None,
        });
        let by_index = task.parents.iter().filter_map(|parent| match parent {
            Parent::Index(index) => Some(*index),
            Parent::Task(_) => None,
        });
        let (parents, indexes): (Vec<_>, Vec<_>) = (by_id.collect(), by_index.collect());
        Row {
            d,
            priority: task.priority,
            run_at_ms: task.run_at_ms,
            max_wait_ms: task.max_wait_ms.map(whole),
            max_run_ms: task.max_run_ms.map(whole),
            max_attempts: task.max_attempts,
            backoff_first_ms: (!usual).then(|| whole(task.backoff.first_ms)),
            backoff_most_ms: (!usual).then(|| whole(task.backoff.most_ms)),
            parents: (!parents.is_empty()).then_some(parents),
            indexes: (!indexes.is_empty()).then_some(indexes),
            key: task.key.as_deref(),
            concurrency_key: task.concurrency_key.as_deref(),
            concurrency_limit: task.concurrency_key.as_ref().map(|_| task.concurrency_limit),
            leader_token: task.leader_token.map(|token| whole(token.as_u64())),
        }
    }
}

/// As the tables keep it. What is beyond that is for ever, or was never there.
fn whole(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Numbers, as the server reads an array of them.
pub(in super::super) fn array(numbers: impl Iterator<Item = u64>) -> String {
    let numbers: Vec<String> = numbers.map(|n| whole(n).to_string()).collect();
    format!("{{{}}}", numbers.join(","))
}

/// Texts, as the server reads an array of them.
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
    fn arrays_are_written_as_the_server_reads_them() {
        assert_eq!(array([1, u64::MAX].into_iter()), "{1,9223372036854775807}");
        assert_eq!(
            texts([Some(r#"{"a":"\n"}"#), None, Some("")].into_iter()),
            r#"{"{\"a\":\"\\n\"}",NULL,""}"#
        );
        assert_eq!(texts(std::iter::empty()), "{}");
    }
}
