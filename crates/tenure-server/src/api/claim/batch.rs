//! Batches of claims and settlements: internal operations of the HTTP store.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tenure::ClaimResult;
use tenure::port::{
    CLAIM_MAX, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRefusal,
    ClaimRequest, ClaimedTask, Permission, QueueKey, RawJson as Raw, SettleResult, Settlement, TaskId,
};
use tenure::{Name, SessionId, Token};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{
    explicit, truncate_error, validate_claim_request, validate_claim_timeout, validate_result,
    validate_task_id, wait,
};
use crate::App;
use crate::access::Principal;
use crate::api::campaign::validate_token;
use crate::api::election_types::millis;
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::api::queues::validate_duration;
use crate::api::sessions::{NamespaceQuery, invalid_value, validate_text};
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// Maximum number of claim requests or settlements in one batch.
const BATCH_MAX: usize = 1000;

pub(super) fn routes() -> Routes {
    let work = RequiredPermission::In(Permission::Claim);
    Routes::new()
        .api(work, routes!(claim_task_batch))
        .api_large(work, routes!(settle_tasks))
        .api(RequiredPermission::Session, routes!(list_session_claims))
        .api(RequiredPermission::Session, routes!(register_queue_waiter))
}

/// Claim requests for one queue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimBatchRequestJson {
    /// Queue.
    queue: Name,
    /// Claim requests in the order in which they are served.
    requests: Vec<ClaimRequest>,
}

/// Result of a batch of claim requests.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ClaimBatchResponseJson {
    /// Claimed tasks of each claim request, in request order.
    tasks: Vec<Vec<ClaimedTask>>,
    /// Time until more tasks may become ready without a new submission, if the store knows it.
    next_in_ms: Option<u64>,
    /// Why no task was claimed, if the claim was refused.
    #[schema(value_type = Option<Object>)]
    refusal: Option<ClaimRefusal>,
}

/// Settlements of claims.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleBatchRequest {
    settlements: Vec<SettlementJson>,
}

/// Settlement of a claim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettlementJson {
    /// Task id.
    task: u64,
    /// Fencing token.
    token: Token,
    /// Outcome.
    outcome: ClaimOutcomeKind,
    /// Result, for `complete`.
    #[serde(default, deserialize_with = "explicit")]
    result: Option<Raw>,
    /// Error text, for `fail`.
    #[serde(default)]
    error: String,
    /// Whether to retry, for `fail`.
    #[serde(default)]
    retry: bool,
    /// Delay before the next attempt, for `fail`.
    #[serde(default)]
    retry_in_ms: u64,
    /// Progress text, for `heartbeat`.
    #[serde(default)]
    progress: Option<String>,
    /// Claim timeout from now on, for `heartbeat`.
    #[serde(default)]
    claim_timeout_ms: Option<u64>,
}

/// Outcome of a settlement.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ClaimOutcomeKind {
    /// The task is completed.
    Complete,
    /// The attempt failed.
    Fail,
    /// The claim is released.
    Release,
    /// The claim continues.
    Heartbeat,
}

/// Results of a batch of settlements.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SettleBatchResponse {
    /// Result of each settlement, in request order.
    settled: Vec<SettleResult>,
}

/// Claims of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionClaimList {
    /// Task ids and tokens.
    claims: Vec<SessionClaim>,
}

/// Claim of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SessionClaim {
    /// Task id.
    #[schema(value_type = u64)]
    task_id: TaskId,
    /// Fencing token.
    token: Token,
}

/// Queues that a session waits for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RegisterQueueWaiterRequest {
    /// Queues.
    queues: Vec<QueueKey>,
}

/// Claim tasks of a queue for several workers, in request order, without waiting.
#[utoipa::path(post, path = "/internal/v1/claim-tasks", tag = "internal", params(NamespaceQuery), request_body = ClaimBatchRequestJson,
    responses((status = 200, body = ClaimBatchResponseJson)))]
