//! Claims of single tasks, for workers that use plain HTTP.
//!
//! A claim lives as long as the heartbeats of a session, or for `claim_timeout_ms` after each heartbeat of
//! the claim, or both. Every settlement carries the token of the claim, so any replica accepts it, and a
//! worker that lost its claim is rejected. Concurrent requests share one statement in the store.

mod batch;
mod wait;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    CLAIM_MAX, ClaimOutcome, ClaimRequest, ClaimedTask, PAYLOAD_MAX, Permission, QueueKey, RawJson as Raw,
    SettleResult, Settlement, TaskId, TaskState, TaskView, WorkerProfile,
};
use tenure::runtime::RuntimeEntropy;
use tenure::{Name, SessionId, Token};
use tenure_core::rules::work::{backoff, validate_claim_requests};
use utoipa::ToSchema;
use utoipa_axum::routes;

use self::wait::claim_and_wait;
pub(super) use self::wait::with_timeout;
use super::campaign::validate_token;
use super::extract::{JsonBody, PathParams, QueryParams};
use super::session_owner::{require_owned_session, validate_session_id};
use super::sessions::{NamespaceQuery, invalid_value, validate_display_text};
use super::tasks::find;
use super::validate::request_problem;
use crate::App;
use crate::access::{Principal, RequestPermitHandle};
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// Default claim timeout of a claim without a session.
const CLAIM_TIMEOUT_MS: u64 = 60_000;
/// Maximum claim timeout: one day.
const CLAIM_TIMEOUT_MAX_MS: u64 = 24 * 3_600_000;
/// Maximum wait of a request for a task or a resource.
const WAIT_MAX_MS: u64 = 60_000;
/// Maximum stored length of an error text, in bytes.
const ERROR_MAX: usize = 8 * 1024;

pub(crate) fn routes() -> Routes {
    let work = RequiredPermission::In(Permission::Claim);
    Routes::new()
        .api(work, routes!(claim_tasks))
        .api_large(work, routes!(complete_task))
        .api(work, routes!(fail_task))
        .api(work, routes!(release_task))
        .api_heartbeat(work, routes!(heartbeat_task))
        .merge(batch::routes())
}

/// Claim request of a worker.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"worker": "w-1", "limit": 1, "claim_timeout_ms": 60000, "wait_ms": 30000}))]
pub(crate) struct ClaimTasksRequest {
    /// Name of the worker. Approval is given to this name.
    #[schema(max_length = 1024, example = "w-1")]
    worker: String,
    /// Task kinds that the worker runs; empty means every kind.
    #[serde(default)]
    task_kinds: Vec<String>,
    /// Tags of the worker.
    #[serde(default)]
    tags: Vec<String>,
    /// Maximum number of tasks.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    limit: u32,
    /// Session whose heartbeats keep the claims alive. The caller must own it.
    session: Option<SessionId>,
    /// Claim timeout, restarted by each heartbeat of the claim. Without a session the default is one minute.
    #[schema(minimum = 1, maximum = 86400000, default = 60000)]
    claim_timeout_ms: Option<u64>,
    /// Maximum wait for the first task.
    #[serde(default)]
    #[schema(default = 0, maximum = 60000)]
    wait_ms: u64,
}

fn one() -> u32 {
    1
}

/// Claimed tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimTasksResponse {
    /// Tasks in queue order; empty if none became ready in time.
    tasks: Vec<ClaimedTask>,
}

/// Completion of a task.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 1, "result": {"sent": true}}))]
pub(crate) struct CompleteTaskRequest {
    /// Fencing token of the claim.
    token: Token,
    /// Result of the task. Child tasks receive it.
    #[serde(default, deserialize_with = "explicit")]
    result: Option<Raw>,
}

/// Distinguish an explicit `null` from an omitted field.
fn explicit<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Raw>, D::Error> {
    Raw::deserialize(from).map(Some)
}

/// Failure of an attempt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 1, "error": "no route to host"}))]
pub(crate) struct FailTaskRequest {
    /// Fencing token of the claim.
    token: Token,
    /// Error text; a long text is truncated.
    error: String,
    /// Whether to retry while attempts remain.
    #[serde(default = "yes")]
    #[schema(default = true)]
    retry: bool,
    /// Delay before the next attempt, instead of the task's backoff.
    retry_in_ms: Option<u64>,
}

fn yes() -> bool {
    true
}

/// Release of a claim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 1}))]
pub(crate) struct ReleaseTaskRequest {
    /// Fencing token of the claim.
    token: Token,
}

/// Heartbeat of a claim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 1, "progress": "3 of 7", "claim_timeout_ms": 60000}))]
pub(crate) struct TaskHeartbeatRequest {
    /// Fencing token of the claim.
    token: Token,
    /// Progress text for operators.
    #[schema(max_length = 1024)]
    progress: Option<String>,
    /// Claim timeout from now on. If omitted, a claim without a session gets one more minute.
    #[schema(minimum = 1, maximum = 86400000)]
    claim_timeout_ms: Option<u64>,
}

/// State of a task after a settlement.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskStateResponse {
    /// Task id.
    id: TaskId,
    /// State.
    state: TaskState,
}

