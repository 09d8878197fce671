//! What operators do: make a leader resign, move a leadership, pause and resume an election. And what a holder does
//! when it has had enough.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::operator::{self, Asked, Refusal};
use tenure::port::{AskKind, ElectionView, Pause, Pulse, Release, Verb, Via};
use tenure::{ElectionKey, Name, SessionId, Token};
use utoipa::ToSchema;

use super::campaign::plausible_token;
use super::deeds::{By, record};
use super::elections::none;
use super::given::{At, Given, In, MaybeGiven};
use super::owned::{owned, plausible};
use super::sessions::{Within, gone, short, unfit};
use super::shape::Election;
use crate::App;
use crate::access::{Principal, Slot};
use crate::problem::Problem;

/// The longest that an operator's request waits for what it asked, in milliseconds.
const WAIT_MAX_MS: u64 = 30_000;

/// Who is to resign.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"session": "5b1c8a40c7d94f0e9a7a3c6ad0b1e2f3", "token": 7}))]
pub(crate) struct Resign {
    /// By the leader itself: its session. It has finished whatever it did under its token.
    session: Option<SessionId>,
    /// By the leader itself: the token under which it leads.
    token: Option<Token>,
    /// By the leader itself: goes on standing, and lets others go first. Otherwise it leaves the election.
    #[serde(default)]
    stand: bool,
    /// By an operator: only the leader of this slot.
    slot: Option<u32>,
    /// By an operator: how long to wait until another leads.
    #[schema(default = 0, maximum = 30000)]
    wait_ms: Option<u64>,
}

/// Who is to lead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "web-2", "wait_ms": 5000}))]
pub(crate) struct Transfer {
    /// A candidate's id; or its session, or the beginning of that.
    #[schema(example = "web-2")]
    to: String,
    /// How long to wait until it leads.
    #[schema(default = 0, maximum = 30000)]
    wait_ms: Option<u64>,
}

/// Why nobody is to lead.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "moving the database"}))]
pub(crate) struct PauseFor {
    /// For others to read.
    #[serde(default)]
    #[schema(max_length = 1024)]
    reason: String,
    /// How long to wait until nobody leads.
    #[schema(default = 0, maximum = 30000)]
    wait_ms: Option<u64>,
}

/// Nothing more is to be said.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

/// What came of an operator's request.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Operated {
    /// Whether what was asked for has happened. If not, the leader was asked, and finishes first.
    done: bool,
    /// The election as it is now.
    election: Election,
}

/// Resign
///
/// A leader gives its lease back: `{"session": …, "token": …}`, after the work under it has ended. Whoever it was asked to
/// make way for comes next.
///
/// An operator (`admin`) asks the leader to: a body without `session`, or none at all. The leader finishes, then releases.
#[utoipa::path(post, path = "/v1/elections/{election}/resign", tag = "campaign",
    params(("election" = Name, Path), Within), request_body = Option<Resign>,
    responses((status = 200, body = Operated), (status = 202, body = Operated, description = "The leader was asked, and has not finished."),
        (status = 409, body = Problem, description = "The lease is not held under that token; or nobody leads.")))]
pub(crate) async fn resign(
    State(app): State<App>,
    principal: Principal,
    by: By,
    slot: Slot,
    At(election): At<Name>,
    In(within): In<Within>,
    MaybeGiven(resign): MaybeGiven<Resign>,
) -> Result<Response, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    patient(resign.wait_ms)?;
    match (&resign.session, resign.token) {
        (Some(session), Some(token)) => {
            plausible(session)?;
            plausible_token(token)?;
            step_down(&app, &principal, &key, session, token, resign.stand).await
        }
        (Some(_), None) => Err(unfit("token", "a leader resigns under its token").remedy("name it")),
        (None, Some(_)) => {
            Err(unfit("session", "a token alone is nobody").remedy("name the session that holds it"))
        }
        (None, None) => {
            principal.must(Verb::Admin, Some(&key.namespace))?;
            let view = election_now(&app, &key).await?;
            let asked = operator::resign(app.store.as_ref(), &view, resign.slot, &principal.name).await;
            let asked = asked.map_err(refused)?;
            record(&app, &by, "resign", &key, String::new()).await;
            answer(&app, &slot, &key, &asked, resign.wait_ms).await
        }
    }
}

