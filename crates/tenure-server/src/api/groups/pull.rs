//! Consuming a group with plain requests: pull, then acknowledge.
//!
//! The server keeps no state for a member that another replica would need: partition leases, offsets and
//! parked events are in the store under the member's session. A request counts as a heartbeat of that
//! session; while the request waits, the server sends the heartbeats. Events that are not acknowledged are
//! pulled again, so delivery is at least once.
//!
//! An acknowledgement is an offset: all events of the partition up to it are processed, except the failed
//! ones. A failed event is parked together with the events of the same key that were pulled after it. It is
//! delivered again when its backoff ends, and the others follow in order.

mod ack;
mod apply;
mod read;

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    Event, EventId, GroupAssignment, GroupKey, HeartbeatResponse, JoinGroupRequest, Notification, Offset,
    OpenSessionRequest, Pause, Permission, StartOffset, TakePartitionsRequest, TakeoverMode,
};
use tenure::runtime::RuntimeEntropy;
use tenure::{BootInstant, Name, SessionId, Timing, Token};
use tenure_core::rules::event::plan_rebalance;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use utoipa::ToSchema;
use utoipa_axum::routes;

use self::read::read_events;
use super::members::join_or_problem;
use super::{find, key, no_such_group};
use crate::App;
use crate::access::{Principal, RequestPermitHandle};
use crate::api::claim::validate_wait;
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::api::session_owner::{require_owned_session, validate_session_id};
use crate::api::session_quota;
use crate::api::sessions::{NamespaceQuery, invalid_value, session_ended};
use crate::api::topics::no_such_topic as no_topic;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};
use crate::snapshot::elections::ReceivedNotification;

/// Maximum number of events per pull.
const MAX: u32 = 1000;
/// Poll interval without notifications.
const POLL_INTERVAL: Duration = Duration::from_secs(3);
/// Minimum interval between two polls of a waiting request.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) fn routes() -> Routes {
    Routes::new().api(RequiredPermission::In(Permission::Claim), routes!(pull_events)).merge(ack::routes())
}

/// Pull request of a member.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"member": "mailer-1", "limit": 10, "wait_ms": 30000}))]
pub(super) struct PullRequest {
    /// Name of the member. A restarted member of the same name gets its partitions back.
    #[schema(max_length = 1024, example = "mailer-1")]
    member: String,
    /// Session from an earlier response. If omitted, the server opens one.
    session: Option<SessionId>,
    /// Lease duration of a new session.
    #[schema(minimum = 200, default = 30000)]
    lease_ms: Option<u64>,
    /// Maximum number of events. Commit batches are never split, so the response may contain more.
    #[serde(default = "hundred")]
    #[schema(minimum = 1, maximum = 1000, default = 100)]
    limit: u32,
    /// Maximum wait for the first event.
    #[serde(default)]
    #[schema(default = 0, maximum = 60000)]
    wait_ms: u64,
    /// Start offset, if the group does not exist yet.
    #[serde(default)]
    from: StartOffset,
}

fn hundred() -> u32 {
    100
}

/// Pulled events.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PullResponse {
    /// Session of the member: send it with every later request, within its lease.
    session: SessionId,
    /// Lease duration of the session.
    lease_ms: u64,
    /// Partitions that the member holds.
    assigned_partitions: Vec<u32>,
    /// Events, in order within each partition; empty if none arrived in time.
    events: Vec<DeliveredEvent>,
    /// Partitions to send to `ack` once all events are processed.
    partitions: Vec<PulledPartition>,
}

/// Delivered event.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeliveredEvent {
    /// Event.
    #[serde(flatten)]
    event: Event,
    /// Number of this attempt, counted from 1.
    attempt: u32,
    /// Token of the partition lease.
    token: Token,
}

/// Partition of which events were pulled.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PulledPartition {
    /// Partition.
    partition: u32,
    /// Fencing token of the partition lease.
    token: Token,
    /// Offset of the last event read; omitted if there is no new event.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<Offset>,
    /// Parked events that were delivered again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    retried: Vec<RetriedEvent>,
    /// Events up to the offset that were not delivered because they are parked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parked_event_ids: Vec<EventId>,
    /// Number of events delivered, for metrics.
    event_count: u32,
}

/// Parked event that was delivered again.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RetriedEvent {
    /// Event id.
    #[schema(value_type = u64)]
    event_id: EventId,
    /// Number of this attempt, counted from 1.
    attempt: u32,
}

