//! Actions on elections: resign, transfer, pause and resume by an operator, and resign by the leader itself.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::election::operator::{self, OperatorError, OperatorRequest};
use tenure::port::{
    ElectionView, HeartbeatResponse, LeaderRequestKind, Pause, Permission, ReleaseLeaseRequest, StartReason,
};
use tenure::{ElectionKey, Name, SessionId, Token};
use utoipa::ToSchema;

use super::audit_writer::{AuditActor, record};
use super::campaign::validate_token;
use super::election_types::ElectionResponse;
use super::elections::no_such_election;
use super::extract::{JsonBody, OptionalJsonBody, PathParams, QueryParams};
use super::session_owner::{require_owned_session, validate_session_id};
use super::sessions::{NamespaceQuery, invalid_value, session_ended, validate_display_text};
use crate::App;
use crate::access::{Principal, RequestPermitHandle};
use crate::problem::Problem;

/// Maximum wait of an operator's request, in milliseconds.
const WAIT_MAX_MS: u64 = 30_000;

/// Resign request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"session": "5b1c8a40c7d94f0e9a7a3c6ad0b1e2f3", "token": 7}))]
pub(crate) struct ResignRequest {
    /// Sent by the leader: its session. Send it only after all work under the token has ended.
    session: Option<SessionId>,
    /// Sent by the leader: the token of its lease.
    token: Option<Token>,
    /// Sent by the leader: whether to stay a candidate. The other candidates then go first. If false, the
    /// leader leaves the election.
    #[serde(default)]
    remain_candidate: bool,
    /// Sent by an operator: only the leader of this slot.
    slot: Option<u32>,
    /// Sent by an operator: maximum wait for another leader.
    #[schema(default = 0, maximum = 30000)]
    wait_ms: Option<u64>,
}

/// Transfer request.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "web-2", "wait_ms": 5000}))]
pub(crate) struct TransferRequest {
    /// Name of a candidate, or its session id or a prefix of it.
    #[schema(example = "web-2")]
    to: String,
    /// Maximum wait until the candidate leads.
    #[schema(default = 0, maximum = 30000)]
    wait_ms: Option<u64>,
}

/// Pause request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "moving the database"}))]
pub(crate) struct PauseElectionRequest {
    /// Reason, shown to other operators.
    #[serde(default)]
    #[schema(max_length = 1024)]
    reason: String,
    /// Maximum wait until the election has no leader.
    #[schema(default = 0, maximum = 30000)]
    wait_ms: Option<u64>,
}

/// Empty request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmptyRequest {}

/// Response to an operator's request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OperatorResponse {
    /// Whether the action is complete. If false, the leader received the request and finishes first.
    completed: bool,
    /// The election after the request.
    election: ElectionResponse,
}

/// Resign
///
/// Sent by a leader, `{"session": …, "token": …}` releases its lease after its work has ended. If the leader
/// was asked to transfer the lease, the named candidate gets it.
///
/// Sent by an operator (`admin`) without `session`, it asks the leader to resign. The leader finishes its
/// work and releases the lease.
#[utoipa::path(post, path = "/v1/elections/{election}/resign", tag = "elections",
    params(("election" = Name, Path), NamespaceQuery), request_body = Option<ResignRequest>,
    responses((status = 200, body = OperatorResponse), (status = 202, body = OperatorResponse, description = "The leader received the request and has not finished yet."),
        (status = 409, body = Problem, description = "The lease is not held under this token, or the election has no leader.")))]
pub(crate) async fn resign_leader(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    permit: RequestPermitHandle,
    PathParams(election): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(resign): OptionalJsonBody<ResignRequest>,
) -> Result<Response, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    validate_wait(resign.wait_ms)?;
    match (&resign.session, resign.token) {
        (Some(session), Some(token)) => {
            validate_session_id(session)?;
            validate_token(token)?;
            resign_own_lease(&app, &principal, &key, session, token, resign.remain_candidate).await
        }
        (Some(_), None) => {
            Err(invalid_value("token", "the token is missing").remedy("send the token of the lease"))
        }
        (None, Some(_)) => Err(invalid_value("session", "the session is missing")
            .remedy("send the session that holds the lease")),
        (None, None) => {
            principal.require(Permission::Admin, Some(&key.namespace))?;
            let view = election_now(&app, &key).await?;
            let requested = operator::resign(app.store.as_ref(), &view, resign.slot, &principal.name).await;
            let requested = requested.map_err(operator_problem)?;
            record(&app, &by, "election.resign", &key, String::new()).await;
            wait_for_completion(&app, &permit, &key, &requested, resign.wait_ms).await
        }
    }
}

