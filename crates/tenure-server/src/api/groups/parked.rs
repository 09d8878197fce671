//! Parked events: awaiting retry, waiting behind an event of the same key, or dead letters.

use std::collections::HashSet;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    DeadLetterAction, ErrorKind, EventId, GroupKey, ParkedEvent, ParkedEventFilter, ParkedKey, Permission,
    StoreError,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::{MEMBERS, find, group_problem, key, no_such_group, record, validate_partition};
use crate::App;
use crate::api::audit_writer::AuditActor;
use crate::api::elections::validate_number;
use crate::api::events::validate_event_id;
use crate::api::extract::{JsonBody, PathParams, QueryParams};
use crate::api::sessions::{NamespaceQuery, invalid_value, validate_text};
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// Default and maximum page size.
const PAGE: (u32, u32) = (50, 1000);
/// Maximum size of a page in bytes, unless its first event alone is larger.
const PAGE_BYTES: usize = 8 * 1024 * 1024;
/// Number of events of the first read, and target size of later reads in bytes. A payload has up to 1 MiB.
const PART: u32 = 16;
const PART_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of event ids in one request.
const IDS_MAX: usize = 1000;
/// Maximum number of pages that one request replays or drops with `all`.
const PAGES_MAX: usize = 25;

pub(super) fn routes() -> Routes {
    let admin = RequiredPermission::In(Permission::Admin);
    Routes::new()
        .api(MEMBERS, routes!(list_parked_events))
        .api(MEMBERS, routes!(get_parked_event))
        .api(MEMBERS, routes!(list_parked_keys))
        .api(admin, routes!(replay_dead_letters))
        .api(admin, routes!(drop_dead_letters))
}

/// Query of parked events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ListParkedEventsQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Only dead letters.
    #[serde(default)]
    dead: bool,
    /// Only events of this partition.
    partition: Option<u32>,
    /// Only events with this key.
    key: Option<String>,
    /// Cursor: `next_cursor` of the previous page.
    cursor: Option<u64>,
    /// Maximum number of items.
    #[param(default = 50, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Page of parked events.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ParkedEventList {
    /// Sorted by id.
    events: Vec<ParkedEvent>,
    /// Cursor of the next page; `null` on the last page.
    next_cursor: Option<EventId>,
}

/// Parked keys of a partition.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ParkedKeyList {
    /// Each key with its first event.
    keys: Vec<ParkedKey>,
}

/// Selection of dead letters: by id, or all.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"event_ids": [17]}))]
pub(super) struct DeadLetterSelection {
    /// Event ids, at most 1000.
    #[schema(value_type = Option<Vec<u64>>)]
    event_ids: Option<Vec<u64>>,
    /// Select all dead letters.
    all: bool,
    /// With `all`: only this partition.
    partition: Option<u32>,
    /// With `all`: only this key.
    key: Option<String>,
    /// With `all`: continue after this event, `next_cursor` of the previous response.
    cursor: Option<u64>,
}

/// Result of a bulk action.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BulkEventResponse {
    /// Ids of the affected events.
    event_ids: Vec<EventId>,
    /// Whether more may match: repeat the request with `next_cursor` as `cursor`.
    has_more: bool,
    /// Cursor of the next call, if `has_more`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<EventId>,
}

/// List parked events
///
/// Events that failed and await a retry, events of the same key that wait behind them, and dead letters;
/// sorted by id. A page may have fewer items than `limit` if they are large: continue while `next_cursor` is
/// set.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/parked-events", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), ListParkedEventsQuery), responses((status = 200, body = ParkedEventList)))]
pub(super) async fn list_parked_events(
    State(app): State<App>,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(query): QueryParams<ListParkedEventsQuery>,
) -> Result<Json<ParkedEventList>, Problem> {
    let limit = validate_number("limit", query.limit, PAGE)?;
    let group = key(NamespaceQuery { namespace: query.namespace }, topic, group);
    query.key.as_deref().map_or(Ok(()), |key| validate_text("key", key))?;
    query.partition.map_or(Ok(()), |partition| validate_partition("partition", partition))?;
    let after = query.cursor.map(|cursor| EventId(cursor.min(i64::MAX as u64)));
    let mut filter = ParkedEventFilter {
        group,
        dead: query.dead,
        partition: query.partition,
        key: query.key,
        after,
        limit,
    };
    // Events of one key are sorted by offset, so a page reads all of them at once.
    let mut part = if filter.key.is_some() { limit } else { PART };
    let (mut events, mut more) = (Vec::new(), true);
    while more && events.len() < limit as usize && size(&events) < PAGE_BYTES {
        filter.limit = part.min(limit.saturating_sub(u32::try_from(events.len()).unwrap_or(limit)));
        let mut read = parked_events(&app, &filter).await?;
        more = read.len() >= filter.limit as usize;
        // Pages continue by id.
        read.sort_by_key(|parked| parked.event.id);
        filter.after = read.last().map(|last| last.event.id).or(filter.after);
        part = next_part(part, &read);
        events.extend(read);
    }
    if events.is_empty() && after.is_none() {
        find(&app, &filter.group).await?;
    }
    let mut bytes = 0;
    let fit = events.iter().take(limit as usize).take_while(|parked| {
        bytes += parked.event.payload.len() + parked.last_error.len();
        bytes <= PAGE_BYTES
    });
    let count = fit.count().max(1);
    more |= count < events.len();
    events.truncate(count);
    let next_cursor = events.last().filter(|_| more).map(|last| last.event.id);
    Ok(Json(ParkedEventList { events, next_cursor }))
}

