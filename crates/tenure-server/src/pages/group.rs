//! One group: whose slot is whose, how far behind it is, who reads, and what failed.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{AsideFilter, EventId, GroupKey, GroupSettings, GroupView, SlotView, TopicKey, Verb};
use tenure_core::event::slot_of;

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::group_map::{self, Marks};
use super::{audit, chart, dead, parts, topic, topics, words};
use crate::App;
use crate::api::no_such_group;
use crate::gauge::Track;
use crate::problem::Problem;

/// How many slots the table shows, unless all are asked for.
const SLOTS: usize = 16;
/// More members than this are not read by anybody.
const MEMBERS: usize = 200;
/// How many events that are aside are on a page.
pub(super) const PAGE: u32 = 20;

/// What the address of a group's page may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
    /// Where does this key lie?
    #[serde(default)]
    find: String,
    /// `all`: a row for every slot.
    #[serde(default)]
    slots: String,
    /// `all`: what is aside, whether it is dead or not.
    #[serde(default)]
    aside: String,
    /// What is aside of this key only.
    #[serde(default)]
    pub(super) key: String,
    /// After this one, for the next page of what is aside.
    #[serde(default)]
    after: Option<u64>,
}

impl Asked {
    /// Whether only the dead are looked at: unless there are none, and so nothing to see.
    fn only_dead(&self, view: &GroupView) -> Result<bool, Problem> {
        match self.aside.as_str() {
            "" => Ok(view.dead > 0 || view.aside == 0),
            "dead" => Ok(true),
            "all" => Ok(false),
            other => {
                let detail = format!("{other:?} is nothing that can be seen of what is aside");
                Err(Problem::new(StatusCode::BAD_REQUEST, "malformed-query", detail)
                    .field("aside")
                    .remedy("choose among dead and all"))
            }
        }
    }
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path((topic, group))): Got<Path<(Name, Name)>>,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let key = GroupKey::new(TopicKey::new(asked.namespace.clone(), topic), group);
    let found = async {
        let (seen, track) = app.gauge.group(&key).await?.ok_or_else(|| no_such_group(&key))?;
        let only_dead = asked.only_dead(&track.view)?;
        Ok::<_, Problem>((seen, track, only_dead))
    };
    let (seen, track, only_dead) = match found.await {
        Ok(found) => found,
        Err(problem) => return trouble(&visit, &problem),
    };
    let filter = AsideFilter {
        group: key.clone(),
        dead: only_dead,
        slot: None,
        key: Some(asked.key.clone()).filter(|key| !key.is_empty()),
        after: asked.after.map(|after| EventId(after.min(i64::MAX as u64))),
        limit: PAGE + 1,
    };
    let asides = app.gauge.asides(&filter).await;
    let deeds = app.floor.deeds(&key.topic.namespace).await;
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let target = format!("{}/{}", key.topic.name, key.name);
    let marks = Marks::of(&track.view);
    let content = html! {
        (head(&track, &visit))
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        @if let Some(secret) = visit.secret() { (parts::secret("Webhook signing secret.", secret)) }
        div #pause data-live {
            @if let Some(pause) = &track.view.paused {
                (parts::paused(pause, "Nothing more is read until it is resumed; members keep their slots, and finish what they have.", wall))
            }
        }
        div #blockers data-live { @if let Some(view) = seen.topics.get(&key.topic) { (topic::blockers(view)) } }
        div #lag data-live { (behind(&track, now)) }
        (slots(&track.view, &marks, &asked))
        div #members data-live { (members(&track.view, &marks)) }
        div #aside data-live { (dead::list(&track.view, &filter, asides.as_deref(), &visit, wall)) }
        div #settings .pair data-live { (settings(&track.view.settings)) (push(&track.view, &visit)) }
        div #deeds data-live { (audit::of(deeds.as_deref(), |deed| matches!(audit::sort(deed), "group" | "dead" | "push") && deed.target == target, wall)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, &format!("{} of {}", key.name, key.topic.name), "Events", content)
}

