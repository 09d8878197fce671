//! Consuming with nothing but requests: pull, then say what became of it.
//!
//! The server keeps nothing for a member that another replica could not do without: who has which slot, how far it is read and what
//! is aside are in the store, under the session that the member names. A request beats that session; while it waits, the server does.
//! What was pulled and not acknowledged is pulled again, so every event comes at least once.
//!
//! What is acknowledged is a position: everything of the slot up to it is done, but for what the member says failed. That is set
//! aside, with whatever of the same key was pulled after it; it comes again when it is due, and those behind it follow in order.

mod ack;
mod gather;
mod settling;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    Begin, Event, EventId, GroupKey, GroupLook, Join, NewSession, Pause, Position, Pulse, TakeShares,
    Takeover, Verb, Wake,
};
use tenure::runtime::Draw;
use tenure::{Moment, Name, SessionId, Timing, Token};
use tenure_core::event::assign;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;
use utoipa_axum::routes;

use self::gather::gathered;
use super::members::joined;
use super::{find, key, none};
use crate::App;
use crate::access::{Principal, Slot};
use crate::api::claims::patient;
use crate::api::given::{At, Given, In};
use crate::api::owned::{owned, plausible};
use crate::api::room;
use crate::api::sessions::{Within, gone, unfit};
use crate::api::topics::none as no_topic;
use crate::board::Hint;
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// How many events are pulled at most.
const MAX: u32 = 1000;
/// How often it is looked while nothing is heard.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// How soon one that waits looks again at most.
const NOT_BEFORE: Duration = Duration::from_millis(50);

pub(super) fn routes() -> Routes {
    Routes::new().api(Need::In(Verb::Claim), routes!(pull)).merge(ack::routes())
}

/// A member that wants events.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "mailer-1", "max": 10, "wait_ms": 30000}))]
pub(super) struct Pull {
    /// Its name. After a restart, a member of the same name gets back the slots that it had.
    #[schema(max_length = 1024, example = "mailer-1")]
    member: String,
    /// The session of an earlier answer. Without one, a session is opened.
    session: Option<SessionId>,
    /// For how long a session that is opened lives without a word.
    #[schema(minimum = 200, default = 30000)]
    lease_ms: Option<u64>,
    /// How many events at most. What was published together is never cut, so that there may be more.
    #[serde(default = "hundred")]
    #[schema(minimum = 1, maximum = 1000, default = 100)]
    max: u32,
    /// How long to wait for the first.
    #[serde(default)]
    #[schema(default = 0, maximum = 60000)]
    wait_ms: u64,
    /// Where the group begins, if it is new.
    #[serde(default)]
    from: Begin,
}

fn hundred() -> u32 {
    100
}

/// What was pulled.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Pulled {
    /// The member's session: name it from now on, and come again within its lease.
    session: SessionId,
    /// For how long the session lives without a word.
    lease_ms: u64,
    /// The slots that the member has, by number.
    slots: Vec<u32>,
    /// The events, those of each slot in order. None if there were none in time.
    events: Vec<Delivery>,
    /// What to send to `ack` when all of them are done.
    shares: Vec<PulledShare>,
}

/// An event that was pulled.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Delivery {
    /// The event.
    #[serde(flatten)]
    event: Event,
    /// Which attempt this is, counted from 1.
    attempt: u32,
    /// The token under which the member has the event's slot.
    token: Token,
}

/// A slot of which events were pulled.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PulledShare {
    /// Which.
    slot: u32,
    /// The token under which the member has it.
    token: Token,
    /// The position of the last event that was read; left out if there was nothing new.
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<Position>,
    /// Events that had failed before, and were pulled again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    retried: Vec<Retried>,
    /// Events up to the position that were not pulled: they are aside already.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    aside: Vec<EventId>,
    /// How many events of it were pulled, for the figures.
    events: u32,
}

/// An event that had failed before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Retried {
    /// Which.
    #[schema(value_type = u64)]
    event: EventId,
    /// Which attempt this was, counted from 1.
    attempt: u32,
}

