//! Tasks: submitted, looked at, called off and tried again.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{
    self, NewTask, Order, QueueKey, Realm, StoreError, Submitted, TaskFilter, TaskId, TaskState, TaskView,
    Trouble, Verb, Why,
};
use tenure_core::claim::check;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::claims::plausible_task;
use super::deeds::{By, record_of};
use super::elections::number;
use super::given::{At, Given, In, MaybeGiven, Unread, parsed};
use super::operate::Nothing;
use super::sense::of_submission;
use super::sessions::{Within, short, unfit};
use super::shape;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{Need, Routes};

/// How many tasks are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (50, 200);
/// How large a page is at most, unless its first task alone is larger.
const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// How many tasks of a page are read first. The next are twice as many, unless they are large: a task may have two
/// megabytes, and two hundred of them are more than a page.
const STEP: u32 = 8;
/// From how many bytes on tasks that are read together are large.
const LARGE_BYTES: usize = 256 * 1024;
/// The most tasks that one request names.
const IDS_MAX: usize = 1000;
/// How many pages of tasks one request cancels or retries, where it names them by their queue.
const PAGES_MAX: usize = 25;

/// What can be called off.
pub(crate) const CANCELLED: [TaskState; 5] =
    [TaskState::Waiting, TaskState::Scheduled, TaskState::Ready, TaskState::Held, TaskState::Claimed];
/// What can be tried again.
pub(crate) const RETRIED: [TaskState; 3] = [TaskState::Dead, TaskState::Cancelled, TaskState::Scheduled];

pub(crate) fn routes() -> Routes {
    let (read, admin) = (Need::In(Verb::Read), Need::In(Verb::Admin));
    Routes::new()
        .api_large(Need::In(Verb::Claim), routes!(submit))
        .api(Need::Known, routes!(list))
        .api(read, routes!(show))
        .api(read, routes!(why))
        .api(admin, routes!(cancel))
        .api(admin, routes!(retry))
        .api(admin, routes!(cancel_many))
        .api(admin, routes!(retry_many))
}

/// One task, or many.
#[derive(Debug, ToSchema, Serialize)]
#[serde(untagged)]
#[allow(
    dead_code,
    reason = "read by hand, since what is read into an untagged enum can not keep its payload as text"
)]
pub(crate) enum Submission {
    /// One.
    One(Box<NewTask>),
    /// Many: all are submitted, or none. They may name one another as parents, by their place.
    Many(NewTasks),
}

/// Many tasks.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewTasks {
    /// The tasks.
    tasks: Vec<NewTask>,
}

/// What came of many.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SubmittedTasks {
    /// For each task, in their order.
    tasks: Vec<Submitted>,
}

/// What came of one, or of many.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum SubmittedBody {
    /// Of one.
    One(Submitted),
    /// Of many.
    Many(SubmittedTasks),
}

/// Which tasks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// The tenant; without one, all that you may read.
    namespace: Option<Name>,
    /// The queue.
    queue: Option<Name>,
    /// Where they stand; several separated by commas.
    #[param(example = "ready,claimed")]
    state: Option<String>,
    /// Their kind.
    kind: Option<String>,
    /// Who has them, or had them last.
    worker: Option<String>,
    /// Go on before this one: `next` of the page before.
    before: Option<u64>,
    /// How many at most.
    #[param(default = 50, minimum = 1, maximum = 200)]
    limit: Option<u32>,
}

/// A page of tasks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tasks {
    /// The newest first.
    tasks: Vec<TaskView>,
    /// What to give as `before` to get the next page; `null` if this is the last one.
    next: Option<TaskId>,
}

/// What keeps a task from being claimed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Reasons {
    /// Everything that is known, the most useful first.
    why: Vec<Why>,
}

/// Which tasks are meant: by their numbers, or all of a queue that stand somewhere.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"queue": "mail", "state": "dead"}))]
pub(crate) struct Those {
    /// Their numbers, at most 1000.
    ids: Option<Vec<u64>>,
    /// Their queue.
    queue: Option<Name>,
    /// Where they stand; several separated by commas.
    state: Option<String>,
    /// Their kind.
    kind: Option<String>,
    /// Of a queue, go on before this one: `next` of the answer before.
    before: Option<u64>,
}

