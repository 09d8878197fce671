//! The front page: elections, replicas, the store's health.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{ElectionView, Finding, PoolView, ScheduleStats, TaskState, Verb, Verdict, WorkerView};
use tenure::{Moment, Name};

use super::election::within;
use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::pools::Standing;
use super::{first, parts, words};
use crate::App;
use crate::app::SERVERS;
use crate::board::{Entry, Seen};

/// More than this are not read by anybody; the filter finds the others.
const SHOWN: usize = 200;

/// How long this page waits for what is not its main matter: it is shown even while the store hangs.
const GLANCE: Duration = Duration::from_millis(500);

/// What somebody looks for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    q: String,
}

impl Filter {
    fn is_empty(&self) -> bool {
        self.namespace.is_empty() && self.q.trim().is_empty()
    }

    fn lets_through(&self, view: &ElectionView) -> bool {
        let wanted = self.q.trim().to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let here = self.namespace.is_empty() || view.key.namespace.as_str() == self.namespace;
        here && (wanted.is_empty()
            || has(view.key.name.as_str())
            || view.candidates.iter().any(|candidate| has(&candidate.id)))
    }
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Query(filter)): Got<Query<Filter>>,
) -> Response {
    let seen = match app.board.known().await {
        Ok(seen) => seen,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let visible: Vec<_> = seen
        .elections
        .values()
        // What servers and workers elect among themselves is shown where it matters.
        .filter(|view| {
            !parts::is_shown_elsewhere(&view.key) && visit.may(Verb::Read, Some(&view.key.namespace))
        })
        .collect();
    // How the store is set up is for those who look after it.
    let findings = match seen.trouble.is_none() && visit.may(Verb::Read, None) {
        true => within(app.board.findings()).await.ok(),
        false => None,
    };
    let work = Work::of(&app).await;
    let cluster = super::raft::seen(&app, &seen, &visit).await;
    let now = app.runtime.now();
    let content = html! {
        div.head { div {
            h1 { "Elections" }
            p { "Who leads what, under which token, and for how long that can be trusted." }
        } }
        div #health .tiles data-live { (health(&app, &seen, &visible, &visit)) }
        div #claims .tiles data-live { (claims(&work, &visit, app.runtime.wall_ms())) }
        div #elections data-live {
            @if visible.is_empty() { (first::lesson(&visit)) }
            @else { (elections(&app, &seen, &visible, &filter, now)) }
        }
        div #below .pair data-live {
            @if let Some(replicas) = replicas(&app, &seen, &visit) { (replicas) }
            @if let Some(cluster) = &cluster { (super::raft::members(cluster)) }
            (store(&app, &seen, findings.as_deref()))
        }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, "Elections", "Elections", content)
}

fn health(app: &App, seen: &Seen, visible: &[&Arc<Entry>], visit: &Visit) -> Markup {
    let led = visible.iter().filter(|view| view.holders().next().is_some()).count();
    let paused = visible.iter().filter(|view| view.paused.is_some()).count();
    let idle = visible.len()
        - led
        - visible.iter().filter(|v| v.paused.is_some() && v.holders().next().is_none()).count();
    html! {
        dl.card.tile {
            dt { "Elections" }
            dd.big { (led) " of " (visible.len()) " led" }
            dd.note { @if paused == 0 && idle == 0 { "none paused" } @else { (paused) " paused, " (idle) " without a leader" } }
        }
        dl.card.tile {
            dt { "Store" }
            dd.big {
                @if seen.trouble.is_some() { (parts::state("bad", "does not answer")) }
                @else { (parts::state("good", app.store.promises().backend)) }
            }
            dd.note { "last look took " (latency(seen)) }
        }
        @if let Some(view) = servers(seen, visit) {
            dl.card.tile {
                dt { "Replicas" }
                dd.big { (words::count(view.candidates.iter().filter(|c| c.session.live).count(), "replica")) }
                dd.note {
                    @match view.holders().next() {
                        Some((_, holder)) => { (parts::holder_id(view, holder)) " keeps house" },
                        None => "nobody keeps house",
                    }
                }
            }
        }
    }
}

/// Work and resources, as far as the store keeps any and answers.
struct Work {
    queues: Option<Arc<crate::floor::Seen>>,
    workers: Option<Arc<[WorkerView]>>,
    pools: Option<Arc<[PoolView]>>,
    events: Option<Arc<crate::gauge::Seen>>,
    schedules: Option<Arc<[ScheduleStats]>>,
}

