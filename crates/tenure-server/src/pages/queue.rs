//! One queue: how it fills and drains, how it is set, who works on it, and its tasks.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    Fallback, Finished, KindStats, Mode, QueueKey, QueueSettings, QueueView, Spread, StoreError, TaskFilter,
    TaskId, TaskState, TaskView, Verb, WorkerView,
};

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::{audit, chart, parts, queues, words, workers};
use crate::App;
use crate::api::{CANCELLED, RETRIED};
use crate::floor::{STATISTICS, Track};
use crate::problem::Problem;

/// How many tasks are on a page.
const PAGE: u32 = 20;

/// What the address of a queue's page may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
    /// Tasks in this state only.
    #[serde(default)]
    pub(super) state: String,
    /// Of this kind only.
    #[serde(default)]
    pub(super) kind: String,
    /// Of this worker only.
    #[serde(default)]
    pub(super) worker: String,
    /// Before this one, for older pages.
    #[serde(default)]
    pub(super) before: Option<u64>,
}

/// Which tasks of a queue somebody looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Which {
    pub(super) state: Option<TaskState>,
    pub(super) kind: Option<String>,
    pub(super) worker: Option<String>,
}

impl Which {
    pub(super) fn of(state: &str, kind: &str, worker: &str) -> Result<Which, Problem> {
        let some = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let at = some(state).map(|word| TaskState::from_word(&word).ok_or_else(|| no_such_state(&word)));
        Ok(Which { state: at.transpose()?, kind: some(kind), worker: some(worker) })
    }

    /// As a part of an address.
    pub(super) fn query(&self) -> String {
        let state = self.state.map(TaskState::as_str);
        let given = [("state", state), ("kind", self.kind.as_deref()), ("worker", self.worker.as_deref())];
        given
            .into_iter()
            .filter_map(|(name, value)| Some(format!("&{name}={}", parts::escape(value?))))
            .collect()
    }

    pub(super) fn filter(
        &self,
        key: &QueueKey,
        states: Vec<TaskState>,
        before: Option<TaskId>,
        limit: u32,
    ) -> TaskFilter {
        TaskFilter {
            namespace: Some(key.namespace.clone()),
            queue: Some(key.name.clone()),
            states,
            kind: self.kind.clone(),
            worker: self.worker.clone(),
            before,
            limit,
        }
    }

    fn is_empty(&self) -> bool {
        *self == Which::default()
    }
}

fn no_such_state(word: &str) -> Problem {
    let all: Vec<_> = TaskState::ALL.into_iter().map(TaskState::as_str).collect();
    Problem::new(StatusCode::BAD_REQUEST, "malformed-query", format!("{word:?} is no state of a task"))
        .field("state")
        .remedy(format!("choose among {}", all.join(", ")))
}

/// There is no such queue.
pub(super) fn unknown(key: &QueueKey) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-queue", format!("nothing was ever submitted to {key}"))
        .remedy("the list of queues has those that there are")
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path(queue)): Got<Path<Name>>,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let key = QueueKey::new(asked.namespace.clone(), queue);
    let found = async {
        let which = Which::of(&asked.state, &asked.kind, &asked.worker)?;
        let track = app.floor.queue(&key).await?.ok_or_else(|| unknown(&key))?;
        Ok::<_, Problem>((which, track))
    };
    let (which, track) = match found.await {
        Ok(found) => found,
        Err(problem) => return trouble(&visit, &problem),
    };
    let before = asked.before.map(TaskId);
    let filter = which.filter(&key, which.state.into_iter().collect(), before, PAGE + 1);
    let (tasks, finished, all) =
        tokio::join!(app.floor.tasks(&filter), app.floor.finished(&key), app.floor.workers());
    let deeds = app.floor.deeds(&key.namespace).await;
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let content = html! {
        (head(&track, &visit))
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #pause data-live {
            @if let Some(pause) = &track.view.paused {
                (parts::paused(pause, "Nothing is handed out until it is resumed; what is claimed goes on.", wall))
            }
        }
        div #flow data-live { (flow(&track, now)) }
        div #tasks data-live { (tasks_of(&track.view, &which, tasks.as_deref(), before, &visit, wall)) }
        div #kinds data-live { (kinds(finished.as_deref())) }
        div #workers data-live { (workers_of(&key, all.as_deref(), &visit, wall)) }
        div #settings data-live { (settings(&track.view.settings)) }
        div #deeds data-live { (audit::of(deeds.as_deref(), |deed| audit::sort(deed) == "queue" && deed.target == key.name.as_str(), wall)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, key.name.as_str(), "Queues", content)
}

