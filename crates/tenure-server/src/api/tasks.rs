//! Tasks: submit, list, explain, cancel and retry.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    self, ErrorKind, GrantScope, NewTask, Permission, QueueKey, StoreError, SubmitReceipt, TaskAction,
    TaskFilter, TaskId, TaskState, TaskView, WaitReason,
};
use tenure_core::rules::work::validate_submission;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::audit_writer::{AuditActor, record_of};
use super::claim::validate_task_id;
use super::election_actions::EmptyRequest;
use super::election_types;
use super::elections::validate_number;
use super::extract::{JsonBody, OptionalJsonBody, PathParams, QueryParams, RawJsonBody, parsed};
use super::sessions::{NamespaceQuery, invalid_value, validate_display_text};
use super::validate::submission_problem;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{RequiredPermission, Routes};

/// Default and maximum page size.
const PAGE: (u32, u32) = (50, 200);
/// Maximum size of a page in bytes, unless its first task alone is larger.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Number of tasks in the first read of a page. Later reads double it unless the tasks are large: a task may
/// have two megabytes, and a page of 200 of them would be too much.
const STEP: u32 = 8;
/// Size in bytes from which a read counts as large.
const LARGE_BYTES: usize = 256 * 1024;
/// Maximum number of task ids in one request.
const IDS_MAX: usize = 1000;
/// Maximum number of pages that one request cancels or retries with a queue filter.
const PAGES_MAX: usize = 25;

/// States that can be cancelled.
pub(crate) const CANCELLED: [TaskState; 5] =
    [TaskState::Waiting, TaskState::Scheduled, TaskState::Ready, TaskState::Blocked, TaskState::Claimed];
/// States that can be retried.
pub(crate) const RETRIED: [TaskState; 3] = [TaskState::Dead, TaskState::Cancelled, TaskState::Scheduled];

pub(crate) fn routes() -> Routes {
    let (read, admin) = (RequiredPermission::In(Permission::Read), RequiredPermission::In(Permission::Admin));
    Routes::new()
        .api_large(RequiredPermission::In(Permission::Claim), routes!(submit_tasks))
        .api(RequiredPermission::AnyCredential, routes!(list_tasks))
        .api(read, routes!(get_task))
        .api(read, routes!(explain_task))
        .api(admin, routes!(cancel_task))
        .api(admin, routes!(retry_task))
        .api(admin, routes!(cancel_tasks))
        .api(admin, routes!(retry_tasks))
}

/// One task or several.
#[derive(Debug, ToSchema, Serialize)]
#[serde(untagged)]
#[allow(dead_code, reason = "schema only: deserializing an untagged enum would lose the raw payload text")]
pub(crate) enum SubmitRequest {
    /// One task.
    One(Box<NewTask>),
    /// Several tasks: all are submitted or none. They can refer to each other as parents by index.
    Many(NewTasks),
}

/// Several tasks.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTasks {
    /// Tasks.
    tasks: Vec<NewTask>,
}

/// Receipts of several tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SubmittedTaskList {
    /// Receipt of each task, in request order.
    tasks: Vec<SubmitReceipt>,
}

/// Receipt of one task, or of several.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum SubmitResponse {
    /// Receipt of one task.
    One(SubmitReceipt),
    /// Receipts of several tasks.
    Many(SubmittedTaskList),
}

/// Query of tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListTasksQuery {
    /// Namespace; if omitted, every namespace that the principal may read.
    namespace: Option<Name>,
    /// Queue.
    queue: Option<Name>,
    /// States, separated by commas.
    #[param(example = "ready,claimed")]
    state: Option<String>,
    /// Kind.
    kind: Option<String>,
    /// Current or last worker.
    worker: Option<String>,
    /// Cursor: `next_cursor` of the previous page.
    cursor: Option<u64>,
    /// Maximum number of items.
    #[param(default = 50, minimum = 1, maximum = 200)]
    limit: Option<u32>,
}