impl Work {
    async fn of(app: &App) -> Work {
        let all = async {
            tokio::join!(
                app.floor.queues(),
                app.floor.workers(),
                app.floor.pools(),
                app.gauge.all(),
                app.agenda.stats()
            )
        };
        match tokio::time::timeout(GLANCE, all).await {
            Ok((queues, workers, pools, events, schedules)) => Work {
                queues: queues.ok(),
                workers: workers.ok(),
                pools: pools.ok(),
                events: events.ok(),
                schedules: schedules.ok(),
            },
            Err(_) => Work { queues: None, workers: None, pools: None, events: None, schedules: None },
        }
    }
}

/// Claims at a glance, each as the way to its page.
fn claims(work: &Work, visit: &Visit, wall: i64) -> Markup {
    let may = |namespace: &Name| visit.may(Verb::Read, Some(namespace));
    let queues: Vec<_> = work
        .queues
        .iter()
        .flat_map(|seen| seen.queues.values())
        .filter(|track| may(&track.view.key.namespace))
        .collect();
    let workers: Vec<_> =
        work.workers.iter().flat_map(|all| all.iter()).filter(|view| may(&view.namespace)).collect();
    let pools: Vec<_> =
        work.pools.iter().flat_map(|all| all.iter()).filter(|view| may(&view.key.namespace)).collect();
    let sum =
        |count: &dyn Fn(&crate::floor::Track) -> u64| queues.iter().map(|track| count(track)).sum::<u64>();
    let (ready, claimed) = (
        sum(&|track| track.view.count(TaskState::Ready)),
        sum(&|track| track.view.count(TaskState::Claimed)),
    );
    let (dead, rate) = (
        sum(&|track| track.view.count(TaskState::Dead)),
        queues.iter().map(|track| track.rate()).sum::<f64>(),
    );
    let resources: Vec<_> = pools.iter().flat_map(|view| &view.resources).collect();
    let free = resources.iter().filter(|resource| Standing::of(resource, wall) == Standing::Free).count();
    html! {
        (schedules(work, visit, wall))
        (events(work, visit))
        @if !queues.is_empty() {
            dl.card.tile {
                dt { a href="/queues" { "Queues" } }
                dd.big { (words::brief(ready)) " ready" }
                dd.note { (words::brief(claimed)) " claimed in " (words::count(queues.len(), "queue")) ", " (words::rate(rate)) " finish" @if dead > 0 { ", " (words::brief(dead)) " dead" } }
            }
        }
        @if !workers.is_empty() {
            dl.card.tile {
                dt { a href="/workers" { "Workers" } }
                dd.big { (workers.iter().filter(|view| view.live).count()) " live" }
                dd.note { "of " (workers.len()) " that are known" }
            }
        }
        @if !pools.is_empty() {
            dl.card.tile {
                dt { a href="/pools" { "Pools" } }
                dd.big { (free) " of " (resources.len()) " free" }
                dd.note { (words::count(pools.iter().map(|view| view.waiting.len()).sum(), "request")) " waiting" }
            }
        }
    }
}

/// Schedules at a glance.
fn schedules(work: &Work, visit: &Visit, wall: i64) -> Markup {
    let stats: Vec<_> = work
        .schedules
        .iter()
        .flat_map(|all| all.iter())
        .filter(|one| visit.may(Verb::Read, Some(&one.namespace)))
        .collect();
    let sum = |count: fn(&ScheduleStats) -> u64| stats.iter().map(|one| count(one)).sum::<u64>();
    let (all, paused, troubled) = (sum(|one| one.schedules), sum(|one| one.paused), sum(|one| one.troubled));
    let overdue: u64 = stats.iter().filter(|one| super::schedules::is_late(one)).map(|one| one.overdue).sum();
    let last = stats.iter().filter_map(|one| one.last_fired_ms).max();
    html! {
        @if all > 0 {
            dl.card.tile {
                dt { a href="/schedules" { "Schedules" } }
                dd.big {
                    @if troubled > 0 { (parts::state("bad", html! { (words::brief(troubled)) " can not fire" })) }
                    @else if overdue > 0 { (parts::state("late", html! { (words::brief(overdue)) " overdue" })) }
                    @else { (words::brief(all)) @if all == 1 { " schedule" } @else { " schedules" } }
                }
                dd.note {
                    @match last { Some(at) => { "last fired " (words::ago(at, wall)) }, None => "nothing has fired yet" }
                    @if paused > 0 { ", " (words::brief(paused)) " paused" }
                }
            }
        }
    }
}

