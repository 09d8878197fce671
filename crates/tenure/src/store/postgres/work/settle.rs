//! Settlements of claims.
//!
//! Completions are the usual case and go as one statement for each namespace. Other settlements are applied one by one, in
//! order, in the same transaction. If a task occurs twice, all settlements are applied that way.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;
use tenure_core::port::{ClaimOutcome, RawJson, SettleResult, Settlement, StoreError, TaskState};
use tenure_core::rules::work::{bounded_ms, clip, validate_settlements};

use super::super::error::unexpected_response;
use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::number;
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{PostgresStore, get};
use super::submit::{array, text, texts};

/// A settlement in the form that `tenure.settle_tasks` reads.
#[derive(Serialize)]
struct SettlementArg {
    id: u64,
    token: u64,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim_timeout_ms: Option<u64>,
}

impl SettlementArg {
    fn of(settlement: &Settlement) -> Self {
        let (id, token) = (settlement.task.0, settlement.token.as_u64());
        let plain = |outcome| SettlementArg {
            id,
            token,
            outcome,
            error: None,
            retry: None,
            retry_in_ms: None,
            progress: None,
            claim_timeout_ms: None,
        };
        match &settlement.outcome {
            ClaimOutcome::Complete(_) => plain("complete"),
            ClaimOutcome::Fail { error, retry, retry_in } => SettlementArg {
                error: Some(clip(error)),
                retry: Some(*retry),
                retry_in_ms: Some(bounded_ms(*retry_in)),
                ..plain("fail")
            },
            ClaimOutcome::Release => plain("release"),
            ClaimOutcome::Heartbeat { progress, claim_timeout } => SettlementArg {
                progress: progress.as_deref().map(clip),
                claim_timeout_ms: claim_timeout.map(bounded_ms),
                ..plain("heartbeat")
            },
        }
    }
}

impl PostgresStore {
    pub(super) async fn settle_tasks(
        &self,
        settlements: &[Settlement],
    ) -> Result<Vec<SettleResult>, StoreError> {
        validate_settlements(settlements)?;
        let mut seen = HashSet::new();
        let has_duplicates = !settlements.iter().all(|settlement| seen.insert(settlement.task));
        let mut results = vec![SettleResult::ClaimLost; settlements.len()];
        let mut parts: BTreeMap<_, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (n, settlement) in settlements.iter().enumerate() {
            let (completed, others) = parts.entry(settlement.namespace.as_str()).or_default();
            match settlement.outcome {
                ClaimOutcome::Complete(_) if !has_duplicates => completed.push(n),
                _ => others.push(n),
            }
        }
        let mut message =
            Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        for (namespace, (completed, others)) in &mut parts {
            if !others.is_empty() {
                let items: Vec<_> = others.iter().map(|n| SettlementArg::of(&settlements[*n])).collect();
                let task_results = texts(others.iter().map(|n| task_result(&settlements[*n])));
                let items = text(&items)?;
                let values = [(*namespace).into(), items.as_str().into(), task_results.as_str().into()];
                message = message.then("task_settle", &values)?;
            }
            if !completed.is_empty() {
                // In ascending order, so that two calls with the same tasks do not deadlock.
                completed.sort_by_key(|n| settlements[*n].task);
                message = completions(message, namespace, completed.iter().map(|n| &settlements[*n]))?;
            }
        }
        let answers = self.shared.claims.run_all(message).await?;
        // Statements such as settings come first and return no settlements.
        let has_results = |rows: &&Vec<PgRow>| {
            rows.first().is_some_and(|row| ["new_state", "completed"].iter().any(|name| row.has_column(name)))
        };
        let mut answers = answers.iter().filter(has_results);
        let mut next =
            || answers.next().ok_or_else(|| unexpected_response("settlements", "a response is missing"));
        for (completed, others) in parts.values() {
            if !others.is_empty() {
                for row in next()? {
                    let n: usize = number(get::<i32>(row, "index")?, "a settlement")?;
                    let n = *others.get(n).ok_or_else(|| unexpected_response("a settlement", n))?;
                    results[n] = match get::<Option<&str>>(row, "new_state")? {
                        Some(word) => SettleResult::Applied(state(word)?),
                        None => SettleResult::ClaimLost,
                    };
                }
            }
            if !completed.is_empty() {
                let rows = next()?;
                let ids =
                    rows.first().map(|row| get::<Option<&str>>(row, "completed")).transpose()?.flatten();
                let ids: HashSet<&str> = ids.unwrap_or_default().split(',').collect();
                for n in completed {
                    if ids.contains(settlements[*n].task.to_string().as_str()) {
                        results[*n] = SettleResult::Applied(TaskState::Completed);
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
    let task_results = completed
        .clone()
        .any(|settlement| task_result(settlement).is_some())
        .then(|| texts(completed.clone().map(task_result)));
    let ids = array(completed.clone().map(|settlement| settlement.task.0));
    let tokens = array(completed.map(|settlement| settlement.token.as_u64()));
    let values =
        [namespace.into(), ids.as_str().into(), tokens.as_str().into(), Value::from(task_results.as_deref())];
    message.then("task_complete", &values)
}

/// The result of a completed task, if there is one.
fn task_result(settlement: &Settlement) -> Option<&str> {
    match &settlement.outcome {
        ClaimOutcome::Complete(result) => result.as_ref().map(RawJson::as_str),
        _ => None,
    }
}

pub(super) fn state(word: &str) -> Result<TaskState, StoreError> {
    TaskState::from_name(word).ok_or_else(|| unexpected_response("a task's state", word))
}