/// Page of tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TaskList {
    /// Newest first.
    tasks: Vec<TaskView>,
    /// Cursor of the next page; `null` on the last page.
    next_cursor: Option<TaskId>,
}

/// Reasons why a task is not claimed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WhyResponse {
    /// Known reasons, most useful first.
    reasons: Vec<WaitReason>,
}

/// Selection of tasks: by id, or by queue and state.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"queue": "mail", "state": "dead"}))]
pub(crate) struct TaskSelection {
    /// Task ids, at most 1000.
    task_ids: Option<Vec<u64>>,
    /// Queue.
    queue: Option<Name>,
    /// States, separated by commas.
    state: Option<String>,
    /// Kind.
    kind: Option<String>,
    /// With a queue: continue before this task, `next_cursor` of the previous response.
    cursor: Option<u64>,
}

/// Result of a bulk action.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BulkTaskResponse {
    /// Ids of the affected tasks, including dependent ones.
    tasks: Vec<TaskId>,
    /// Whether more may match: repeat the request with `next_cursor` as `cursor`.
    has_more: bool,
    /// Cursor of the next call, if `has_more`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<TaskId>,
}

/// Submit tasks
///
/// Send one task as the body, or several as `{"tasks": […]}`; several are submitted all or none. Creates the
/// queue if necessary. If the queue already has the `idempotency_key`, the response has the id of the first
/// task and `created` is false.
#[utoipa::path(post, path = "/v1/queues/{queue}/tasks", tag = "tasks", params(("queue" = Name, Path), NamespaceQuery),
    request_body = SubmitRequest,
    responses((status = 200, body = SubmitResponse, description = "The task existed. Several tasks are returned as `{\"tasks\": […]}`."),
        (status = 201, body = SubmitResponse, description = "Submitted. Several tasks are returned as `{\"tasks\": […]}`.")))]
