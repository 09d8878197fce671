//! Topics: settings and offsets.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    DEFAULT_PARTITIONS, ErrorKind, PartitionOffsets, Permission, StoreError, TopicKey, TopicSettings,
    TopicView,
};
use tenure_core::rules::event::validate_topic;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::audit_writer::{AuditActor, record_of};
use super::elections::{parse_cursor, validate_number};
use super::extract::{OptionalJsonBody, PathParams, QueryParams};
use super::sessions::NamespaceQuery;
use super::validate::event_request_problem;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{RequiredPermission, Routes};

/// Default and maximum page size.
const PAGE: (u32, u32) = (100, 1000);
/// Number of concurrent reads for a page.
const CONCURRENCY: usize = 8;
/// Permissions that allow reading a topic: readers, publishers and consumers need it.
pub(super) const TOPIC_READERS: RequiredPermission =
    RequiredPermission::InAny(&[Permission::Read, Permission::Publish, Permission::Claim]);

pub(crate) fn routes() -> Routes {
    let admin = RequiredPermission::In(Permission::Admin);
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(list_topics))
        .api(TOPIC_READERS, routes!(get_topic))
        .api(admin, routes!(put_topic))
        .api(admin, routes!(delete_topic))
        .api(TOPIC_READERS, routes!(get_topic_offsets))
}

/// Query of a list of topics.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListTopicsQuery {
    /// Namespace; if omitted, every namespace that the principal may read.
    namespace: Option<Name>,
    /// Maximum number of items.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Cursor: `next_cursor` of the previous page.
    #[param(example = "default/orders")]
    cursor: Option<String>,
}

/// Page of topics.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TopicList {
    /// Topics by namespace and name.
    topics: Vec<TopicView>,
    /// Cursor of the next page; `null` on the last page.
    #[schema(example = "default/orders")]
    next_cursor: Option<String>,
}

/// Settings of a topic.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"partitions": 64, "retention_ms": 604800000}))]
pub(crate) struct PutTopicRequest {
    /// Number of partitions. It limits how many members of a group can read at the same time. If omitted: 64
    /// for a new topic, the current number for an existing one.
    #[schema(minimum = 1, maximum = 1024)]
    partitions: Option<u32>,
    /// Minimum retention of events, read or not.
    #[schema(default = 604800000)]
    retention_ms: u64,
    /// Maximum retention of events that a group has not read. If omitted, unread events are kept.
    unread_retention_ms: Option<u64>,
    /// Maximum payload size in bytes.
    #[schema(minimum = 1, maximum = 1048576, default = 1048576)]
    max_payload_bytes: u64,
}

impl Default for PutTopicRequest {
    fn default() -> Self {
        let TopicSettings {
            retention_ms: keep_ms,
            unread_retention_ms: keep_unread_ms,
            max_payload_bytes: max_bytes,
            ..
        } = TopicSettings::default();
        PutTopicRequest {
            partitions: None,
            retention_ms: keep_ms,
            unread_retention_ms: keep_unread_ms,
            max_payload_bytes: max_bytes,
        }
    }
}

impl PutTopicRequest {
    async fn settings(self, app: &App, key: &TopicKey) -> Result<TopicSettings, Problem> {
        let partitions = match self.partitions {
            Some(partitions) => partitions,
            None => match app.store.partition_offsets(key).await? {
                Some(ends) => u32::try_from(ends.len()).unwrap_or(DEFAULT_PARTITIONS),
                None => DEFAULT_PARTITIONS,
            },
        };
        let PutTopicRequest {
            retention_ms: keep_ms,
            unread_retention_ms: keep_unread_ms,
            max_payload_bytes: max_bytes,
            ..
        } = self;
        Ok(TopicSettings {
            partitions,
            retention_ms: keep_ms,
            unread_retention_ms: keep_unread_ms,
            max_payload_bytes: max_bytes,
        })
    }
}

/// Offsets of the partitions of a topic.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TopicOffsets {
    /// Partitions by number.
    partitions: Vec<PartitionOffsets>,
}

/// List topics
///
/// Sorted by namespace and name, with the estimated number of events, the groups, and the transactions that
/// hold partition locks.
#[utoipa::path(get, path = "/v1/topics", tag = "topics", params(ListTopicsQuery), responses((status = 200, body = TopicList)))]
pub(crate) async fn list_topics(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<ListTopicsQuery>,
) -> Result<Json<TopicList>, Problem> {
    let limit = validate_number("limit", query.limit, PAGE)? as usize;
    let after = query.cursor.as_deref().map(parse_cursor).transpose()?;
    principal.require_list(query.namespace.as_ref())?;
    let from = after.map(|key| TopicKey::new(key.namespace, key.name));
    let mut names = app.store.topic_names(query.namespace.as_ref()).await?;
    names.retain(|key| {
        principal.may(Permission::Read, Some(&key.namespace)) && from.as_ref().is_none_or(|from| key > from)
    });
    names.sort_unstable();
    let more = names.len() > limit;
    names.truncate(limit);
    let last = names.last().filter(|_| more);
    let next_cursor = last.map(|last| format!("{}/{}", last.namespace, last.name));
    let store = &app.store;
    let topics = read_each(names, |key| async move { store.topic(&key).await }).await?;
    Ok(Json(TopicList { topics, next_cursor }))
}

