//! The page of all schedules.

use std::collections::{BTreeSet, HashMap};

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::Name;
use tenure::port::{
    Permission, QueueKey, ScheduleKey, ScheduleStats, ScheduleView, StoreError, TopicKey, scheduler_election,
    webhook_queue,
};
use tenure_core::rules::schedule::{ON_TIME_MS, ScheduleTarget};

use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::local_time::LocalTime;
use super::queues::QueuesPageQuery;
use super::{components, format, getting_started};
use crate::App;
use crate::api::push_address;
use crate::snapshot::elections::ElectionsSnapshot;
use crate::snapshot::schedules::{PAGE_SIZE, Run};

/// Number of schedules per page.
const SHOWN: usize = 100;
/// Maximum number of snapshot chunks that one page searches for matches.
const CHUNKS: usize = 25;
/// A schedule is overdue if it is due for longer than this.
const LATE_MS: i64 = 5_000;

/// The query of the page.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SchedulesPageQuery {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    q: String,
    /// Show schedules after this one, `namespace/name`.
    #[serde(default)]
    cursor: String,
}

/// The schedules of a page, and where the next page starts.
struct ScheduleListSlice {
    views: Vec<ScheduleView>,
    /// The last schedule that was read, if more may follow.
    rest: Option<ScheduleKey>,
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(query)): PageParams<Query<SchedulesPageQuery>>,
) -> Response {
    let filter = QueuesPageQuery { namespace: query.namespace.clone(), q: query.q.clone() };
    let stats = match app.schedules.stats().await {
        Ok(stats) => stats,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let stats: Vec<_> = stats.iter().filter(|one| ctx.may(Permission::Read, Some(&one.namespace))).collect();
    let namespaces: BTreeSet<_> = stats.iter().map(|one| &one.namespace).collect();
    let found = match find(&app, &ctx, &filter, &namespaces, &query.cursor).await {
        Ok(found) => found,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let runs = app.schedules.runs(&found.views.iter().collect::<Vec<_>>()).await;
    let elections = app.elections.snapshot();
    let wall = app.runtime.wall_ms();
    let content = html! {
        div.head {
            div {
                h1 { "Schedules" }
                p { "All schedules. Each tick fires once." }
                div #leader data-live { (leader(&elections, &ctx)) }
            }
            (actions(&ctx, &filter, &namespaces))
        }
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #no-scheduler data-live { (no_scheduler(&elections, &stats)) }
        div #summary .tiles data-live { @if !stats.is_empty() { (summary_cards(&stats, wall)) } }
        div #schedules data-live {
            @if stats.is_empty() { (getting_started::schedules(&ctx)) }
            @else { (table(&found, &runs, &filter, &query, &namespaces, &ctx, wall)) }
        }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, "Schedules", "Schedules", content)
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "delete" => "Schedule deleted, with its history. Its events and tasks are kept.",
        _ => return None,
    })
}

/// Find matching schedules chunk by chunk, up to [`CHUNKS`] chunks per page. Reads only namespaces that the
/// principal may read.
async fn find(
    app: &App,
    ctx: &PageContext,
    filter: &QueuesPageQuery,
    namespaces: &BTreeSet<&Name>,
    after: &str,
) -> Result<ScheduleListSlice, StoreError> {
    let mut after = after
        .split_once('/')
        .and_then(|(namespace, name)| Some(ScheduleKey::new(namespace.parse().ok()?, name.parse().ok()?)));
    let places: Vec<Option<&Name>> = match filter.namespace.is_empty() && ctx.may(Permission::Read, None) {
        true => vec![None],
        false => namespaces.iter().copied().filter(|name| here(filter, name)).map(Some).collect(),
    };
    let (mut views, mut chunks) = (Vec::new(), 0);
    for place in places {
        let passed = |after: &ScheduleKey| place.is_some_and(|name| *name < after.namespace);
        if after.as_ref().is_some_and(passed) {
            continue;
        }
        loop {
            if chunks == CHUNKS {
                return Ok(ScheduleListSlice { views, rest: after });
            }
            chunks += 1;
            let chunk = app.schedules.page(place, after.as_ref()).await?;
            for view in chunk.iter() {
                let (key, words) = (view.key(), search_words(view));
                let matches = filter.matches(&key.namespace, words.iter().map(String::as_str));
                if matches && views.len() == SHOWN {
                    return Ok(ScheduleListSlice { views, rest: after });
                }
                after = Some(key);
                if matches {
                    views.push(view.clone());
                }
            }
            if chunk.len() < PAGE_SIZE as usize {
                break;
            }
        }
    }
    Ok(ScheduleListSlice { views, rest: None })
}

