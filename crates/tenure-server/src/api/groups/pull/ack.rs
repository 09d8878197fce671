//! What became of what was pulled.

use std::collections::HashSet;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{Aside, Committed, EventId, Position, SLOTS_MAX, UNIT_MAX, Verb};
use tenure::{Name, SessionId, Token};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::settling::Settling;
use super::{MAX, Retried, renewed};
use crate::App;
use crate::access::Principal;
use crate::api::campaign::plausible_token;
use crate::api::events::plausible_event;
use crate::api::given::{At, Given, In};
use crate::api::groups::key;
use crate::api::queues::lasting;
use crate::api::sessions::{Within, unfit};
use crate::metrics;
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// The most events of a slot that one pull gives, and so one acknowledgement passes.
pub(super) const SPAN_MAX: usize = MAX as usize + UNIT_MAX;

pub(super) fn routes() -> Routes {
    let work = Need::In(Verb::Claim);
    Routes::new().api(work, routes!(ack)).api(work, routes!(nack))
}

/// What is done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"shares": [{"slot": 5, "token": 1, "position": 42}]}))]
pub(super) struct Ack {
    /// The member's session: this renews it.
    session: Option<SessionId>,
    /// As `pull` gave them.
    shares: Vec<AckShare>,
}

/// A slot of which events are done.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AckShare {
    /// Which.
    pub(super) slot: u32,
    /// The token under which the member has it.
    pub(super) token: Token,
    /// Everything up to here is done, but for what failed.
    pub(super) position: Option<Position>,
    /// Events that had failed before, and were pulled again: they are done, but for those that failed again.
    #[serde(default)]
    pub(super) retried: Vec<Retried>,
    /// Events up to the position that were not pulled, since they were aside already: they stay as they are.
    #[serde(default)]
    #[schema(value_type = Vec<u64>)]
    pub(super) aside: Vec<EventId>,
    /// What failed, of this slot. Whatever of its key was pulled after it counts as not done: it follows, in order.
    #[serde(default)]
    pub(super) failed: Vec<Failure>,
    /// How many events of it were pulled. It only counts for the figures.
    #[serde(default)]
    pub(super) events: u32,
}

/// An event that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"event": 42, "error": "no route to host"}))]
#[schema(as = FailedEvent)]
pub(super) struct Failure {
    /// Which.
    #[schema(value_type = u64)]
    pub(super) event: EventId,
    /// What went wrong. Of a long text, the beginning is kept.
    pub(super) error: String,
    /// Whether it is worth another attempt, should there be one left. Otherwise it is dead, and its key parked.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub(super) retry: bool,
    /// In how long, instead of what the group's backoff says.
    pub(super) after_ms: Option<u64>,
}

fn yes() -> bool {
    true
}

/// What came of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Acked {
    /// Slots for which it counts.
    acked: Vec<u32>,
    /// Slots that the member has lost: what it did of them is done again, by somebody else.
    stale: Vec<u32>,
}

/// An event that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"slot": 5, "token": 1, "position": 42, "event": 42, "error": "no route to host"}))]
pub(super) struct Nack {
    /// The member's session: this renews it.
    session: Option<SessionId>,
    /// The event's slot.
    slot: u32,
    /// The token under which the member has it.
    token: Token,
    /// The event's position.
    position: Position,
    /// Which event.
    #[schema(value_type = u64)]
    event: EventId,
    /// Which attempt it was, as it was pulled: said again, because the answer was lost, it counts once. Left out, it counts whenever
    /// the event is due.
    attempt: Option<u32>,
    /// What went wrong. Of a long text, the beginning is kept.
    error: String,
    /// Whether it is worth another attempt, should there be one left. Otherwise it is dead, and its key parked.
    #[serde(default = "yes")]
    #[schema(default = true)]
    retry: bool,
    /// In how long, instead of what the group's backoff says.
    after_ms: Option<u64>,
}

/// What becomes of an event that failed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Nacked {
    /// Which.
    pub(super) event: EventId,
    /// How often it was tried.
    pub(super) attempts: u32,
    /// Whether it is dead, and its key parked.
    pub(super) dead: bool,
    /// In how long it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_in_ms: Option<u64>,
}

impl Nacked {
    pub(super) fn new(event: EventId, how: &Aside) -> Nacked {
        match how {
            Aside::Retry { attempts, after_ms, .. } => {
                Nacked { event, attempts: *attempts, dead: false, retry_in_ms: Some(*after_ms) }
            }
            Aside::Dead { attempts, .. } => {
                Nacked { event, attempts: *attempts, dead: true, retry_in_ms: None }
            }
            Aside::Done | Aside::Behind => Nacked { event, attempts: 0, dead: false, retry_in_ms: None },
        }
    }
}

