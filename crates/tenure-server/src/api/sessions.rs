//! Sessions and elections of the HTTP store: one route per method of
//! [`ElectionStore`](tenure::port::ElectionStore).
//!
//! Requests and responses are the types of the port, so client and server cannot diverge. A route checks that
//! the body matches the path and that the principal has the permission, then calls the store. So any replica
//! can serve any request. A client without a response repeats the request at another replica: the store's own
//! compare-and-swap makes that safe.
//!
//! A session belongs to the principal that opened it and lives in the store, not in the server. Only missing
//! heartbeats for its lease end it.

mod access;
mod admin;
mod leases;
mod notifications;
mod protocol;

use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use http::StatusCode;
use serde::Deserialize;
use tenure::port::{
    Candidacy, ElectionsObservation, HeartbeatResponse, JoinElectionResponse, ObserveScope,
    OpenSessionRequest, Permission, TakeoverMode,
};
use tenure::{ElectionKey, Name, SessionId, Timing, Token};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::App;
use crate::access::Principal;
use crate::api::extract::{JsonBody, OptionalJsonBody, PathParams, QueryParams};
use crate::api::session_quota;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{RequiredPermission, Routes};

/// Maximum length of a text in a session or candidacy, in bytes.
const TEXT_MAX: usize = 1024;
/// Maximum number of capabilities, required capabilities or metadata entries of a candidacy.
const LIST_MAX: usize = 100;

/// Maximum total length of the texts of a candidacy in bytes: every candidate reads them.
const CANDIDACY_MAX: usize = 16 * 1024;
/// Maximum number of slots of an election through a server: every read returns all of them.
const SLOTS_MAX: u32 = 100;

/// Routes of sessions.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(open_session))
        .api_heartbeat(RequiredPermission::Session, routes!(heartbeat_session))
        // A session may always release its own leases.
        .api(RequiredPermission::Session, routes!(end_session))
        .api(RequiredPermission::Session, routes!(leave_election))
        .api(RequiredPermission::Session, routes!(leases::release_lease))
        .api(RequiredPermission::SessionIn(Permission::Lead), routes!(join_election))
        .api(RequiredPermission::SessionIn(Permission::Lead), routes!(leases::take_lease))
        .api(RequiredPermission::Session, routes!(observe_elections))
        .api(RequiredPermission::AnyCredential, routes!(leases::expire_session))
        .api(RequiredPermission::In(Permission::Lead), routes!(leases::request_leader))
        .api(RequiredPermission::AnyCredential, routes!(protocol::handshake))
        .api(RequiredPermission::AnyCredential, routes!(protocol::read_store_clock))
        .api(RequiredPermission::AnyCredential, routes!(notifications::stream_notifications))
        .api(RequiredPermission::AnyCredential, routes!(admin::list_sessions))
        .api(RequiredPermission::In(Permission::Admin), routes!(admin::set_election_paused))
        .api(RequiredPermission::InAll(Permission::Admin), routes!(access::put_credential))
}

/// Namespace of a request.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
}

/// Optional namespace of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct OptionalNamespaceQuery {
    /// Namespace; if omitted, every namespace that the principal may read.
    pub(super) namespace: Option<Name>,
}

/// Open a session for the caller. The request counts as its first heartbeat.
#[utoipa::path(post, path = "/internal/v1/sessions", tag = "internal", request_body = OpenSessionRequest,
    responses((status = 200, body = HeartbeatResponse), (status = 403, body = Problem),
        (status = 410, body = Problem, description = "The id was used before."), (status = 422, body = Problem)))]
async fn open_session(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    JsonBody(mut session): JsonBody<OpenSessionRequest>,
) -> Result<Json<HeartbeatResponse>, Problem> {
    // Leaders hold leases under a session, workers hold claims.
    let holds = principal.grants.iter().any(|grant| {
        grant
            .permissions
            .iter()
            .any(|verb| matches!(verb, Permission::Lead | Permission::Claim | Permission::Admin))
    });
    if !holds {
        return Err(permission_missing(&principal, Permission::Lead, None));
    }
    check_session(&session)?;
    session_quota::check_session_quota(&app, &principal)?;
    if session.owner.as_deref().is_some_and(|owner| owner != &*principal.name) {
        let detail = format!("a session belongs to the principal that opens it, here {}", principal.name);
        return Err(invalid_value("owner", detail).remedy("omit `owner`"));
    }
    session.owner = Some(principal.name.to_string());
    alive(app.store.open_session(&session).await?, &session.id).map(Json)
}

/// Send a heartbeat for a session
///
/// Extends all leases of the session, counted from before the request was sent, and returns the requests to
/// the leader.
///
/// With `election` and `token` the server verifies the lease in the store: `409` means that the session does
/// not hold it, or that a standby was promoted since it was granted; stop all work under it. Without them
/// only the session is extended; a leader must then stop when `epoch` changes.
#[utoipa::path(post, path = "/v1/sessions/{session}/heartbeat", tag = "elections", params(("session" = SessionId, Path)),
    request_body(content = Option<SessionHeartbeatRequest>),
    responses((status = 200, body = HeartbeatResponse), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "The session does not hold the lease."),
        (status = 410, body = Problem, description = "The session ended and lost all its leases.")))]
