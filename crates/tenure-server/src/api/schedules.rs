//! Schedules: definition, ticks and operator actions.
//!
//! Due schedules are fired by the servers themselves. There is no route for firing, because it requires the
//! lease of `tenure/scheduler`, and only servers can be candidates in the namespace `tenure`.

mod actions;
mod check;
mod params;
mod precondition;
mod ticks;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::ETAG;
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    GrantScope, Permission, ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleView, SetScheduleOutcome,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

pub(crate) use self::actions::{TickRange, backfill_range, trigger_now};
pub(crate) use self::check::preview;
pub(crate) use self::params::{PutScheduleRequest, set_schedule};
use self::precondition::{expected, tag};
use super::audit_writer::{AuditActor, record_of};
use super::elections::{parse_cursor, validate_number};
use super::extract::{JsonBody, PathParams, QueryParams};
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// Default and maximum page size.
const PAGE: (u32, u32) = (100, 1000);
/// Default and maximum number of upcoming ticks.
const NEXT: (u32, u32) = (10, 1000);

pub(crate) fn routes() -> Routes {
    let (read, admin) = (RequiredPermission::In(Permission::Read), RequiredPermission::In(Permission::Admin));
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(list_schedules))
        .api(RequiredPermission::AnyCredential, routes!(get_schedule_stats))
        .api(read, routes!(get_schedule))
        .api_large(admin, routes!(put_schedule))
        .api(admin, routes!(delete_schedule))
        .api_large(read, routes!(check::preview_schedule))
        .api(admin, routes!(actions::pause_schedule))
        .api(admin, routes!(actions::resume_schedule))
        .api_large(admin, routes!(actions::trigger_schedule))
        .api_large(admin, routes!(actions::backfill_schedule))
        .api(read, routes!(ticks::list_ticks))
}

/// Query of a list of schedules.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSchedulesQuery {
    /// Namespace; if omitted, every namespace that the principal may read.
    namespace: Option<Name>,
    /// Only schedules with this source.
    source: Option<String>,
    /// Maximum number of items.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Cursor: `next_cursor` of the previous page.
    #[param(example = "default/nightly")]
    cursor: Option<String>,
}

/// Page of schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleList {
    /// Schedules by namespace and name.
    schedules: Vec<ScheduleView>,
    /// Cursor of the next page; `null` on the last page.
    #[schema(example = "default/nightly")]
    next_cursor: Option<String>,
}

/// Statistics of schedules.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleStatsList {
    /// Statistics by namespace.
    namespaces: Vec<ScheduleStats>,
}

/// Query of one schedule.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Number of upcoming ticks in the response.
    #[param(default = 10, minimum = 1, maximum = 1000)]
    upcoming: Option<u32>,
}

/// Namespace and precondition of a change.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetScheduleQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Precondition: `new` (the schedule must not exist), a version number, or `any`. Same as `If-None-Match:
    /// *` and `If-Match`.
    #[param(example = "any")]
    if_version: Option<String>,
}

/// Upcoming tick.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct UpcomingTick {
    /// Tick.
    pub(crate) tick_at_ms: i64,
    /// Tick in the time zone of the schedule.
    #[schema(example = "2026-03-29T03:30:00+02:00")]
    pub(crate) local_time: String,
    /// When the tick is due, including jitter.
    pub(crate) due_at_ms: i64,
}

/// Schedule with its upcoming ticks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleResponse {
    #[serde(flatten)]
    view: ScheduleView,
    /// Upcoming ticks, including missed ticks to which the misfire policy was not applied yet. A paused
    /// schedule does not fire them.
    upcoming: Vec<UpcomingTick>,
}

/// Outcome of setting a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PutOutcome {
    /// The schedule is new.
    Created,
    /// The schedule was changed.
    Updated,
    /// The schedule already had this definition.
    Unchanged,
}

/// Schedule after the change.
#[derive(Serialize, ToSchema)]
pub(crate) struct PutScheduleResponse {
    /// Outcome.
    outcome: PutOutcome,
    /// New secret. It is never shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
    #[serde(flatten)]
    schedule: ScheduleResponse,
}