/// Events at a glance.
fn events(work: &Work, visit: &Visit) -> Markup {
    let may = |namespace: &Name| visit.may(Verb::Read, Some(namespace));
    let seen = work.events.as_deref();
    let topics =
        seen.into_iter().flat_map(|seen| seen.topics.keys()).filter(|key| may(&key.namespace)).count();
    let groups: Vec<_> = seen
        .into_iter()
        .flat_map(|seen| seen.groups.values())
        .filter(|track| may(&track.view.key.topic.namespace))
        .collect();
    let dead: u64 = groups.iter().map(|track| track.view.dead).sum();
    let unread = groups.iter().map(|track| track.lag.events).sum();
    html! {
        @if topics > 0 {
            dl.card.tile {
                dt { a href="/topics" { "Events" } }
                dd.big { (words::brief(unread)) " unread" }
                dd.note { (words::count(groups.len(), "group")) " of " (words::count(topics, "topic")) @if dead > 0 { ", " (words::brief(dead)) " dead" } }
            }
        }
    }
}

fn latency(seen: &Seen) -> String {
    let micros = seen.latency.as_micros();
    if micros < 10_000 {
        format!("{:.1} ms", micros as f64 / 1000.0)
    } else {
        format!("{} ms", micros / 1000)
    }
}

fn elections(app: &App, seen: &Seen, visible: &[&Arc<Entry>], filter: &Filter, now: Moment) -> Markup {
    let namespaces: BTreeSet<&Name> = visible.iter().map(|view| &view.key.namespace).collect();
    let several = namespaces.len() > 1;
    let found: Vec<_> = visible.iter().filter(|view| filter.lets_through(view)).collect();
    let wall = app.runtime.wall_ms();
    html! {
        section.card aria-labelledby="all" {
            header {
                h2 #all { @if filter.is_empty() { "All elections" } @else { (found.len()) " of " (words::count(visible.len(), "election")) } }
                form.filter data-keep method="get" action="/" role="search" {
                    @if several {
                        label.hidden for="namespace" { "Namespace" }
                        select #namespace name="namespace" {
                            option value="" { "every namespace" }
                            @for name in &namespaces {
                                option value=(name) selected[name.as_str() == filter.namespace] { (name) }
                            }
                        }
                    }
                    label.hidden for="q" { "Election or candidate" }
                    input #q type="search" name="q" value=(filter.q) placeholder="Election or candidate";
                    button.button { "Filter" }
                    @if !filter.is_empty() { a.button href="/" { "Show all" } }
                }
            }
            @if found.is_empty() {
                p.empty { "No election matches. " a href="/" { "Show all" } }
            } @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Election" } th scope="col" { "State" } th scope="col" { "Leader" }
                        th scope="col" { "Token" } th scope="col" { "Trust left" } th scope="col" { "Since" }
                        th.num scope="col" { "Standing" }
                    } }
                    tbody { @for view in found.iter().take(SHOWN) { (row(view, seen, several, now, wall)) } }
                }
                @if found.len() > SHOWN {
                    p.empty { (found.len() - SHOWN) " more are not shown; the filter finds them." }
                }
            }
        }
    }
}

fn row(view: &ElectionView, seen: &Seen, several: bool, now: Moment, wall: i64) -> Markup {
    let holders: Vec<_> = view.holders().collect();
    let newest = holders.iter().map(|(lease, _)| *lease).max_by_key(|lease| lease.token);
    // Of several leaders, the one with the least trust left.
    let least = holders
        .iter()
        .map(|(_, holder)| (parts::trust_left(holder, seen, now), holder.lease() * 2 / 3))
        .min();
    html! {
        tr data-key=(format!("row-{}/{}", view.key.namespace, view.key.name)) data-says=(parts::says(view)) {
            th scope="row" {
                span {
                    a href=(parts::href(&view.key, "")) { (view.key.name) }
                    @if several { " " span.chip { (view.key.namespace) } }
                }
            }
            td data-label="State" { (parts::election_state(view, seen, now)) }
            td data-label="Leader" {
                @if let Some(pause) = view.paused.as_ref().filter(|_| holders.is_empty()) {
                    span { span.soft { "by " } (pause.by) @if !pause.reason.is_empty() { span.soft { ": " (pause.reason) } } }
                } @else if holders.is_empty() {
                    span.soft { "–" }
                } @else {
                    span {
                        @for (at, (_, holder)) in holders.iter().take(3).enumerate() {
                            @if at > 0 { ", " } span.strong { (parts::holder_id(view, holder)) }
                        }
                        @if holders.len() > 3 { span.soft { " and " (holders.len() - 3) " more" } }
                    }
                }
            }
            td.none[newest.is_none()] data-label="Token" { @match newest { Some(lease) => (parts::token(lease)), None => span.soft { "–" } } }
            td.none[least.is_none()] data-label="Trust left" {
                @if let Some((left, whole)) = least {
                    (parts::trust(left, whole, view.key.name.as_str(), seen))
                } @else { span.soft { "–" } }
            }
            td.nowrap.none[newest.is_none()] data-label="Since" {
                @match newest.and_then(|lease| lease.granted_at_ms) { Some(at) => (words::ago(at, wall)), None => span.soft { "–" } }
            }
            td.num data-label="Standing" { (view.candidates.iter().filter(|c| c.session.live && !c.observer).count()) }
        }
    }
}

