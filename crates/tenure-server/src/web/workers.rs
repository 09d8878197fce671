//! The page of all workers, and their approval.

use std::collections::BTreeSet;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{Permission, QueueKey, WorkerView};

use super::components::{self, ConfirmDialog};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::layout::{PageContext, page, problem_page};
use super::queues::{NamespaceQuery, QueuesPageQuery, no_such_action};
use super::{format, getting_started};
use crate::App;
use crate::problem::Problem;

/// Maximum number of rows; the filter narrows the list.
const SHOWN: usize = 200;

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(filter)): PageParams<Query<QueuesPageQuery>>,
) -> Response {
    let all = match app.queues.workers().await {
        Ok(all) => all,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let visible: Vec<_> =
        all.iter().filter(|view| ctx.may(Permission::Read, Some(&view.namespace))).collect();
    let content = html! {
        div.head { div {
            h1 { "Workers" }
            p { "Registered workers, their queues and load. Claims belong to the session of a worker, not to its name." }
        } }
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #workers data-live {
            @if visible.is_empty() { (getting_started::workers(&ctx)) } @else { (listed(&visible, &filter, &ctx, app.runtime.wall_ms())) }
        }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, "Workers", "Workers", content)
}

fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "approve" => "Approved. The worker can claim from queues that require approval.",
        "revoke-approval" => "Approval revoked. The worker can finish its claimed tasks.",
        "already" => "No change: already in that state.",
        _ => return None,
    })
}

fn listed(visible: &[&WorkerView], filter: &QueuesPageQuery, ctx: &PageContext, wall: i64) -> Markup {
    let namespaces: BTreeSet<_> = visible.iter().map(|view| &view.namespace).collect();
    let mut found: Vec<_> = visible
        .iter()
        .filter(|view| {
            let worker = &view.worker;
            let queues = worker.queues.iter().map(|queue| queue.as_str());
            let words = [worker.name.as_str(), worker.description.as_str(), worker.location.as_str()];
            let texts = worker.tags.iter().chain(&worker.task_kinds).map(String::as_str);
            filter.matches(&view.namespace, words.into_iter().chain(texts).chain(queues))
        })
        .copied()
        .collect();
    // Online workers first.
    found.sort_by(|a, b| {
        (!a.online, &a.namespace, &a.worker.name).cmp(&(!b.online, &b.namespace, &b.worker.name))
    });
    let live = found.iter().filter(|view| view.online).count();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { (live) " of " (format::count(found.len(), "worker")) " online" }
                (filter.form("/workers", "Search by name, tag, kind or queue", &namespaces))
            }
            @if found.is_empty() { p.empty { "No matching workers. " a href="/workers" { "Clear filter" } } }
            @else {
                (table(&found[..found.len().min(SHOWN)], namespaces.len() > 1, ctx, wall))
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more; use the filter." } }
            }
        }
    }
}

/// A table of workers.
pub(super) fn table(workers: &[&WorkerView], several: bool, ctx: &PageContext, wall: i64) -> Markup {
    let operator = workers.iter().any(|view| ctx.may(Permission::Admin, Some(&view.namespace)));
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Worker" } th scope="col" { "State" } th scope="col" { "Load" } th scope="col" { "Queues" }
                th scope="col" { "Kinds and tags" } th scope="col" { "Last seen" } th scope="col" { "Approved" }
                @if operator { th scope="col" { span.hidden { "Action" } } }
            } }
            tbody { @for view in workers { (row(view, several, operator, ctx, wall)) } }
        }
    }
}

