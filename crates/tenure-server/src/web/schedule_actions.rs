//! Actions on a schedule, with confirmation: trigger, pause, resume, delete.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{ManualFire, Pause, ScheduleKey, ScheduleView};
use tenure_core::rules::schedule::decide;

use super::components::{self, ConfirmDialog, FormErrors};
use super::election::with_timeout;
use super::extract::{FormBody, PageParams};
use super::format;
use super::layout::{PageContext, problem_page};
use super::queue_actions::invalid_field;
use super::queues::{NamespaceQuery, no_such_action};
use super::schedule;
use super::topic_actions::{check_name_confirmation, name_confirmation_field};
use crate::App;
use crate::api::{self, AuditActor, changed_meanwhile, no_such_schedule, trigger_now};
use crate::problem::Problem;

const ACTIONS: &str = "trigger, pause, resume, backfill, edit or delete";
/// The remedy of a conflict with a concurrent change.
pub(super) const RELOAD: &str = "Reload the page and try again.";

/// Load a schedule from the store.
pub(super) async fn find(app: &App, key: &ScheduleKey) -> Result<ScheduleView, Problem> {
    with_timeout(app.store.schedule(key)).await?.ok_or_else(|| no_such_schedule(key))
}

/// Write an audit entry about a schedule.
async fn record(app: &App, ctx: &PageContext, action: &str, key: &ScheduleKey, detail: String) {
    ctx.record(app, action, Some(&key.namespace), key.name.as_str(), detail).await;
}

