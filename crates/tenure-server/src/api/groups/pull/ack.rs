//! What became of what was pulled.

use std::collections::{BTreeMap, HashSet};

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    Aside, AsideKey, Committed, Event, EventId, GroupKey, GroupLook, GroupSettings, Position, SLOTS_MAX,
    ShareCommit, Verb,
};
use tenure::runtime::Draw;
use tenure::{Name, SessionId, Token};
use tenure_core::claim::clip;
use tenure_core::event::{Parked, after_failure};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::gather::{after_in, aside, asides, firsts, said};
use super::{looked, renewed};
use crate::App;
use crate::access::Principal;
use crate::api::campaign::plausible_token;
use crate::api::events::plausible_event;
use crate::api::given::{At, Given, In};
use crate::api::groups::key;
use crate::api::queues::lasting;
use crate::api::sessions::{Within, unfit};
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// The most events that one request says failed, or were tried again.
const NAMED_MAX: usize = 1000;

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
    slot: u32,
    /// The token under which the member has it.
    token: Token,
    /// Everything up to here is done, but for what failed.
    position: Option<Position>,
    /// Events that had failed before, and were pulled again: they are done, but for those that failed again.
    #[serde(default)]
    #[schema(value_type = Vec<u64>)]
    retried: Vec<EventId>,
    /// What failed. Whatever of its key was pulled after it counts as not done: it follows, in order.
    #[serde(default)]
    failed: Vec<Failure>,
}

/// An event that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"event": 42, "error": "no route to host"}))]
pub(super) struct Failure {
    /// Which.
    #[schema(value_type = u64)]
    event: EventId,
    /// What went wrong. Of a long text, the beginning is kept.
    error: String,
    /// Whether it is worth another attempt, should there be one left. Otherwise it is dead, and its key parked.
    #[serde(default = "yes")]
    #[schema(default = true)]
    retry: bool,
    /// In how long, instead of what the group's backoff says.
    after_ms: Option<u64>,
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
    event: EventId,
    /// How often it was tried.
    attempts: u32,
    /// Whether it is dead, and its key parked.
    dead: bool,
    /// In how long it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_in_ms: Option<u64>,
}

/// Acknowledge events
///
/// Send back the `shares` that `pull` gave: everything in them is done. What failed is named in `failed`. To say it again, because the
/// answer was lost, is no mistake.
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
    let settling = Settling::new(&app, &group, ack.shares.iter()).await?;
    let mut commits = Vec::with_capacity(ack.shares.len());
    for share in ack.shares {
        commits.push(settling.commit(share, None).await?.0);
    }
    let committed = app.store.commit_shares(&commits).await?;
    let of = |which: Committed| {
        commits
            .iter()
            .zip(&committed)
            .filter(|(_, how)| **how == which)
            .map(|(commit, _)| commit.slot)
            .collect()
    };
    Ok(Json(Acked { acked: of(Committed::Yes), stale: of(Committed::Stale) }))
}

/// Say that an event failed
///
/// What was pulled of its slot before it is done; it is set aside, and tried again by the group's settings; what was pulled after it
/// comes again. Of its own key, nothing comes before it is done or dropped.
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
    let Nack { session, slot, token, position, event, error, retry, after_ms } = nack;
    let failed = vec![Failure { event, error, retry, after_ms }];
    let share = AckShare { slot, token, position: Some(position), retried: vec![event], failed };
    check(std::slice::from_ref(&share))?;
    if let Some(session) = &session {
        renewed(&app, &principal, session, None).await?;
    }
    let settling = Settling::new(&app, &group, [&share].into_iter()).await?;
    let (commit, verdicts) = settling.commit(share, Some(event)).await?;
    let how = verdicts.get(&event);
    let Some(how) = how else {
        let detail =
            format!("event {event} is not at position {position} of slot {slot}, or is done already");
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-event", detail)
            .field("event")
            .remedy("name the event, its slot and its position as they were pulled"));
    };
    if app.store.commit_shares(&[commit]).await? != [Committed::Yes] {
        let detail = format!("slot {slot} of {group} is not held under token {token}");
        return Err(Problem::new(StatusCode::CONFLICT, "share-lost", detail)
            .field("token")
            .remedy("stop what runs for it, and pull again; another member does it anew"));
    }
    Ok(Json(match how {
        Aside::Retry { attempts, after_ms, .. } => {
            Nacked { event, attempts: *attempts, dead: false, retry_in_ms: Some(*after_ms) }
        }
        Aside::Dead { attempts, .. } => Nacked { event, attempts: *attempts, dead: true, retry_in_ms: None },
        Aside::Done | Aside::Behind => Nacked { event, attempts: 0, dead: false, retry_in_ms: None },
    }))
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
        for (field, count) in [("retried", share.retried.len()), ("failed", share.failed.len())] {
            if count > NAMED_MAX {
                return Err(unfit(field, format!("{count} events are too many; name {NAMED_MAX} at most")));
            }
        }
        for failure in &share.failed {
            plausible_event(failure.event.0)?;
            failure.after_ms.map_or(Ok(()), |ms| lasting("after_ms", ms))?;
        }
        share.retried.iter().try_for_each(|event| plausible_event(event.0).map(|_| ()))?;
    }
    Ok(())
}

