//! The page of one task: timeline, reasons for waiting, options, dependencies and payload.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Permission, QueueKey, TaskAction, TaskId, TaskState, TaskView, WaitReason};
use tenure_core::rules::schedule::tick_of;

use super::components::{self, ConfirmDialog};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::layout::{PageContext, page, problem_page};
use super::payload::FormattedPayload;
use super::queues::{NamespaceQuery, no_such_action};
use super::{format, task_graph};
use crate::App;
use crate::api::{CANCELLED, RETRIED};
use crate::problem::Problem;
use crate::snapshot::queues::TaskDetail;

/// The query of a task's page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskPageQuery {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
}

fn unknown(namespace: &Name, id: TaskId) -> Problem {
    let detail = format!("no such task: {id} in {namespace}; it may have been pruned");
    Problem::new(StatusCode::NOT_FOUND, "no-such-task", detail).remedy("See its queue for the list.")
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(id)): PageParams<Path<u64>>,
    PageParams(Query(query)): PageParams<Query<TaskPageQuery>>,
) -> Response {
    let (namespace, id) = (query.namespace, TaskId(id));
    let detail = match app.queues.task_detail(&namespace, id).await {
        Ok(Some(detail)) => detail,
        Ok(None) => return problem_page(&ctx, &unknown(&namespace, id)),
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let (task, wall) = (&detail.task, app.runtime.wall_ms());
    let content = html! {
        (head(task, &ctx))
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #why data-live { (wait_reasons(&detail, wall)) }
        div #timeline .pair data-live { (timeline(task, wall)) (facts(task, &ctx)) }
        div #dependencies data-live { (dependencies(&detail)) }
        div #data data-live { (payload_and_result(&detail)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, &format!("Task {id}"), "Queues", content)
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "cancel" => "Cancelled, with all tasks that depend on it.",
        "retry" => "Retried, with all attempts restored.",
        "submit" => "Submitted. This page updates by itself.",
        "known" => "A task with this idempotency key exists; no new task was submitted.",
        "nothing" => "No change: the task was in another state.",
        _ => return None,
    })
}

fn head(task: &TaskView, ctx: &PageContext) -> Markup {
    let queue = QueueKey::new(task.namespace.clone(), task.queue.clone());
    let to = |action: &str| components::task_href(&task.namespace, task.id, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/queues" { "Queues" } " / " (task.namespace) " / " a href=(components::queue_href(&queue, "")) { (task.queue) } }
                div.title {
                    h1 { "Task " (task.id) }
                    @if !task.kind.is_empty() { span.chip { (task.kind) } }
                    div #state data-live data-announce={ "task " (task.id) " is " (task.state.as_str()) } { (components::task_state(task.state)) }
                }
            }
            @if ctx.may(Permission::Admin, Some(&task.namespace)) {
                div #actions .buttons data-live role="group" aria-label="Actions" {
                    @if RETRIED.contains(&task.state) { a.button.main data-key="retry" data-confirm href=(to("retry")) { "Retry…" } }
                    @if CANCELLED.contains(&task.state) { a.button data-key="cancel" data-confirm href=(to("cancel")) { "Cancel…" } }
                }
            }
        }
    }
}

