//! One task: its life, what keeps it, what it carries, and its relatives.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Order, QueueKey, TaskId, TaskState, TaskView, Verb, Why};
use tenure_core::schedule::tick_of;

use super::election::within;
use super::frame::{Visit, page, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Question};
use super::pretty::Laid;
use super::queues::{Where, no_such_action};
use super::{graph, words};
use crate::App;
use crate::api::{CANCELLED, RETRIED};
use crate::floor::Life;
use crate::problem::Problem;

/// What the address of a task's page may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
}

fn unknown(namespace: &Name, id: TaskId) -> Problem {
    let detail = format!("there is no task {id} in {namespace}, or it is not remembered any more");
    Problem::new(StatusCode::NOT_FOUND, "no-such-task", detail).remedy("its queue lists those that there are")
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path(id)): Got<Path<u64>>,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let (namespace, id) = (asked.namespace, TaskId(id));
    let life = match app.floor.life(&namespace, id).await {
        Ok(Some(life)) => life,
        Ok(None) => return trouble(&visit, &unknown(&namespace, id)),
        Err(error) => return trouble(&visit, &error.into()),
    };
    let (task, wall) = (&life.task, app.runtime.wall_ms());
    let content = html! {
        (head(task, &visit))
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #why data-live { (keeps(&life, wall)) }
        div #life .pair data-live { (timeline(task, wall)) (facts(task, &visit)) }
        div #family data-live { (family(&life)) }
        div #carries data-live { (carries(&life)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, &format!("Task {id}"), "Queues", content)
}

/// What came of a deed. Only what is written here is ever shown.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "cancel" => "Cancelled, and with it all that waited for it.",
        "retry" => "It is tried again, with as many attempts as it had at first.",
        "submit" => "Submitted. This page follows it by itself.",
        "known" => "It was there already, under the same key; nothing new was submitted.",
        "nothing" => "Nothing to do: by then it was not so any more.",
        _ => return None,
    })
}

fn head(task: &TaskView, visit: &Visit) -> Markup {
    let queue = QueueKey::new(task.namespace.clone(), task.queue.clone());
    let to = |action: &str| parts::task_href(&task.namespace, task.id, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/queues" { "Queues" } " / " (task.namespace) " / " a href=(parts::queue_href(&queue, "")) { (task.queue) } }
                div.title {
                    h1 { "Task " (task.id) }
                    @if !task.kind.is_empty() { span.chip { (task.kind) } }
                    div #state data-live data-says={ "task " (task.id) " is " (task.state.as_str()) } { (parts::task_state(task.state)) }
                }
            }
            @if visit.may(Verb::Admin, Some(&task.namespace)) {
                div #actions .buttons data-live role="group" aria-label="What an operator can do" {
                    @if RETRIED.contains(&task.state) { a.button.main data-key="retry" data-confirm href=(to("retry")) { "Retry…" } }
                    @if CANCELLED.contains(&task.state) { a.button data-key="cancel" data-confirm href=(to("cancel")) { "Cancel…" } }
                }
            }
        }
    }
}