async fn heartbeat_session(
    State(app): State<App>,
    PathParams(session): PathParams<SessionId>,
    OptionalJsonBody(renewal): OptionalJsonBody<SessionHeartbeatRequest>,
) -> Result<Json<HeartbeatResponse>, Problem> {
    let heartbeat = alive(app.store.heartbeat(&session).await?, &session)?;
    if let (Some(election), Some(token), HeartbeatResponse::Live { epoch, .. }) =
        (renewal.election, renewal.token, &heartbeat)
    {
        let key = ElectionKey::new(renewal.namespace, election);
        let snapshot = app.elections.refresh(&key).await?;
        let held = snapshot.elections.get(&key).is_some_and(|entry| {
            entry.held_by(&session).any(|(_, held)| held == token) && token.epoch() == *epoch
        });
        if !held {
            let detail = format!("the session does not lead {key} under token {token}");
            return Err(Problem::new(StatusCode::CONFLICT, "lease-not-held", detail)
                .field("token")
                .remedy("stop all work under the token and campaign again"));
        }
    }
    Ok(Json(heartbeat))
}

/// Lease to verify with a heartbeat.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"election": "nightly", "token": 7}))]
pub(super) struct SessionHeartbeatRequest {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[schema(default = "default")]
    namespace: Name,
    /// Election.
    election: Option<Name>,
    /// Token of the lease.
    token: Option<Token>,
}

/// End a session: release all its leases at once.
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "elections", params(("session" = SessionId, Path)),
    responses((status = 204), (status = 403, body = Problem)))]
async fn end_session(
    State(app): State<App>,
    PathParams(session): PathParams<SessionId>,
) -> Result<StatusCode, Problem> {
    app.store.end_session(&session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Join an election, or change the candidacy of the session.
#[utoipa::path(put, path = "/internal/v1/sessions/{session}/elections/{election}", tag = "internal",
    params(("session" = SessionId, Path), ("election" = Name, Path), NamespaceQuery), request_body = Candidacy,
    responses((status = 200, body = JoinElectionResponse), (status = 403, body = Problem), (status = 410, body = Problem),
        (status = 422, body = Problem)))]
async fn join_election(
    State(app): State<App>,
    PathParams((session, election)): PathParams<(SessionId, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(candidacy): JsonBody<Candidacy>,
) -> Result<Json<JoinElectionResponse>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    same_session(&session, &candidacy.session)?;
    same_election(&key, &candidacy.election)?;
    check_candidacy(&candidacy, validate_text)?;
    session_quota::check_candidacy_quota(&app, &candidacy)?;
    quota::check(&app, Object::Election(&candidacy.election)).await?;
    match app.store.join_election(&candidacy).await? {
        JoinElectionResponse::SessionEnded => Err(session_ended(&session)),
        joined => Ok(Json(joined)),
    }
}

/// Leave an election. A lease of the session stays until it is released.
#[utoipa::path(delete, path = "/internal/v1/sessions/{session}/elections/{election}", tag = "internal",
    params(("session" = SessionId, Path), ("election" = Name, Path), NamespaceQuery),
    responses((status = 204), (status = 403, body = Problem)))]