pub(crate) async fn submit_tasks(
    State(app): State<App>,
    PathParams(queue): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    RawJsonBody(body): RawJsonBody,
) -> Result<(StatusCode, Json<SubmitResponse>), Problem> {
    let queue = QueueKey::new(within.namespace, queue);
    let many = is_many(&body);
    let tasks = match many {
        true => parsed::<NewTasks>(&body)?.tasks,
        false => vec![parsed::<NewTask>(&body)?],
    };
    drop(body);
    if tasks.is_empty() {
        return Err(invalid_value("tasks", "the list of tasks is empty").remedy("send at least one task"));
    }
    let submission = port::Submission { queue, tasks };
    validate_submission(&submission).map_err(|error| submission_problem(&error, many))?;
    let port::Submission { queue, tasks } = submission;
    quota::check(&app, Object::Queue(&queue)).await?;
    let submitted = app.claims().await?.submit(&queue, tasks);
    let submitted =
        super::claim::with_timeout(&app, submitted).await.map_err(|problem| match problem.code {
            // After validation the store rejects only parents that do not exist or cannot complete.
            "rejected-by-store" => problem.field("parents"),
            _ => problem,
        })?;
    let status = match submitted.iter().any(|one| one.created) {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let body = match submitted.as_slice() {
        [one] if !many => SubmitResponse::One(*one),
        _ => SubmitResponse::Many(SubmittedTaskList { tasks: submitted }),
    };
    Ok((status, Json(body)))
}

/// Whether the body contains several tasks. Invalid JSON is reported later, when the body is parsed.
fn is_many(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Probe {
        #[allow(dead_code, reason = "only its presence matters")]
        tasks: IgnoredAny,
    }
    serde_json::from_slice::<Probe>(body).is_ok()
}

/// List tasks
///
/// Newest first; of one namespace, or of all that the principal may read. A page may have fewer items than
/// `limit` if they are large: continue while `next_cursor` is set.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(ListTasksQuery), responses((status = 200, body = TaskList)))]
pub(crate) async fn list_tasks(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<ListTasksQuery>,
) -> Result<Response, Problem> {
    let limit = validate_number("limit", query.limit, PAGE)?;
    for (field, text) in [("kind", &query.kind), ("worker", &query.worker)] {
        text.as_deref().map_or(Ok(()), |text| validate_display_text(field, text))?;
    }
    let mut filter = TaskFilter {
        namespace: query.namespace,
        queue: query.queue,
        states: states(query.state.as_deref(), "malformed-query", StatusCode::BAD_REQUEST)?,
        kind: query.kind,
        worker: query.worker,
        before: query.cursor.map(|cursor| TaskId(cursor.min(i64::MAX as u64))),
        limit,
    };
    let namespaces = match readable(&principal, filter.namespace.take())? {
        None => vec![None],
        Some(namespaces) => namespaces.into_iter().map(Some).collect(),
    };
    // Held until the response is serialized: the tasks are in memory twice by then.
    let _large = app.limits.large_response().await?;
    let mut page = Page { tasks: Vec::new(), more: false, limit: limit as usize };
    for namespace in namespaces {
        filter.namespace = namespace;
        page.read(&app, filter.clone()).await?;
    }
    let next_cursor = page.tasks.last().filter(|_| page.more).map(|task| task.id);
    let body = election_types::json(&TaskList { tasks: std::mem::take(&mut page.tasks), next_cursor });
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// Page under construction.
struct Page {
    /// Newest first.
    tasks: Vec<TaskView>,
    /// Whether older tasks exist.
    more: bool,
    limit: usize,
}

impl Page {
    /// Add the tasks that match a filter, until the page is full.
    async fn read(&mut self, app: &App, mut filter: TaskFilter) -> Result<(), Problem> {
        let (most, mut step) = (filter.limit, STEP);
        let mut read = 0;
        while read < most {
            filter.limit = step.min(most - read);
            let found = app.store.tasks(&filter).await?;
            let count = u32::try_from(found.len()).unwrap_or(u32::MAX);
            let bytes: usize = found.iter().map(size).sum();
            let Some(last) = found.last().map(|task| task.id) else { return Ok(()) };
            read += count;
            self.tasks.extend(found);
            self.fit();
            if count < filter.limit {
                return Ok(());
            }
            // Tasks older than the end of the page do not belong to it.
            if self.more && self.tasks.last().is_none_or(|end| end.id > last) {
                return Ok(());
            }
            step = if bytes > LARGE_BYTES { STEP } else { step.saturating_mul(2) };
            filter.before = Some(last);
        }
        // A full read: more may exist.
        self.more = true;
        Ok(())
    }

    /// Drop the tasks beyond the end of the page.
    fn fit(&mut self) {
        self.tasks.sort_by_key(|task| std::cmp::Reverse(task.id));
        let mut bytes = 0;
        let fit = self.tasks.iter().take(self.limit).take_while(|task| {
            bytes += size(task);
            bytes <= PAGE_BYTES
        });
        let count = fit.count().max(1);
        self.more |= count < self.tasks.len();
        self.tasks.truncate(count);
    }
}

/// Size of a task in bytes.
fn size(task: &TaskView) -> usize {
    task.payload.as_str().len() + task.result.as_ref().map_or(0, |output| output.as_str().len())
}

/// Namespaces that the principal may read; `None` means all.
fn readable(principal: &Principal, namespace: Option<Name>) -> Result<Option<Vec<Name>>, Problem> {
    if let Some(namespace) = namespace {
        principal.require(Permission::Read, Some(&namespace))?;
        return Ok(Some(vec![namespace]));
    }
    if principal.may(Permission::Read, None) {
        return Ok(None);
    }
    let named = principal.grants.iter().filter_map(|grant| match &grant.scope {
        GrantScope::Namespace(name) if grant.allows(Permission::Read, Some(name)) => Some(name.clone()),
        _ => None,
    });
    let mut namespaces: Vec<_> = named.collect();
    namespaces.sort();
    namespaces.dedup();
    Ok(Some(namespaces))
}

/// Get a task
///
/// State, worker, failures and result.
#[utoipa::path(get, path = "/v1/tasks/{task}", tag = "tasks", params(("task" = u64, Path), NamespaceQuery),
    responses((status = 200, body = TaskView)))]
