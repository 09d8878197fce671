//! The home page: elections, servers and the health of the store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{
    ElectionView, Finding, FindingStatus, Permission, PoolView, ScheduleStats, TaskState, WorkerView,
};
use tenure::{BootInstant, Name};

use super::election::with_timeout;
use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::pools::ResourceStatus;
use super::{components, format, getting_started};
use crate::App;
use crate::app::COORDINATOR_ELECTION;
use crate::snapshot::elections::{CachedElection, ElectionsSnapshot};

/// Maximum number of rows; the filter narrows the list.
const SHOWN: usize = 200;

/// Timeout of the summaries of queues, events and schedules, so that the page renders while the store hangs.
const SUMMARY_TIMEOUT: Duration = Duration::from_millis(500);

/// The query of the home page.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HomeQuery {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    q: String,
}

impl HomeQuery {
    fn is_empty(&self) -> bool {
        self.namespace.is_empty() && self.q.trim().is_empty()
    }

    fn matches(&self, view: &ElectionView) -> bool {
        let needle = self.q.trim().to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&needle);
        let here = self.namespace.is_empty() || view.key.namespace.as_str() == self.namespace;
        here && (needle.is_empty()
            || has(view.key.name.as_str())
            || view.candidates.iter().any(|candidate| has(&candidate.name)))
    }
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Query(filter)): PageParams<Query<HomeQuery>>,
) -> Response {
    let snapshot = match app.elections.ready().await {
        Ok(snapshot) => snapshot,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let visible: Vec<_> = snapshot
        .elections
        .values()
        // Elections of servers and workers are shown on other pages.
        .filter(|view| {
            !components::is_shown_elsewhere(&view.key) && ctx.may(Permission::Read, Some(&view.key.namespace))
        })
        .collect();
    // Only principals with access to all namespaces see the configuration of the store.
    let findings = match snapshot.error.is_none() && ctx.may(Permission::Read, None) {
        true => with_timeout(app.elections.findings()).await.ok(),
        false => None,
    };
    let summary = HomeSummary::of(&app).await;
    let cluster = super::raft::status(&app, &snapshot, &ctx).await;
    let now = app.runtime.now();
    let content = html! {
        div.head { div {
            h1 { "Elections" }
            p { "Leaders of all elections, with token and lease remaining." }
        } }
        div #health .tiles data-live { (health(&app, &snapshot, &visible, &ctx)) }
        div #work .tiles data-live { (work_cards(&summary, &ctx, app.runtime.wall_ms())) }
        div #elections data-live {
            @if visible.is_empty() { (getting_started::elections(&ctx)) }
            @else { (elections(&app, &snapshot, &visible, &filter, now)) }
        }
        div #below .pair data-live {
            @if let Some(replicas) = replicas(&app, &snapshot, &ctx) { (replicas) }
            @if let Some(cluster) = &cluster { (super::raft::members(cluster)) }
            (store(&app, &snapshot, findings.as_deref()))
        }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, "Elections", "Elections", content)
}

fn health(
    app: &App,
    snapshot: &ElectionsSnapshot,
    visible: &[&Arc<CachedElection>],
    ctx: &PageContext,
) -> Markup {
    let with_leader = visible.iter().filter(|view| view.holders().next().is_some()).count();
    let paused = visible.iter().filter(|view| view.paused.is_some()).count();
    let idle = visible.len()
        - with_leader
        - visible.iter().filter(|v| v.paused.is_some() && v.holders().next().is_none()).count();
    html! {
        dl.card.tile {
            dt { "Elections" }
            dd.big { (with_leader) " of " (visible.len()) " have a leader" }
            dd.note { @if paused == 0 && idle == 0 { "none paused" } @else { (paused) " paused, " (idle) " without leader" } }
        }
        dl.card.tile {
            dt { "Store" }
            dd.big {
                @if snapshot.error.is_some() { (components::state("bad", "Unavailable")) }
                @else { (components::state("good", app.store.guarantees().backend)) }
            }
            dd.note { "Query latency " (latency(snapshot)) }
        }
        @if let Some(view) = servers(snapshot, ctx) {
            dl.card.tile {
                dt { "Servers" }
                dd.big { (format::count(view.candidates.iter().filter(|c| c.session.live).count(), "server")) }
                dd.note {
                    @match view.holders().next() {
                        Some((_, holder)) => { "Coordinator: " (components::holder_name(view, holder)) },
                        None => "No coordinator",
                    }
                }
            }
        }
    }
}

