//! The page of all topics and consumer groups.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use tenure::port::{Permission, TopicLockHolder, TopicView};
use tenure::{BootInstant, Name};
use tenure_core::rules::event::Lag;

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::queues::QueuesPageQuery;
use super::{chart, components, format, getting_started};
use crate::App;
use crate::snapshot::events::{EventsSnapshot, GroupHistory};

/// Maximum number of rows; the filter narrows the list.
const SHOWN: usize = 200;
/// Number of groups that the list names per topic.
const NAMED: usize = 3;
/// A group is lagging if its oldest unread event is older than this.
const LAGGING_MS: u64 = 60_000;

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(filter)): PageParams<Query<QueuesPageQuery>>,
) -> Response {
    let snapshot = match app.events.all().await {
        Ok(snapshot) => snapshot,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let may = |namespace: &Name| ctx.may(Permission::Read, Some(namespace));
    let topics: Vec<_> = snapshot.topics.values().filter(|view| may(&view.key.namespace)).collect();
    let groups: Vec<_> =
        snapshot.groups.values().filter(|track| may(&track.view.key.topic.namespace)).collect();
    let namespaces: BTreeSet<_> = topics.iter().map(|view| &view.key.namespace).collect();
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let content = html! {
        div.head {
            div {
                h1 { "Events" }
                p { "Topics and consumer groups: events in commit order, processed by each group at its own pace." }
            }
            (actions(&ctx, &filter, &namespaces))
        }
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #topics data-live {
            @if topics.is_empty() { (getting_started::events(&ctx)) } @else { (table(&snapshot, &topics, &filter, &namespaces, wall)) }
        }
        div #groups data-live {
            @if !groups.is_empty() { (groups_of(&groups, &filter, namespaces.len() > 1, now)) }
        }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, "Events", "Events", content)
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "delete" => "Topic deleted, with its events and groups.",
        _ => return None,
    })
}

fn actions(ctx: &PageContext, filter: &QueuesPageQuery, namespaces: &BTreeSet<&Name>) -> Markup {
    let selected = namespaces.iter().find(|name| name.as_str() == filter.namespace).copied();
    let only = namespaces.first().filter(|_| namespaces.len() == 1).copied();
    let here = selected.or(only).cloned().unwrap_or_else(Name::default_namespace);
    html! {
        @if ctx.may(Permission::Admin, Some(&here)) {
            div.buttons role="group" aria-label="Actions" {
                a.button data-key="new" data-confirm href={ "/new-topic?namespace=" (components::escape(here.as_str())) } { "Create topic…" }
            }
        }
    }
}

fn table(
    snapshot: &EventsSnapshot,
    topics: &[&Arc<TopicView>],
    filter: &QueuesPageQuery,
    namespaces: &BTreeSet<&Name>,
    wall: i64,
) -> Markup {
    let several = namespaces.len() > 1;
    let found: Vec<_> = topics
        .iter()
        .filter(|view| {
            let names = view.groups.iter().map(Name::as_str).chain([view.key.name.as_str()]);
            filter.matches(&view.key.namespace, names)
        })
        .collect();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "Topics" } @else { (found.len()) " of " (format::count(topics.len(), "topic")) } }
                (filter.form("/topics", "Search by topic or group", namespaces))
            }
            @if found.is_empty() {
                p.empty { "No matching topics. " a href="/topics" { "Clear filter" } }
            } @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Topic" } th scope="col" { "State" } th.num scope="col" { "Events" } th.num scope="col" { "Partitions" }
                        th scope="col" { "Newest event" } th scope="col" { "Groups" } th.num scope="col" { "Lag (events)" } th.num scope="col" { "Dead letters" }
                    } }
                    tbody { @for view in found.iter().take(SHOWN) { (row(snapshot, view, several, wall)) } }
                }
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more; use the filter." } }
            }
        }
    }
}