pub(crate) async fn get_task(
    State(app): State<App>,
    PathParams(task): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<TaskView>, Problem> {
    find(&app, &within.namespace, task).await.map(Json)
}

/// Explain why a task is not claimed
///
/// For example: no worker with its tags, a pause, a limit, an unfinished parent, or a future start time.
#[utoipa::path(get, path = "/v1/tasks/{task}/why", tag = "tasks", params(("task" = u64, Path), NamespaceQuery),
    responses((status = 200, body = WhyResponse)))]
pub(crate) async fn explain_task(
    State(app): State<App>,
    PathParams(task): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<WhyResponse>, Problem> {
    let why = app.store.wait_reasons(&within.namespace, validate_task_id(task)?).await?;
    Ok(Json(WhyResponse { reasons: why.ok_or_else(|| no_such_task(task))? }))
}

/// Cancel a task
///
/// Cancels the task and its children. A worker that runs it is notified, and its settlement is rejected.
#[utoipa::path(post, path = "/v1/tasks/{task}/cancel", tag = "tasks", params(("task" = u64, Path), NamespaceQuery),
    request_body = Option<EmptyRequest>,
    responses((status = 200, body = BulkTaskResponse), (status = 409, body = Problem, description = "The task is already finished.")))]
pub(crate) async fn cancel_task(
    State(app): State<App>,
    by: AuditActor,
    PathParams(task): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<BulkTaskResponse>, Problem> {
    apply_to_one(&app, &by, &within.namespace, task, TaskAction::Cancel).await
}

/// Retry a task
///
/// Makes the task ready at once and restores all its attempts. A dead or cancelled task returns together with
/// the children that ended with it. A scheduled task no longer waits for its time.
#[utoipa::path(post, path = "/v1/tasks/{task}/retry", tag = "tasks", params(("task" = u64, Path), NamespaceQuery),
    request_body = Option<EmptyRequest>,
    responses((status = 200, body = BulkTaskResponse), (status = 409, body = Problem, description = "The state of the task does not allow a retry.")))]
pub(crate) async fn retry_task(
    State(app): State<App>,
    by: AuditActor,
    PathParams(task): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<BulkTaskResponse>, Problem> {
    apply_to_one(&app, &by, &within.namespace, task, TaskAction::Retry).await
}

/// Cancel several tasks
///
/// Select tasks by id, or by queue and state: `{"queue": "mail", "state": "ready"}`. While `has_more`, repeat
/// with `next_cursor` as `cursor`. If the request is interrupted, finished pages stay done and are in the
/// audit log.
#[utoipa::path(post, path = "/v1/tasks/cancel", tag = "tasks", params(NamespaceQuery), request_body = TaskSelection,
    responses((status = 200, body = BulkTaskResponse)))]
pub(crate) async fn cancel_tasks(
    State(app): State<App>,
    by: AuditActor,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(selection): JsonBody<TaskSelection>,
) -> Result<Json<BulkTaskResponse>, Problem> {
    apply_to_selection(&app, &by, &within.namespace, selection, TaskAction::Cancel).await
}

/// Retry several tasks
///
/// Select tasks by id, or by queue and state: `{"queue": "mail", "state": "dead"}`. While `has_more`, repeat
/// with `next_cursor` as `cursor`. If the request is interrupted, finished pages stay done and are in the
/// audit log.
#[utoipa::path(post, path = "/v1/tasks/retry", tag = "tasks", params(NamespaceQuery), request_body = TaskSelection,
    responses((status = 200, body = BulkTaskResponse)))]
