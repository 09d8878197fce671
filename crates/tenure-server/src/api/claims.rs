//! Claims, one by one: for workers that speak plain HTTP.
//!
//! A claim lives on the beat of a session that the worker keeps alive, or for `hold_ms` at a time, or both. Whatever is said about
//! it names the token that came with it, so that any replica takes it in, and a worker that lost its claim can say nothing more.
//! One request is one task or a few; requests at the same time share a statement in the store.

mod batch;
mod handing;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    CLAIM_MAX, ClaimedTask, Json as Raw, Outcome, PAYLOAD_MAX, Profile, QueueKey, Seat, Settled, Settlement,
    TaskId, TaskState, TaskView, Verb,
};
use tenure::runtime::Draw;
use tenure::{Name, SessionId, Token};
use tenure_core::claim::{backoff, check_seats};
use utoipa::ToSchema;
use utoipa_axum::routes;

use self::handing::handed;
pub(super) use self::handing::within;
use super::campaign::plausible_token;
use super::given::{At, Given, In};
use super::owned::{owned, plausible};
use super::sense::of_ask;
use super::sessions::{Within, short, unfit};
use super::tasks::find;
use crate::App;
use crate::access::{Principal, Slot};
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// How long a claim without a session lasts, unless it says otherwise.
const HOLD_MS: u64 = 60_000;
/// How long a claim lasts at most without another word: a day.
const HOLD_MAX_MS: u64 = 24 * 3_600_000;
/// The longest that a request waits for a task or a resource.
const WAIT_MAX_MS: u64 = 60_000;
/// How much is kept of what went wrong, in bytes.
const ERROR_MAX: usize = 8 * 1024;

pub(crate) fn routes() -> Routes {
    let work = Need::In(Verb::Claim);
    Routes::new()
        .api(work, routes!(claim))
        .api_large(work, routes!(complete))
        .api(work, routes!(fail))
        .api(work, routes!(release))
        .api_heartbeat(work, routes!(heartbeat))
        .merge(batch::routes())
}

/// A worker that asks for tasks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"worker": "w-1", "limit": 1, "hold_ms": 60000, "wait_ms": 30000}))]
pub(crate) struct ClaimTasks {
    /// Its name: what tasks call it, and what approval is given to.
    #[schema(max_length = 1024, example = "w-1")]
    worker: String,
    /// The kinds of tasks that it knows. Empty: every kind.
    #[serde(default)]
    kinds: Vec<String>,
    /// What it has.
    #[serde(default)]
    tags: Vec<String>,
    /// How many tasks at most.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    limit: u32,
    /// The session on whose beat the claims live, opened through a server by whoever asks.
    session: Option<SessionId>,
    /// How long the claims last unless a heartbeat extends them; without a session, a minute unless said otherwise.
    #[schema(minimum = 1, maximum = 86400000, default = 60000)]
    hold_ms: Option<u64>,
    /// How long to wait for the first task.
    #[serde(default)]
    #[schema(default = 0, maximum = 60000)]
    wait_ms: u64,
}

fn one() -> u32 {
    1
}

/// Tasks that were handed out.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimedTasks {
    /// The tasks, in the order of the queue. None if there were none in time.
    tasks: Vec<ClaimedTask>,
}

/// A task that is done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 1, "output": {"sent": true}}))]
pub(crate) struct Completion {
    /// The token of the claim.
    token: Token,
    /// What came of it: the input of tasks that wait for it.
    #[serde(default, deserialize_with = "given")]
    output: Option<Raw>,
}

/// What is given is given, and be it `null`.
fn given<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Raw>, D::Error> {
    Raw::deserialize(from).map(Some)
}

/// A task that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 1, "error": "no route to host"}))]
pub(crate) struct FailedAttempt {
    /// The token of the claim.
    token: Token,
    /// What went wrong. Of a long text, the beginning is kept.
    error: String,
    /// Whether it is worth another attempt, should there be one left.
    #[serde(default = "yes")]
    #[schema(default = true)]
    retry: bool,
    /// In how long, instead of what the task's backoff says.
    after_ms: Option<u64>,
}

fn yes() -> bool {
    true
}

/// A claim that is given back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 1}))]
pub(crate) struct GivenBack {
    /// The token of the claim.
    token: Token,
}

/// A claim that goes on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 1, "progress": "3 of 7", "hold_ms": 60000}))]
pub(crate) struct Heartbeat {
    /// The token of the claim.
    token: Token,
    /// How far, for people.
    #[schema(max_length = 1024)]
    progress: Option<String>,
    /// How long the claim lasts from now. Left out, a claim without a session lasts another minute.
    #[schema(minimum = 1, maximum = 86400000)]
    hold_ms: Option<u64>,
}

