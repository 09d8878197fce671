//! What workers say about their claims.
//!
//! Completions are by far the most of it, and go as one statement for each namespace; whatever else is said goes one by one,
//! in its order, in the same transaction. So does everything, should a task be named twice.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use tenure_core::claim::{check_settlements, clip, span_ms};
use tenure_core::port::{Json, Outcome, Settled, Settlement, StoreError, TaskState};

use super::super::error::garbled;
use super::super::message::{Message, STRICT};
use super::super::store::number;
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{Postgres, get};
use super::submit::{array, text, texts};

/// Something other than a completion, or a completion in its order, as `tenure.settle` reads it.
#[derive(Serialize)]
struct Item {
    id: u64,
    token: u64,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_ms: Option<u64>,
}

impl Item {
    fn of(settlement: &Settlement) -> Self {
        let (id, token) = (settlement.task.0, settlement.token.as_u64());
        let plain = |outcome| Item {
            id,
            token,
            outcome,
            error: None,
            retry: None,
            after_ms: None,
            note: None,
            hold_ms: None,
        };
        match &settlement.outcome {
            Outcome::Complete(_) => plain("complete"),
            Outcome::Fail { error, retry, after } => Item {
                error: Some(clip(error)),
                retry: Some(*retry),
                after_ms: Some(span_ms(*after)),
                ..plain("fail")
            },
            Outcome::Release => plain("release"),
            Outcome::Progress { note, hold } => {
                Item { note: note.as_deref().map(clip), hold_ms: hold.map(span_ms), ..plain("progress") }
            }
        }
    }
}

impl Postgres {
    pub(super) async fn settle_tasks(&self, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        check_settlements(settlements)?;
        let mut named = HashSet::new();
        let twice = !settlements.iter().all(|settlement| named.insert(settlement.task));
        let mut results = vec![Settled::Lost; settlements.len()];
        let mut parts: BTreeMap<_, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (n, settlement) in settlements.iter().enumerate() {
            let (completed, others) = parts.entry(settlement.namespace.as_str()).or_default();
            match settlement.outcome {
                Outcome::Complete(_) if !twice => completed.push(n),
                _ => others.push(n),
            }
        }
        let mut message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        for (namespace, (completed, others)) in &mut parts {
            if !others.is_empty() {
                let items: Vec<_> = others.iter().map(|n| Item::of(&settlements[*n])).collect();
                let outputs = texts(others.iter().map(|n| output(&settlements[*n])));
                let items = text(&items)?;
                let values = [(*namespace).into(), items.as_str().into(), outputs.as_str().into()];
                message = message.then("task_settle", &values)?;
            }
            if !completed.is_empty() {
                // In one order, so that two who settle the same tasks do not meet head-on.
                completed.sort_by_key(|n| settlements[*n].task);
                message = completions(message, namespace, completed.iter().map(|n| &settlements[*n]))?;
            }
        }
        let answers = self.shared.claims.run_all(message).await?;
        // Settings and the like come first, and say nothing of settlements.
        let says = |rows: &&Vec<PgRow>| {
            rows.first().is_some_and(|row| ["now", "done"].iter().any(|name| row.has_column(name)))
        };
        let mut answers = answers.iter().filter(says);
        let mut next = || answers.next().ok_or_else(|| garbled("settlements", "an answer is missing"));
        for (completed, others) in parts.values() {
            if !others.is_empty() {
                for row in next()? {
                    let n: usize = number(get::<i32>(row, "n")?, "a settlement")?;
                    let n = *others.get(n).ok_or_else(|| garbled("a settlement", n))?;
                    results[n] = match get::<Option<&str>>(row, "now")? {
                        Some(word) => Settled::Now(state(word)?),
                        None => Settled::Lost,
                    };
                }
            }
            if !completed.is_empty() {
                let rows = next()?;
                let done = rows.first().map(|row| get::<Option<&str>>(row, "done")).transpose()?.flatten();
                let done: HashSet<&str> = done.unwrap_or_default().split(',').collect();
                for n in completed {
                    if done.contains(settlements[*n].task.to_string().as_str()) {
                        results[*n] = Settled::Now(TaskState::Completed);
                    }
                }
            }
        }
        Ok(results)
    }
}

fn completions<'q, 's>(
    message: Message<'q>,
    namespace: &str,
    completed: impl Iterator<Item = &'s Settlement> + Clone,
) -> Result<Message<'q>, StoreError> {
    let outputs =
        completed.clone().any(|it| output(it).is_some()).then(|| texts(completed.clone().map(output)));
    let ids = array(completed.clone().map(|settlement| settlement.task.0));
    let tokens = array(completed.map(|settlement| settlement.token.as_u64()));
    let values =
        [namespace.into(), ids.as_str().into(), tokens.as_str().into(), Value::from(outputs.as_deref())];
    message.then("task_complete", &values)
}

/// What came of it, if it was completed and something did.
fn output(settlement: &Settlement) -> Option<&str> {
    match &settlement.outcome {
        Outcome::Complete(output) => output.as_ref().map(Json::as_str),
        _ => None,
    }
}

pub(super) fn state(word: &str) -> Result<TaskState, StoreError> {
    TaskState::from_word(word).ok_or_else(|| garbled("a task's state", word))
}