/// What keeps the task from being claimed, in plain words.
fn keeps(life: &Life, wall: i64) -> Markup {
    let task = &life.task;
    let waits = !task.state.is_final() && task.state != TaskState::Claimed;
    html! {
        @if waits && !life.why.is_empty() {
            section.card aria-labelledby="because" {
                header { h2 #because { @if claimable(&life.why) { "It can be claimed now" } @else { "Why it is not claimed" } } }
                ul.reasons { @for why in &life.why { li { (reason(why, task, wall)) } } }
            }
        }
    }
}

fn claimable(why: &[Why]) -> bool {
    why.iter().all(|why| matches!(why, Why::Claimable { .. }))
}

/// A reason, in plain words, and what can be done about it.
fn reason(why: &Why, task: &TaskView, wall: i64) -> Markup {
    let queue = QueueKey::new(task.namespace.clone(), task.queue.clone());
    let listed = |all: &[String]| html! { @for one in all { " " span.chip { (one) } } };
    let said = |what: Markup, then: Markup| html! { p { (what) } p.soft.small { (then) } };
    match why {
        Why::Claimable { workers, ahead } => said(
            html! { (words::count(usize::try_from(*workers).unwrap_or(usize::MAX), "live worker")) @if *workers == 1 { " fits" } @else { " fit" } ", and " (words::number(*ahead)) @if *ahead == 1 { " task stands" } @else { " tasks stand" } " before it." },
            html! { "It is claimed as soon as one of them has room." },
        ),
        Why::NotWaiting { state } => html! { p { "It does not wait: it is " (state.as_str()) "." } },
        Why::Paused { pause } => said(
            html! { span.strong { "Paused" } " by " (pause.by) ", " (words::ago(pause.at_ms, wall)) @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } "." },
            html! { "Resume " a href=(parts::queue_href(&queue, "")) { (queue.name) } ", or the whole namespace." },
        ),
        Why::NotDue { run_at_ms } => said(
            html! { "Its time " span.strong { "comes " (words::until(*run_at_ms, wall)) } "." },
            html! { @if task.attempt > 0 { "That is when the next attempt is due. " } "Retry it to have it claimed at once." },
        ),
        Why::Parents { tasks } => said(
            html! { "It waits for " @for (n, id) in tasks.iter().take(12).enumerate() { @if n > 0 { ", " } a href=(parts::task_href(&task.namespace, *id, "")) { "task " (id) } } @if tasks.len() > 12 { " and " (tasks.len() - 12) " more" } "." },
            html! { "It can be claimed when all of them are completed, and shares their fate if one is not." },
        ),
        Why::Concurrency { key, limit } => said(
            html! { "At most " span.strong { (limit) } " with the concurrency key " code { (key) } @if *limit == 1 { " is" } @else { " are" } " claimed at once, and as many are." },
            html! { "It is next when one of them ends." },
        ),
        Why::QueueLimit { limit } => said(
            html! { "At most " span.strong { (words::number((*limit).into())) } " tasks of the queue are claimed at once, and as many are." },
            html! { "The queue's settings say so." },
        ),
        Why::Rate { next_in_ms } => said(
            html! { "The queue's rate is used up; the next task may begin in " span.strong { (words::span(*next_in_ms)) } "." },
            html! { "The queue's settings say so." },
        ),
        Why::NoWorkers => said(
            html! { span.strong { "No live worker" } " works on " (queue.name) "." },
            html! { "Start one: " code { "tenure work " (queue.name) " -- COMMAND" } },
        ),
        Why::NoWorkerWithTags { tags } => said(
            html! { "No live worker has the tags that it requires:" span.strong { (listed(tags)) } },
            html! { "Start a worker that has them." },
        ),
        Why::NoWorkerForKind { kind } => said(
            html! { "No live worker knows the kind " span.strong { (kind) } "." },
            html! { "Start one that does, or one that takes every kind." },
        ),
        Why::NamedWorkersAway { workers } => said(
            html! { "It is meant for workers that are not there:" span.strong { (listed(workers)) } },
            html! { "It waits until one of them is." },
        ),
        Why::NoApprovedWorker { pending } => said(
            html! { "The queue wants approved workers, and those that fit are not:" span.strong { (listed(pending)) } },
            html! { "Approve one among the " a href="/workers" { "workers" } "." },
        ),
        Why::NoLeader => said(
            html! { "The queue is exclusive, and " span.strong { "nobody leads" } "." },
            html! { "The election " code { "tenure/claims" } " decides who hands out." },
        ),
    }
}

/// Something in a task's life.
struct Moment {
    at_ms: i64,
    kind: &'static str,
    what: Markup,
    detail: Option<String>,
}

