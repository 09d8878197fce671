//! Queues: settings, task counts and throughput.

mod watch;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    FinishedTask, KindStats, Pause, Permission, QueueKey, QueueSettings, QueueView, TaskState,
};
use tenure_core::rules::work::{stats, validate_queue};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::audit_writer::{AuditActor, record_of};
use super::election_actions::EmptyRequest;
use super::elections::{parse_cursor, validate_number};
use super::extract::{JsonBody, OptionalJsonBody, PathParams, QueryParams};
use super::sessions::{NamespaceQuery, actor, invalid_value, validate_display_text};
use super::validate::request_problem;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{RequiredPermission, Routes};

/// Default and maximum page size.
const PAGE: (u32, u32) = (100, 1000);
/// Default and maximum number of finished tasks in statistics.
const FINISHED: (u32, u32) = (1000, 10_000);
/// Maximum duration in a setting: ten years.
const LONGEST_MS: u64 = 10 * 366 * 24 * 3_600_000;
/// The end of the year 9999, in milliseconds since 1970.
const LATEST_MS: i64 = 253_402_300_799_000;

pub(crate) fn routes() -> Routes {
    let (read, admin) = (RequiredPermission::In(Permission::Read), RequiredPermission::In(Permission::Admin));
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(list_queues))
        .api(read, routes!(get_queue))
        .api(admin, routes!(put_queue))
        .api(admin, routes!(pause_queue))
        .api(admin, routes!(resume_queue))
        .api(admin, routes!(pause_namespace))
        .api(admin, routes!(resume_namespace))
        .api(read, routes!(get_queue_stats))
        .api(read, routes!(list_finished_tasks))
        .api(read, routes!(watch::watch_queue))
}

/// Query of a list of queues.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQueuesQuery {
    /// Namespace; if omitted, every namespace that the principal may read.
    namespace: Option<Name>,
    /// Maximum number of items.
    #[param(default = 100, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Cursor: `next_cursor` of the previous page.
    #[param(example = "default/mail")]
    cursor: Option<String>,
    /// Read the store instead of a snapshot that is up to one second old.
    #[serde(default)]
    consistent: bool,
}

/// Page of queues.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueList {
    /// Queues by namespace and name.
    queues: Vec<QueueView>,
    /// Cursor of the next page; `null` on the last page.
    #[schema(example = "default/mail")]
    next_cursor: Option<String>,
}

/// Query of finished tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct FinishedTasksQuery {
    /// Namespace.
    #[serde(default = "Name::default_namespace")]
    #[param(default = "default")]
    namespace: Name,
    /// Number of the last finished tasks to include.
    #[param(default = 1000, minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// Queue with its statistics.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct QueueStats {
    /// Queue.
    queue: QueueView,
    /// Number of tasks that are not claimed and not finished.
    #[schema(example = 12)]
    pending_count: u64,
    /// Wait and run times by kind, of the last finished tasks.
    kinds: Vec<KindStats>,
}

/// Finished tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FinishedTasks {
    /// Last finished tasks.
    #[schema(value_type = Vec<Object>)]
    finished: Vec<FinishedTask>,
}

/// Pause request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "the mail server is down"}))]
pub(crate) struct PauseRequest {
    /// Reason, shown to other operators.
    #[serde(default)]
    #[schema(max_length = 1024)]
    reason: String,
    /// Principal that the client acts for; the caller if omitted.
    on_behalf_of: Option<String>,
    /// Start of the pause in milliseconds since 1970; now if omitted.
    paused_at_ms: Option<i64>,
}

/// Whether anything changed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangeResponse {
    /// False if the object already had this state.
    pub(super) changed: bool,
}