/// List schedules
///
/// Sorted by namespace and name, with the next tick and the number of ticks by outcome.
#[utoipa::path(get, path = "/v1/schedules", tag = "schedules", params(ListSchedulesQuery), responses((status = 200, body = ScheduleList)))]
pub(crate) async fn list_schedules(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<ListSchedulesQuery>,
) -> Result<Json<ScheduleList>, Problem> {
    let limit = validate_number("limit", query.limit, PAGE)?;
    let after = query.cursor.as_deref().map(parse_cursor).transpose()?;
    let after = after.map(|key| ScheduleKey::new(key.namespace, key.name));
    let mut schedules = Vec::new();
    for namespace in readable(&principal, query.namespace)? {
        let rest = limit as usize + 1 - schedules.len();
        // Skip namespaces before the cursor.
        let passed = |after: &ScheduleKey| namespace.as_ref().is_some_and(|name| *name < after.namespace);
        if rest == 0 || after.as_ref().is_some_and(passed) {
            continue;
        }
        let filter = ScheduleFilter {
            namespace,
            source: query.source.clone(),
            after: after.clone(),
            limit: u32::try_from(rest).unwrap_or(limit),
        };
        schedules.extend(app.store.schedules(&filter).await?);
    }
    let more = schedules.len() > limit as usize;
    schedules.truncate(limit as usize);
    let last = schedules.last().filter(|_| more).map(ScheduleView::key);
    let next_cursor = last.map(|last| format!("{}/{}", last.namespace, last.name));
    Ok(Json(ScheduleList { schedules, next_cursor }))
}

/// Get schedule statistics
///
/// By namespace: number of schedules, of paused, failing and overdue ones, and the last firing.
#[utoipa::path(get, path = "/v1/schedule-stats", tag = "schedules", responses((status = 200, body = ScheduleStatsList)))]
pub(crate) async fn get_schedule_stats(
    State(app): State<App>,
    principal: Principal,
) -> Result<Json<ScheduleStatsList>, Problem> {
    let mut namespaces = app.store.schedule_stats().await?;
    namespaces.retain(|stats| principal.may(Permission::Read, Some(&stats.namespace)));
    Ok(Json(ScheduleStatsList { namespaces }))
}

/// Get a schedule
///
/// Definition, tick state, counters and upcoming ticks. `ETag` is the version.
#[utoipa::path(get, path = "/v1/schedules/{schedule}", tag = "schedules", params(("schedule" = Name, Path), ScheduleQuery),
    responses((status = 200, body = ScheduleResponse, headers(("etag" = String))),
        (status = 404, body = Problem, description = "The schedule does not exist.")))]
pub(crate) async fn get_schedule(
    State(app): State<App>,
    PathParams(schedule): PathParams<Name>,
    QueryParams(ahead): QueryParams<ScheduleQuery>,
) -> Result<Response, Problem> {
    let next = validate_number("upcoming", ahead.upcoming, NEXT)?;
    let view = find(&app, &ScheduleKey::new(ahead.namespace, schedule)).await?;
    let tag = tag(view.version);
    Ok(([(ETAG, tag)], Json(ScheduleResponse::of(view, next as usize))).into_response())
}

/// Create or update a schedule
///
/// Creates the schedule or replaces its definition. Omitted fields get their defaults. If expression, time
/// zone and bounds are unchanged, the schedule continues from its last tick; otherwise it starts with the
/// first tick from now on. With `If-Match`, `If-None-Match: *` or `if_version` the change is made only if the
/// schedule still has that version, so concurrent edits do not overwrite each other.
///
/// Webhooks are signed: send a `secret`, or the server creates one and returns it in this response only.
#[utoipa::path(put, path = "/v1/schedules/{schedule}", tag = "schedules",
    params(("schedule" = Name, Path), SetScheduleQuery,
        ("if-match" = Option<String>, Header, description = "`ETag` of the version that the client has read; `*` for any version"),
        ("if-none-match" = Option<String>, Header, description = "`*`: only if the schedule does not exist")),
    request_body = PutScheduleRequest,
    responses((status = 200, body = PutScheduleResponse, headers(("etag" = String))),
        (status = 201, body = PutScheduleResponse, description = "Created.", headers(("etag" = String))),
        (status = 412, body = Problem, description = "The precondition failed; `ETag` has the current version.")))]
pub(crate) async fn put_schedule(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    headers: HeaderMap,
    PathParams(schedule): PathParams<Name>,
    QueryParams(query): QueryParams<SetScheduleQuery>,
    JsonBody(body): JsonBody<PutScheduleRequest>,
) -> Result<Response, Problem> {
    let key = ScheduleKey::new(query.namespace, schedule);
    let expect = expected(&app, &key, &headers, query.if_version.as_deref()).await?;
    let (set, secret) = set_schedule(&app, &principal, &by, &key, body, expect).await?;
    let (status, outcome) = match set {
        SetScheduleOutcome::Created(_) => (StatusCode::CREATED, PutOutcome::Created),
        SetScheduleOutcome::Updated(_) => (StatusCode::OK, PutOutcome::Updated),
        SetScheduleOutcome::Unchanged(_) => (StatusCode::OK, PutOutcome::Unchanged),
        SetScheduleOutcome::Conflict(version) => return Ok(conflict(&key, version)),
    };
    let view = find(&app, &key).await?;
    let tag = tag(view.version);
    let defined =
        PutScheduleResponse { outcome, secret, schedule: ScheduleResponse::of(view, NEXT.0 as usize) };
    Ok((status, [(ETAG, tag)], Json(defined)).into_response())
}