/// Claim tasks
///
/// Claims up to `limit` tasks and waits up to `wait_ms` for the first one. Each task comes with a *token*
/// that every settlement must carry. Without a session a claim ends after `claim_timeout_ms` unless a
/// heartbeat extends it; then the task returns to its queue.
///
/// In an exclusive queue the broker assigns tasks in strict order. If the broker is unreachable and the queue
/// has no fallback, the response is `503` with the code `broker-unavailable`.
#[utoipa::path(post, path = "/v1/queues/{queue}/claim", tag = "tasks", params(("queue" = Name, Path), NamespaceQuery),
    request_body = ClaimTasksRequest,
    responses((status = 200, body = ClaimTasksResponse),
        (status = 403, body = Problem, description = "The worker is not approved, or the principal lacks the permission."),
        (status = 409, body = Problem, description = "The queue is paused."),
        (status = 410, body = Problem, description = "The session has ended."),
        (status = 503, body = Problem, description = "The broker is unreachable.")))]
pub(crate) async fn claim_tasks(
    State(app): State<App>,
    principal: Principal,
    permit: RequestPermitHandle,
    PathParams(queue): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(body): JsonBody<ClaimTasksRequest>,
) -> Result<Json<ClaimTasksResponse>, Problem> {
    let wait = validate_wait(body.wait_ms)?;
    let worker = WorkerProfile { name: body.worker, task_kinds: body.task_kinds, tags: body.tags };
    let claim_timeout_ms =
        body.claim_timeout_ms.or_else(|| body.session.is_none().then_some(CLAIM_TIMEOUT_MS));
    let claim_request = ClaimRequest { worker, limit: body.limit, session: body.session, claim_timeout_ms };
    validate_claim_request(&app, &principal, &claim_request).await?;
    if claim_request.limit == 0 {
        let remedy = format!("choose between 1 and {CLAIM_MAX}");
        return Err(invalid_value("limit", "limit is 0").remedy(remedy));
    }
    let queue = QueueKey::new(within.namespace, queue);
    let tasks = claim_and_wait(&app, &permit, &queue, claim_request, wait).await?;
    Ok(Json(ClaimTasksResponse { tasks }))
}