/// Get a parked event
///
/// The event, its attempts, its last error, and the number of events of its key that wait behind it.
#[utoipa::path(get, path = "/v1/topics/{topic}/groups/{group}/parked-events/{event}", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), ("event" = u64, Path), NamespaceQuery),
    responses((status = 200, body = ParkedEvent), (status = 404, body = Problem, description = "The event is not parked.")))]
pub(super) async fn get_parked_event(
    State(app): State<App>,
    PathParams((topic, group, event)): PathParams<(Name, Name, u64)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<ParkedEvent>, Problem> {
    let group = key(within, topic, group);
    let id = validate_event_id(event)?;
    let filter = ParkedEventFilter::from(group, id);
    let found = parked_events(&app, &filter).await?.into_iter().find(|parked| parked.event.id == id);
    match found {
        Some(parked) => Ok(Json(parked)),
        None => {
            find(&app, &filter.group).await?;
            let detail = format!("event {event} is not parked in {}", filter.group);
            Err(Problem::new(StatusCode::NOT_FOUND, "event-not-parked", detail)
                .field("event")
                .remedy("it was processed, dropped or never failed; GET …/parked-events lists parked events"))
        }
    }
}

/// List the parked keys of a partition, each with its first event, for the holder of the partition.
#[utoipa::path(get, path = "/internal/v1/topics/{topic}/groups/{group}/partitions/{partition}/parked-keys", tag = "internal",
    params(("topic" = Name, Path), ("group" = Name, Path), ("partition" = u32, Path), NamespaceQuery),
    responses((status = 200, body = ParkedKeyList)))]
pub(super) async fn list_parked_keys(
    State(app): State<App>,
    PathParams((topic, group, partition)): PathParams<(Name, Name, u32)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<ParkedKeyList>, Problem> {
    validate_partition("partition", partition)?;
    let group = key(within, topic, group);
    match app.store.parked_keys(&group, partition).await {
        Ok(keys) => Ok(Json(ParkedKeyList { keys })),
        Err(error) => Err(group_problem(&app, &group, error).await),
    }
}

/// Replay dead letters
///
/// Retries each event with all attempts restored; the events of its key that wait behind it follow in order.
/// Select events by id, or all with `{"all": true}`. While `has_more`, repeat with `next_cursor` as `cursor`.
/// If the request is interrupted, finished pages stay done and are in the audit log.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/dead-letters/replay", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = DeadLetterSelection,
    responses((status = 200, body = BulkEventResponse)))]
pub(super) async fn replay_dead_letters(
    State(app): State<App>,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(selection): JsonBody<DeadLetterSelection>,
) -> Result<Json<BulkEventResponse>, Problem> {
    apply_action(&app, &by, &key(within, topic, group), selection, DeadLetterAction::Replay).await
}

/// Drop dead letters
///
/// Deletes each event from the group; the events of its key that wait behind it follow in order. Select
/// events as for a replay.
#[utoipa::path(post, path = "/v1/topics/{topic}/groups/{group}/dead-letters/drop", tag = "groups",
    params(("topic" = Name, Path), ("group" = Name, Path), NamespaceQuery), request_body = DeadLetterSelection,
    responses((status = 200, body = BulkEventResponse)))]