fn row(snapshot: &EventsSnapshot, view: &TopicView, several: bool, wall: i64) -> Markup {
    let groups: Vec<_> = snapshot.groups_of(&view.key).collect();
    let dead: u64 = groups.iter().map(|track| track.view.dead_letter_count).sum();
    // Show the largest lag of all groups.
    let most = groups.iter().map(|track| &track.lag).max_by_key(|lag| lag.events);
    html! {
        tr data-key=(format!("topic-{}/{}", view.key.namespace, view.key.name)) data-announce=(announcement(view)) {
            th scope="row" {
                span {
                    a href=(components::topic_href(&view.key, "")) { (view.key.name) }
                    @if several { " " span.chip { (view.key.namespace) } }
                }
            }
            td data-label="State" { (state(snapshot, view)) }
            td.num data-label="Events" { (format::number(view.event_count)) }
            td.num data-label="Partitions" { (view.settings.partitions) }
            td.nowrap.none[view.newest_published_at_ms.is_none()] data-label="Newest event" {
                @match view.newest_published_at_ms { Some(at) => (format::ago(at, wall)), None => span.soft { "–" } }
            }
            td.wide.none[groups.is_empty()] data-label="Groups" {
                @if groups.is_empty() { span.soft { "–" } }
                @else {
                    span {
                        @for (at, track) in groups.iter().take(NAMED).enumerate() {
                            @if at > 0 { ", " } a href=(components::group_href(&track.view.key, "")) { (track.view.key.name) }
                        }
                        @if groups.len() > NAMED { span.soft { " and " (groups.len() - NAMED) " more" } }
                    }
                }
            }
            td.num.none[most.is_none()] data-label="Lag (events)" { @match most { Some(lag) => (lag_events(lag)), None => span.soft { "–" } } }
            td.num.none[dead == 0] data-label="Dead letters" { @if dead == 0 { span.soft { "–" } } @else { (components::state("bad", format::number(dead))) } }
        }
    }
}