fn row(view: &WorkerView, several: bool, operator: bool, ctx: &PageContext, wall: i64) -> Markup {
    let worker = &view.worker;
    let admin = ctx.may(Permission::Admin, Some(&view.namespace));
    html! {
        tr data-key=(format!("worker-{}/{}", view.namespace, worker.name)) .inactive[!view.online] {
            th scope="row" {
                span {
                    (worker.name)
                    @if several { " " span.chip { (view.namespace) } }
                }
                @if !worker.location.is_empty() || !worker.description.is_empty() {
                    div.soft.small { (worker.description) @if !worker.description.is_empty() && !worker.location.is_empty() { ", " } (worker.location) }
                }
            }
            td data-label="State" { @if view.online { (components::state("good", "Online")) } @else { (components::state("off", "Offline")) } }
            td data-label="Load" { (load(view)) }
            td data-label="Queues" {
                div.chips {
                    @for queue in &worker.queues { a.chip href=(components::queue_href(&QueueKey::new(view.namespace.clone(), queue.clone()), "")) { (queue) } }
                    @if worker.queues.is_empty() { span.soft { "–" } }
                }
            }
            td.wide data-label="Kinds and tags" {
                div.chips {
                    @if worker.task_kinds.is_empty() { span.soft.small { "all kinds" } }
                    @for kind in &worker.task_kinds { span.chip.lead title="Accepts this kind" { (kind) } }
                    @for tag in &worker.tags { span.chip title="Has this tag" { (tag) } }
                }
            }
            td.nowrap data-label="Last seen" { (format::ago(view.last_seen_at_ms, wall)) }
            td data-label="Approved" { @match &view.approved_by { Some(by) => (components::state("done", html! { "by " (by) })), None => span.soft { "–" } } }
            @if operator {
                td.num.whole {
                    @if admin {
                        @let action = if view.approved_by.is_some() { "revoke-approval" } else { "approve" };
                        a.button.slim data-key=(action) data-confirm href=(components::object_href("workers", &worker.name, action, &view.namespace)) {
                            @if view.approved_by.is_some() { "Revoke approval…" } @else { "Approve…" }
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
                progress max=(capacity) value=(view.claimed_count.min(capacity)) aria-label={ "Load of " (view.worker.name) } {}
                span.small.nowrap { (view.claimed_count) " of " (capacity) }
            }
        } @else { (view.claimed_count) }
    }
}

fn is_approval(action: &str) -> Result<bool, Problem> {
    match action {
        "approve" => Ok(true),
        "revoke-approval" => Ok(false),
        other => Err(no_such_action(other, "a worker", "approve or revoke-approval")),
    }
}

pub(super) async fn confirm(
    ctx: PageContext,
    PageParams(Path((worker, action))): PageParams<Path<(String, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let approve = match is_approval(&action) {
        Ok(approve) => approve,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    let to = components::object_href("workers", &worker, &action, &at.namespace);
    let question = match approve {
        true => ConfirmDialog {
            title: format!("Approve {worker}?"),
            to,
            back: "/workers".into(),
            button: "Approve",
            danger: false,
            body: html! { p { "Workers with this name in " span.strong { (at.namespace) } " can claim from queues that require approval." } },
        },
        false => ConfirmDialog {
            title: format!("Revoke the approval of {worker}?"),
            to,
            back: "/workers".into(),
            button: "Revoke approval",
            danger: true,
            body: html! { p { "The worker can no longer claim from queues that require approval. It can finish its claimed tasks." } },
        },
    };
    question.page(&ctx, "Workers")
}

/// A form without fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EmptyForm {}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((worker, action))): PageParams<Path<(String, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(EmptyForm {}): FormBody<EmptyForm>,
) -> Response {
    let message = async {
        let by = is_approval(&action)?.then(|| ctx.name());
        crate::api::validate_display_text("worker", &worker)?;
        let applied = with_timeout(app.store.set_worker_approval(&at.namespace, &worker, by)).await?;
        if applied {
            ctx.record(
                &app,
                &format!("worker.{}", action.replace('-', "_")),
                Some(&at.namespace),
                &worker,
                String::new(),
            )
            .await;
        }
        app.queues.invalidate().await;
        let message = if applied { &action } else { "already" };
        Ok(ctx.redirect_with_message("/workers", message))
    };
    message.await.unwrap_or_else(|problem: Problem| problem_page(&ctx, &problem))
}