/// Queues, workers, pools, events and schedules; `None` where the store does not support or did not return them.
struct HomeSummary {
    queues: Option<Arc<crate::snapshot::queues::QueuesSnapshot>>,
    workers: Option<Arc<[WorkerView]>>,
    pools: Option<Arc<[PoolView]>>,
    events: Option<Arc<crate::snapshot::events::EventsSnapshot>>,
    schedules: Option<Arc<[ScheduleStats]>>,
}

impl HomeSummary {
    async fn of(app: &App) -> HomeSummary {
        let all = async {
            tokio::join!(
                app.queues.queues(),
                app.queues.workers(),
                app.queues.pools(),
                app.events.all(),
                app.schedules.stats()
            )
        };
        match tokio::time::timeout(SUMMARY_TIMEOUT, all).await {
            Ok((queues, workers, pools, events, schedules)) => HomeSummary {
                queues: queues.ok(),
                workers: workers.ok(),
                pools: pools.ok(),
                events: events.ok(),
                schedules: schedules.ok(),
            },
            Err(_) => HomeSummary { queues: None, workers: None, pools: None, events: None, schedules: None },
        }
    }
}

/// The cards of queues, workers and pools, each with a link to its page.
fn work_cards(summary: &HomeSummary, ctx: &PageContext, wall: i64) -> Markup {
    let may = |namespace: &Name| ctx.may(Permission::Read, Some(namespace));
    let queues: Vec<_> = summary
        .queues
        .iter()
        .flat_map(|snapshot| snapshot.queues.values())
        .filter(|track| may(&track.view.key.namespace))
        .collect();
    let workers: Vec<_> =
        summary.workers.iter().flat_map(|all| all.iter()).filter(|view| may(&view.namespace)).collect();
    let pools: Vec<_> =
        summary.pools.iter().flat_map(|all| all.iter()).filter(|view| may(&view.key.namespace)).collect();
    let sum = |count: &dyn Fn(&crate::snapshot::queues::QueueHistory) -> u64| {
        queues.iter().map(|track| count(track)).sum::<u64>()
    };
    let (ready, claimed) = (
        sum(&|track| track.view.count(TaskState::Ready)),
        sum(&|track| track.view.count(TaskState::Claimed)),
    );
    let (dead, rate) = (
        sum(&|track| track.view.count(TaskState::Dead)),
        queues.iter().map(|track| track.rate()).sum::<f64>(),
    );
    let resources: Vec<_> = pools.iter().flat_map(|view| &view.resources).collect();
    let free = resources
        .iter()
        .filter(|resource| ResourceStatus::of(resource, wall) == ResourceStatus::Free)
        .count();
    html! {
        (schedules(summary, ctx, wall))
        (events(summary, ctx))
        @if !queues.is_empty() {
            dl.card.tile {
                dt { a href="/queues" { "Queues" } }
                dd.big { (format::brief(ready)) " ready" }
                dd.note { (format::brief(claimed)) " claimed in " (format::count(queues.len(), "queue")) ", " (format::rate(rate)) " finished" @if dead > 0 { ", " (format::brief(dead)) " dead" } }
            }
        }
        @if !workers.is_empty() {
            dl.card.tile {
                dt { a href="/workers" { "Workers" } }
                dd.big { (workers.iter().filter(|view| view.online).count()) " of " (workers.len()) " online" }
            }
        }
        @if !pools.is_empty() {
            dl.card.tile {
                dt { a href="/pools" { "Pools" } }
                dd.big { (free) " of " (resources.len()) " free" }
                dd.note { (format::count(pools.iter().map(|view| view.waiting_requests.len()).sum(), "request")) " waiting" }
            }
        }
    }
}

