//! The machine's protocol over HTTP: one route for each call of [`Store`](tenure::port::Store).
//!
//! What goes to and fro are the types of the port themselves, so that a client and a server can not drift apart. Nothing is
//! decided here: a call is checked (is it about the session and the election of its address, may this principal do it),
//! handed to the store, and its answer handed back. So any replica answers any call, and knows nothing that another one
//! would miss. A client that got no answer asks another replica: everything is guarded by the store's own
//! compare-and-swap.
//!
//! A session that was opened here belongs to the principal that opened it, and lives in the store: it is not the server's
//! to lose. Only its own silence for its lease ends it.

mod leases;
mod office;
mod people;
mod protocol;
mod wakes;

use std::time::Duration;

use axum::extract::State;
use axum::{Extension, Json};
use http::StatusCode;
use serde::Deserialize;
use tenure::port::{Candidacy, Joined, NewSession, Observation, Pulse, Scope, Takeover, Verb};
use tenure::{ElectionKey, Name, SessionId, Timing, Token};
use utoipa::IntoParams;
use utoipa_axum::routes;

use crate::App;
use crate::access::Principal;
use crate::api::given::{At, Given, In, MaybeGiven};
use crate::api::room;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{Need, Routes};

/// The longest text in a session or candidacy, in bytes.
const TEXT_MAX: usize = 1024;
/// The most capabilities, requirements or metadata of a candidacy.
const LIST_MAX: usize = 100;

/// The most bytes of all texts of a candidacy together: everybody who stands there reads them all.
const CANDIDACY_MAX: usize = 16 * 1024;
/// The most slots of an election through a server: each costs everybody who looks.
const SLOTS_MAX: u32 = 100;

/// The routes of the machine's protocol.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .api(Need::Known, routes!(open))
        .api_heartbeat(Need::Session, routes!(renew))
        // To give up what one has is never denied to whoever owns it, whatever else was taken from them.
        .api(Need::Session, routes!(end))
        .api(Need::Session, routes!(leave))
        .api(Need::Session, routes!(leases::release))
        .api(Need::SessionIn(Verb::Lead), routes!(join))
        .api(Need::SessionIn(Verb::Lead), routes!(leases::take))
        .api(Need::Session, routes!(observe))
        .api(Need::Known, routes!(leases::expire))
        .api(Need::In(Verb::Lead), routes!(leases::ask))
        .api(Need::Known, routes!(protocol::hello))
        .api(Need::Known, routes!(protocol::clock))
        .api(Need::Known, routes!(wakes::wakes))
        .api(Need::Known, routes!(people::sessions))
        .api(Need::In(Verb::Admin), routes!(people::set_paused))
        .api(Need::Over(Verb::Admin), routes!(office::put_credential))
}

/// The namespace of an election in a request.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Within {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
}

/// Whose things are listed.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct Whose {
    /// The tenant; without one, all that you may read.
    pub(super) namespace: Option<Name>,
}

/// Opens a session for whoever asks. Its first beat counts, from before the request was sent.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = NewSession,
    responses((status = 200, body = Pulse), (status = 403, body = Problem),
        (status = 410, body = Problem, description = "the id was used before"), (status = 422, body = Problem)))]
async fn open(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    Given(mut session): Given<NewSession>,
) -> Result<Json<Pulse>, Problem> {
    // Those who lead hold leases under it, those who work claims.
    let holds = principal
        .grants
        .iter()
        .any(|grant| grant.verbs.iter().any(|verb| matches!(verb, Verb::Lead | Verb::Claim | Verb::Admin)));
    if !holds {
        return Err(denied(&principal, Verb::Lead, None));
    }
    check_session(&session)?;
    room::for_session(&app, &principal)?;
    if session.owner.as_deref().is_some_and(|owner| owner != &*principal.name) {
        let detail = format!("a session belongs to whoever opens it, here {}", principal.name);
        return Err(unfit("owner", detail).remedy("leave `owner` out"));
    }
    session.owner = Some(principal.name.to_string());
    alive(app.store.open(&session).await?, &session.id).map(Json)
}

/// Renew
///
/// Says that the session lives, and brings back what is asked of it. All that it holds is trusted anew, from before the
/// request was sent.
///
/// Name the term that you lead (`election` and `token`), and it is looked for in the store: `409` says that the session does not
/// hold it, or that a standby was promoted since it was granted, and that nothing is to be believed of it. Without it, only
/// the session is renewed; whoever does so stops believing when `timeline` changes.
#[utoipa::path(post, path = "/v1/sessions/{session}/renew", tag = "sessions", params(("session" = SessionId, Path)),
    request_body(content = Option<Renewal>),
    responses((status = 200, body = Pulse), (status = 403, body = Problem),
        (status = 409, body = Problem, description = "the session does not hold what was named"),
        (status = 410, body = Problem, description = "the session has ended; all that it held is lost")))]