/// Read the items of a page, several at once. Items deleted meanwhile are skipped.
pub(super) async fn read_each<K, V, F>(
    names: Vec<K>,
    assignment: impl Fn(K) -> F,
) -> Result<Vec<V>, StoreError>
where
    F: Future<Output = Result<Option<V>, StoreError>>,
{
    let found: Vec<Option<V>> =
        stream::iter(names).map(assignment).buffered(CONCURRENCY).try_collect().await?;
    Ok(found.into_iter().flatten().collect())
}

/// Get a topic
///
/// Settings, estimated number of events, groups, and the transactions that hold partition locks.
#[utoipa::path(get, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = Name, Path), NamespaceQuery),
    responses((status = 200, body = TopicView), (status = 404, body = Problem, description = "The topic does not exist.")))]
pub(crate) async fn get_topic(
    State(app): State<App>,
    PathParams(topic): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<TopicView>, Problem> {
    find(&app, &TopicKey::new(within.namespace, topic)).await.map(Json)
}

/// Create or update a topic
///
/// Creates the topic or replaces its settings. Omitted settings get their defaults. The number of partitions
/// is fixed at creation, because another number would move keys to other partitions and break their order. If
/// omitted, it stays.
#[utoipa::path(put, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = Name, Path), NamespaceQuery),
    request_body = Option<PutTopicRequest>,
    responses((status = 200, body = TopicView), (status = 201, body = TopicView, description = "Created."),
        (status = 409, body = Problem, description = "The topic has another number of partitions.")))]
pub(crate) async fn put_topic(
    State(app): State<App>,
    by: AuditActor,
    PathParams(topic): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(body): OptionalJsonBody<PutTopicRequest>,
) -> Result<Response, Problem> {
    let key = TopicKey::new(within.namespace, topic);
    let settings = body.settings(&app, &key).await?;
    validate_topic(&settings).map_err(|error| event_request_problem(&error, "partitions"))?;
    quota::check(&app, Object::Topic(&key)).await?;
    let new = match app.store.set_topic(&key, &settings).await {
        Ok(new) => new,
        Err(error) if error.kind == ErrorKind::Request => {
            let known = app.store.topic(&key).await?;
            return Err(match known.filter(|known| known.settings.partitions != settings.partitions) {
                Some(known) => partitions_fixed(&known, settings.partitions),
                None => error.into(),
            });
        }
        Err(error) => return Err(error.into()),
    };
    let detail = serde_json::to_string(&settings).unwrap_or_default();
    record_of(&app, &by, "topic.set", &key.namespace, key.name.as_str(), detail).await;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(find(&app, &key).await?)).into_response())
}

/// Delete a topic
///
/// Deletes the topic with its events, groups and parked events. Fails while a group has live members.
#[utoipa::path(delete, path = "/v1/topics/{topic}", tag = "topics", params(("topic" = Name, Path), NamespaceQuery),
    responses((status = 204), (status = 404, body = Problem, description = "The topic does not exist."),
        (status = 409, body = Problem, description = "A group has live members.")))]
pub(crate) async fn delete_topic(
    State(app): State<App>,
    by: AuditActor,
    PathParams(topic): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<StatusCode, Problem> {
    let key = TopicKey::new(within.namespace, topic);
    let deleted = app.store.delete_topic(&key).await.map_err(|error| match error.kind {
        // The store rejects a deletion only if a group has live members.
        ErrorKind::Request => {
            Problem::from_message(StatusCode::CONFLICT, "topic-in-use", &error.message).field("topic")
        }
        _ => Problem::from(error),
    });
    if !deleted? {
        return Err(no_such_topic(&key));
    }
    record_of(&app, &by, "topic.delete", &key.namespace, key.name.as_str(), String::new()).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Get the offsets of a topic
///
/// For each partition the offset before the first retained event, and the offset of the last event.
#[utoipa::path(get, path = "/v1/topics/{topic}/offsets", tag = "topics", params(("topic" = Name, Path), NamespaceQuery),
    responses((status = 200, body = TopicOffsets), (status = 404, body = Problem, description = "The topic does not exist.")))]
pub(crate) async fn get_topic_offsets(
    State(app): State<App>,
    PathParams(topic): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<TopicOffsets>, Problem> {
    let key = TopicKey::new(within.namespace, topic);
    let partitions = app.store.partition_offsets(&key).await?.ok_or_else(|| no_such_topic(&key))?;
    Ok(Json(TopicOffsets { partitions }))
}

/// Read a topic from the store.
pub(super) async fn find(app: &App, key: &TopicKey) -> Result<TopicView, Problem> {
    app.store.topic(key).await?.ok_or_else(|| no_such_topic(key))
}

/// Problem: the topic does not exist.
pub(crate) fn no_such_topic(key: &TopicKey) -> Problem {
    let detail = format!("topic {key} does not exist");
    let remedy =
        format!("create it: `tenure events topics create {}`, or PUT /v1/topics/{}", key.name, key.name);
    Problem::new(StatusCode::NOT_FOUND, "no-such-topic", detail).field("topic").remedy(remedy)
}

fn partitions_fixed(known: &TopicView, wanted: u32) -> Problem {
    let detail = format!(
        "topic {} has {} partitions; the number cannot be changed to {wanted}",
        known.key, known.settings.partitions
    );
    Problem::new(StatusCode::CONFLICT, "partitions-fixed", detail)
        .field("partitions")
        .remedy("send the current number, or create another topic and let its consumers read both")
}