/// Where a task stands now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TaskStanding)]
pub(crate) struct Standing {
    /// The task.
    id: TaskId,
    /// Where it stands.
    state: TaskState,
}

/// Claim tasks
///
/// Asks for up to `limit` tasks and waits up to `wait_ms` for the first. Each comes with a *token*: whatever is said about the task
/// names it. Without a session, a claim ends after `hold_ms` unless a heartbeat extends it, and the task goes back to its queue.
///
/// In an exclusive queue tasks are handed out in strict order, by the leader; while that can not be reached, and the queue wants
/// no fallback, the answer is `503` with the code `not-now`.
#[utoipa::path(post, path = "/v1/queues/{queue}/claim", tag = "tasks", params(("queue" = Name, Path), Within),
    request_body = ClaimTasks,
    responses((status = 200, body = ClaimedTasks),
        (status = 403, body = Problem, description = "The worker is not approved, or not allowed."),
        (status = 409, body = Problem, description = "The queue is paused."),
        (status = 410, body = Problem, description = "The session is over."),
        (status = 503, body = Problem, description = "Not now: the leader can not be reached.")))]
pub(crate) async fn claim(
    State(app): State<App>,
    principal: Principal,
    slot: Slot,
    At(queue): At<Name>,
    In(within): In<Within>,
    Given(ask): Given<ClaimTasks>,
) -> Result<Json<ClaimedTasks>, Problem> {
    let wait = patient(ask.wait_ms)?;
    let worker = Profile { name: ask.worker, kinds: ask.kinds, tags: ask.tags };
    let hold_ms = ask.hold_ms.or_else(|| ask.session.is_none().then_some(HOLD_MS));
    let seat = Seat { worker, limit: ask.limit, session: ask.session, hold_ms };
    check_seat(&app, &principal, &seat).await?;
    if seat.limit == 0 {
        let remedy = format!("choose between 1 and {CLAIM_MAX}");
        return Err(unfit("limit", "nothing is asked for").remedy(remedy));
    }
    let queue = QueueKey::new(within.namespace, queue);
    let tasks = handed(&app, &slot, &queue, seat, wait).await?;
    Ok(Json(ClaimedTasks { tasks }))
}

/// Complete a task
///
/// It is done, and this came of it. Saying so again is answered as the first time.
#[utoipa::path(post, path = "/v1/tasks/{task}/complete", tag = "tasks", params(("task" = u64, Path), Within),
    request_body = Completion,
    responses((status = 200, body = Standing), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn complete(
    State(app): State<App>,
    At(task): At<u64>,
    In(within): In<Within>,
    Given(done): Given<Completion>,
) -> Result<Json<Standing>, Problem> {
    done.output.as_ref().map_or(Ok(()), fits_a_payload)?;
    settle(&app, within.namespace, task, done.token, Outcome::Complete(done.output)).await
}

/// Fail a task
///
/// The attempt failed. If it is worth another and there is one left, the task comes back after its backoff; otherwise it is dead.
#[utoipa::path(post, path = "/v1/tasks/{task}/fail", tag = "tasks", params(("task" = u64, Path), Within),
    request_body = FailedAttempt,
    responses((status = 200, body = Standing), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn fail(
    State(app): State<App>,
    At(task): At<u64>,
    In(within): In<Within>,
    Given(failed): Given<FailedAttempt>,
) -> Result<Json<Standing>, Problem> {
    let after = match failed.after_ms {
        Some(ms) => {
            super::queues::lasting("after_ms", ms)?;
            Duration::from_millis(ms)
        }
        None if !failed.retry => Duration::ZERO,
        None => {
            let task = find(&app, &within.namespace, task).await?;
            backoff(task.backoff, task.attempt, &mut Draw(app.runtime.as_ref()))
        }
    };
    let outcome = Outcome::Fail { error: kept(failed.error), retry: failed.retry, after };
    settle(&app, within.namespace, task, failed.token, outcome).await
}

/// Release a task
///
/// It was not begun, or should be begun by somebody else: it goes back to its queue, and the attempt does not count.
#[utoipa::path(post, path = "/v1/tasks/{task}/release", tag = "tasks", params(("task" = u64, Path), Within),
    request_body = GivenBack,
    responses((status = 200, body = Standing), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn release(
    State(app): State<App>,
    At(task): At<u64>,
    In(within): In<Within>,
    Given(given): Given<GivenBack>,
) -> Result<Json<Standing>, Problem> {
    settle(&app, within.namespace, task, given.token, Outcome::Release).await
}

/// Extend a claim
///
/// Says that the work goes on, and how far it is. A claim without a session lasts another `hold_ms` from now.
#[utoipa::path(post, path = "/v1/tasks/{task}/heartbeat", tag = "tasks", params(("task" = u64, Path), Within),
    request_body = Heartbeat,
    responses((status = 200, body = Standing),
        (status = 409, body = Problem, description = "The claim was lost, or the task called off: stop.")))]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    At(task): At<u64>,
    In(within): In<Within>,
    Given(beat): Given<Heartbeat>,
) -> Result<Json<Standing>, Problem> {
    beat.progress.as_deref().map_or(Ok(()), |note| short("progress", note))?;
    beat.hold_ms.map_or(Ok(()), check_hold)?;
    let hold_ms = match beat.hold_ms {
        Some(ms) => Some(ms),
        // A claim that lives on a session has a deadline only if it was given one.
        None => {
            let task = find(&app, &within.namespace, task).await?;
            task.session.is_none().then_some(HOLD_MS)
        }
    };
    let outcome = Outcome::Progress { note: beat.progress, hold: hold_ms.map(Duration::from_millis) };
    settle(&app, within.namespace, task, beat.token, outcome).await
}