/// Pull events
///
/// Joins the group if necessary, takes the member's partitions and returns up to `limit` events; waits up to
/// `wait_ms` for the first. Without `session` the server opens one: keep it and send it with every later
/// request. Its lease is extended by every `pull`, `ack` and `nack` that carries it, and by `POST
/// /v1/sessions/{session}/heartbeat`.
///
/// Events that are not acknowledged are pulled again: every event is delivered at least once; use its `id` to
/// detect duplicates. Send one pull of a session at a time: two concurrent pulls return the same events.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/pull", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = PullRequest,
    responses((status = 200, body = PullResponse), (status = 404, body = Problem, description = "The topic does not exist."),
        (status = 409, body = Problem, description = "The group is paused or has a webhook."),
        (status = 410, body = Problem, description = "The session has ended: pull without one.")))]
pub(super) async fn pull_events(
    State(app): State<App>,
    principal: Principal,
    permit: RequestPermitHandle,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(body): JsonBody<PullRequest>,
) -> Result<Json<PullResponse>, Problem> {
    let arrived = app.runtime.now();
    let group = key(within, topic, group);
    let wait = validate_wait(body.wait_ms)?;
    if !(1..=MAX).contains(&body.limit) {
        return Err(invalid_value("limit", format!("a limit of {} is out of range", body.limit))
            .remedy(format!("choose between 1 and {MAX}")));
    }
    // Open no session and join no group if the group cannot be read.
    match app.store.group_assignment(&group).await? {
        Some(GroupAssignment { paused: Some(pause), .. }) => return Err(paused(&group, &pause)),
        Some(_) => {}
        None if app.store.partition_offsets(&group.topic).await?.is_none() => {
            return Err(no_topic(&group.topic));
        }
        None => {}
    }
    let (session, lease) = match &body.session {
        None => opened(&app, &principal, &body).await?,
        Some(session) => {
            (session.clone(), heartbeat_session(&app, &principal, session, body.lease_ms).await?)
        }
    };
    let own = body.session.is_none().then(|| session.clone());
    let join = JoinGroupRequest { group, session, member: body.member, from: body.from };
    // The response must be sent before the request times out.
    let deadline = arrived + wait.min(app.timeouts.request * 2 / 3);
    let notifications = app.elections.notifications();
    let mut puller = PullOperation {
        app: &app,
        permit: &permit,
        join,
        lease,
        max: body.limit,
        deadline,
        heartbeat_at: arrived,
        notifications,
    };
    let pulled = puller.run().await;
    if let (Err(_), Some(session)) = (&pulled, own) {
        // The client does not know this session, which would hold its partitions until the lease ends.
        if let Err(error) = app.store.end_session(&session).await {
            tracing::debug!(session = %session.short(), %error, "ending an unreported session failed; it ends with its lease");
        }
    }
    pulled.map(Json)
}

/// Open a session for a member without one.
async fn opened(
    app: &App,
    principal: &Principal,
    body: &PullRequest,
) -> Result<(SessionId, Duration), Problem> {
    let lease = body.lease_ms.map_or(tenure::DEFAULT_LEASE, Duration::from_millis);
    let timing = Timing::new(lease, None).map_err(|error| invalid_value("lease_ms", error.to_string()))?;
    session_quota::check_session_quota(app, principal)?;
    let id = SessionId::generate(&mut RuntimeEntropy(app.runtime.as_ref()));
    let session = OpenSessionRequest {
        id: id.clone(),
        name: body.member.chars().filter(|c| !c.is_control()).take(200).collect(),
        lease: timing.lease(),
        takeover: TakeoverMode::Lease,
        owner: Some(principal.name.to_string()),
    };
    match app.store.open_session(&session).await? {
        HeartbeatResponse::Live { .. } => Ok((id, timing.lease())),
        HeartbeatResponse::SessionEnded => Err(session_ended(&id)),
    }
}

/// Count a heartbeat of the principal's session and return its lease.
async fn heartbeat_session(
    app: &App,
    principal: &Principal,
    session: &SessionId,
    lease_ms: Option<u64>,
) -> Result<Duration, Problem> {
    validate_session_id(session)?;
    let view = require_owned_session(app, principal, session).await?;
    if lease_ms.is_some_and(|lease_ms| lease_ms != view.lease_ms) {
        let detail = format!("the session was opened with a lease of {} ms", view.lease_ms);
        return Err(invalid_value("lease_ms", detail).remedy("omit lease_ms, or pull without a session"));
    }
    heartbeat(app, session).await?;
    Ok(view.lease())
}

async fn heartbeat(app: &App, session: &SessionId) -> Result<(), Problem> {
    match app.store.heartbeat(session).await? {
        HeartbeatResponse::Live { .. } => Ok(()),
        HeartbeatResponse::SessionEnded => Err(session_ended(session).field("session")),
    }
}

/// Pull request in progress.
struct PullOperation<'a> {
    app: &'a App,
    permit: &'a RequestPermitHandle,
    join: JoinGroupRequest,
    lease: Duration,
    max: u32,
    deadline: BootInstant,
    /// Time of the last heartbeat.
    heartbeat_at: BootInstant,
    notifications: broadcast::Receiver<ReceivedNotification>,
}

