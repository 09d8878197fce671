//! One event: what it says, and what became of it in each group.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use tenure::Name;
use tenure::port::{AsideFilter, Event, EventId, ScheduleKey, TopicKey};
use tenure_core::schedule::{SCHEDULE_HEADER, TICK_HEADER, tick_of};

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::queues::Where;
use super::topic::{key_of, kind, size};
use super::{dead, parts, words};
use crate::App;
use crate::api::{no_such_event, no_such_topic};
use crate::gauge::{Seen, Set, Shown, Track};
use crate::pages::Laid;

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, event))): Got<Path<(Name, u64)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    let id = EventId(event.min(i64::MAX as u64));
    let (topic, found) = tokio::join!(app.gauge.topic(&key), app.gauge.event(&key, id));
    let (seen, shown) = match (topic, found) {
        (Ok(Some((seen, _))), Ok(Some(shown))) => (seen, shown),
        (Ok(Some(_)), Ok(None)) => return trouble(&visit, &no_such_event(event)),
        (Ok(None), _) => return trouble(&visit, &no_such_topic(&key)),
        (Err(error), _) | (_, Err(error)) => return trouble(&visit, &error.into()),
    };
    let asides = asides(&app, &seen, &key, id).await;
    let wall = app.runtime.wall_ms();
    let title = format!("Event {id}");
    let content = html! {
        div.head { div {
            p.crumb { a href="/topics" { "Events" } " / " (key.namespace) " / " a href=(parts::topic_href(&key, "")) { (key.name) } }
            div.title { h1 { (title) } span { (kind(&shown.event)) } }
        } }
        div #what data-live { (about(&key, &shown, wall)) }
        (carried(&shown.payload))
        div #groups data-live { (became(&seen, &key, &shown, &asides)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, &title, "Events", content)
}

/// Where it is aside: only groups are asked that have anything aside in its slot.
async fn asides(app: &App, seen: &Seen, topic: &TopicKey, id: EventId) -> Vec<(Name, Set)> {
    let mut found = Vec::new();
    for track in seen.groups_of(topic).filter(|track| track.view.aside + track.view.dead > 0) {
        if let Ok(Some(set)) = aside_of(app, track, id).await {
            found.push((track.view.key.name.clone(), set));
        }
    }
    found
}

async fn aside_of(
    app: &App,
    track: &Arc<Track>,
    id: EventId,
) -> Result<Option<Set>, tenure::port::StoreError> {
    let all = app.gauge.asides(&AsideFilter::from(track.view.key.clone(), id)).await?;
    Ok(all.iter().find(|set| set.aside.event.id == id).cloned())
}

/// The tick of a schedule that has published an event, if its headers say so.
fn tick(key: &TopicKey, event: &Event) -> Option<(ScheduleKey, i64)> {
    let header = |name: &str| event.headers.get(name);
    tick_of(&format!("{}/{}@{}", key.namespace, header(SCHEDULE_HEADER)?, header(TICK_HEADER)?))
}

/// What an event says of itself.
pub(super) fn about(key: &TopicKey, shown: &Shown, wall: i64) -> Markup {
    let event = &shown.event;
    html! {
        section.card aria-labelledby="about" {
            header { h2 #about { "About it" } }
            div.body {
                dl.facts {
                    div { dt { "Type" } dd { (kind(event)) } }
                    div { dt { "Key" } dd { (key_of(event)) } }
                    div { dt { "Published" } dd { (words::ago(event.at_ms, wall)) " " span.soft.small { (words::utc(event.at_ms)) } } }
                    div { dt { "Slot" } dd { a.plain href={ (parts::topic_href(key, "")) "&slot=" (event.slot) "#events" } { (event.slot) } } }
                    @if let Some((schedule, at)) = tick(key, event) { div { dt { "Tick of" } dd { a data-key="tick" href=(parts::tick_href(&schedule, at)) { (schedule) } " " span.soft.small { (words::utc(at)) } } } }
                    div { dt { "Position" } dd { span.token { (event.position) } } }
                    @if let Some(token) = event.leader_token { div { dt { "By a leader, under token" } dd { span.token { (token) } } } }
                }
                @if !event.headers.is_empty() {
                    dl.facts.headers { @for (name, value) in &event.headers { div { dt { code { (name) } } dd { code { (value) } } } } }
                }
            }
        }
    }
}

/// What it carries.
pub(super) fn carried(payload: &Laid) -> Markup {
    html! {
        section.card aria-labelledby="payload" {
            header { h2 #payload { "Carries" } span.soft.small { (size(payload.bytes)) @if !payload.whole { ", of which this is the beginning" } } }
            div.body { div.json { (parts::command("carried", &payload.text)) } }
        }
    }
}

/// What became of it, group by group.
fn became(seen: &Seen, key: &TopicKey, shown: &Shown, asides: &[(Name, Set)]) -> Markup {
    let event = &shown.event;
    let groups: Vec<_> = seen.groups_of(key).collect();
    html! {
        section.card aria-labelledby="became" {
            header { h2 #became { "What became of it" } }
            @if groups.is_empty() { p.empty { "No group reads this topic." } }
            @else {
                table.stack {
                    thead { tr { th scope="col" { "Group" } th scope="col" { "State" } th scope="col" { "Whose slot" } th scope="col" { "About" } } }
                    tbody {
                        @for track in groups {
                            @let view = &track.view;
                            @let aside = asides.iter().find(|(name, _)| *name == view.key.name).map(|(_, set)| set);
                            @let slot = view.slots.get(event.slot as usize);
                            @let read = slot.is_some_and(|slot| slot.share.position >= event.position);
                            tr data-key=(format!("group-{}", view.key.name)) {
                                th scope="row" { a href=(parts::group_href(&view.key, "")) { (view.key.name) } }
                                td data-label="State" {
                                    @match aside {
                                        Some(set) => (dead::state(&set.aside)),
                                        None if read => (parts::state("done", "handled")),
                                        None => (parts::state("next", "unread")),
                                    }
                                }
                                td data-label="Whose slot" { @match slot.and_then(|slot| super::group_map::holder(view, slot)) { Some(member) => (member.name), None => span.soft { "nobody's" } } }
                                td.wide.about data-label="About" {
                                    @match (aside, slot) {
                                        (Some(set), _) => { a href=(parts::aside_href(&view.key, event.id, "")) { "Its failure" } @if !set.aside.error.is_empty() { ": " (set.aside.error) } },
                                        (None, Some(slot)) if !read => span.soft { "read up to " (slot.share.position) " of " (slot.end) },
                                        _ => span.soft { "–" },
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
