//! The workers: who they are, what they can do, how busy they are; approved and disapproved here.

use std::collections::BTreeSet;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{QueueKey, Verb, WorkerView};

use super::election::within;
use super::frame::{Visit, page, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Question};
use super::queues::{Filter, Where, no_such_action};
use super::{first, words};
use crate::App;
use crate::problem::Problem;

/// More than this are not read by anybody; the filter finds the others.
const SHOWN: usize = 200;

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Query(filter)): Got<Query<Filter>>,
) -> Response {
    let all = match app.floor.workers().await {
        Ok(all) => all,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let visible: Vec<_> = all.iter().filter(|view| visit.may(Verb::Read, Some(&view.namespace))).collect();
    let content = html! {
        div.head { div {
            h1 { "Workers" }
            p { "Who works on what. A worker is here from when it makes itself known; its claims hang on its session, not on its name." }
        } }
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #workers data-live {
            @if visible.is_empty() { (first::workers(&visit)) } @else { (listed(&visible, &filter, &visit, app.runtime.wall_ms())) }
        }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, "Workers", "Workers", content)
}

fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "approve" => "Approved. It gets tasks of queues that want approval from now on.",
        "disapprove" => {
            "Withdrawn. It gets no more tasks of queues that want approval; what it has it may finish."
        }
        "already" => "Nothing to do: it was so already.",
        _ => return None,
    })
}

fn listed(visible: &[&WorkerView], filter: &Filter, visit: &Visit, wall: i64) -> Markup {
    let namespaces: BTreeSet<_> = visible.iter().map(|view| &view.namespace).collect();
    let mut found: Vec<_> = visible
        .iter()
        .filter(|view| {
            let worker = &view.worker;
            let queues = worker.queues.iter().map(|queue| queue.as_str());
            let words = [worker.name.as_str(), worker.kind.as_str(), worker.location.as_str()];
            let texts = worker.tags.iter().chain(&worker.kinds).map(String::as_str);
            filter.lets_through(&view.namespace, words.into_iter().chain(texts).chain(queues))
        })
        .copied()
        .collect();
    // Those that wait for somebody to look at them, then those that live.
    found.sort_by(|a, b| {
        (!a.live, &a.namespace, &a.worker.name).cmp(&(!b.live, &b.namespace, &b.worker.name))
    });
    let live = found.iter().filter(|view| view.live).count();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { (live) " of " (words::count(found.len(), "worker")) " live" }
                (filter.form("/workers", "Name, tag, kind or queue", &namespaces))
            }
            @if found.is_empty() { p.empty { "No worker matches. " a href="/workers" { "Show all" } } }
            @else {
                (table(&found[..found.len().min(SHOWN)], namespaces.len() > 1, visit, wall))
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more are not shown; the filter finds them." } }
            }
        }
    }
}

/// Workers as a table.
pub(super) fn table(workers: &[&WorkerView], several: bool, visit: &Visit, wall: i64) -> Markup {
    let operator = workers.iter().any(|view| visit.may(Verb::Admin, Some(&view.namespace)));
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Worker" } th scope="col" { "State" } th scope="col" { "Load" } th scope="col" { "Queues" }
                th scope="col" { "Kinds and tags" } th scope="col" { "Last seen" } th scope="col" { "Approved" }
                @if operator { th scope="col" { span.hidden { "Action" } } }
            } }
            tbody { @for view in workers { (row(view, several, operator, visit, wall)) } }
        }
    }
}