pub(super) async fn drop_dead_letters(
    State(app): State<App>,
    by: AuditActor,
    PathParams((topic, group)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(selection): JsonBody<DeadLetterSelection>,
) -> Result<Json<BulkEventResponse>, Problem> {
    apply_action(&app, &by, &key(within, topic, group), selection, DeadLetterAction::Drop).await
}

fn size(events: &[ParkedEvent]) -> usize {
    events.iter().map(|parked| parked.event.payload.len() + parked.last_error.len()).sum()
}

/// Number of events of the next read, so that its size is near the target.
fn next_part(part: u32, read: &[ParkedEvent]) -> u32 {
    match size(read) {
        bytes if bytes > PART_BYTES => (part / 2).max(1),
        bytes if bytes <= PART_BYTES / 4 => part.saturating_mul(2).min(PAGE.1),
        _ => part,
    }
}

async fn parked_events(app: &App, filter: &ParkedEventFilter) -> Result<Vec<ParkedEvent>, Problem> {
    match app.store.parked_events(filter).await {
        Ok(events) => Ok(events),
        Err(error) => Err(group_problem(app, &filter.group, error).await),
    }
}

async fn apply_action(
    app: &App,
    by: &AuditActor,
    group: &GroupKey,
    selection: DeadLetterSelection,
    action: DeadLetterAction,
) -> Result<Json<BulkEventResponse>, Problem> {
    let filtered = selection.partition.is_some() || selection.key.is_some() || selection.cursor.is_some();
    let applied = match selection.event_ids {
        Some(ids) if !selection.all && !filtered => {
            if ids.is_empty() || ids.len() > IDS_MAX {
                return Err(invalid_value("event_ids", format!("{} event ids are out of range", ids.len()))
                    .remedy(format!("send 1 to {IDS_MAX} ids, or {{\"all\": true}}")));
            }
            let ids = ids.into_iter().map(validate_event_id).collect::<Result<Vec<_>, _>>()?;
            BulkEventResponse {
                event_ids: apply_dead_letter_action(app, by, group, ids, action).await?,
                has_more: false,
                next_cursor: None,
            }
        }
        None if selection.all => {
            selection.key.as_deref().map_or(Ok(()), |key| validate_text("key", key))?;
            selection.partition.map_or(Ok(()), |partition| validate_partition("partition", partition))?;
            let after = selection.cursor.map(|after| EventId(after.min(i64::MAX as u64)));
            let filter = ParkedEventFilter {
                group: group.clone(),
                dead: true,
                partition: selection.partition,
                key: selection.key,
                after,
                limit: PAGE.1,
            };
            apply_to_matching(app, by, filter, action).await?
        }
        _ => {
            return Err(invalid_value("event_ids", "neither event ids nor `all` are given")
                .remedy("send {\"event_ids\": [17]}, or {\"all\": true} with an optional key or partition"));
        }
    };
    if applied.event_ids.is_empty() && app.store.group_assignment(group).await?.is_none() {
        return Err(no_such_group(group));
    }
    Ok(Json(applied))
}

/// Work page by page, so that no statement takes long.
async fn apply_to_matching(
    app: &App,
    by: &AuditActor,
    mut filter: ParkedEventFilter,
    action: DeadLetterAction,
) -> Result<BulkEventResponse, Problem> {
    let (mut events, mut named) = (Vec::new(), HashSet::new());
    // Events of one key are sorted by offset, not by id.
    let by_number = filter.key.is_none();
    filter.limit = if by_number { PART } else { PAGE.1 };
    for _ in 0..PAGES_MAX {
        let read = parked_events(app, &filter).await?;
        if by_number {
            filter.limit = next_part(filter.limit, &read);
        }
        let mut page: Vec<_> = read.into_iter().map(|parked| parked.event.id).collect();
        // An event that an earlier page replayed may have become a dead letter again. Skip it.
        page.retain(|id| named.insert(*id));
        let Some(last) = page.last().copied() else {
            return Ok(BulkEventResponse { event_ids: events, has_more: false, next_cursor: None });
        };
        // With a key no cursor is needed: events that are no longer dead do not match the filter again.
        filter.after = by_number.then_some(last).or(filter.after);
        events.extend(apply_dead_letter_action(app, by, &filter.group, page, action).await?);
    }
    Ok(BulkEventResponse { event_ids: events, has_more: true, next_cursor: filter.after })
}

/// Apply an action to some dead letters and record it, even if the client disconnects.
pub(crate) async fn apply_dead_letter_action(
    app: &App,
    by: &AuditActor,
    group: &GroupKey,
    ids: Vec<EventId>,
    action: DeadLetterAction,
) -> Result<Vec<EventId>, Problem> {
    let audit_action = match action {
        DeadLetterAction::Replay => "dead_letter.replay",
        DeadLetterAction::Drop => "dead_letter.drop",
    };
    let (app_too, by, group_too) = (app.clone(), by.clone(), group.clone());
    let entry = tokio::spawn(async move {
        let done = app_too.store.apply_dead_letter_action(&group_too, &ids, action).await;
        let written = match &done {
            Ok(events) if events.is_empty() => None,
            Ok(events) => Some(named(events)),
            Err(error) if error.kind == ErrorKind::Request => None,
            Err(_) => Some(format!("{}: outcome unknown", named(&ids))),
        };
        if let Some(detail) = written {
            record(&app_too, &by, audit_action, &group_too, detail).await;
        }
        done
    });
    match entry.await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(group_problem(app, group, error).await),
        Err(_) => Err(StoreError::new(ErrorKind::Other, "an action on dead letters was interrupted").into()),
    }
}

/// Describe some events for the audit log.
fn named(events: &[EventId]) -> String {
    let first: Vec<_> = events.iter().take(10).map(ToString::to_string).collect();
    match events.len().saturating_sub(first.len()) {
        0 => format!("events {}", first.join(" ")),
        more => format!("events {} and {more} more", first.join(" ")),
    }
}