async fn leave_election(
    State(app): State<App>,
    PathParams((session, election)): PathParams<(SessionId, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<StatusCode, Problem> {
    app.store.leave_election(&session, &ElectionKey::new(within.namespace, election)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Read elections from the store.
#[utoipa::path(post, path = "/internal/v1/sessions/{session}/observe", tag = "internal", params(("session" = SessionId, Path)),
    request_body = ObserveScope, responses((status = 200, body = ElectionsObservation), (status = 403, body = Problem)))]
async fn observe_elections(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    PathParams(session): PathParams<SessionId>,
    JsonBody(scope): JsonBody<ObserveScope>,
) -> Result<Json<ElectionsObservation>, Problem> {
    let mut snapshot = app.store.observe(&session, &scope).await?;
    // Record the observed heartbeats: when the client reports a silent session, this server has observed it
    // too.
    app.elections.record_observation(&snapshot);
    snapshot.elections.retain(|election| may_see(&principal, &election.key.namespace));
    Ok(Json(snapshot))
}

/// Whether a principal may see a namespace: candidates must see the other candidates.
pub(super) fn may_see(principal: &Principal, namespace: &Name) -> bool {
    [Permission::Read, Permission::Lead].into_iter().any(|verb| principal.may(verb, Some(namespace)))
}

/// Name of an actor for display, with the principal's name if it differs.
pub(super) fn display_actor(principal: &Principal, by: &str) -> String {
    let known = &*principal.name;
    if known == "local" || known == by { by.to_owned() } else { format!("{by} ({known})") }
}

/// Actor of a change: the name in the request, or the principal.
pub(super) fn actor(principal: &Principal, by: Option<String>) -> Result<String, Problem> {
    let by = by.unwrap_or_else(|| principal.name.to_string());
    validate_display_text("on_behalf_of", &by)?;
    Ok(display_actor(principal, &by))
}

fn check_session(session: &OpenSessionRequest) -> Result<(), Problem> {
    let id = session.id.as_str();
    if id.len() != 32 || !id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(invalid_value(
            "id",
            "a session id is 128 random bits as 32 lower-case hexadecimal digits",
        ));
    }
    if session.takeover == TakeoverMode::Connection {
        return Err(invalid_value("takeover", "an HTTP session has no store connection to detect its end")
            .remedy("use takeover `lease`, or connect to PostgreSQL directly"));
    }
    // The client chooses its heartbeat interval; allow the shortest valid one.
    let heartbeat = session.lease.min(Duration::from_secs(30)) / 3;
    Timing::new(session.lease, Some(heartbeat))
        .map_err(|error| invalid_value("lease_ms", error.to_string()))?;
    validate_text("name", &session.name)
}

/// Check of a text field.
type TextCheck = fn(&str, &str) -> Result<(), Problem>;

pub(super) fn check_candidacy(candidacy: &Candidacy, text_fits: TextCheck) -> Result<(), Problem> {
    if !(1..=SLOTS_MAX).contains(&candidacy.slots) {
        return Err(invalid_value("slots", format!("an election has 1 to {SLOTS_MAX} slots")));
    }
    let mut sum = 0;
    let mut all_fit = |field: &str, text: &str| {
        text_fits(field, text)?;
        sum += text.len();
        let detail = || format!("the texts of a candidacy exceed {CANDIDACY_MAX} bytes in total");
        if sum <= CANDIDACY_MAX { Ok(()) } else { Err(invalid_value(field, detail())) }
    };
    all_fit("name", &candidacy.name)?;
    for (field, list) in [
        ("capabilities", &candidacy.capabilities),
        ("required_capabilities", &candidacy.required_capabilities),
    ] {
        validate_count(field, list.len())?;
        list.iter().try_for_each(|text| all_fit(field, text))?;
    }
    validate_count("metadata", candidacy.metadata.len())?;
    let mut metadata = candidacy.metadata.iter().flat_map(|(key, value)| [key, value]);
    metadata.try_for_each(|text| all_fit("metadata", text))
}

/// Check a text for display.
pub(crate) fn validate_display_text(field: &str, text: &str) -> Result<(), Problem> {
    validate_text(field, text)?;
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(invalid_value(field, format!("{c:?} is not allowed in a display text"))),
        None => Ok(()),
    }
}

/// Check a text of a client. Any character is stored as sent, except NUL, which PostgreSQL cannot store.
pub(super) fn validate_text(field: &str, text: &str) -> Result<(), Problem> {
    if text.len() > TEXT_MAX {
        return Err(invalid_value(field, format!("{} bytes exceed the maximum of {TEXT_MAX}", text.len())));
    }
    if text.contains('\0') { Err(invalid_value(field, "the text contains a NUL character")) } else { Ok(()) }
}

pub(super) fn validate_count(field: &str, count: usize) -> Result<(), Problem> {
    if count <= LIST_MAX {
        Ok(())
    } else {
        Err(invalid_value(field, format!("{count} entries exceed the maximum of {LIST_MAX}")))
    }
}

fn same_session(path: &SessionId, body: &SessionId) -> Result<(), Problem> {
    if path == body {
        return Ok(());
    }
    Err(invalid_value("session", "path and body name different sessions"))
}

fn same_election(path: &ElectionKey, body: &ElectionKey) -> Result<(), Problem> {
    if path == body {
        return Ok(());
    }
    let detail = format!("the path has election {path} and the body {body}");
    Err(invalid_value("election", detail).remedy("send the namespace in the query: ?namespace=NAME"))
}

/// Problem: a value is invalid.
pub(super) fn invalid_value(field: &str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", detail).field(field)
}

fn permission_missing(principal: &Principal, verb: Permission, namespace: Option<&Name>) -> Problem {
    let place =
        namespace.map_or_else(|| "in any namespace".to_owned(), |name| format!("in namespace {name}"));
    Problem::new(
        StatusCode::FORBIDDEN,
        "forbidden",
        format!("{} lacks the permission {verb} {place}", principal.name),
    )
    .remedy(format!("use a credential with the grant {}:{verb}", namespace.map_or("NAMESPACE", Name::as_str)))
}

fn alive(heartbeat: HeartbeatResponse, session: &SessionId) -> Result<HeartbeatResponse, Problem> {
    match heartbeat {
        HeartbeatResponse::SessionEnded => Err(session_ended(session)),
        alive => Ok(alive),
    }
}

/// Problem: the session has ended.
pub(super) fn session_ended(session: &SessionId) -> Problem {
    let detail = format!("session {} has ended and lost all its leases", session.short());
    Problem::new(StatusCode::GONE, "session-ended", detail).remedy("open a session with a new id")
}
