//! A group, moved to another place. First the question where to; then what that would do, slot by slot, with nothing done yet;
//! then the deed.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Begin, GroupKey, GroupView, Moved, TopicKey, TopicView};
use tenure_core::event::check_begin;

use super::election::within;
use super::frame::{Visit, page, trouble};
use super::given::{Got, Posted};
use super::group_act::{find, record};
use super::parts;
use super::queue_act::{span, wrong};
use super::queues::Where;
use super::topic_act::number;
use super::words;
use crate::App;
use crate::api::reset_detail;
use crate::problem::Problem;

/// How many slots are told one by one.
const SHOWN: usize = 64;

/// Where a group is to go: what the address of the trial says, and the form of the deed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wanted {
    /// For the address only; the gate has read it.
    namespace: Option<Name>,
    to: String,
    position: String,
    time: String,
    ago: String,
    slot: String,
}

impl Wanted {
    /// Where to, and which slot, if not all.
    fn place(&self, wall: i64) -> Result<(Begin, Option<u32>), Problem> {
        let to = match self.to.as_str() {
            "earliest" => Begin::Earliest,
            "latest" => Begin::Latest,
            "position" => Begin::Position(number("position", &self.position)?),
            // Asked as so long ago, it becomes a moment: what is shown and what is done are the same.
            "time" if self.time.is_empty() => {
                let ago = i64::try_from(span("ago", &self.ago)?).unwrap_or(i64::MAX);
                Begin::Time(wall.saturating_sub(ago).max(0))
            }
            "time" => Begin::Time(number("time", &self.time)?),
            other => return Err(wrong("to", format!("{other:?} is no place to go to"))),
        };
        check_begin(&to).map_err(|error| wrong("to", error.to_string()))?;
        let slot = Some(self.slot.trim()).filter(|text| !text.is_empty());
        Ok((to, slot.map(|text| number("slot", text)).transpose()?))
    }
}

/// Where to, in words.
fn said(to: Begin) -> String {
    match to {
        Begin::Earliest => "the oldest event that is kept".into(),
        Begin::Latest => "the end, so that only what comes next is read".into(),
        Begin::Position(position) => format!("position {position}"),
        Begin::Time(at_ms) => format!("the first event since {}", words::utc(at_ms)),
    }
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group))): Got<Path<(Name, Name)>>,
    Got(Query(wanted)): Got<Query<Wanted>>,
) -> Response {
    let namespace = wanted.namespace.clone().unwrap_or_else(Name::default_namespace);
    let key = GroupKey::new(TopicKey::new(namespace, topic), group);
    let shown = async {
        let view = find(&app, &key).await?;
        if wanted.to.is_empty() {
            return Ok(html! { section.card.narrow { div.body { (form(&view)) } } });
        }
        let (to, slot) = wanted.place(app.runtime.wall_ms())?;
        let moved = within(app.store.reset_group(&key, to, slot, true)).await?;
        let topic = within(app.store.topic(&key.topic)).await?;
        Ok(trial(&view, topic.as_ref(), to, slot, &moved))
    };
    match shown.await {
        Ok(content) => page(&visit, &format!("Reset {}", key.name), "Events", content),
        Err(problem) => trouble(&visit, &problem),
    }
}

/// The question where to. It only looks: what it would do comes next.
fn form(view: &GroupView) -> Markup {
    let key = &view.key;
    let choices = [
        ("earliest", "The beginning", "everything that is kept is read again"),
        ("latest", "The end", "everything that is there is passed over"),
    ];
    html! {
        form #confirm .confirm method="get" action={ "/topics/" (parts::escape(key.topic.name.as_str())) "/groups/" (parts::escape(key.name.as_str())) "/reset" } {
            h1 #confirm-title { "Reset " (key.name) }
            p { "Where shall it go on? You see what that would do before it is done." }
            input type="hidden" name="namespace" value=(key.topic.namespace);
            fieldset.field {
                legend { "To" }
                div.choices {
                    @for (at, (value, name, means)) in choices.into_iter().enumerate() {
                        label { input type="radio" name="to" required value=(value) checked[at == 0]; span.says { span.strong { (name) } span.soft.small { (means) } } }
                    }
                    label {
                        input type="radio" name="to" required value="time"; span.says { span.strong { "A time" } span.soft.small { "what was published since" } }
                        span.meta { input name="ago" value="1h" size="7" autocomplete="off" aria-label="How long ago"; " ago" }
                    }
                    label {
                        input type="radio" name="to" required value="position"; span.says { span.strong { "After a position" } span.soft.small { "as the table of slots tells them" } }
                        span.meta { input name="position" value="0" size="9" inputmode="numeric" autocomplete="off" aria-label="Position"; }
                    }
                }
            }
            div.field { label for="slot" { "Only slot" } input #slot name="slot" type="number" min="0" max=(view.slots.len().saturating_sub(1)); small { "Empty: all of them." } }
            div.buttons {
                button.button.main { "See what it would do" }
                a.button data-cancel href=(parts::group_href(key, "")) { "Cancel" }
            }
        }
    }
}

