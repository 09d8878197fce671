//! One schedule: what is ahead of it, what it has done and how late, and how it is defined.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    Cause, ScheduleKey, ScheduleView, StoreError, TickFilter, TickState, TickView, TopicKey, Verb,
    calls_queue,
};
use tenure_core::schedule::{Fold, Gap, Misfire, ON_TIME_MS, Overlap, Target, Zone, tzdb_version};

use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::schedule_clock::Local;
use super::{audit, parts, schedule_strip, schedules, words};
use crate::App;
use crate::agenda::{Planned, Run};
use crate::api::no_such_schedule;
use crate::pages::Laid;

/// How many ticks of the history are on a page.
const PAGE: u32 = 25;

/// What the address of a schedule's page may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
    /// The history before this instant, for the next page.
    #[serde(default)]
    before: Option<i64>,
    /// The history from this tick back.
    #[serde(default)]
    at: Option<i64>,
}

impl Asked {
    /// Before which instant the history is shown.
    fn before_ms(&self) -> Option<i64> {
        self.before.or(self.at.map(|at| at.saturating_add(1)))
    }
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path(name)): Got<Path<Name>>,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let key = ScheduleKey::new(asked.namespace.clone(), name);
    let planned = match app.agenda.schedule(&key).await {
        Ok(Some(planned)) => planned,
        Ok(None) => return trouble(&visit, &no_such_schedule(&key)),
        Err(error) => return trouble(&visit, &error.into()),
    };
    let filter = TickFilter { key: key.clone(), before_ms: asked.before_ms(), limit: PAGE + 1 };
    let ticks = app.agenda.ticks(&filter).await;
    let deeds = app.floor.deeds(&key.namespace).await;
    let wall = app.runtime.wall_ms();
    let Planned { view, payload, ahead } = &*planned;
    let runs = app.agenda.runs(&[view]).await;
    let run = runs.get(&key);
    let content = html! {
        (head(view, run, &visit, wall))
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        @if let Some(secret) = visit.secret() { (parts::secret("Webhook signing secret.", secret)) }
        div #pause data-live {
            @if let Some(pause) = &view.paused { (parts::paused(pause, "It does not fire until it is resumed. What falls due meanwhile is missed, and follows its policy then.", wall)) }
        }
        div #stuck data-live { (stuck(view, wall)) (failed(view, run, &visit)) }
        div #counts data-live { (counts(view, ticks.as_deref(), wall)) }
        div #ahead data-live {
            section.card aria-labelledby="next" {
                header { h2 #next { "What is ahead" } span.soft.small { "in " (view.definition.zone) } }
                div.body { (schedule_strip::ahead(ahead, &view.definition.zone, view.paused.is_some(), wall)) }
            }
        }
        div #history data-live { (history(view, &asked, ticks.as_deref(), &visit, wall)) }
        div #definition data-live { (definition(view, payload, &visit, wall)) }
        div #deeds data-live { (audit::of(deeds.as_deref(), |deed| audit::sort(deed) == "schedule" && deed.target == key.name.as_str(), wall)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, key.name.as_str(), "Schedules", content)
}

/// What came of a deed. Only what is written here is ever shown: an address must not put words into our mouth.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "new" => "Made. It fires by itself from its next tick on.",
        "set" => "Set.",
        "already" => "Nothing to do: it was so already.",
        "pause" => "Paused: nothing fires until somebody resumes it.",
        "resume" => "Resumed.",
        "trigger" => "Triggered: one tick has fired, and stands first in the history.",
        "backfill" => "Filled in: the past ticks that had not fired have done so.",
        "nothing" => "Nothing to do: all ticks of that time have fired already.",
        _ => return None,
    })
}