/// The reasons why the task is not claimed yet.
fn wait_reasons(detail: &TaskDetail, wall: i64) -> Markup {
    let task = &detail.task;
    let waits = !task.state.is_final() && task.state != TaskState::Claimed;
    html! {
        @if waits && !detail.why.is_empty() {
            section.card aria-labelledby="reasons" {
                header { h2 #reasons { @if claimable(&detail.why) { "Ready to be claimed" } @else { "Why it is not claimed" } } }
                ul.reasons { @for why in &detail.why { li { (reason(why, task, wall)) } } }
            }
        }
    }
}

fn claimable(why: &[WaitReason]) -> bool {
    why.iter().all(|why| matches!(why, WaitReason::Claimable { .. }))
}

/// One reason, and its remedy.
fn reason(why: &WaitReason, task: &TaskView, wall: i64) -> Markup {
    let queue = QueueKey::new(task.namespace.clone(), task.queue.clone());
    let listed = |all: &[String]| html! { @for one in all { " " span.chip { (one) } } };
    let with_remedy = |what: Markup, then: Markup| html! { p { (what) } p.soft.small { (then) } };
    match why {
        WaitReason::Claimable { matching_workers: workers, tasks_ahead: ahead } => with_remedy(
            html! { (format::count(usize::try_from(*workers).unwrap_or(usize::MAX), "matching worker")) " online, " (format::number(*ahead)) @if *ahead == 1 { " task" } @else { " tasks" } " ahead." },
            html! { "The next free worker claims it." },
        ),
        WaitReason::NotPending { state } => html! { p { "Not pending: the state is " (state.as_str()) "." } },
        WaitReason::Paused { pause } => with_remedy(
            html! { span.strong { "Paused" } " by " (pause.paused_by) ", " (format::ago(pause.paused_at_ms, wall)) @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } "." },
            html! { "Resume " a href=(components::queue_href(&queue, "")) { (queue.name) } " or its namespace." },
        ),
        WaitReason::NotDue { run_at_ms } => with_remedy(
            html! { "Scheduled for " span.strong { (format::until(*run_at_ms, wall)) } @if task.attempt > 0 { ", its next attempt" } "." },
            html! { "Retry it to run at once." },
        ),
        WaitReason::PendingParents { tasks } => with_remedy(
            html! { "Waiting for parents " @for (n, id) in tasks.iter().take(12).enumerate() { @if n > 0 { ", " } a href=(components::task_href(&task.namespace, *id, "")) { (id) } } @if tasks.len() > 12 { " and " (tasks.len() - 12) " more" } "." },
            html! { "It is ready when all complete; if one dies or is cancelled, this task ends too." },
        ),
        WaitReason::ConcurrencyLimit { key, limit } => with_remedy(
            html! { "Concurrency key " code { (key) } ": the limit of " span.strong { (limit) } " is reached." },
            html! { "It is ready when one of the claimed tasks with this key finishes." },
        ),
        WaitReason::QueueLimit { limit } => with_remedy(
            html! { "The concurrency limit of the queue (" span.strong { (format::number((*limit).into())) } ") is reached." },
            html! { "See the queue settings." },
        ),
        WaitReason::RateLimit { next_in_ms } => with_remedy(
            html! { "The rate limit of the queue is reached; the next claim is possible in " span.strong { (format::span(*next_in_ms)) } "." },
            html! { "See the queue settings." },
        ),
        WaitReason::NoWorkers => with_remedy(
            html! { span.strong { "No worker" } " of " (queue.name) " is online." },
            html! { "Start one: " code { "tenure work " (queue.name) " -- COMMAND" } },
        ),
        WaitReason::NoWorkerWithTags { tags } => with_remedy(
            html! { "No online worker has the required tags:" span.strong { (listed(tags)) } },
            html! { "Start one that has them." },
        ),
        WaitReason::NoWorkerForKind { kind } => with_remedy(
            html! { "No online worker accepts kind " span.strong { (kind) } "." },
            html! { "Start one that does." },
        ),
        WaitReason::AllowedWorkersOffline { matching_workers: workers } => with_remedy(
            html! { "The allowed workers are offline:" span.strong { (listed(workers)) } },
            html! { "Start one of them." },
        ),
        WaitReason::NoApprovedWorker { unapproved_workers: pending } => with_remedy(
            html! { "The queue requires approval; matching workers are not approved:" span.strong { (listed(pending)) } },
            html! { "Approve one under " a href="/workers" { "Workers" } "." },
        ),
        WaitReason::NoBroker => with_remedy(
            html! { "The queue is exclusive and " span.strong { "there is no broker" } "." },
            html! { "See election " code { "tenure/broker" } "." },
        ),
    }
}

/// One entry of a task's timeline.
struct TimelineEntry {
    at_ms: i64,
    kind: &'static str,
    what: Markup,
    detail: Option<String>,
}

