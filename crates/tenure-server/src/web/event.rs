//! The page of one event: details, payload and delivery status by group.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use tenure::Name;
use tenure::port::{Event, EventId, ParkedEventFilter, ScheduleKey, TopicKey};
use tenure_core::rules::schedule::{SCHEDULE_HEADER, TICK_HEADER, tick_of};

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::queues::NamespaceQuery;
use super::topic::{key_of, kind, size};
use super::{components, format, parked};
use crate::App;
use crate::api::{no_such_event, no_such_topic};
use crate::snapshot::events::{EventDetail, EventsSnapshot, GroupHistory, ParkedEventDetail};
use crate::web::FormattedPayload;

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((topic, event))): PageParams<Path<(Name, u64)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = TopicKey::new(at.namespace, topic);
    let id = EventId(event.min(i64::MAX as u64));
    let (topic, found) = tokio::join!(app.events.topic(&key), app.events.event(&key, id));
    let (snapshot, shown) = match (topic, found) {
        (Ok(Some((snapshot, _))), Ok(Some(shown))) => (snapshot, shown),
        (Ok(Some(_)), Ok(None)) => return problem_page(&ctx, &no_such_event(event)),
        (Ok(None), _) => return problem_page(&ctx, &no_such_topic(&key)),
        (Err(error), _) | (_, Err(error)) => return problem_page(&ctx, &error.into()),
    };
    let parked_in_groups = parked_in(&app, &snapshot, &key, id).await;
    let wall = app.runtime.wall_ms();
    let title = format!("Event {id}");
    let content = html! {
        div.head { div {
            p.crumb { a href="/topics" { "Events" } " / " (key.namespace) " / " a href=(components::topic_href(&key, "")) { (key.name) } }
            div.title { h1 { (title) } span { (kind(&shown.event)) } }
        } }
        div #facts data-live { (details(&key, &shown, wall)) }
        (payload_card(&shown.payload))
        div #groups data-live { (delivery_status(&snapshot, &key, &shown, &parked_in_groups)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, &title, "Events", content)
}

/// The groups in which the event is parked. Queries only groups with parked events.
async fn parked_in(
    app: &App,
    snapshot: &EventsSnapshot,
    topic: &TopicKey,
    id: EventId,
) -> Vec<(Name, ParkedEventDetail)> {
    let mut found = Vec::new();
    for track in snapshot
        .groups_of(topic)
        .filter(|track| track.view.parked_event_count + track.view.dead_letter_count > 0)
    {
        if let Ok(Some(set)) = parked_event(app, track, id).await {
            found.push((track.view.key.name.clone(), set));
        }
    }
    found
}

async fn parked_event(
    app: &App,
    track: &Arc<GroupHistory>,
    id: EventId,
) -> Result<Option<ParkedEventDetail>, tenure::port::StoreError> {
    let all = app.events.parked_events(&ParkedEventFilter::from(track.view.key.clone(), id)).await?;
    Ok(all.iter().find(|set| set.parked.event.id == id).cloned())
}

/// The schedule tick that published the event, from its headers.
fn tick(key: &TopicKey, event: &Event) -> Option<(ScheduleKey, i64)> {
    let header = |name: &str| event.headers.get(name);
    tick_of(&format!("{}/{}@{}", key.namespace, header(SCHEDULE_HEADER)?, header(TICK_HEADER)?))
}

/// The details of an event.
pub(super) fn details(key: &TopicKey, shown: &EventDetail, wall: i64) -> Markup {
    let event = &shown.event;
    html! {
        section.card aria-labelledby="details" {
            header { h2 #details { "Details" } }
            div.body {
                dl.facts {
                    div { dt { "Type" } dd { (kind(event)) } }
                    div { dt { "Key" } dd { (key_of(event)) } }
                    div { dt { "Published" } dd { (format::ago(event.published_at_ms, wall)) " " span.soft.small { (format::utc(event.published_at_ms)) } } }
                    div { dt { "Partition" } dd { a.plain href={ (components::topic_href(key, "")) "&partition=" (event.partition) "#events" } { (event.partition) } } }
                    @if let Some((schedule, at)) = tick(key, event) { div { dt { "Schedule tick" } dd { a data-key="tick" href=(components::tick_href(&schedule, at)) { (schedule) } " " span.soft.small { (format::utc(at)) } } } }
                    div { dt { "Offset" } dd { span.token { (event.offset) } } }
                    @if let Some(token) = event.leader_token { div { dt { "Leader token" } dd { span.token { (token) } } } }
                }
                @if !event.headers.is_empty() {
                    dl.facts.headers { @for (name, value) in &event.headers { div { dt { code { (name) } } dd { code { (value) } } } } }
                }
            }
        }
    }
}

/// The payload of an event.
pub(super) fn payload_card(payload: &FormattedPayload) -> Markup {
    html! {
        section.card aria-labelledby="payload" {
            header { h2 #payload { "Payload" } span.soft.small { (size(payload.bytes)) @if !payload.whole { ", truncated" } } }
            div.body { div.json { (components::command("payload-text", &payload.text)) } }
        }
    }
}

/// The delivery status by group.
fn delivery_status(
    snapshot: &EventsSnapshot,
    key: &TopicKey,
    shown: &EventDetail,
    parked_in_groups: &[(Name, ParkedEventDetail)],
) -> Markup {
    let event = &shown.event;
    let groups: Vec<_> = snapshot.groups_of(key).collect();
    html! {
        section.card aria-labelledby="delivery" {
            header { h2 #delivery { "Delivery status" } }
            @if groups.is_empty() { p.empty { "No groups." } }
            @else {
                table.stack {
                    thead { tr { th scope="col" { "Group" } th scope="col" { "State" } th scope="col" { "Member" } th scope="col" { "Details" } } }
                    tbody {
                        @for track in groups {
                            @let view = &track.view;
                            @let parked = parked_in_groups.iter().find(|(name, _)| *name == view.key.name).map(|(_, set)| set);
                            @let partition = view.partitions.get(event.partition as usize);
                            @let read = partition.is_some_and(|partition| partition.partition_lease.committed_offset >= event.offset);
                            tr data-key=(format!("group-{}", view.key.name)) {
                                th scope="row" { a href=(components::group_href(&view.key, "")) { (view.key.name) } }
                                td data-label="State" {
                                    @match parked {
                                        Some(set) => (parked::state(&set.parked)),
                                        None if read => (components::state("done", "Processed")),
                                        None => (components::state("next", "Unread")),
                                    }
                                }
                                td data-label="Member" { @match partition.and_then(|partition| super::partition_assignment::holder(view, partition)) { Some(member) => (member.name), None => span.soft { "unassigned" } } }
                                td.wide.details-cell data-label="Details" {
                                    @match (parked, partition) {
                                        (Some(set), _) => { a href=(components::parked_href(&view.key, event.id, "")) { "Last error" } @if !set.parked.last_error.is_empty() { ": " (set.parked.last_error) } },
                                        (None, Some(partition)) if !read => span.soft { "committed offset " (partition.partition_lease.committed_offset) " of " (partition.end_offset) },
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
