//! Consumer groups: settings, offsets, lag and parked events.

mod members;
mod parked;
mod pull;
mod webhook;

pub(crate) use self::parked::apply_dead_letter_action as order_dead;
pub(crate) use self::webhook::{PutWebhookRequest, display_url as push_address, set_webhook};
pub(super) use self::webhook::{new_secret, validate_secret};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    Backoff, ErrorKind, GroupKey, GroupSettings, GroupView, OffsetChange, PARTITIONS_MAX, Permission,
    StartOffset, StoreError, TopicKey,
};
use tenure_core::rules::event::{validate_group, validate_start_offset};
use tenure_core::rules::schedule::to_rfc3339;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::audit_writer::{AuditActor, record_of};
use super::election_actions::EmptyRequest;
use super::elections::validate_number;
use super::events::topic_problem;
use super::extract::{JsonBody, OptionalJsonBody, PathParams, QueryParams};
use super::queues::{ChangeResponse, PauseRequest};
use super::sessions::{NamespaceQuery, invalid_value};
use super::topics::read_each;
use super::validate::event_request_problem as invalid_request;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{RequiredPermission, Routes};

/// Default and maximum page size.
const PAGE: (u32, u32) = (50, 200);
/// Permission to read the assignment of a group: readers and consumers need it.
const MEMBERS: RequiredPermission = RequiredPermission::InAny(&[Permission::Read, Permission::Claim]);

pub(crate) fn routes() -> Routes {
    let admin = RequiredPermission::In(Permission::Admin);
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(list_groups))
        .api(MEMBERS, routes!(get_group))
        .api(admin, routes!(put_group))
        .api(admin, routes!(delete_group))
        .api(admin, routes!(pause_group))
        .api(admin, routes!(resume_group))
        .api(admin, routes!(reset_group_offsets))
        .merge(parked::routes())
        .merge(webhook::routes())
        .merge(members::routes())
        .merge(pull::routes())
}

/// Query of a list of groups.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListGroupsQuery {
    /// Namespace; if omitted, every namespace that the principal may read.
    namespace: Option<Name>,
    /// Only groups of this topic.
    topic: Option<Name>,
    /// Maximum number of items.
    #[param(default = 50, minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// Cursor: `next_cursor` of the previous page.
    #[param(example = "default/orders/mailer")]
    cursor: Option<String>,
}

/// Page of groups.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupList {
    /// Groups by namespace, topic and name.
    groups: Vec<GroupView>,
    /// Cursor of the next page; `null` on the last page.
    #[schema(example = "default/orders/mailer")]
    next_cursor: Option<String>,
}

/// Settings of a group.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"max_attempts": 10, "backoff": {"initial_ms": 500, "max_ms": 60000}, "from": "earliest"}))]
pub(crate) struct PutGroupRequest {
    /// Maximum number of attempts; after the last one the event becomes a dead letter and its key stays
    /// parked.
    #[schema(minimum = 1, default = 10)]
    max_attempts: u32,
    /// Delay before the next attempt.
    backoff: Backoff,
    /// Start offset of a new group. An existing group keeps its offsets; `reset` moves them.
    from: StartOffset,
}

impl Default for PutGroupRequest {
    fn default() -> Self {
        let GroupSettings { max_attempts, backoff } = GroupSettings::default();
        PutGroupRequest { max_attempts, backoff, from: StartOffset::default() }
    }
}

/// New offsets of a group.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": "earliest", "dry_run": true}))]
pub(crate) struct ResetOffsetsRequest {
    /// `"earliest"`, `"latest"`, `{"offset": N}` (after it) or `{"published_at_ms": N}`.
    to: StartOffset,
    /// Only this partition.
    partition: Option<u32>,
    /// Whether to report the change without making it.
    #[serde(default)]
    dry_run: bool,
}

/// Offsets before and after a reset.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResetOffsetsResponse {
    /// Partitions by number.
    partitions: Vec<OffsetChange>,
}

/// List groups
///
/// Sorted by namespace, topic and name; with members, partitions, lag, parked events and dead letters.
#[utoipa::path(get, path = "/v1/groups", tag = "groups", params(ListGroupsQuery), responses((status = 200, body = GroupList)))]
pub(crate) async fn list_groups(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<ListGroupsQuery>,
) -> Result<Json<GroupList>, Problem> {
    let limit = validate_number("limit", query.limit, PAGE)? as usize;
    let from = query.cursor.as_deref().map(parse_cursor).transpose()?;
    if let Some(namespace) = &query.namespace {
        principal.require(Permission::Read, Some(namespace))?;
    }
    let mut names = app.store.group_names(query.namespace.as_ref()).await?;
    names.retain(|key| {
        principal.may(Permission::Read, Some(&key.topic.namespace))
            && query.topic.as_ref().is_none_or(|name| *name == key.topic.name)
            && from.as_ref().is_none_or(|from| key > from)
    });
    names.sort_unstable();
    let more = names.len() > limit;
    names.truncate(limit);
    let next_cursor = names
        .last()
        .filter(|_| more)
        .map(|GroupKey { topic, name }| format!("{}/{}/{name}", topic.namespace, topic.name));
    let store = &app.store;
    let groups = read_each(names, |key| async move { store.group(&key).await }).await?;
    Ok(Json(GroupList { groups: groups.into_iter().map(GroupView::redacted).collect(), next_cursor }))
}