pub(super) async fn claim_task_batch(
    State(app): State<App>,
    principal: Principal,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(ClaimBatchRequestJson { queue, requests }): JsonBody<ClaimBatchRequestJson>,
) -> Result<Json<ClaimBatchResponseJson>, Problem> {
    validate_batch_size("requests", requests.len())?;
    let wanted: u64 = requests.iter().map(|claim_request| u64::from(claim_request.limit)).sum();
    if wanted > u64::from(CLAIM_MAX) {
        let detail = format!("{wanted} tasks are requested; the maximum is {CLAIM_MAX}");
        return Err(invalid_value("requests", detail).remedy("request fewer tasks"));
    }
    for claim_request in &requests {
        validate_claim_request(&app, &principal, claim_request).await?;
    }
    let queue = QueueKey::new(within.namespace, queue);
    if app.exclusive_queues.contains(&queue) {
        return routed(&app, &queue, requests).await.map(Json);
    }
    let batch = ClaimBatchRequest { queue, authority: ClaimAuthority::Direct, requests };
    match app.store.claim(&batch).await? {
        ClaimBatchResponse::Served { tasks, next_in } => {
            let tasks = limit_size(&app, &batch.queue, tasks).await;
            Ok(Json(ClaimBatchResponseJson { tasks, next_in_ms: next_in.map(millis), refusal: None }))
        }
        ClaimBatchResponse::Refused(ClaimRefusal::Mode(_)) => {
            app.exclusive_queues.insert(&batch.queue);
            routed(&app, &batch.queue, batch.requests).await.map(Json)
        }
        ClaimBatchResponse::Refused(refusal) => {
            Ok(Json(ClaimBatchResponseJson { tasks: Vec::new(), next_in_ms: None, refusal: Some(refusal) }))
        }
    }
}

/// Claim through the broker.
async fn routed(
    app: &App,
    queue: &QueueKey,
    claim_requests: Vec<ClaimRequest>,
) -> Result<ClaimBatchResponseJson, Problem> {
    let claimed = claim_requests
        .into_iter()
        .map(|claim_request| wait::claim(app, queue, claim_request, Duration::ZERO));
    let (mut tasks, mut refused, mut failed) = (Vec::new(), None, None);
    for claimed in join_all(claimed).await {
        let mut got = Vec::new();
        match claimed {
            Ok(ClaimResult::Tasks(handed)) => got = handed,
            Ok(ClaimResult::Refused(refusal)) => refused = refused.or(Some(refusal)),
            Ok(ClaimResult::NoBroker) => refused = refused.or(Some(ClaimRefusal::NotLeader)),
            Err(problem) => failed = failed.or(Some(problem)),
        }
        tasks.push(got);
    }
    if let Some(problem) = failed {
        // The outcome of this claim request is unknown: it may have got a task. Only the client that owns the
        // session can find out, and it does so after a failed call. So the whole call fails, and the server
        // releases the tasks of the other requests.
        wait::release_undelivered(app.claims().await?, queue, tasks.into_iter().flatten().collect()).await;
        return Err(problem);
    }
    // Tasks were claimed, so the response must deliver them. The workers repeat the refused requests.
    if tasks.iter().any(|got| !got.is_empty()) {
        let tasks = limit_size(app, queue, tasks).await;
        return Ok(ClaimBatchResponseJson { tasks, next_in_ms: None, refusal: None });
    }
    Ok(ClaimBatchResponseJson { tasks, next_in_ms: None, refusal: refused })
}

/// Limit the tasks of all requests to the maximum size of a response.
async fn limit_size(app: &App, queue: &QueueKey, batches: Vec<Vec<ClaimedTask>>) -> Vec<Vec<ClaimedTask>> {
    let mut bytes = 0;
    let mut fit = Vec::with_capacity(batches.len());
    for tasks in batches {
        fit.push(wait::limit_size(app, queue, tasks, &mut bytes).await);
    }
    fit
}

/// Settle several claims.
#[utoipa::path(post, path = "/internal/v1/settle-tasks", tag = "internal", params(NamespaceQuery), request_body = SettleBatchRequest,
    responses((status = 200, body = SettleBatchResponse)))]
