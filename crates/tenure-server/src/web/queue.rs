//! The page of one queue: activity, tasks, statistics, workers and settings.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    AssignmentMode, BrokerFallback, FinishedTask, KindStats, Percentiles, Permission, QueueKey,
    QueueSettings, QueueView, StoreError, TaskFilter, TaskId, TaskState, TaskView, WorkerView,
};

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::{audit, chart, components, format, queues, workers};
use crate::App;
use crate::api::{CANCELLED, RETRIED};
use crate::problem::Problem;
use crate::snapshot::queues::{QueueHistory, STATISTICS};

/// Number of tasks per page.
const PAGE: u32 = 20;

/// The query of a queue's page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueuePageQuery {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
    /// Show only tasks in this state.
    #[serde(default)]
    pub(super) state: String,
    /// Show only tasks of this kind.
    #[serde(default)]
    pub(super) kind: String,
    /// Show only tasks of this worker.
    #[serde(default)]
    pub(super) worker: String,
    /// Show tasks older than this one.
    #[serde(default)]
    pub(super) cursor: Option<u64>,
}

/// The filter of the task list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskListFilter {
    pub(super) state: Option<TaskState>,
    pub(super) kind: Option<String>,
    pub(super) worker: Option<String>,
}

impl TaskListFilter {
    pub(super) fn of(state: &str, kind: &str, worker: &str) -> Result<TaskListFilter, Problem> {
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let at = some(state).map(|word| TaskState::from_name(&word).ok_or_else(|| no_such_state(&word)));
        Ok(TaskListFilter { state: at.transpose()?, kind: some(kind), worker: some(worker) })
    }

    /// The filter as a part of a query.
    pub(super) fn query(&self) -> String {
        let state = self.state.map(TaskState::as_str);
        let given = [("state", state), ("kind", self.kind.as_deref()), ("worker", self.worker.as_deref())];
        given
            .into_iter()
            .filter_map(|(name, value)| Some(format!("&{name}={}", components::escape(value?))))
            .collect()
    }

    pub(super) fn filter(
        &self,
        key: &QueueKey,
        states: Vec<TaskState>,
        cursor: Option<TaskId>,
        limit: u32,
    ) -> TaskFilter {
        TaskFilter {
            namespace: Some(key.namespace.clone()),
            queue: Some(key.name.clone()),
            states,
            kind: self.kind.clone(),
            worker: self.worker.clone(),
            before: cursor,
            limit,
        }
    }

    fn is_empty(&self) -> bool {
        *self == TaskListFilter::default()
    }
}

fn no_such_state(word: &str) -> Problem {
    let all: Vec<_> = TaskState::ALL.into_iter().map(TaskState::as_str).collect();
    Problem::new(StatusCode::BAD_REQUEST, "malformed-query", format!("Invalid task state: {word:?}"))
        .field("state")
        .remedy(format!("Use one of {}.", all.join(", ")))
}

/// The problem: no such queue.
pub(super) fn unknown(key: &QueueKey) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-queue", format!("no such queue: {key}"))
        .remedy("See Queues for the list.")
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(queue)): PageParams<Path<Name>>,
    PageParams(Query(query)): PageParams<Query<QueuePageQuery>>,
) -> Response {
    let key = QueueKey::new(query.namespace.clone(), queue);
    let found = async {
        let selection = TaskListFilter::of(&query.state, &query.kind, &query.worker)?;
        let track = app.queues.queue(&key).await?.ok_or_else(|| unknown(&key))?;
        Ok::<_, Problem>((selection, track))
    };
    let (selection, track) = match found.await {
        Ok(found) => found,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    let cursor = query.cursor.map(TaskId);
    let filter = selection.filter(&key, selection.state.into_iter().collect(), cursor, PAGE + 1);
    let (tasks, finished, all) =
        tokio::join!(app.queues.tasks(&filter), app.queues.finished(&key), app.queues.workers());
    let entries = app.queues.audit_entries(&key.namespace).await;
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let content = html! {
        (head(&track, &ctx))
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #pause data-live {
            @if let Some(pause) = &track.view.paused {
                (components::paused(pause, "No tasks are assigned until the queue is resumed. Claimed tasks continue.", wall))
            }
        }
        div #flow data-live { (flow(&track, now)) }
        div #tasks data-live { (tasks_of(&track.view, &selection, tasks.as_deref(), cursor, &ctx, wall)) }
        div #kinds data-live { (kinds(finished.as_deref())) }
        div #workers data-live { (workers_of(&key, all.as_deref(), &ctx, wall)) }
        div #settings data-live { (settings(&track.view.settings)) }
        div #activity data-live { (audit::of(entries.as_deref(), |entry| audit::resource(entry) == "queue" && entry.target == key.name.as_str(), wall)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, key.name.as_str(), "Queues", content)
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "pause" => "Paused. No tasks are assigned until you resume the queue. Claimed tasks continue.",
        "resume" => "Resumed. Workers claim tasks again.",
        "settings" => "Settings saved. They apply to new claims.",
        "cancel" => "Cancelled. Workers that run one of them are notified; their results are rejected.",
        "retry" => "Retried, with all attempts restored.",
        "submit" => "Submitted.",
        "nothing" => "No matching tasks.",
        "already" => {
            "No change: already in that state. If the queue is still paused, its namespace is paused."
        }
        _ => return None,
    })
}

