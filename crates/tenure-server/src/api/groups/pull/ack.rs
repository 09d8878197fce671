//! What became of what was pulled.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    Aside, AsideKey, Committed, EventId, GroupKey, GroupLook, GroupSettings, Position, SLOTS_MAX, Share,
    ShareCommit, UNIT_MAX, Verb,
};
use tenure::runtime::Draw;
use tenure::{Name, SessionId, Token};
use tenure_core::claim::clip;
use tenure_core::event::{Parked, after_failure};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::gather::{after_in, aside, asides, firsts, said};
use super::{MAX, looked, renewed};
use crate::App;
use crate::access::Principal;
use crate::api::campaign::plausible_token;
use crate::api::events::plausible_event;
use crate::api::given::{At, Given, In};
use crate::api::groups::key;
use crate::api::owned::owned;
use crate::api::queues::lasting;
use crate::api::sessions::{Within, unfit};
use crate::metrics;
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// The most events of a slot that one pull gives, and so one acknowledgement passes.
const SPAN_MAX: usize = MAX as usize + UNIT_MAX;

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
    /// Events up to the position that were not pulled, since they were aside already: they stay as they are.
    #[serde(default)]
    #[schema(value_type = Vec<u64>)]
    aside: Vec<EventId>,
    /// What failed, of this slot. Whatever of its key was pulled after it counts as not done: it follows, in order.
    #[serde(default)]
    failed: Vec<Failure>,
    /// How many events of it were pulled. It only counts for the figures.
    #[serde(default)]
    events: u32,
}

/// An event that failed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"event": 42, "error": "no route to host"}))]
#[schema(as = FailedEvent)]
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