/// What came of a deed. Only what is written here is ever shown: an address must not put words into our mouth.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "pause" => "Paused. Nothing is handed out until you resume it; what is claimed goes on.",
        "resume" => "Resumed. Workers get its tasks again at once.",
        "settings" => "Set. It counts for every claim from now on; nothing is lost or doubled by it.",
        "cancel" => "Cancelled. Workers that have one of them are told, and refused if they go on.",
        "retry" => "They are tried again, with as many attempts as they had at first.",
        "submit" => "Submitted.",
        "nothing" => "Nothing to do: there was none left to do it to.",
        "already" => {
            "Nothing to do: it was so already. If the queue is still paused, its whole namespace is."
        }
        _ => return None,
    })
}

fn head(track: &Track, visit: &Visit) -> Markup {
    let key = &track.view.key;
    let to = |action: &str| parts::queue_href(key, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/queues" { "Queues" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-says=(queues::says(track)) { (queues::state(track)) }
                }
            }
            div #actions .buttons data-live role="group" aria-label="What can be done" {
                @if visit.may(Verb::Claim, Some(&key.namespace)) {
                    a.button data-key="submit" href={ "/tasks/new?namespace=" (parts::escape(key.namespace.as_str())) "&queue=" (parts::escape(key.name.as_str())) } { "Submit a task" }
                }
                @if visit.may(Verb::Admin, Some(&key.namespace)) {
                    @if track.view.paused.is_some() { a.button.main data-key="resume" data-confirm href=(to("resume")) { "Resume…" } }
                    @else { a.button data-key="pause" data-confirm href=(to("pause")) { "Pause…" } }
                    a.button data-key="settings" data-confirm href=(to("settings")) { "Settings…" }
                }
            }
        }
    }
}

fn flow(track: &Track, now: tenure::Moment) -> Markup {
    let view = &track.view;
    let count = |state: TaskState| words::number(view.count(state));
    html! {
        section.card aria-labelledby="flowing" {
            header { h2 #flowing { "The last minutes" } }
            div.body {
                dl.facts.counts {
                    div { dt { "Ready" } dd { (count(TaskState::Ready)) } }
                    div { dt { "Oldest ready" } dd { @match view.oldest_ready_ms { Some(ms) => (words::span(ms)), None => "–" } } }
                    div { dt { "Claimed" } dd { (count(TaskState::Claimed)) } }
                    div { dt { "Held back" } dd { (count(TaskState::Held)) } }
                    div { dt { "Scheduled" } dd { (count(TaskState::Scheduled)) } }
                    div { dt { "Wait for parents" } dd { (count(TaskState::Waiting)) } }
                    div { dt { "Dead" } dd { (count(TaskState::Dead)) } }
                    div { dt { "Finished" } dd { (words::rate(track.rate())) } }
                }
                (chart::flow(track, now))
            }
        }
    }
}

fn tasks_of(
    view: &QueueView,
    which: &Which,
    tasks: Result<&[TaskView], &StoreError>,
    before: Option<TaskId>,
    visit: &Visit,
    wall: i64,
) -> Markup {
    let key = &view.key;
    let here = |which: &Which| format!("{}{}#tasks", parts::queue_href(key, ""), which.query());
    let only = |state| Which { state, ..which.clone() };
    html! {
        section.card aria-labelledby="listed" {
            header {
                h2 #listed { "Tasks" }
                @if visit.may(Verb::Admin, Some(&key.namespace)) { (bulk(view, which)) }
            }
            nav.tabs aria-label="Tasks in which state" {
                a href=(here(&only(None))) aria-current=[which.state.is_none().then_some("true")] { "all" }
                @for state in TaskState::ALL {
                    @if view.count(state) > 0 || which.state == Some(state) {
                        a href=(here(&only(Some(state)))) aria-current=[(which.state == Some(state)).then_some("true")] {
                            (state.as_str()) " " span.soft { (words::brief(view.count(state))) }
                        }
                    }
                }
                (narrowed(key, which))
            }
            @match tasks {
                Err(error) => (parts::unread("The tasks", error)),
                Ok([]) => p.empty {
                    @if before.is_some() { "There are no older ones." }
                    @else if which.is_empty() { "There are none, or none is remembered any more." }
                    @else { "None is so now. " a href=(here(&Which::default())) { "Show all" } }
                },
                Ok(tasks) => {
                    (table(&tasks[..tasks.len().min(PAGE as usize)], wall))
                    (pager(key, which, tasks, before))
                },
            }
        }
    }
}

/// The other ways in which the list is narrowed, each with a way out.
fn narrowed(key: &QueueKey, which: &Which) -> Markup {
    let without = |which: Which| format!("{}{}#tasks", parts::queue_href(key, ""), which.query());
    html! {
        @if let Some(kind) = &which.kind {
            a.out href=(without(Which { kind: None, ..which.clone() })) { "kind " span.strong { (kind) } " ✕" span.hidden { ": show every kind" } }
        }
        @if let Some(worker) = &which.worker {
            a.out href=(without(Which { worker: None, ..which.clone() })) { "worker " span.strong { (worker) } " ✕" span.hidden { ": show every worker" } }
        }
    }
}

fn pager(key: &QueueKey, which: &Which, tasks: &[TaskView], before: Option<TaskId>) -> Markup {
    let more = tasks.len() > PAGE as usize;
    let last = tasks.get(PAGE as usize - 1).map(|task| task.id);
    let here = format!("{}{}", parts::queue_href(key, ""), which.query());
    html! {
        @if more || before.is_some() {
            nav.pager aria-label="Pages of tasks" {
                @if before.is_some() { a.button.slim href={ (here) "#tasks" } { "Newest" } }
                @if let Some(last) = last.filter(|_| more) { a.button.slim href={ (here) "&before=" (last) "#tasks" } { "Older" } }
            }
        }
    }
}

/// What can be done to all tasks that are looked at.
fn bulk(view: &QueueView, which: &Which) -> Markup {
    let any = |states: &[TaskState]| {
        states.iter().any(|state| view.count(*state) > 0 && which.state.is_none_or(|only| only == *state))
    };
    let to = |action: &str| format!("{}{}", parts::queue_href(&view.key, action), which.query());
    html! {
        div.buttons role="group" aria-label="What an operator can do to these" {
            @if any(&RETRIED) { a.button.slim data-key="retry" data-confirm href=(to("retry")) { "Retry these…" } }
            @if any(&CANCELLED) { a.button.slim data-key="cancel" data-confirm href=(to("cancel")) { "Cancel these…" } }
        }
    }
}

fn table(tasks: &[TaskView], wall: i64) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Task" } th scope="col" { "State" } th scope="col" { "Kind" } th.num scope="col" { "Priority" }
                th.num scope="col" { "Attempt" } th scope="col" { "Worker" } th scope="col" { "About" } th scope="col" { "Submitted" }
            } }
            tbody { @for task in tasks { (row(task, wall)) } }
        }
    }
}