/// What was done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Ordered {
    /// Tasks on which it had an effect, those that shared a fate included.
    tasks: Vec<TaskId>,
    /// Whether there may be more: send the same again, with `next` as `before`.
    more: bool,
    /// Where to go on, if there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<TaskId>,
}

/// Submit tasks
///
/// One (a task as the body), or many (`{"tasks": […]}`), all or none. A queue that is not there is made. A task with a `key` that is
/// known in its queue is not submitted again: the answer names the first one, and says that it is not `new`.
#[utoipa::path(post, path = "/v1/queues/{queue}/tasks", tag = "tasks", params(("queue" = Name, Path), Within),
    request_body = Submission,
    responses((status = 200, body = SubmittedBody, description = "It was there already. Many are answered with `{\"tasks\": […]}`."),
        (status = 201, body = SubmittedBody, description = "It is submitted. Many are answered with `{\"tasks\": […]}`.")))]
pub(crate) async fn submit(
    State(app): State<App>,
    At(queue): At<Name>,
    In(within): In<Within>,
    Unread(body): Unread,
) -> Result<(StatusCode, Json<SubmittedBody>), Problem> {
    let queue = QueueKey::new(within.namespace, queue);
    let many = is_many(&body);
    let tasks = match many {
        true => parsed::<NewTasks>(&body)?.tasks,
        false => vec![parsed::<NewTask>(&body)?],
    };
    drop(body);
    if tasks.is_empty() {
        return Err(unfit("tasks", "there is nothing to submit").remedy("send one task at least"));
    }
    let submission = port::Submission { queue, tasks };
    check(&submission).map_err(|error| of_submission(&error, many))?;
    let port::Submission { queue, tasks } = submission;
    quota::check(&app, Object::Queue(&queue)).await?;
    let submitted = app.claims().await?.submit(&queue, tasks);
    let submitted = super::claims::within(&app, submitted).await.map_err(|problem| match problem.code {
        // All that a store has against what passed the checks is a parent that is not there, or never will be done.
        "refused-by-store" => problem.field("parents"),
        _ => problem,
    })?;
    let status = match submitted.iter().any(|one| one.new) {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let body = match submitted.as_slice() {
        [one] if !many => SubmittedBody::One(*one),
        _ => SubmittedBody::Many(SubmittedTasks { tasks: submitted }),
    };
    Ok((status, Json(body)))
}

/// Whether the body has several tasks. What is no JSON is told when it is read.
fn is_many(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Probe {
        #[allow(dead_code, reason = "that it is there is all that matters")]
        tasks: IgnoredAny,
    }
    serde_json::from_slice::<Probe>(body).is_ok()
}

/// List tasks
///
/// The newest first; of one namespace, or of all that you may read. A page may have fewer than `limit`, if they are large: go on
/// while there is a `next`.
#[utoipa::path(get, path = "/v1/tasks", tag = "tasks", params(Which), responses((status = 200, body = Tasks)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(which): In<Which>,
) -> Result<Response, Problem> {
    let limit = number("limit", which.limit, PAGE)?;
    for (field, text) in [("kind", &which.kind), ("worker", &which.worker)] {
        text.as_deref().map_or(Ok(()), |text| short(field, text))?;
    }
    let mut filter = TaskFilter {
        namespace: which.namespace,
        queue: which.queue,
        states: states(which.state.as_deref(), "malformed-query", StatusCode::BAD_REQUEST)?,
        kind: which.kind,
        worker: which.worker,
        before: which.before.map(|before| TaskId(before.min(i64::MAX as u64))),
        limit,
    };
    let namespaces = match readable(&principal, filter.namespace.take())? {
        None => vec![None],
        Some(namespaces) => namespaces.into_iter().map(Some).collect(),
    };
    // Until the answer is made: the tasks are in memory twice by then.
    let _large = app.limits.large_answer().await?;
    let mut page = Page { tasks: Vec::new(), more: false, limit: limit as usize };
    for namespace in namespaces {
        filter.namespace = namespace;
        page.read(&app, filter.clone()).await?;
    }
    let next = page.tasks.last().filter(|_| page.more).map(|task| task.id);
    let body = shape::json(&Tasks { tasks: std::mem::take(&mut page.tasks), next });
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// A page of tasks, being put together.
struct Page {
    /// The newest first.
    tasks: Vec<TaskView>,
    /// Whether there are older ones.
    more: bool,
    limit: usize,
}

impl Page {
    /// Adds the tasks that pass a filter, as far as they are new enough and fit.
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
            // Everything older than the end of the page is not shown.
            if self.more && self.tasks.last().is_none_or(|end| end.id > last) {
                return Ok(());
            }
            step = if bytes > LARGE_BYTES { STEP } else { step.saturating_mul(2) };
            filter.before = Some(last);
        }
        // As many as were asked for: there may be more.
        self.more = true;
        Ok(())
    }

    /// Leaves away what is beyond the page.
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