fn head(track: &QueueHistory, ctx: &PageContext) -> Markup {
    let key = &track.view.key;
    let to = |action: &str| components::queue_href(key, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/queues" { "Queues" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-announce=(queues::announcement(track)) { (queues::state(track)) }
                }
            }
            div #actions .buttons data-live role="group" aria-label="Actions" {
                @if ctx.may(Permission::Claim, Some(&key.namespace)) {
                    a.button data-key="submit" href={ "/tasks/new?namespace=" (components::escape(key.namespace.as_str())) "&queue=" (components::escape(key.name.as_str())) } { "Submit task…" }
                }
                @if ctx.may(Permission::Admin, Some(&key.namespace)) {
                    @if track.view.paused.is_some() { a.button.main data-key="resume" data-confirm href=(to("resume")) { "Resume…" } }
                    @else { a.button data-key="pause" data-confirm href=(to("pause")) { "Pause…" } }
                    a.button data-key="settings" data-confirm href=(to("settings")) { "Settings…" }
                }
            }
        }
    }
}

fn flow(track: &QueueHistory, now: tenure::BootInstant) -> Markup {
    let view = &track.view;
    let count = |state: TaskState| format::number(view.count(state));
    html! {
        section.card aria-labelledby="flowing" {
            header { h2 #flowing { "Recent activity" } }
            div.body {
                dl.facts.counts {
                    div { dt { "Ready" } dd { (count(TaskState::Ready)) } }
                    div { dt { "Oldest ready task" } dd { @match view.oldest_ready_age_ms { Some(ms) => (format::span(ms)), None => "–" } } }
                    div { dt { "Claimed" } dd { (count(TaskState::Claimed)) } }
                    div { dt { "Blocked" } dd { (count(TaskState::Blocked)) } }
                    div { dt { "Scheduled" } dd { (count(TaskState::Scheduled)) } }
                    div { dt { "Waiting for parents" } dd { (count(TaskState::Waiting)) } }
                    div { dt { "Dead" } dd { (count(TaskState::Dead)) } }
                    div { dt { "Throughput" } dd { (format::rate(track.rate())) } }
                }
                (chart::flow(track, now))
            }
        }
    }
}

fn tasks_of(
    view: &QueueView,
    selection: &TaskListFilter,
    tasks: Result<&[TaskView], &StoreError>,
    cursor: Option<TaskId>,
    ctx: &PageContext,
    wall: i64,
) -> Markup {
    let key = &view.key;
    let here = |selection: &TaskListFilter| {
        format!("{}{}#tasks", components::queue_href(key, ""), selection.query())
    };
    let only = |state| TaskListFilter { state, ..selection.clone() };
    html! {
        section.card aria-labelledby="listed" {
            header {
                h2 #listed { "Tasks" }
                @if ctx.may(Permission::Admin, Some(&key.namespace)) { (bulk(view, selection)) }
            }
            nav.tabs aria-label="Filter by state" {
                a href=(here(&only(None))) aria-current=[selection.state.is_none().then_some("true")] { "all" }
                @for state in TaskState::ALL {
                    @if view.count(state) > 0 || selection.state == Some(state) {
                        a href=(here(&only(Some(state)))) aria-current=[(selection.state == Some(state)).then_some("true")] {
                            (state.as_str()) " " span.soft { (format::brief(view.count(state))) }
                        }
                    }
                }
                (active_filters(key, selection))
            }
            @match tasks {
                Err(error) => (components::load_error("tasks", error)),
                Ok([]) => p.empty {
                    @if cursor.is_some() { "No older tasks." }
                    @else if selection.is_empty() { "No tasks, or all were pruned." }
                    @else { "No tasks in this state. " a href=(here(&TaskListFilter::default())) { "Clear filter" } }
                },
                Ok(tasks) => {
                    (table(&tasks[..tasks.len().min(PAGE as usize)], wall))
                    (pager(key, selection, tasks, cursor))
                },
            }
        }
    }
}

/// The other active filters, each with a link that clears it.
fn active_filters(key: &QueueKey, selection: &TaskListFilter) -> Markup {
    let without =
        |selection: TaskListFilter| format!("{}{}#tasks", components::queue_href(key, ""), selection.query());
    html! {
        @if let Some(kind) = &selection.kind {
            a.out href=(without(TaskListFilter { kind: None, ..selection.clone() })) { "kind " span.strong { (kind) } " ✕" span.hidden { ": clear kind filter" } }
        }
        @if let Some(worker) = &selection.worker {
            a.out href=(without(TaskListFilter { worker: None, ..selection.clone() })) { "worker " span.strong { (worker) } " ✕" span.hidden { ": clear worker filter" } }
        }
    }
}

fn pager(key: &QueueKey, selection: &TaskListFilter, tasks: &[TaskView], cursor: Option<TaskId>) -> Markup {
    let more = tasks.len() > PAGE as usize;
    let last = tasks.get(PAGE as usize - 1).map(|task| task.id);
    let here = format!("{}{}", components::queue_href(key, ""), selection.query());
    html! {
        @if more || cursor.is_some() {
            nav.pager aria-label="Task pages" {
                @if cursor.is_some() { a.button.slim href={ (here) "#tasks" } { "Newest" } }
                @if let Some(last) = last.filter(|_| more) { a.button.slim href={ (here) "&cursor=" (last) "#tasks" } { "Older" } }
            }
        }
    }
}

/// The bulk actions on the listed tasks.
fn bulk(view: &QueueView, selection: &TaskListFilter) -> Markup {
    let any = |states: &[TaskState]| {
        states.iter().any(|state| view.count(*state) > 0 && selection.state.is_none_or(|only| only == *state))
    };
    let to = |action: &str| format!("{}{}", components::queue_href(&view.key, action), selection.query());
    html! {
        div.buttons role="group" aria-label="Bulk actions" {
            @if any(&RETRIED) { a.button.slim data-key="retry" data-confirm href=(to("retry")) { "Retry selected…" } }
            @if any(&CANCELLED) { a.button.slim data-key="cancel" data-confirm href=(to("cancel")) { "Cancel selected…" } }
        }
    }
}

fn table(tasks: &[TaskView], wall: i64) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Task" } th scope="col" { "State" } th scope="col" { "Kind" } th.num scope="col" { "Priority" }
                th.num scope="col" { "Attempt" } th scope="col" { "Worker" } th scope="col" { "Details" } th scope="col" { "Submitted" }
            } }
            tbody { @for task in tasks { (row(task, wall)) } }
        }
    }
}

