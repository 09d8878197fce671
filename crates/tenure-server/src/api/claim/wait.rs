//! Waiting for tasks within a request.

use std::future::Future;
use std::time::Duration;

use http::StatusCode;
use tenure::port::{
    ClaimOutcome, ClaimRefusal, ClaimRequest, ClaimedTask, ErrorKind, QueueKey, Settlement, StoreError,
};
use tenure::{ClaimResult, Error, TaskClient};

use crate::App;
use crate::access::RequestPermitHandle;
use crate::api::sessions::session_ended;
use crate::problem::Problem;

/// Maximum size of a response in bytes, unless its first task alone is larger. It exceeds the amount that a
/// store claims at once ([`CLAIM_BYTES`](tenure::port::CLAIM_BYTES)). Otherwise tasks that do not fit would
/// be released and later be claimed out of order.
const ANSWER_MAX: usize = 32 * 1024 * 1024;

/// Claim tasks; if none is ready, wait up to `wait`.
pub(super) async fn claim_and_wait(
    app: &App,
    permit: &RequestPermitHandle,
    queue: &QueueKey,
    claim_request: ClaimRequest,
    wait: Duration,
) -> Result<Vec<ClaimedTask>, Problem> {
    let at_once = tasks(claim(app, queue, claim_request.clone(), Duration::ZERO).await?)?;
    if !at_once.is_empty() || wait.is_zero() {
        return Ok(limit_size(app, queue, at_once, &mut 0).await);
    }
    permit.mark_as_stream()?;
    // The response must be sent before the request times out.
    let wait = wait.min(app.timeouts.request * 2 / 3);
    let mut closing = app.closing.subscribe();
    let claimed = tokio::select! {
        claimed = claim(app, queue, claim_request, wait) => tasks(claimed?)?,
        _ = closing.wait_for(|closing| *closing) => Vec::new(),
    };
    Ok(limit_size(app, queue, claimed, &mut 0).await)
}

/// Claim tasks. If the client disconnects meanwhile, the library releases the claimed tasks.
pub(super) async fn claim(
    app: &App,
    queue: &QueueKey,
    claim_request: ClaimRequest,
    wait: Duration,
) -> Result<ClaimResult, Problem> {
    let claimed = app.claims().await?.claim(queue, claim_request, wait);
    match tokio::time::timeout(wait + app.timeouts.store, claimed).await {
        Ok(claimed) => Ok(claimed?),
        Err(_) => Err(late(app)),
    }
}

/// Run a store call of the library with the store timeout.
pub(crate) async fn with_timeout<T>(
    app: &App,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(app.timeouts.store, call).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(late(app)),
    }
}

fn late(app: &App) -> Problem {
    let message = format!("the store did not respond within {:?}", app.timeouts.store);
    StoreError::new(ErrorKind::Timeout, message).into()
}

/// The claimed tasks, or a problem with the reason for the refusal.
fn tasks(claimed: ClaimResult) -> Result<Vec<ClaimedTask>, Problem> {
    match claimed {
        ClaimResult::Tasks(tasks) => Ok(tasks),
        ClaimResult::Refused(refusal) => Err(refusal_problem(refusal)),
        ClaimResult::NoBroker => Err(broker_unavailable()),
    }
}

/// Keep as many tasks as fit into the rest of a response, at least one if the response is empty. Release the
/// others.
pub(super) async fn limit_size(
    app: &App,
    queue: &QueueKey,
    mut tasks: Vec<ClaimedTask>,
    bytes: &mut usize,
) -> Vec<ClaimedTask> {
    let size = |task: &ClaimedTask| {
        let inputs = task.parent_results.values().map(|input| input.as_str().len());
        task.payload.as_str().len() + inputs.sum::<usize>()
    };
    let fit = tasks.iter().take_while(|task| {
        let first = *bytes == 0;
        *bytes += size(task);
        first || *bytes <= ANSWER_MAX
    });
    let count = fit.count();
    if count < tasks.len()
        && let Ok(claims) = app.claims().await
    {
        let rest = tasks.split_off(count);
        release_undelivered(claims, queue, rest).await;
    }
    tasks
}

/// Release claims that their worker never received. A claim that cannot be released ends with its claim
/// timeout or session.
pub(super) async fn release_undelivered(claims: &TaskClient, queue: &QueueKey, tasks: Vec<ClaimedTask>) {
    let settle = |task: ClaimedTask| {
        let (namespace, outcome) = (queue.namespace.clone(), ClaimOutcome::Release);
        claims.settle(Settlement { namespace, task: task.id, token: task.token, outcome })
    };
    for settled in futures_util::future::join_all(tasks.into_iter().map(settle)).await {
        if let Err(error) = settled {
            tracing::warn!(%queue, %error, "releasing a task that did not fit into the response failed");
        }
    }
}

fn refusal_problem(refusal: ClaimRefusal) -> Problem {
    match refusal {
        ClaimRefusal::Paused => {
            let detail = "the queue or its namespace is paused";
            Problem::new(StatusCode::CONFLICT, "paused", detail)
                .field("queue")
                .remedy("wait until it is resumed; GET the queue for the principal and the reason")
                .retry_after(10)
        }
        ClaimRefusal::NotApproved(worker) => {
            let detail = format!("worker {worker} is not approved, and the queue requires approval");
            Problem::new(StatusCode::FORBIDDEN, "worker-not-approved", detail)
                .field("worker")
                .remedy(format!("approve the worker: `tenure workers approve {worker}`"))
        }
        ClaimRefusal::SessionEnded(session) => session_ended(&session).field("session"),
        ClaimRefusal::Mode(_) | ClaimRefusal::NotLeader => broker_unavailable(),
    }
}

/// Problem: no broker can be reached for an exclusive queue or pool.
fn broker_unavailable() -> Problem {
    let detail = "the broker that assigns in strict order is unreachable";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "broker-unavailable", detail)
        .remedy("retry, or set the fallback to `distributed` if approximate order is acceptable")
        .retry_after(1)
}
