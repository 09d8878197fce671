//! Events that failed: tried again, waiting behind one that is, or dead.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use tenure::Name;
use tenure::port::{AsideFilter, AsideView, EventId, GroupKey, GroupView, StoreError, TopicKey, Verb};

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::group::PAGE;
use super::queues::Where;
use super::topic::{carries, key_of, kind};
use super::topic_event::{about, carried};
use super::{parts, words};
use crate::App;
use crate::api::no_such_group;
use crate::gauge::{Set, Shown};
use crate::problem::Problem;

/// How an event that is aside stands.
pub(super) fn state(aside: &AsideView) -> Markup {
    match (aside.dead, aside.due_in_ms) {
        (true, _) => parts::state("bad", "dead"),
        (false, Some(0)) => parts::state("next", "due"),
        (false, Some(ms)) => parts::state("later", format!("again in {}", words::lasted(ms as i64 + 999))),
        (false, None) => parts::state("idle", "behind another"),
    }
}

/// What is aside in a group, on its page.
pub(super) fn list(
    view: &GroupView,
    filter: &AsideFilter,
    asides: Result<&[Set], &StoreError>,
    visit: &Visit,
    wall: i64,
) -> Markup {
    let key = &view.key;
    let here = |aside: &str| {
        let of = filter.key.as_ref().map(|key| format!("&key={}", parts::escape(key))).unwrap_or_default();
        format!("{}&aside={aside}{of}", parts::group_href(key, ""))
    };
    let which = if filter.dead { "dead" } else { "all" };
    html! {
        section.card aria-labelledby="failed" {
            header {
                h2 #failed { "What failed" }
                @if visit.may(Verb::Admin, Some(&key.topic.namespace)) && view.dead > 0 {
                    div.buttons role="group" aria-label="What an operator can do to all that are dead" {
                        a.button.slim data-key="replay-all" data-confirm href=(all_href(key, filter, "replay")) { @if filter.key.is_some() { "Replay these…" } @else { "Replay all…" } }
                        a.button.slim data-key="drop-all" data-confirm href=(all_href(key, filter, "drop")) { @if filter.key.is_some() { "Drop these…" } @else { "Drop all…" } }
                    }
                }
            }
            nav.tabs aria-label="What of it" {
                a href={ (here("dead")) "#aside" } aria-current=[filter.dead.then_some("true")] { "dead " span.soft { (words::brief(view.dead)) } }
                a href={ (here("all")) "#aside" } aria-current=[(!filter.dead).then_some("true")] { "all that is aside " span.soft { (words::brief(view.dead + view.aside)) } }
                @if let Some(of) = &filter.key {
                    a.out href={ (parts::group_href(key, "")) "&aside=" (which) "#aside" } { "key " span.strong { (of) } " ✕" span.hidden { ": show every key" } }
                }
            }
            @match asides {
                Err(error) => (parts::unread("What is aside", error)),
                Ok([]) => p.empty {
                    @if filter.after.is_some() { "There are no more." }
                    @else if filter.key.is_some() { "Nothing of this key is " @if filter.dead { "dead." } @else { "aside." } }
                    @else if view.aside + view.dead == 0 { "Nothing is aside: every event that was read is handled." }
                    @else if filter.dead { "Nothing is dead." }
                    @else { "Nothing is aside any more." }
                },
                Ok(asides) => {
                    (table(key, &asides[..asides.len().min(PAGE as usize)], visit, wall))
                    (pager(asides, filter, &here(which)))
                },
            }
        }
    }
}

/// Where all that are looked at are replayed or dropped.
fn all_href(key: &GroupKey, filter: &AsideFilter, action: &str) -> String {
    let of = filter.key.as_ref().map(|key| format!("&key={}", parts::escape(key))).unwrap_or_default();
    format!("{}{of}", parts::group_href(key, &format!("dead/{action}")))
}

fn pager(asides: &[Set], filter: &AsideFilter, here: &str) -> Markup {
    let last = asides.get(PAGE as usize - 1).map(|set| set.aside.event.id);
    let more = asides.len() > PAGE as usize;
    html! {
        @if more || filter.after.is_some() {
            nav.pager aria-label="Pages of what is aside" {
                @if filter.after.is_some() { a.button.slim href={ (here) "#aside" } { "First" } }
                @if let Some(last) = last.filter(|_| more) { a.button.slim href={ (here) "&after=" (last) "#aside" } { "Next" } }
            }
        }
    }
}

fn table(key: &GroupKey, asides: &[Set], visit: &Visit, wall: i64) -> Markup {
    let admin = visit.may(Verb::Admin, Some(&key.topic.namespace));
    html! {
        table.stack.failed {
            thead { tr {
                th scope="col" { "Event" } th scope="col" { "State" } th scope="col" { "Key" } th scope="col" { "Why" }
                th.num scope="col" { "Behind it" } th scope="col" { "Failed" } @if admin { th scope="col" { span.hidden { "Actions" } } }
            } }
            tbody { @for set in asides { (row(key, set, admin, wall)) } }
        }
    }
}