/// List queues
///
/// Sorted by namespace and name, with the number of tasks by state.
#[utoipa::path(get, path = "/v1/queues", tag = "queues", params(ListQueuesQuery), responses((status = 200, body = QueueList)))]
pub(crate) async fn list_queues(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<ListQueuesQuery>,
) -> Result<Json<QueueList>, Problem> {
    let limit = validate_number("limit", query.limit, PAGE)? as usize;
    let after = query.cursor.as_deref().map(parse_cursor).transpose()?;
    principal.require_list(query.namespace.as_ref())?;
    let all: Vec<QueueView> = match query.consistent {
        true => app.store.queues(query.namespace.as_ref()).await?,
        false => app.queues.queues().await?.queues.values().map(|history| history.view.clone()).collect(),
    };
    let from = after.map(|key| QueueKey::new(key.namespace, key.name));
    let wanted = |view: &QueueView| {
        let here = match &query.namespace {
            Some(namespace) => view.key.namespace == *namespace,
            None => principal.may(Permission::Read, Some(&view.key.namespace)),
        };
        here && from.as_ref().is_none_or(|from| view.key > *from)
    };
    let mut rest: Vec<_> = all.into_iter().filter(wanted).collect();
    rest.sort_by(|a, b| a.key.cmp(&b.key));
    let mut rest = rest.into_iter();
    let queues: Vec<_> = rest.by_ref().take(limit).collect();
    let last = queues.last().filter(|_| rest.next().is_some());
    let next_cursor = last.map(|last| format!("{}/{}", last.key.namespace, last.key.name));
    Ok(Json(QueueList { queues, next_cursor }))
}

/// Get a queue
///
/// Settings, number of tasks by state, and the pause.
#[utoipa::path(get, path = "/v1/queues/{queue}", tag = "queues", params(("queue" = Name, Path), NamespaceQuery),
    responses((status = 200, body = QueueView), (status = 404, body = Problem, description = "The queue does not exist.")))]
pub(crate) async fn get_queue(
    State(app): State<App>,
    PathParams(queue): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<QueueView>, Problem> {
    find(&app, &QueueKey::new(within.namespace, queue)).await.map(Json)
}

/// Create or update a queue
///
/// Creates the queue or replaces its settings. Omitted settings get their defaults. The mode can be changed
/// at any time without losing or duplicating tasks.
#[utoipa::path(put, path = "/v1/queues/{queue}", tag = "queues", params(("queue" = Name, Path), NamespaceQuery),
    request_body = QueueSettings, responses((status = 200, body = QueueView)))]
pub(crate) async fn put_queue(
    State(app): State<App>,
    by: AuditActor,
    PathParams(queue): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(settings): JsonBody<QueueSettings>,
) -> Result<Json<QueueView>, Problem> {
    validate_queue(&settings).map_err(request_problem)?;
    let key = QueueKey::new(within.namespace, queue);
    quota::check(&app, Object::Queue(&key)).await?;
    app.store.set_queue(&key, &settings).await?;
    let detail = serde_json::to_string(&settings).unwrap_or_default();
    record_of(&app, &by, "queue.set", &key.namespace, key.name.as_str(), detail).await;
    find(&app, &key).await.map(Json)
}

/// Pause a queue
///
/// No task of the queue is claimed until it is resumed. Claimed tasks continue.
#[utoipa::path(post, path = "/v1/queues/{queue}/pause", tag = "queues", params(("queue" = Name, Path), NamespaceQuery),
    request_body = Option<PauseRequest>, responses((status = 200, body = ChangeResponse)))]
pub(crate) async fn pause_queue(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams(queue): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(pause): OptionalJsonBody<PauseRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    paused(&app, &principal, &by, &within.namespace, Some(&queue), Some(pause)).await
}

/// Resume a queue
///
/// Tasks of the queue can be claimed again.
#[utoipa::path(post, path = "/v1/queues/{queue}/resume", tag = "queues", params(("queue" = Name, Path), NamespaceQuery),
    request_body = Option<EmptyRequest>, responses((status = 200, body = ChangeResponse)))]
pub(crate) async fn resume_queue(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams(queue): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    paused(&app, &principal, &by, &within.namespace, Some(&queue), None).await
}

/// Pause a namespace
///
/// No task and no resource of the namespace is claimed until it is resumed.
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/pause", tag = "queues", params(("namespace" = Name, Path)),
    request_body = Option<PauseRequest>, responses((status = 200, body = ChangeResponse)))]
pub(crate) async fn pause_namespace(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams(namespace): PathParams<Name>,
    OptionalJsonBody(pause): OptionalJsonBody<PauseRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    paused(&app, &principal, &by, &namespace, None, Some(pause)).await
}

