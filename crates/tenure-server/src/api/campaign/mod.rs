//! Campaigns of plain HTTP clients: a client campaigns with a request and keeps its lease with further
//! requests.
//!
//! The server keeps no state for such a client that another replica would need. A request counts as a
//! heartbeat when it arrives, so the lease is counted from before the client sent it. It joins the election
//! if necessary, and waits for the lease by the rules of every other candidate
//! ([`ProxyCandidate`](tenure_core::lease::ProxyCandidate)). A client that got no response repeats the
//! request at any replica with the same session.
//!
//! If the first request took the lease after all, the session holds a lease under a token that the client
//! does not know. The server does not adopt that lease, because other work may run under it. It does not
//! release it either, because the request that finds it may itself be the delayed one. The response reports
//! the lease as `unreported_lease`, and the client releases it by its token.

mod types;
mod wait;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use tenure::port::{Candidacy, HeartbeatResponse, JoinElectionResponse, OpenSessionRequest, TakeoverMode};
use tenure::runtime::RuntimeEntropy;
use tenure::{ElectionKey, Name, SessionId, Timing, Token};

use self::types::{CampaignRequest, CampaignResponse};
use self::wait::CampaignWait;
use super::extract::{JsonBody, PathParams, QueryParams};
use super::session_owner::{require_owned_session, validate_session_id};
use super::session_quota;
use super::sessions::{NamespaceQuery, check_candidacy, invalid_value, session_ended, validate_display_text};
use crate::App;
use crate::access::{Principal, RequestPermitHandle};
use crate::problem::Problem;
use crate::quota::{self, Object};

/// Campaign
///
/// Joins the election and waits up to `wait_ms` for the lease. Without `session` the server opens one: keep
/// it and send it with every later request. While leading, send the `token` too.
///
/// A leader may act for `lease_remaining_ms`, counted *from before it sent this request* on its own clock.
/// Send `POST /v1/sessions/{session}/heartbeat` every `heartbeat_interval_ms` to extend this in the same way;
/// the response contains the requests to the leader. A candidate that does not lead campaigns again within
/// the lease, or its session ends.
///
/// Send one campaign of a session at a time: two concurrent campaigns undo each other.
#[utoipa::path(post, path = "/v1/elections/{election}/campaign", tag = "elections",
    params(("election" = Name, Path), NamespaceQuery), request_body = CampaignRequest,
    responses((status = 200, body = CampaignResponse),
        (status = 409, body = Problem, description = "The election has another number of slots."),
        (status = 410, body = Problem, description = "The session has ended: campaign without one.")))]
pub(crate) async fn campaign(
    State(app): State<App>,
    principal: Principal,
    permit: RequestPermitHandle,
    PathParams(election): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(campaign): JsonBody<CampaignRequest>,
) -> Result<Json<CampaignResponse>, Problem> {
    let arrived = app.runtime.now();
    let key = ElectionKey::new(within.namespace, election);
    campaign.token.map_or(Ok(()), validate_token)?;
    let mut candidacy = campaign.candidacy(SessionId::from_stored(""), key);
    check_candidacy(&candidacy, validate_display_text)?;
    if campaign.name.trim().is_empty() {
        return Err(invalid_value("name", "a candidate needs a name"));
    }
    let (session, lease, counted) = match &campaign.session {
        None => open(&app, &principal, &campaign).await?,
        Some(session) => renew(&app, &principal, session, &campaign).await?,
    };
    candidacy.session = session;
    let timing = Timing::new(lease, None).unwrap_or_default();
    // A third of the lease remains for the response to arrive and for the client to act.
    let cap = (timing.trust() / 2).min(app.timeouts.request / 2);
    let wait = Duration::from_millis(campaign.wait_ms.unwrap_or(0)).min(cap);
    let waiting = CampaignWait {
        app: &app,
        permit: &permit,
        candidacy: &candidacy,
        named: campaign.token,
        deadline: arrived + wait,
        // A lease granted after this instant would reach the client too late to be used.
        pointless: arrived + timing.trust() * 3 / 4,
    };
    join_if_changed(&app, &candidacy).await?;
    let outcome = waiting.outcome().await?;
    Ok(Json(CampaignResponse::new(&candidacy, &timing, outcome, counted)))
}

/// A session, its lease and the result of its first heartbeat.
type OpenedSession = (SessionId, Duration, CountedHeartbeat);