/// Acknowledge events
///
/// Send back the `shares` that `pull` gave: everything in them is done. What failed is named in `failed`, in the share of its slot. To say
/// it again, because the answer was lost, is no mistake.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/ack", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Ack,
    responses((status = 200, body = Acked), (status = 410, body = Problem, description = "The session is over.")))]
pub(super) async fn ack(
    State(app): State<App>,
    principal: Principal,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(ack): Given<Ack>,
) -> Result<Json<Acked>, Problem> {
    let group = key(within, topic, group);
    check(&ack.shares)?;
    if let Some(session) = &ack.session {
        renewed(&app, &principal, session, None).await?;
    }
    let settling = Settling::new(&app, &group, &ack.shares).await?;
    settling.whose(&principal, ack.session.as_ref()).await?;
    let (mut commits, mut acked) = (Vec::new(), Acked { acked: Vec::new(), stale: Vec::new() });
    let mut pulled = Vec::new();
    for share in ack.shares {
        match settling.held(share.slot, share.token)? {
            Some(known) => {
                pulled.push(share.events);
                commits.push(settling.commit(known, share).await?);
            }
            None => acked.stale.push(share.slot),
        }
    }
    let committed = app.store.commit_shares(&commits).await?;
    for ((commit, how), pulled) in commits.iter().zip(committed).zip(pulled) {
        if how == Committed::Yes {
            acked.acked.push(commit.slot);
            settling.count(commit, pulled);
        } else {
            acked.stale.push(commit.slot);
        }
    }
    metrics::stale(&group, acked.stale.len());
    Ok(Json(acked))
}

/// Say that an event failed
///
/// It is set aside, and tried again by the group's settings; of its key, nothing comes before it is done or dropped. This says nothing of
/// the others that were pulled with it: acknowledge those that are done. Events may be named in any order, and twice.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/nack", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Nack,
    responses((status = 200, body = Nacked), (status = 404, body = Problem, description = "It was not pulled, or is done."),
        (status = 409, body = Problem, description = "The member has lost the slot."),
        (status = 410, body = Problem, description = "The session is over.")))]
pub(super) async fn nack(
    State(app): State<App>,
    principal: Principal,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(nack): Given<Nack>,
) -> Result<Json<Nacked>, Problem> {
    let group = key(within, topic, group);
    let Nack { session, slot, token, position, event, attempt, error, retry, after_ms } = nack;
    let failed = vec![Failure { event, error, retry, after_ms }];
    let share = AckShare {
        slot,
        token,
        position: Some(position),
        retried: Vec::new(),
        aside: Vec::new(),
        failed,
        events: 0,
    };
    check(std::slice::from_ref(&share))?;
    if let Some(session) = &session {
        renewed(&app, &principal, session, None).await?;
    }
    let lost = || {
        let detail = format!("slot {slot} of {group} is not held under token {token}");
        Problem::new(StatusCode::CONFLICT, "share-lost", detail)
            .field("token")
            .remedy("stop what runs for it, and pull again; another member does it anew")
    };
    let settling = Settling::new(&app, &group, std::slice::from_ref(&share)).await?;
    settling.whose(&principal, session.as_ref()).await?;
    let known = settling.held(slot, token)?.ok_or_else(lost)?;
    let (commits, nacked) = settling.failure(known, position, attempt, &share.failed[0]).await?;
    if app.store.commit_shares(&commits).await?.contains(&Committed::Stale) {
        metrics::stale(&group, 1);
        return Err(lost());
    }
    commits.iter().for_each(|commit| settling.count(commit, 0));
    Ok(Json(nacked))
}

fn check(shares: &[AckShare]) -> Result<(), Problem> {
    if shares.len() > SLOTS_MAX as usize {
        let detail = format!("{} slots are named; a topic has {SLOTS_MAX} at most", shares.len());
        return Err(unfit("shares", detail));
    }
    let mut slots = HashSet::new();
    for share in shares {
        if !slots.insert(share.slot) {
            return Err(unfit("shares", format!("slot {} is there twice", share.slot)).remedy("name it once"));
        }
        plausible_token(share.token)?;
        if share.position.is_some_and(|position| i64::try_from(position).is_err()) {
            return Err(unfit("position", "this is larger than any position"));
        }
        for (field, count) in
            [("retried", share.retried.len()), ("failed", share.failed.len()), ("aside", share.aside.len())]
        {
            if count > SPAN_MAX {
                return Err(unfit(field, format!("{count} events are too many; name {SPAN_MAX} at most")));
            }
        }
        for failure in &share.failed {
            plausible_event(failure.event.0)?;
            failure.after_ms.map_or(Ok(()), |ms| lasting("after_ms", ms))?;
        }
        share.retried.iter().try_for_each(|told| plausible_event(told.event.0).map(|_| ()))?;
    }
    Ok(())
}