/// Resume a namespace
///
/// Queues that were paused individually stay paused.
#[utoipa::path(post, path = "/v1/namespaces/{namespace}/resume", tag = "queues", params(("namespace" = Name, Path)),
    request_body = Option<EmptyRequest>, responses((status = 200, body = ChangeResponse)))]
pub(crate) async fn resume_namespace(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams(namespace): PathParams<Name>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    paused(&app, &principal, &by, &namespace, None, None).await
}

/// Get queue statistics
///
/// Wait and run times by kind, of the last finished tasks.
#[utoipa::path(get, path = "/v1/queues/{queue}/stats", tag = "queues", params(("queue" = Name, Path), FinishedTasksQuery),
    responses((status = 200, body = QueueStats), (status = 404, body = Problem, description = "The queue does not exist.")))]
pub(crate) async fn get_queue_stats(
    State(app): State<App>,
    PathParams(queue): PathParams<Name>,
    QueryParams(how): QueryParams<FinishedTasksQuery>,
) -> Result<Json<QueueStats>, Problem> {
    let limit = validate_number("limit", how.limit, FINISHED)?;
    let key = QueueKey::new(how.namespace, queue);
    let queue = find(&app, &key).await?;
    let kinds = stats(&app.store.finished_tasks(&key, limit).await?);
    let states = [TaskState::Waiting, TaskState::Scheduled, TaskState::Ready, TaskState::Blocked];
    let pending_count = states.into_iter().map(|state| queue.count(state)).sum();
    Ok(Json(QueueStats { queue, pending_count, kinds }))
}

/// List the last finished tasks of a queue, for clients that compute their own statistics.
#[utoipa::path(get, path = "/internal/v1/queues/{queue}/finished-tasks", tag = "internal", params(("queue" = Name, Path), FinishedTasksQuery),
    responses((status = 200, body = FinishedTasks)))]
pub(crate) async fn list_finished_tasks(
    State(app): State<App>,
    PathParams(queue): PathParams<Name>,
    QueryParams(how): QueryParams<FinishedTasksQuery>,
) -> Result<Json<FinishedTasks>, Problem> {
    let limit = validate_number("limit", how.limit, FINISHED)?;
    let finished = app.store.finished_tasks(&QueueKey::new(how.namespace, queue), limit).await?;
    Ok(Json(FinishedTasks { finished }))
}

/// Read a queue from the store.
async fn find(app: &App, key: &QueueKey) -> Result<QueueView, Problem> {
    app.store.queue(key).await?.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-queue", format!("queue {key} does not exist"))
            .field("queue")
            .remedy("GET /v1/queues lists queues; PUT creates one, and so does the first task")
    })
}

async fn paused(
    app: &App,
    principal: &Principal,
    by: &AuditActor,
    namespace: &Name,
    queue: Option<&Name>,
    pause: Option<PauseRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    let pause = pause.map(|pause| pause.pause(app, principal)).transpose()?;
    let changed = app.store.set_queue_paused(namespace, queue, pause.as_ref()).await?;
    if changed {
        let (what, target) = queue.map_or(("namespace", namespace), |queue| ("queue", queue));
        let (verb, reason) = pause.map_or(("resume", String::new()), |pause| ("pause", pause.reason));
        record_of(app, by, &format!("{what}.{verb}"), namespace, target.as_str(), reason).await;
    }
    Ok(Json(ChangeResponse { changed }))
}

impl PauseRequest {
    /// Build the pause of a request.
    pub(super) fn pause(self, app: &App, principal: &Principal) -> Result<Pause, Problem> {
        validate_display_text("reason", &self.reason)?;
        let by = actor(principal, self.on_behalf_of)?;
        // Clamp to the years 1970 to 9999, the range that can be formatted.
        let at_ms = self.paused_at_ms.map_or_else(|| app.runtime.wall_ms(), |at| at.clamp(0, LATEST_MS));
        Ok(Pause { paused_by: by, reason: self.reason, paused_at_ms: at_ms })
    }
}

/// Reject durations that would overflow the store's timestamps.
pub(super) fn validate_duration(field: &str, ms: u64) -> Result<(), Problem> {
    if ms <= LONGEST_MS {
        return Ok(());
    }
    Err(invalid_value(field, format!("{ms} ms are out of range"))
        .remedy(format!("the maximum is ten years, {LONGEST_MS} ms")))
}
