//! Backfill of past ticks in three steps: choose a range, preview its ticks, fire them.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    ErrorKind, ManualFire, ManualFireOutcome, ManualFireResult, ScheduleKey, ScheduleView, StoreError,
};

use super::components;
use super::extract::{FormBody, PageParams};
use super::format;
use super::layout::{PageContext, page, problem_page};
use super::local_time::{DAY_MS, LocalTime, parse};
use super::queue_actions::invalid_field;
use super::queues::NamespaceQuery;
use super::schedule_actions::{changed, find};
use crate::App;
use crate::api::{AuditActor, TickRange, backfill_range};
use crate::problem::Problem;

/// Maximum number of ticks in the preview.
const SHOWN: usize = 50;
/// Maximum number of requests per backfill, of a thousand ticks each; the operator repeats it for the rest.
const ROUNDS: usize = 10;

/// The range of ticks: the query of the preview.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct BackfillQuery {
    /// Part of the query; the access middleware checks it.
    namespace: Option<Name>,
    from: String,
    to: String,
}

/// The ticks of a range with their actual or previewed results.
#[derive(Default)]
struct BackfillPreview {
    ticks: Vec<ManualFireResult>,
    /// Number of ticks of the range that were not examined.
    left: u64,
    /// The first tick that was not examined.
    next_ms: Option<i64>,
}

impl BackfillPreview {
    fn count(&self, predicate: impl Fn(&ManualFireOutcome) -> bool) -> usize {
        self.ticks.iter().filter(|tick| predicate(&tick.outcome)).count()
    }

    /// Number of ticks that fire or fired.
    fn fired(&self) -> usize {
        self.count(|outcome| matches!(outcome, ManualFireOutcome::Fired { .. }))
    }
}

pub(super) async fn confirm(
    State(app): State<App>,
    ctx: PageContext,
    by: AuditActor,
    PageParams(Path(name)): PageParams<Path<Name>>,
    PageParams(Query(query)): PageParams<Query<BackfillQuery>>,
) -> Response {
    let namespace = query.namespace.clone().unwrap_or_else(Name::default_namespace);
    let key = ScheduleKey::new(namespace, name);
    let shown = async {
        let view = find(&app, &key).await?;
        if query.from.is_empty() && query.to.is_empty() {
            let content = form(&view, app.runtime.wall_ms());
            return Ok(html! { section.card.narrow { div.body { (content) } } });
        }
        let zone = &view.definition.time_zone;
        let read = |field: &'static str, text: &str| {
            parse(zone, text).ok_or_else(|| {
                invalid_field(field, format!("{field}: invalid date and time {text:?}; use 2026-11-15T02:00"))
            })
        };
        let range = TickRange { from_ms: read("from", &query.from)?, to_ms: read("to", &query.to)? };
        let preview = run(&app, &by, &ctx, &key, range, true).await?;
        Ok(preview_page(&view, range, &preview))
    };
    match shown.await {
        Ok(content) => page(&ctx, &format!("Backfill {}", key.name), "Schedules", content),
        Err(problem) => problem_page(&ctx, &problem),
    }
}