fn row(view: &WorkerView, several: bool, operator: bool, visit: &Visit, wall: i64) -> Markup {
    let worker = &view.worker;
    let admin = visit.may(Verb::Admin, Some(&view.namespace));
    html! {
        tr data-key=(format!("worker-{}/{}", view.namespace, worker.name)) .gone[!view.live] {
            th scope="row" {
                span {
                    (worker.name)
                    @if several { " " span.chip { (view.namespace) } }
                }
                @if !worker.location.is_empty() || !worker.kind.is_empty() {
                    div.soft.small { (worker.kind) @if !worker.kind.is_empty() && !worker.location.is_empty() { ", " } (worker.location) }
                }
            }
            td data-label="State" { @if view.live { (parts::state("good", "lives")) } @else { (parts::state("off", "gone")) } }
            td data-label="Load" { (load(view)) }
            td data-label="Queues" {
                div.chips {
                    @for queue in &worker.queues { a.chip href=(parts::queue_href(&QueueKey::new(view.namespace.clone(), queue.clone()), "")) { (queue) } }
                    @if worker.queues.is_empty() { span.soft { "–" } }
                }
            }
            td.wide data-label="Kinds and tags" {
                div.chips {
                    @if worker.kinds.is_empty() { span.soft.small { "every kind" } }
                    @for kind in &worker.kinds { span.chip.lead title="It knows this kind" { (kind) } }
                    @for tag in &worker.tags { span.chip title="It has this tag" { (tag) } }
                }
            }
            td.nowrap data-label="Last seen" { (words::ago(view.seen_at_ms, wall)) }
            td data-label="Approved" { @match &view.approved_by { Some(by) => (parts::state("done", html! { "by " (by) })), None => span.soft { "–" } } }
            @if operator {
                td.num.whole {
                    @if admin {
                        @let action = if view.approved_by.is_some() { "disapprove" } else { "approve" };
                        a.button.slim data-key=(action) data-confirm href=(parts::place("workers", &worker.name, action, &view.namespace)) {
                            @if view.approved_by.is_some() { "Disapprove…" } @else { "Approve…" }
                            span.hidden { " " (worker.name) }
                        }
                    }
                }
            }
        }
    }
}

fn load(view: &WorkerView) -> Markup {
    let capacity = u64::from(view.worker.capacity);
    html! {
        @if capacity > 0 {
            span.load {
                progress max=(capacity) value=(view.claimed.min(capacity)) aria-label={ "Load of " (view.worker.name) } {}
                span.small.nowrap { (view.claimed) " of " (capacity) }
            }
        } @else { (view.claimed) }
    }
}

fn is_approval(action: &str) -> Result<bool, Problem> {
    match action {
        "approve" => Ok(true),
        "disapprove" => Ok(false),
        other => Err(no_such_action(other, "a worker", "approve and disapprove")),
    }
}

pub(super) async fn question(
    visit: Visit,
    Got(Path((worker, action))): Got<Path<(String, String)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let approve = match is_approval(&action) {
        Ok(approve) => approve,
        Err(problem) => return trouble(&visit, &problem),
    };
    let to = parts::place("workers", &worker, &action, &at.namespace);
    let question = match approve {
        true => Question {
            title: format!("Approve {worker}?"),
            to,
            back: "/workers".into(),
            button: "Approve",
            danger: false,
            body: html! { p { "Whoever works under this name in " span.strong { (at.namespace) } " gets tasks of queues that want approval." } },
        },
        false => Question {
            title: format!("Disapprove {worker}?"),
            to,
            back: "/workers".into(),
            button: "Disapprove",
            danger: true,
            body: html! { p { "It gets no more tasks of queues that want approval. What it has it may finish." } },
        },
    };
    question.page(&visit, "Workers")
}

/// Nothing more is to be said.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((worker, action))): Got<Path<(String, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(Nothing {}): Posted<Nothing>,
) -> Response {
    let done = async {
        let by = is_approval(&action)?.then(|| visit.name());
        crate::api::short("worker", &worker)?;
        let happened = within(app.store.approve(&at.namespace, &worker, by)).await?;
        if happened {
            visit
                .record(&app, &format!("worker.{action}"), Some(&at.namespace), &worker, String::new())
                .await;
        }
        app.floor.changed().await;
        let done = if happened { &action } else { "already" };
        Ok(visit.tell("/workers", done))
    };
    done.await.unwrap_or_else(|problem: Problem| trouble(&visit, &problem))
}
