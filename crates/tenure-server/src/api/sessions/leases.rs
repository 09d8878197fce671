//! Leases of elections: take, release and request; and expiry of silent sessions.

use axum::extract::State;
use axum::{Extension, Json};
use http::StatusCode;
use serde::Serialize;
use tenure::port::{
    CandidateView, ElectionView, ExpireSessionRequest, LeaderRequest, LeaderRequestKind, ObserveScope,
    Permission, ReleaseLeaseRequest, SessionView, TakeLeaseRequest,
};
use tenure::rules::election::is_eligible;
use tenure::{ElectionKey, Name, SessionId, Token};
use utoipa::ToSchema;

use super::{NamespaceQuery, invalid_value, permission_missing, same_election, same_session};
use crate::App;
use crate::access::Principal;
use crate::api::audit_writer::{AuditActor, record};
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::problem::Problem;

/// Result of taking a lease.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TakeLeaseResponse {
    /// Token of the new lease; `null` if the lease changed meanwhile.
    token: Option<Token>,
}

/// Result of a leader request.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LeaderRequestResponse {
    /// Whether the term still lasts, so that the leader receives the request.
    delivered: bool,
}

/// Take a lease if it is unchanged since it was observed.
#[utoipa::path(post, path = "/internal/v1/sessions/{session}/elections/{election}/take-lease", tag = "internal",
    params(("session" = SessionId, Path), ("election" = Name, Path), NamespaceQuery), request_body = TakeLeaseRequest,
    responses((status = 200, body = TakeLeaseResponse), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "The session to expire has not been silent for its lease."),
        (status = 422, body = Problem)))]
pub(super) async fn take_lease(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    by: AuditActor,
    PathParams((session, election)): PathParams<(SessionId, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(mut take): JsonBody<TakeLeaseRequest>,
) -> Result<Json<TakeLeaseResponse>, Problem> {
    same_session(&session, &take.session)?;
    same_election(&ElectionKey::new(within.namespace, election), &take.election)?;
    let mut freed = Vec::new();
    if let Some(expire) = &take.expire {
        match may_expire(&app, &principal, expire).await? {
            Some(keys) => freed = keys,
            None => take.expire = None,
        }
    }
    let token = app.store.take_lease(&take).await?;
    if let (Some(expire), Some(_)) = (&take.expire, token) {
        record_expiry(&app, &by, expire, freed).await;
    }
    Ok(Json(TakeLeaseResponse { token }))
}

/// Release a lease. No effect if it is not held under the token.
#[utoipa::path(post, path = "/internal/v1/sessions/{session}/elections/{election}/release-lease", tag = "internal",
    params(("session" = SessionId, Path), ("election" = Name, Path), NamespaceQuery), request_body = ReleaseLeaseRequest,
    responses((status = 204), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn release_lease(
    State(app): State<App>,
    PathParams((session, election)): PathParams<(SessionId, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(release): JsonBody<ReleaseLeaseRequest>,
) -> Result<StatusCode, Problem> {
    same_session(&session, &release.session)?;
    same_election(&ElectionKey::new(within.namespace, election), &release.election)?;
    app.store.release_lease(&release).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Expire a session whose heartbeat did not change for its lease, and release all its leases.
#[utoipa::path(post, path = "/internal/v1/expire-session", tag = "internal", request_body = ExpireSessionRequest,
    responses((status = 204), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "The session has not been silent for its lease."), (status = 422, body = Problem)))]
pub(super) async fn expire_session(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    by: AuditActor,
    JsonBody(expire): JsonBody<ExpireSessionRequest>,
) -> Result<StatusCode, Problem> {
    if let Some(freed) = may_expire(&app, &principal, &expire).await? {
        app.store.expire_session(&expire).await?;
        record_expiry(&app, &by, &expire, freed).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Send a request to the holder of a lease. Candidates may only send `preempt` for themselves; all other
/// kinds require an operator.
#[utoipa::path(post, path = "/internal/v1/elections/{election}/leader-request", tag = "internal",
    params(("election" = Name, Path), NamespaceQuery), request_body = LeaderRequest,
    responses((status = 200, body = LeaderRequestResponse), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "The candidate does not have a higher priority."), (status = 422, body = Problem)))]