fn row(task: &TaskView, wall: i64) -> Markup {
    let plain = task.state == TaskState::Ready && task.failures.is_empty();
    html! {
        tr data-key=(format!("task-{}", task.id)) {
            th scope="row" { a href=(components::task_href(&task.namespace, task.id, "")) { (task.id) } }
            td data-label="State" { (components::task_state(task.state)) }
            td.none[task.kind.is_empty()] data-label="Kind" { @if task.kind.is_empty() { span.soft { "–" } } @else { (components::breakable(&task.kind)) } }
            td.num.none[task.priority == 0] data-label="Priority" { (task.priority) }
            td.num.nowrap data-label="Attempt" { (task.attempt) span.soft { " of " (task.max_attempts) } }
            td.none[task.worker.is_none()] data-label="Worker" { @match &task.worker { Some(worker) => (worker), None => span.soft { "–" } } }
            td.wide.details-cell.none[plain] data-label="Details" { (details(task, wall)) }
            td.nowrap data-label="Submitted" { (format::ago(task.submitted_at_ms, wall)) }
        }
    }
}

/// The most important detail of a task in its state.
fn details(task: &TaskView, wall: i64) -> Markup {
    let failed = task.failures.last();
    html! {
        @match task.state {
            TaskState::Claimed => span {
                @if let Some(at) = task.claimed_at_ms { "for " (format::span((wall - at).max(0) as u64)) }
                @if let Some(progress) = &task.progress { ": " (format::first_line(progress)) }
            },
            TaskState::Completed => span.soft { @if let Some((ready, claimed)) = task.ready_at_ms.zip(task.claimed_at_ms) {
                "waited " (format::span((claimed - ready).max(0) as u64))
                @if let Some(end) = task.finished_at_ms { ", ran for " (format::span((end - claimed).max(0) as u64)) }
            } },
            TaskState::Dead | TaskState::Cancelled => span { (format::first_line(task.end_reason.as_deref().or(failed.map(|failure| failure.error.as_str())).unwrap_or("–"))) },
            TaskState::Scheduled => span {
                @if let Some(at) = task.run_at_ms { @if failed.is_some() { "retry " } @else { "scheduled " } (format::until(at, wall)) }
                @if let Some(failure) = failed { span.soft { ", last error: " (format::first_line(&failure.error)) } }
            },
            TaskState::Waiting => span { "waiting for " (format::count(task.parents.len(), "parent")) },
            TaskState::Blocked => span { "blocked by concurrency key " @if let Some(key) = &task.concurrency_key { code { (key) } } },
            TaskState::Ready => span { @if let Some(failure) = failed { span.soft { "last error: " (format::first_line(&failure.error)) } } @else { span.soft { "–" } } },
        }
    }
}

