//! The page of one schedule: upcoming ticks, tick history and definition.

use axum::extract::{Path, Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    Permission, ScheduleKey, ScheduleView, StoreError, TickCause, TickFilter, TickOutcome, TickView,
    TopicKey, webhook_queue,
};
use tenure_core::rules::schedule::{
    DstGapPolicy, DstOverlapPolicy, MisfirePolicy, ON_TIME_MS, OverlapPolicy, ScheduleTarget, Zone,
    tzdb_version,
};

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::local_time::LocalTime;
use super::{audit, calendar_chart, components, format, schedules};
use crate::App;
use crate::api::no_such_schedule;
use crate::snapshot::schedules::{Run, ScheduleDetail};
use crate::web::FormattedPayload;

/// Number of ticks per page of the history.
const PAGE: u32 = 25;

/// The query of a schedule's page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SchedulePageQuery {
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
    /// Show the history before this instant.
    #[serde(default)]
    cursor: Option<i64>,
    /// Show the history from this tick back.
    #[serde(default)]
    tick_at_ms: Option<i64>,
}

impl SchedulePageQuery {
    /// The exclusive end of the shown history.
    fn before_ms(&self) -> Option<i64> {
        self.cursor.or(self.tick_at_ms.map(|at| at.saturating_add(1)))
    }
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(name)): PageParams<Path<Name>>,
    PageParams(Query(query)): PageParams<Query<SchedulePageQuery>>,
) -> Response {
    let key = ScheduleKey::new(query.namespace.clone(), name);
    let planned = match app.schedules.schedule(&key).await {
        Ok(Some(planned)) => planned,
        Ok(None) => return problem_page(&ctx, &no_such_schedule(&key)),
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let filter = TickFilter { key: key.clone(), before_ms: query.before_ms(), limit: PAGE + 1 };
    let ticks = app.schedules.ticks(&filter).await;
    let entries = app.queues.audit_entries(&key.namespace).await;
    let wall = app.runtime.wall_ms();
    let ScheduleDetail { view, payload, ahead } = &*planned;
    let runs = app.schedules.runs(&[view]).await;
    let run = runs.get(&key);
    let content = html! {
        (head(view, run, &ctx, wall))
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        @if let Some(secret) = ctx.secret() { (components::secret("Webhook signing secret.", secret)) }
        div #pause data-live {
            @if let Some(pause) = &view.paused { (components::paused(pause, "Ticks due meanwhile count as missed and follow the misfire policy on resume.", wall)) }
        }
        div #errors data-live { (firing_error(view, wall)) (run_error(view, run, &ctx)) }
        div #counts data-live { (counts(view, ticks.as_deref(), wall)) }
        div #upcoming data-live {
            section.card aria-labelledby="next" {
                header { h2 #next { "Upcoming ticks" } span.soft.small { (view.definition.time_zone) } }
                div.body { (calendar_chart::upcoming(ahead, &view.definition.time_zone, view.paused.is_some(), wall)) }
            }
        }
        div #history data-live { (history(view, &query, ticks.as_deref(), &ctx, wall)) }
        div #definition data-live { (definition(view, payload, &ctx, wall)) }
        div #activity data-live { (audit::of(entries.as_deref(), |entry| audit::resource(entry) == "schedule" && entry.target == key.name.as_str(), wall)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, key.name.as_str(), "Schedules", content)
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "new" => "Schedule created.",
        "set" => "Schedule saved.",
        "already" => "No change: already in that state.",
        "pause" => "Paused.",
        "resume" => "Resumed.",
        "trigger" => "Triggered: one tick fired. See the history.",
        "backfill" => "Backfill completed.",
        "nothing" => "No change: all ticks of that range have fired.",
        _ => return None,
    })
}