/// Complete a task
///
/// Marks the task as completed and stores its result. Repeating the request gives the same response.
#[utoipa::path(post, path = "/v1/tasks/{task}/complete", tag = "tasks", params(("task" = u64, Path), NamespaceQuery),
    request_body = CompleteTaskRequest,
    responses((status = 200, body = TaskStateResponse), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn complete_task(
    State(app): State<App>,
    PathParams(task): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(done): JsonBody<CompleteTaskRequest>,
) -> Result<Json<TaskStateResponse>, Problem> {
    done.result.as_ref().map_or(Ok(()), validate_result)?;
    settle(&app, within.namespace, task, done.token, ClaimOutcome::Complete(done.result)).await
}

/// Fail a task
///
/// Ends the attempt as failed. If `retry` is true and attempts remain, the task becomes ready after its
/// backoff; otherwise it is dead.
#[utoipa::path(post, path = "/v1/tasks/{task}/fail", tag = "tasks", params(("task" = u64, Path), NamespaceQuery),
    request_body = FailTaskRequest,
    responses((status = 200, body = TaskStateResponse), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn fail_task(
    State(app): State<App>,
    PathParams(task): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(failed): JsonBody<FailTaskRequest>,
) -> Result<Json<TaskStateResponse>, Problem> {
    let retry_in = match failed.retry_in_ms {
        Some(ms) => {
            super::queues::validate_duration("retry_in_ms", ms)?;
            Duration::from_millis(ms)
        }
        None if !failed.retry => Duration::ZERO,
        None => {
            let task = find(&app, &within.namespace, task).await?;
            backoff(task.backoff, task.attempt, &mut RuntimeEntropy(app.runtime.as_ref()))
        }
    };
    let outcome = ClaimOutcome::Fail { error: truncate_error(failed.error), retry: failed.retry, retry_in };
    settle(&app, within.namespace, task, failed.token, outcome).await
}

/// Release a task
///
/// Returns the task to its queue. The attempt does not count.
#[utoipa::path(post, path = "/v1/tasks/{task}/release", tag = "tasks", params(("task" = u64, Path), NamespaceQuery),
    request_body = ReleaseTaskRequest,
    responses((status = 200, body = TaskStateResponse), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn release_task(
    State(app): State<App>,
    PathParams(task): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(body): JsonBody<ReleaseTaskRequest>,
) -> Result<Json<TaskStateResponse>, Problem> {
    settle(&app, within.namespace, task, body.token, ClaimOutcome::Release).await
}

/// Send a heartbeat for a claim
///
/// Extends the claim by `claim_timeout_ms` from now and stores the progress.
#[utoipa::path(post, path = "/v1/tasks/{task}/heartbeat", tag = "tasks", params(("task" = u64, Path), NamespaceQuery),
    request_body = TaskHeartbeatRequest,
    responses((status = 200, body = TaskStateResponse),
        (status = 409, body = Problem, description = "The claim was lost or the task was cancelled: stop.")))]
pub(crate) async fn heartbeat_task(
    State(app): State<App>,
    PathParams(task): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(body): JsonBody<TaskHeartbeatRequest>,
) -> Result<Json<TaskStateResponse>, Problem> {
    body.progress.as_deref().map_or(Ok(()), |note| validate_display_text("progress", note))?;
    body.claim_timeout_ms.map_or(Ok(()), validate_claim_timeout)?;
    let claim_timeout_ms = match body.claim_timeout_ms {
        Some(ms) => Some(ms),
        // A claim with a session has a claim timeout only if the claim request set one.
        None => {
            let task = find(&app, &within.namespace, task).await?;
            task.session.is_none().then_some(CLAIM_TIMEOUT_MS)
        }
    };
    let outcome = ClaimOutcome::Heartbeat {
        progress: body.progress,
        claim_timeout: claim_timeout_ms.map(Duration::from_millis),
    };
    settle(&app, within.namespace, task, body.token, outcome).await
}

async fn settle(
    app: &App,
    namespace: Name,
    task: u64,
    token: Token,
    outcome: ClaimOutcome,
) -> Result<Json<TaskStateResponse>, Problem> {
    validate_token(token)?;
    let id = validate_task_id(task)?;
    let settlement = Settlement { namespace: namespace.clone(), task: id, token, outcome };
    let settled = with_timeout(app, app.claims().await?.settle(settlement)).await?;
    match settled {
        SettleResult::Applied(state) => Ok(Json(TaskStateResponse { id, state })),
        SettleResult::ClaimLost => Err(claim_lost(&find(app, &namespace, task).await?, token)),
    }
}

/// Problem for a lost claim. It does not reveal the current token.
fn claim_lost(task: &TaskView, token: Token) -> Problem {
    let reason = match (task.state, &task.worker) {
        (TaskState::Claimed, Some(worker)) if task.token != token => {
            format!("{worker} has claimed it under another token")
        }
        (state, _) => format!("it is {}", state.as_str()),
    };
    let detail = format!("task {} is not claimed under token {token}: {reason}", task.id);
    Problem::new(StatusCode::CONFLICT, "claim-lost", detail)
        .field("token")
        .remedy("stop the work and discard its result; another worker runs the task again")
}

/// Reject an invalid claim request, or one that uses another principal's session.
async fn validate_claim_request(
    app: &App,
    principal: &Principal,
    claim_request: &ClaimRequest,
) -> Result<(), Problem> {
    validate_claim_requests(std::slice::from_ref(claim_request)).map_err(request_problem)?;
    validate_claim_lifetime(app, principal, claim_request.session.as_ref(), claim_request.claim_timeout_ms)
        .await
}

/// Reject an invalid claim timeout, or another principal's session.
pub(super) async fn validate_claim_lifetime(
    app: &App,
    principal: &Principal,
    session: Option<&SessionId>,
    claim_timeout_ms: Option<u64>,
) -> Result<(), Problem> {
    claim_timeout_ms.map_or(Ok(()), validate_claim_timeout)?;
    if let Some(session) = session {
        validate_session_id(session)?;
        require_owned_session(app, principal, session).await?;
    }
    Ok(())
}

pub(super) fn validate_claim_timeout(ms: u64) -> Result<(), Problem> {
    if (1..=CLAIM_TIMEOUT_MAX_MS).contains(&ms) {
        return Ok(());
    }
    let detail = format!("a claim timeout of {ms} ms is out of range");
    Err(invalid_value("claim_timeout_ms", detail)
        .remedy(format!("choose between 1 and {CLAIM_TIMEOUT_MAX_MS}, and send heartbeats")))
}

/// Validate the wait of a request.
pub(super) fn validate_wait(wait_ms: u64) -> Result<Duration, Problem> {
    if wait_ms <= WAIT_MAX_MS {
        return Ok(Duration::from_millis(wait_ms));
    }
    let detail = format!("{wait_ms} ms exceed the maximum wait of {WAIT_MAX_MS} ms");
    Err(invalid_value("wait_ms", detail).remedy("repeat the request when it returns nothing"))
}

/// Validate a task id.
pub(super) fn validate_task_id(task: u64) -> Result<TaskId, Problem> {
    if i64::try_from(task).is_ok() {
        return Ok(TaskId(task));
    }
    Err(super::tasks::no_such_task(task))
}

fn validate_result(output: &Raw) -> Result<(), Problem> {
    let length = output.as_str().len();
    if length <= PAYLOAD_MAX {
        return Ok(());
    }
    let detail = format!("the result has {length} bytes; the maximum is {PAYLOAD_MAX}");
    Err(invalid_value("result", detail).remedy("store it elsewhere and use its address as the result"))
}

/// Truncate an error text instead of rejecting it.
fn truncate_error(mut error: String) -> String {
    if error.contains('\0') {
        error = error.replace('\0', "\u{fffd}");
    }
    if error.len() > ERROR_MAX {
        let end = (0..=ERROR_MAX).rev().find(|&end| error.is_char_boundary(end)).unwrap_or(0);
        error.truncate(end);
    }
    error
}