/// The timeline of a task, oldest first: the retained failures, and all steps of the last attempt.
fn entries(task: &TaskView) -> Vec<TimelineEntry> {
    let plain = |at_ms, kind, what: Markup| TimelineEntry { at_ms, kind, what, detail: None };
    let mut all = vec![plain(
        task.submitted_at_ms,
        "start",
        html! {
            "Submitted" @if let Some(token) = task.leader_token { " by a leader with token " span.token { (token) } }
        },
    )];
    let due = task.run_at_ms.filter(|at| *at > task.submitted_at_ms);
    if let Some(at) = due {
        let again = task.failures.first().is_some_and(|failure| failure.failed_at_ms <= at);
        all.push(plain(at, "later", html! { @if again { "Next attempt" } @else { "Scheduled" } }));
    }
    if let Some(at) = task.ready_at_ms.filter(|at| Some(*at) != due) {
        all.push(plain(at, "next", html! { "Ready" }));
    }
    if let Some(at) = task.claimed_at_ms {
        let worker = task.worker.as_deref().unwrap_or("a worker");
        all.push(plain(at, "good", html! {
            "Claimed by " span.strong { (worker) } ", attempt " (task.attempt) ", token " span.token { (task.token) }
            @if let Some(turn) = task.claim_seq { ", claim sequence " (format::number(turn)) }
        }));
    }
    for failure in &task.failures {
        let what = html! { "Attempt " (failure.attempt) " failed" @if !failure.worker.is_empty() { " on " span.strong { (failure.worker) } } };
        all.push(TimelineEntry {
            at_ms: failure.failed_at_ms,
            kind: "bad",
            what,
            detail: Some(failure.error.clone()),
        });
    }
    if let Some(at_ms) = task.finished_at_ms {
        let (kind, what) = match task.state {
            TaskState::Completed => ("done", "Completed"),
            TaskState::Cancelled => ("off", "Cancelled"),
            _ => ("bad", "Dead"),
        };
        all.push(TimelineEntry { at_ms, kind, what: html! { (what) }, detail: reason_of_end(task) });
    }
    // The sort is stable, so entries of the same time keep their logical order.
    all.sort_by_key(|entry| entry.at_ms);
    all
}

/// The end reason, without the text of the last failure.
fn reason_of_end(task: &TaskView) -> Option<String> {
    let reason = task.end_reason.as_deref()?;
    let text = task.failures.last().and_then(|failure| reason.strip_suffix(failure.error.as_str()));
    Some(text.unwrap_or(reason).trim_end_matches([':', ' ']).to_owned()).filter(|reason| !reason.is_empty())
}

/// The current step of a task that is neither finished nor claimed.
fn now(task: &TaskView, wall: i64) -> Option<(&'static str, &'static str)> {
    match task.state {
        TaskState::Waiting => Some(("idle", "Waiting for parents")),
        // The timeline already has its due time.
        TaskState::Scheduled if task.run_at_ms.is_some_and(|at| at > wall) => None,
        TaskState::Scheduled => Some(("later", "Scheduled")),
        TaskState::Ready => Some(("idle", "Waiting for a worker")),
        TaskState::Blocked => Some(("warn", "Blocked by its concurrency key")),
        _ => None,
    }
}