impl Nacked {
    fn new(event: EventId, how: &Aside) -> Nacked {
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
    let Nack { session, slot, token, position, event, error, retry, after_ms } = nack;
    let failed = vec![Failure { event, error, retry, after_ms }];
    let share = AckShare {
        slot,
        token,
        position: Some(position),
        retried: vec![event],
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
    let (commits, nacked) = settling.failure(known, position, &share.failed[0]).await?;
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
    /// Whose sessions have the slots that are named.
    holders: BTreeSet<SessionId>,
}

impl<'a> Settling<'a> {
    async fn new(app: &'a App, group: &'a GroupKey, shares: &[AckShare]) -> Result<Settling<'a>, Problem> {
        let look = looked(app, group).await?;
        let ends = app.store.slot_ends(&group.topic).await?.unwrap_or_default();
        let ends = ends.into_iter().map(|ends| (ends.slot, ends.latest)).collect();
        // Of slots that are lost nothing has to be known.
        let held = |named: &AckShare| {
            look.shares.iter().find(|share| share.slot == named.slot && share.token == named.token)
        };
        let held: Vec<&Share> = shares.iter().filter_map(held).collect();
        let slots: Vec<u32> = held.iter().map(|share| share.slot).collect();
        let holders = held.into_iter().filter_map(|share| share.holder.clone()).collect();
        let asides = asides(app, group, &slots).await?;
        Ok(Settling { app, group, look, ends, asides, holders })
    }

    /// Refuses to settle what somebody else's sessions have. `renewed` is the principal's own.
    async fn whose(&self, principal: &Principal, renewed: Option<&SessionId>) -> Result<(), Problem> {
        for holder in self.holders.iter().filter(|holder| Some(*holder) != renewed) {
            owned(self.app, principal, holder).await?;
        }
        Ok(())
    }

    /// The slot, if it is held under this token.
    fn held(&self, slot: u32, token: Token) -> Result<Option<&Share>, Problem> {
        let Some(known) = self.look.shares.iter().find(|share| share.slot == slot) else {
            return Err(unfit("slot", format!("{} has no slot {slot}", self.group.topic)));
        };
        Ok(Some(known).filter(|known| known.token == token && known.holder.is_some()))
    }

    fn asides(&self, slot: u32) -> &[AsideKey] {
        self.asides.get(&slot).map(Vec::as_slice).unwrap_or_default()
    }

    /// What is to be said about a slot.
    async fn commit(&self, known: &Share, share: AckShare) -> Result<ShareCommit, Problem> {
        let AckShare { slot, token, position, retried, aside: withheld, failed, events: _ } = share;
        let mut commit = said(self.group, slot, token);
        let end = self.ends.get(&slot).copied().unwrap_or(0).max(known.position);
        if position.is_some_and(|position| position > end) {
            // What is acknowledged before it was published would never be read.
            let detail = format!("slot {slot} ends at position {end}");
            return Err(unfit("position", detail).remedy("acknowledge the position that was pulled"));
        }
        let aside_keys = self.asides(slot);
        let mut already = firsts(aside_keys);
        already.extend(withheld);
        let failure = |event: &EventId| failed.iter().find(|failure| failure.event == *event);
        // Only the first of a key was pulled, when it was due. What was settled, dropped or died meanwhile stays as it is.
        for first in aside_keys.iter().filter(|first| first.due_in_ms == Some(0)) {
            if retried.contains(&first.event) {
                let how = failure(&first.event)
                    .map_or(Aside::Done, |failure| self.verdict(first.attempts, failure));
                commit.settled.push((first.event, how));
            }
        }
        let mut unmet: HashSet<EventId> = failed.iter().map(|failure| failure.event).collect();
        unmet.retain(|event| !retried.contains(event) && !already.contains(event));
        commit.position = position;
        let mut parked = Parked::of(aside_keys);
        if parked.is_empty() && failed.is_empty() {
            return Ok(commit);
        }
        let (mut after, mut count) = (known.position, 0);
        while after < position.unwrap_or(0) {
            let read = after_in(self.app, self.group, slot, after, position.unwrap_or(0)).await?;
            let Some(last) = read.last() else { break };
            (after, count) = (last.position, count + read.len());
            if count > SPAN_MAX {
                let detail = format!("slot {slot} is read up to position {}", known.position);
                return Err(unfit("position", detail).remedy("acknowledge what was pulled, and not more"));
            }
            for event in read.iter().filter(|event| !already.contains(&event.id)) {
                unmet.remove(&event.id);
                let how = match failure(&event.id) {
                    Some(failure) => self.verdict(0, failure),
                    None if parked.has(event) => Aside::Behind,
                    None => continue,
                };
                parked.add(event);
                commit.set_aside.push(aside(event, how));
            }
        }
        for event in unmet {
            self.was_said(known, event).await?;
        }
        Ok(commit)
    }

    /// Counts what was said and counts. `pulled`: how many events it was said of, as the member says. Said a second time, it moves no
    /// position and settles nothing, and is not counted again.
    fn count(&self, commit: &ShareCommit, pulled: u32) {
        let hows =
            commit.set_aside.iter().map(|aside| &aside.how).chain(commit.settled.iter().map(|(_, how)| how));
        let failed = hows.filter(|how| matches!(how, Aside::Retry { .. } | Aside::Dead { .. }));
        failed.clone().for_each(|how| metrics::failed(self.group, matches!(how, Aside::Dead { .. })));
        let known = self.look.shares.iter().find(|share| share.slot == commit.slot);
        let moves =
            known.is_some_and(|known| commit.position.is_some_and(|position| position > known.position));
        if moves || !commit.settled.is_empty() {
            let not_done =
                commit.set_aside.len() + commit.settled.iter().filter(|(_, how)| *how != Aside::Done).count();
            let most = pulled.min(u32::try_from(2 * SPAN_MAX).unwrap_or(u32::MAX)) as usize;
            metrics::consumed(self.group, most.saturating_sub(not_done));
        }
    }

    /// Refuses a failure that is not one of this slot: to pass over it would be to say that it is done.
    async fn was_said(&self, known: &Share, event: EventId) -> Result<(), Problem> {
        let found = self.app.store.event(&self.group.topic, event).await?;
        // It was said before, and is aside, or done since.
        if found.is_some_and(|found| found.slot == known.slot && found.position <= known.position) {
            return Ok(());
        }
        let detail = format!("event {event} is not among what was pulled of slot {}", known.slot);
        Err(unfit("failed", detail)
            .remedy("name it in the share of its own slot, with the position that was pulled"))
    }

    /// What is to be said of an event that failed, and what becomes of it.
    async fn failure(
        &self,
        known: &Share,
        position: Position,
        failure: &Failure,
    ) -> Result<(Vec<ShareCommit>, Nacked), Problem> {
        let (slot, event) = (known.slot, failure.event);
        let commit = || said(self.group, slot, known.token);
        if let Some(first) = self.asides(slot).iter().find(|aside| aside.event == event) {
            if first.due_in_ms == Some(0) {
                let how = self.verdict(first.attempts, failure);
                let nacked = Nacked::new(event, &how);
                return Ok((vec![ShareCommit { settled: vec![(event, how)], ..commit() }], nacked));
            }
            // It was said before.
            let (attempts, retry_in_ms) = (first.attempts, first.due_in_ms);
            return Ok((Vec::new(), Nacked { event, attempts, dead: retry_in_ms.is_none(), retry_in_ms }));
        }
        let unit = match position > known.position {
            true => after_in(self.app, self.group, slot, position - 1, position).await?,
            false => Vec::new(),
        };
        let Some(found) = unit.iter().find(|found| found.id == event) else {
            let detail =
                format!("event {event} is not at position {position} of slot {slot}, or is done already");
            return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-event", detail)
                .field("event")
                .remedy("name the event, its slot and its position as they were pulled"));
        };
        let how = self.verdict(0, failure);
        let nacked = Nacked::new(event, &how);
        let set_aside = ShareCommit { set_aside: vec![aside(found, how)], ..commit() };
        // The position stays, for nothing is said of the others; who takes the slot next is told not to read this one again.
        let mark = ShareCommit { done: vec![event], ..commit() };
        Ok((vec![set_aside, mark], nacked))
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