async fn renew(
    State(app): State<App>,
    At(session): At<SessionId>,
    MaybeGiven(renewal): MaybeGiven<Renewal>,
) -> Result<Json<Pulse>, Problem> {
    let pulse = alive(app.store.beat(&session).await?, &session)?;
    if let (Some(election), Some(token), Pulse::Alive { timeline, .. }) =
        (renewal.election, renewal.token, &pulse)
    {
        let key = ElectionKey::new(renewal.namespace, election);
        let seen = app.board.look(&key).await?;
        let held = seen.elections.get(&key).is_some_and(|entry| {
            entry.held_by(&session).any(|(_, held)| held == token) && token.timeline() == *timeline
        });
        if !held {
            let detail = format!("this session does not lead {key} under token {token}");
            return Err(Problem::new(StatusCode::CONFLICT, "not-held", detail)
                .field("token")
                .remedy("stop what runs under it, and campaign again"));
        }
    }
    Ok(Json(pulse))
}

/// Which term is renewed.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"election": "nightly", "token": 7}))]
pub(super) struct Renewal {
    /// The tenant.
    #[serde(default = "Name::default_namespace")]
    #[schema(default = "default")]
    namespace: Name,
    /// The election.
    election: Option<Name>,
    /// The token of its term.
    token: Option<Token>,
}

/// Ends the session: frees all that it holds, and others take over at once.
#[utoipa::path(delete, path = "/v1/sessions/{session}", tag = "sessions", params(("session" = SessionId, Path)),
    responses((status = 204), (status = 403, body = Problem)))]
async fn end(State(app): State<App>, At(session): At<SessionId>) -> Result<StatusCode, Problem> {
    app.store.end(&session).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stands for an election, or changes how the session stands.
#[utoipa::path(put, path = "/v1/sessions/{session}/elections/{election}", tag = "sessions",
    params(("session" = SessionId, Path), ("election" = Name, Path), Within), request_body = Candidacy,
    responses((status = 200, body = Joined), (status = 403, body = Problem), (status = 410, body = Problem),
        (status = 422, body = Problem)))]
async fn join(
    State(app): State<App>,
    At((session, election)): At<(SessionId, Name)>,
    In(within): In<Within>,
    Given(candidacy): Given<Candidacy>,
) -> Result<Json<Joined>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    same_session(&session, &candidacy.session)?;
    same_election(&key, &candidacy.election)?;
    check_candidacy(&candidacy, fits)?;
    room::for_candidacy(&app, &candidacy)?;
    quota::check(&app, Object::Election(&candidacy.election)).await?;
    match app.store.join(&candidacy).await? {
        Joined::Gone => Err(gone(&session)),
        joined => Ok(Json(joined)),
    }
}

/// Stands for an election no longer. A lease that the session holds there stays until it is released.
#[utoipa::path(delete, path = "/v1/sessions/{session}/elections/{election}", tag = "sessions",
    params(("session" = SessionId, Path), ("election" = Name, Path), Within),
    responses((status = 204), (status = 403, body = Problem)))]
async fn leave(
    State(app): State<App>,
    At((session, election)): At<(SessionId, Name)>,
    In(within): In<Within>,
) -> Result<StatusCode, Problem> {
    app.store.leave(&session, &ElectionKey::new(within.namespace, election)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Looks at elections, as the session's store has them at this moment.
#[utoipa::path(post, path = "/v1/sessions/{session}/observe", tag = "sessions", params(("session" = SessionId, Path)),
    request_body = Scope, responses((status = 200, body = Observation), (status = 403, body = Problem)))]
async fn observe(
    State(app): State<App>,
    Extension(principal): Extension<Principal>,
    At(session): At<SessionId>,
    Given(scope): Given<Scope>,
) -> Result<Json<Observation>, Problem> {
    let mut seen = app.store.observe(&session, &scope).await?;
    // So that whom this client will have seen silent, this server will have, too.
    app.board.glimpsed(&seen);
    seen.elections.retain(|election| sees(&principal, &election.key.namespace));
    Ok(Json(seen))
}

/// Whether a principal may see what is in a namespace: whoever may stand there must see whom they stand against.
pub(super) fn sees(principal: &Principal, namespace: &Name) -> bool {
    [Verb::Read, Verb::Lead].into_iter().any(|verb| principal.may(verb, Some(namespace)))
}

/// What somebody calls themselves, for the others to see; with what they are known as, where that is another name.
pub(super) fn signed(principal: &Principal, by: &str) -> String {
    let known = &*principal.name;
    if known == "local" || known == by { by.to_owned() } else { format!("{by} ({known})") }
}

/// Who is to be named for a deed: whom the request names, or else who sends it.
pub(super) fn doer(principal: &Principal, by: Option<String>) -> Result<String, Problem> {
    let by = by.unwrap_or_else(|| principal.name.to_string());
    short("by", &by)?;
    Ok(signed(principal, &by))
}