/// Whether the filter includes a namespace.
fn here(filter: &QueuesPageQuery, namespace: &Name) -> bool {
    filter.namespace.is_empty() || filter.namespace == namespace.as_str()
}

/// The searchable words of a schedule.
fn search_words(view: &ScheduleView) -> Vec<String> {
    let target = match &view.definition.target {
        ScheduleTarget::Event { topic, .. } => topic.to_string(),
        ScheduleTarget::Task { queue, .. } => queue.to_string(),
        ScheduleTarget::Webhook { url } => push_address(url).unwrap_or_default(),
        _ => String::new(),
    };
    vec![view.definition.name.to_string(), target, view.definition.time_zone.to_string()]
}

/// The leader of the schedulers, if the principal may read its election.
fn leader(snapshot: &ElectionsSnapshot, ctx: &PageContext) -> Markup {
    let key = scheduler_election();
    let view = snapshot.elections.get(&key).filter(|_| ctx.may(Permission::Read, Some(&key.namespace)));
    let held = view.and_then(|view| view.holders().next().map(|held| (view, held)));
    html! {
        @if let Some((view, (lease, holder))) = held {
            p { "Scheduler: " a href=(components::href(&key, "")) { (components::holder_name(view, holder)) } ", token " (components::token(lease)) "." }
        }
    }
}

/// A notice that no scheduler is running.
fn no_scheduler(snapshot: &ElectionsSnapshot, stats: &[&ScheduleStats]) -> Markup {
    let led =
        snapshot.elections.get(&scheduler_election()).is_some_and(|view| view.holders().next().is_some());
    let overdue: u64 = stats.iter().map(|one| one.overdue_count).sum();
    html! {
        @if !led && overdue > 0 && snapshot.error.is_none() {
            (components::notice("bad", html! {
                p { span.strong { "No scheduler is running." } " Missed ticks follow the misfire policy of each schedule." }
                p.soft { "Start one: " code { "tenure schedules run" } ", or a server without " code { "--no-scheduler" } "." }
            }))
        }
    }
}

fn actions(ctx: &PageContext, filter: &QueuesPageQuery, namespaces: &BTreeSet<&Name>) -> Markup {
    let selected = namespaces.iter().find(|name| name.as_str() == filter.namespace).copied();
    let only = namespaces.first().filter(|_| namespaces.len() == 1).copied();
    let here = selected.or(only).cloned().unwrap_or_else(Name::default_namespace);
    html! {
        @if ctx.may(Permission::Admin, Some(&here)) {
            div.buttons role="group" aria-label="Actions" {
                a.button data-key="new" href={ "/schedules/new?namespace=" (components::escape(here.as_str())) } { "Create schedule" }
            }
        }
    }
}

/// Whether a namespace has overdue schedules.
pub(super) fn is_late(stats: &ScheduleStats) -> bool {
    stats.overdue_count > 0 && stats.max_overdue_ms > LATE_MS as u64
}