/// How many bytes a task carries.
fn size(task: &TaskView) -> usize {
    task.payload.as_str().len() + task.output.as_ref().map_or(0, |output| output.as_str().len())
}

/// Where somebody may look: `None` if everywhere.
fn readable(principal: &Principal, namespace: Option<Name>) -> Result<Option<Vec<Name>>, Problem> {
    if let Some(namespace) = namespace {
        principal.must(Verb::Read, Some(&namespace))?;
        return Ok(Some(vec![namespace]));
    }
    if principal.may(Verb::Read, None) {
        return Ok(None);
    }
    let named = principal.grants.iter().filter_map(|grant| match &grant.realm {
        Realm::Namespace(name) if grant.allows(Verb::Read, Some(name)) => Some(name.clone()),
        _ => None,
    });
    let mut namespaces: Vec<_> = named.collect();
    namespaces.sort();
    namespaces.dedup();
    Ok(Some(namespaces))
}

/// Show a task
///
/// Where it stands, who has it, what went wrong before and what came of it.
#[utoipa::path(get, path = "/v1/tasks/{task}", tag = "tasks", params(("task" = u64, Path), Within),
    responses((status = 200, body = TaskView)))]
pub(crate) async fn show(
    State(app): State<App>,
    At(task): At<u64>,
    In(within): In<Within>,
) -> Result<Json<TaskView>, Problem> {
    find(&app, &within.namespace, task).await.map(Json)
}

/// Ask why a task waits
///
/// What keeps it from being claimed: no worker with its tags, a pause, a limit, a parent that is not completed, a time that has
/// not come.
#[utoipa::path(get, path = "/v1/tasks/{task}/why", tag = "tasks", params(("task" = u64, Path), Within),
    responses((status = 200, body = Reasons)))]
pub(crate) async fn why(
    State(app): State<App>,
    At(task): At<u64>,
    In(within): In<Within>,
) -> Result<Json<Reasons>, Problem> {
    let why = app.store.why(&within.namespace, plausible_task(task)?).await?;
    Ok(Json(Reasons { why: why.ok_or_else(|| none(task))? }))
}

/// Cancel a task
///
/// Calls it off, and with it all that wait for it. A worker that has it is told, and refused if it goes on.
#[utoipa::path(post, path = "/v1/tasks/{task}/cancel", tag = "tasks", params(("task" = u64, Path), Within),
    request_body = Option<Nothing>,
    responses((status = 200, body = Ordered), (status = 409, body = Problem, description = "It is finished already.")))]
pub(crate) async fn cancel(
    State(app): State<App>,
    by: By,
    At(task): At<u64>,
    In(within): In<Within>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Ordered>, Problem> {
    order_one(&app, &by, &within.namespace, task, Order::Cancel).await
}

/// Retry a task
///
/// Gives it another attempt at once, with as many to follow as it had at first: a dead or cancelled one comes back, with the
/// children that shared its fate; a scheduled one need not wait.
#[utoipa::path(post, path = "/v1/tasks/{task}/retry", tag = "tasks", params(("task" = u64, Path), Within),
    request_body = Option<Nothing>,
    responses((status = 200, body = Ordered), (status = 409, body = Problem, description = "There is nothing to retry.")))]