/// Delete a schedule
///
/// Deletes the schedule and its ticks. Published events and submitted tasks stay; webhooks that were not sent
/// yet are cancelled.
#[utoipa::path(delete, path = "/v1/schedules/{schedule}", tag = "schedules",
    params(("schedule" = Name, Path), SetScheduleQuery,
        ("if-match" = Option<String>, Header, description = "`ETag` of the version that the client has read; `*` for any version")),
    responses((status = 204), (status = 404, body = Problem, description = "The schedule does not exist."),
        (status = 412, body = Problem, description = "The precondition failed; `ETag` has the current version.")))]
pub(crate) async fn delete_schedule(
    State(app): State<App>,
    by: AuditActor,
    headers: HeaderMap,
    PathParams(schedule): PathParams<Name>,
    QueryParams(query): QueryParams<SetScheduleQuery>,
) -> Result<Response, Problem> {
    let key = ScheduleKey::new(query.namespace, schedule);
    let version = expected(&app, &key, &headers, query.if_version.as_deref()).await?;
    let version = precondition::version(version)?;
    match app.store.delete_schedule(&key, version).await? {
        None => Err(no_such_schedule(&key)),
        Some(false) => {
            let now = app.store.schedule(&key).await?;
            Ok(conflict(&key, now.map(|view| view.version)))
        }
        Some(true) => {
            record(&app, &by, "schedule.delete", &key, String::new()).await;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
    }
}

impl ScheduleResponse {
    fn of(view: ScheduleView, next: usize) -> ScheduleResponse {
        let upcoming = upcoming(&view, next);
        ScheduleResponse { view, upcoming }
    }
}

/// Upcoming ticks of a schedule.
fn upcoming(view: &ScheduleView, most: usize) -> Vec<UpcomingTick> {
    let timetable = view.definition.timetable(&view.namespace);
    let shown = |at_ms: i64| UpcomingTick {
        tick_at_ms: at_ms,
        local_time: view.definition.time_zone.format_local(at_ms),
        due_at_ms: timetable.due_at(at_ms),
    };
    view.upcoming(most).into_iter().map(shown).collect()
}

/// Read a schedule from the store.
pub(crate) async fn find(app: &App, key: &ScheduleKey) -> Result<ScheduleView, Problem> {
    app.store.schedule(key).await?.ok_or_else(|| no_such_schedule(key))
}

/// Problem: the schedule does not exist.
pub(crate) fn no_such_schedule(key: &ScheduleKey) -> Problem {
    let remedy =
        format!("GET /v1/schedules lists schedules; PUT /v1/schedules/{} creates this one", key.name);
    Problem::new(StatusCode::NOT_FOUND, "no-such-schedule", format!("schedule {key} does not exist"))
        .field("schedule")
        .remedy(remedy)
}

/// Problem: the precondition failed.
pub(crate) fn changed_meanwhile(key: &ScheduleKey, version: Option<u64>) -> Problem {
    let (detail, remedy) = match version {
        Some(version) => (
            format!("schedule {key} has version {version}, not the expected one; nothing was changed"),
            "read the schedule again and send its `ETag` as `If-Match`",
        ),
        None => (
            format!("schedule {key} does not exist, but a version was expected; nothing was changed"),
            "omit `If-Match` to create it",
        ),
    };
    Problem::new(StatusCode::PRECONDITION_FAILED, "schedule-changed", detail)
        .field("if_version")
        .remedy(remedy)
}

fn conflict(key: &ScheduleKey, version: Option<u64>) -> Response {
    let mut response = changed_meanwhile(key, version).into_response();
    if let Some(version) = version {
        response.headers_mut().insert(ETAG, tag(version));
    }
    response
}

/// Namespaces whose schedules the principal may read, in order; `None` means all.
fn readable(principal: &Principal, only: Option<Name>) -> Result<Vec<Option<Name>>, Problem> {
    if let Some(namespace) = only {
        principal.require(Permission::Read, Some(&namespace))?;
        return Ok(vec![Some(namespace)]);
    }
    if principal.may(Permission::Read, None) {
        return Ok(vec![None]);
    }
    let granted = principal.grants.iter().filter_map(|grant| match &grant.scope {
        GrantScope::Namespace(name) => Some(name.clone()),
        GrantScope::Everywhere => None,
    });
    let mut granted: Vec<Name> = granted.filter(|name| principal.may(Permission::Read, Some(name))).collect();
    granted.sort();
    granted.dedup();
    Ok(granted.into_iter().map(Some).collect())
}

/// Record a change of a schedule.
async fn record(app: &App, by: &AuditActor, action: &str, key: &ScheduleKey, detail: String) {
    record_of(app, by, action, &key.namespace, key.name.as_str(), detail).await;
}