/// Result of a counted heartbeat.
pub(super) struct CountedHeartbeat {
    pub(super) epoch: u32,
    pub(super) leader_requests: Vec<tenure::port::LeaderRequest>,
}

async fn open(
    app: &App,
    principal: &Principal,
    campaign: &CampaignRequest,
) -> Result<OpenedSession, Problem> {
    let lease = campaign.lease_ms.map_or(tenure::DEFAULT_LEASE, Duration::from_millis);
    let timing = Timing::new(lease, None).map_err(|error| invalid_value("lease_ms", error.to_string()))?;
    if let Some(token) = campaign.token {
        let detail = format!("token {token} is given without a session; a new session holds no lease");
        return Err(
            invalid_value("token", detail).remedy("send the session that holds the lease, or omit `token`")
        );
    }
    session_quota::check_session_quota(app, principal)?;
    let id = SessionId::generate(&mut RuntimeEntropy(app.runtime.as_ref()));
    let session = OpenSessionRequest {
        id: id.clone(),
        name: campaign.name.clone(),
        lease: timing.lease(),
        takeover: TakeoverMode::Lease,
        owner: Some(principal.name.to_string()),
    };
    match app.store.open_session(&session).await? {
        HeartbeatResponse::Live { epoch, leader_requests } => {
            Ok((id, lease, CountedHeartbeat { epoch, leader_requests }))
        }
        HeartbeatResponse::SessionEnded => Err(session_ended(&id)),
    }
}

async fn renew(
    app: &App,
    principal: &Principal,
    session: &SessionId,
    campaign: &CampaignRequest,
) -> Result<OpenedSession, Problem> {
    validate_session_id(session)?;
    let view = require_owned_session(app, principal, session).await?;
    if campaign.lease_ms.is_some_and(|lease_ms| lease_ms != view.lease_ms) {
        let detail = format!("the session was opened with a lease of {} ms", view.lease_ms);
        return Err(invalid_value("lease_ms", detail).remedy("omit lease_ms, or campaign with a new session"));
    }
    match app.store.heartbeat(session).await? {
        HeartbeatResponse::Live { epoch, leader_requests } => {
            Ok((session.clone(), view.lease(), CountedHeartbeat { epoch, leader_requests }))
        }
        HeartbeatResponse::SessionEnded => Err(session_ended(session).field("session")),
    }
}

/// Join the election, unless the snapshot shows the same candidacy: each join notifies every candidate.
async fn join_if_changed(app: &App, candidacy: &Candidacy) -> Result<(), Problem> {
    let snapshot = app.elections.snapshot();
    let joined = snapshot.elections.get(&candidacy.election).is_some_and(|entry| {
        let as_is = entry.candidate(&candidacy.session).is_some_and(|candidate| {
            (candidate.priority, candidate.observer) == (candidacy.priority, candidacy.observer)
                && (&candidate.name, &candidate.capabilities, &candidate.metadata)
                    == (&candidacy.name, &candidacy.capabilities, &candidacy.metadata)
        });
        let requires = candidacy.required_capabilities.is_empty()
            || candidacy.required_capabilities == entry.required_capabilities;
        as_is && requires && entry.slots == candidacy.slots
    });
    if joined { Ok(()) } else { join(app, candidacy).await }
}

async fn join(app: &App, candidacy: &Candidacy) -> Result<(), Problem> {
    session_quota::check_candidacy_quota(app, candidacy)?;
    quota::check(app, Object::Election(&candidacy.election)).await?;
    match app.store.join_election(candidacy).await? {
        JoinElectionResponse::Joined => Ok(()),
        JoinElectionResponse::SessionEnded => Err(session_ended(&candidacy.session).field("session")),
        JoinElectionResponse::SlotsDiffer { slots } => {
            let detail = format!(
                "{} has {slots} slots and live candidates; the request has {} slots",
                candidacy.election, candidacy.slots
            );
            let problem = Problem::new(StatusCode::CONFLICT, "slots-differ", detail).field("slots");
            Err(problem
                .remedy(format!("send {slots} slots, or wait until the election has no other candidate")))
        }
    }
}

/// Reject a token beyond the range that stores grant.
pub(super) fn validate_token(token: Token) -> Result<(), Problem> {
    if i64::try_from(token.as_u64()).is_ok() {
        return Ok(());
    }
    Err(invalid_value("token", format!("{} exceeds the largest token", token.as_u64())))
}