fn timeline(task: &TaskView, wall: i64) -> Markup {
    let entries = entries(task);
    let mut before: Option<i64> = None;
    html! {
        section.card aria-labelledby="timeline-title" {
            header { h2 #timeline-title { "Timeline" } @if task.failures.len() >= tenure::port::FAILURES_MAX { span.soft.small { "last " (task.failures.len()) " failures" } } }
            ol.timeline {
                @for entry in &entries {
                    @let ahead = if entry.at_ms > wall { " ahead" } else { "" };
                    li class={ (entry.kind) (ahead) } {
                        (components::state(entry.kind, html! { (entry.what) }))
                        p.soft.small {
                            @if entry.at_ms > wall { (format::until(entry.at_ms, wall)) }
                            @else {
                                (format::utc(entry.at_ms))
                                @if let Some(before) = before.filter(|before| *before < entry.at_ms) { ", after " (format::span((entry.at_ms - before) as u64)) }
                            }
                        }
                        @if let Some(detail) = &entry.detail { pre.error-text { (detail) } }
                    }
                    ({ before = Some(entry.at_ms); "" })
                }
                @if task.state == TaskState::Claimed {
                    li.good.ahead {
                        (components::state("idle", html! { "Running" @if let Some(at) = task.claimed_at_ms { " for " (format::span((wall - at).max(0) as u64)) } }))
                        @if let Some(progress) = &task.progress { p { (progress) } }
                        p.soft.small {
                            @match task.claim_expires_at_ms {
                                Some(at) => { "The claim expires " (format::until(at, wall)) " without a heartbeat." },
                                None => "The claim is extended by the session heartbeat of its worker.",
                            }
                        }
                    }
                } @else if let Some((kind, what)) = now(task, wall) {
                    li.ahead { (components::state(kind, what)) }
                }
            }
        }
    }
}

fn facts(task: &TaskView, ctx: &PageContext) -> Markup {
    // The idempotency key names the tick of a schedule. Show it only if the principal may read the schedule.
    let tick = task.idempotency_key.as_deref().and_then(tick_of);
    let tick = tick.filter(|(schedule, _)| ctx.may(Permission::Read, Some(&schedule.namespace)));
    let text = |text: &Option<String>| html! { @match text { Some(text) => code { (text) }, None => "–" } };
    let span = |ms: Option<u64>| ms.map_or_else(|| "any".into(), format::duration);
    html! {
        section.card aria-labelledby="options" {
            header { h2 #options { "Options" } }
            div.body {
                dl.facts.two {
                    div { dt { "Priority" } dd { (task.priority) } }
                    div { dt { "Attempts" } dd { (task.attempt) " of " (task.max_attempts) } }
                    div { dt { "Required tags" } dd { (components::chips(&task.required_tags)) } }
                    div { dt { "Preferred tags" } dd { (components::chips(&task.preferred_tags)) } }
                    div { dt { "Allowed workers" } dd { @if task.allowed_workers.is_empty() { "any" } @else { (components::chips(&task.allowed_workers)) } } }
                    @if let Some((schedule, at)) = &tick { div { dt { "Schedule tick" } dd { a data-key="tick" href=(components::tick_href(schedule, *at)) { (schedule) } " " span.soft.small { (format::utc(*at)) } } } }
                    div { dt { "Idempotency key" } dd { (text(&task.idempotency_key)) } }
                    div { dt { "Concurrency key" } dd { (text(&task.concurrency_key)) @if task.concurrency_key.is_some() { ", limit " (task.concurrency_limit) } } }
                    div { dt { "Maximum wait" } dd { (span(task.max_wait_ms)) } }
                    div { dt { "Maximum run time" } dd { (span(task.max_run_ms)) } }
                    div { dt { "Session" } dd { @match &task.session { Some(session) => code title=(session) { (session.short()) }, None => "–" } } }
                }
            }
        }
    }
}

fn dependencies(detail: &TaskDetail) -> Markup {
    let task = &detail.task;
    html! {
        @if !task.parents.is_empty() || !task.children.is_empty() {
            section.card aria-labelledby="dependencies-title" {
                header { h2 #dependencies-title { "Dependencies" } }
                div.body {
                    (task_graph::graph(detail))
                    div.across {
                        @if !task.parents.is_empty() {
                            div { p.soft.small { "Parents (" (task_graph::completed_parents(detail)) " of " (task.parents.len()) " completed)" } (task_graph::listed(detail, &task.parents)) }
                        }
                        @if !task.children.is_empty() {
                            div { p.soft.small { "Children" } (task_graph::listed(detail, &task.children)) }
                        }
                    }
                }
            }
        }
    }
}

fn payload_and_result(detail: &TaskDetail) -> Markup {
    html! {
        section.card aria-labelledby="data-title" {
            header { h2 #data-title { "Payload and result" } }
            div.body {
                (json("payload", html! { "Payload" }, &detail.payload, true))
                @for (id, input) in &detail.parent_results { (json(&format!("input-{id}"), html! { "Result of parent " (id) }, input, false)) }
                @match &detail.output {
                    Some(output) => (json("result", html! { "Result" }, output, true)),
                    None if detail.task.state == TaskState::Completed => p.soft { "Completed without a result." },
                    None => {},
                }
            }
        }
    }
}

fn json(id: &str, name: Markup, json: &FormattedPayload, open: bool) -> Markup {
    html! {
        details id={ "fold-" (id) } open[open] {
            summary { (name) ", " (format::number(json.bytes as u64)) " bytes" }
            div.command { pre.json id=(id) tabindex="0" { (json.text) @if !json.whole { "…" } } button.button.slim type="button" data-copy=(id) { "Copy" } }
            @if !json.whole { p.soft.small { "Truncated." } }
        }
    }
}

fn order(action: &str) -> Result<TaskAction, Problem> {
    match action {
        "cancel" => Ok(TaskAction::Cancel),
        "retry" => Ok(TaskAction::Retry),
        other => Err(no_such_action(other, "a task", "cancel or retry")),
    }
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((id, action))): PageParams<Path<(u64, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let (namespace, id) = (at.namespace, TaskId(id));
    let dialog = async {
        let order = order(&action)?;
        let task =
            with_timeout(app.store.task(&namespace, id)).await?.ok_or_else(|| unknown(&namespace, id))?;
        Ok::<_, Problem>((order, task))
    };
    let (order, task) = match dialog.await {
        Ok(found) => found,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    let (to, back) =
        (components::task_href(&namespace, id, &action), components::task_href(&namespace, id, ""));
    let kind = if task.kind.is_empty() { String::new() } else { format!(" ({})", task.kind) };
    let expected_state = html! { input type="hidden" name="expected_state" value=(task.state.as_str()); };
    let dialog = match order {
        TaskAction::Cancel => ConfirmDialog {
            title: format!("Cancel task {id}{kind}?"),
            to,
            back,
            button: "Cancel task",
            danger: true,
            body: html! {
                (expected_state)
                p { @if task.children.is_empty() { "The task is cancelled." } @else { "The task and all tasks that depend on it are cancelled." }
                    @if let Some(worker) = task.worker.as_ref().filter(|_| task.state == TaskState::Claimed) { " " span.strong { (worker) } " runs it: it is notified and its result is rejected." }
                }
            },
        },
        TaskAction::Retry => ConfirmDialog {
            title: format!("Retry task {id}{kind}?"),
            to,
            back,
            button: "Retry",
            danger: false,
            body: html! {
                (expected_state)
                p { "The task is retried at once with all attempts restored (" (task.max_attempts) ")."
                    @if !task.children.is_empty() { " Dependent tasks that ended with it are restored." } }
            },
        },
    };
    dialog.page(&ctx, "Queues")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskActionForm {
    /// The state that the operator saw.
    expected_state: String,
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((id, action))): PageParams<Path<(u64, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<TaskActionForm>,
) -> Response {
    let (namespace, id) = (at.namespace, TaskId(id));
    let message = async {
        let order = order(&action)?;
        let task =
            with_timeout(app.store.task(&namespace, id)).await?.ok_or_else(|| unknown(&namespace, id))?;
        // The task has changed since the operator confirmed the action. An operator who cancels a waiting
        // task may not want to stop a running one.
        if task.state.as_str() != form.expected_state {
            let detail = format!("Task {id} is now {}; nothing was changed.", task.state.as_str());
            return Err(Problem::new(StatusCode::CONFLICT, "task-changed", detail)
                .remedy("Reload the page and try again."));
        }
        let touched = with_timeout(app.store.apply_task_action(&namespace, &[id], order)).await?;
        let applied = !touched.is_empty();
        if applied {
            let others =
                if touched.len() > 1 { format!(", with {} more", touched.len() - 1) } else { String::new() };
            let detail = format!("{} in {}{others}", task.state.as_str(), task.queue);
            ctx.record(&app, &format!("task.{action}"), Some(&namespace), &id.to_string(), detail).await;
        }
        app.queues.invalidate().await;
        Ok(if applied { action.as_str() } else { "nothing" })
    };
    match message.await {
        Ok(message) => ctx.redirect_with_message(&components::task_href(&namespace, id, ""), message),
        Err(problem) => problem_page(&ctx, &problem),
    }
}
