//! The topics: how much is in them, who reads them, how far behind, and what is stuck.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use tenure::port::{Blocker, TopicView, Verb};
use tenure::{Moment, Name};
use tenure_core::event::Lag;

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::queues::Filter;
use super::{chart, first, parts, words};
use crate::App;
use crate::gauge::{Seen, Track};

/// More than this are not read by anybody; the filter finds the others.
const SHOWN: usize = 200;
/// How many groups of a topic are named in the list.
const NAMED: usize = 3;
/// A group whose oldest unread event has waited for longer than this is behind.
const LATE_MS: u64 = 60_000;

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Query(filter)): Got<Query<Filter>>,
) -> Response {
    let seen = match app.gauge.all().await {
        Ok(seen) => seen,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let may = |namespace: &Name| visit.may(Verb::Read, Some(namespace));
    let topics: Vec<_> = seen.topics.values().filter(|view| may(&view.key.namespace)).collect();
    let groups: Vec<_> = seen.groups.values().filter(|track| may(&track.view.key.topic.namespace)).collect();
    let namespaces: BTreeSet<_> = topics.iter().map(|view| &view.key.namespace).collect();
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let content = html! {
        div.head {
            div {
                h1 { "Events" }
                p { "What has happened, in order: published with the change that it tells of, and read by groups, each at its own pace." }
            }
            (actions(&visit, &filter, &namespaces))
        }
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #topics data-live {
            @if topics.is_empty() { (first::events(&visit)) } @else { (table(&seen, &topics, &filter, &namespaces, wall)) }
        }
        div #groups data-live {
            @if !groups.is_empty() { (groups_of(&groups, &filter, namespaces.len() > 1, now)) }
        }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, "Events", "Events", content)
}

/// What came of a deed. Only what is written here is ever shown.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "delete" => "Deleted, with all that was in it and all who read it.",
        _ => return None,
    })
}

fn actions(visit: &Visit, filter: &Filter, namespaces: &BTreeSet<&Name>) -> Markup {
    let meant = namespaces.iter().find(|name| name.as_str() == filter.namespace).copied();
    let only = namespaces.first().filter(|_| namespaces.len() == 1).copied();
    let here = meant.or(only).cloned().unwrap_or_else(Name::default_namespace);
    html! {
        @if visit.may(Verb::Admin, Some(&here)) {
            div.buttons role="group" aria-label="What can be done" {
                a.button data-key="new" data-confirm href={ "/new-topic?namespace=" (parts::escape(here.as_str())) } { "Make a topic…" }
            }
        }
    }
}

fn table(
    seen: &Seen,
    topics: &[&Arc<TopicView>],
    filter: &Filter,
    namespaces: &BTreeSet<&Name>,
    wall: i64,
) -> Markup {
    let several = namespaces.len() > 1;
    let found: Vec<_> = topics
        .iter()
        .filter(|view| {
            let names = view.groups.iter().map(Name::as_str).chain([view.key.name.as_str()]);
            filter.lets_through(&view.key.namespace, names)
        })
        .collect();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "All topics" } @else { (found.len()) " of " (words::count(topics.len(), "topic")) } }
                (filter.form("/topics", "Topic or group", namespaces))
            }
            @if found.is_empty() {
                p.empty { "No topic matches. " a href="/topics" { "Show all" } }
            } @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Topic" } th scope="col" { "State" } th.num scope="col" { "Events" } th.num scope="col" { "Slots" }
                        th scope="col" { "Newest" } th scope="col" { "Read by" } th.num scope="col" { "Unread" } th.num scope="col" { "Dead" }
                    } }
                    tbody { @for view in found.iter().take(SHOWN) { (row(seen, view, several, wall)) } }
                }
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more are not shown; the filter finds them." } }
            }
        }
    }
}

fn row(seen: &Seen, view: &TopicView, several: bool, wall: i64) -> Markup {
    let groups: Vec<_> = seen.groups_of(&view.key).collect();
    let dead: u64 = groups.iter().map(|track| track.view.dead).sum();
    // Of several groups, the one that is furthest behind.
    let most = groups.iter().map(|track| &track.lag).max_by_key(|lag| lag.events);
    html! {
        tr data-key=(format!("topic-{}/{}", view.key.namespace, view.key.name)) data-says=(says(view)) {
            th scope="row" {
                span {
                    a href=(parts::topic_href(&view.key, "")) { (view.key.name) }
                    @if several { " " span.chip { (view.key.namespace) } }
                }
            }
            td data-label="State" { (state(seen, view)) }
            td.num data-label="Events" { (words::number(view.events)) }
            td.num data-label="Slots" { (view.settings.slots) }
            td.nowrap.none[view.newest_at_ms.is_none()] data-label="Newest" {
                @match view.newest_at_ms { Some(at) => (words::ago(at, wall)), None => span.soft { "–" } }
            }
            td.wide.none[groups.is_empty()] data-label="Read by" {
                @if groups.is_empty() { span.soft { "–" } }
                @else {
                    span {
                        @for (at, track) in groups.iter().take(NAMED).enumerate() {
                            @if at > 0 { ", " } a href=(parts::group_href(&track.view.key, "")) { (track.view.key.name) }
                        }
                        @if groups.len() > NAMED { span.soft { " and " (groups.len() - NAMED) " more" } }
                    }
                }
            }
            td.num.none[most.is_none()] data-label="Unread" { @match most { Some(lag) => (unread(lag)), None => span.soft { "–" } } }
            td.num.none[dead == 0] data-label="Dead" { @if dead == 0 { span.soft { "–" } } @else { (parts::state("bad", words::number(dead))) } }
        }
    }
}