/// What happened to a task, the oldest first, as far as it is remembered: every failure, and of the last attempt all.
fn moments(task: &TaskView) -> Vec<Moment> {
    let plain = |at_ms, kind, what: Markup| Moment { at_ms, kind, what, detail: None };
    let mut all = vec![plain(
        task.enqueued_at_ms,
        "start",
        html! {
            "Submitted" @if let Some(token) = task.leader_token { " by a leader, under token " span.token { (token) } }
        },
    )];
    let due = task.run_at_ms.filter(|at| *at > task.enqueued_at_ms);
    if let Some(at) = due {
        let again = task.failures.first().is_some_and(|failure| failure.at_ms <= at);
        all.push(plain(at, "later", html! { @if again { "Next attempt due" } @else { "Due" } }));
    }
    if let Some(at) = task.ready_at_ms.filter(|at| Some(*at) != due) {
        all.push(plain(at, "next", html! { "Ready to be claimed" }));
    }
    if let Some(at) = task.claimed_at_ms {
        let who = task.worker.as_deref().unwrap_or("a worker");
        all.push(plain(at, "good", html! {
            "Claimed by " span.strong { (who) } ", attempt " (task.attempt) ", token " span.token { (task.token) }
            @if let Some(turn) = task.turn { ", turn " (words::number(turn)) }
        }));
    }
    for failure in &task.failures {
        let what = html! { "Attempt " (failure.attempt) " failed" @if !failure.worker.is_empty() { " at " span.strong { (failure.worker) } } };
        all.push(Moment { at_ms: failure.at_ms, kind: "bad", what, detail: Some(failure.error.clone()) });
    }
    if let Some(at_ms) = task.finished_at_ms {
        let (kind, what) = match task.state {
            TaskState::Completed => ("done", "Completed"),
            TaskState::Cancelled => ("off", "Cancelled"),
            _ => ("bad", "Dead"),
        };
        all.push(Moment { at_ms, kind, what: html! { (what) }, detail: reason_of_end(task) });
    }
    // Of what happened at the same time, what comes first in a life comes first here: the sort is stable.
    all.sort_by_key(|moment| moment.at_ms);
    all
}

/// Why it ended, without what the last failure said already.
fn reason_of_end(task: &TaskView) -> Option<String> {
    let reason = task.reason.as_deref()?;
    let said = task.failures.last().and_then(|failure| reason.strip_suffix(failure.error.as_str()));
    Some(said.unwrap_or(reason).trim_end_matches([':', ' ']).to_owned()).filter(|reason| !reason.is_empty())
}

/// What a task does now, if it is not over and nobody has it.
fn now(task: &TaskView, wall: i64) -> Option<(&'static str, &'static str)> {
    match task.state {
        TaskState::Waiting => Some(("idle", "Waits for its parents")),
        // When it is due stands there already.
        TaskState::Scheduled if task.run_at_ms.is_some_and(|at| at > wall) => None,
        TaskState::Scheduled => Some(("later", "Waits for its time")),
        TaskState::Ready => Some(("idle", "Waits for a worker")),
        TaskState::Held => Some(("warn", "Held back: others with its concurrency key are claimed")),
        _ => None,
    }
}

