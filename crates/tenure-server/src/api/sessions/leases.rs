//! Leases: taken, given back, asked for; and sessions that are declared dead.

use axum::extract::State;
use axum::{Extension, Json};
use http::StatusCode;
use serde::Serialize;
use tenure::port::{Ask, AskKind, Expire, Release, Scope, Take, Verb};
use tenure::{ElectionKey, Name, SessionId, Token};
use utoipa::ToSchema;

use super::{Within, denied, same_election, same_session, unfit};
use crate::App;
use crate::access::Principal;
use crate::api::deeds::{By, record};
use crate::api::given::{At, Given, In};
use crate::problem::Problem;

/// What came of a take.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Taken {
    /// The token of the new term; none if what was seen is no longer so.
    token: Option<Token>,
}

/// What came of an ask.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Asked {
    /// Whether that term goes on, and its holder will find the request.
    asked: bool,
}

/// Takes a lease, if everything is still as it was seen.
#[utoipa::path(post, path = "/v1/sessions/{session}/elections/{election}/take", tag = "sessions",
    params(("session" = SessionId, Path), ("election" = Name, Path), Within), request_body = Take,
    responses((status = 200, body = Taken), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn take(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    At((session, election)): At<(SessionId, Name)>,
    In(within): In<Within>,
    Given(mut take): Given<Take>,
) -> Result<Json<Taken>, Problem> {
    same_session(&session, &take.session)?;
    same_election(&ElectionKey::new(within.namespace, election), &take.election)?;
    if let Some(expire) = &take.expire
        && !may_expire(&app, &principal, expire).await?
    {
        take.expire = None;
    }
    Ok(Json(Taken { token: app.store.take(&take).await? }))
}

/// Gives a lease back. Nothing happens if it is not held under that token.
#[utoipa::path(post, path = "/v1/sessions/{session}/elections/{election}/release", tag = "sessions",
    params(("session" = SessionId, Path), ("election" = Name, Path), Within), request_body = Release,
    responses((status = 204), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn release(
    State(app): State<App>,
    At((session, election)): At<(SessionId, Name)>,
    In(within): In<Within>,
    Given(release): Given<Release>,
) -> Result<StatusCode, Problem> {
    same_session(&session, &release.session)?;
    same_election(&ElectionKey::new(within.namespace, election), &release.election)?;
    app.store.release(&release).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Declares a session dead whose beat was seen to stand still for its lease, and frees all that it held.
#[utoipa::path(post, path = "/v1/expire", tag = "sessions", request_body = Expire,
    responses((status = 204), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn expire(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Given(expire): Given<Expire>,
) -> Result<StatusCode, Problem> {
    if may_expire(&app, &principal, &expire).await? {
        app.store.expire(&expire).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Asks something of the holder of a lease. Candidates ask for it themselves (`preempt`); all else is for operators.
#[utoipa::path(post, path = "/v1/elections/{election}/ask", tag = "sessions",
    params(("election" = Name, Path), Within), request_body = Ask,
    responses((status = 200, body = Asked), (status = 403, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn ask(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    by: By,
    At(election): At<Name>,
    In(within): In<Within>,
    Given(mut ask): Given<Ask>,
) -> Result<Json<Asked>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    same_election(&key, &ask.election)?;
    super::fits("by", &ask.by)?;
    if !matches!(ask.kind, AskKind::Preempt(_)) && !principal.may(Verb::Admin, Some(&key.namespace)) {
        return Err(denied(&principal, Verb::Admin, Some(&key.namespace)));
    }
    ask.by = super::signed(&principal, &ask.by);
    let asked = app.store.ask(&ask).await?;
    if asked && !matches!(ask.kind, AskKind::Preempt(_)) {
        let to = ask.kind.successor().map(|to| format!("to {}", to.short())).unwrap_or_default();
        record(&app, &by, ask.kind.word(), &key, to).await;
    }
    Ok(Json(Asked { asked }))
}

/// Whether a principal may declare a session dead: it frees what the session holds *everywhere*, so whoever does it must
/// be one who may lead everywhere the session stands. `false` if it stands nowhere, so that there is nothing to free.
async fn may_expire(app: &App, principal: &Principal, expire: &Expire) -> Result<bool, Problem> {
    if expire.beat.is_none() {
        let detail = "only the store itself may know a session dead without having seen its beat stand still";
        return Err(unfit("beat", detail).remedy("name the beat that was seen"));
    }
    if principal.may(Verb::Lead, None) {
        return Ok(true);
    }
    let seen = app.store.observe(&expire.session, &Scope::Standing).await?;
    let standing = seen.elections.into_iter().map(|election| election.key);
    let keys: Vec<_> = standing.chain(seen.strays.into_iter().map(|(key, ..)| key)).collect();
    match keys.iter().find(|key| !principal.may(Verb::Lead, Some(&key.namespace))) {
        // Not where else it stands: that is none of their business.
        Some(_) => Err(Problem::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            format!("session {} also stands where {} may not lead", expire.session.short(), principal.name),
        )
        .remedy("wait until a candidate of its other elections, or the server's own, declares it dead")),
        None => Ok(!keys.is_empty()),
    }
}