/// What a reset would do. Nothing is done yet.
fn trial(
    view: &GroupView,
    topic: Option<&TopicView>,
    to: Begin,
    slot: Option<u32>,
    moved: &[Moved],
) -> Markup {
    let key = &view.key;
    let back = moved.iter().filter(|one| one.to < one.from).count();
    let ahead = moved.iter().filter(|one| one.to > one.from).count();
    let shown: Vec<_> = moved.iter().filter(|one| one.to != one.from).collect();
    html! {
        div.head { div {
            p.crumb { a href="/topics" { "Events" } " / " (key.topic.namespace) " / " a href=(parts::topic_href(&key.topic, "")) { (key.topic.name) } " / " a href=(parts::group_href(key, "")) { (key.name) } }
            h1 { "What it would do" }
            p { "To " (said(to)) ", " @match slot { Some(slot) => { "slot " (slot) " only" }, None => "all slots" } ". Nothing is done yet." }
        } }
        div.tiles {
            dl.card.tile { dt { "Go back" } dd.big { (words::count(back, "slot")) } dd.note { "and read again what they have read" } }
            dl.card.tile { dt { "Go ahead" } dd.big { (words::count(ahead, "slot")) } dd.note { "and never read what they pass over" } }
            dl.card.tile { dt { "Stay" } dd.big { (words::count(moved.len() - back - ahead, "slot")) } dd.note { @if let Some(topic) = topic { "of a topic with about " (words::number(topic.events)) " events" } } }
        }
        @if !view.members.is_empty() || view.aside + view.dead > 0 {
            (parts::notice("warn", html! {
                @if !view.members.is_empty() { p { (words::count(view.members.len(), "member")) " of the group will take " @if view.members.len() == 1 { "its" } @else { "their" } " slots anew. What they have in hand and have not committed is refused." } }
                @if view.aside + view.dead > 0 { p { "Of the " (words::count((view.aside + view.dead) as usize, "event")) " that are aside, those after the new positions are forgotten, for they are read again." } }
            }))
        }
        form.confirm method="post" action=(parts::group_href(key, "reset")) {
            (hidden(to, slot))
            div.buttons {
                button.button.danger data-key="do" { "Reset " (key.name) }
                a.button href=(parts::group_href(key, "")) { "Cancel" }
            }
        }
        section.card aria-labelledby="by-slot" {
            header { h2 #by-slot { "Slot by slot" } @if shown.len() > SHOWN { span.soft.small { "the first " (SHOWN) " of " (shown.len()) " that move" } } }
            @if shown.is_empty() { p.empty { "No slot would move: all are there already." } }
            @else {
                table.stack.figures {
                    thead { tr { th scope="col" { "Slot" } th.num scope="col" { "From" } th.num scope="col" { "To" } th scope="col" { "Which is" } } }
                    tbody {
                        @for one in shown.iter().take(SHOWN) {
                            tr data-key=(format!("moved-{}", one.slot)) {
                                th scope="row" { (one.slot) }
                                td.num data-label="From" { span.token { (one.from) } }
                                td.num data-label="To" { span.token { (one.to) } }
                                td data-label="Which is" { @if one.to < one.from { "← back" } @else { "ahead →" } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn hidden(to: Begin, slot: Option<u32>) -> Markup {
    let (word, field) = match to {
        Begin::Earliest => ("earliest", None),
        Begin::Latest => ("latest", None),
        Begin::Position(position) => ("position", Some(("position", position.to_string()))),
        Begin::Time(at_ms) => ("time", Some(("time", at_ms.to_string()))),
    };
    html! {
        input type="hidden" name="to" value=(word);
        @if let Some((name, value)) = field { input type="hidden" name=(name) value=(value); }
        @if let Some(slot) = slot { input type="hidden" name="slot" value=(slot); }
    }
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group))): Got<Path<(Name, Name)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(wanted): Posted<Wanted>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(at.namespace, topic), group);
    let done = async {
        find(&app, &key).await?;
        let (to, slot) = wanted.place(app.runtime.wall_ms())?;
        let moved = within(app.store.reset_group(&key, to, slot, false)).await?;
        if moved.is_empty() {
            return Ok("nothing");
        }
        record(&app, &visit, "group.reset", &key, reset_detail(&to, slot)).await;
        Ok("reset")
    };
    match done.await {
        Ok(done) => visit.tell(&parts::group_href(&key, ""), done),
        Err(problem) => trouble(&visit, &problem),
    }
}