pub(super) async fn request_leader(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    by: AuditActor,
    PathParams(election): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(mut leader_request): JsonBody<LeaderRequest>,
) -> Result<Json<LeaderRequestResponse>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    same_election(&key, &leader_request.election)?;
    super::validate_text("requested_by", &leader_request.requested_by)?;
    if !matches!(leader_request.kind, LeaderRequestKind::Preempt(_))
        && !principal.may(Permission::Admin, Some(&key.namespace))
    {
        return Err(permission_missing(&principal, Permission::Admin, Some(&key.namespace)));
    }
    if let LeaderRequestKind::Preempt(session) = &leader_request.kind
        && !principal.may(Permission::Admin, Some(&key.namespace))
        && app.store.election(&key).await?.is_some_and(|view| !outranks(&view, &leader_request, session))
    {
        let detail = format!("session {} does not outrank the leader of {key}", session.short());
        return Err(Problem::new(StatusCode::CONFLICT, "priority-too-low", detail)
            .field("kind")
            .remedy("use a higher priority, or let an operator transfer the leadership"));
    }
    leader_request.requested_by = super::display_actor(&principal, &leader_request.requested_by);
    let delivered = app.store.request_leader(&leader_request).await?;
    if delivered && !matches!(leader_request.kind, LeaderRequestKind::Preempt(_)) {
        let to = leader_request.kind.successor().map(|to| format!("to {}", to.short())).unwrap_or_default();
        record(&app, &by, &format!("election.{}", leader_request.kind.as_str()), &key, to).await;
    }
    Ok(Json(LeaderRequestResponse { delivered }))
}

/// Whether the preempting candidate outranks the holder, by the rules that every candidate applies.
fn outranks(view: &ElectionView, leader_request: &LeaderRequest, session: &SessionId) -> bool {
    let term = view
        .holders()
        .find(|(lease, _)| (lease.slot, lease.token) == (leader_request.slot, leader_request.token));
    // The term has ended, so the request has no effect.
    let Some((lease, holder)) = term else { return true };
    let better = |me: &CandidateView| {
        let holder = view.candidate(&holder.id);
        me.session.live
            && is_eligible(me, &view.required_capabilities)
            && holder.is_none_or(|it| it.priority < me.priority)
    };
    !lease.start_reason.is_operator_choice() && view.candidate(session).is_some_and(better)
}

/// Elections of a session that the principal may expire; `None` if the session takes part in none.
///
/// Expiry releases the leases of the session in *every* election, so the principal must have `lead` in all
/// their namespaces. Except for administrators, this server must have observed the silence itself.
async fn may_expire(
    app: &App,
    principal: &Principal,
    expire: &ExpireSessionRequest,
) -> Result<Option<Vec<ElectionKey>>, Problem> {
    let Some(heartbeat_count) = expire.heartbeat_count else {
        let detail = "heartbeat_count is missing";
        return Err(invalid_value("heartbeat_count", detail).remedy("send the last observed heartbeat count"));
    };
    let snapshot = app.store.observe(&expire.session, &ObserveScope::Own).await?;
    let candidates = snapshot.elections.into_iter().map(|election| election.key);
    let keys: Vec<_> = candidates.chain(snapshot.orphaned_leases.into_iter().map(|(key, ..)| key)).collect();
    if principal.may(Permission::Admin, None) {
        return Ok(Some(keys));
    }
    if keys.iter().any(|key| !principal.may(Permission::Lead, Some(&key.namespace))) {
        // Do not reveal the other namespaces.
        let detail = format!(
            "session {} also takes part in elections where {} lacks the permission lead",
            expire.session.short(),
            principal.name
        );
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
            .remedy("wait until a candidate of its other elections, or a server, expires it"));
    }
    if keys.is_empty() {
        return Ok(None);
    }
    let operates = keys.iter().all(|key| principal.may(Permission::Admin, Some(&key.namespace)));
    let found = app.store.sessions(Some(std::slice::from_ref(&expire.session))).await?;
    let silent = |session: &SessionView| {
        session.id == expire.session
            && session.heartbeat_count == heartbeat_count
            && app.elections.is_silent(session, expire.epoch)
    };
    if operates || found.iter().any(silent) {
        return Ok(Some(keys));
    }
    let detail =
        format!("this server has not observed session {} silent for its lease", expire.session.short());
    Err(Problem::new(StatusCode::CONFLICT, "session-still-live", detail)
        .field("heartbeat_count")
        .remedy("wait, read again, and retry if the heartbeat count is unchanged"))
}

/// Record the expiry of a session once per namespace.
async fn record_expiry(
    app: &App,
    by: &AuditActor,
    expire: &ExpireSessionRequest,
    mut freed: Vec<ElectionKey>,
) {
    freed.sort();
    freed.dedup_by(|a, b| a.namespace == b.namespace);
    for key in &freed {
        record(app, by, "session.expire", key, format!("session {}", expire.session.short())).await;
    }
}
