//! Leases: taken, given back, asked for; and sessions that are declared dead.

use axum::extract::State;
use axum::{Extension, Json};
use http::StatusCode;
use serde::Serialize;
use tenure::election::may_lead;
use tenure::port::{
    Ask, AskKind, CandidateView, ElectionView, Expire, Release, Scope, SessionView, Take, Verb,
};
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
#[schema(as = TakenLease)]
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
    responses((status = 200, body = Taken), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "who was to be expired has not been silent for its lease"),
        (status = 422, body = Problem)))]
pub(super) async fn take(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    by: By,
    At((session, election)): At<(SessionId, Name)>,
    In(within): In<Within>,
    Given(mut take): Given<Take>,
) -> Result<Json<Taken>, Problem> {
    same_session(&session, &take.session)?;
    same_election(&ElectionKey::new(within.namespace, election), &take.election)?;
    let mut freed = Vec::new();
    if let Some(expire) = &take.expire {
        match may_expire(&app, &principal, expire).await? {
            Some(keys) => freed = keys,
            None => take.expire = None,
        }
    }
    let token = app.store.take(&take).await?;
    if let (Some(expire), Some(_)) = (&take.expire, token) {
        expired(&app, &by, expire, freed).await;
    }
    Ok(Json(Taken { token }))
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
    responses((status = 204), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "it has not been silent for its lease"), (status = 422, body = Problem)))]
pub(super) async fn expire(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    by: By,
    Given(expire): Given<Expire>,
) -> Result<StatusCode, Problem> {
    if let Some(freed) = may_expire(&app, &principal, &expire).await? {
        app.store.expire(&expire).await?;
        expired(&app, &by, &expire, freed).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Asks something of the holder of a lease. Candidates ask for it themselves (`preempt`); all else is for operators.
#[utoipa::path(post, path = "/v1/elections/{election}/ask", tag = "sessions",
    params(("election" = Name, Path), Within), request_body = Ask,
    responses((status = 200, body = Asked), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "who would lead has no higher priority"), (status = 422, body = Problem)))]
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
    if let AskKind::Preempt(session) = &ask.kind
        && !principal.may(Verb::Admin, Some(&key.namespace))
        && app.store.election(&key).await?.is_some_and(|view| !outranks(&view, &ask, session))
    {
        let detail = format!("session {} has no better right to {key} than its leader", session.short());
        return Err(Problem::new(StatusCode::CONFLICT, "no-higher-priority", detail)
            .field("kind")
            .remedy("stand with a higher priority, or let an operator transfer the leadership"));
    }
    ask.by = super::signed(&principal, &ask.by);
    let asked = app.store.ask(&ask).await?;
    if asked && !matches!(ask.kind, AskKind::Preempt(_)) {
        let to = ask.kind.successor().map(|to| format!("to {}", to.short())).unwrap_or_default();
        record(&app, &by, ask.kind.word(), &key, to).await;
    }
    Ok(Json(Asked { asked }))
}

/// Whether the session for which this preempts may have that term: as every candidate decides for itself.
fn outranks(view: &ElectionView, ask: &Ask, session: &SessionId) -> bool {
    let term = view.holders().find(|(lease, _)| (lease.slot, lease.token) == (ask.slot, ask.token));
    // Of a term that is over, nothing will be asked.
    let Some((lease, holder)) = term else { return true };
    let better = |me: &CandidateView| {
        let holder = view.candidate(&holder.id);
        me.session.live && may_lead(me, &view.requires) && holder.is_none_or(|it| it.priority < me.priority)
    };
    !lease.via.is_pinned() && view.candidate(session).is_some_and(better)
}

/// Where a session stands or holds something, if a principal may declare it dead; `None` if that is nowhere, so that there
/// is nothing to free.
///
/// It frees what the session holds *everywhere*, so whoever does it must be one who may lead everywhere the session stands.
/// And it takes an operator to end what is alive: all others are believed only if this server has seen the silence, too.
async fn may_expire(
    app: &App,
    principal: &Principal,
    expire: &Expire,
) -> Result<Option<Vec<ElectionKey>>, Problem> {
    let Some(beat) = expire.beat else {
        let detail = "only the store itself may know a session dead without having seen its beat stand still";
        return Err(unfit("beat", detail).remedy("name the beat that was seen"));
    };
    let seen = app.store.observe(&expire.session, &Scope::Standing).await?;
    let standing = seen.elections.into_iter().map(|election| election.key);
    let keys: Vec<_> = standing.chain(seen.strays.into_iter().map(|(key, ..)| key)).collect();
    if principal.may(Verb::Admin, None) {
        return Ok(Some(keys));
    }
    if keys.iter().any(|key| !principal.may(Verb::Lead, Some(&key.namespace))) {
        // Not where else it stands: that is none of their business.
        let detail =
            format!("session {} also stands where {} may not lead", expire.session.short(), principal.name);
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail)
            .remedy("wait until a candidate of its other elections, or the server's own, declares it dead"));
    }
    if keys.is_empty() {
        return Ok(None);
    }
    let operates = keys.iter().all(|key| principal.may(Verb::Admin, Some(&key.namespace)));
    let found = app.store.sessions(Some(std::slice::from_ref(&expire.session))).await?;
    let silent = |session: &SessionView| {
        session.id == expire.session && session.beat == beat && app.board.is_silent(session, expire.epoch)
    };
    if operates || found.iter().any(silent) {
        return Ok(Some(keys));
    }
    let detail = format!("this server has not seen session {} silent for its lease", expire.session.short());
    Err(Problem::new(StatusCode::CONFLICT, "not-silent", detail)
        .field("beat")
        .remedy("wait, look again, and try again if its beat still stands where it stood"))
}

/// Records that a session was declared dead, once in each namespace where it stood.
async fn expired(app: &App, by: &By, expire: &Expire, mut freed: Vec<ElectionKey>) {
    freed.sort();
    freed.dedup_by(|a, b| a.namespace == b.namespace);
    for key in &freed {
        record(app, by, "expire", key, format!("session {}", expire.session.short())).await;
    }
}