/// Refresh the snapshots, so that the next page shows the change.
pub(super) async fn changed(app: &App) {
    app.schedules.invalidate();
    app.queues.invalidate().await;
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path((name, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let dialog = async {
        confirmation(&find(&app, &key).await?, &action, "", FormErrors(None), app.runtime.wall_ms())
    };
    match dialog.await {
        Ok(dialog) => dialog.page(&ctx, "Schedules"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

/// The confirmation of an action. After a rejected trigger it has the entered payload and the error.
fn confirmation(
    view: &ScheduleView,
    action: &str,
    payload: &str,
    errors: FormErrors<'_>,
    wall: i64,
) -> Result<ConfirmDialog, Problem> {
    let key = view.key();
    let (to, back) = (components::schedule_href(&key, action), components::schedule_href(&key, ""));
    let dialog =
        |title: String, button, danger, body| ConfirmDialog { title, to, back, button, danger, body };
    Ok(match action {
        "trigger" => dialog(
            format!("Trigger {}?", key.name),
            "Trigger",
            false,
            html! {
                (errors.above(&["payload"]))
                p { "Fires one extra tick now" @if view.paused.is_some() { ", even while paused" } "." }
                div.field {
                    label for="payload" { "Payload" }
                    textarea #payload .mono name="payload" rows="5" spellcheck="false" aria-invalid=[errors.aria_invalid("payload")] aria-describedby=[errors.aria_invalid("payload").map(|_| "payload-error")] { (payload) }
                    (errors.below("payload"))
                    small { "JSON for this run. Empty: the payload of the schedule." }
                }
            },
        ),
        "pause" => dialog(
            format!("Pause {}?", key.name),
            "Pause",
            true,
            html! {
                p { "No ticks fire until it is resumed. Ticks due meanwhile count as missed: " (schedule::misfire(view.definition.misfire_policy)) ". Runs in progress continue." }
                (components::reason_field())
            },
        ),
        "resume" => dialog(
            format!("Resume {}?", key.name),
            "Resume",
            false,
            html! {
                @if let Some(pause) = &view.paused { p { "Paused by " span.strong { (pause.paused_by) } @if !pause.reason.is_empty() { ": “" (pause.reason) "”" } "." } }
                p { (missed(view, wall)) }
            },
        ),
        "delete" => dialog(
            format!("Delete {}?", key.name),
            "Delete permanently",
            true,
            html! {
                input type="hidden" name="version" value=(view.version);
                p { "Deletes the schedule and its history of " span.strong { (format::number(view.fired_count)) " ticks" } ". Its events and tasks are kept. This cannot be undone." }
                (name_confirmation_field(key.name.as_str()))
            },
        ),
        other => return Err(no_such_action(other, "a schedule", ACTIONS)),
    })
}

/// The ticks missed during the pause, and the effect of the misfire policy on them.
fn missed(view: &ScheduleView, wall: i64) -> Markup {
    let timetable = view.definition.timetable(&view.namespace);
    let decided =
        view.tick_state.map(|progress| decide(&timetable, view.definition.misfire_policy, progress, wall));
    let (fire, skipped) = decided.map_or((0, 0), |decided| {
        (decided.fire.len() as u64, decided.skipped.map_or(0, |skipped| skipped.tick_count))
    });
    html! {
        @match (fire, skipped) {
            (0, 0) => "No missed ticks. It continues with the next tick.",
            (fire, 0) => { (ticks(fire)) " missed; " @if fire == 1 { "it fires" } @else { "all fire" } " at once." },
            (0, skipped) => { (ticks(skipped)) " missed; skipped by the misfire policy." },
            (fire, skipped) => { (ticks(fire + skipped)) " missed: " span.strong { (format::number(fire)) @if fire == 1 { " fires" } @else { " fire" } } " at once, " (format::number(skipped)) " skipped by the misfire policy." },
        }
    }
}

fn ticks(count: u64) -> String {
    if count == 1 { "1 tick was".into() } else { format!("{} ticks were", format::number(count)) }
}

/// The form of an action.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ScheduleActionForm {
    reason: String,
    payload: String,
    name: String,
    version: u64,
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    by: AuditActor,
    PageParams(Path((name, action))): PageParams<Path<(Name, String)>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<ScheduleActionForm>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let message = perform(&app, &ctx, &by, &key, &action, &form).await;
    changed(&app).await;
    match message {
        Ok("delete") => ctx.redirect_with_message(
            &format!("/schedules?namespace={}", components::escape(key.namespace.as_str())),
            "delete",
        ),
        Ok(message) => ctx.redirect_with_message(&components::schedule_href(&key, ""), message),
        Err(problem) if action == "trigger" && components::is_correctable(&problem) => {
            let dialog = async {
                confirmation(
                    &find(&app, &key).await?,
                    &action,
                    &form.payload,
                    FormErrors(Some(&problem)),
                    app.runtime.wall_ms(),
                )
            };
            match dialog.await {
                Ok(dialog) => components::rejected(dialog.page(&ctx, "Schedules"), &problem),
                Err(problem) => problem_page(&ctx, &problem),
            }
        }
        Err(problem) => problem_page(&ctx, &problem),
    }
}

async fn perform(
    app: &App,
    ctx: &PageContext,
    by: &AuditActor,
    key: &ScheduleKey,
    action: &str,
    form: &ScheduleActionForm,
) -> Result<&'static str, Problem> {
    match action {
        "trigger" => {
            let payload = Some(form.payload.trim()).filter(|text| !text.is_empty());
            let payload = payload
                .map(|text| {
                    text.parse().map_err(|error| invalid_field("payload", format!("Invalid JSON: {error}")))
                })
                .transpose()?;
            let (key, by_whom) = (key.clone(), ctx.name().into());
            let manual_fire = ManualFire { key, ticks: None, payload, requested_by: by_whom, dry_run: false };
            trigger_now(app, by, &manual_fire).await?;
            Ok("trigger")
        }
        "pause" | "resume" => {
            let reason = form.reason.trim().to_owned();
            api::validate_display_text("reason", &reason)?;
            let pause = Pause {
                paused_by: ctx.name().into(),
                reason: reason.clone(),
                paused_at_ms: app.runtime.wall_ms(),
            };
            let pause = (action == "pause").then_some(pause);
            let changed = with_timeout(app.store.set_schedule_paused(key, pause.as_ref())).await?;
            if !changed.ok_or_else(|| no_such_schedule(key))? {
                return Ok("already");
            }
            record(app, ctx, &format!("schedule.{action}"), key, reason).await;
            Ok(if action == "pause" { "pause" } else { "resume" })
        }
        "delete" => {
            check_name_confirmation(&form.name, &key.name)?;
            let gone = with_timeout(app.store.delete_schedule(key, Some(form.version))).await?;
            if !gone.ok_or_else(|| no_such_schedule(key))? {
                let now = find(app, key).await?;
                return Err(changed_meanwhile(key, Some(now.version)).remedy(RELOAD));
            }
            record(app, ctx, "schedule.delete", key, String::new()).await;
            Ok("delete")
        }
        other => Err(no_such_action(other, "a schedule", ACTIONS)),
    }
}