fn head(view: &ScheduleView, run: Option<&Run>, visit: &Visit, wall: i64) -> Markup {
    let key = view.key();
    let to = |action: &str| parts::schedule_href(&key, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/schedules" { "Schedules" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-says=(schedules::says(view, run, wall)) { (schedules::state(view, run, wall)) }
                }
                p { code { (view.definition.when) } ", " (view.definition.zone) ": " (schedules::does(view, visit)) }
            }
            @if visit.may(Verb::Admin, Some(&key.namespace)) {
                div #actions .buttons data-live role="group" aria-label="What an operator can do" {
                    a.button data-key="trigger" data-confirm href=(to("trigger")) { "Trigger…" }
                    @if view.paused.is_some() { a.button.main data-key="resume" data-confirm href=(to("resume")) { "Resume…" } }
                    @else { a.button data-key="pause" data-confirm href=(to("pause")) { "Pause…" } }
                    a.button data-key="backfill" data-confirm href=(to("backfill")) { "Backfill…" }
                    a.button data-key="edit" href=(to("edit")) { "Edit" }
                    a.button data-key="delete" data-confirm href=(to("delete")) { "Delete…" }
                }
            }
        }
    }
}

/// Why it can not fire.
fn stuck(view: &ScheduleView, wall: i64) -> Markup {
    html! {
        @if let Some(why) = &view.trouble {
            (parts::notice("bad", html! {
                p { span.strong { "It could not fire." } " " (why) }
                p.soft {
                    "Nothing is lost: it is tried again from where it is"
                    @if let Some(due) = view.due_ms { ", " (words::until(due, wall)) }
                    "."
                }
            }))
        }
    }
}

/// That it fires, and what it does fails.
fn failed(view: &ScheduleView, run: Option<&Run>, visit: &Visit) -> Markup {
    let namespace = match view.definition.target {
        Target::Call { .. } => calls_queue().namespace,
        _ => view.namespace.clone(),
    };
    html! {
        @if let Some((task, error)) = run.and_then(|run| Some((run.task, run.error.as_deref()?))) {
            (parts::notice("bad", html! {
                p { span.strong { "The last run failed." } " The schedule fires on time; " @if let Target::Call { .. } = view.definition.target { "its webhook call" } @else { "its task" } " did not succeed." }
                @if visit.may(Verb::Read, Some(&namespace)) {
                    p { a href=(parts::task_href(&namespace, task, "")) { "Task " (task) } ": " (words::first_line(error)) }
                }
            }))
        }
    }
}

fn counts(view: &ScheduleView, ticks: Result<&[TickView], &StoreError>, wall: i64) -> Markup {
    let shown = ticks.unwrap_or_default().iter().take(PAGE as usize);
    let mut late: Vec<_> = shown.filter(|tick| by_clock(tick)).map(|tick| tick.late_ms).collect();
    late.sort_unstable();
    html! {
        dl.card.facts.counts.even.tile {
            div { dt { "Next" } dd { (schedules::next(view, wall)) } }
            div { dt { "Last fired" } dd { @match view.last_fired_ms { Some(at) => (words::ago(at, wall)), None => "never" } } }
            div { dt { "Fired" } dd { (words::number(view.fired)) } }
            div { dt { "Skipped" } dd { (words::number(view.skipped)) } }
            @if view.definition.overlap != Overlap::Allow || view.overlapped > 0 { div { dt { "Overlapped" } dd { (words::number(view.overlapped)) } } }
            @if let (Some(median), Some(worst)) = (late.get(late.len() / 2), late.last()) {
                div { dt { "Late, of the last " (late.len()) } dd { (span(*median)) " " span.soft.small { "at most " (span(*worst)) } } }
            }
        }
    }
}

/// Fired when it was due, and not by hand: what lateness is told of.
fn by_clock(tick: &TickView) -> bool {
    tick.cause == Cause::Clock && tick.state == TickState::Fired
}

fn span(ms: i64) -> String {
    words::span(ms.max(0) as u64)
}

