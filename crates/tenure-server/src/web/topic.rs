//! The page of one topic: lock holders, consumer groups, recent events and settings.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Event, Permission, StoreError, TopicKey, TopicSettings, TopicView};

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::{audit, components, format, topics};
use crate::App;
use crate::api::no_such_topic;
use crate::snapshot::events::{EventDetail, EventsSnapshot, RECENT};
use crate::web::FormattedPayload;

/// The query of a topic's page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopicPageQuery {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
    /// Show only events of this partition.
    #[serde(default)]
    partition: Option<u32>,
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(topic)): PageParams<Path<Name>>,
    PageParams(Query(query)): PageParams<Query<TopicPageQuery>>,
) -> Response {
    let key = TopicKey::new(query.namespace.clone(), topic);
    let (snapshot, view) = match app.events.topic(&key).await {
        Ok(Some(found)) => found,
        Ok(None) => return problem_page(&ctx, &no_such_topic(&key)),
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let recent = app.events.recent(&view, query.partition).await;
    let entries = app.queues.audit_entries(&key.namespace).await;
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let content = html! {
        (head(&snapshot, &view, &ctx))
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #lock-holders data-live { (lock_holders_card(&view)) }
        div #facts data-live { (facts(&snapshot, &view, wall)) }
        div #groups data-live {
            section.card aria-labelledby="readers" {
                header { h2 #readers { "Consumer groups" } }
                @let groups: Vec<_> = snapshot.groups_of(&key).map(|track| &**track).collect();
                @if groups.is_empty() { (no_groups(&key, &ctx)) } @else { (topics::group_table(&groups, None, now)) }
            }
        }
        div #events data-live { (events(&view, query.partition, recent.as_deref(), wall)) }
        div #settings data-live { (settings(&view.settings)) }
        div #activity data-live { (audit::of(entries.as_deref(), |entry| matches!(audit::resource(entry), "topic" | "event") && entry.target == key.name.as_str(), wall)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, key.name.as_str(), "Events", content)
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "new" => "Topic created.",
        "set" => "Settings saved.",
        "publish" => "Event published.",
        "known" => "An event with this idempotency key exists; no new event was published.",
        "already" => "No change: already in that state.",
        "group-delete" => "Group deleted, with its offsets and parked events.",
        _ => return None,
    })
}

fn head(snapshot: &EventsSnapshot, view: &TopicView, ctx: &PageContext) -> Markup {
    let key = &view.key;
    let to = |action: &str| components::topic_href(key, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/topics" { "Events" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-announce=(topics::announcement(view)) { (topics::state(snapshot, view)) }
                }
            }
            div.buttons role="group" aria-label="Actions" {
                @if ctx.may(Permission::Publish, Some(&key.namespace)) {
                    a.button data-key="publish" data-confirm href=(to("publish")) { "Publish event…" }
                }
                @if ctx.may(Permission::Admin, Some(&key.namespace)) {
                    a.button data-key="group" data-confirm href=(to("group")) { "Create group…" }
                    a.button data-key="settings" data-confirm href=(to("settings")) { "Settings…" }
                    a.button data-key="delete" data-confirm href=(to("delete")) { "Delete…" }
                }
            }
        }
    }
}