/// The summary cards.
fn summary_cards(stats: &[&ScheduleStats], wall: i64) -> Markup {
    let sum = |count: fn(&ScheduleStats) -> u64| stats.iter().map(|one| count(one)).sum::<u64>();
    let (all, paused, failing_count) =
        (sum(|one| one.schedule_count), sum(|one| one.paused_count), sum(|one| one.failing_count));
    let overdue: u64 = stats.iter().filter(|one| is_late(one)).map(|one| one.overdue_count).sum();
    let longest = stats.iter().map(|one| one.max_overdue_ms).max().unwrap_or(0);
    let last = stats.iter().filter_map(|one| one.last_fired_at_ms).max();
    html! {
        dl.card.tile { dt { "Schedules" } dd.big { (format::number(all)) } dd.note { @if paused == 0 { "none paused" } @else { (format::number(paused)) " paused" } } }
        dl.card.tile {
            dt { "Failing" }
            dd.big { @if failing_count == 0 { "none" } @else { (components::state("bad", format::number(failing_count))) } }
            dd.note { @if failing_count == 0 { "none failing" } @else { "last firing failed; retrying" } }
        }
        dl.card.tile {
            dt { "Overdue" }
            dd.big { @if overdue == 0 { "none" } @else { (components::state("late", format::number(overdue))) } }
            dd.note { @if overdue == 0 { "none overdue" } @else { "longest: " (format::span(longest)) } }
        }
        dl.card.tile { dt { "Last fired" } dd.big { @match last { Some(at) => (format::ago(at, wall)), None => "never" } } dd.note { @match last { Some(at) => (format::utc(at)), None => "no tick has fired" } } }
    }
}

fn table(
    found: &ScheduleListSlice,
    runs: &HashMap<ScheduleKey, Run>,
    filter: &QueuesPageQuery,
    query: &SchedulesPageQuery,
    namespaces: &BTreeSet<&Name>,
    ctx: &PageContext,
    wall: i64,
) -> Markup {
    let several = namespaces.len() > 1;
    let here = |after: &str| {
        let (namespace, q) = (components::escape(&filter.namespace), components::escape(&filter.q));
        format!("/schedules?namespace={namespace}&q={q}&cursor={}", components::escape(after))
    };
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "Schedules" } @else { "Matching schedules" } }
                (filter.form("/schedules", "Search by schedule, target or time zone", namespaces))
            }
            @if found.views.is_empty() {
                p.empty {
                    @if found.rest.is_some() { "No match on this page; more pages follow." } @else { "No matching schedules. " a href="/schedules" { "Clear filter" } }
                }
            } @else {
                table.stack.schedules {
                    thead { tr {
                        th scope="col" { "Schedule" } th scope="col" { "State" } th scope="col" { "Expression" } th scope="col" { "Next tick" }
                        th scope="col" { "Last fired" } th scope="col" { "Target" } th scope="col" { span.hidden { "Actions" } }
                    } }
                    tbody { @for view in &found.views { (row(view, runs.get(&view.key()), several, ctx, wall)) } }
                }
            }
            @if found.rest.is_some() || !query.cursor.is_empty() {
                nav.pager aria-label="Schedule pages" {
                    @if !query.cursor.is_empty() { a.button.slim href=(here("")) { "First page" } }
                    @if let Some(rest) = &found.rest { a.button.slim data-key="more" href=(here(&format!("{}/{}", rest.namespace, rest.name))) { "Next page" } }
                }
            }
        }
    }
}

fn row(view: &ScheduleView, run: Option<&Run>, several: bool, ctx: &PageContext, wall: i64) -> Markup {
    let key = view.key();
    let to = |action: &str| components::schedule_href(&key, action);
    html! {
        tr data-key=(format!("schedule-{}/{}", key.namespace, key.name)) data-announce=(announcement(view, run, wall)) {
            th scope="row" {
                span {
                    a href=(to("")) { (key.name) }
                    @if several { " " span.chip { (key.namespace) } }
                }
            }
            td data-label="State" { (state(view, run, wall)) }
            td.wide data-label="Expression" { span { code { (view.definition.expression) } " " span.soft.small.nowrap { (view.definition.time_zone) } } }
            td data-label="Next tick" { (next(view, wall)) }
            td.nowrap.none[view.last_fired_at_ms.is_none()] data-label="Last fired" {
                @match view.last_fired_at_ms { Some(at) => (format::ago(at, wall)), None => span.soft { "–" } }
            }
            td.wide data-label="Target" { span { (target(view, ctx)) } }
            td.whole {
                @if ctx.may(Permission::Admin, Some(&key.namespace)) {
                    div.buttons {
                        a.button.slim data-key={ "trigger-" (key.name) } data-confirm href=(to("trigger")) { "Trigger…" }
                        @if view.paused.is_some() { a.button.slim data-key={ "resume-" (key.name) } data-confirm href=(to("resume")) { "Resume…" } }
                        @else { a.button.slim data-key={ "pause-" (key.name) } data-confirm href=(to("pause")) { "Pause…" } }
                    }
                }
            }
        }
    }
}