pub(crate) async fn retry(
    State(app): State<App>,
    by: By,
    At(task): At<u64>,
    In(within): In<Within>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Ordered>, Problem> {
    order_one(&app, &by, &within.namespace, task, Order::Retry).await
}

/// Cancel many tasks
///
/// By their numbers, or all of a queue that stand somewhere: `{"queue": "mail", "state": "ready"}`. While `more`, send it again
/// with `next` as `before`. If the request breaks off, what was done until then was done, and is in the audit.
#[utoipa::path(post, path = "/v1/tasks/cancel", tag = "tasks", params(Within), request_body = Those,
    responses((status = 200, body = Ordered)))]
pub(crate) async fn cancel_many(
    State(app): State<App>,
    by: By,
    In(within): In<Within>,
    Given(those): Given<Those>,
) -> Result<Json<Ordered>, Problem> {
    order_many(&app, &by, &within.namespace, those, Order::Cancel).await
}

/// Retry many tasks
///
/// By their numbers, or all of a queue that stand somewhere: `{"queue": "mail", "state": "dead"}`. While `more`, send it again
/// with `next` as `before`. If the request breaks off, what was done until then was done, and is in the audit.
#[utoipa::path(post, path = "/v1/tasks/retry", tag = "tasks", params(Within), request_body = Those,
    responses((status = 200, body = Ordered)))]
pub(crate) async fn retry_many(
    State(app): State<App>,
    by: By,
    In(within): In<Within>,
    Given(those): Given<Those>,
) -> Result<Json<Ordered>, Problem> {
    order_many(&app, &by, &within.namespace, those, Order::Retry).await
}

async fn order_one(
    app: &App,
    by: &By,
    namespace: &Name,
    task: u64,
    order: Order,
) -> Result<Json<Ordered>, Problem> {
    let id = plausible_task(task)?;
    let tasks = ordered(app, by, namespace, vec![id], order).await?;
    if tasks.is_empty() {
        let view = find(app, namespace, task).await?;
        let (code, remedy) = match order {
            Order::Cancel => ("finished-already", "nothing needs to be called off"),
            Order::Retry => ("nothing-to-retry", "wait for the attempt that is under way, or submit it anew"),
        };
        let detail = format!("task {task} is {}", view.state.as_str());
        return Err(Problem::new(StatusCode::CONFLICT, code, detail).field("task").remedy(remedy));
    }
    Ok(Json(Ordered { tasks, more: false, next: None }))
}

async fn order_many(
    app: &App,
    by: &By,
    namespace: &Name,
    those: Those,
    order: Order,
) -> Result<Json<Ordered>, Problem> {
    let filtered = those.state.is_some() || those.kind.is_some() || those.before.is_some();
    let ordered = match (those.ids, those.queue) {
        (Some(ids), None) if !filtered => order_named(app, by, namespace, ids, order).await?,
        (None, Some(queue)) => {
            let states = states(those.state.as_deref(), "unfit", StatusCode::UNPROCESSABLE_ENTITY)?;
            if states.is_empty() {
                return Err(unfit(
                    "state",
                    "all tasks of a queue are too many to be meant by leaving something out",
                )
                .remedy("say where they stand: \"dead\", or \"ready,scheduled\""));
            }
            states.iter().try_for_each(|state| touches(order, *state))?;
            those.kind.as_deref().map_or(Ok(()), |kind| short("kind", kind))?;
            let filter = TaskFilter {
                namespace: Some(namespace.clone()),
                queue: Some(queue),
                states,
                kind: those.kind,
                worker: None,
                before: those.before.map(|before| TaskId(before.min(i64::MAX as u64))),
                limit: PAGE.1,
            };
            order_found(app, by, namespace, filter, order).await?
        }
        _ => {
            return Err(unfit(
                "ids",
                "tasks are meant by their numbers, or by their queue and where they stand",
            )
            .remedy("send {\"ids\": [1, 2]} or {\"queue\": \"mail\", \"state\": \"dead\"}"));
        }
    };
    Ok(Json(ordered))
}

/// Refuses an order to tasks on which it has no effect.
fn touches(order: Order, state: TaskState) -> Result<(), Problem> {
    let (those, word): (&[TaskState], _) = match order {
        Order::Cancel => (&CANCELLED, "called off"),
        Order::Retry => (&RETRIED, "tried again"),
    };
    if those.contains(&state) {
        return Ok(());
    }
    let words: Vec<_> = those.iter().map(|state| state.as_str()).collect();
    let detail = format!("a task that is {} can not be {word}", state.as_str());
    Err(unfit("state", detail).remedy(format!("choose among {}", words.join(", "))))
}