/// Pull events
///
/// The member joins the group, if it is not in it yet, takes its part of the slots, and gets up to `max` events of them; it waits up to
/// `wait_ms` for the first. Without `session`, one is opened: keep it, and name it from then on. It lives for its lease without a word,
/// and every `pull`, `ack` and `nack` that names it is one, as is `POST /v1/sessions/{session}/renew`.
///
/// What is not acknowledged is pulled again: every event comes at least once, and its number (`id`) says whether it did before. One
/// request at a time: what is pulled by two of one session is the same.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/pull", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), Within), request_body = Pull,
    responses((status = 200, body = Pulled), (status = 404, body = Problem, description = "There is no such topic."),
        (status = 409, body = Problem, description = "The group is paused, or the servers push it."),
        (status = 410, body = Problem, description = "The session is over: pull without one.")))]
pub(super) async fn pull(
    State(app): State<App>,
    principal: Principal,
    slot: Slot,
    At((topic, group)): At<(Name, Name)>,
    In(within): In<Within>,
    Given(ask): Given<Pull>,
) -> Result<Json<Pulled>, Problem> {
    let arrived = app.runtime.now();
    let group = key(within, topic, group);
    let wait = patient(ask.wait_ms)?;
    if !(1..=MAX).contains(&ask.max) {
        return Err(unfit("max", format!("{} events can not be pulled at once", ask.max))
            .remedy(format!("choose between 1 and {MAX}")));
    }
    // Nobody gets a session, or a place in the group, whom there is nothing to pull for.
    match app.store.look_group(&group).await? {
        Some(GroupLook { paused: Some(pause), .. }) => return Err(paused(&group, &pause)),
        Some(_) => {}
        None if app.store.slot_ends(&group.topic).await?.is_none() => return Err(no_topic(&group.topic)),
        None => {}
    }
    let (session, lease) = match &ask.session {
        None => opened(&app, &principal, &ask).await?,
        Some(session) => (session.clone(), renewed(&app, &principal, session, ask.lease_ms).await?),
    };
    let own = ask.session.is_none().then(|| session.clone());
    let join = Join { group, session, member: ask.member, from: ask.from };
    // The answer has to be on its way before the request is given up.
    let deadline = arrived + wait.min(app.timeouts.request * 2 / 3);
    let hints = app.board.hints();
    let mut puller =
        Puller { app: &app, slot: &slot, join, lease, max: ask.max, deadline, beaten: arrived, hints };
    let pulled = puller.pulled().await;
    if let (Err(_), Some(session)) = (&pulled, own) {
        // Nobody is told its name: it would have its slots until its lease runs out.
        if let Err(error) = app.store.end(&session).await {
            tracing::debug!(session = %session.short(), "a session that nobody knows of runs out by itself: {error}");
        }
    }
    pulled.map(Json)
}

/// A session for a member that has none.
async fn opened(app: &App, principal: &Principal, ask: &Pull) -> Result<(SessionId, Duration), Problem> {
    let lease = ask.lease_ms.map_or(tenure::DEFAULT_LEASE, Duration::from_millis);
    let timing = Timing::new(lease, None).map_err(|error| unfit("lease_ms", error.to_string()))?;
    room::for_session(app, principal)?;
    let id = SessionId::generate(&mut Draw(app.runtime.as_ref()));
    let session = NewSession {
        id: id.clone(),
        name: ask.member.chars().filter(|c| !c.is_control()).take(200).collect(),
        lease: timing.lease(),
        takeover: Takeover::Lease,
        owner: Some(principal.name.to_string()),
    };
    match app.store.open(&session).await? {
        Pulse::Alive { .. } => Ok((id, timing.lease())),
        Pulse::Gone => Err(gone(&id)),
    }
}

/// Beats a session of the principal's; its lease.
async fn renewed(
    app: &App,
    principal: &Principal,
    session: &SessionId,
    lease_ms: Option<u64>,
) -> Result<Duration, Problem> {
    plausible(session)?;
    let view = owned(app, principal, session).await?;
    if lease_ms.is_some_and(|lease_ms| lease_ms != view.lease_ms) {
        let detail = format!("this session was opened with a lease of {} ms", view.lease_ms);
        return Err(unfit("lease_ms", detail).remedy("leave it out, or pull without a session"));
    }
    beat(app, session).await?;
    Ok(view.lease())
}

async fn beat(app: &App, session: &SessionId) -> Result<(), Problem> {
    match app.store.beat(session).await? {
        Pulse::Alive { .. } => Ok(()),
        Pulse::Gone => Err(gone(session).field("session")),
    }
}

/// A request that pulls.
struct Puller<'a> {
    app: &'a App,
    slot: &'a Slot,
    join: Join,
    lease: Duration,
    max: u32,
    deadline: Moment,
    /// When the session was last beaten.
    beaten: Moment,
    hints: broadcast::Receiver<Hint>,
}