async fn resign_own_lease(
    app: &App,
    principal: &Principal,
    key: &ElectionKey,
    session: &SessionId,
    token: Token,
    remain_candidate: bool,
) -> Result<Response, Problem> {
    require_owned_session(app, principal, session).await?;
    let leader_requests = match app.store.heartbeat(session).await? {
        HeartbeatResponse::Live { leader_requests, .. } => leader_requests,
        HeartbeatResponse::SessionEnded => return Err(session_ended(session).field("session")),
    };
    let view = election_now(app, key).await?;
    let held = view.held_by(session).find(|(_, held)| *held == token);
    let Some((slot, _)) = held else {
        let detail = format!("{key} is not held under token {token} by session {}", session.short());
        return Err(Problem::new(StatusCode::CONFLICT, "lease-not-held", detail)
            .field("token")
            .remedy("there is nothing to release; campaign again to lead"));
    };
    let requested = leader_requests.into_iter().find(|leader_request| {
        leader_request.election == *key && (leader_request.slot, leader_request.token) == (slot, token)
    });
    let kind = requested.map_or(LeaderRequestKind::Resign, |leader_request| leader_request.kind);
    let start_reason = match kind.start_reason() {
        StartReason::Resign if !remain_candidate => StartReason::Release,
        start_reason => start_reason,
    };
    let successor = kind.successor().cloned();
    let (session, election) = (session.clone(), key.clone());
    app.store
        .release_lease(&ReleaseLeaseRequest {
            session,
            election,
            slot,
            token,
            successor,
            start_reason,
            leave: !remain_candidate,
        })
        .await?;
    let snapshot = app.elections.refresh(key).await?;
    let entry = snapshot.elections.get(key).ok_or_else(|| no_such_election(key))?;
    Ok(Json(OperatorResponse { completed: true, election: ElectionResponse::of(entry) }).into_response())
}

/// Transfer the leadership
///
/// Asks the leader to finish and to pass the lease to the named candidate. Priorities do not revert a
/// transfer.
#[utoipa::path(post, path = "/v1/elections/{election}/transfer", tag = "elections",
    params(("election" = Name, Path), NamespaceQuery), request_body = TransferRequest,
    responses((status = 200, body = OperatorResponse), (status = 202, body = OperatorResponse, description = "The leader received the request and has not finished yet."),
        (status = 409, body = Problem, description = "The election has no leader, or the candidate is not eligible.")))]
pub(crate) async fn transfer_leader(
    State(app): State<App>,
    by: AuditActor,
    permit: RequestPermitHandle,
    PathParams(election): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(transfer): JsonBody<TransferRequest>,
) -> Result<Response, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    validate_display_text("to", &transfer.to)?;
    validate_wait(transfer.wait_ms)?;
    let view = election_now(&app, &key).await?;
    let requested = match operator::transfer(app.store.as_ref(), &view, &transfer.to, &by.principal).await {
        // The candidate leads already.
        Err(OperatorError::AlreadyLeads { .. }) => OperatorRequest::Transfer(
            operator::candidate(&view, &transfer.to).map_err(operator_problem)?.session.id.clone(),
        ),
        requested => requested.map_err(operator_problem)?,
    };
    record(&app, &by, "election.transfer", &key, format!("to {}", transfer.to)).await;
    wait_for_completion(&app, &permit, &key, &requested, transfer.wait_ms).await
}

/// Pause an election
///
/// The election has no leader until it is resumed. The current leader is asked to finish.
#[utoipa::path(post, path = "/v1/elections/{election}/pause", tag = "elections",
    params(("election" = Name, Path), NamespaceQuery), request_body = Option<PauseElectionRequest>,
    responses((status = 200, body = OperatorResponse), (status = 202, body = OperatorResponse, description = "The leader received the request and has not finished yet.")))]