/// What came of a deed. Only what is written here is ever shown: an address must not put words into our mouth.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "new" => "Made. Its members share the slots as soon as there are any.",
        "pause" => "Paused. Nothing more is read until you resume it; members finish what they have.",
        "resume" => "Resumed. It goes on from where it was.",
        "settings" => "Set. It counts for every failure from now on.",
        "reset" => {
            "Moved. Members take their slots anew and go on from there; what they had not committed is refused."
        }
        "replay" => {
            "Replayed: tried again at once, as often as at first. Those that wait behind follow in order."
        }
        "drop" => "Dropped. Those that waited behind follow in order.",
        "push" => "Set. The servers push its events from now on.",
        "unset" => "The servers push its events no more. How far it was read stays.",
        "nothing" => "Nothing to do: there was none left to do it to.",
        "already" => "Nothing to do: it was so already.",
        _ => return None,
    })
}

fn head(track: &Track, visit: &Visit) -> Markup {
    let key = &track.view.key;
    let to = |action: &str| parts::group_href(key, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/topics" { "Events" } " / " (key.topic.namespace) " / " a href=(parts::topic_href(&key.topic, "")) { (key.topic.name) } }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-says=(topics::group_says(track)) { (topics::group_state(track)) }
                }
            }
            @if visit.may(Verb::Admin, Some(&key.topic.namespace)) {
                div #actions .buttons data-live role="group" aria-label="What can be done" {
                    @if track.view.paused.is_some() { a.button.main data-key="resume" data-confirm href=(to("resume")) { "Resume…" } }
                    @else { a.button data-key="pause" data-confirm href=(to("pause")) { "Pause…" } }
                    a.button data-key="reset" data-confirm href=(to("reset")) { "Reset…" }
                    a.button data-key="settings" data-confirm href=(to("settings")) { "Settings…" }
                    a.button data-key="delete" data-confirm href=(to("delete")) { "Delete…" }
                }
            }
        }
    }
}

fn behind(track: &Track, now: tenure::Moment) -> Markup {
    let (view, lag) = (&track.view, &track.lag);
    let held = view.slots.iter().filter(|slot| slot.share.holder.is_some()).count();
    html! {
        section.card aria-labelledby="lagging" {
            header { h2 #lagging { "How far behind" } }
            div.body {
                dl.facts.counts {
                    div { dt { "Unread" } dd { (topics::unread(lag)) } }
                    div { dt { "Oldest unread" } dd { @if lag.ms == 0 { "–" } @else { (words::span(lag.ms)) } } }
                    div { dt { "Slots behind" } dd { (lag.slots) span.soft.small { " of " (view.slots.len()) } } }
                    div { dt { "Slots held" } dd { (held) span.soft.small { " of " (view.slots.len()) } } }
                    div { dt { "Members" } dd { (view.members.len()) } }
                    div { dt { "Aside" } dd { (words::number(view.aside)) } }
                    div { dt { "Dead" } dd { (words::number(view.dead)) } }
                    div { dt { "Slots moved, ever" } dd { (words::number(view.moves)) } }
                }
                (chart::behind(track, now))
            }
        }
    }
}

/// The slots: as a map, and as a table.
fn slots(view: &GroupView, marks: &Marks<'_>, asked: &Asked) -> Markup {
    let here = (!asked.find.is_empty() && !view.slots.is_empty())
        .then(|| slot_of(&asked.find, u32::try_from(view.slots.len()).unwrap_or(u32::MAX)));
    let back = parts::group_href(&view.key, "");
    html! {
        section #slots .card aria-labelledby="owned" {
            header {
                h2 #owned { "Whose slot is whose" }
                form.filter method="get" action={ "/topics/" (parts::escape(view.key.topic.name.as_str())) "/groups/" (parts::escape(view.key.name.as_str())) "#slots" } role="search" {
                    input type="hidden" name="namespace" value=(view.key.topic.namespace);
                    label.hidden for="find" { "Where does this key lie?" }
                    input #find type="search" name="find" value=(asked.find) placeholder="Find a key";
                    button.button { "Find" }
                }
            }
            div #found data-live { @if let Some(slot) = here.and_then(|slot| view.slots.get(slot as usize)) { (found(slot, marks, &asked.find, view)) } }
            div #map .body data-live { (group_map::map(view, marks, here)) }
            div #by-slot data-live { (by_slot(view, marks, asked.slots == "all", &back)) }
        }
    }
}