pub(crate) async fn retry_tasks(
    State(app): State<App>,
    by: AuditActor,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(selection): JsonBody<TaskSelection>,
) -> Result<Json<BulkTaskResponse>, Problem> {
    apply_to_selection(&app, &by, &within.namespace, selection, TaskAction::Retry).await
}

async fn apply_to_one(
    app: &App,
    by: &AuditActor,
    namespace: &Name,
    task: u64,
    action: TaskAction,
) -> Result<Json<BulkTaskResponse>, Problem> {
    let id = validate_task_id(task)?;
    let tasks = apply_task_action(app, by, namespace, vec![id], action).await?;
    if tasks.is_empty() {
        let view = find(app, namespace, task).await?;
        let (code, remedy) = match action {
            TaskAction::Cancel => ("already-finished", "there is nothing to cancel"),
            TaskAction::Retry => {
                ("nothing-to-retry", "wait for the current attempt, or submit the task again")
            }
        };
        let detail = format!("task {task} is {}", view.state.as_str());
        return Err(Problem::new(StatusCode::CONFLICT, code, detail).field("task").remedy(remedy));
    }
    Ok(Json(BulkTaskResponse { tasks, has_more: false, next_cursor: None }))
}

async fn apply_to_selection(
    app: &App,
    by: &AuditActor,
    namespace: &Name,
    selection: TaskSelection,
    action: TaskAction,
) -> Result<Json<BulkTaskResponse>, Problem> {
    let filtered = selection.state.is_some() || selection.kind.is_some() || selection.cursor.is_some();
    let applied = match (selection.task_ids, selection.queue) {
        (Some(ids), None) if !filtered => apply_to_ids(app, by, namespace, ids, action).await?,
        (None, Some(queue)) => {
            let states =
                states(selection.state.as_deref(), "invalid-value", StatusCode::UNPROCESSABLE_ENTITY)?;
            if states.is_empty() {
                return Err(invalid_value("state", "a queue needs a state filter")
                    .remedy("send a state such as \"dead\" or \"ready,scheduled\""));
            }
            states.iter().try_for_each(|state| validate_action(action, *state))?;
            selection.kind.as_deref().map_or(Ok(()), |kind| validate_display_text("kind", kind))?;
            let filter = TaskFilter {
                namespace: Some(namespace.clone()),
                queue: Some(queue),
                states,
                kind: selection.kind,
                worker: None,
                before: selection.cursor.map(|before| TaskId(before.min(i64::MAX as u64))),
                limit: PAGE.1,
            };
            apply_to_matching(app, by, namespace, filter, action).await?
        }
        _ => {
            return Err(invalid_value("task_ids", "neither task ids nor a queue and a state are given")
                .remedy("send {\"task_ids\": [1, 2]} or {\"queue\": \"mail\", \"state\": \"dead\"}"));
        }
    };
    Ok(Json(applied))
}

/// Reject an action that has no effect on a state.
fn validate_action(action: TaskAction, state: TaskState) -> Result<(), Problem> {
    let (selection, word): (&[TaskState], _) = match action {
        TaskAction::Cancel => (&CANCELLED, "cancelled"),
        TaskAction::Retry => (&RETRIED, "retried"),
    };
    if selection.contains(&state) {
        return Ok(());
    }
    let states: Vec<_> = selection.iter().map(|state| state.as_str()).collect();
    let detail = format!("a task in state {} cannot be {word}", state.as_str());
    Err(invalid_value("state", detail).remedy(format!("choose among {}", states.join(", "))))
}