/// Wait and run times by kind.
fn kinds(finished: Result<&[FinishedTask], &StoreError>) -> Markup {
    let percentiles = |spread: &Percentiles| [spread.p50, spread.p95, spread.p99].map(format::span);
    html! {
        section.card aria-labelledby="spread" {
            header { h2 #spread { "Wait and run times" } span.soft.small { "last " (format::number(STATISTICS.into())) " finished tasks" } }
            @match finished {
                Err(error) => (components::load_error("statistics", error)),
                Ok([]) => p.empty { "No finished tasks yet." },
                Ok(finished) => {
                    table.stack.figures {
                        thead { tr {
                            th scope="col" { "Kind" } th.num scope="col" { "Completed" } th.num scope="col" { "Dead" }
                            th.num scope="col" { "Wait p50" } th.num scope="col" { "p95" } th.num scope="col" { "p99" }
                            th.num scope="col" { "Run p50" } th.num scope="col" { "p95" } th.num scope="col" { "p99" }
                        } }
                        tbody {
                            @for KindStats { kind, completed, dead, wait_ms, run_ms } in statistics(finished) {
                                tr data-key=(format!("kind-{kind}")) {
                                    th scope="row" { @if kind.is_empty() { span.soft { "(no kind)" } } @else { (kind) } }
                                    td.num data-label="Completed" { (format::number(completed)) }
                                    td.num data-label="Dead" { (format::number(dead)) }
                                    @for (at, text) in ["Wait p50", "Wait p95", "Wait p99"].into_iter().zip(percentiles(&wait_ms)) {
                                        td.num.nowrap data-label=(at) { (text) }
                                    }
                                    @for (at, text) in ["Run p50", "Run p95", "Run p99"].into_iter().zip(percentiles(&run_ms)) {
                                        td.num.nowrap data-label=(at) { (text) }
                                    }
                                }
                            }
                        }
                    }
                },
            }
        }
    }
}

fn statistics(finished: &[FinishedTask]) -> Vec<KindStats> {
    tenure_core::rules::work::stats(finished)
}

fn workers_of(
    key: &QueueKey,
    all: Result<&[WorkerView], &StoreError>,
    ctx: &PageContext,
    wall: i64,
) -> Markup {
    html! {
        section.card aria-labelledby="working" {
            header { h2 #working { "Workers" } a.small href="/workers" { "All workers" } }
            @match all {
                Err(error) => (components::load_error("workers", error)),
                Ok(all) => {
                    @let here: Vec<_> = all.iter().filter(|view| view.namespace == key.namespace && view.worker.queues.contains(&key.name)).collect();
                    @if here.is_empty() { p.empty { "No workers on this queue." } }
                    @else { (workers::table(&here, false, ctx, wall)) }
                },
            }
        }
    }
}

fn settings(settings: &QueueSettings) -> Markup {
    html! {
        section.card aria-labelledby="set" {
            header { h2 #set { "Settings" } }
            div.body {
                dl.facts {
                    div { dt { "Assignment mode" } dd { (mode(settings.mode, settings.fallback)) } }
                    div { dt { "Workers" } dd { @if settings.require_approval { "approved only" } @else { "any" } } }
                    div { dt { "Rate limit" } dd { @match settings.rate { Some(rate) => { (format::number(rate.count.into())) " per " (format::duration(rate.per_ms)) }, None => "no limit" } } }
                    div { dt { "Concurrency limit" } dd { @match settings.max_claimed { Some(most) => (format::number(most.into())), None => "no limit" } } }
                    div { dt { "Preference window" } dd { (format::duration(settings.preference_window_ms)) } }
                    div { dt { "Retention of finished tasks" } dd { (format::duration(settings.retention_ms)) } }
                    div { dt { "Retention of dead tasks" } dd { (format::duration(settings.dead_retention_ms)) } }
                }
            }
        }
    }
}

/// A description of the assignment mode.
pub(super) fn mode(mode: AssignmentMode, fallback: BrokerFallback) -> &'static str {
    match (mode, fallback) {
        (AssignmentMode::Distributed, _) => "distributed: any process, nearly in order",
        (AssignmentMode::Exclusive, BrokerFallback::None) => "exclusive: the broker, in strict order",
        (AssignmentMode::Exclusive, BrokerFallback::Distributed) => {
            "exclusive: the broker, in strict order; distributed while it is unreachable"
        }
    }
}