pub(super) async fn settle_tasks(
    State(app): State<App>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(SettleBatchRequest { settlements }): JsonBody<SettleBatchRequest>,
) -> Result<Json<SettleBatchResponse>, Problem> {
    validate_batch_size("settlements", settlements.len())?;
    let read = settlements.into_iter().map(|settlement| settlement.settlement(&within.namespace));
    let settlements = read.collect::<Result<Vec<_>, Problem>>()?;
    let claims = app.claims().await?;
    let calls = settlements.into_iter().map(|one| wait::with_timeout(&app, claims.settle(one)));
    let settled = join_all(calls).await.into_iter().collect::<Result<_, Problem>>()?;
    Ok(Json(SettleBatchResponse { settled }))
}

/// List the claims of a session.
#[utoipa::path(get, path = "/internal/v1/sessions/{session}/claims", tag = "internal", params(("session" = SessionId, Path)),
    responses((status = 200, body = SessionClaimList)))]
pub(super) async fn list_session_claims(
    State(app): State<App>,
    PathParams(session): PathParams<SessionId>,
) -> Result<Json<SessionClaimList>, Problem> {
    let claims = app.store.held_claims(&session).await?;
    let claims = claims.into_iter().map(|(task_id, token)| SessionClaim { task_id, token }).collect();
    Ok(Json(SessionClaimList { claims }))
}

/// Register the session as a waiter for these queues; notifications arrive at `/internal/v1/notifications`.
#[utoipa::path(put, path = "/internal/v1/sessions/{session}/queue-waiter", tag = "internal", params(("session" = SessionId, Path)),
    request_body = RegisterQueueWaiterRequest, responses((status = 204)))]
pub(super) async fn register_queue_waiter(
    State(app): State<App>,
    principal: Principal,
    PathParams(session): PathParams<SessionId>,
    JsonBody(RegisterQueueWaiterRequest { queues }): JsonBody<RegisterQueueWaiterRequest>,
) -> Result<http::StatusCode, Problem> {
    validate_batch_size("queues", queues.len())?;
    let namespaces: BTreeSet<&Name> = queues.iter().map(|queue| &queue.namespace).collect();
    for namespace in namespaces {
        principal.require(Permission::Claim, Some(namespace))?;
    }
    app.store.register_queue_waiter(&session, &queues).await?;
    Ok(http::StatusCode::NO_CONTENT)
}

impl SettlementJson {
    fn settlement(self, namespace: &Name) -> Result<Settlement, Problem> {
        validate_token(self.token)?;
        let task = validate_task_id(self.task)?;
        let outcome = match self.outcome {
            ClaimOutcomeKind::Complete => {
                self.result.as_ref().map_or(Ok(()), validate_result)?;
                ClaimOutcome::Complete(self.result)
            }
            ClaimOutcomeKind::Fail => {
                validate_duration("retry_in_ms", self.retry_in_ms)?;
                let after = Duration::from_millis(self.retry_in_ms);
                ClaimOutcome::Fail { error: truncate_error(self.error), retry: self.retry, retry_in: after }
            }
            ClaimOutcomeKind::Release => ClaimOutcome::Release,
            ClaimOutcomeKind::Heartbeat => {
                self.progress.as_deref().map_or(Ok(()), |note| validate_text("progress", note))?;
                self.claim_timeout_ms.map_or(Ok(()), validate_claim_timeout)?;
                ClaimOutcome::Heartbeat {
                    progress: self.progress,
                    claim_timeout: self.claim_timeout_ms.map(Duration::from_millis),
                }
            }
        };
        Ok(Settlement { namespace: namespace.clone(), task, token: self.token, outcome })
    }
}

fn validate_batch_size(field: &str, count: usize) -> Result<(), Problem> {
    if (1..=BATCH_MAX).contains(&count) {
        return Ok(());
    }
    let remedy = format!("send between 1 and {BATCH_MAX} at once");
    Err(invalid_value(field, format!("{count} items are out of range")).remedy(remedy))
}