fn head(view: &ScheduleView, run: Option<&Run>, ctx: &PageContext, wall: i64) -> Markup {
    let key = view.key();
    let to = |action: &str| components::schedule_href(&key, action);
    html! {
        div.head {
            div {
                p.crumb { a href="/schedules" { "Schedules" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-announce=(schedules::announcement(view, run, wall)) { (schedules::state(view, run, wall)) }
                }
                p { code { (view.definition.expression) } ", " (view.definition.time_zone) ": " (schedules::target(view, ctx)) }
            }
            @if ctx.may(Permission::Admin, Some(&key.namespace)) {
                div #actions .buttons data-live role="group" aria-label="Actions" {
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

/// The error of the last firing.
fn firing_error(view: &ScheduleView, wall: i64) -> Markup {
    html! {
        @if let Some(why) = &view.last_error {
            (components::notice("bad", html! {
                p { span.strong { "The last firing failed:" } " " (why) }
                p.soft {
                    "It is retried"
                    @if let Some(due) = view.due_at_ms { " " (format::until(due, wall)) }
                    "; no tick is lost."
                }
            }))
        }
    }
}

/// A notice that the last run failed.
fn run_error(view: &ScheduleView, run: Option<&Run>, ctx: &PageContext) -> Markup {
    let namespace = match view.definition.target {
        ScheduleTarget::Webhook { .. } => webhook_queue().namespace,
        _ => view.namespace.clone(),
    };
    html! {
        @if let Some((task, error)) = run.and_then(|run| Some((run.task, run.error.as_deref()?))) {
            (components::notice("bad", html! {
                p { span.strong { "The last run failed." } " The schedule fires on time; " @if let ScheduleTarget::Webhook { .. } = view.definition.target { "its webhook" } @else { "its task" } " did not succeed." }
                @if ctx.may(Permission::Read, Some(&namespace)) {
                    p { a href=(components::task_href(&namespace, task, "")) { "Task " (task) } ": " (format::first_line(error)) }
                }
            }))
        }
    }
}

fn counts(view: &ScheduleView, ticks: Result<&[TickView], &StoreError>, wall: i64) -> Markup {
    let shown = ticks.unwrap_or_default().iter().take(PAGE as usize);
    let mut late: Vec<_> = shown.filter(|tick| by_schedule(tick)).map(|tick| tick.lateness_ms).collect();
    late.sort_unstable();
    html! {
        dl.card.facts.counts.even.tile {
            div { dt { "Next tick" } dd { (schedules::next(view, wall)) } }
            div { dt { "Last fired" } dd { @match view.last_fired_at_ms { Some(at) => (format::ago(at, wall)), None => "never" } } }
            div { dt { "Fired" } dd { (format::number(view.fired_count)) } }
            div { dt { "Skipped" } dd { (format::number(view.skipped_count)) } }
            @if view.definition.overlap_policy != OverlapPolicy::Allow || view.overlapped_count > 0 { div { dt { "Overlapped" } dd { (format::number(view.overlapped_count)) } } }
            @if let (Some(median), Some(worst)) = (late.get(late.len() / 2), late.last()) {
                div { dt { "Lateness of the last " (late.len()) } dd { (span(*median)) " " span.soft.small { "maximum " (span(*worst)) } } }
            }
        }
    }
}

/// Whether the tick was fired by the schedule. Lateness is shown only for such ticks.
fn by_schedule(tick: &TickView) -> bool {
    tick.cause == TickCause::Schedule && tick.state == TickOutcome::Fired
}

fn span(ms: i64) -> String {
    format::span(ms.max(0) as u64)
}

fn history(
    view: &ScheduleView,
    query: &SchedulePageQuery,
    ticks: Result<&[TickView], &StoreError>,
    ctx: &PageContext,
    wall: i64,
) -> Markup {
    let key = view.key();
    let here = components::schedule_href(&key, "");
    html! {
        section.card aria-labelledby="past" {
            header { h2 #past { "Tick history" } span.soft.small { "newest first, 30 days" } }
            @match ticks {
                Err(error) => (components::load_error("history", error)),
                Ok([]) => p.empty { @if query.before_ms().is_some() { "No older ticks." } @else { "No ticks yet." } },
                Ok(ticks) => {
                    table.stack {
                        thead { tr {
                            th scope="col" { "Tick" } th scope="col" { "State" } th.num scope="col" { "Lateness" } th scope="col" { "Fired by" }
                            th scope="col" { "Token" } th scope="col" { "Result" } th scope="col" { "Time" }
                        } }
                        tbody { @for tick in ticks.iter().take(PAGE as usize) { (tick_row(view, tick, query.tick_at_ms, ctx, wall)) } }
                    }
                    @let last = ticks.get(PAGE as usize - 1).filter(|_| ticks.len() > PAGE as usize);
                    @if last.is_some() || query.before_ms().is_some() {
                        nav.pager aria-label="History pages" {
                            @if query.before_ms().is_some() { a.button.slim href={ (here) "#history" } { "Newest" } }
                            @if let Some(last) = last { a.button.slim data-key="older" href={ (here) "&cursor=" (last.tick_at_ms) "#history" } { "Older" } }
                        }
                    }
                },
            }
        }
    }
}

/// A tick of the history.
fn tick_row(
    view: &ScheduleView,
    tick: &TickView,
    highlighted: Option<i64>,
    ctx: &PageContext,
    wall: i64,
) -> Markup {
    let manual = tick.cause == TickCause::Trigger;
    let id = format!("tick-{}{}", tick.tick_at_ms, if manual { "-manual" } else { "" });
    let is_late = tick.lateness_ms > ON_TIME_MS as i64 && by_schedule(tick);
    html! {
        tr id=(id) .highlight[highlighted == Some(tick.tick_at_ms)] {
            th scope="row" {
                span {
                    @if let Some(first) = tick.first_tick_at_ms.filter(|first| *first != tick.tick_at_ms) { (instant(&view.definition.time_zone, first)) span.soft { " to" } br; }
                    (instant(&view.definition.time_zone, tick.tick_at_ms))
                }
            }
            td data-label="State" {
                span {
                    @match tick.state {
                        TickOutcome::Fired => (components::state("done", "fired")),
                        TickOutcome::Skipped if tick.tick_count == 1 => (components::state("off", "skipped")),
                        TickOutcome::Skipped => (components::state("off", html! { (format::number(tick.tick_count)) " skipped" })),
                        TickOutcome::Overlapped => (components::state("warn", "overlapped")),
                    }
                    @if tick.cause != TickCause::Schedule { " " span.chip { (tick.cause.as_str()) } }
                }
            }
            td.num.nowrap.none[!by_schedule(tick)] data-label="Lateness" {
                @if !by_schedule(tick) { span.soft { "–" } }
                @else if is_late { (components::state("late", span(tick.lateness_ms))) }
                @else { (span(tick.lateness_ms)) }
            }
            td data-label="Fired by" { (tick.decided_by) }
            td.none[tick.token.is_none()] data-label="Token" { @match tick.token { Some(token) => span.token { (token) }, None => span.soft { "–" } } }
            td data-label="Result" { (result(view, tick, ctx)) }
            td.nowrap data-label="Time" { (format::ago(tick.decided_at_ms, wall)) }
        }
    }
}

fn instant(zone: &Zone, at_ms: i64) -> Markup {
    let shown = LocalTime::of(zone, at_ms);
    html! { span.nowrap title=(format::utc(at_ms)) { (shown.date()) ", " (shown.time()) } " " span.soft.small.nowrap { (shown.offset()) } }
}

/// A link to the event or task of a tick. Webhooks are tasks of the reserved queue.
fn result(view: &ScheduleView, tick: &TickView, ctx: &PageContext) -> Markup {
    let webhooks = webhook_queue().namespace;
    html! {
        @match (tick.event_id, tick.task_id, &view.definition.target) {
            (Some(id), _, ScheduleTarget::Event { topic, .. }) => a href=(components::event_href(&TopicKey::new(view.namespace.clone(), topic.clone()), id)) { "event " (id) },
            (Some(id), _, _) => { "event " (id) },
            (None, Some(id), ScheduleTarget::Webhook { .. }) if ctx.may(Permission::Read, Some(&webhooks)) => a href=(components::task_href(&webhooks, id, "")) { "webhook " (id) },
            (None, Some(id), ScheduleTarget::Task { .. }) => a href=(components::task_href(&view.namespace, id, "")) { "task " (id) },
            (None, Some(id), _) => { "task " (id) },
            (None, None, _) => span.soft { @match tick.state {
                TickOutcome::Overlapped => "none: an earlier run was unfinished",
                TickOutcome::Skipped => "none: skipped by the misfire policy",
                TickOutcome::Fired => "–",
            } },
        }
    }
}

fn definition(view: &ScheduleView, payload: &FormattedPayload, ctx: &PageContext, wall: i64) -> Markup {
    let definition = &view.definition;
    let (gap, fold) = definition.timetable(&view.namespace).policies();
    let at = |at: Option<i64>, none: &'static str| html! { @match at { Some(at) => (instant(&definition.time_zone, at)), None => (none) } };
    html! {
        section.card aria-labelledby="defined" {
            header {
                h2 #defined { "Definition" }
                span.soft.small { "version " (view.version) ", by " (view.updated_by) " " (format::ago(view.updated_at_ms, wall)) }
            }
            div.body {
                @if let Some(source) = &view.source {
                    p.soft { "Managed by " code { (source) } ". Changes made here are overwritten by the next apply." }
                }
                dl.facts {
                    div { dt { "Expression" } dd { code { (definition.expression) } } }
                    div { dt { "Time zone" } dd { (definition.time_zone) " " span.soft.small { "tzdata " (tzdb_version()) } } }
                    div { dt { "Target" } dd { (schedules::target(view, ctx)) } }
                    div { dt { "Start" } dd { (at(definition.start_at_ms, "at creation")) } }
                    div { dt { "End" } dd { (at(definition.end_at_ms, "none")) } }
                    div { dt { "Jitter" } dd { @if definition.jitter_ms == 0 { "none" } @else { "up to " (format::duration(definition.jitter_ms)) } } }
                    div { dt { "Misfire policy" } dd { (misfire(definition.misfire_policy)) } }
                    div { dt { "Overlap policy" } dd { (overlap(definition.overlap_policy)) } }
                    div { dt { "DST gap" } dd { @match gap { DstGapPolicy::Shift => "shift", DstGapPolicy::Skip => "skip" } } }
                    div { dt { "DST overlap" } dd { @match fold { DstOverlapPolicy::First => "first occurrence", DstOverlapPolicy::Both => "both occurrences" } } }
                    @if let ScheduleTarget::Event { key: Some(key), .. } = &definition.target { div { dt { "Event key" } dd { code { (key) } } } }
                    @if let ScheduleTarget::Webhook { .. } = &definition.target { div { dt { "Signed" } dd { @if view.webhook_signed { "yes" } @else { "no" } } } }
                }
                details #payload-details {
                    summary { "Payload, " (format::number(payload.bytes as u64)) " bytes" }
                    (components::command("payload", &payload.text))
                    @if !payload.whole { p.soft.small { "Truncated." } }
                }
            }
        }
    }
}

/// A description of the misfire policy.
pub(super) fn misfire(policy: MisfirePolicy) -> String {
    match policy {
        MisfirePolicy::Skip => "skip".into(),
        MisfirePolicy::FireOnce => "fire once".into(),
        MisfirePolicy::FireAll { cap } => {
            format!("fire all, up to the newest {}", format::number(cap.into()))
        }
        MisfirePolicy::Within { grace_ms } => {
            format!("fire if not more than {} late", format::duration(grace_ms))
        }
    }
}

/// A description of the overlap policy.
pub(super) fn overlap(policy: OverlapPolicy) -> &'static str {
    match policy {
        OverlapPolicy::Allow => "allow",
        OverlapPolicy::Skip => "skip",
        OverlapPolicy::Queue => "queue",
    }
}
