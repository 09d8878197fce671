//! What an operator does to a schedule: trigger, pause, resume, delete. The question, then the deed.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{Hand, Pause, ScheduleKey, ScheduleView};
use tenure_core::schedule::decide;

use super::election::within;
use super::frame::{Visit, trouble};
use super::given::{Got, Posted};
use super::parts::{self, Mistake, Question};
use super::queue_act::wrong;
use super::queues::{Where, no_such_action};
use super::schedule;
use super::topic_act::{is_named, type_the_name};
use super::words;
use crate::App;
use crate::api::{self, By, changed_meanwhile, no_such_schedule, trigger_now};
use crate::problem::Problem;

const ACTIONS: &str = "trigger, pause, resume, backfill, edit and delete";
/// For who acts on what is not so any more.
pub(super) const AGAIN: &str = "look again, then decide";

/// A schedule, as the store has it.
pub(super) async fn find(app: &App, key: &ScheduleKey) -> Result<ScheduleView, Problem> {
    within(app.store.schedule(key)).await?.ok_or_else(|| no_such_schedule(key))
}

/// Writes down what was done to a schedule.
async fn record(app: &App, visit: &Visit, action: &str, key: &ScheduleKey, detail: String) {
    visit.record(app, action, Some(&key.namespace), key.name.as_str(), detail).await;
}

/// So that the page that comes next shows it.
pub(super) async fn changed(app: &App) {
    app.agenda.changed();
    app.floor.changed().await;
}

pub(super) async fn question(
    State(app): State<App>,
    visit: Visit,
    Got(Path((name, action))): Got<Path<(Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let asked = async { ask(&find(&app, &key).await?, &action, "", Mistake(None), app.runtime.wall_ms()) };
    match asked.await {
        Ok(question) => question.page(&visit, "Schedules"),
        Err(problem) => trouble(&visit, &problem),
    }
}

/// The question about an action; if it was refused, with the payload as it was written, and what is wrong.
fn ask(
    view: &ScheduleView,
    action: &str,
    payload: &str,
    mistake: Mistake<'_>,
    wall: i64,
) -> Result<Question, Problem> {
    let key = view.key();
    let (to, back) = (parts::schedule_href(&key, action), parts::schedule_href(&key, ""));
    let question = |title: String, button, danger, body| Question { title, to, back, button, danger, body };
    Ok(match action {
        "trigger" => question(
            format!("Trigger {}?", key.name),
            "Trigger",
            false,
            html! {
                (mistake.above(&["payload"]))
                p { "One tick fires now, beside those of its timetable" @if view.paused.is_some() { ", though it is paused" } "." }
                div.field {
                    label for="payload" { "Payload" }
                    textarea #payload .mono name="payload" rows="5" spellcheck="false" aria-invalid=[mistake.marks("payload")] aria-describedby=[mistake.marks("payload").map(|_| "payload-mistake")] { (payload) }
                    (mistake.below("payload"))
                    small { "JSON for this run. Empty: the payload of the schedule." }
                }
            },
        ),
        "pause" => question(
            format!("Pause {}?", key.name),
            "Pause",
            true,
            html! {
                p { "It does not fire until somebody resumes it. What falls due meanwhile is missed: such ticks " (schedule::misfire(view.definition.misfire)) " then. What it has begun goes on." }
                (parts::reason_field())
            },
        ),
        "resume" => question(
            format!("Resume {}?", key.name),
            "Resume",
            false,
            html! {
                @if let Some(pause) = &view.paused { p { "Paused by " span.strong { (pause.by) } @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } "." } }
                p { (missed(view, wall)) }
            },
        ),
        "delete" => question(
            format!("Delete {}?", key.name),
            "Delete for good",
            true,
            html! {
                input type="hidden" name="version" value=(view.version);
                p { "It never fires again, and its history of " span.strong { (words::number(view.fired)) " ticks" } " is forgotten. What it has published or submitted stays. This can not be undone." }
                (type_the_name(key.name.as_str()))
            },
        ),
        other => return Err(no_such_action(other, "a schedule", ACTIONS)),
    })
}