pub(crate) async fn pause_election(
    State(app): State<App>,
    by: AuditActor,
    permit: RequestPermitHandle,
    PathParams(election): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(pause): OptionalJsonBody<PauseElectionRequest>,
) -> Result<Response, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    validate_display_text("reason", &pause.reason)?;
    validate_wait(pause.wait_ms)?;
    election_now(&app, &key).await?;
    let (reason, paused_at_ms) = (pause.reason, app.runtime.wall_ms());
    let paused = Pause { paused_by: by.principal.to_string(), reason: reason.clone(), paused_at_ms };
    if operator::pause(app.store.as_ref(), &key, &paused).await?.is_some() {
        record(&app, &by, "election.pause", &key, reason).await;
    }
    wait_for_completion(&app, &permit, &key, &OperatorRequest::Pause, pause.wait_ms).await
}

/// Resume an election
///
/// Candidates may lead again.
#[utoipa::path(post, path = "/v1/elections/{election}/resume", tag = "elections",
    params(("election" = Name, Path), NamespaceQuery), request_body = Option<EmptyRequest>,
    responses((status = 200, body = OperatorResponse)))]
pub(crate) async fn resume_election(
    State(app): State<App>,
    by: AuditActor,
    PathParams(election): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<OperatorResponse>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    election_now(&app, &key).await?;
    if operator::resume(app.store.as_ref(), &key).await? {
        record(&app, &by, "election.resume", &key, String::new()).await;
    }
    let snapshot = app.elections.refresh(&key).await?;
    let entry = snapshot.elections.get(&key).ok_or_else(|| no_such_election(&key))?;
    Ok(Json(OperatorResponse { completed: true, election: ElectionResponse::of(entry) }))
}

/// Read the election from the store.
async fn election_now(app: &App, key: &ElectionKey) -> Result<ElectionView, Problem> {
    let snapshot = app.elections.refresh(key).await?;
    snapshot.elections.get(key).map(|entry| ElectionView::clone(entry)).ok_or_else(|| no_such_election(key))
}

/// Validate the wait before anything is done.
fn validate_wait(wait_ms: Option<u64>) -> Result<(), Problem> {
    match wait_ms {
        Some(ms) if ms > WAIT_MAX_MS => {
            Err(invalid_value("wait_ms", format!("{ms} ms exceed the maximum wait of {WAIT_MAX_MS} ms")))
        }
        _ => Ok(()),
    }
}

/// Wait up to the requested time for the action to complete, and report the election.
async fn wait_for_completion(
    app: &App,
    permit: &RequestPermitHandle,
    key: &ElectionKey,
    requested: &OperatorRequest,
    wait_ms: Option<u64>,
) -> Result<Response, Problem> {
    let deadline = app.runtime.now() + Duration::from_millis(wait_ms.unwrap_or(0));
    let mut changes = app.elections.changes();
    let mut snapshot = app.elections.refresh(key).await?;
    loop {
        let entry = snapshot.elections.get(key).ok_or_else(|| no_such_election(key))?;
        let done = requested.is_done(entry);
        if done || app.runtime.now() >= deadline || app.elections.is_closed() {
            let status = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
            return Ok((
                status,
                Json(OperatorResponse { completed: done, election: ElectionResponse::of(entry) }),
            )
                .into_response());
        }
        permit.mark_as_stream()?;
        tokio::select! {
            changed = changes.changed() => {
                snapshot = app.elections.snapshot();
                if changed.is_err() {
                    return Err(super::watch::closing());
                }
            }
            () = app.runtime.sleep_until(deadline) => snapshot = app.elections.refresh(key).await?,
        }
    }
}

fn operator_problem(refusal: OperatorError) -> Problem {
    let (status, code, field, remedy) = match refusal {
        OperatorError::Store(error) => return error.into(),
        OperatorError::NoLeader(_) => (
            StatusCode::CONFLICT,
            "no-leader",
            None,
            "wait until the election has a leader; GET the election shows it",
        ),
        OperatorError::NotEligible { .. } => {
            (StatusCode::CONFLICT, "candidate-not-eligible", Some("to"), "choose another candidate")
        }
        OperatorError::Ambiguous { .. } => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "ambiguous-candidate",
            Some("to"),
            "send one of these sessions as `to`",
        ),
        _ => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "no-such-candidate",
            Some("to"),
            "choose a candidate that GET /v1/elections/{election} lists and that does not lead",
        ),
    };
    let problem = Problem::new(status, code, refusal.to_string()).remedy(remedy);
    field.map_or(problem.clone(), |field| problem.field(field))
}