/// The transactions that block other commits.
pub(super) fn lock_holders_card(view: &TopicView) -> Markup {
    let all: Vec<_> = topics::blocking_lock_holders(view).collect();
    html! {
        @if !all.is_empty() {
            section.card.lock-holders aria-labelledby="blocking" {
                // Only the heading is a live region, because the table changes every second.
                header role="status" { h2 #blocking { (components::state("bad", "Transaction holds a partition lock")) } }
                div.body { p {
                    "Offsets are assigned at commit, one transaction per partition at a time. Until this transaction ends, no other commit to its partitions succeeds. "
                    "Commit it, roll it back, or terminate it: " code { "SELECT pg_terminate_backend(PID)" } "."
                } }
                table.stack {
                    thead { tr {
                        th scope="col" { "Client" } th.num scope="col" { "PID" } th.num scope="col" { "Partition" } th scope="col" { "Activity" }
                        th scope="col" { "Open for" } th.num scope="col" { "Waiting transactions" }
                    } }
                    tbody {
                        @for lock_holder in all {
                            tr data-key=(format!("lock-{}-{}", lock_holder.pid, lock_holder.partition)) {
                                th scope="row" { (lock_holder.client) }
                                td.num data-label="PID" { span.token { (lock_holder.pid) } }
                                td.num data-label="Partition" { (lock_holder.partition) }
                                td.wide.details-cell data-label="Activity" { code { (lock_holder.activity) } }
                                td.nowrap data-label="Open for" { (format::span(lock_holder.open_ms)) }
                                td.num data-label="Waiting transactions" { (format::number(lock_holder.waiting_transactions)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn facts(snapshot: &EventsSnapshot, view: &TopicView, wall: i64) -> Markup {
    let groups: Vec<_> = snapshot.groups_of(&view.key).collect();
    let most = groups.iter().max_by_key(|track| track.lag.events);
    let dead: u64 = groups.iter().map(|track| track.view.dead_letter_count).sum();
    html! {
        dl.card.facts.counts.tile {
            div { dt { "Events (estimate)" } dd { (format::number(view.event_count)) } }
            div { dt { "Partitions" } dd { (view.settings.partitions) } }
            div { dt { "Oldest event" } dd { (age(view.oldest_published_at_ms, wall)) } }
            div { dt { "Newest event" } dd { (age(view.newest_published_at_ms, wall)) } }
            div { dt { "Groups" } dd { (groups.len()) } }
            div { dt { "Maximum lag" } dd { @match most { Some(track) => (topics::lag_events(&track.lag)), None => "–" } } }
            div { dt { "Dead letters" } dd { (format::number(dead)) } }
        }
    }
}

fn age(at_ms: Option<i64>, wall: i64) -> String {
    at_ms.map_or_else(|| "–".into(), |at| format::elapsed(wall.saturating_sub(at)))
}

fn no_groups(key: &TopicKey, ctx: &PageContext) -> Markup {
    let tail = format!("tenure events tail {} --store {}", key.name, ctx.origin());
    html! {
        div.body {
            p { "No groups. The first member creates its group; members divide the partitions. To read without a group:" }
            (components::command("tail", &tail))
        }
    }
}

fn events(
    view: &TopicView,
    partition: Option<u32>,
    recent: Result<&[EventDetail], &StoreError>,
    wall: i64,
) -> Markup {
    let all = components::topic_href(&view.key, "");
    html! {
        section.card aria-labelledby="recent" {
            header {
                h2 #recent { "Recent events" @if let Some(partition) = partition { " of partition " (partition) } }
                @if partition.is_some() { a.small href={ (all) "#events" } { "All partitions" } }
                @else { span.soft.small { "newest first, up to " (RECENT) } }
            }
            @match recent {
                Err(error) => (components::load_error("events", error)),
                Ok([]) => p.empty { "No events" @if partition.is_some() { " in this partition" } ", or all were pruned." },
                Ok(recent) => table.stack {
                    thead { tr {
                        th scope="col" { "Event" } th scope="col" { "Type" } th scope="col" { "Key" } th.num scope="col" { "Partition" }
                        th scope="col" { "Payload" } th scope="col" { "Published" }
                    } }
                    tbody { @for shown in recent { (row(view, shown, wall)) } }
                },
            }
        }
    }
}

fn row(view: &TopicView, shown: &EventDetail, wall: i64) -> Markup {
    let event = &shown.event;
    html! {
        tr data-key=(format!("event-{}", event.id)) {
            th scope="row" { a href=(components::event_href(&view.key, event.id)) { (event.id) } }
            td data-label="Type" { (kind(event)) }
            td.none[event.key.is_none()] data-label="Key" { (key_of(event)) }
            td.num data-label="Partition" { a.plain href={ (components::topic_href(&view.key, "")) "&partition=" (event.partition) "#events" } { (event.partition) } }
            td.wide.payload-cell data-label="Payload" { (payload_cell(&format!("payload-{}", event.id), &shown.excerpt, &shown.payload, &components::event_href(&view.key, event.id))) }
            td.nowrap data-label="Published" { (format::ago(event.published_at_ms, wall)) }
        }
    }
}

/// The type of an event.
pub(super) fn kind(event: &Event) -> Markup {
    html! { @if event.event_type.is_empty() { span.soft { "(no type)" } } @else { (components::breakable(&event.event_type)) } }
}

/// The key of an event.
pub(super) fn key_of(event: &Event) -> Markup {
    html! { @match &event.key { Some(key) => code { (key) }, None => span.soft { "–" } } }
}

/// The payload of an event: a one-line excerpt that unfolds to the formatted payload.
pub(super) fn payload_cell(id: &str, glance: &str, payload: &FormattedPayload, whole: &str) -> Markup {
    html! {
        details id=(id) {
            summary { code { (glance) } }
            pre.payload tabindex="0" { (payload.text) @if !payload.whole { "…" } }
            p.soft.small { (size(payload.bytes)) @if !payload.whole { ", truncated; " a href=(whole) { "show all" } } }
        }
    }
}

/// A size in bytes.
pub(super) fn size(bytes: usize) -> String {
    if bytes == 1 { "1 byte".into() } else { format!("{} bytes", format::number(bytes as u64)) }
}

fn settings(settings: &TopicSettings) -> Markup {
    html! {
        section.card aria-labelledby="set" {
            header { h2 #set { "Settings" } }
            div.body {
                dl.facts {
                    div { dt { "Partitions" } dd { (settings.partitions) " (fixed)" } }
                    div { dt { "Retention" } dd { "at least " (format::duration(settings.retention_ms)) } }
                    div { dt { "Retention of unread events" } dd { @match settings.unread_retention_ms { Some(ms) => { (format::duration(ms)) ", then pruned even if unread" }, None => "until every group has read them" } } }
                    div { dt { "Maximum payload size" } dd { (size(settings.max_payload_bytes as usize)) } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::TopicLockHolder;

    use super::*;

    fn lock_holder(partition: u32, open_ms: u64, waiting: u64) -> TopicLockHolder {
        let client = format!("nightly <import> as ada {partition}");
        TopicLockHolder {
            partition,
            pid: 4711,
            client,
            activity: "idle in transaction".into(),
            open_ms,
            waiting_transactions: waiting,
        }
    }

    fn view(lock_holders: Vec<TopicLockHolder>) -> TopicView {
        let name = |text: &str| text.parse().expect("a name");
        TopicView {
            key: TopicKey::new(name("default"), name("orders")),
            settings: TopicSettings::default(),
            event_count: 0,
            oldest_published_at_ms: None,
            newest_published_at_ms: None,
            groups: Vec::new(),
            lock_holders,
        }
    }

    #[test]
    fn a_transaction_that_holds_a_partition_lock_is_shown_with_its_pid() {
        let view = view(vec![lock_holder(3, 65_000, 0), lock_holder(5, 20, 2)]);
        let shown = lock_holders_card(&view).into_string();
        for part in
            ["nightly &lt;import&gt; as ada 3", "4711", "idle in transaction", "1 m 05 s", "role=\"status\""]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(shown.matches("data-key=\"lock-4711-").count(), 2);
        assert_eq!(
            topics::announcement(&view),
            "a partition lock of orders is held by nightly <import> as ada 3"
        );
        assert!(topics::state(&EventsSnapshot::default(), &view).into_string().contains("Lock held"));
    }

    #[test]
    fn a_short_transaction_without_waiters_is_not_shown() {
        let view = view(vec![lock_holder(3, 20, 0)]);
        assert_eq!(lock_holders_card(&view).into_string(), "");
        assert_eq!(topics::announcement(&view), "orders is active");
    }
}