/// What was missed while it was paused, and what becomes of it.
fn missed(view: &ScheduleView, wall: i64) -> Markup {
    let timetable = view.definition.timetable(&view.namespace);
    let decided = view.progress.map(|progress| decide(&timetable, view.definition.misfire, progress, wall));
    let (fire, skipped) = decided.map_or((0, 0), |decided| {
        (decided.fire.len() as u64, decided.skipped.map_or(0, |skipped| skipped.count))
    });
    html! {
        @match (fire, skipped) {
            (0, 0) => "Nothing was missed. It goes on with its next tick.",
            (fire, 0) => { (ticks(fire)) " missed, and fire" @if fire == 1 { "s" } " at once." },
            (0, skipped) => { (ticks(skipped)) " missed, and left out, as its policy says." },
            (fire, skipped) => { (ticks(fire + skipped)) " missed: by its policy " span.strong { (words::number(fire)) @if fire == 1 { " fires" } @else { " fire" } } " at once, and " (words::number(skipped)) " " @if skipped == 1 { "is" } @else { "are" } " left out." },
        }
    }
}

fn ticks(count: u64) -> String {
    if count == 1 { "1 tick was".into() } else { format!("{} ticks were", words::number(count)) }
}

/// The form of a deed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Deed {
    reason: String,
    payload: String,
    name: String,
    version: u64,
}

pub(super) async fn act(
    State(app): State<App>,
    visit: Visit,
    by: By,
    Got(Path((name, action))): Got<Path<(Name, String)>>,
    Got(Query(at)): Got<Query<Where>>,
    Posted(deed): Posted<Deed>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let done = done(&app, &visit, &by, &key, &action, &deed).await;
    changed(&app).await;
    match done {
        Ok("delete") => {
            visit.tell(&format!("/schedules?namespace={}", parts::escape(key.namespace.as_str())), "delete")
        }
        Ok(done) => visit.tell(&parts::schedule_href(&key, ""), done),
        Err(problem) if action == "trigger" && parts::is_mendable(&problem) => {
            let asked = async {
                ask(
                    &find(&app, &key).await?,
                    &action,
                    &deed.payload,
                    Mistake(Some(&problem)),
                    app.runtime.wall_ms(),
                )
            };
            match asked.await {
                Ok(question) => parts::refused(question.page(&visit, "Schedules"), &problem),
                Err(problem) => trouble(&visit, &problem),
            }
        }
        Err(problem) => trouble(&visit, &problem),
    }
}

async fn done(
    app: &App,
    visit: &Visit,
    by: &By,
    key: &ScheduleKey,
    action: &str,
    deed: &Deed,
) -> Result<&'static str, Problem> {
    match action {
        "trigger" => {
            let payload = Some(deed.payload.trim()).filter(|text| !text.is_empty());
            let payload = payload
                .map(|text| text.parse().map_err(|error| wrong("payload", format!("Invalid JSON: {error}"))))
                .transpose()?;
            let (key, by_whom) = (key.clone(), visit.name().into());
            let hand = Hand { key, ticks: None, payload, by: by_whom, dry_run: false };
            trigger_now(app, by, &hand).await?;
            Ok("trigger")
        }
        "pause" | "resume" => {
            let reason = deed.reason.trim().to_owned();
            api::short("reason", &reason)?;
            let pause =
                Pause { by: visit.name().into(), reason: reason.clone(), at_ms: app.runtime.wall_ms() };
            let pause = (action == "pause").then_some(pause);
            let changed = within(app.store.set_schedule_paused(key, pause.as_ref())).await?;
            if !changed.ok_or_else(|| no_such_schedule(key))? {
                return Ok("already");
            }
            record(app, visit, &format!("schedule.{action}"), key, reason).await;
            Ok(if action == "pause" { "pause" } else { "resume" })
        }
        "delete" => {
            is_named(&deed.name, &key.name)?;
            let gone = within(app.store.delete_schedule(key, Some(deed.version))).await?;
            if !gone.ok_or_else(|| no_such_schedule(key))? {
                let now = find(app, key).await?;
                return Err(changed_meanwhile(key, Some(now.version)).remedy(AGAIN));
            }
            record(app, visit, "schedule.delete", key, String::new()).await;
            Ok("delete")
        }
        other => Err(no_such_action(other, "a schedule", ACTIONS)),
    }
}