/// The card of schedules.
fn schedules(summary: &HomeSummary, ctx: &PageContext, wall: i64) -> Markup {
    let stats: Vec<_> = summary
        .schedules
        .iter()
        .flat_map(|all| all.iter())
        .filter(|one| ctx.may(Permission::Read, Some(&one.namespace)))
        .collect();
    let sum = |count: fn(&ScheduleStats) -> u64| stats.iter().map(|one| count(one)).sum::<u64>();
    let (all, paused, failing) =
        (sum(|one| one.schedule_count), sum(|one| one.paused_count), sum(|one| one.failing_count));
    let overdue: u64 =
        stats.iter().filter(|one| super::schedules::is_late(one)).map(|one| one.overdue_count).sum();
    let last = stats.iter().filter_map(|one| one.last_fired_at_ms).max();
    html! {
        @if all > 0 {
            dl.card.tile {
                dt { a href="/schedules" { "Schedules" } }
                dd.big {
                    @if failing > 0 { (components::state("bad", html! { (format::brief(failing)) " failing" })) }
                    @else if overdue > 0 { (components::state("late", html! { (format::brief(overdue)) " overdue" })) }
                    @else { (format::brief(all)) @if all == 1 { " schedule" } @else { " schedules" } }
                }
                dd.note {
                    @match last { Some(at) => { "last fired " (format::ago(at, wall)) }, None => "No tick has fired" }
                    @if paused > 0 { ", " (format::brief(paused)) " paused" }
                }
            }
        }
    }
}

/// The card of events.
fn events(summary: &HomeSummary, ctx: &PageContext) -> Markup {
    let may = |namespace: &Name| ctx.may(Permission::Read, Some(namespace));
    let snapshot = summary.events.as_deref();
    let topics = snapshot
        .into_iter()
        .flat_map(|snapshot| snapshot.topics.keys())
        .filter(|key| may(&key.namespace))
        .count();
    let groups: Vec<_> = snapshot
        .into_iter()
        .flat_map(|snapshot| snapshot.groups.values())
        .filter(|track| may(&track.view.key.topic.namespace))
        .collect();
    let dead: u64 = groups.iter().map(|track| track.view.dead_letter_count).sum();
    let lag = groups.iter().map(|track| track.lag.events).sum();
    html! {
        @if topics > 0 {
            dl.card.tile {
                dt { a href="/topics" { "Events" } }
                dd.big { "Lag: " (format::brief(lag)) " events" }
                dd.note { (format::count(groups.len(), "group")) " of " (format::count(topics, "topic")) @if dead > 0 { ", " (format::brief(dead)) " dead letters" } }
            }
        }
    }
}

fn latency(snapshot: &ElectionsSnapshot) -> String {
    let micros = snapshot.latency.as_micros();
    if micros < 10_000 {
        format!("{:.1} ms", micros as f64 / 1000.0)
    } else {
        format!("{} ms", micros / 1000)
    }
}

