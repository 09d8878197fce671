//! Claims by the batch: what `http://` as a store speaks.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tenure::Claimed;
use tenure::port::{
    Authority, CLAIM_MAX, ClaimAnswer, ClaimAsk, ClaimRefusal, ClaimedTask, Json as Raw, Outcome, QueueKey,
    Seat, Settled, Settlement, TaskId, Verb,
};
use tenure::{Name, SessionId, Token};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::{check_hold, check_seat, fits_a_payload, given, handing, kept, plausible_task};
use crate::App;
use crate::access::Principal;
use crate::api::campaign::plausible_token;
use crate::api::given::{At, Given, In};
use crate::api::queues::lasting;
use crate::api::sessions::{Within, fits, unfit};
use crate::api::shape::millis;
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// The most seats, or settlements, in one request.
const BATCH_MAX: usize = 1000;

pub(super) fn routes() -> Routes {
    let work = Need::In(Verb::Claim);
    Routes::new()
        .api(work, routes!(claim))
        .api_large(work, routes!(settle))
        .api(Need::Session, routes!(held))
        .api(Need::Session, routes!(doze))
}

/// Workers that ask for tasks of one queue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Seats {
    /// The queue.
    queue: Name,
    /// The workers, in the order in which they are served.
    seats: Vec<Seat>,
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Handed {
    /// What each seat got, in their order.
    tasks: Vec<Vec<ClaimedTask>>,
    /// In how long there may be more without anything new being submitted, as far as the store knows.
    next_in_ms: Option<u64>,
    /// Why nothing was handed out, if that is so.
    #[schema(value_type = Option<Object>)]
    refused: Option<ClaimRefusal>,
}

/// What workers say about claims.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settlements {
    settlements: Vec<Said>,
}

/// What a worker says about a claim.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Said {
    /// Which task.
    task: u64,
    /// Under which token.
    token: Token,
    /// What became of it.
    outcome: Became,
    /// What came of it, if it is done.
    #[serde(default, deserialize_with = "given")]
    output: Option<Raw>,
    /// What went wrong, if it failed.
    #[serde(default)]
    error: String,
    /// Whether it is worth another attempt, if it failed.
    #[serde(default)]
    retry: bool,
    /// In how long, if it failed.
    #[serde(default)]
    after_ms: u64,
    /// How far it is, if it goes on.
    #[serde(default)]
    note: Option<String>,
    /// How long the claim lasts from now, if it goes on.
    #[serde(default)]
    hold_ms: Option<u64>,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Became {
    /// It is done.
    Complete,
    /// It failed.
    Fail,
    /// It was given back.
    Release,
    /// It goes on.
    Progress,
}

/// What came of what was said.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Heard {
    /// For each settlement, in their order.
    settled: Vec<Settled>,
}

/// What a session has claimed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Held {
    /// Tasks and tokens.
    #[schema(value_type = Vec<(u64, u64)>)]
    held: Vec<(TaskId, Token)>,
}

/// Queues that somebody sleeps for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Sleeper {
    /// The queues.
    queues: Vec<QueueKey>,
}

/// Claims tasks of a queue for many workers at once, in their order, without waiting.
#[utoipa::path(post, path = "/v1/claims/claim", tag = "claims", params(Within), request_body = Seats,
    responses((status = 200, body = Handed)))]
pub(super) async fn claim(
    State(app): State<App>,
    principal: Principal,
    In(within): In<Within>,
    Given(Seats { queue, seats }): Given<Seats>,
) -> Result<Json<Handed>, Problem> {
    few("seats", seats.len())?;
    let wanted: u64 = seats.iter().map(|seat| u64::from(seat.limit)).sum();
    if wanted > u64::from(CLAIM_MAX) {
        let detail = format!("{wanted} tasks are too many; at most {CLAIM_MAX} are handed out at once");
        return Err(unfit("seats", detail).remedy("ask for less"));
    }
    for seat in &seats {
        check_seat(&app, &principal, seat).await?;
    }
    let queue = QueueKey::new(within.namespace, queue);
    if app.routed.contains(&queue) {
        return routed(&app, &queue, seats).await.map(Json);
    }
    let ask = ClaimAsk { queue, authority: Authority::Direct, seats };
    match app.store.claim(&ask).await? {
        ClaimAnswer::Served { tasks, next_in } => {
            let tasks = fitting(&app, &ask.queue, tasks).await;
            Ok(Json(Handed { tasks, next_in_ms: next_in.map(millis), refused: None }))
        }
        ClaimAnswer::Refused(ClaimRefusal::Mode(_)) => {
            app.routed.insert(&ask.queue);
            routed(&app, &ask.queue, ask.seats).await.map(Json)
        }
        ClaimAnswer::Refused(refusal) => {
            Ok(Json(Handed { tasks: Vec::new(), next_in_ms: None, refused: Some(refusal) }))
        }
    }
}

