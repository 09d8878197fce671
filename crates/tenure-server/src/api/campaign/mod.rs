//! Candidates that speak plain HTTP: they campaign by asking, and hold their lease by asking again.
//!
//! The server keeps nothing for them that another replica could not do without. A request beats the session as it arrives,
//! so that trust counts from before the client sent it; stands, if it does not yet; and waits a while for the lease, by
//! the rules that every other candidate follows ([`Onlooker`](tenure_core::lease::Onlooker)). A client that got no answer asks any
//! other replica with the same session. If a take of the first one went through after all, the session holds a lease
//! under a token that the client never heard of. That lease is never adopted, since nobody knows what else is under way for
//! it; nor is it given back here, since the request that finds it may itself be the late one. The client is told, and gives it
//! back by its token.

mod shape;
mod wait;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use tenure::port::{Candidacy, Joined, NewSession, Pulse, Takeover};
use tenure::runtime::Draw;
use tenure::{ElectionKey, Name, SessionId, Timing, Token};

use self::shape::{Campaign, Campaigned};
use self::wait::Waiting;
use super::given::{At, Given, In};
use super::owned::{owned, plausible};
use super::room;
use super::sessions::{Within, check_candidacy, gone, short, unfit};
use crate::App;
use crate::access::{Principal, Slot};
use crate::problem::Problem;
use crate::quota::{self, Object};

/// Campaign
///
/// Stands for the election and waits up to `wait_ms` for the lease. Without `session`, one is opened: keep it, and name
/// it from then on. While leading, name the `token` too.
///
/// If it leads, it may believe so for `trust_ms` *from before it sent this request*, on its own clock; `POST
/// /v1/sessions/{session}/renew`, sent every `renew_every_ms`, lengthens that in the same way, and brings back what is asked
/// of it. If it does not lead, it campaigns again within the lease, or its session is over.
///
/// One request at a time: two campaigns of one session at once undo one another.
#[utoipa::path(post, path = "/v1/elections/{election}/campaign", tag = "campaign",
    params(("election" = Name, Path), Within), request_body = Campaign,
    responses((status = 200, body = Campaigned),
        (status = 409, body = Problem, description = "The election has another number of slots."),
        (status = 410, body = Problem, description = "The session is over: campaign without one.")))]
pub(crate) async fn campaign(
    State(app): State<App>,
    principal: Principal,
    slot: Slot,
    At(election): At<Name>,
    In(within): In<Within>,
    Given(campaign): Given<Campaign>,
) -> Result<Json<Campaigned>, Problem> {
    let arrived = app.runtime.now();
    let key = ElectionKey::new(within.namespace, election);
    campaign.token.map_or(Ok(()), plausible_token)?;
    let mut candidacy = campaign.candidacy(SessionId::from_stored(""), key);
    check_candidacy(&candidacy, short)?;
    if campaign.id.trim().is_empty() {
        return Err(unfit("id", "a candidate needs an id that people can call it by"));
    }
    let (session, lease, beaten) = match &campaign.session {
        None => open(&app, &principal, &campaign).await?,
        Some(session) => renew(&app, &principal, session, &campaign).await?,
    };
    candidacy.session = session;
    let timing = Timing::new(lease, None).unwrap_or_default();
    // A third of the lease is left for the answer to arrive, and for the client to do something with it.
    let cap = (timing.trust() / 2).min(app.timeouts.request / 2);
    let wait = Duration::from_millis(campaign.wait_ms.unwrap_or(0)).min(cap);
    let waiting = Waiting {
        app: &app,
        slot: &slot,
        candidacy: &candidacy,
        named: campaign.token,
        deadline: arrived + wait,
        // Whoever would hear of it too late is not given anything.
        pointless: arrived + timing.trust() * 3 / 4,
    };
    stand(&app, &candidacy).await?;
    let outcome = waiting.outcome().await?;
    Ok(Json(Campaigned::new(&candidacy, &timing, outcome, beaten)))
}