/// Every group, in the order of topics.
fn groups_of(groups: &[&Arc<Track>], filter: &Filter, several: bool, now: Moment) -> Markup {
    let found: Vec<_> = groups
        .iter()
        .filter(|track| {
            let key = &track.view.key;
            filter.lets_through(&key.topic.namespace, [key.name.as_str(), key.topic.name.as_str()])
        })
        .collect();
    html! {
        @if !found.is_empty() {
            section.card aria-labelledby="groups-title" {
                header { h2 #groups-title { @if filter.is_empty() { "All groups" } @else { (found.len()) " of " (words::count(groups.len(), "group")) } } }
                (group_table(&found.iter().take(SHOWN).map(|track| &****track).collect::<Vec<_>>(), Some(several), now))
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more are not shown; the filter finds them." } }
            }
        }
    }
}

/// Groups as a table; with their topics (and namespaces), where they are of several.
pub(super) fn group_table(groups: &[&Track], topics: Option<bool>, now: Moment) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Group" } @if topics.is_some() { th scope="col" { "Topic" } } th scope="col" { "State" }
                th.num scope="col" { "Members" } th scope="col" { "Unread" } th scope="col" { "Oldest unread" }
                th.num scope="col" { "Aside" } th.num scope="col" { "Dead" }
            } }
            tbody {
                @for track in groups {
                    @let view = &track.view;
                    tr data-key=(format!("group-{}/{}/{}", view.key.topic.namespace, view.key.topic.name, view.key.name)) data-says=(group_says(track)) {
                        th scope="row" { a href=(parts::group_href(&view.key, "")) { (view.key.name) } }
                        @if let Some(several) = topics {
                            td data-label="Topic" {
                                span { a href=(parts::topic_href(&view.key.topic, "")) { (view.key.topic.name) } @if several { " " span.chip { (view.key.topic.namespace) } } }
                            }
                        }
                        td data-label="State" { (group_state(track)) }
                        td.num data-label="Members" { (view.members.len()) }
                        td.wide data-label="Unread" { (chart::unread(track, &unread(&track.lag), now)) }
                        td.nowrap.none[track.lag.ms == 0] data-label="Oldest unread" { @if track.lag.ms == 0 { span.soft { "–" } } @else { (words::span(track.lag.ms)) } }
                        td.num.none[view.aside == 0] data-label="Aside" { @if view.aside == 0 { span.soft { "–" } } @else { (words::number(view.aside)) } }
                        td.num.none[view.dead == 0] data-label="Dead" { @if view.dead == 0 { span.soft { "–" } } @else { (parts::state("bad", words::number(view.dead))) } }
                    }
                }
            }
        }
    }
}

/// How many events are unread. What was not counted to the end is at least that many.
pub(super) fn unread(lag: &Lag) -> String {
    words::number(lag.events) + if lag.exact { "" } else { "+" }
}

/// Transactions that keep others waiting: those that merely hold a slot for a moment are nobody's trouble.
pub(super) fn in_the_way(view: &TopicView) -> impl Iterator<Item = &Blocker> {
    view.blockers.iter().filter(|blocker| blocker.waiting > 0 || blocker.since_ms >= 1000)
}

/// How a topic is, in a word: what is worst about it.
pub(super) fn state(seen: &Seen, view: &TopicView) -> Markup {
    let groups: Vec<_> = seen.groups_of(&view.key).collect();
    let late = |track: &Arc<Track>| track.view.paused.is_none() && track.lag.ms >= LATE_MS;
    if in_the_way(view).next().is_some() {
        parts::state("bad", "blocked")
    } else if groups.iter().any(|track| track.view.dead > 0) {
        parts::state("bad", "has dead")
    } else if groups.is_empty() {
        parts::state("idle", "nobody reads")
    } else if groups.iter().any(|track| late(track)) {
        parts::state("late", "behind")
    } else if groups.iter().any(|track| track.view.aside > 0) {
        parts::state("late", "retries")
    } else if groups.iter().any(|track| track.lag.events > 0) {
        parts::state("good", "flows")
    } else {
        parts::state("done", "all read")
    }
}

/// How a group is, in a word.
pub(super) fn group_state(track: &Track) -> Markup {
    let view = &track.view;
    match (&view.paused, view.members.len(), track.lag.events) {
        (Some(_), _, _) => parts::state("warn", "paused"),
        (None, 0, 0) if view.dead + view.aside == 0 => parts::state("idle", "nobody reads"),
        (None, 0, _) => parts::state("bad", "nobody reads"),
        (None, _, _) if view.dead > 0 => parts::state("bad", "has dead"),
        (None, _, _) if view.aside > 0 => parts::state("late", "retries"),
        (None, _, 0) => parts::state("done", "all read"),
        (None, _, _) if track.lag.ms >= LATE_MS => parts::state("late", "behind"),
        (None, _, _) => parts::state("good", "reads"),
    }
}

/// What those are told who listen: only what they must know at once.
pub(super) fn says(view: &TopicView) -> String {
    match in_the_way(view).next() {
        Some(blocker) => format!("{} is blocked by {}", view.key, blocker.who),
        None => format!("{} is open", view.key),
    }
}

/// The same of a group.
pub(super) fn group_says(track: &Track) -> String {
    let (key, dead) = (&track.view.key, track.view.dead);
    match (&track.view.paused, dead) {
        (Some(pause), _) => format!("{key} is paused by {}", pause.by),
        (None, 0) => format!("{key} is open"),
        (None, dead) => format!("{key} has {}", words::count(dead as usize, "dead event")),
    }
}