async fn step_down(
    app: &App,
    principal: &Principal,
    key: &ElectionKey,
    session: &SessionId,
    token: Token,
    stand: bool,
) -> Result<Response, Problem> {
    owned(app, principal, session).await?;
    let asks = match app.store.beat(session).await? {
        Pulse::Alive { asks, .. } => asks,
        Pulse::Gone => return Err(gone(session).field("session")),
    };
    let view = election_now(app, key).await?;
    let held = view.held_by(session).find(|(_, held)| *held == token);
    let Some((slot, _)) = held else {
        let detail = format!("{key} is not held under token {token} by session {}", session.short());
        return Err(Problem::new(StatusCode::CONFLICT, "not-held", detail)
            .field("token")
            .remedy("nothing needs to be given back; campaign again to lead"));
    };
    let asked = asks.into_iter().find(|ask| ask.election == *key && (ask.slot, ask.token) == (slot, token));
    let kind = asked.map_or(AskKind::Resign, |ask| ask.kind);
    let via = match kind.via() {
        Via::Resign if !stand => Via::Release,
        via => via,
    };
    let successor = kind.successor().cloned();
    let (session, election) = (session.clone(), key.clone());
    app.store.release(&Release { session, election, slot, token, successor, via, leave: !stand }).await?;
    let seen = app.board.look(key).await?;
    let entry = seen.elections.get(key).ok_or_else(|| none(key))?;
    Ok(Json(Operated { done: true, election: Election::of(entry) }).into_response())
}

/// Transfer a leadership
///
/// Asks the leader to finish and to hand over to a certain candidate. Priority does not undo it.
#[utoipa::path(post, path = "/v1/elections/{election}/transfer", tag = "operators",
    params(("election" = Name, Path), Within), request_body = Transfer,
    responses((status = 200, body = Operated), (status = 202, body = Operated, description = "The leader was asked, and has not finished."),
        (status = 409, body = Problem, description = "Nobody leads, or that candidate may not.")))]
pub(crate) async fn transfer(
    State(app): State<App>,
    by: By,
    slot: Slot,
    At(election): At<Name>,
    In(within): In<Within>,
    Given(transfer): Given<Transfer>,
) -> Result<Response, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    short("to", &transfer.to)?;
    patient(transfer.wait_ms)?;
    let view = election_now(&app, &key).await?;
    let asked = match operator::transfer(app.store.as_ref(), &view, &transfer.to, &by.principal).await {
        // As it was wished.
        Err(Refusal::LeadsAlready { .. }) => {
            Asked::Transfer(operator::candidate(&view, &transfer.to).map_err(refused)?.session.id.clone())
        }
        asked => asked.map_err(refused)?,
    };
    record(&app, &by, "transfer", &key, format!("to {}", transfer.to)).await;
    answer(&app, &slot, &key, &asked, transfer.wait_ms).await
}

/// Pause an election
///
/// Nobody may lead it until it is resumed. The leader is asked to finish.
#[utoipa::path(post, path = "/v1/elections/{election}/pause", tag = "operators",
    params(("election" = Name, Path), Within), request_body = Option<PauseFor>,
    responses((status = 200, body = Operated), (status = 202, body = Operated, description = "The leader was asked, and has not finished.")))]
pub(crate) async fn pause(
    State(app): State<App>,
    by: By,
    slot: Slot,
    At(election): At<Name>,
    In(within): In<Within>,
    MaybeGiven(pause): MaybeGiven<PauseFor>,
) -> Result<Response, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    short("reason", &pause.reason)?;
    patient(pause.wait_ms)?;
    election_now(&app, &key).await?;
    let (reason, at_ms) = (pause.reason, app.runtime.wall_ms());
    let paused = Pause { by: by.principal.to_string(), reason: reason.clone(), at_ms };
    if operator::pause(app.store.as_ref(), &key, &paused).await?.is_some() {
        record(&app, &by, "pause", &key, reason).await;
    }
    answer(&app, &slot, &key, &Asked::Pause, pause.wait_ms).await
}