/// Get a group
///
/// Members, and for each partition its holder, committed offset, end offset and lag.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery),
    responses((status = 200, body = GroupView), (status = 404, body = Problem, description = "The group does not exist.")))]
pub(crate) async fn get_group(
    State(app): State<App>,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<GroupView>, Problem> {
    find(&app, &key(within, topic, group)).await.map(GroupView::redacted).map(Json)
}

/// Create or update a group
///
/// Creates the group at its start offset, or replaces its settings. Omitted settings get their defaults.
#[utoipa::path(put, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = Option<PutGroupRequest>,
    responses((status = 200, body = GroupView), (status = 201, body = GroupView, description = "Created.")))]
pub(crate) async fn put_group(
    State(app): State<App>,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(body): OptionalJsonBody<PutGroupRequest>,
) -> Result<Response, Problem> {
    let key = key(within, topic, group);
    let settings = GroupSettings { max_attempts: body.max_attempts, backoff: body.backoff };
    validate_group(&settings).map_err(|error| invalid_request(&error, "max_attempts"))?;
    validate_start_offset(&body.from).map_err(|error| invalid_request(&error, "from"))?;
    quota::check(&app, Object::Group(&key)).await?;
    let new = match app.store.set_group(&key, &settings, body.from).await {
        Ok(new) => new,
        Err(error) => return Err(topic_problem(&app, &key.topic, error).await),
    };
    let detail = serde_json::to_string(&settings).unwrap_or_default();
    record(&app, &by, "group.set", &key, detail).await;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(find(&app, &key).await?.redacted())).into_response())
}

/// Delete a group
///
/// Deletes the group with its offsets and parked events. Fails while the group has live members.
#[utoipa::path(delete, path = "/v1/topics/{topic}/groups/{group}", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery),
    responses((status = 204), (status = 404, body = Problem, description = "The group does not exist."),
        (status = 409, body = Problem, description = "The group has live members.")))]
pub(crate) async fn delete_group(
    State(app): State<App>,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<StatusCode, Problem> {
    let key = key(within, topic, group);
    let deleted = app.store.delete_group(&key).await.map_err(|error| match error.kind {
        // The store rejects a deletion only if the group has live members.
        ErrorKind::Request => {
            Problem::from_message(StatusCode::CONFLICT, "group-in-use", &error.message).field("group")
        }
        _ => Problem::from(error),
    });
    if !deleted? {
        return Err(no_such_group(&key));
    }
    record(&app, &by, "group.delete", &key, String::new()).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Pause a group
///
/// Members read no more events until the group is resumed. They stay in the group and finish their current
/// events.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/pause", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = Option<PauseRequest>,
    responses((status = 200, body = ChangeResponse), (status = 404, body = Problem, description = "The group does not exist.")))]
pub(crate) async fn pause_group(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(pause): OptionalJsonBody<PauseRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    let key = key(within, topic, group);
    let pause = pause.pause(&app, &principal)?;
    let changed = match app.store.set_group_paused(&key, Some(&pause)).await {
        Ok(changed) => changed,
        Err(error) => return Err(group_problem(&app, &key, error).await),
    };
    paused(&app, &by, &key, changed, "group.pause", pause.reason).await
}

/// Resume a group
///
/// Members read again from the committed offsets.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/resume", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = Option<EmptyRequest>,
    responses((status = 200, body = ChangeResponse), (status = 404, body = Problem, description = "The group does not exist.")))]
pub(crate) async fn resume_group(
    State(app): State<App>,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    let key = key(within, topic, group);
    let changed = match app.store.set_group_paused(&key, None).await {
        Ok(changed) => changed,
        Err(error) => return Err(group_problem(&app, &key, error).await),
    };
    paused(&app, &by, &key, changed, "group.resume", String::new()).await
}

async fn paused(
    app: &App,
    by: &AuditActor,
    key: &GroupKey,
    changed: bool,
    action: &str,
    detail: String,
) -> Result<Json<ChangeResponse>, Problem> {
    if changed {
        record(app, by, action, key, detail).await;
    } else {
        // The store also reports no change if the group does not exist.
        find(app, key).await?;
    }
    Ok(Json(ChangeResponse { changed }))
}