fn found(slot: &SlotView, marks: &Marks<'_>, key: &str, view: &GroupView) -> Markup {
    html! {
        div.body { p {
            "The key " code { (key) } " lies in slot " span.strong { (slot.share.slot) } ", which "
            @match marks.holder(slot) { Some(at) => { span.strong { (marks.members[at].name) } " has" }, None => "nobody has now" }
            @if slot.lag > 0 { "; " (words::number(slot.lag)) " of its events are unread" } @else { "; all of it is read" } ". "
            a href={ (parts::topic_href(&view.key.topic, "")) "&slot=" (slot.share.slot) "#events" } { "Its last events" }
            " · "
            a href={ (parts::group_href(&view.key, "")) "&aside=all&key=" (parts::escape(key)) "#aside" } { "What is aside of it" }
        } }
    }
}

/// A row for each slot; those that are furthest behind, unless all are asked for.
fn by_slot(view: &GroupView, marks: &Marks<'_>, all: bool, back: &str) -> Markup {
    let mut slots: Vec<_> = view.slots.iter().collect();
    let whole = all || slots.len() <= SLOTS;
    if !whole {
        slots.sort_by_key(|slot| (std::cmp::Reverse(slot.lag), slot.share.slot));
        slots.truncate(SLOTS);
    }
    html! {
        details #table open[all] {
            summary { @if whole { "The same as a table" } @else { "The " (SLOTS) " slots that are furthest behind, as a table" } }
            table.stack.figures {
                thead { tr {
                    th scope="col" { "Slot" } th scope="col" { "Member" } th.num scope="col" { "Read up to" } th.num scope="col" { "End" }
                    th.num scope="col" { "Unread" } th scope="col" { "Oldest unread" } th scope="col" { "Token" }
                } }
                tbody { @for slot in slots { (slot_row(slot, marks)) } }
            }
            @if !whole { nav.pager aria-label="All slots" { a.button.slim href={ (back) "&slots=all#slots" } { "All " (view.slots.len()) " slots" } } }
        }
    }
}

fn slot_row(slot: &SlotView, marks: &Marks<'_>) -> Markup {
    let share = &slot.share;
    html! {
        tr data-key=(format!("row-{}", share.slot)) {
            th scope="row" { (share.slot) }
            td data-label="Member" {
                @match marks.holder(slot) {
                    Some(at) => span.nowrap { (marks.mark(at)) " " (marks.members[at].name) },
                    None if share.last.is_empty() => span.soft { "nobody, ever" },
                    None => span.soft { "free, last " (share.last) },
                }
            }
            td.num data-label="Read up to" { span.token { (share.position) } }
            td.num data-label="End" { span.token { (slot.end) } }
            td.num data-label="Unread" { (words::number(slot.lag)) @if !slot.lag_exact { "+" } }
            td.nowrap.none[slot.lag == 0] data-label="Oldest unread" { @if slot.lag == 0 { span.soft { "–" } } @else { (words::span(slot.lag_ms)) } }
            td.none[share.token == tenure::Token::ZERO] data-label="Token" { @if share.token == tenure::Token::ZERO { span.soft { "–" } } @else { span.token { (share.token) } } }
        }
    }
}