/// The next tick.
pub(super) fn next(view: &ScheduleView, wall: i64) -> Markup {
    let next = view.tick_state.map(|progress| progress.next_tick_at_ms);
    html! {
        @match next {
            None => span.soft { "finished" },
            Some(_) if view.paused.is_some() => span.soft { "paused" },
            Some(at) => {
                @let shown = LocalTime::of(&view.definition.time_zone, at);
                span { span.nowrap { (format::until(at, wall)) } " " span.soft.small.nowrap { (shown.weekday()) " " (shown.day) " " (shown.month()) ", " (shown.time()) } }
            },
        }
    }
}

/// The target with a link.
pub(super) fn target(view: &ScheduleView, ctx: &PageContext) -> Markup {
    let namespace = || view.namespace.clone();
    let may_read_webhooks = ctx.may(Permission::Read, Some(&webhook_queue().namespace));
    html! {
        @match &view.definition.target {
            ScheduleTarget::Event { topic, .. } => { "event to " a href=(components::topic_href(&TopicKey::new(namespace(), topic.clone()), "")) { (topic) } },
            ScheduleTarget::Task { queue, task } => {
                "task " @if !task.kind.is_empty() { span.strong { (components::breakable(&task.kind)) } " " } "to "
                a href=(components::queue_href(&QueueKey::new(namespace(), queue.clone()), "")) { (queue) }
            },
            ScheduleTarget::Webhook { url } => {
                @if may_read_webhooks { a href=(components::queue_href(&webhook_queue(), "")) { "webhook" } } @else { "webhook" }
                // The query may contain a secret.
                " to " span { (components::breakable(&push_address(url).unwrap_or_default())) @if url.contains('?') { "?…" } }
            },
            _ => span.soft { "unknown target (newer version)" },
        }
    }
}

/// Whether the schedule is overdue.
fn is_overdue(view: &ScheduleView, wall: i64) -> bool {
    view.due_at_ms.is_some_and(|due| wall.saturating_sub(due) > LATE_MS)
}

/// The state of a schedule.
pub(super) fn state(view: &ScheduleView, run: Option<&Run>, wall: i64) -> Markup {
    match () {
        () if view.tick_state.is_none() => components::state("off", "Finished"),
        () if view.paused.is_some() => components::state("warn", "Paused"),
        () if view.last_error.is_some() => components::state("bad", "Failing"),
        () if is_overdue(view, wall) => components::state("late", "Overdue"),
        () if last_run_failed(run) => components::state("bad", failing(view)),
        () => components::state("good", "On time"),
    }
}

/// Whether the newest finished run failed although the schedule fires on time.
pub(super) fn last_run_failed(run: Option<&Run>) -> bool {
    run.is_some_and(|run| run.error.is_some())
}

/// A short description of failing runs.
fn failing(view: &ScheduleView) -> &'static str {
    match view.definition.target {
        ScheduleTarget::Webhook { .. } => "Webhooks fail",
        _ => "Tasks fail",
    }
}

/// The state of a schedule for screen readers.
pub(super) fn announcement(view: &ScheduleView, run: Option<&Run>, wall: i64) -> String {
    let key = view.key();
    match (&view.paused, &view.last_error) {
        _ if view.tick_state.is_none() => format!("{key} is finished"),
        (Some(pause), _) => format!("{key} is paused by {}", pause.paused_by),
        (None, Some(_)) => format!("{key} is failing"),
        // Allow time for another scheduler to take over before announcing it.
        (None, None) if view.due_at_ms.is_some_and(|due| wall.saturating_sub(due) > ON_TIME_MS as i64) => {
            format!("{key} is overdue")
        }
        (None, None) if last_run_failed(run) => format!("{key}: {}", failing(view)),
        (None, None) => format!("{key} is on time"),
    }
}
