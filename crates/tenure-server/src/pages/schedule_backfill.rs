//! Past ticks that did not fire, fired after all. First the question which; then what that would do, with nothing done yet; then
//! the deed.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Hand, HandFired, HandOutcome, ScheduleKey, ScheduleView, StoreError, Trouble};

use super::frame::{Visit, page, trouble};
use super::given::{Got, Posted};
use super::parts;
use super::queue_act::wrong;
use super::queues::Where;
use super::schedule_act::{changed, find};
use super::schedule_clock::{DAY_MS, Local, parse};
use super::words;
use crate::App;
use crate::api::{By, TickRange, backfill_range};
use crate::problem::Problem;

/// How many ticks are told one by one.
const SHOWN: usize = 50;
/// How many thousands are looked at, and fired, by one deed; the rest by asking again.
const ROUNDS: usize = 10;

/// Which ticks: what the address of the trial says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wanted {
    /// For the address only; the gate has read it.
    namespace: Option<Name>,
    from: String,
    to: String,
}

/// Ticks of a range, and what came of them or would.
#[derive(Default)]
struct Told {
    ticks: Vec<HandFired>,
    /// How many of the range were not looked at.
    left: u64,
    /// Where those begin.
    next_ms: Option<i64>,
}

impl Told {
    fn count(&self, which: impl Fn(&HandOutcome) -> bool) -> usize {
        self.ticks.iter().filter(|tick| which(&tick.outcome)).count()
    }

    /// How many fire, or have.
    fn fired(&self) -> usize {
        self.count(|outcome| matches!(outcome, HandOutcome::Fired { .. }))
    }
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    by: By,
    Got(Path(name)): Got<Path<Name>>,
    Got(Query(wanted)): Got<Query<Wanted>>,
) -> Response {
    let namespace = wanted.namespace.clone().unwrap_or_else(Name::default_namespace);
    let key = ScheduleKey::new(namespace, name);
    let shown = async {
        let view = find(&app, &key).await?;
        if wanted.from.is_empty() && wanted.to.is_empty() {
            let content = form(&view, app.runtime.wall_ms());
            return Ok(html! { section.card.narrow { div.body { (content) } } });
        }
        let zone = &view.definition.zone;
        let read = |field: &'static str, text: &str| {
            parse(zone, text).ok_or_else(|| {
                wrong(field, format!("{field}: {text:?} is no date with a time; write 2026-11-15T02:00"))
            })
        };
        let range = TickRange { from_ms: read("from", &wanted.from)?, to_ms: read("to", &wanted.to)? };
        let told = rounds(&app, &by, &visit, &key, range, true).await?;
        Ok(trial(&view, range, &told))
    };
    match shown.await {
        Ok(content) => page(&visit, &format!("Backfill {}", key.name), "Schedules", content),
        Err(problem) => trouble(&visit, &problem),
    }
}