fn history(
    view: &ScheduleView,
    asked: &Asked,
    ticks: Result<&[TickView], &StoreError>,
    visit: &Visit,
    wall: i64,
) -> Markup {
    let key = view.key();
    let here = parts::schedule_href(&key, "");
    html! {
        section.card aria-labelledby="past" {
            header { h2 #past { "What it has done" } span.soft.small { "the newest first, for 30 days" } }
            @match ticks {
                Err(error) => (parts::unread("The history", error)),
                Ok([]) => p.empty { @if asked.before_ms().is_some() { "Nothing before that is remembered." } @else { "It has not fired yet." } },
                Ok(ticks) => {
                    table.stack {
                        thead { tr {
                            th scope="col" { "Tick" } th scope="col" { "State" } th.num scope="col" { "Late" } th scope="col" { "By" }
                            th scope="col" { "Token" } th scope="col" { "What came of it" } th scope="col" { "When" }
                        } }
                        tbody { @for tick in ticks.iter().take(PAGE as usize) { (past(view, tick, asked.at, visit, wall)) } }
                    }
                    @let last = ticks.get(PAGE as usize - 1).filter(|_| ticks.len() > PAGE as usize);
                    @if last.is_some() || asked.before_ms().is_some() {
                        nav.pager aria-label="Pages of the history" {
                            @if asked.before_ms().is_some() { a.button.slim href={ (here) "#history" } { "Newest" } }
                            @if let Some(last) = last { a.button.slim data-key="older" href={ (here) "&before=" (last.at_ms) "#history" } { "Older" } }
                        }
                    }
                },
            }
        }
    }
}

/// A tick that has been.
fn past(view: &ScheduleView, tick: &TickView, meant: Option<i64>, visit: &Visit, wall: i64) -> Markup {
    let by_hand = tick.cause == Cause::Trigger;
    let id = format!("tick-{}{}", tick.at_ms, if by_hand { "-by-hand" } else { "" });
    let is_late = tick.late_ms > ON_TIME_MS as i64 && by_clock(tick);
    html! {
        tr id=(id) .meant[meant == Some(tick.at_ms)] {
            th scope="row" {
                span {
                    @if let Some(first) = tick.first_ms.filter(|first| *first != tick.at_ms) { (instant(&view.definition.zone, first)) span.soft { " to" } br; }
                    (instant(&view.definition.zone, tick.at_ms))
                }
            }
            td data-label="State" {
                span {
                    @match tick.state {
                        TickState::Fired => (parts::state("done", "fired")),
                        TickState::Skipped if tick.count == 1 => (parts::state("off", "skipped")),
                        TickState::Skipped => (parts::state("off", html! { (words::number(tick.count)) " skipped" })),
                        TickState::Overlapped => (parts::state("warn", "overlapped")),
                    }
                    @if tick.cause != Cause::Clock { " " span.chip { (tick.cause.as_str()) } }
                }
            }
            td.num.nowrap.none[!by_clock(tick)] data-label="Late" {
                @if !by_clock(tick) { span.soft { "–" } }
                @else if is_late { (parts::state("late", span(tick.late_ms))) }
                @else { (span(tick.late_ms)) }
            }
            td data-label="By" { (tick.by) }
            td.none[tick.token.is_none()] data-label="Token" { @match tick.token { Some(token) => span.token { (token) }, None => span.soft { "–" } } }
            td data-label="What came of it" { (came(view, tick, visit)) }
            td.nowrap data-label="When" { (words::ago(tick.decided_ms, wall)) }
        }
    }
}

fn instant(zone: &Zone, at_ms: i64) -> Markup {
    let shown = Local::of(zone, at_ms);
    html! { span.nowrap title=(words::utc(at_ms)) { (shown.date()) ", " (shown.time()) } " " span.soft.small.nowrap { (shown.offset()) } }
}

/// The way to the event or the task of a tick. Calls are tasks of a queue of the servers' own.
fn came(view: &ScheduleView, tick: &TickView, visit: &Visit) -> Markup {
    let calls = calls_queue().namespace;
    html! {
        @match (tick.event, tick.task, &view.definition.target) {
            (Some(id), _, Target::Event { topic, .. }) => a href=(parts::event_href(&TopicKey::new(view.namespace.clone(), topic.clone()), id)) { "event " (id) },
            (Some(id), _, _) => { "event " (id) },
            (None, Some(id), Target::Call { .. }) if visit.may(Verb::Read, Some(&calls)) => a href=(parts::task_href(&calls, id, "")) { "call " (id) },
            (None, Some(id), Target::Task { .. }) => a href=(parts::task_href(&view.namespace, id, "")) { "task " (id) },
            (None, Some(id), _) => { "task " (id) },
            (None, None, _) => span.soft { @match tick.state {
                TickState::Overlapped => "nothing: an earlier run was under way",
                TickState::Skipped => "nothing: its policy leaves it out",
                TickState::Fired => "–",
            } },
        }
    }
}

fn definition(view: &ScheduleView, payload: &Laid, visit: &Visit, wall: i64) -> Markup {
    let definition = &view.definition;
    let (gap, fold) = definition.timetable(&view.namespace).policies();
    let at = |at: Option<i64>, none: &'static str| html! { @match at { Some(at) => (instant(&definition.zone, at)), None => (none) } };
    html! {
        section.card aria-labelledby="defined" {
            header {
                h2 #defined { "Definition" }
                span.soft.small { "version " (view.version) ", by " (view.updated_by) " " (words::ago(view.updated_ms, wall)) }
            }
            div.body {
                @if let Some(source) = &view.source {
                    p.soft { "It comes from " code { (source) } ": what is changed here lasts until that is applied again." }
                }
                dl.facts {
                    div { dt { "When" } dd { code { (definition.when) } } }
                    div { dt { "On the clocks of" } dd { (definition.zone) " " span.soft.small { "by tzdata " (tzdb_version()) } } }
                    div { dt { "Does" } dd { (schedules::does(view, visit)) } }
                    div { dt { "From" } dd { (at(definition.start_ms, "its creation on")) } }
                    div { dt { "Until" } dd { (at(definition.end_ms, "somebody stops it")) } }
                    div { dt { "Jitter" } dd { @if definition.jitter_ms == 0 { "none" } @else { "up to " (words::duration(definition.jitter_ms)) } } }
                    div { dt { "Ticks that were missed" } dd { (misfire(definition.misfire)) } }
                    div { dt { "While an earlier run goes on" } dd { (overlap(definition.overlap)) } }
                    div { dt { "A time that clocks jump over" } dd { @match gap { Gap::Shift => "comes later by as much", Gap::Skip => "is left out" } } }
                    div { dt { "A time that clocks show twice" } dd { @match fold { Fold::First => "counts the first time", Fold::Both => "counts both times" } } }
                    @if let Target::Event { key: Some(key), .. } = &definition.target { div { dt { "Key of its events" } dd { code { (key) } } } }
                    @if let Target::Call { .. } = &definition.target { div { dt { "Signed" } dd { @if view.signed { "yes" } @else { "no: it has no secret" } } } }
                }
                details #carries {
                    summary { "Carries " (words::number(payload.bytes as u64)) " bytes" }
                    (parts::command("payload", &payload.text))
                    @if !payload.whole { p.soft.small { "Only the beginning is shown." } }
                }
            }
        }
    }
}

/// What becomes of ticks that were missed, in words.
pub(super) fn misfire(policy: Misfire) -> String {
    match policy {
        Misfire::Skip => "are left out".into(),
        Misfire::FireOnce => "fire once for all".into(),
        Misfire::FireAll { cap } => format!("all fire, the newest {} at most", words::number(cap.into())),
        Misfire::Within { grace_ms } => {
            format!("fire if they are not later than {}", words::duration(grace_ms))
        }
    }
}

/// What becomes of a tick while an earlier run goes on, in words.
pub(super) fn overlap(policy: Overlap) -> &'static str {
    match policy {
        Overlap::Allow => "a tick fires as well",
        Overlap::Skip => "a tick does nothing",
        Overlap::Queue => "a tick waits for its turn",
    }
}
