//! `tenure tasks claim`, and the commands that settle its claims.
//!
//! A finished command sends no heartbeats, so its claims have a claim timeout (`--claim-timeout`) instead of a session.

use std::time::Duration;

use serde_json::json;
use tenure::port::{
    ClaimOutcome, ClaimRefusal, ClaimRequest, ClaimedTask, NewWorker, QueueKey, SettleResult, Settlement,
    Store, TaskId, TaskState, WorkerProfile,
};
use tenure::runtime::{RuntimeEntropy, SystemRuntime, host_name, now, wall_ms};
use tenure::{ClaimResult, Name, Tenure};

use crate::args::parsers::millis;
use crate::args::tasks::{ClaimArgs, ClaimTokenArgs};
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::elections::whoami;
use crate::commands::input;
use crate::commands::maintenance;
use crate::commands::signals::Signals;
use crate::error::{self, CliError};
use crate::output::{self, Table, TextStyle, ago, clipped};
use crate::store;

/// Time that a newly elected broker may take until it is reachable.
const BROKER_STARTUP: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) async fn run(global: &GlobalArgs, args: ClaimArgs) -> Result<u8, CliError> {
    let queue = store::queue(global, &args.queue)?;
    let named = args.name.is_some();
    let worker =
        WorkerProfile { name: args.name.unwrap_or_else(whoami), task_kinds: args.kinds, tags: args.tags };
    let request = ClaimRequest {
        worker,
        limit: args.limit,
        session: None,
        claim_timeout_ms: Some(millis(args.claim_timeout)),
    };
    tenure::rules::work::validate_claim_requests(std::slice::from_ref(&request))
        .map_err(|error| CliError::usage(error.to_string()))?;
    let mut signals = Signals::ending()?;
    let tenure = store::session_without_candidate(global).await?;
    if named {
        register(tenure.store().as_ref(), &queue, &request).await?;
    }
    let claimed = tokio::select! {
        claimed = claim(&tenure, &queue, &request, args.wait) => claimed,
        signal = signals.next() => {
            tenure.close().await?;
            return Ok(128 + signal as u8);
        }
    };
    let result = match claimed {
        Ok(claimed) => print_claimed(global, tenure.store().as_ref(), &queue, &request, claimed).await,
        Err(failure) => Err(failure),
    };
    tenure.close().await?;
    result
}

async fn claim(
    tenure: &Tenure,
    queue: &QueueKey,
    request: &ClaimRequest,
    wait: Duration,
) -> Result<ClaimResult, CliError> {
    maintenance::ensure_broker(tenure).await?;
    let settled = now() + BROKER_STARTUP;
    loop {
        match tenure.tasks().claim(queue, request.clone(), wait).await? {
            // A newly elected broker, possibly this process, may not be reachable yet.
            ClaimResult::NoBroker if now() < settled => tokio::time::sleep(POLL_INTERVAL).await,
            claimed => return Ok(claimed),
        }
    }
}

/// Registers a named worker, so that operators see it and can approve it.
async fn register(store: &dyn Store, queue: &QueueKey, request: &ClaimRequest) -> Result<(), CliError> {
    let worker = NewWorker {
        name: request.worker.name.clone(),
        description: "shell".into(),
        tags: request.worker.tags.clone(),
        task_kinds: request.worker.task_kinds.clone(),
        queues: vec![queue.name.clone()],
        location: host_name(),
        capacity: request.limit,
        session: None,
    };
    Ok(store.register_worker(&queue.namespace, &worker).await?)
}

async fn print_claimed(
    global: &GlobalArgs,
    store: &dyn Store,
    queue: &QueueKey,
    request: &ClaimRequest,
    claimed: ClaimResult,
) -> Result<u8, CliError> {
    let nothing = match claimed {
        ClaimResult::Tasks(tasks) if !tasks.is_empty() => {
            show(global, &tasks);
            return Ok(0);
        }
        ClaimResult::Tasks(_) => format!("no task to claim in {queue}"),
        ClaimResult::NoBroker => format!(
            "{queue} is exclusive, and its broker is unreachable; retry, or allow direct claims meanwhile: tenure queues mode {} \
             exclusive --fallback distributed",
            queue.name
        ),
        ClaimResult::Refused(ClaimRefusal::Paused) => paused(store, queue).await?,
        ClaimResult::Refused(ClaimRefusal::NotApproved(name)) => {
            register(store, queue, request).await?;
            format!(
                "the worker {name} is not approved for {queue}; an operator approves it with: tenure workers approve {name}"
            )
        }
        ClaimResult::Refused(refusal) => format!("{queue} assigned no task: {}", refusal_text(&refusal)),
    };
    output::note(global, TextStyle::Yellow, &nothing);
    Ok(error::NOT_ACQUIRED)
}

async fn paused(store: &dyn Store, queue: &QueueKey) -> Result<String, CliError> {
    let pause = store.queue(queue).await?.and_then(|view| view.paused);
    let by = pause.map(|pause| {
        let reason = if pause.reason.is_empty() { String::new() } else { format!(" ({})", pause.reason) };
        format!(" by {}{reason}", pause.paused_by)
    });
    Ok(format!("{queue} is paused{}; resume it with: tenure queues resume", by.unwrap_or_default()))
}

fn refusal_text(refusal: &ClaimRefusal) -> String {
    match refusal {
        ClaimRefusal::Mode(mode) => format!("its mode has just changed to {}; retry", mode.as_str()),
        ClaimRefusal::NotLeader => "the broker is changing; retry".into(),
        ClaimRefusal::SessionEnded(session) => format!("the session {} has ended; retry", session.short()),
        ClaimRefusal::Paused => "it is paused".into(),
        ClaimRefusal::NotApproved(name) => format!("the worker {name} is not approved"),
    }
}