fn elections(
    app: &App,
    snapshot: &ElectionsSnapshot,
    visible: &[&Arc<CachedElection>],
    filter: &HomeQuery,
    now: BootInstant,
) -> Markup {
    let namespaces: BTreeSet<&Name> = visible.iter().map(|view| &view.key.namespace).collect();
    let several = namespaces.len() > 1;
    let found: Vec<_> = visible.iter().filter(|view| filter.matches(view)).collect();
    let wall = app.runtime.wall_ms();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "Elections" } @else { (found.len()) " of " (format::count(visible.len(), "election")) } }
                form.filter data-keep method="get" action="/" role="search" {
                    @if several {
                        label.hidden for="namespace" { "Namespace" }
                        select #namespace name="namespace" {
                            option value="" { "All namespaces" }
                            @for name in &namespaces {
                                option value=(name) selected[name.as_str() == filter.namespace] { (name) }
                            }
                        }
                    }
                    label.hidden for="q" { "Search by election or candidate" }
                    input #q type="search" name="q" value=(filter.q) placeholder="Search by election or candidate";
                    button.button { "Filter" }
                    @if !filter.is_empty() { a.button href="/" { "Clear filter" } }
                }
            }
            @if found.is_empty() {
                p.empty { "No matching elections. " a href="/" { "Clear filter" } }
            } @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Election" } th scope="col" { "State" } th scope="col" { "Leader" }
                        th scope="col" { "Token" } th scope="col" { "Lease remaining" } th scope="col" { "Leader since" }
                        th.num scope="col" { "Candidates" }
                    } }
                    tbody { @for view in found.iter().take(SHOWN) { (row(view, snapshot, several, now, wall)) } }
                }
                @if found.len() > SHOWN {
                    p.empty { (found.len() - SHOWN) " more; use the filter." }
                }
            }
        }
    }
}

fn row(
    view: &ElectionView,
    snapshot: &ElectionsSnapshot,
    several: bool,
    now: BootInstant,
    wall: i64,
) -> Markup {
    let holders: Vec<_> = view.holders().collect();
    let newest = holders.iter().map(|(lease, _)| *lease).max_by_key(|lease| lease.token);
    // Of several leaders, show the shortest lease remaining.
    let least = holders
        .iter()
        .map(|(_, holder)| (components::lease_remaining(holder, snapshot, now), holder.lease() * 2 / 3))
        .min();
    html! {
        tr data-key=(format!("row-{}/{}", view.key.namespace, view.key.name)) data-announce=(components::announcement(view)) {
            th scope="row" {
                span {
                    a href=(components::href(&view.key, "")) { (view.key.name) }
                    @if several { " " span.chip { (view.key.namespace) } }
                }
            }
            td data-label="State" { (components::election_state(view, snapshot, now)) }
            td data-label="Leader" {
                @if let Some(pause) = view.paused.as_ref().filter(|_| holders.is_empty()) {
                    span { span.soft { "paused by " } (pause.paused_by) @if !pause.reason.is_empty() { span.soft { ": " (pause.reason) } } }
                } @else if holders.is_empty() {
                    span.soft { "–" }
                } @else {
                    span {
                        @for (at, (_, holder)) in holders.iter().take(3).enumerate() {
                            @if at > 0 { ", " } span.strong { (components::holder_name(view, holder)) }
                        }
                        @if holders.len() > 3 { span.soft { " and " (holders.len() - 3) " more" } }
                    }
                }
            }
            td.none[newest.is_none()] data-label="Token" { @match newest { Some(lease) => (components::token(lease)), None => span.soft { "–" } } }
            td.none[least.is_none()] data-label="Lease remaining" {
                @if let Some((left, whole)) = least {
                    (components::lease_bar(left, whole, view.key.name.as_str(), snapshot))
                } @else { span.soft { "–" } }
            }
            td.nowrap.none[newest.is_none()] data-label="Leader since" {
                @match newest.and_then(|lease| lease.granted_at_ms) { Some(at) => (format::ago(at, wall)), None => span.soft { "–" } }
            }
            td.num data-label="Candidates" { (view.candidates.iter().filter(|c| c.session.live && !c.observer).count()) }
        }
    }
}

/// The election of the servers, if the principal may read its namespace.
fn servers<'s>(snapshot: &'s ElectionsSnapshot, ctx: &PageContext) -> Option<&'s Arc<CachedElection>> {
    let view = snapshot.elections.get(&*COORDINATOR_ELECTION)?;
    ctx.may(Permission::Read, Some(&view.key.namespace)).then_some(view)
}