/// Claims through the leader, wherever it is.
async fn routed(app: &App, queue: &QueueKey, seats: Vec<Seat>) -> Result<Handed, Problem> {
    let asked = seats.into_iter().map(|seat| handing::ask(app, queue, seat, Duration::ZERO));
    let (mut tasks, mut refused, mut failed) = (Vec::new(), None, None);
    for claimed in join_all(asked).await {
        let mut got = Vec::new();
        match claimed {
            Ok(Claimed::Tasks(handed)) => got = handed,
            Ok(Claimed::Refused(refusal)) => refused = refused.or(Some(refusal)),
            Ok(Claimed::NotNow) => refused = refused.or(Some(ClaimRefusal::NotLeader)),
            Err(problem) => failed = failed.or(Some(problem)),
        }
        tasks.push(got);
    }
    if let Some(problem) = failed {
        // Whether that one got something is not known. Only the owner of its session can find out, and does so if its call
        // fails: so it fails as a whole, and what the others got goes back, or is found with it.
        handing::give_back(app.claims().await?, queue, tasks.into_iter().flatten().collect()).await;
        return Err(problem);
    }
    // What one got must reach it, whatever became of the others: they were refused, and ask again.
    if tasks.iter().any(|got| !got.is_empty()) {
        let tasks = fitting(app, queue, tasks).await;
        return Ok(Handed { tasks, next_in_ms: None, refused: None });
    }
    Ok(Handed { tasks, next_in_ms: None, refused })
}

/// As many of each seat's tasks as fit into an answer together.
async fn fitting(app: &App, queue: &QueueKey, seats: Vec<Vec<ClaimedTask>>) -> Vec<Vec<ClaimedTask>> {
    let mut bytes = 0;
    let mut fit = Vec::with_capacity(seats.len());
    for tasks in seats {
        fit.push(handing::fitting(app, queue, tasks, &mut bytes).await);
    }
    fit
}

/// Takes in what workers say about their claims, many at once.
#[utoipa::path(post, path = "/v1/claims/settle", tag = "claims", params(Within), request_body = Settlements,
    responses((status = 200, body = Heard)))]
pub(super) async fn settle(
    State(app): State<App>,
    In(within): In<Within>,
    Given(Settlements { settlements }): Given<Settlements>,
) -> Result<Json<Heard>, Problem> {
    few("settlements", settlements.len())?;
    let read = settlements.into_iter().map(|said| said.settlement(&within.namespace));
    let settlements = read.collect::<Result<Vec<_>, Problem>>()?;
    let claims = app.claims().await?;
    let calls = settlements.into_iter().map(|one| handing::within(&app, claims.settle(one)));
    let settled = join_all(calls).await.into_iter().collect::<Result<_, Problem>>()?;
    Ok(Json(Heard { settled }))
}

/// What the session has claimed, task by task.
#[utoipa::path(get, path = "/v1/sessions/{session}/claims", tag = "claims", params(("session" = SessionId, Path)),
    responses((status = 200, body = Held)))]
pub(super) async fn held(State(app): State<App>, At(session): At<SessionId>) -> Result<Json<Held>, Problem> {
    Ok(Json(Held { held: app.store.held(&session).await? }))
}

/// Says that the session sleeps until one of these queues has work: then `/v1/wakes` says so.
#[utoipa::path(put, path = "/v1/sessions/{session}/doze", tag = "claims", params(("session" = SessionId, Path)),
    request_body = Sleeper, responses((status = 204)))]
pub(super) async fn doze(
    State(app): State<App>,
    principal: Principal,
    At(session): At<SessionId>,
    Given(Sleeper { queues }): Given<Sleeper>,
) -> Result<http::StatusCode, Problem> {
    few("queues", queues.len())?;
    let namespaces: BTreeSet<&Name> = queues.iter().map(|queue| &queue.namespace).collect();
    for namespace in namespaces {
        principal.must(Verb::Claim, Some(namespace))?;
    }
    app.store.doze(&session, &queues).await?;
    Ok(http::StatusCode::NO_CONTENT)
}

impl Said {
    fn settlement(self, namespace: &Name) -> Result<Settlement, Problem> {
        plausible_token(self.token)?;
        let task = plausible_task(self.task)?;
        let outcome = match self.outcome {
            Became::Complete => {
                self.output.as_ref().map_or(Ok(()), fits_a_payload)?;
                Outcome::Complete(self.output)
            }
            Became::Fail => {
                lasting("after_ms", self.after_ms)?;
                let after = Duration::from_millis(self.after_ms);
                Outcome::Fail { error: kept(self.error), retry: self.retry, after }
            }
            Became::Release => Outcome::Release,
            Became::Progress => {
                self.note.as_deref().map_or(Ok(()), |note| fits("note", note))?;
                self.hold_ms.map_or(Ok(()), check_hold)?;
                Outcome::Progress { note: self.note, hold: self.hold_ms.map(Duration::from_millis) }
            }
        };
        Ok(Settlement { namespace: namespace.clone(), task, token: self.token, outcome })
    }
}

fn few(field: &str, count: usize) -> Result<(), Problem> {
    if (1..=BATCH_MAX).contains(&count) {
        return Ok(());
    }
    let remedy = format!("send between 1 and {BATCH_MAX} at once");
    Err(unfit(field, format!("{count} can not be dealt with at once")).remedy(remedy))
}
