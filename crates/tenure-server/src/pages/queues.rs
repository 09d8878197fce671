//! The queues: how deep, how old, how fast.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{Pause, TaskState, Verb, claims_election};
use tenure::{Moment, Name};

use super::election::within;
use super::frame::{Visit, page, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Question};
use super::{chart, first, words};
use crate::App;
use crate::board::Seen;
use crate::floor::Track;
use crate::problem::Problem;

/// More than this are not read by anybody; the filter finds the others.
const SHOWN: usize = 200;

/// What somebody looks for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) q: String,
}

impl Filter {
    pub(super) fn is_empty(&self) -> bool {
        self.namespace.is_empty() && self.q.trim().is_empty()
    }

    /// Whether what goes by these words, in this namespace, is looked for.
    pub(super) fn lets_through<'w>(
        &self,
        namespace: &Name,
        words: impl IntoIterator<Item = &'w str>,
    ) -> bool {
        let wanted = self.q.trim().to_lowercase();
        let here = self.namespace.is_empty() || namespace.as_str() == self.namespace;
        here && (wanted.is_empty() || words.into_iter().any(|word| word.to_lowercase().contains(&wanted)))
    }

    /// The form, in the head of a list.
    pub(super) fn form(&self, action: &str, what: &str, namespaces: &BTreeSet<&Name>) -> Markup {
        html! {
            form.filter data-keep method="get" action=(action) role="search" {
                @if namespaces.len() > 1 {
                    label.hidden for="namespace" { "Namespace" }
                    select #namespace name="namespace" {
                        option value="" { "every namespace" }
                        @for name in namespaces {
                            option value=(name) selected[name.as_str() == self.namespace] { (name) }
                        }
                    }
                }
                label.hidden for="q" { (what) }
                input #q type="search" name="q" value=(self.q) placeholder=(what);
                button.button { "Filter" }
                @if !self.is_empty() { a.button href=(action) { "Show all" } }
            }
        }
    }
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Query(filter)): Got<Query<Filter>>,
) -> Response {
    let seen = match app.floor.queues().await {
        Ok(seen) => seen,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let visible: Vec<_> =
        seen.queues.values().filter(|track| visit.may(Verb::Read, Some(&track.view.key.namespace))).collect();
    let board = app.board.seen();
    let now = app.runtime.now();
    let content = html! {
        div.head {
            div {
                h1 { "Queues" }
                p { "What waits to be done, what is under way, and how fast it goes." }
                div #broker data-live { (broker(&board, &visit)) }
            }
            (actions(&visit, &filter, &visible))
        }
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #queues data-live {
            @if visible.is_empty() { (first::work(&visit)) } @else { (table(&visible, &filter, now)) }
        }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, "Queues", "Queues", content)
}

/// Who hands out what is exclusive, for those who may see it.
fn broker(seen: &Seen, visit: &Visit) -> Markup {
    let key = claims_election();
    let view = seen.elections.get(&key).filter(|_| visit.may(Verb::Read, Some(&key.namespace)));
    html! {
        @if let Some(view) = view {
            p {
                "What is exclusive is handed out by "
                a href=(parts::href(&key, "")) {
                    @match view.holders().next() { Some((_, holder)) => (parts::holder_id(view, holder)), None => "nobody now" }
                }
                ", who also returns what was lost."
            }
        }
    }
}

/// What can be done with all queues of a namespace: of the one that is looked at, or of the only one.
fn actions(visit: &Visit, filter: &Filter, visible: &[&Arc<Track>]) -> Markup {
    let namespaces: BTreeSet<_> = visible.iter().map(|track| &track.view.key.namespace).collect();
    let meant = namespaces.iter().find(|name| name.as_str() == filter.namespace);
    let only = namespaces.first().filter(|_| namespaces.len() == 1);
    let here = meant.or(only).copied();
    let submit = here.cloned().unwrap_or_else(Name::default_namespace);
    let to =
        |action: &str, name: &Name| format!("/namespace/{action}?namespace={}", parts::escape(name.as_str()));
    html! {
        div.buttons role="group" aria-label="What can be done" {
            @if visit.may(Verb::Claim, Some(&submit)) {
                a.button data-key="submit" href={ "/tasks/new?namespace=" (parts::escape(submit.as_str())) } { "Submit a task" }
            }
            @if let Some(name) = here.filter(|name| visit.may(Verb::Admin, Some(name))) {
                a.button data-key="pause-all" data-confirm href=(to("pause", name)) { "Pause all…" }
                a.button data-key="resume-all" data-confirm href=(to("resume", name)) { "Resume all…" }
            }
        }
    }
}

