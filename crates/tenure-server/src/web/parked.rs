//! Parked events: failed events that are retried, dead letters, and events that wait behind them.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use tenure::Name;
use tenure::port::{
    EventId, GroupKey, GroupView, ParkedEvent, ParkedEventFilter, Permission, StoreError, TopicKey,
};

use super::event::{details, payload_card};
use super::extract::PageParams;
use super::group::PAGE;
use super::layout::{PageContext, page, problem_page};
use super::queues::NamespaceQuery;
use super::topic::{key_of, kind, payload_cell};
use super::{components, format};
use crate::App;
use crate::api::no_such_group;
use crate::problem::Problem;
use crate::snapshot::events::{EventDetail, ParkedEventDetail};

/// The state of a parked event.
pub(super) fn state(parked: &ParkedEvent) -> Markup {
    match (parked.dead, parked.retry_in_ms) {
        (true, _) => components::state("bad", "Dead letter"),
        (false, Some(0)) => components::state("next", "Retry due"),
        (false, Some(ms)) => {
            components::state("later", format!("Retry in {}", format::elapsed(ms as i64 + 999)))
        }
        (false, None) => components::state("idle", "Waiting behind another"),
    }
}

/// The parked events of a group, on the page of the group.
pub(super) fn list(
    view: &GroupView,
    filter: &ParkedEventFilter,
    events: Result<&[ParkedEventDetail], &StoreError>,
    ctx: &PageContext,
    wall: i64,
) -> Markup {
    let key = &view.key;
    let here = |parked: &str| {
        let of =
            filter.key.as_ref().map(|key| format!("&key={}", components::escape(key))).unwrap_or_default();
        format!("{}&parked={parked}{of}", components::group_href(key, ""))
    };
    let filter_word = if filter.dead { "dead" } else { "all" };
    html! {
        section.card aria-labelledby="failed" {
            header {
                h2 #failed { "Failed events" }
                @if ctx.may(Permission::Admin, Some(&key.topic.namespace)) && view.dead_letter_count > 0 {
                    div.buttons role="group" aria-label="Dead letter actions" {
                        a.button.slim data-key="replay-all" data-confirm href=(all_href(key, filter, "replay")) { @if filter.key.is_some() { "Replay selected…" } @else { "Replay all…" } }
                        a.button.slim data-key="drop-all" data-confirm href=(all_href(key, filter, "drop")) { @if filter.key.is_some() { "Drop selected…" } @else { "Drop all…" } }
                    }
                }
            }
            nav.tabs aria-label="Filter" {
                a href={ (here("dead")) "#parked" } aria-current=[filter.dead.then_some("true")] { "Dead letters " span.soft { (format::brief(view.dead_letter_count)) } }
                a href={ (here("all")) "#parked" } aria-current=[(!filter.dead).then_some("true")] { "All parked " span.soft { (format::brief(view.dead_letter_count + view.parked_event_count)) } }
                @if let Some(of) = &filter.key {
                    a.out href={ (components::group_href(key, "")) "&parked=" (filter_word) "#parked" } { "key " span.strong { (of) } " ✕" span.hidden { ": clear key filter" } }
                }
            }
            @match events {
                Err(error) => (components::load_error("parked events", error)),
                Ok([]) => p.empty {
                    @if filter.after.is_some() { "No more events." }
                    @else if filter.key.is_some() { @if filter.dead { "No dead letters with this key." } @else { "No parked events with this key." } }
                    @else if view.parked_event_count + view.dead_letter_count == 0 { "No parked events." }
                    @else if filter.dead { "No dead letters." }
                    @else { "No parked events." }
                },
                Ok(events) => {
                    (table(key, &events[..events.len().min(PAGE as usize)], ctx, wall))
                    (pager(events, filter, &here(filter_word)))
                },
            }
        }
    }
}

/// The URL of a bulk action on the listed dead letters.
fn all_href(key: &GroupKey, filter: &ParkedEventFilter, action: &str) -> String {
    let of = filter.key.as_ref().map(|key| format!("&key={}", components::escape(key))).unwrap_or_default();
    format!("{}{of}", components::group_href(key, &format!("dead-letters/{action}")))
}

fn pager(events: &[ParkedEventDetail], filter: &ParkedEventFilter, here: &str) -> Markup {
    let last = events.get(PAGE as usize - 1).map(|set| set.parked.event.id);
    let more = events.len() > PAGE as usize;
    html! {
        @if more || filter.after.is_some() {
            nav.pager aria-label="Parked event pages" {
                @if filter.after.is_some() { a.button.slim href={ (here) "#parked" } { "First page" } }
                @if let Some(last) = last.filter(|_| more) { a.button.slim href={ (here) "&cursor=" (last) "#parked" } { "Next page" } }
            }
        }
    }
}

fn table(key: &GroupKey, events: &[ParkedEventDetail], ctx: &PageContext, wall: i64) -> Markup {
    let admin = ctx.may(Permission::Admin, Some(&key.topic.namespace));
    html! {
        table.stack.failed {
            thead { tr {
                th scope="col" { "Event" } th scope="col" { "State" } th scope="col" { "Key" } th scope="col" { "Last error" }
                th.num scope="col" { "Waiting behind" } th scope="col" { "Attempts" } @if admin { th scope="col" { span.hidden { "Actions" } } }
            } }
            tbody { @for set in events { (row(key, set, admin, wall)) } }
        }
    }
}