fn row(task: &TaskView, wall: i64) -> Markup {
    let plain = task.state == TaskState::Ready && task.failures.is_empty();
    html! {
        tr data-key=(format!("task-{}", task.id)) {
            th scope="row" { a href=(parts::task_href(&task.namespace, task.id, "")) { (task.id) } }
            td data-label="State" { (parts::task_state(task.state)) }
            td.none[task.kind.is_empty()] data-label="Kind" { @if task.kind.is_empty() { span.soft { "–" } } @else { (parts::breakable(&task.kind)) } }
            td.num.none[task.priority == 0] data-label="Priority" { (task.priority) }
            td.num.nowrap data-label="Attempt" { (task.attempt) span.soft { " of " (task.max_attempts) } }
            td.none[task.worker.is_none()] data-label="Worker" { @match &task.worker { Some(worker) => (worker), None => span.soft { "–" } } }
            td.wide.about.none[plain] data-label="About" { (about(task, wall)) }
            td.nowrap data-label="Submitted" { (words::ago(task.enqueued_at_ms, wall)) }
        }
    }
}

/// What is most worth knowing of a task, in a few words.
fn about(task: &TaskView, wall: i64) -> Markup {
    let failed = task.failures.last();
    html! {
        @match task.state {
            TaskState::Claimed => span {
                @if let Some(at) = task.claimed_at_ms { "for " (words::span((wall - at).max(0) as u64)) }
                @if let Some(progress) = &task.progress { ": " (words::first_line(progress)) }
            },
            TaskState::Completed => span.soft { @if let Some((ready, claimed)) = task.ready_at_ms.zip(task.claimed_at_ms) {
                "waited " (words::span((claimed - ready).max(0) as u64))
                @if let Some(end) = task.finished_at_ms { ", ran " (words::span((end - claimed).max(0) as u64)) }
            } },
            TaskState::Dead | TaskState::Cancelled => span { (words::first_line(task.reason.as_deref().or(failed.map(|failure| failure.error.as_str())).unwrap_or("–"))) },
            TaskState::Scheduled => span {
                @if let Some(at) = task.run_at_ms { "due " (words::until(at, wall)) }
                @if let Some(failure) = failed { span.soft { ", failed: " (words::first_line(&failure.error)) } }
            },
            TaskState::Waiting => span { "waits for " (words::count(task.parents.len(), "parent")) },
            TaskState::Held => span { "waits for others with the key " @if let Some(key) = &task.concurrency_key { code { (key) } } },
            TaskState::Ready => span { @if let Some(failure) = failed { span.soft { "failed: " (words::first_line(&failure.error)) } } @else { span.soft { "–" } } },
        }
    }
}