/// The form for the range. It leads to the preview and changes nothing.
fn form(view: &ScheduleView, wall: i64) -> Markup {
    let (key, zone) = (view.key(), &view.definition.time_zone);
    // Full minutes are enough for the default values.
    let field = |at: i64| LocalTime::of(zone, at.div_euclid(60_000) * 60_000).field();
    html! {
        form #confirm .confirm method="get" action={ "/schedules/" (components::escape(key.name.as_str())) "/backfill" } {
            h1 #confirm-title { "Backfill " (key.name) }
            p { "Fires past ticks that have not fired, oldest first, each once. The next page previews them." }
            input type="hidden" name="namespace" value=(key.namespace);
            div.across {
                div.field { label for="from" { "From" } input #from type="datetime-local" name="from" required step="1" value=(field(wall - DAY_MS)); }
                div.field { label for="to" { "Until (exclusive)" } input #to type="datetime-local" name="to" required step="1" value=(field(wall)); }
            }
            p.soft.small { "Time zone: " (zone) }
            div.buttons {
                button.button.main { "Preview" }
                a.button data-cancel href=(components::schedule_href(&key, "")) { "Cancel" }
            }
        }
    }
}

/// Preview or fire the ticks of a range, a thousand at a time.
async fn run(
    app: &App,
    by: &AuditActor,
    ctx: &PageContext,
    key: &ScheduleKey,
    range: TickRange,
    dry_run: bool,
) -> Result<BackfillPreview, Problem> {
    let mut preview = BackfillPreview::default();
    let mut from_ms = range.from_ms;
    for _ in 0..ROUNDS {
        let manual_fire = ManualFire {
            key: key.clone(),
            ticks: None,
            payload: None,
            requested_by: ctx.name().into(),
            dry_run,
        };
        let some = backfill_range(app, by, manual_fire, TickRange { from_ms, ..range }).await?;
        preview.ticks.extend(some.ticks);
        (preview.left, preview.next_ms) = (some.remaining_count, some.next_from_at_ms);
        match some.next_from_at_ms {
            Some(next) => from_ms = next,
            None => break,
        }
    }
    Ok(preview)
}

/// The preview of a backfill. It fires nothing.
fn preview_page(view: &ScheduleView, range: TickRange, preview: &BackfillPreview) -> Markup {
    let (key, zone) = (view.key(), &view.definition.time_zone);
    let (fire, already) =
        (preview.fired(), preview.count(|outcome| *outcome == ManualFireOutcome::AlreadyFired));
    let local = |at: i64| {
        let shown = LocalTime::of(zone, at);
        format!("{}, {} {}", shown.date(), shown.time(), shown.offset())
    };
    html! {
        div.head { div {
            p.crumb { a href="/schedules" { "Schedules" } " / " (key.namespace) " / " a href=(components::schedule_href(&key, "")) { (key.name) } }
            h1 { "Preview" }
            p { "From " (local(range.from_ms)) " until " (local(range.to_ms)) ". Nothing has fired yet." }
        } }
        div.tiles {
            dl.card.tile { dt { "Will fire" } dd.big { (format::count(fire, "tick")) } dd.note { "oldest first" } }
            dl.card.tile { dt { "Already fired" } dd.big { (format::count(already, "tick")) } dd.note { "ignored" } }
            dl.card.tile { dt { "Not examined" } dd.big { (format::number(preview.left)) } dd.note { @if preview.left == 0 { "none" } @else { "repeat for the rest" } } }
        }
        @if fire == 0 {
            (components::notice("good", html! { p { "No ticks to fire" @if preview.left > 0 { " among the first " (format::count(preview.ticks.len(), "tick")) } "." } }))
        }
        @if let Some(next) = preview.next_ms.filter(|_| fire == 0) {
            p { a.button href={ (components::schedule_href(&key, "backfill")) "&from=" (LocalTime::of(zone, next).field()) "&to=" (LocalTime::of(zone, range.to_ms).field()) } { "Continue" } }
        }
        form.confirm method="post" action=(components::schedule_href(&key, "backfill")) {
            input type="hidden" name="from_at_ms" value=(range.from_ms);
            // The action covers only examined ticks.
            input type="hidden" name="to_at_ms" value=(preview.next_ms.unwrap_or(range.to_ms));
            div.buttons {
                @if fire > 0 { button.button.danger data-key="do" { "Fire " (format::count(fire, "tick")) } }
                a.button href=(components::schedule_href(&key, "")) { @if fire > 0 { "Cancel" } @else { "Back" } }
            }
        }
        @if !preview.ticks.is_empty() {
            section.card aria-labelledby="one-by-one" {
                header { h2 #one-by-one { "Ticks" } @if preview.ticks.len() > SHOWN { span.soft.small { "first " (SHOWN) " of " (format::number(preview.ticks.len() as u64)) } } }
                table.stack {
                    thead { tr { th scope="col" { "Tick" } th scope="col" { "Action" } } }
                    tbody {
                        @for tick in preview.ticks.iter().take(SHOWN) {
                            tr data-key=(format!("tick-{}", tick.tick_at_ms)) {
                                th scope="row" { (local(tick.tick_at_ms)) }
                                td data-label="Action" {
                                    @match tick.outcome {
                                        ManualFireOutcome::Fired { .. } => (components::state("next", "Fire")),
                                        ManualFireOutcome::AlreadyFired => (components::state("done", "Already fired")),
                                        ManualFireOutcome::InFuture => (components::state("later", "Future tick")),
                                        ManualFireOutcome::NotATick => (components::state("off", "Not a tick")),
                                        ManualFireOutcome::Pruned => (components::state("off", "Pruned; may have fired")),
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

/// The form of the action: the previewed range.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BackfillForm {
    from_at_ms: i64,
    to_at_ms: i64,
}

pub(super) async fn apply(
    State(app): State<App>,
    ctx: PageContext,
    by: AuditActor,
    PageParams(Path(name)): PageParams<Path<Name>>,
    PageParams(Query(at)): PageParams<Query<NamespaceQuery>>,
    FormBody(form): FormBody<BackfillForm>,
) -> Response {
    let key = ScheduleKey::new(at.namespace, name);
    let back = components::schedule_href(&key, "");
    // Spawned, so that it finishes even if the browser disconnects.
    let (task_app, task_ctx) = (app.clone(), ctx.clone());
    let filling = tokio::spawn(async move {
        let range = TickRange { from_ms: form.from_at_ms, to_ms: form.to_at_ms };
        let preview = run(&task_app, &by, &task_ctx, &key, range, false).await;
        changed(&task_app).await;
        preview
    });
    let preview = filling
        .await
        .unwrap_or_else(|_| Err(StoreError::new(ErrorKind::Other, "backfill was interrupted").into()));
    match preview {
        Ok(preview) if preview.fired() == 0 => ctx.redirect_with_message(&back, "nothing"),
        Ok(_) => ctx.redirect_with_message(&back, "backfill"),
        Err(problem) => problem_page(&ctx, &problem),
    }
}