impl PullOperation<'_> {
    /// Wait until there are events or the deadline passes.
    async fn run(&mut self) -> Result<PullResponse, Problem> {
        let (app, runtime) = (self.app, self.app.runtime.as_ref());
        let mut closing = app.closing.subscribe();
        let mut waits = false;
        loop {
            if waits {
                // Register before reading: later publications then send a notification.
                app.store.register_topic_waiter(&self.join.session, &self.join.group.topic).await?;
            }
            let begun = runtime.now();
            let (assignment, recheck_in_ms) = self.balance().await?;
            if let Some(pause) = &assignment.paused {
                return Err(paused(&self.join.group, pause));
            }
            let found = read_events(app, &self.join, &assignment, self.max).await?;
            let over = runtime.now() >= self.deadline || *closing.borrow();
            if !found.deliveries.is_empty() || over {
                let held = assignment
                    .partition_leases
                    .iter()
                    .filter(|lease| lease.holder.as_ref() == Some(&self.join.session));
                return Ok(PullResponse {
                    session: self.join.session.clone(),
                    lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
                    assigned_partitions: held.map(|lease| lease.partition).collect(),
                    events: found.deliveries,
                    partitions: found.partition_leases,
                });
            }
            if found.again {
                continue;
            }
            if !waits {
                self.permit.mark_as_stream()?;
                waits = true;
                continue;
            }
            let soon = [
                Some(POLL_INTERVAL),
                recheck_in_ms.map(Duration::from_millis),
                found.due_in_ms.map(Duration::from_millis),
            ];
            let soon = soon.into_iter().flatten().min().unwrap_or(POLL_INTERVAL);
            let until = self.deadline.min(runtime.now() + soon).min(self.heartbeat_at + self.lease / 3);
            tokio::select! {
                () = runtime.sleep_until(until) => {}
                () = wait_for_notification(&mut self.notifications, &self.join.group) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
            // Limit the poll rate, however many notifications arrive.
            runtime.sleep_until((begun + MIN_POLL_INTERVAL).min(self.deadline)).await;
            if runtime.now() >= self.heartbeat_at + self.lease / 3 {
                self.heartbeat_at = runtime.now();
                heartbeat(app, &self.join.session).await?;
            }
        }
    }

    /// Join the group if necessary, release partitions that belong to other members and take this member's
    /// own. Returns the assignment and the delay until it must be checked again.
    async fn balance(&self) -> Result<(GroupAssignment, Option<u64>), Problem> {
        let (store, join) = (&self.app.store, &self.join);
        let assignment = match store.group_assignment(&join.group).await? {
            Some(assignment)
                if assignment
                    .members
                    .iter()
                    .any(|one| one.session == join.session && one.name == join.member) =>
            {
                assignment
            }
            _ => join_or_problem(self.app, join.clone()).await?,
        };
        let balance = plan_rebalance(&assignment, &join.session);
        if balance.release.is_empty() && balance.take.is_empty() {
            return Ok((assignment, balance.replan_in_ms));
        }
        if !balance.release.is_empty() {
            store.release_partitions(&join.group, &balance.release).await?;
        }
        if !balance.take.is_empty() {
            let take = TakePartitionsRequest {
                group: join.group.clone(),
                session: join.session.clone(),
                partitions: balance.take,
            };
            for taken in store.take_partitions(&take).await? {
                read::recover(self.app, &join.group, &taken).await?;
            }
        }
        let assignment =
            store.group_assignment(&join.group).await?.ok_or_else(|| no_such_group(&join.group))?;
        Ok((assignment, balance.replan_in_ms))
    }
}

/// Wait for a notification that may concern this group.
async fn wait_for_notification(
    notifications: &mut broadcast::Receiver<ReceivedNotification>,
    group: &GroupKey,
) {
    loop {
        match notifications.recv().await {
            Ok(ReceivedNotification { notification: Notification::TopicPublished(topic), .. })
                if topic == group.topic =>
            {
                return;
            }
            Ok(ReceivedNotification { notification: Notification::GroupChanged(key), .. })
                if key == *group =>
            {
                return;
            }
            Ok(ReceivedNotification { notification: Notification::Resync, .. })
            | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

fn paused(group: &GroupKey, pause: &Pause) -> Problem {
    let why = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
    let detail = format!("{} paused {group}{why}", pause.paused_by);
    Problem::new(StatusCode::CONFLICT, "paused", detail)
        .field("group")
        .remedy("wait until it is resumed")
        .retry_after(10)
}

/// Read the assignment of a group.
async fn read_assignment(app: &App, group: &GroupKey) -> Result<GroupAssignment, Problem> {
    match app.store.group_assignment(group).await? {
        Some(assignment) => Ok(assignment),
        None => Err(find(app, group).await.err().unwrap_or_else(|| no_such_group(group))),
    }
}