/// The replicas, for those who may see where they are.
fn servers<'s>(seen: &'s Seen, visit: &Visit) -> Option<&'s Arc<Entry>> {
    let view = seen.elections.get(&*SERVERS)?;
    visit.may(Verb::Read, Some(&view.key.namespace)).then_some(view)
}

fn replicas(app: &App, seen: &Seen, visit: &Visit) -> Option<Markup> {
    let view = servers(seen, visit)?;
    let now = app.runtime.now();
    let mut candidates: Vec<_> = view.candidates.iter().filter(|c| c.session.owner.is_none()).collect();
    candidates.sort_by(|a, b| tenure::election::by_rank(a, b));
    let about = |candidate: &tenure::port::CandidateView, key: &str| {
        candidate.metadata.get(key).cloned().unwrap_or_else(|| "–".into())
    };
    Some(html! {
        section.card aria-labelledby="replicas" {
            header { h2 #replicas { "Replicas" } }
            table.stack {
                thead { tr {
                    th scope="col" { "Name" } th scope="col" { "Address" } th scope="col" { "Version" }
                    th scope="col" { "Last seen" } th scope="col" { "Role" }
                } }
                tbody {
                    @for candidate in candidates {
                        @let leads = view.held_by(&candidate.session.id).next().is_some();
                        tr data-key=(candidate.session.id) .leads[leads] {
                            th scope="row" { (candidate.id) }
                            td.mono data-label="Address" { (parts::breakable(&about(candidate, "address"))) }
                            td data-label="Version" { (about(candidate, "version")) }
                            td.nowrap data-label="Last seen" { (last_beat(seen, candidate, now)) }
                            td data-label="Role" { @if leads { (parts::state("good", "keeps house")) } @else { (parts::state("idle", "stands by")) } }
                        }
                    }
                }
            }
        }
    })
}

/// When a candidate was last seen to beat, by this server's own clock.
pub(super) fn last_beat(seen: &Seen, candidate: &tenure::port::CandidateView, now: Moment) -> Markup {
    html! {
        @match seen.sessions.get(&candidate.session.id) {
            Some(sight) => {
                @match now.since(sight.moved).as_millis() as i64 {
                    0..1000 => "just now",
                    age => { (words::lasted(age)) " ago" },
                }
            },
            // It came after the last look at the beats.
            None if candidate.session.live => "just now",
            None => (parts::state("bad", "gone")),
        }
    }
}

fn store(app: &App, seen: &Seen, findings: Option<&[Finding]>) -> Markup {
    let promises = app.store.promises();
    html! {
        section.card aria-labelledby="store" {
            header {
                h2 #store { "Store" }
                @if seen.trouble.is_some() { (parts::state("bad", "does not answer")) } @else { (parts::state("good", "answers")) }
            }
            div.body {
                dl.facts {
                    div { dt { "Backend" } dd { (promises.backend) @if seen.epoch > 0 { ", epoch " (seen.epoch) } } }
                    div { dt { "Last look took" } dd { (latency(seen)) } }
                    div { dt { "At most one leader" } dd { (promises.at_most_one) } }
                    div { dt { "In a netsplit" } dd { (promises.netsplit) } }
                    div { dt { "After a crash" } dd { (promises.after_crash) } }
                }
                @if let Some(findings) = findings.filter(|findings| !findings.is_empty()) { (examined(findings)) }
            }
        }
    }
}

/// What an examination of the store found, in the words of `tenure doctor`.
fn examined(findings: &[Finding]) -> Markup {
    let worst = findings.iter().filter(|finding| finding.verdict != Verdict::Good).count();
    html! {
        details #examined open[worst > 0] {
            summary { (words::count(findings.len(), "thing")) " examined, " @if worst == 0 { "all good" } @else { (worst) " could be better" } }
            ul.findings {
                @for finding in findings {
                    li {
                        @match finding.verdict {
                            Verdict::Good => (parts::state("good", &finding.check)),
                            Verdict::Fair => (parts::state("idle", &finding.check)),
                            Verdict::Bad => (parts::state("bad", &finding.check)),
                        }
                        " " (finding.value)
                        @if !finding.advice.is_empty() { p.soft.small { (finding.advice) } }
                    }
                }
            }
        }
    }
}