/// How long tasks wait and run, kind by kind.
fn kinds(finished: Result<&[Finished], &StoreError>) -> Markup {
    let said = |spread: &Spread| [spread.p50, spread.p95, spread.p99].map(words::span);
    html! {
        section.card aria-labelledby="spread" {
            header { h2 #spread { "How long they wait and run" } span.soft.small { "of the last " (words::number(STATISTICS.into())) " that finished" } }
            @match finished {
                Err(error) => (parts::unread("The statistics", error)),
                Ok([]) => p.empty { "None has finished yet." },
                Ok(finished) => {
                    table.stack.figures {
                        thead { tr {
                            th scope="col" { "Kind" } th.num scope="col" { "Completed" } th.num scope="col" { "Dead" }
                            th.num scope="col" { "Waited p50" } th.num scope="col" { "p95" } th.num scope="col" { "p99" }
                            th.num scope="col" { "Ran p50" } th.num scope="col" { "p95" } th.num scope="col" { "p99" }
                        } }
                        tbody {
                            @for KindStats { kind, completed, dead, wait_ms, run_ms } in statistics(finished) {
                                tr data-key=(format!("kind-{kind}")) {
                                    th scope="row" { @if kind.is_empty() { span.soft { "no kind" } } @else { (kind) } }
                                    td.num data-label="Completed" { (words::number(completed)) }
                                    td.num data-label="Dead" { (words::number(dead)) }
                                    @for (at, text) in ["Waited p50", "Waited p95", "Waited p99"].into_iter().zip(said(&wait_ms)) {
                                        td.num.nowrap data-label=(at) { (text) }
                                    }
                                    @for (at, text) in ["Ran p50", "Ran p95", "Ran p99"].into_iter().zip(said(&run_ms)) {
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

fn statistics(finished: &[Finished]) -> Vec<KindStats> {
    tenure_core::claim::stats(finished)
}

fn workers_of(key: &QueueKey, all: Result<&[WorkerView], &StoreError>, visit: &Visit, wall: i64) -> Markup {
    html! {
        section.card aria-labelledby="working" {
            header { h2 #working { "Workers" } a.small href="/workers" { "All workers" } }
            @match all {
                Err(error) => (parts::unread("The workers", error)),
                Ok(all) => {
                    @let here: Vec<_> = all.iter().filter(|view| view.namespace == key.namespace && view.worker.queues.contains(&key.name)).collect();
                    @if here.is_empty() { p.empty { "No worker says that it works on this queue." } }
                    @else { (workers::table(&here, false, visit, wall)) }
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
                    div { dt { "Handed out" } dd { (mode(settings.mode, settings.fallback)) } }
                    div { dt { "Workers" } dd { @if settings.approval { "only approved ones" } @else { "any" } } }
                    div { dt { "Begin at most" } dd { @match settings.rate { Some(rate) => { (words::number(rate.count.into())) " in " (words::duration(rate.per_ms)) }, None => "any number" } } }
                    div { dt { "Claimed at once" } dd { @match settings.max_claimed { Some(most) => { "at most " (words::number(most.into())) }, None => "any number" } } }
                    div { dt { "Preferred tags count for" } dd { (words::duration(settings.prefer_ms)) } }
                    div { dt { "Finished are kept for" } dd { (words::duration(settings.keep_ms)) } }
                    div { dt { "Dead are kept for" } dd { (words::duration(settings.keep_dead_ms)) } }
                }
            }
        }
    }
}

/// How things are handed out, in words.
pub(super) fn mode(mode: Mode, fallback: Fallback) -> &'static str {
    match (mode, fallback) {
        (Mode::Distributed, _) => "distributed: by any process, in about the right order",
        (Mode::Exclusive, Fallback::None) => "exclusive: by the leader alone, in strict order",
        (Mode::Exclusive, Fallback::Distributed) => {
            "exclusive: by the leader in strict order; by any process while it can not be reached"
        }
    }
}