fn check_session(session: &NewSession) -> Result<(), Problem> {
    let id = session.id.as_str();
    if id.len() != 32 || !id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(unfit(
            "id",
            "the id of a session is 128 random bits as 32 lower-case hexadecimal digits",
        ));
    }
    if session.takeover == Takeover::Connection {
        return Err(unfit(
            "takeover",
            "a session over HTTP has no connection to the store that could end with it",
        )
        .remedy("use takeover `lease`, or connect to PostgreSQL directly"));
    }
    // The beat of the client is its own affair; the shortest that makes sense is allowed for.
    let beat = session.lease.min(Duration::from_secs(30)) / 3;
    Timing::new(session.lease, Some(beat)).map_err(|error| unfit("lease_ms", error.to_string()))?;
    fits("name", &session.name)
}

/// A check of a text in a field.
type Checked = fn(&str, &str) -> Result<(), Problem>;

pub(super) fn check_candidacy(candidacy: &Candidacy, text_fits: Checked) -> Result<(), Problem> {
    if !(1..=SLOTS_MAX).contains(&candidacy.slots) {
        return Err(unfit("slots", format!("through a server, an election has 1 to {SLOTS_MAX} slots")));
    }
    let mut sum = 0;
    let mut all_fit = |field: &str, text: &str| {
        text_fits(field, text)?;
        sum += text.len();
        let detail = || format!("all texts of a candidacy together have {CANDIDACY_MAX} bytes at most");
        if sum <= CANDIDACY_MAX { Ok(()) } else { Err(unfit(field, detail())) }
    };
    all_fit("id", &candidacy.id)?;
    for (field, list) in [("capabilities", &candidacy.capabilities), ("requires", &candidacy.requires)] {
        few(field, list.len())?;
        list.iter().try_for_each(|text| all_fit(field, text))?;
    }
    few("metadata", candidacy.metadata.len())?;
    let mut metadata = candidacy.metadata.iter().flat_map(|(key, value)| [key, value]);
    metadata.try_for_each(|text| all_fit("metadata", text))
}

/// Checks a text that people read.
pub(crate) fn short(field: &str, text: &str) -> Result<(), Problem> {
    fits(field, text)?;
    match text.chars().find(|c| c.is_control()) {
        Some(c) => Err(unfit(field, format!("{c:?} is no character for a text that people read"))),
        None => Ok(()),
    }
}

/// What programs say of themselves is kept as they say it, as the store behind this server would: all but the one
/// character that PostgreSQL has no place for.
pub(super) fn fits(field: &str, text: &str) -> Result<(), Problem> {
    if text.len() > TEXT_MAX {
        return Err(unfit(field, format!("{} bytes are too many; at most {TEXT_MAX} are kept", text.len())));
    }
    if text.contains('\0') { Err(unfit(field, "a text with a NUL in it cannot be kept")) } else { Ok(()) }
}

pub(super) fn few(field: &str, count: usize) -> Result<(), Problem> {
    if count <= LIST_MAX {
        Ok(())
    } else {
        Err(unfit(field, format!("{count} are too many; at most {LIST_MAX} are kept")))
    }
}

fn same_session(path: &SessionId, body: &SessionId) -> Result<(), Problem> {
    if path == body {
        return Ok(());
    }
    Err(unfit("session", "the address and the body name different sessions"))
}

fn same_election(path: &ElectionKey, body: &ElectionKey) -> Result<(), Problem> {
    if path == body {
        return Ok(());
    }
    let detail = format!("the address says {path} and the body {body}");
    Err(unfit("election", detail).remedy("the namespace belongs into the query: ?namespace=NAME"))
}

/// A body that is well formed and makes no sense.
pub(super) fn unfit(field: &str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", detail).field(field)
}

fn denied(principal: &Principal, verb: Verb, namespace: Option<&Name>) -> Problem {
    let place = namespace.map_or_else(|| "anywhere".to_owned(), |name| format!("in namespace {name}"));
    Problem::new(StatusCode::FORBIDDEN, "forbidden", format!("{} may not {verb} {place}", principal.name))
        .remedy(format!(
            "ask for a token with the grant {}:{verb}",
            namespace.map_or("NAMESPACE", Name::as_str)
        ))
}

fn alive(pulse: Pulse, session: &SessionId) -> Result<Pulse, Problem> {
    match pulse {
        Pulse::Gone => Err(gone(session)),
        alive => Ok(alive),
    }
}

/// The session has ended, and never comes back.
pub(super) fn gone(session: &SessionId) -> Problem {
    let detail = format!("session {} has ended, and all that it held is lost", session.short());
    Problem::new(StatusCode::GONE, "session-gone", detail)
        .remedy("open a session with an id that was never used")
}