fn members(view: &GroupView, marks: &Marks<'_>) -> Markup {
    let shares = group_map::shares(view, marks);
    let all = view.slots.len().max(1);
    html! {
        section.card aria-labelledby="reading" {
            header { h2 #reading { "Members" } span.soft.small { (words::count(marks.members.len(), "member")) } }
            @if marks.members.is_empty() {
                p.empty {
                    @if view.push.is_some() { "None now. The servers join by themselves, to push its events." }
                    @else { "Nobody is in this group now. What is published waits for it." }
                }
            } @else {
                table.stack {
                    thead { tr { th scope="col" { "Member" } th scope="col" { "Share" } th scope="col" { "Slots" } th.num scope="col" { "Unread" } th scope="col" { "Oldest unread" } th scope="col" { "Session" } } }
                    tbody {
                        @for (at, member) in marks.members.iter().enumerate().take(MEMBERS) {
                            @let own: Vec<_> = view.slots.iter().filter(|slot| marks.holder(slot) == Some(at)).collect();
                            @let unread: u64 = own.iter().map(|slot| slot.lag).sum();
                            @let exact = own.iter().all(|slot| slot.lag_exact);
                            @let oldest = own.iter().map(|slot| slot.lag_ms).max().unwrap_or_default();
                            tr data-key=(format!("member-{}", member.session)) {
                                th scope="row" { span.nowrap { (marks.mark(at)) " " (member.name) } }
                                td.wide data-label="Share" {
                                    span.load {
                                        progress max=(all) value=(shares[at]) aria-label={ "Slots of " (member.name) } {}
                                        span.small.nowrap { (words::count(shares[at], "slot")) }
                                    }
                                }
                                td.wide.about.none[own.is_empty()] data-label="Slots" { span.small { (group_map::ranges(own.iter().map(|slot| slot.share.slot), 12)) } }
                                td.num data-label="Unread" { (words::number(unread)) @if !exact { "+" } }
                                td.nowrap.none[oldest == 0] data-label="Oldest unread" { @if oldest == 0 { span.soft { "–" } } @else { (words::span(oldest)) } }
                                td data-label="Session" { code { (member.session.short()) } }
                            }
                        }
                    }
                }
                @if marks.members.len() > MEMBERS { p.empty { (marks.members.len() - MEMBERS) " more are not shown." } }
            }
        }
    }
}

fn settings(settings: &GroupSettings) -> Markup {
    html! {
        section.card aria-labelledby="set" {
            header { h2 #set { "Settings" } }
            div.body {
                dl.facts {
                    div { dt { "An event that fails is tried" } dd { (words::count(settings.max_attempts as usize, "time")) ", then it is dead and its key parked" } }
                    div { dt { "First after" } dd { (words::duration(settings.backoff.first_ms)) } }
                    div { dt { "Then, at most, after" } dd { (words::duration(settings.backoff.most_ms)) } }
                }
            }
        }
    }
}

fn push(view: &GroupView, visit: &Visit) -> Markup {
    let key = &view.key;
    html! {
        section.card aria-labelledby="pushed" {
            header {
                h2 #pushed { "Push" }
                @if visit.may(Verb::Admin, Some(&key.topic.namespace)) {
                    div.buttons role="group" aria-label="What an operator can do to the push" {
                        a.button.slim data-key="push" data-confirm href=(parts::group_href(key, "push")) { @if view.push.is_some() { "Change…" } @else { "Set up…" } }
                        @if view.push.is_some() { a.button.slim data-key="unset" data-confirm href=(parts::group_href(key, "unset")) { "Stop…" } }
                    }
                }
            }
            div.body {
                @match &view.push {
                    Some(push) => dl.facts {
                        div { dt { "Every event is sent to" } dd { code { (push.shown()) } } }
                        div { dt { "An answer may take" } dd { (words::duration(push.timeout_ms)) } }
                        div { dt { "Signed with" } dd { "a secret that is not shown" } }
                    },
                    None => p.soft { "Members read this group themselves. It can be pushed to a webhook instead, signed, by these servers." },
                }
            }
        }
    }
}