/// Reset the offsets of a group
///
/// Moves the offsets of all partitions, or of one, to the start, the end, an offset or an instant. Members
/// lose their partition leases and take them again; uncommitted work is rejected. Parked events after the new
/// offset are deleted, because they are read again. With `dry_run` nothing changes.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/reset", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = ResetOffsetsRequest,
    responses((status = 200, body = ResetOffsetsResponse), (status = 404, body = Problem, description = "The group does not exist.")))]
pub(crate) async fn reset_group_offsets(
    State(app): State<App>,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(reset): JsonBody<ResetOffsetsRequest>,
) -> Result<Json<ResetOffsetsResponse>, Problem> {
    let key = key(within, topic, group);
    let to = reset.to;
    reset.partition.map_or(Ok(()), |partition| validate_partition("partition", partition))?;
    validate_start_offset(&to).map_err(|error| invalid_request(&error, "to"))?;
    let partitions = match app.store.reset_group(&key, to, reset.partition, reset.dry_run).await {
        Ok(partitions) => partitions,
        Err(error) => {
            let problem = group_problem(&app, &key, error).await;
            return Err(if reset.partition.is_some() && problem.field.is_none() {
                problem.field("partition")
            } else {
                problem
            });
        }
    };
    if partitions.is_empty() {
        find(&app, &key).await?;
    } else if !reset.dry_run {
        record(&app, &by, "group.reset", &key, reset_detail(&to, reset.partition)).await;
    }
    Ok(Json(ResetOffsetsResponse { partitions }))
}

/// Describe a reset for the audit log.
pub(crate) fn reset_detail(to: &StartOffset, partition: Option<u32>) -> String {
    let to = match to {
        StartOffset::Earliest => "the earliest event".to_owned(),
        StartOffset::Latest => "the latest event".to_owned(),
        StartOffset::Offset(offset) => format!("offset {offset}"),
        StartOffset::PublishedAtMs(at_ms) => to_rfc3339(*at_ms),
    };
    let query = partition.map_or_else(String::new, |partition| format!(", partition {partition}"));
    format!("to {to}{query}")
}

/// Key of the group in a request.
fn key(within: NamespaceQuery, topic: Name, group: Name) -> GroupKey {
    GroupKey::new(TopicKey::new(within.namespace, topic), group)
}

/// Read a group from the store.
async fn find(app: &App, key: &GroupKey) -> Result<GroupView, Problem> {
    app.store.group(key).await?.ok_or_else(|| no_such_group(key))
}

/// Problem: the group does not exist.
pub(crate) fn no_such_group(key: &GroupKey) -> Problem {
    let detail = format!("group {} of topic {} does not exist", key.name, key.topic);
    Problem::new(StatusCode::NOT_FOUND, "no-such-group", detail)
        .field("group")
        .remedy("GET /v1/groups lists groups; PUT creates one, and so does the first member")
}

/// Map a store error about a group; `no-such-group` if the group does not exist.
async fn group_problem(app: &App, key: &GroupKey, error: StoreError) -> Problem {
    let problem = Problem::from(error);
    if problem.code != "rejected-by-store" {
        return problem;
    }
    match app.store.group_assignment(key).await {
        Ok(None) => no_such_group(key),
        _ => problem,
    }
}

/// Reject a partition number beyond the maximum.
fn validate_partition(field: &str, partition: u32) -> Result<(), Problem> {
    if partition < PARTITIONS_MAX {
        return Ok(());
    }
    Err(invalid_value(
        field,
        format!(
            "partition {partition} is out of range; a topic has at most {PARTITIONS_MAX} partitions, counted from 0"
        ),
    ))
}

/// Record a change of a group.
async fn record(app: &App, by: &AuditActor, action: &str, key: &GroupKey, detail: String) {
    let target = format!("{}/{}", key.topic.name, key.name);
    record_of(app, by, action, &key.topic.namespace, &target, detail).await;
}

/// Parse a list cursor.
fn parse_cursor(text: &str) -> Result<GroupKey, Problem> {
    let malformed = |detail: String| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-query", detail)
            .field("cursor")
            .remedy("send `next_cursor` of the previous page unchanged")
    };
    let mut names = Vec::new();
    for part in text.split('/') {
        names.push(part.parse::<Name>().map_err(|error| malformed(error.to_string()))?);
    }
    match <[Name; 3]>::try_from(names) {
        Ok([namespace, topic, name]) => Ok(GroupKey::new(TopicKey::new(namespace, topic), name)),
        Err(_) => Err(malformed(format!("{text:?} is not NAMESPACE/TOPIC/GROUP"))),
    }
}