fn row(key: &GroupKey, set: &ParkedEventDetail, admin: bool, wall: i64) -> Markup {
    let parked = &set.parked;
    let here = components::parked_href(key, parked.event.id, "");
    html! {
        tr data-key=(format!("parked-{}", parked.event.id)) {
            th scope="row" { span { a href=(here) { (parked.event.id) } br; span.soft.small { (kind(&parked.event)) } } }
            td data-label="State" { (state(parked)) }
            td.none[parked.event.key.is_none()] data-label="Key" {
                @match &parked.event.key {
                    Some(of) => a.plain href={ (components::group_href(key, "")) "&parked=all&key=" (components::escape(of)) "#parked" } { code { (of) } },
                    None => (key_of(&parked.event)),
                }
            }
            td.wide.payload-cell data-label="Last error" {
                div {
                    @if parked.last_error.is_empty() { p.soft { "Waiting behind an earlier event of its key." } } @else { p.error-box { (format::first_line(&parked.last_error)) } }
                    (payload_cell(&format!("payload-{}", parked.event.id), &set.excerpt, &set.payload, &here))
                }
            }
            td.num.none[parked.waiting_behind_count == 0] data-label="Waiting behind" { @if parked.waiting_behind_count == 0 { span.soft { "–" } } @else { (format::number(parked.waiting_behind_count)) } }
            td.nowrap data-label="Attempts" {
                span {
                    @if parked.attempts > 0 { (format::count(parked.attempts as usize, "attempt")) br; span.soft.small { "last " (format::ago(parked.last_failed_at_ms, wall)) } }
                    @else { span.soft { "none" } }
                }
            }
            @if admin { td.whole { @if parked.dead { (buttons(key, parked.event.id, "slim")) } } }
        }
    }
}

fn buttons(key: &GroupKey, id: EventId, size: &str) -> Markup {
    html! {
        div.buttons {
            a class={ "button " (size) } data-key="replay" data-confirm href=(components::parked_href(key, id, "replay")) { "Replay…" span.hidden { " event " (id) } }
            a class={ "button " (size) } data-key="drop" data-confirm href=(components::parked_href(key, id, "drop")) { "Drop…" span.hidden { " event " (id) } }
        }
    }
}

/// The problem: the event is not parked.
pub(super) fn not_parked(key: &GroupKey, id: EventId) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "event-not-parked", format!("event {id} is not parked in {key}"))
        .field("event")
        .remedy("It was processed, dropped or never attempted. See the group for parked events.")
}

/// Load a parked event.
pub(super) async fn find(app: &App, key: &GroupKey, id: EventId) -> Result<ParkedEventDetail, Problem> {
    app.events.group(key).await?.ok_or_else(|| no_such_group(key))?;
    let all = app.events.parked_events(&ParkedEventFilter::from(key.clone(), id)).await?;
    all.iter().find(|set| set.parked.event.id == id).cloned().ok_or_else(|| not_parked(key, id))
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, group, event))): PageParams<Path<(Name, Name, u64)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let id = EventId(event.min(i64::MAX as u64));
    let set = match find(&app, &key, id).await {
        Ok(set) => set,
        Err(problem) => return problem_page(&ctx, &problem),
    };
    let behind = match &set.parked.event.key {
        Some(of) if set.parked.waiting_behind_count > 0 => {
            let filter = ParkedEventFilter {
                group: key.clone(),
                dead: false,
                partition: None,
                key: Some(of.clone()),
                after: None,
                limit: PAGE,
            };
            Some(app.events.parked_events(&filter).await)
        }
        _ => None,
    };
    let wall = app.runtime.wall_ms();
    let parked = &set.parked;
    let shown = EventDetail {
        event: parked.event.clone(),
        payload: set.payload.clone(),
        excerpt: set.excerpt.clone(),
    };
    let title = format!("Event {id}");
    let content = html! {
        div.head {
            div {
                p.crumb {
                    a href="/topics" { "Events" } " / " (key.topic.namespace) " / " a href=(components::topic_href(&key.topic, "")) { (key.topic.name) }
                    " / " a href=(components::group_href(&key, "")) { (key.name) }
                }
                div.title { h1 { (title) } div #state data-live { (state(parked)) } }
            }
            @if parked.dead && ctx.may(Permission::Admin, Some(&key.topic.namespace)) { (buttons(&key, id, "")) }
        }
        div #failure data-live { (failure(parked, wall)) }
        (payload_card(&set.payload))
        div #facts data-live { (details(&key.topic, &shown, wall)) }
        @if let Some(behind) = &behind {
            div #behind data-live {
                section.card aria-labelledby="waiting" {
                    header { h2 #waiting { "Waiting behind it, in order" } }
                    @match behind {
                        Err(error) => (components::load_error("waiting events", error)),
                        Ok(all) => (table(&key, &all.iter().filter(|other| other.parked.event.id != id).cloned().collect::<Vec<_>>(), &ctx, wall)),
                    }
                }
            }
        }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, &title, "Events", content)
}

fn failure(parked: &ParkedEvent, wall: i64) -> Markup {
    html! {
        section.card aria-labelledby="why" {
            header { h2 #why { "Why it is parked" } }
            div.body {
                @if parked.last_error.is_empty() { p { "It waits behind an earlier event of its key." } }
                @else { pre.error-text { (parked.last_error) } }
                dl.facts.counts {
                    div { dt { "Attempts" } dd { (parked.attempts) } }
                    div { dt { @if parked.last_error.is_empty() { "Parked" } @else { "Last failure" } } dd { (format::ago(parked.last_failed_at_ms, wall)) } }
                    div { dt { "Waiting behind it" } dd { (format::number(parked.waiting_behind_count)) } }
                }
                @if parked.dead {
                    p.soft { "It is not retried automatically. Its key is parked" @if parked.waiting_behind_count > 0 { ", so later events wait" } ". Replay it after fixing the cause, or drop it." }
                }
            }
        }
    }
}