/// What has to be known to say what became of events.
struct Settling<'a> {
    app: &'a App,
    group: &'a GroupKey,
    look: GroupLook,
    /// The position of each slot's last event.
    ends: BTreeMap<u32, Position>,
    asides: BTreeMap<u32, Vec<AsideKey>>,
}

/// What becomes of each event that failed.
type Verdicts = BTreeMap<EventId, Aside>;

impl<'a> Settling<'a> {
    async fn new(
        app: &'a App,
        group: &'a GroupKey,
        shares: impl Iterator<Item = &AckShare>,
    ) -> Result<Settling<'a>, Problem> {
        let look = looked(app, group).await?;
        let ends = app.store.slot_ends(&group.topic).await?.unwrap_or_default();
        let ends = ends.into_iter().map(|ends| (ends.slot, ends.latest)).collect();
        let slots: Vec<u32> = shares.map(|share| share.slot).collect();
        let asides = asides(app, group, &slots).await?;
        Ok(Settling { app, group, look, ends, asides })
    }

    /// What is to be said about a slot. With `alone`, only that event was tried of its unit, and those before it.
    async fn commit(
        &self,
        share: AckShare,
        alone: Option<EventId>,
    ) -> Result<(ShareCommit, Verdicts), Problem> {
        let AckShare { slot, token, position, retried, failed } = share;
        let mut commit = said(self.group, slot, token);
        let Some(known) = self.look.shares.iter().find(|share| share.slot == slot) else {
            return Err(unfit("slot", format!("{} has no slot {slot}", self.group.topic)));
        };
        let end = self.ends.get(&slot).copied().unwrap_or(0).max(known.position);
        if position.is_some_and(|position| position > end) {
            // What is acknowledged before it was published would never be read.
            let detail = format!("slot {slot} ends at position {end}");
            return Err(unfit("position", detail).remedy("acknowledge the position that was pulled"));
        }
        let aside_keys = self.asides.get(&slot).map(Vec::as_slice).unwrap_or_default();
        let mut verdicts = Verdicts::new();
        let failure = |event: &EventId| failed.iter().find(|failure| failure.event == *event);
        // Only the first of a key was pulled, and may be settled; what was dropped meanwhile is not there.
        for event in &retried {
            let Some(first) = aside_keys.iter().find(|aside| aside.event == *event) else { continue };
            let how = failure(event).map_or(Aside::Done, |failure| self.verdict(first.attempts, failure));
            if how != Aside::Done {
                verdicts.insert(*event, how.clone());
            }
            commit.settled.push((*event, how));
        }
        let settled = commit.settled.iter().any(|(event, _)| alone == Some(*event));
        let Some(position) = position.filter(|_| !settled) else { return Ok((commit, verdicts)) };
        commit.position = Some(position);
        let mut parked = Parked::of(aside_keys);
        if parked.is_empty() && failed.is_empty() {
            return Ok((commit, verdicts));
        }
        let already = firsts(aside_keys);
        let mut past_it = false;
        for event in self.between(slot, known.position, position).await? {
            if already.contains(&event.id) {
                continue;
            }
            let how = match failure(&event.id) {
                Some(failure) => {
                    past_it |= alone == Some(event.id);
                    let how = self.verdict(0, failure);
                    verdicts.insert(event.id, how.clone());
                    how
                }
                None if parked.has(&event) || past_it => Aside::Behind,
                None => continue,
            };
            parked.add(&event);
            commit.set_aside.push(aside(&event, how));
        }
        Ok((commit, verdicts))
    }

    async fn between(&self, slot: u32, from: Position, to: Position) -> Result<Vec<Event>, Problem> {
        let (mut all, mut after) = (Vec::new(), from);
        while after < to {
            let read = after_in(self.app, self.group, slot, after, to).await?;
            let Some(last) = read.last() else { break };
            after = last.position;
            all.extend(read);
        }
        Ok(all)
    }

    fn verdict(&self, attempts: u32, failure: &Failure) -> Aside {
        let mut draw = Draw(self.app.runtime.as_ref());
        let settings: &GroupSettings = &self.look.settings;
        let error = failure.error.replace('\0', "\u{fffd}");
        match after_failure(settings, attempts, &error, &mut draw) {
            Aside::Retry { attempts, error, .. } if !failure.retry => {
                Aside::Dead { attempts, error: clip(&error) }
            }
            Aside::Retry { attempts, after_ms, error } => {
                let after_ms = failure.after_ms.unwrap_or(after_ms);
                Aside::Retry { attempts, after_ms, error }
            }
            how => how,
        }
    }
}
