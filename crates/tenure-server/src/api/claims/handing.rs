//! Waiting for tasks, for as long as the request allows.

use std::future::Future;
use std::time::Duration;

use http::StatusCode;
use tenure::port::{ClaimRefusal, ClaimedTask, Outcome, QueueKey, Seat, Settlement, StoreError, Trouble};
use tenure::{Claimed, Claims, Error};

use crate::App;
use crate::access::Slot;
use crate::api::sessions::gone;
use crate::problem::Problem;

/// How much one answer carries at most, in bytes, unless its first task alone is larger. More than what a store hands out at once
/// ([`CLAIM_BYTES`](tenure::port::CLAIM_BYTES)): what did not fit would go back, and be claimed out of order.
const ANSWER_MAX: usize = 32 * 1024 * 1024;

/// Asks for tasks: at once, and then, if there are none, for as long as `wait`.
pub(super) async fn handed(
    app: &App,
    slot: &Slot,
    queue: &QueueKey,
    seat: Seat,
    wait: Duration,
) -> Result<Vec<ClaimedTask>, Problem> {
    let at_once = tasks(ask(app, queue, seat.clone(), Duration::ZERO).await?)?;
    if !at_once.is_empty() || wait.is_zero() {
        return Ok(fitting(app, queue, at_once, &mut 0).await);
    }
    slot.lengthen()?;
    // The answer has to be on its way before the request is given up.
    let wait = wait.min(app.timeouts.request * 2 / 3);
    let mut closing = app.closing.subscribe();
    let claimed = tokio::select! {
        claimed = ask(app, queue, seat, wait) => tasks(claimed?)?,
        _ = closing.wait_for(|closing| *closing) => Vec::new(),
    };
    Ok(fitting(app, queue, claimed, &mut 0).await)
}

/// Asks for tasks. A client that goes away meanwhile leaves nothing claimed: the library gives back what nobody takes.
pub(super) async fn ask(app: &App, queue: &QueueKey, seat: Seat, wait: Duration) -> Result<Claimed, Problem> {
    let claimed = app.claims().await?.claim(queue, seat, wait);
    match tokio::time::timeout(wait + app.timeouts.store, claimed).await {
        Ok(claimed) => Ok(claimed?),
        Err(_) => Err(late(app)),
    }
}

/// A call to the store through the library, bounded.
pub(crate) async fn within<T>(app: &App, call: impl Future<Output = Result<T, Error>>) -> Result<T, Problem> {
    match tokio::time::timeout(app.timeouts.store, call).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(late(app)),
    }
}

fn late(app: &App) -> Problem {
    let message = format!("the store did not answer within {:?}", app.timeouts.store);
    StoreError::new(Trouble::Timeout, message).into()
}

/// What was handed out, or why nothing was.
fn tasks(claimed: Claimed) -> Result<Vec<ClaimedTask>, Problem> {
    match claimed {
        Claimed::Tasks(tasks) => Ok(tasks),
        Claimed::Refused(refusal) => Err(refused(refusal)),
        Claimed::NotNow => Err(not_now()),
    }
}

/// As many of the tasks as fit into an answer that has so many bytes already; its first task does in any case. The others go
/// back to their queue.
pub(super) async fn fitting(
    app: &App,
    queue: &QueueKey,
    mut tasks: Vec<ClaimedTask>,
    bytes: &mut usize,
) -> Vec<ClaimedTask> {
    let size = |task: &ClaimedTask| {
        let inputs = task.inputs.values().map(|input| input.as_str().len());
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
        give_back(claims, queue, rest).await;
    }
    tasks
}

/// Returns claims that their worker never heard of. What can not be returned ends with its hold or its session.
pub(super) async fn give_back(claims: &Claims, queue: &QueueKey, tasks: Vec<ClaimedTask>) {
    let settle = |task: ClaimedTask| {
        let (namespace, outcome) = (queue.namespace.clone(), Outcome::Release);
        claims.settle(Settlement { namespace, task: task.id, token: task.token, outcome })
    };
    for settled in futures_util::future::join_all(tasks.into_iter().map(settle)).await {
        if let Err(error) = settled {
            tracing::warn!(%queue, "a task that did not fit into an answer was not given back: {error}");
        }
    }
}

fn refused(refusal: ClaimRefusal) -> Problem {
    match refusal {
        ClaimRefusal::Paused => {
            let detail = "an operator has paused this queue, or its namespace: nothing is handed out";
            Problem::new(StatusCode::CONFLICT, "paused", detail)
                .field("queue")
                .remedy("wait until it is resumed; GET the queue says who paused it and why")
                .retry_after(10)
        }
        ClaimRefusal::NotApproved(worker) => {
            let detail = format!("worker {worker} is not approved, and this queue asks for approval");
            Problem::new(StatusCode::FORBIDDEN, "not-approved", detail)
                .field("worker")
                .remedy(format!("an operator approves it: `tenure workers approve {worker}`"))
        }
        ClaimRefusal::Gone(session) => gone(&session).field("session"),
        ClaimRefusal::Mode(_) | ClaimRefusal::NotLeader => not_now(),
    }
}

/// Nobody hands out what is exclusive.
fn not_now() -> Problem {
    let detail = "this is handed out in strict order by one leader, which can not be reached now";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-now", detail)
        .remedy("ask again; or let the fallback be `distributed`, if order may be approximate meanwhile")
        .retry_after(1)
}
