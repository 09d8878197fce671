//! One topic: what is in it, who reads it, what blocks it, and how it is set.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Event, StoreError, TopicKey, TopicSettings, TopicView, Verb};

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::{audit, parts, topics, words};
use crate::App;
use crate::api::no_such_topic;
use crate::gauge::{RECENT, Seen, Shown};
use crate::pages::Laid;

/// What the address of a topic's page may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
    /// Events of this slot only.
    #[serde(default)]
    slot: Option<u32>,
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path(topic)): Got<Path<Name>>,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let key = TopicKey::new(asked.namespace.clone(), topic);
    let (seen, view) = match app.gauge.topic(&key).await {
        Ok(Some(found)) => found,
        Ok(None) => return trouble(&visit, &no_such_topic(&key)),
        Err(error) => return trouble(&visit, &error.into()),
    };
    let recent = app.gauge.recent(&view, asked.slot).await;
    let deeds = app.floor.deeds(&key.namespace).await;
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let content = html! {
        (head(&seen, &view, &visit))
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #blockers data-live { (blockers(&view)) }
        div #what data-live { (facts(&seen, &view, wall)) }
        div #groups data-live {
            section.card aria-labelledby="readers" {
                header { h2 #readers { "Groups that read it" } }
                @let groups: Vec<_> = seen.groups_of(&key).map(|track| &**track).collect();
                @if groups.is_empty() { (nobody(&key, &visit)) } @else { (topics::group_table(&groups, None, now)) }
            }
        }
        div #events data-live { (events(&view, asked.slot, recent.as_deref(), wall)) }
        div #settings data-live { (settings(&view.settings)) }
        div #deeds data-live { (audit::of(deeds.as_deref(), |deed| audit::sort(deed) == "topic" && deed.target == key.name.as_str(), wall)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, key.name.as_str(), "Events", content)
}

/// What came of a deed. Only what is written here is ever shown: an address must not put words into our mouth.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "new" => "Made. It is empty; whoever publishes to it is heard from now on.",
        "set" => "Set.",
        "publish" => "Published. It is the first of the list, unless others have followed it.",
        "known" => {
            "Nothing to do: an event with this idempotency key is there already, and is not published twice."
        }
        "already" => "Nothing to do: it was so already.",
        "group-delete" => {
            "The group is deleted: how far it had read, and what was aside in it, is forgotten."
        }
        _ => return None,
    })
}

fn head(seen: &Seen, view: &TopicView, visit: &Visit) -> Markup {
    let key = &view.key;
    let to = |action: &str| parts::topic_href(key, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/topics" { "Events" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-says=(topics::says(view)) { (topics::state(seen, view)) }
                }
            }
            div.buttons role="group" aria-label="What can be done" {
                @if visit.may(Verb::Publish, Some(&key.namespace)) {
                    a.button data-key="publish" data-confirm href=(to("publish")) { "Publish an event…" }
                }
                @if visit.may(Verb::Admin, Some(&key.namespace)) {
                    a.button data-key="group" data-confirm href=(to("group")) { "Add a group…" }
                    a.button data-key="settings" data-confirm href=(to("settings")) { "Settings…" }
                    a.button data-key="delete" data-confirm href=(to("delete")) { "Delete…" }
                }
            }
        }
    }
}