impl Puller<'_> {
    /// Waits until there are events, or time is up.
    async fn pulled(&mut self) -> Result<Pulled, Problem> {
        let (app, runtime) = (self.app, self.app.runtime.as_ref());
        let mut closing = app.closing.subscribe();
        let mut waits = false;
        loop {
            if waits {
                // Before the look: what is published after it rings.
                app.store.doze_topic(&self.join.session, &self.join.group.topic).await?;
            }
            let begun = runtime.now();
            let (look, look_in_ms) = self.balanced().await?;
            if let Some(pause) = &look.paused {
                return Err(paused(&self.join.group, pause));
            }
            let found = gathered(app, &self.join, &look, self.max).await?;
            let over = runtime.now() >= self.deadline || *closing.borrow();
            if !found.deliveries.is_empty() || over {
                let held =
                    look.shares.iter().filter(|share| share.holder.as_ref() == Some(&self.join.session));
                return Ok(Pulled {
                    session: self.join.session.clone(),
                    lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
                    slots: held.map(|share| share.slot).collect(),
                    events: found.deliveries,
                    shares: found.shares,
                });
            }
            if found.again {
                continue;
            }
            if !waits {
                self.slot.lengthen()?;
                waits = true;
                continue;
            }
            let soon = [
                Some(LOOK_EVERY),
                look_in_ms.map(Duration::from_millis),
                found.due_in_ms.map(Duration::from_millis),
            ];
            let soon = soon.into_iter().flatten().min().unwrap_or(LOOK_EVERY);
            let until = self.deadline.min(runtime.now() + soon).min(self.beaten + self.lease / 3);
            tokio::select! {
                () = runtime.sleep_until(until) => {}
                () = heard(&mut self.hints, &self.join.group) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
            // However much is heard, it is not looked more often than this.
            runtime.sleep_until((begun + NOT_BEFORE).min(self.deadline)).await;
            if runtime.now() >= self.beaten + self.lease / 3 {
                self.beaten = runtime.now();
                beat(app, &self.join.session).await?;
            }
        }
    }

    /// Joins, if that was not done yet, gives up what is not the member's any more and takes what is; the group as it is then, and in how
    /// long it is to be looked at again for that.
    async fn balanced(&self) -> Result<(GroupLook, Option<u64>), Problem> {
        let (store, join) = (&self.app.store, &self.join);
        let look = match store.look_group(&join.group).await? {
            Some(look)
                if look.members.iter().any(|one| one.session == join.session && one.name == join.member) =>
            {
                look
            }
            _ => joined(self.app, join.clone()).await?,
        };
        let balance = assign(&look, &join.session);
        if balance.free.is_empty() && balance.take.is_empty() {
            return Ok((look, balance.look_in_ms));
        }
        if !balance.free.is_empty() {
            store.free_shares(&join.group, &balance.free).await?;
        }
        if !balance.take.is_empty() {
            let take =
                TakeShares { group: join.group.clone(), session: join.session.clone(), slots: balance.take };
            for taken in store.take_shares(&take).await? {
                gather::recover(self.app, &join.group, &taken).await?;
            }
        }
        let look = store.look_group(&join.group).await?.ok_or_else(|| none(&join.group))?;
        Ok((look, balance.look_in_ms))
    }
}

/// Waits for a hint that there may be something for a member of this group.
async fn heard(hints: &mut broadcast::Receiver<Hint>, group: &GroupKey) {
    loop {
        match hints.recv().await {
            Ok(Hint { wake: Wake::Events(topic), .. }) if topic == group.topic => return,
            Ok(Hint { wake: Wake::Group(key), .. }) if key == *group => return,
            Ok(Hint { wake: Wake::Resync, .. }) | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn paused(group: &GroupKey, pause: &Pause) -> Problem {
    let why = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
    let detail = format!("{} has paused {group}{why}", pause.by);
    Problem::new(StatusCode::CONFLICT, "paused", detail)
        .field("group")
        .remedy("wait until it is resumed")
        .retry_after(10)
}

/// The group as its members see it.
async fn looked(app: &App, group: &GroupKey) -> Result<GroupLook, Problem> {
    match app.store.look_group(group).await? {
        Some(look) => Ok(look),
        None => Err(find(app, group).await.err().unwrap_or_else(|| none(group))),
    }
}