fn show(global: &GlobalArgs, tasks: &[ClaimedTask]) {
    if global.output == OutputFormat::Json {
        tasks.iter().for_each(output::print_json);
        return;
    }
    let now_ms = wall_ms();
    let mut table =
        Table::new(&["task", "token", "kind", "attempt", "until", "payload"]).right(&["task", "attempt"]);
    for task in tasks {
        let until =
            task.claim_expires_at_ms.map_or_else(|| "–".to_owned(), |at| format!("in {}", ago(now_ms, at)));
        table.row(vec![
            (task.id.to_string(), TextStyle::Bold),
            (task.token.to_string(), TextStyle::Green),
            (task.kind.clone(), TextStyle::Plain),
            (format!("{}/{}", task.attempt, task.max_attempts), TextStyle::Plain),
            (until, TextStyle::Plain),
            (shown(task.payload.as_str()), TextStyle::Dim),
        ]);
    }
    output::print_text(&table.render());
}

pub(super) async fn complete(
    global: &GlobalArgs,
    claim: &ClaimTokenArgs,
    result: Option<&str>,
) -> Result<u8, CliError> {
    let result = result.map(|text| input::json("--result", text)).transpose()?;
    let store = store::open(global).await?;
    settle(global, store.as_ref(), claim, ClaimOutcome::Complete(result)).await
}

pub(super) async fn fail(
    global: &GlobalArgs,
    claim: &ClaimTokenArgs,
    error: String,
    retry: bool,
    retry_in: Option<Duration>,
) -> Result<u8, CliError> {
    let store = store::open(global).await?;
    let retry_in = match (retry, retry_in) {
        (false, _) => Duration::ZERO,
        (true, Some(retry_in)) => retry_in,
        (true, None) => {
            let task =
                super::existing(store.as_ref(), &global.namespace.parse()?, TaskId(claim.task_id)).await?;
            tenure::rules::work::backoff(task.backoff, task.attempt, &mut RuntimeEntropy(&SystemRuntime))
        }
    };
    settle(global, store.as_ref(), claim, ClaimOutcome::Fail { error, retry, retry_in }).await
}

pub(super) async fn release(global: &GlobalArgs, claim: &ClaimTokenArgs) -> Result<u8, CliError> {
    let store = store::open(global).await?;
    settle(global, store.as_ref(), claim, ClaimOutcome::Release).await
}

pub(super) async fn heartbeat(
    global: &GlobalArgs,
    claim: &ClaimTokenArgs,
    claim_timeout: Duration,
    progress: Option<String>,
) -> Result<u8, CliError> {
    let store = store::open(global).await?;
    settle(
        global,
        store.as_ref(),
        claim,
        ClaimOutcome::Heartbeat { progress, claim_timeout: Some(claim_timeout) },
    )
    .await
}

async fn settle(
    global: &GlobalArgs,
    store: &dyn Store,
    claim: &ClaimTokenArgs,
    outcome: ClaimOutcome,
) -> Result<u8, CliError> {
    let namespace: Name = global.namespace.parse()?;
    let (task, token) = (TaskId(claim.task_id), claim.token);
    let settlement = Settlement { namespace: namespace.clone(), task, token, outcome };
    let settled = store.settle(&[settlement]).await?.first().copied().unwrap_or(SettleResult::ClaimLost);
    match settled {
        SettleResult::Applied(state) => {
            if global.output == OutputFormat::Json {
                output::print_json(&json!({"task_id": task, "state": state}));
            } else {
                output::note(global, style(state), &format!("task {task} is {}", state.as_str()));
            }
            Ok(0)
        }
        SettleResult::ClaimLost => Err(lost(store, &namespace, claim).await?),
    }
}

fn style(state: TaskState) -> TextStyle {
    match state {
        TaskState::Dead => TextStyle::Red,
        TaskState::Scheduled => TextStyle::Yellow,
        _ => TextStyle::Green,
    }
}

/// Error for a lost claim, with the current state of the task.
async fn lost(store: &dyn Store, namespace: &Name, claim: &ClaimTokenArgs) -> Result<CliError, CliError> {
    let task = super::existing(store, namespace, TaskId(claim.task_id)).await?;
    let now = match (task.state, &task.worker) {
        (TaskState::Claimed, Some(worker)) => format!("{worker} has claimed it under token {}", task.token),
        (state, _) => format!("it is {} and its last token is {}", state.as_str(), task.token),
    };
    Ok(CliError::new(
        error::LOST,
        format!(
            "claim lost: task {} is not claimed under token {}: {now}; nothing was changed",
            claim.task_id, claim.token
        ),
    ))
}
/// Maximum length of a payload in a table.
const SHOWN: usize = 200;

/// A payload in a table, cut if it is long.
fn shown(payload: &str) -> String {
    match payload.len() > SHOWN {
        true => format!("{} ({} bytes; -o json prints them)", clipped(payload, SHOWN), payload.len()),
        false => payload.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a table printed a payload of 900 KB in full.
    #[test]
    fn a_table_shows_the_beginning_of_a_long_payload() {
        assert_eq!(shown(r#"{"to":"ada"}"#), r#"{"to":"ada"}"#);
        let long = shown(&"x".repeat(900_000));
        assert!(long.len() < 300 && long.ends_with("… (900000 bytes; -o json prints them)"), "{long}");
    }
}