fn row(key: &GroupKey, set: &Set, admin: bool, wall: i64) -> Markup {
    let aside = &set.aside;
    let here = parts::aside_href(key, aside.event.id, "");
    html! {
        tr data-key=(format!("aside-{}", aside.event.id)) {
            th scope="row" { span { a href=(here) { (aside.event.id) } br; span.soft.small { (kind(&aside.event)) } } }
            td data-label="State" { (state(aside)) }
            td.none[aside.event.key.is_none()] data-label="Key" {
                @match &aside.event.key {
                    Some(of) => a.plain href={ (parts::group_href(key, "")) "&aside=all&key=" (parts::escape(of)) "#aside" } { code { (of) } },
                    None => (key_of(&aside.event)),
                }
            }
            td.wide.carries data-label="Why" {
                div {
                    @if aside.error.is_empty() { p.soft { "Waits for its turn." } } @else { p.why { (words::first_line(&aside.error)) } }
                    (carries(&format!("payload-{}", aside.event.id), &set.glance, &set.payload, &here))
                }
            }
            td.num.none[aside.behind == 0] data-label="Behind it" { @if aside.behind == 0 { span.soft { "–" } } @else { (words::number(aside.behind)) } }
            td.nowrap data-label="Failed" {
                span {
                    @if aside.attempts > 0 { (words::count(aside.attempts as usize, "time")) br; span.soft.small { "last " (words::ago(aside.failed_at_ms, wall)) } }
                    @else { span.soft { "not yet" } }
                }
            }
            @if admin { td.whole { @if aside.dead { (buttons(key, aside.event.id, "slim")) } } }
        }
    }
}

fn buttons(key: &GroupKey, id: EventId, size: &str) -> Markup {
    html! {
        div.buttons {
            a class={ "button " (size) } data-key="replay" data-confirm href=(parts::aside_href(key, id, "replay")) { "Replay…" span.hidden { " event " (id) } }
            a class={ "button " (size) } data-key="drop" data-confirm href=(parts::aside_href(key, id, "drop")) { "Drop…" span.hidden { " event " (id) } }
        }
    }
}

/// The event is not aside any more.
pub(super) fn not_aside(key: &GroupKey, id: EventId) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-aside", format!("event {id} is not aside in {key}"))
        .field("event")
        .remedy("it is done, dropped, or was never tried; the page of the group has those that are")
}

/// One event that is aside; a problem, if it is not.
pub(super) async fn find(app: &App, key: &GroupKey, id: EventId) -> Result<Set, Problem> {
    app.gauge.group(key).await?.ok_or_else(|| no_such_group(key))?;
    let all = app.gauge.asides(&AsideFilter::from(key.clone(), id)).await?;
    all.iter().find(|set| set.aside.event.id == id).cloned().ok_or_else(|| not_aside(key, id))
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group, event))): Got<Path<(Name, Name, u64)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let id = EventId(event.min(i64::MAX as u64));
    let set = match find(&app, &key, id).await {
        Ok(set) => set,
        Err(problem) => return trouble(&visit, &problem),
    };
    let behind = match &set.aside.event.key {
        Some(of) if set.aside.behind > 0 => {
            let filter = AsideFilter {
                group: key.clone(),
                dead: false,
                slot: None,
                key: Some(of.clone()),
                after: None,
                limit: PAGE,
            };
            Some(app.gauge.asides(&filter).await)
        }
        _ => None,
    };
    let wall = app.runtime.wall_ms();
    let aside = &set.aside;
    let shown =
        Shown { event: aside.event.clone(), payload: set.payload.clone(), glance: set.glance.clone() };
    let title = format!("Event {id}");
    let content = html! {
        div.head {
            div {
                p.crumb {
                    a href="/topics" { "Events" } " / " (key.topic.namespace) " / " a href=(parts::topic_href(&key.topic, "")) { (key.topic.name) }
                    " / " a href=(parts::group_href(&key, "")) { (key.name) }
                }
                div.title { h1 { (title) } div #state data-live { (state(aside)) } }
            }
            @if aside.dead && visit.may(Verb::Admin, Some(&key.topic.namespace)) { (buttons(&key, id, "")) }
        }
        div #failure data-live { (failure(aside, wall)) }
        (carried(&set.payload))
        div #what data-live { (about(&key.topic, &shown, wall)) }
        @if let Some(behind) = &behind {
            div #behind data-live {
                section.card aria-labelledby="waiting" {
                    header { h2 #waiting { "Waiting behind it" } span.soft.small { "in the order in which they follow" } }
                    @match behind {
                        Err(error) => (parts::unread("What waits", error)),
                        Ok(all) => (table(&key, &all.iter().filter(|other| other.aside.event.id != id).cloned().collect::<Vec<_>>(), &visit, wall)),
                    }
                }
            }
        }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, &title, "Events", content)
}

fn failure(aside: &AsideView, wall: i64) -> Markup {
    html! {
        section.card aria-labelledby="why" {
            header { h2 #why { "Why it is aside" } }
            div.body {
                @if aside.error.is_empty() { p { "It waits behind another of its key, and follows in order." } }
                @else { pre.said { (aside.error) } }
                dl.facts.counts {
                    div { dt { "Tried" } dd { (words::count(aside.attempts as usize, "time")) } }
                    div { dt { @if aside.error.is_empty() { "Set aside" } @else { "Failed last" } } dd { (words::ago(aside.failed_at_ms, wall)) } }
                    div { dt { "Wait behind it" } dd { (words::number(aside.behind)) } }
                }
                @if aside.dead {
                    p.soft { "It is not tried again by itself, and its key is parked" @if aside.behind > 0 { ": what follows of it waits" } ". Replay it once its cause is mended, or drop it." }
                }
            }
        }
    }
}
