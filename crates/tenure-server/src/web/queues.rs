//! The page of all queues, and actions on a namespace.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{Pause, Permission, TaskState, broker_election};
use tenure::{BootInstant, Name};

use super::components::{self, ConfirmDialog};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::layout::{PageContext, page, problem_page};
use super::{chart, format, getting_started};
use crate::App;
use crate::problem::Problem;
use crate::snapshot::elections::ElectionsSnapshot;
use crate::snapshot::queues::QueueHistory;

/// Maximum number of rows; the filter narrows the list.
const SHOWN: usize = 200;

/// The filter of a list page.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueuesPageQuery {
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) q: String,
}

impl QueuesPageQuery {
    pub(super) fn is_empty(&self) -> bool {
        self.namespace.is_empty() && self.q.trim().is_empty()
    }

    /// Whether an object in this namespace with these words matches the filter.
    pub(super) fn matches<'w>(&self, namespace: &Name, words: impl IntoIterator<Item = &'w str>) -> bool {
        let needle = self.q.trim().to_lowercase();
        let here = self.namespace.is_empty() || namespace.as_str() == self.namespace;
        here && (needle.is_empty() || words.into_iter().any(|word| word.to_lowercase().contains(&needle)))
    }

    /// The form of the filter, in the header of a list.
    pub(super) fn form(&self, action: &str, what: &str, namespaces: &BTreeSet<&Name>) -> Markup {
        html! {
            form.filter data-keep method="get" action=(action) role="search" {
                @if namespaces.len() > 1 {
                    label.hidden for="namespace" { "Namespace" }
                    select #namespace name="namespace" {
                        option value="" { "All namespaces" }
                        @for name in namespaces {
                            option value=(name) selected[name.as_str() == self.namespace] { (name) }
                        }
                    }
                }
                label.hidden for="q" { (what) }
                input #q type="search" name="q" value=(self.q) placeholder=(what);
                button.button { "Filter" }
                @if !self.is_empty() { a.button href=(action) { "Clear filter" } }
            }
        }
    }
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(filter)): PageParams<Query<QueuesPageQuery>>,
) -> Response {
    let snapshot = match app.queues.queues().await {
        Ok(snapshot) => snapshot,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let visible: Vec<_> = snapshot
        .queues
        .values()
        .filter(|track| ctx.may(Permission::Read, Some(&track.view.key.namespace)))
        .collect();
    let elections = app.elections.snapshot();
    let now = app.runtime.now();
    let content = html! {
        div.head {
            div {
                h1 { "Queues" }
                p { "Task counts, throughput and state of every queue." }
                div #broker data-live { (broker(&elections, &ctx)) }
            }
            (actions(&ctx, &filter, &visible))
        }
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #queues data-live {
            @if visible.is_empty() { (getting_started::queues(&ctx)) } @else { (table(&visible, &filter, now)) }
        }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, "Queues", "Queues", content)
}

/// The broker of exclusive queues, if the principal may read its election.
fn broker(snapshot: &ElectionsSnapshot, ctx: &PageContext) -> Markup {
    let key = broker_election();
    let view = snapshot.elections.get(&key).filter(|_| ctx.may(Permission::Read, Some(&key.namespace)));
    html! {
        @if let Some(view) = view {
            p {
                "Broker of exclusive queues: "
                a href=(components::href(&key, "")) {
                    @match view.holders().next() { Some((_, holder)) => (components::holder_name(view, holder)), None => "none" }
                }
                ". It also recovers lost claims."
            }
        }
    }
}

/// The actions on a namespace: on the selected one, or on the only one.
fn actions(ctx: &PageContext, filter: &QueuesPageQuery, visible: &[&Arc<QueueHistory>]) -> Markup {
    let namespaces: BTreeSet<_> = visible.iter().map(|track| &track.view.key.namespace).collect();
    let selected = namespaces.iter().find(|name| name.as_str() == filter.namespace);
    let only = namespaces.first().filter(|_| namespaces.len() == 1);
    let here = selected.or(only).copied();
    let submit = here.cloned().unwrap_or_else(Name::default_namespace);
    let to = |action: &str, name: &Name| {
        format!("/namespace/{action}?namespace={}", components::escape(name.as_str()))
    };
    html! {
        div.buttons role="group" aria-label="Actions" {
            @if ctx.may(Permission::Claim, Some(&submit)) {
                a.button data-key="submit" href={ "/tasks/new?namespace=" (components::escape(submit.as_str())) } { "Submit task…" }
            }
            @if let Some(name) = here.filter(|name| ctx.may(Permission::Admin, Some(name))) {
                a.button data-key="pause-all" data-confirm href=(to("pause", name)) { "Pause all…" }
                a.button data-key="resume-all" data-confirm href=(to("resume", name)) { "Resume all…" }
            }
        }
    }
}