async fn settle(
    app: &App,
    namespace: Name,
    task: u64,
    token: Token,
    outcome: Outcome,
) -> Result<Json<Standing>, Problem> {
    plausible_token(token)?;
    let id = plausible_task(task)?;
    let settlement = Settlement { namespace: namespace.clone(), task: id, token, outcome };
    let settled = within(app, app.claims().await?.settle(settlement)).await?;
    match settled {
        Settled::Now(state) => Ok(Json(Standing { id, state })),
        Settled::Lost => Err(lost(&find(app, &namespace, task).await?, token)),
    }
}

/// The claim was lost, and to whom. Not under which token: who has to guess it is not who was given it.
fn lost(task: &TaskView, token: Token) -> Problem {
    let whose = match (task.state, &task.worker) {
        (TaskState::Claimed, Some(worker)) if task.token != token => {
            format!("it is claimed by {worker} under another")
        }
        (state, _) => format!("it is {}", state.as_str()),
    };
    let detail = format!("task {} is not claimed under token {token}: {whose}", task.id);
    Problem::new(StatusCode::CONFLICT, "claim-lost", detail)
        .field("token")
        .remedy("stop what runs for it, and throw away what came of it; another worker does it anew")
}

/// Refuses a seat that makes no sense, or that sits on a session of somebody else.
async fn check_seat(app: &App, principal: &Principal, seat: &Seat) -> Result<(), Problem> {
    check_seats(std::slice::from_ref(seat)).map_err(of_ask)?;
    check_life(app, principal, seat.session.as_ref(), seat.hold_ms).await
}

/// Refuses what would live too long, or on a session of somebody else.
pub(super) async fn check_life(
    app: &App,
    principal: &Principal,
    session: Option<&SessionId>,
    hold_ms: Option<u64>,
) -> Result<(), Problem> {
    hold_ms.map_or(Ok(()), check_hold)?;
    if let Some(session) = session {
        plausible(session)?;
        owned(app, principal, session).await?;
    }
    Ok(())
}

pub(super) fn check_hold(ms: u64) -> Result<(), Problem> {
    if (1..=HOLD_MAX_MS).contains(&ms) {
        return Ok(());
    }
    let detail = format!("a claim can not be held for {ms} ms");
    Err(unfit("hold_ms", detail).remedy(format!("choose between 1 and {HOLD_MAX_MS}, and extend it")))
}

/// How long a request waits.
pub(super) fn patient(wait_ms: u64) -> Result<Duration, Problem> {
    if wait_ms <= WAIT_MAX_MS {
        return Ok(Duration::from_millis(wait_ms));
    }
    let detail = format!("{wait_ms} ms are too long; a request waits {WAIT_MAX_MS} ms at most");
    Err(unfit("wait_ms", detail).remedy("ask again when it comes back with nothing"))
}

/// A task's number, if it can be one.
pub(super) fn plausible_task(task: u64) -> Result<TaskId, Problem> {
    if i64::try_from(task).is_ok() {
        return Ok(TaskId(task));
    }
    Err(super::tasks::none(task))
}

fn fits_a_payload(output: &Raw) -> Result<(), Problem> {
    let length = output.as_str().len();
    if length <= PAYLOAD_MAX {
        return Ok(());
    }
    let detail = format!("the output has {length} bytes; at most {PAYLOAD_MAX} are kept");
    Err(unfit("output", detail).remedy("keep it elsewhere, and give its address as the output"))
}

/// What is kept of an error: that it is too long is no reason to refuse to hear of it.
fn kept(mut error: String) -> String {
    if error.contains('\0') {
        error = error.replace('\0', "\u{fffd}");
    }
    if error.len() > ERROR_MAX {
        let end = (0..=ERROR_MAX).rev().find(|&end| error.is_char_boundary(end)).unwrap_or(0);
        error.truncate(end);
    }
    error
}