fn table(visible: &[&Arc<Track>], filter: &Filter, now: Moment) -> Markup {
    let namespaces: BTreeSet<_> = visible.iter().map(|track| &track.view.key.namespace).collect();
    let several = namespaces.len() > 1;
    let found: Vec<_> = visible
        .iter()
        .filter(|track| filter.lets_through(&track.view.key.namespace, [track.view.key.name.as_str()]))
        .collect();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "All queues" } @else { (found.len()) " of " (words::count(visible.len(), "queue")) } }
                (filter.form("/queues", "Queue", &namespaces))
            }
            @if found.is_empty() {
                p.empty { "No queue matches. " a href="/queues" { "Show all" } }
            } @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Queue" } th scope="col" { "State" } th scope="col" { "Mode" } th scope="col" { "Depth" }
                        th scope="col" { "Oldest ready" } th scope="col" { "Finished" }
                    } }
                    tbody { @for track in found.iter().take(SHOWN) { (row(track, several, now)) } }
                }
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more are not shown; the filter finds them." } }
                div.key { (chart::legend()) }
            }
        }
    }
}

fn row(track: &Track, several: bool, now: Moment) -> Markup {
    let view = &track.view;
    html! {
        tr data-key=(format!("queue-{}/{}", view.key.namespace, view.key.name)) data-says=(says(track)) {
            th scope="row" {
                span {
                    a href=(parts::queue_href(&view.key, "")) { (view.key.name) }
                    @if several { " " span.chip { (view.key.namespace) } }
                }
            }
            td data-label="State" { (state(track)) }
            td data-label="Mode" { (view.settings.mode.as_str()) }
            td.wide.deep data-label="Depth" { (chart::depth(view)) }
            td.nowrap.none[view.oldest_ready_ms.is_none()] data-label="Oldest ready" {
                @match view.oldest_ready_ms { Some(ms) => (words::span(ms)), None => span.soft { "–" } }
            }
            td data-label="Finished" { (chart::spark(track, now)) }
        }
    }
}

/// How a queue is, in a word.
pub(super) fn state(track: &Track) -> Markup {
    let view = &track.view;
    let count = |state| view.count(state);
    let waits = count(TaskState::Ready) + count(TaskState::Held);
    let claimed = count(TaskState::Claimed);
    match (&view.paused, waits, claimed) {
        (Some(_), _, _) => parts::state("warn", "paused"),
        (None, 0, 0) => parts::state("idle", "at rest"),
        (None, _, 0) if track.rate() == 0.0 => parts::state("next", "waits"),
        _ => parts::state("good", "works"),
    }
}

/// What those are told who listen: only what they must know at once.
pub(super) fn says(track: &Track) -> String {
    match &track.view.paused {
        Some(pause) => format!("{} is paused by {}", track.view.key, pause.by),
        None => format!("{} is open", track.view.key),
    }
}

/// What came of a deed. Only what is written here is ever shown.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "pause" => {
            "Paused: no queue and no pool of this namespace hands anything out. What is claimed goes on."
        }
        "resume" => "Resumed. Queues that were paused for themselves still are.",
        "already" => "Nothing to do: it was so already.",
        _ => return None,
    })
}

/// What the address of a namespace's question says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Where {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Why {
    #[serde(default)]
    pub(super) reason: String,
}

pub(super) async fn question(
    visit: Visit,
    Got(Path(action)): Got<Path<String>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let name = &at.namespace;
    let place = parts::escape(name.as_str());
    let (to, back) = (format!("/namespace/{action}?namespace={place}"), format!("/queues?namespace={place}"));
    let question = match action.as_str() {
        "pause" => Question {
            title: format!("Pause everything in {name}?"),
            to,
            back,
            button: "Pause",
            danger: true,
            body: html! {
                p { "No queue and no pool of " span.strong { (name) } " hands anything out until somebody resumes it. What is claimed goes on, and can be finished." }
                (parts::reason_field())
            },
        },
        "resume" => Question {
            title: format!("Resume {name}?"),
            to,
            back,
            button: "Resume",
            danger: false,
            body: html! { p { "Its queues and pools hand out again, but for queues that were paused for themselves." } },
        },
        other => return trouble(&visit, &no_such_action(other, "a namespace", "pause and resume")),
    };
    question.page(&visit, "Queues")
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path(action)): Got<Path<String>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(why): Posted<Why>,
) -> Response {
    let done = async {
        let reason = why.reason.trim().to_owned();
        let pause = match action.as_str() {
            "pause" => {
                crate::api::short("reason", &reason)?;
                Some(Pause { by: visit.name().into(), reason: reason.clone(), at_ms: app.runtime.wall_ms() })
            }
            "resume" => None,
            other => return Err(no_such_action(other, "a namespace", "pause and resume")),
        };
        let happened = within(app.store.set_queue_paused(&at.namespace, None, pause.as_ref())).await?;
        if happened {
            let deed = format!("namespace.{action}");
            visit.record(&app, &deed, Some(&at.namespace), at.namespace.as_str(), reason).await;
            app.floor.changed().await;
        }
        let done = if happened { &action } else { "already" };
        Ok(visit.tell(&format!("/queues?namespace={}", parts::escape(at.namespace.as_str())), done))
    };
    done.await.unwrap_or_else(|problem: Problem| trouble(&visit, &problem))
}

/// That is nothing that can be done to this.
pub(super) fn no_such_action(action: &str, what: &str, those: &str) -> Problem {
    let detail = format!("{action:?} is nothing that can be done to {what}");
    Problem::new(StatusCode::NOT_FOUND, "no-such-action", detail).remedy(format!("choose among {those}"))
}
