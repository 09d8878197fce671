//! Acknowledgements: `ack` and `nack`.

use std::collections::HashSet;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    COMMIT_BATCH_MAX, CommitResult, EventId, Offset, PARTITIONS_MAX, ParkedEventState, Permission,
};
use tenure::{Name, SessionId, Token};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::apply::AckContext;
use super::{MAX, RetriedEvent, heartbeat_session};
use crate::App;
use crate::access::Principal;
use crate::api::campaign::validate_token;
use crate::api::events::validate_event_id;
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::api::groups::key;
use crate::api::queues::validate_duration;
use crate::api::sessions::{NamespaceQuery, invalid_value};
use crate::metrics;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// Maximum number of events of a partition in one pull, and so in one acknowledgement.
pub(super) const SPAN_MAX: usize = MAX as usize + COMMIT_BATCH_MAX;

pub(super) fn routes() -> Routes {
    let work = RequiredPermission::In(Permission::Claim);
    Routes::new().api(work, routes!(ack_events)).api(work, routes!(nack_event))
}

/// Acknowledgement of pulled events.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"partitions": [{"partition": 5, "token": 1, "offset": 42}]}))]
pub(super) struct AckRequest {
    /// Session of the member; this request is also a heartbeat for it.
    session: Option<SessionId>,
    /// Partitions as `pull` returned them.
    partitions: Vec<AckPartition>,
}

/// Partition of which events are processed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AckPartition {
    /// Partition.
    pub(super) partition: u32,
    /// Fencing token of the partition lease.
    pub(super) token: Token,
    /// All events up to this offset are processed, except the failed ones.
    pub(super) offset: Option<Offset>,
    /// Parked events that were delivered again: processed, except those that failed again.
    #[serde(default)]
    pub(super) retried: Vec<RetriedEvent>,
    /// Events up to the offset that were not delivered because they were parked: they stay parked.
    #[serde(default)]
    #[schema(value_type = Vec<u64>)]
    pub(super) parked_event_ids: Vec<EventId>,
    /// Failed events of this partition. Events of the same key that were pulled after one of them count as
    /// not processed and follow in order.
    #[serde(default)]
    pub(super) failed: Vec<FailedEvent>,
    /// Number of events delivered, for metrics.
    #[serde(default)]
    pub(super) event_count: u32,
}

/// Failed event.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"event_id": 42, "error": "no route to host"}))]
pub(super) struct FailedEvent {
    /// Event id.
    #[schema(value_type = u64)]
    pub(super) event_id: EventId,
    /// Error text; a long text is truncated.
    pub(super) error: String,
    /// Whether to retry while attempts remain. If false, the event becomes a dead letter and its key stays parked.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub(super) retry: bool,
    /// Delay before the next attempt, instead of the group's backoff.
    pub(super) retry_in_ms: Option<u64>,
}

fn yes() -> bool {
    true
}

/// Result of an acknowledgement.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AckResponse {
    /// Partitions whose acknowledgement was committed.
    committed_partitions: Vec<u32>,
    /// Partitions that the member has lost: another member processes their events again.
    lost_partitions: Vec<u32>,
}

/// Failed event.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"partition": 5, "token": 1, "offset": 42, "event_id": 42, "error": "no route to host"}))]
pub(super) struct NackRequest {
    /// Session of the member; this request is also a heartbeat for it.
    session: Option<SessionId>,
    /// Partition of the event.
    partition: u32,
    /// Fencing token of the partition lease.
    token: Token,
    /// Offset of the event.
    offset: Offset,
    /// Event id.
    #[schema(value_type = u64)]
    event_id: EventId,
    /// `attempt` of the pulled event. With it, a repeated request counts once. Without it, every request
    /// counts while the event is due.
    attempt: Option<u32>,
    /// Error text; a long text is truncated.
    error: String,
    /// Whether to retry while attempts remain. If false, the event becomes a dead letter and its key stays parked.
    #[serde(default = "yes")]
    #[schema(default = true)]
    retry: bool,
    /// Delay before the next attempt, instead of the group's backoff.
    retry_in_ms: Option<u64>,
}

/// State of a failed event.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct NackResponse {
    /// Event id.
    pub(super) event_id: EventId,
    /// Number of attempts.
    pub(super) attempts: u32,
    /// Whether the event is a dead letter.
    pub(super) dead: bool,
    /// Delay before the next attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_in_ms: Option<u64>,
}

impl NackResponse {
    pub(super) fn new(event: EventId, how: &ParkedEventState) -> NackResponse {
        match how {
            ParkedEventState::Retry { attempts, retry_in_ms: after_ms, .. } => NackResponse {
                event_id: event,
                attempts: *attempts,
                dead: false,
                retry_in_ms: Some(*after_ms),
            },
            ParkedEventState::Dead { attempts, .. } => {
                NackResponse { event_id: event, attempts: *attempts, dead: true, retry_in_ms: None }
            }
            ParkedEventState::Processed | ParkedEventState::Waiting => {
                NackResponse { event_id: event, attempts: 0, dead: false, retry_in_ms: None }
            }
        }
    }
}

/// Acknowledge events
///
/// Send the `partitions` of the pull response: all events in them are processed. List failed events in
/// `failed` of their partition. Repeating the request is safe.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/ack", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = AckRequest,
    responses((status = 200, body = AckResponse), (status = 410, body = Problem, description = "The session has ended.")))]