fn timeline(task: &TaskView, wall: i64) -> Markup {
    let moments = moments(task);
    let mut before: Option<i64> = None;
    html! {
        section.card aria-labelledby="lived" {
            header { h2 #lived { "Its life" } @if task.failures.len() >= tenure::port::FAILURES_KEPT { span.soft.small { "the last " (task.failures.len()) " failures" } } }
            ol.life {
                @for moment in &moments {
                    @let ahead = if moment.at_ms > wall { " ahead" } else { "" };
                    li class={ (moment.kind) (ahead) } {
                        (parts::state(moment.kind, html! { (moment.what) }))
                        p.soft.small {
                            @if moment.at_ms > wall { (words::until(moment.at_ms, wall)) }
                            @else {
                                (words::utc(moment.at_ms))
                                @if let Some(before) = before.filter(|before| *before < moment.at_ms) { ", " (words::span((moment.at_ms - before) as u64)) " later" }
                            }
                        }
                        @if let Some(detail) = &moment.detail { pre.said { (detail) } }
                    }
                    ({ before = Some(moment.at_ms); "" })
                }
                @if task.state == TaskState::Claimed {
                    li.good.ahead {
                        (parts::state("idle", html! { "Under way" @if let Some(at) = task.claimed_at_ms { " for " (words::span((wall - at).max(0) as u64)) } }))
                        @if let Some(progress) = &task.progress { p { (progress) } }
                        p.soft.small {
                            @match task.deadline_ms {
                                Some(at) => { "The claim ends " (words::until(at, wall)) " unless it is extended." },
                                None => "The claim lives on its worker's beat.",
                            }
                        }
                    }
                } @else if let Some((kind, what)) = now(task, wall) {
                    li.ahead { (parts::state(kind, what)) }
                }
            }
        }
    }
}

fn facts(task: &TaskView, visit: &Visit) -> Markup {
    // A tick of a schedule, told by the key: for those who may see the schedule.
    let tick = task.key.as_deref().and_then(tick_of);
    let tick = tick.filter(|(schedule, _)| visit.may(Verb::Read, Some(&schedule.namespace)));
    let text = |text: &Option<String>| html! { @match text { Some(text) => code { (text) }, None => "–" } };
    let span = |ms: Option<u64>| ms.map_or_else(|| "any".into(), words::duration);
    html! {
        section.card aria-labelledby="asks" {
            header { h2 #asks { "What it asks for" } }
            div.body {
                dl.facts.two {
                    div { dt { "Priority" } dd { (task.priority) } }
                    div { dt { "Attempts" } dd { (task.attempt) " of " (task.max_attempts) } }
                    div { dt { "Required tags" } dd { (parts::chips(&task.requires)) } }
                    div { dt { "Preferred tags" } dd { (parts::chips(&task.prefers)) } }
                    div { dt { "Meant for" } dd { @if task.workers.is_empty() { "any worker" } @else { (parts::chips(&task.workers)) } } }
                    @if let Some((schedule, at)) = &tick { div { dt { "Tick of" } dd { a data-key="tick" href=(parts::tick_href(schedule, *at)) { (schedule) } " " span.soft.small { (words::utc(*at)) } } } }
                    div { dt { "Idempotency key" } dd { (text(&task.key)) } }
                    div { dt { "Concurrency key" } dd { (text(&task.concurrency_key)) @if task.concurrency_key.is_some() { " at most " (task.concurrency_limit) } } }
                    div { dt { "Longest wait" } dd { (span(task.max_wait_ms)) } }
                    div { dt { "Longest run" } dd { (span(task.max_run_ms)) } }
                    div { dt { "Session" } dd { @match &task.session { Some(session) => code title=(session) { (session.short()) }, None => "–" } } }
                }
            }
        }
    }
}

fn family(life: &Life) -> Markup {
    let task = &life.task;
    html! {
        @if !task.parents.is_empty() || !task.children.is_empty() {
            section.card aria-labelledby="relatives" {
                header { h2 #relatives { "Its relatives" } }
                div.body {
                    (graph::picture(life))
                    div.across {
                        @if !task.parents.is_empty() {
                            div { p.soft.small { "It needs (" (graph::done(life)) " of " (task.parents.len()) " completed)" } (graph::listed(life, &task.parents)) }
                        }
                        @if !task.children.is_empty() {
                            div { p.soft.small { "These need it" } (graph::listed(life, &task.children)) }
                        }
                    }
                }
            }
        }
    }
}

fn carries(life: &Life) -> Markup {
    html! {
        section.card aria-labelledby="carried" {
            header { h2 #carried { "What it carries" } }
            div.body {
                (json("payload", html! { "Payload" }, &life.payload, true))
                @for (id, input) in &life.inputs { (json(&format!("input-{id}"), html! { "Input from task " (id) }, input, false)) }
                @match &life.output {
                    Some(output) => (json("output", html! { "Output" }, output, true)),
                    None if life.task.state == TaskState::Completed => p.soft { "It was completed without an output." },
                    None => {},
                }
            }
        }
    }
}

fn json(id: &str, name: Markup, json: &Laid, open: bool) -> Markup {
    html! {
        details id={ "fold-" (id) } open[open] {
            summary { (name) ", " (words::number(json.bytes as u64)) " bytes" }
            div.command { pre.json id=(id) tabindex="0" { (json.text) @if !json.whole { "…" } } button.button.slim type="button" data-copy=(id) { "Copy" } }
            @if !json.whole { p.soft.small { "Only the beginning is shown." } }
        }
    }
}

fn order(action: &str) -> Result<Order, Problem> {
    match action {
        "cancel" => Ok(Order::Cancel),
        "retry" => Ok(Order::Retry),
        other => Err(no_such_action(other, "a task", "cancel and retry")),
    }
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((id, action))): Got<Path<(u64, String)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let (namespace, id) = (at.namespace, TaskId(id));
    let asked = async {
        let order = order(&action)?;
        let task = within(app.store.task(&namespace, id)).await?.ok_or_else(|| unknown(&namespace, id))?;
        Ok::<_, Problem>((order, task))
    };
    let (order, task) = match asked.await {
        Ok(asked) => asked,
        Err(problem) => return trouble(&visit, &problem),
    };
    let (to, back) = (parts::task_href(&namespace, id, &action), parts::task_href(&namespace, id, ""));
    let kind = if task.kind.is_empty() { String::new() } else { format!(" ({})", task.kind) };
    let seen = html! { input type="hidden" name="seen" value=(task.state.as_str()); };
    let question = match order {
        Order::Cancel => Question {
            title: format!("Cancel task {id}{kind}?"),
            to,
            back,
            button: "Cancel the task",
            danger: true,
            body: html! {
                (seen)
                p { "It is called off"
                    @if !task.children.is_empty() { ", and with it all that wait for it" }
                    "."
                    @if let Some(worker) = task.worker.as_ref().filter(|_| task.state == TaskState::Claimed) { " " span.strong { (worker) } " has it: it is told, and refused if it goes on." }
                }
            },
        },
        Order::Retry => Question {
            title: format!("Retry task {id}{kind}?"),
            to,
            back,
            button: "Retry",
            danger: false,
            body: html! {
                (seen)
                p { "It gets another attempt at once, with as many to follow as it had at first (" (task.max_attempts) ")."
                    @if !task.children.is_empty() { " Tasks that shared its fate come back with it." } }
            },
        },
    };
    question.page(&visit, "Queues")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deed {
    /// The state that the operator saw.
    seen: String,
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((id, action))): Got<Path<(u64, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(deed): Posted<Deed>,
) -> Response {
    let (namespace, id) = (at.namespace, TaskId(id));
    let done = async {
        let order = order(&action)?;
        let task = within(app.store.task(&namespace, id)).await?.ok_or_else(|| unknown(&namespace, id))?;
        // Whoever wanted to call off what waited may not want to stop what runs.
        if task.state.as_str() != deed.seen {
            let detail = format!("task {id} is {} since you looked; nothing was done", task.state.as_str());
            return Err(
                Problem::new(StatusCode::CONFLICT, "task-changed", detail).remedy("look again, then decide")
            );
        }
        let touched = within(app.store.order(&namespace, &[id], order)).await?;
        let happened = !touched.is_empty();
        if happened {
            let others =
                if touched.len() > 1 { format!(", with {} more", touched.len() - 1) } else { String::new() };
            let detail = format!("{} in {}{others}", task.state.as_str(), task.queue);
            visit.record(&app, &format!("task.{action}"), Some(&namespace), &id.to_string(), detail).await;
        }
        app.floor.changed().await;
        Ok(if happened { action.as_str() } else { "nothing" })
    };
    match done.await {
        Ok(done) => visit.tell(&parts::task_href(&namespace, id, ""), done),
        Err(problem) => trouble(&visit, &problem),
    }
}