/// The transactions that keep others from committing, by name.
pub(super) fn blockers(view: &TopicView) -> Markup {
    let all: Vec<_> = topics::in_the_way(view).collect();
    html! {
        @if !all.is_empty() {
            section.card.blocked aria-labelledby="blocking" {
                // Only this is told to who hears the page: what is below changes every second.
                header role="status" { h2 #blocking { (parts::state("bad", "A transaction is in the way")) } }
                div.body { p {
                    "Positions are given at commit, one transaction at a time in each slot. Until this one ends, nothing else can be committed to its slots. "
                    "Commit it, roll it back, or end its process: " code { "SELECT pg_terminate_backend(PID)" } "."
                } }
                table.stack {
                    thead { tr {
                        th scope="col" { "Who" } th.num scope="col" { "PID" } th.num scope="col" { "Slot" } th scope="col" { "Does" }
                        th scope="col" { "Open for" } th.num scope="col" { "Keep waiting" }
                    } }
                    tbody {
                        @for blocker in all {
                            tr data-key=(format!("blocker-{}-{}", blocker.pid, blocker.slot)) {
                                th scope="row" { (blocker.who) }
                                td.num data-label="PID" { span.token { (blocker.pid) } }
                                td.num data-label="Slot" { (blocker.slot) }
                                td.wide.about data-label="Does" { code { (blocker.doing) } }
                                td.nowrap data-label="Open for" { (words::span(blocker.since_ms)) }
                                td.num data-label="Keep waiting" { (words::number(blocker.waiting)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn facts(seen: &Seen, view: &TopicView, wall: i64) -> Markup {
    let groups: Vec<_> = seen.groups_of(&view.key).collect();
    let most = groups.iter().max_by_key(|track| track.lag.events);
    let dead: u64 = groups.iter().map(|track| track.view.dead).sum();
    html! {
        dl.card.facts.counts.tile {
            div { dt { "Events, about" } dd { (words::number(view.events)) } }
            div { dt { "Slots" } dd { (view.settings.slots) } }
            div { dt { "Age of the oldest" } dd { (age(view.oldest_at_ms, wall)) } }
            div { dt { "Age of the newest" } dd { (age(view.newest_at_ms, wall)) } }
            div { dt { "Groups" } dd { (groups.len()) } }
            div { dt { "Unread, at most" } dd { @match most { Some(track) => (topics::unread(&track.lag)), None => "–" } } }
            div { dt { "Dead" } dd { (words::number(dead)) } }
        }
    }
}

fn age(at_ms: Option<i64>, wall: i64) -> String {
    at_ms.map_or_else(|| "–".into(), |at| words::lasted(wall.saturating_sub(at)))
}

fn nobody(key: &TopicKey, visit: &Visit) -> Markup {
    let tail = format!("tenure events tail {} --store {}", key.name, visit.origin());
    html! {
        div.body {
            p { "Nobody reads it. A group is made by its first member, or by hand, and shares the slots among all who join. To look without a group:" }
            (parts::command("tail", &tail))
        }
    }
}

fn events(view: &TopicView, slot: Option<u32>, recent: Result<&[Shown], &StoreError>, wall: i64) -> Markup {
    let all = parts::topic_href(&view.key, "");
    html! {
        section.card aria-labelledby="recent" {
            header {
                h2 #recent { "The last events" @if let Some(slot) = slot { " of slot " (slot) } }
                @if slot.is_some() { a.small href={ (all) "#events" } { "Of every slot" } }
                @else { span.soft.small { "at most " (RECENT) ", the newest first" } }
            }
            @match recent {
                Err(error) => (parts::unread("The events", error)),
                Ok([]) => p.empty { "There are none" @if slot.is_some() { " in this slot" } ", or none is kept any more." },
                Ok(recent) => table.stack {
                    thead { tr {
                        th scope="col" { "Event" } th scope="col" { "Type" } th scope="col" { "Key" } th.num scope="col" { "Slot" }
                        th scope="col" { "Carries" } th scope="col" { "Published" }
                    } }
                    tbody { @for shown in recent { (row(view, shown, wall)) } }
                },
            }
        }
    }
}

fn row(view: &TopicView, shown: &Shown, wall: i64) -> Markup {
    let event = &shown.event;
    html! {
        tr data-key=(format!("event-{}", event.id)) {
            th scope="row" { a href=(parts::event_href(&view.key, event.id)) { (event.id) } }
            td data-label="Type" { (kind(event)) }
            td.none[event.key.is_none()] data-label="Key" { (key_of(event)) }
            td.num data-label="Slot" { a.plain href={ (parts::topic_href(&view.key, "")) "&slot=" (event.slot) "#events" } { (event.slot) } }
            td.wide.carries data-label="Carries" { (carries(&format!("carries-{}", event.id), &shown.glance, &shown.payload, &parts::event_href(&view.key, event.id))) }
            td.nowrap data-label="Published" { (words::ago(event.at_ms, wall)) }
        }
    }
}

/// What happened.
pub(super) fn kind(event: &Event) -> Markup {
    html! { @if event.kind.is_empty() { span.soft { "no type" } } @else { (parts::breakable(&event.kind)) } }
}

/// Of whom, if it matters in which order.
pub(super) fn key_of(event: &Event) -> Markup {
    html! { @match &event.key { Some(key) => code { (key) }, None => span.soft { "–" } } }
}

/// What an event carries: in one line, and laid out for who wants to see it.
pub(super) fn carries(id: &str, glance: &str, payload: &Laid, whole: &str) -> Markup {
    html! {
        details id=(id) {
            summary { code { (glance) } }
            pre.laid tabindex="0" { (payload.text) @if !payload.whole { "…" } }
            p.soft.small { (size(payload.bytes)) @if !payload.whole { ", of which this is the beginning; " a href=(whole) { "see more" } } }
        }
    }
}

/// How many bytes.
pub(super) fn size(bytes: usize) -> String {
    if bytes == 1 { "1 byte".into() } else { format!("{} bytes", words::number(bytes as u64)) }
}

fn settings(settings: &TopicSettings) -> Markup {
    html! {
        section.card aria-labelledby="set" {
            header { h2 #set { "Settings" } }
            div.body {
                dl.facts {
                    div { dt { "Slots" } dd { (settings.slots) ", fixed when it was made" } }
                    div { dt { "Events are kept for" } dd { (words::duration(settings.keep_ms)) " at least" } }
                    div { dt { "Unread ones" } dd { @match settings.keep_unread_ms { Some(ms) => { "for " (words::duration(ms)) ", then they are lost to who has not read them" }, None => "until every group has read them" } } }
                    div { dt { "Carry at most" } dd { (size(settings.max_bytes as usize)) } }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::port::Blocker;

    use super::*;

    fn blocker(slot: u32, since_ms: u64, waiting: u64) -> Blocker {
        let who = format!("nightly <import> as ada {slot}");
        Blocker { slot, pid: 4711, who, doing: "idle in transaction".into(), since_ms, waiting }
    }

    fn view(blockers: Vec<Blocker>) -> TopicView {
        let name = |text: &str| text.parse().expect("a name");
        TopicView {
            key: TopicKey::new(name("default"), name("orders")),
            settings: TopicSettings::default(),
            events: 0,
            oldest_at_ms: None,
            newest_at_ms: None,
            groups: Vec::new(),
            blockers,
        }
    }

    #[test]
    fn the_transaction_that_blocks_a_slot_is_named_with_its_pid() {
        let view = view(vec![blocker(3, 65_000, 0), blocker(5, 20, 2)]);
        let shown = blockers(&view).into_string();
        for part in [
            "nightly &lt;import&gt; as ada 3",
            "4711",
            "idle in transaction",
            "1 min 05 s",
            "role=\"status\"",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert_eq!(shown.matches("data-key=\"blocker-4711-").count(), 2);
        assert_eq!(topics::says(&view), "orders is blocked by nightly <import> as ada 3");
        assert!(topics::state(&Seen::default(), &view).into_string().contains("blocked"));
    }

    #[test]
    fn one_that_commits_and_keeps_nobody_is_nobodys_trouble() {
        let view = view(vec![blocker(3, 20, 0)]);
        assert_eq!(blockers(&view).into_string(), "");
        assert_eq!(topics::says(&view), "orders is open");
    }
}