fn replicas(app: &App, snapshot: &ElectionsSnapshot, ctx: &PageContext) -> Option<Markup> {
    let view = servers(snapshot, ctx)?;
    let now = app.runtime.now();
    let mut candidates: Vec<_> = view.candidates.iter().filter(|c| c.session.owner.is_none()).collect();
    candidates.sort_by(|a, b| tenure::rules::election::by_rank(a, b));
    let about = |candidate: &tenure::port::CandidateView, key: &str| {
        candidate.metadata.get(key).cloned().unwrap_or_else(|| "–".into())
    };
    Some(html! {
        section.card aria-labelledby="replicas" {
            header { h2 #replicas { "Servers" } }
            table.stack {
                thead { tr {
                    th scope="col" { "Name" } th scope="col" { "Address" } th scope="col" { "Version" }
                    th scope="col" { "Last seen" } th scope="col" { "Role" }
                } }
                tbody {
                    @for candidate in candidates {
                        @let leads = view.held_by(&candidate.session.id).next().is_some();
                        tr data-key=(candidate.session.id) .leader[leads] {
                            th scope="row" { (candidate.name) }
                            td.mono data-label="Address" { (components::breakable(&about(candidate, "address"))) }
                            td data-label="Version" { (about(candidate, "version")) }
                            td.nowrap data-label="Last seen" { (last_heartbeat(snapshot, candidate, now)) }
                            td data-label="Role" { @if leads { (components::state("good", "Coordinator")) } @else { (components::state("idle", "Standby")) } }
                        }
                    }
                }
            }
        }
    })
}

/// The age of a candidate's last heartbeat by this server's clock.
pub(super) fn last_heartbeat(
    snapshot: &ElectionsSnapshot,
    candidate: &tenure::port::CandidateView,
    now: BootInstant,
) -> Markup {
    html! {
        @match snapshot.sessions.get(&candidate.session.id) {
            Some(sight) => {
                @match now.since(sight.changed_at).as_millis() as i64 {
                    0..1000 => "just now",
                    age => { (format::elapsed(age)) " ago" },
                }
            },
            // The candidate joined after the last snapshot of heartbeats.
            None if candidate.session.live => "just now",
            None => (components::state("bad", "Offline")),
        }
    }
}

fn store(app: &App, snapshot: &ElectionsSnapshot, findings: Option<&[Finding]>) -> Markup {
    let promises = app.store.guarantees();
    html! {
        section.card aria-labelledby="store" {
            header {
                h2 #store { "Store" }
                @if snapshot.error.is_some() { (components::state("bad", "Unavailable")) } @else { (components::state("good", "Available")) }
            }
            div.body {
                dl.facts {
                    div { dt { "Store type" } dd { (promises.backend) @if snapshot.epoch > 0 { ", epoch " (snapshot.epoch) } } }
                    div { dt { "Query latency" } dd { (latency(snapshot)) } }
                    div { dt { "Guarantee: at most one leader" } dd { (promises.at_most_one) } }
                    div { dt { "During a network split" } dd { (promises.netsplit) } }
                    div { dt { "Recovery after a crash" } dd { (promises.after_crash) } }
                }
                @if let Some(findings) = findings.filter(|findings| !findings.is_empty()) { (findings_list(findings)) }
            }
        }
    }
}

/// The findings about the store, as `tenure doctor` prints them.
fn findings_list(findings: &[Finding]) -> Markup {
    let worst = findings.iter().filter(|finding| finding.status != FindingStatus::Ok).count();
    html! {
        details #checks open[worst > 0] {
            summary { (format::count(findings.len(), "check")) @if worst == 0 { " passed" } @else { ", " (format::count(worst, "warning")) } }
            ul.findings {
                @for finding in findings {
                    li {
                        @match finding.status {
                            FindingStatus::Ok => (components::state("good", &finding.check)),
                            FindingStatus::Warning => (components::state("idle", &finding.check)),
                            FindingStatus::Error => (components::state("bad", &finding.check)),
                        }
                        " " (finding.value)
                        @if !finding.advice.is_empty() { p.soft.small { (finding.advice) } }
                    }
                }
            }
        }
    }
}