pub(super) async fn ack_events(
    State(app): State<App>,
    principal: Principal,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(ack): JsonBody<AckRequest>,
) -> Result<Json<AckResponse>, Problem> {
    let group = key(within, topic, group);
    check(&ack.partitions)?;
    if let Some(session) = &ack.session {
        heartbeat_session(&app, &principal, session, None).await?;
    }
    let settling = AckContext::new(&app, &group, &ack.partitions).await?;
    settling.check_owner(&principal, ack.session.as_ref()).await?;
    let (mut commits, mut acked) =
        (Vec::new(), AckResponse { committed_partitions: Vec::new(), lost_partitions: Vec::new() });
    let mut pulled = Vec::new();
    for ack_partition in ack.partitions {
        match settling.held(ack_partition.partition, ack_partition.token)? {
            Some(known) => {
                pulled.push(ack_partition.event_count);
                commits.push(settling.commit(known, ack_partition).await?);
            }
            None => acked.lost_partitions.push(ack_partition.partition),
        }
    }
    let committed = app.store.commit_partitions(&commits).await?;
    for ((commit, how), pulled) in commits.iter().zip(committed).zip(pulled) {
        if how == CommitResult::Committed {
            acked.committed_partitions.push(commit.partition);
            settling.count(commit, pulled);
        } else {
            acked.lost_partitions.push(commit.partition);
        }
    }
    metrics::commits_rejected(&group, acked.lost_partitions.len());
    Ok(Json(acked))
}

/// Report a failed event
///
/// Parks the event and retries it by the group's settings; no later event of its key is delivered until it is
/// processed or dropped. The other pulled events are not affected: acknowledge them separately. Failed events
/// may be reported in any order and repeatedly.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/nack", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = NackRequest,
    responses((status = 200, body = NackResponse), (status = 404, body = Problem, description = "The event was not pulled or is already processed."),
        (status = 409, body = Problem, description = "The member has lost the partition."),
        (status = 410, body = Problem, description = "The session has ended.")))]
pub(super) async fn nack_event(
    State(app): State<App>,
    principal: Principal,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(nack): JsonBody<NackRequest>,
) -> Result<Json<NackResponse>, Problem> {
    let group = key(within, topic, group);
    let NackRequest { session, partition, token, offset, event_id, attempt, error, retry, retry_in_ms } =
        nack;
    let failed = vec![FailedEvent { event_id, error, retry, retry_in_ms }];
    let ack_partition = AckPartition {
        partition,
        token,
        offset: Some(offset),
        retried: Vec::new(),
        parked_event_ids: Vec::new(),
        failed,
        event_count: 0,
    };
    check(std::slice::from_ref(&ack_partition))?;
    if let Some(session) = &session {
        heartbeat_session(&app, &principal, session, None).await?;
    }
    let lost = || {
        let detail = format!("partition {partition} of {group} is not held under token {token}");
        Problem::new(StatusCode::CONFLICT, "partition-lost", detail)
            .field("token")
            .remedy("stop the work and pull again; another member processes the event again")
    };
    let settling = AckContext::new(&app, &group, std::slice::from_ref(&ack_partition)).await?;
    settling.check_owner(&principal, session.as_ref()).await?;
    let known = settling.held(partition, token)?.ok_or_else(lost)?;
    let (commits, nacked) = settling.failure(known, offset, attempt, &ack_partition.failed[0]).await?;
    if app.store.commit_partitions(&commits).await?.contains(&CommitResult::LeaseLost) {
        metrics::commits_rejected(&group, 1);
        return Err(lost());
    }
    commits.iter().for_each(|commit| settling.count(commit, 0));
    Ok(Json(nacked))
}

fn check(ack_partitions: &[AckPartition]) -> Result<(), Problem> {
    if ack_partitions.len() > PARTITIONS_MAX as usize {
        let detail =
            format!("{} partitions are given; a topic has at most {PARTITIONS_MAX}", ack_partitions.len());
        return Err(invalid_value("partitions", detail));
    }
    let mut partitions = HashSet::new();
    for ack_partition in ack_partitions {
        if !partitions.insert(ack_partition.partition) {
            return Err(invalid_value(
                "partitions",
                format!("partition {} occurs twice", ack_partition.partition),
            )
            .remedy("send each partition once"));
        }
        validate_token(ack_partition.token)?;
        if ack_partition.offset.is_some_and(|offset| i64::try_from(offset).is_err()) {
            return Err(invalid_value("offset", "the offset exceeds the largest offset"));
        }
        for (field, count) in [
            ("retried", ack_partition.retried.len()),
            ("failed", ack_partition.failed.len()),
            ("parked_event_ids", ack_partition.parked_event_ids.len()),
        ] {
            if count > SPAN_MAX {
                return Err(invalid_value(field, format!("{count} events exceed the maximum of {SPAN_MAX}")));
            }
        }
        for failure in &ack_partition.failed {
            validate_event_id(failure.event_id.0)?;
            failure.retry_in_ms.map_or(Ok(()), |ms| validate_duration("retry_in_ms", ms))?;
        }
        ack_partition.retried.iter().try_for_each(|text| validate_event_id(text.event_id.0).map(|_| ()))?;
    }
    Ok(())
}