/// Apply an action to some tasks and record it, even if the client disconnects.
async fn apply_task_action(
    app: &App,
    by: &AuditActor,
    namespace: &Name,
    ids: Vec<TaskId>,
    action: TaskAction,
) -> Result<Vec<TaskId>, Problem> {
    let (app, by, namespace) = (app.clone(), by.clone(), namespace.clone());
    let entry = tokio::spawn(async move {
        let done = app.store.apply_task_action(&namespace, &ids, action).await;
        let written = match &done {
            Ok(tasks) => tasks.first().map(|first| (first, also(tasks.len() - 1))),
            Err(error) if error.kind == ErrorKind::Request => None,
            Err(_) => ids.first().map(|first| (first, format!("{}: outcome unknown", also(ids.len() - 1)))),
        };
        if let Some((first, detail)) = written {
            let detail = detail.trim_start_matches(": ").to_owned();
            record_of(&app, &by, audit_action(action), &namespace, &first.to_string(), detail).await;
        }
        done
    });
    match entry.await {
        Ok(done) => Ok(done?),
        Err(_) => Err(StoreError::new(ErrorKind::Other, "an action on tasks was interrupted").into()),
    }
}

async fn apply_to_ids(
    app: &App,
    by: &AuditActor,
    namespace: &Name,
    ids: Vec<u64>,
    action: TaskAction,
) -> Result<BulkTaskResponse, Problem> {
    if ids.is_empty() || ids.len() > IDS_MAX {
        return Err(invalid_value("task_ids", format!("{} task ids are out of range", ids.len()))
            .remedy(format!("send 1 to {IDS_MAX} ids, or a queue and a state")));
    }
    let ids = ids.into_iter().map(validate_task_id).collect::<Result<Vec<_>, _>>()?;
    Ok(BulkTaskResponse {
        tasks: apply_task_action(app, by, namespace, ids, action).await?,
        has_more: false,
        next_cursor: None,
    })
}

/// Work page by page, so that no statement takes long.
async fn apply_to_matching(
    app: &App,
    by: &AuditActor,
    namespace: &Name,
    mut filter: TaskFilter,
    action: TaskAction,
) -> Result<BulkTaskResponse, Problem> {
    let mut tasks = Vec::new();
    for _ in 0..PAGES_MAX {
        let page: Vec<_> = app.store.tasks(&filter).await?.into_iter().map(|task| task.id).collect();
        let Some(last) = page.last().copied() else {
            return Ok(BulkTaskResponse { tasks, has_more: false, next_cursor: None });
        };
        filter.before = Some(last);
        tasks.extend(apply_task_action(app, by, namespace, page, action).await?);
    }
    Ok(BulkTaskResponse { tasks, has_more: true, next_cursor: filter.before })
}

fn audit_action(action: TaskAction) -> &'static str {
    match action {
        TaskAction::Cancel => "task.cancel",
        TaskAction::Retry => "task.retry",
    }
}

fn also(others: usize) -> String {
    if others == 0 { String::new() } else { format!("and {others} more") }
}

/// Parse a list of states.
fn states(text: Option<&str>, code: &'static str, status: StatusCode) -> Result<Vec<TaskState>, Problem> {
    let states = text.unwrap_or_default().split(',').filter(|word| !word.is_empty());
    let state = |word: &str| {
        TaskState::from_name(word).ok_or_else(|| {
            let all = TaskState::ALL.map(TaskState::as_str).join(", ");
            Problem::new(status, code, format!("{word:?} is not a task state"))
                .field("state")
                .remedy(format!("choose among {all}"))
        })
    };
    states.map(state).collect()
}

/// Read a task from the store.
pub(super) async fn find(app: &App, namespace: &Name, task: u64) -> Result<TaskView, Problem> {
    app.store.task(namespace, validate_task_id(task)?).await?.ok_or_else(|| no_such_task(task))
}

/// Problem: the task does not exist.
pub(super) fn no_such_task(task: u64) -> Problem {
    let detail = format!("task {task} does not exist in this namespace, or was pruned");
    Problem::new(StatusCode::NOT_FOUND, "no-such-task", detail)
        .field("task")
        .remedy("GET /v1/tasks lists tasks; ?namespace= selects the namespace")
}