fn table(visible: &[&Arc<QueueHistory>], filter: &QueuesPageQuery, now: BootInstant) -> Markup {
    let namespaces: BTreeSet<_> = visible.iter().map(|track| &track.view.key.namespace).collect();
    let several = namespaces.len() > 1;
    let found: Vec<_> = visible
        .iter()
        .filter(|track| filter.matches(&track.view.key.namespace, [track.view.key.name.as_str()]))
        .collect();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "Queues" } @else { (found.len()) " of " (format::count(visible.len(), "queue")) } }
                (filter.form("/queues", "Search by queue", &namespaces))
            }
            @if found.is_empty() {
                p.empty { "No matching queues. " a href="/queues" { "Clear filter" } }
            } @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Queue" } th scope="col" { "State" } th scope="col" { "Mode" } th scope="col" { "Tasks" }
                        th scope="col" { "Oldest ready task" } th scope="col" { "Throughput" }
                    } }
                    tbody { @for track in found.iter().take(SHOWN) { (row(track, several, now)) } }
                }
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more; use the filter." } }
                div.key { (chart::legend()) }
            }
        }
    }
}

fn row(track: &QueueHistory, several: bool, now: BootInstant) -> Markup {
    let view = &track.view;
    html! {
        tr data-key=(format!("queue-{}/{}", view.key.namespace, view.key.name)) data-announce=(announcement(track)) {
            th scope="row" {
                span {
                    a href=(components::queue_href(&view.key, "")) { (view.key.name) }
                    @if several { " " span.chip { (view.key.namespace) } }
                }
            }
            td data-label="State" { (state(track)) }
            td data-label="Mode" { (view.settings.mode.as_str()) }
            td.wide.deep data-label="Tasks" { (chart::depth(view)) }
            td.nowrap.none[view.oldest_ready_age_ms.is_none()] data-label="Oldest ready task" {
                @match view.oldest_ready_age_ms { Some(ms) => (format::span(ms)), None => span.soft { "–" } }
            }
            td data-label="Throughput" { (chart::spark(track, now)) }
        }
    }
}

/// The state of a queue.
pub(super) fn state(track: &QueueHistory) -> Markup {
    let view = &track.view;
    let count = |state| view.count(state);
    let waits = count(TaskState::Ready) + count(TaskState::Blocked);
    let claimed = count(TaskState::Claimed);
    match (&view.paused, waits, claimed) {
        (Some(_), _, _) => components::state("warn", "Paused"),
        (None, 0, 0) => components::state("idle", "Idle"),
        (None, _, 0) if track.rate() == 0.0 => components::state("next", "Backlogged"),
        _ => components::state("good", "Active"),
    }
}

/// The state of a queue for screen readers: only whether it is paused.
pub(super) fn announcement(track: &QueueHistory) -> String {
    match &track.view.paused {
        Some(pause) => format!("{} is paused by {}", track.view.key, pause.paused_by),
        None => format!("{} is active", track.view.key),
    }
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "pause" => "Paused: no queue or pool of this namespace assigns work. Claimed tasks continue.",
        "resume" => "Resumed. Queues paused individually remain paused.",
        "already" => "No change: already in that state.",
        _ => return None,
    })
}

/// The query of a page about one namespace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NamespaceQuery {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReasonForm {
    #[serde(default)]
    pub(super) reason: String,
}

pub(super) async fn confirm(
    ctx: PageContext,
    PageParams(Path(action)): PageParams<Path<String>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let name = &at.namespace;
    let namespace = components::escape(name.as_str());
    let (to, back) =
        (format!("/namespace/{action}?namespace={namespace}"), format!("/queues?namespace={namespace}"));
    let question = match action.as_str() {
        "pause" => ConfirmDialog {
            title: format!("Pause namespace {name}?"),
            to,
            back,
            button: "Pause",
            danger: true,
            body: html! {
                p { "No queue or pool of " span.strong { (name) } " assigns work until it is resumed. Claimed tasks can finish." }
                (components::reason_field())
            },
        },
        "resume" => ConfirmDialog {
            title: format!("Resume namespace {name}?"),
            to,
            back,
            button: "Resume",
            danger: false,
            body: html! { p { "Its queues and pools assign work again. Queues paused individually remain paused." } },
        },
        other => return problem_page(&ctx, &no_such_action(other, "a namespace", "pause or resume")),
    };
    question.page(&ctx, "Queues")
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(action)): PageParams<Path<String>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(why): FormBody<ReasonForm>,
) -> Response {
    let message = async {
        let reason = why.reason.trim().to_owned();
        let pause = match action.as_str() {
            "pause" => {
                crate::api::validate_display_text("reason", &reason)?;
                Some(Pause {
                    paused_by: ctx.name().into(),
                    reason: reason.clone(),
                    paused_at_ms: app.runtime.wall_ms(),
                })
            }
            "resume" => None,
            other => return Err(no_such_action(other, "a namespace", "pause or resume")),
        };
        let applied = with_timeout(app.store.set_queue_paused(&at.namespace, None, pause.as_ref())).await?;
        if applied {
            let audit_action = format!("namespace.{action}");
            ctx.record(&app, &audit_action, Some(&at.namespace), at.namespace.as_str(), reason).await;
            app.queues.invalidate().await;
        }
        let message = if applied { &action } else { "already" };
        Ok(ctx.redirect_with_message(
            &format!("/queues?namespace={}", components::escape(at.namespace.as_str())),
            message,
        ))
    };
    message.await.unwrap_or_else(|problem: Problem| problem_page(&ctx, &problem))
}

/// The problem: unknown action on an object of this type. `those` lists the known actions.
pub(super) fn no_such_action(action: &str, what: &str, those: &str) -> Problem {
    let detail = format!("Unknown action on {what}: {action:?}");
    Problem::new(StatusCode::NOT_FOUND, "no-such-action", detail).remedy(format!("Use {those}."))
}