/// Gives an order to some, and writes it down: also if nobody waits for the answer any more.
async fn ordered(
    app: &App,
    by: &By,
    namespace: &Name,
    ids: Vec<TaskId>,
    order: Order,
) -> Result<Vec<TaskId>, Problem> {
    let (app, by, namespace) = (app.clone(), by.clone(), namespace.clone());
    let deed = tokio::spawn(async move {
        let done = app.store.order(&namespace, &ids, order).await;
        let written = match &done {
            Ok(tasks) => tasks.first().map(|first| (first, also(tasks.len() - 1))),
            Err(error) if error.kind == Trouble::Request => None,
            Err(_) => ids
                .first()
                .map(|first| (first, format!("{}: whether it was done is not known", also(ids.len() - 1)))),
        };
        if let Some((first, detail)) = written {
            let detail = detail.trim_start_matches(": ").to_owned();
            record_of(&app, &by, action(order), &namespace, &first.to_string(), detail).await;
        }
        done
    });
    match deed.await {
        Ok(done) => Ok(done?),
        Err(_) => Err(StoreError::new(Trouble::Other, "an order to tasks broke off").into()),
    }
}

async fn order_named(
    app: &App,
    by: &By,
    namespace: &Name,
    ids: Vec<u64>,
    order: Order,
) -> Result<Ordered, Problem> {
    if ids.is_empty() || ids.len() > IDS_MAX {
        return Err(unfit("ids", format!("{} tasks are named", ids.len()))
            .remedy(format!("name 1 to {IDS_MAX}, or a queue and where they stand")));
    }
    let ids = ids.into_iter().map(plausible_task).collect::<Result<Vec<_>, _>>()?;
    Ok(Ordered { tasks: ordered(app, by, namespace, ids, order).await?, more: false, next: None })
}

/// Page by page, so that no statement takes long.
async fn order_found(
    app: &App,
    by: &By,
    namespace: &Name,
    mut filter: TaskFilter,
    order: Order,
) -> Result<Ordered, Problem> {
    let mut tasks = Vec::new();
    for _ in 0..PAGES_MAX {
        let page: Vec<_> = app.store.tasks(&filter).await?.into_iter().map(|task| task.id).collect();
        let Some(last) = page.last().copied() else { return Ok(Ordered { tasks, more: false, next: None }) };
        filter.before = Some(last);
        tasks.extend(ordered(app, by, namespace, page, order).await?);
    }
    Ok(Ordered { tasks, more: true, next: filter.before })
}

fn action(order: Order) -> &'static str {
    match order {
        Order::Cancel => "task.cancel",
        Order::Retry => "task.retry",
    }
}

fn also(others: usize) -> String {
    if others == 0 { String::new() } else { format!("and {others} more") }
}

/// The states that a text names.
fn states(text: Option<&str>, code: &'static str, status: StatusCode) -> Result<Vec<TaskState>, Problem> {
    let words = text.unwrap_or_default().split(',').filter(|word| !word.is_empty());
    let state = |word: &str| {
        TaskState::from_word(word).ok_or_else(|| {
            let all = TaskState::ALL.map(TaskState::as_str).join(", ");
            Problem::new(status, code, format!("tasks do not stand at {word:?}"))
                .field("state")
                .remedy(format!("choose among {all}"))
        })
    };
    words.map(state).collect()
}

/// A task, as the store has it.
pub(super) async fn find(app: &App, namespace: &Name, task: u64) -> Result<TaskView, Problem> {
    app.store.task(namespace, plausible_task(task)?).await?.ok_or_else(|| none(task))
}

/// There is no such task.
pub(super) fn none(task: u64) -> Problem {
    let detail = format!("there is no task {task} in this namespace, or it is long finished and forgotten");
    Problem::new(StatusCode::NOT_FOUND, "no-such-task", detail)
        .field("task")
        .remedy("GET /v1/tasks lists those that there are; ?namespace= says where to look")
}