/// Resume an election
///
/// It may be led again.
#[utoipa::path(post, path = "/v1/elections/{election}/resume", tag = "operators",
    params(("election" = Name, Path), Within), request_body = Option<Nothing>,
    responses((status = 200, body = Operated)))]
pub(crate) async fn resume(
    State(app): State<App>,
    by: By,
    At(election): At<Name>,
    In(within): In<Within>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Operated>, Problem> {
    let key = ElectionKey::new(within.namespace, election);
    election_now(&app, &key).await?;
    if operator::resume(app.store.as_ref(), &key).await? {
        record(&app, &by, "resume", &key, String::new()).await;
    }
    let seen = app.board.look(&key).await?;
    let entry = seen.elections.get(&key).ok_or_else(|| none(&key))?;
    Ok(Json(Operated { done: true, election: Election::of(entry) }))
}

/// The election as the store has it.
async fn election_now(app: &App, key: &ElectionKey) -> Result<ElectionView, Problem> {
    let seen = app.board.look(key).await?;
    seen.elections.get(key).map(|entry| ElectionView::clone(entry)).ok_or_else(|| none(key))
}

/// Refuses to wait for ever; before anything is done.
fn patient(wait_ms: Option<u64>) -> Result<(), Problem> {
    match wait_ms {
        Some(ms) if ms > WAIT_MAX_MS => {
            Err(unfit("wait_ms", format!("{ms} ms are too long; a request waits {WAIT_MAX_MS} ms at most")))
        }
        _ => Ok(()),
    }
}

/// Waits for what was asked, as long as its asker will, and tells how things stand.
async fn answer(
    app: &App,
    slot: &Slot,
    key: &ElectionKey,
    asked: &Asked,
    wait_ms: Option<u64>,
) -> Result<Response, Problem> {
    let deadline = app.runtime.now() + Duration::from_millis(wait_ms.unwrap_or(0));
    let mut changes = app.board.changes();
    let mut seen = app.board.look(key).await?;
    loop {
        let entry = seen.elections.get(key).ok_or_else(|| none(key))?;
        let done = asked.is_done(entry);
        if done || app.runtime.now() >= deadline || app.board.is_closed() {
            let status = if done { StatusCode::OK } else { StatusCode::ACCEPTED };
            return Ok((status, Json(Operated { done, election: Election::of(entry) })).into_response());
        }
        slot.lengthen()?;
        tokio::select! {
            changed = changes.changed() => {
                seen = app.board.seen();
                if changed.is_err() {
                    return Err(super::watch::closing());
                }
            }
            () = app.runtime.sleep_until(deadline) => seen = app.board.look(key).await?,
        }
    }
}

fn refused(refusal: Refusal) -> Problem {
    let (status, code, field, remedy) = match refusal {
        Refusal::Store(error) => return error.into(),
        Refusal::NobodyLeads(_) => (
            StatusCode::CONFLICT,
            "nobody-leads",
            None,
            "wait until somebody leads; GET the election tells who",
        ),
        Refusal::MayNotLead { .. } => {
            (StatusCode::CONFLICT, "may-not-lead", Some("to"), "choose another of those who stand")
        }
        Refusal::Ambiguous { .. } => {
            (StatusCode::UNPROCESSABLE_ENTITY, "ambiguous", Some("to"), "give one of these sessions as `to`")
        }
        _ => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "not-standing",
            Some("to"),
            "choose one of the candidates that GET /v1/elections/{election} lists, and that does not lead",
        ),
    };
    let problem = Problem::new(status, code, refusal.to_string()).remedy(remedy);
    field.map_or(problem.clone(), |field| problem.field(field))
}