/// All groups, ordered by topic.
fn groups_of(
    groups: &[&Arc<GroupHistory>],
    filter: &QueuesPageQuery,
    several: bool,
    now: BootInstant,
) -> Markup {
    let found: Vec<_> = groups
        .iter()
        .filter(|track| {
            let key = &track.view.key;
            filter.matches(&key.topic.namespace, [key.name.as_str(), key.topic.name.as_str()])
        })
        .collect();
    html! {
        @if !found.is_empty() {
            section.card aria-labelledby="groups-title" {
                header { h2 #groups-title { @if filter.is_empty() { "Consumer groups" } @else { (found.len()) " of " (format::count(groups.len(), "group")) } } }
                (group_table(&found.iter().take(SHOWN).map(|track| &****track).collect::<Vec<_>>(), Some(several), now))
                @if found.len() > SHOWN { p.empty { (found.len() - SHOWN) " more; use the filter." } }
            }
        }
    }
}

/// A table of groups. `topics` adds a column for the topic; `Some(true)` also shows the namespace.
pub(super) fn group_table(groups: &[&GroupHistory], topics: Option<bool>, now: BootInstant) -> Markup {
    html! {
        table.stack {
            thead { tr {
                th scope="col" { "Group" } @if topics.is_some() { th scope="col" { "Topic" } } th scope="col" { "State" }
                th.num scope="col" { "Members" } th scope="col" { "Lag (events)" } th scope="col" { "Lag (age)" }
                th.num scope="col" { "Parked" } th.num scope="col" { "Dead letters" }
            } }
            tbody {
                @for track in groups {
                    @let view = &track.view;
                    tr data-key=(format!("group-{}/{}/{}", view.key.topic.namespace, view.key.topic.name, view.key.name)) data-announce=(group_announcement(track)) {
                        th scope="row" { a href=(components::group_href(&view.key, "")) { (view.key.name) } }
                        @if let Some(several) = topics {
                            td data-label="Topic" {
                                span { a href=(components::topic_href(&view.key.topic, "")) { (view.key.topic.name) } @if several { " " span.chip { (view.key.topic.namespace) } } }
                            }
                        }
                        td data-label="State" { (group_state(track)) }
                        td.num data-label="Members" { (view.members.len()) }
                        td.wide data-label="Lag (events)" { (chart::lag_spark(track, &lag_events(&track.lag), now)) }
                        td.nowrap.none[track.lag.ms == 0] data-label="Lag (age)" { @if track.lag.ms == 0 { span.soft { "–" } } @else { (format::span(track.lag.ms)) } }
                        td.num.none[view.parked_event_count == 0] data-label="Parked" { @if view.parked_event_count == 0 { span.soft { "–" } } @else { (format::number(view.parked_event_count)) } }
                        td.num.none[view.dead_letter_count == 0] data-label="Dead letters" { @if view.dead_letter_count == 0 { span.soft { "–" } } @else { (components::state("bad", format::number(view.dead_letter_count))) } }
                    }
                }
            }
        }
    }
}

/// The lag in events; `+` marks a lower bound.
pub(super) fn lag_events(lag: &Lag) -> String {
    format::number(lag.events) + if lag.exact { "" } else { "+" }
}

/// Transactions that block others: those with waiters, or open for at least a second.
pub(super) fn blocking_lock_holders(view: &TopicView) -> impl Iterator<Item = &TopicLockHolder> {
    view.lock_holders
        .iter()
        .filter(|lock_holder| lock_holder.waiting_transactions > 0 || lock_holder.open_ms >= 1000)
}

/// The state of a topic: its worst problem.
pub(super) fn state(snapshot: &EventsSnapshot, view: &TopicView) -> Markup {
    let groups: Vec<_> = snapshot.groups_of(&view.key).collect();
    let late = |track: &Arc<GroupHistory>| track.view.paused.is_none() && track.lag.ms >= LAGGING_MS;
    if blocking_lock_holders(view).next().is_some() {
        components::state("bad", "Lock held")
    } else if groups.iter().any(|track| track.view.dead_letter_count > 0) {
        components::state("bad", "Dead letters")
    } else if groups.is_empty() {
        components::state("idle", "No members")
    } else if groups.iter().any(|track| late(track)) {
        components::state("late", "Lagging")
    } else if groups.iter().any(|track| track.view.parked_event_count > 0) {
        components::state("late", "Retrying")
    } else if groups.iter().any(|track| track.lag.events > 0) {
        components::state("good", "Active")
    } else {
        components::state("done", "Up to date")
    }
}

/// The state of a group.
pub(super) fn group_state(track: &GroupHistory) -> Markup {
    let view = &track.view;
    match (&view.paused, view.members.len(), track.lag.events) {
        (Some(_), _, _) => components::state("warn", "Paused"),
        (None, 0, 0) if view.dead_letter_count + view.parked_event_count == 0 => {
            components::state("idle", "No members")
        }
        (None, 0, _) => components::state("bad", "No members"),
        (None, _, _) if view.dead_letter_count > 0 => components::state("bad", "Dead letters"),
        (None, _, _) if view.parked_event_count > 0 => components::state("late", "Retrying"),
        (None, _, 0) => components::state("done", "Up to date"),
        (None, _, _) if track.lag.ms >= LAGGING_MS => components::state("late", "Lagging"),
        (None, _, _) => components::state("good", "Active"),
    }
}

/// The state of a topic for screen readers: only whether a transaction blocks it.
pub(super) fn announcement(view: &TopicView) -> String {
    match blocking_lock_holders(view).next() {
        Some(lock_holder) => format!("a partition lock of {} is held by {}", view.key, lock_holder.client),
        None => format!("{} is active", view.key),
    }
}

/// The state of a group for screen readers: paused or dead letters.
pub(super) fn group_announcement(track: &GroupHistory) -> String {
    let (key, dead) = (&track.view.key, track.view.dead_letter_count);
    match (&track.view.paused, dead) {
        (Some(pause), _) => format!("{key} is paused by {}", pause.paused_by),
        (None, 0) => format!("{key} is active"),
        (None, dead) => format!("{key} has {}", format::count(dead as usize, "dead letter")),
    }
}