/// A session, its lease, and what its beat brought back.
type Opened = (SessionId, Duration, Beaten);

/// What a counted beat brings back.
pub(super) struct Beaten {
    pub(super) timeline: u32,
    pub(super) asks: Vec<tenure::port::Ask>,
}

async fn open(app: &App, principal: &Principal, campaign: &Campaign) -> Result<Opened, Problem> {
    let lease = campaign.lease_ms.map_or(Timing::default().lease(), Duration::from_millis);
    let timing = Timing::new(lease, None).map_err(|error| unfit("lease_ms", error.to_string()))?;
    if let Some(token) = campaign.token {
        let detail = format!("a session that is yet to be opened holds nothing under token {token}");
        return Err(unfit("token", detail).remedy("name the session that holds it, or leave `token` out"));
    }
    room::for_session(app, principal)?;
    let id = SessionId::generate(&mut Draw(app.runtime.as_ref()));
    let session = NewSession {
        id: id.clone(),
        name: campaign.id.clone(),
        lease: timing.lease(),
        takeover: Takeover::Lease,
        owner: Some(principal.name.to_string()),
    };
    match app.store.open(&session).await? {
        Pulse::Alive { timeline, asks } => Ok((id, lease, Beaten { timeline, asks })),
        Pulse::Gone => Err(gone(&id)),
    }
}

async fn renew(
    app: &App,
    principal: &Principal,
    session: &SessionId,
    campaign: &Campaign,
) -> Result<Opened, Problem> {
    plausible(session)?;
    let view = owned(app, principal, session).await?;
    if campaign.lease_ms.is_some_and(|lease_ms| lease_ms != view.lease_ms) {
        let detail = format!("this session was opened with a lease of {} ms", view.lease_ms);
        return Err(unfit("lease_ms", detail).remedy("leave it out, or campaign with a new session"));
    }
    match app.store.beat(session).await? {
        Pulse::Alive { timeline, asks } => Ok((session.clone(), view.lease(), Beaten { timeline, asks })),
        Pulse::Gone => Err(gone(session).field("session")),
    }
}

/// Stands for the election, unless it was seen to stand just like that: a join wakes everybody.
async fn stand(app: &App, candidacy: &Candidacy) -> Result<(), Problem> {
    let seen = app.board.seen();
    let stands = seen.elections.get(&candidacy.election).is_some_and(|entry| {
        let as_is = entry.candidate(&candidacy.session).is_some_and(|candidate| {
            (candidate.priority, candidate.observer) == (candidacy.priority, candidacy.observer)
                && (&candidate.id, &candidate.capabilities, &candidate.metadata)
                    == (&candidacy.id, &candidacy.capabilities, &candidacy.metadata)
        });
        let requires = candidacy.requires.is_empty() || candidacy.requires == entry.requires;
        as_is && requires && entry.slots == candidacy.slots
    });
    if stands { Ok(()) } else { join(app, candidacy).await }
}

async fn join(app: &App, candidacy: &Candidacy) -> Result<(), Problem> {
    room::for_candidacy(app, candidacy)?;
    quota::check(app, Object::Election(&candidacy.election)).await?;
    match app.store.join(candidacy).await? {
        Joined::Standing => Ok(()),
        Joined::Gone => Err(gone(&candidacy.session).field("session")),
        Joined::SlotsDiffer { slots } => {
            let detail = format!(
                "{} has {slots} slots, and candidates that count on it; {} were asked for",
                candidacy.election, candidacy.slots
            );
            let problem = Problem::new(StatusCode::CONFLICT, "slots-differ", detail).field("slots");
            Err(problem.remedy(format!("ask for {slots}, or wait until nobody else stands")))
        }
    }
}

/// Refuses what no store ever grants.
pub(super) fn plausible_token(token: Token) -> Result<(), Problem> {
    if i64::try_from(token.as_u64()).is_ok() {
        return Ok(());
    }
    Err(unfit("token", format!("{} is larger than any token", token.as_u64())))
}