/// The question which ticks. It only looks: what it would do comes next.
fn form(view: &ScheduleView, wall: i64) -> Markup {
    let (key, zone) = (view.key(), &view.definition.zone);
    // To the minute: nobody wants to read seconds here.
    let field = |at: i64| Local::of(zone, at.div_euclid(60_000) * 60_000).field();
    html! {
        form #confirm .confirm method="get" action={ "/schedules/" (parts::escape(key.name.as_str())) "/backfill" } {
            h1 #confirm-title { "Backfill " (key.name) }
            p { "Past ticks that did not fire, as they were skipped or are older than the schedule, fire after all: each once, the oldest first. You see which before it is done." }
            input type="hidden" name="namespace" value=(key.namespace);
            div.across {
                div.field { label for="from" { "From" } input #from type="datetime-local" name="from" required step="1" value=(field(wall - DAY_MS)); }
                div.field { label for="to" { "Until before" } input #to type="datetime-local" name="to" required step="1" value=(field(wall)); }
            }
            p.soft.small { "On the clocks of " (zone) "." }
            div.buttons {
                button.button.main { "See what it would do" }
                a.button data-cancel href=(parts::schedule_href(&key, "")) { "Cancel" }
            }
        }
    }
}

/// The ticks of a range, a thousand at a time.
async fn rounds(
    app: &App,
    by: &By,
    visit: &Visit,
    key: &ScheduleKey,
    range: TickRange,
    dry_run: bool,
) -> Result<Told, Problem> {
    let mut told = Told::default();
    let mut from_ms = range.from_ms;
    for _ in 0..ROUNDS {
        let hand = Hand { key: key.clone(), ticks: None, payload: None, by: visit.name().into(), dry_run };
        let some = backfill_range(app, by, hand, TickRange { from_ms, ..range }).await?;
        told.ticks.extend(some.ticks);
        (told.left, told.next_ms) = (some.left, some.next_ms);
        match some.next_ms {
            Some(next) => from_ms = next,
            None => break,
        }
    }
    Ok(told)
}

/// What a backfill would do. Nothing is done yet.
fn trial(view: &ScheduleView, range: TickRange, told: &Told) -> Markup {
    let (key, zone) = (view.key(), &view.definition.zone);
    let (fire, already) = (told.fired(), told.count(|outcome| *outcome == HandOutcome::Already));
    let said = |at: i64| {
        let shown = Local::of(zone, at);
        format!("{}, {} {}", shown.date(), shown.time(), shown.offset())
    };
    html! {
        div.head { div {
            p.crumb { a href="/schedules" { "Schedules" } " / " (key.namespace) " / " a href=(parts::schedule_href(&key, "")) { (key.name) } }
            h1 { "What it would do" }
            p { "From " (said(range.from_ms)) " until before " (said(range.to_ms)) ". Nothing is done yet." }
        } }
        div.tiles {
            dl.card.tile { dt { "Fire" } dd.big { (words::count(fire, "tick")) } dd.note { "the oldest first, by hand" } }
            dl.card.tile { dt { "Have fired" } dd.big { (words::count(already, "tick")) } dd.note { "and are left alone" } }
            dl.card.tile { dt { "Not looked at" } dd.big { (words::number(told.left)) } dd.note { @if told.left == 0 { "that is all of it" } @else { "ask again for those" } } }
        }
        @if fire == 0 {
            (parts::notice("good", html! { p { "There is nothing to fill in" @if told.left > 0 { " among the first " (words::count(told.ticks.len(), "tick")) } "." } }))
        }
        @if let Some(next) = told.next_ms.filter(|_| fire == 0) {
            p { a.button href={ (parts::schedule_href(&key, "backfill")) "&from=" (Local::of(zone, next).field()) "&to=" (Local::of(zone, range.to_ms).field()) } { "Look further" } }
        }
        form.confirm method="post" action=(parts::schedule_href(&key, "backfill")) {
            input type="hidden" name="from_ms" value=(range.from_ms);
            // What was not looked at is not done, either.
            input type="hidden" name="to_ms" value=(told.next_ms.unwrap_or(range.to_ms));
            div.buttons {
                @if fire > 0 { button.button.danger data-key="do" { "Fire " (words::count(fire, "tick")) } }
                a.button href=(parts::schedule_href(&key, "")) { @if fire > 0 { "Cancel" } @else { "Back" } }
            }
        }
        @if !told.ticks.is_empty() {
            section.card aria-labelledby="one-by-one" {
                header { h2 #one-by-one { "Tick by tick" } @if told.ticks.len() > SHOWN { span.soft.small { "the first " (SHOWN) " of " (words::number(told.ticks.len() as u64)) } } }
                table.stack {
                    thead { tr { th scope="col" { "Tick" } th scope="col" { "Would" } } }
                    tbody {
                        @for tick in told.ticks.iter().take(SHOWN) {
                            tr data-key=(format!("tick-{}", tick.at_ms)) {
                                th scope="row" { (said(tick.at_ms)) }
                                td data-label="Would" {
                                    @match tick.outcome {
                                        HandOutcome::Fired { .. } => (parts::state("next", "fire")),
                                        HandOutcome::Already => (parts::state("done", "has fired already")),
                                        HandOutcome::Ahead => (parts::state("later", "fires by itself")),
                                        HandOutcome::NoTick => (parts::state("off", "is no tick of it")),
                                        HandOutcome::Forgotten => (parts::state("off", "is forgotten, and may have fired")),
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

/// The form of the deed: what was shown, to the millisecond.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Meant {
    from_ms: i64,
    to_ms: i64,
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    by: By,
    Got(Path(name)): Got<Path<Name>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(meant): Posted<Meant>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let back = parts::schedule_href(&key, "");
    // To its end also if the browser does not wait for it.
    let (inside, who) = (app.clone(), visit.clone());
    let filling = tokio::spawn(async move {
        let range = TickRange { from_ms: meant.from_ms, to_ms: meant.to_ms };
        let told = rounds(&inside, &by, &who, &key, range, false).await;
        changed(&inside).await;
        told
    });
    let told =
        filling.await.unwrap_or_else(|_| Err(StoreError::new(Trouble::Other, "a backfill broke off").into()));
    match told {
        Ok(told) if told.fired() == 0 => visit.tell(&back, "nothing"),
        Ok(_) => visit.tell(&back, "backfill"),
        Err(problem) => trouble(&visit, &problem),
    }
}
