//! One election: leaders, candidates, terms, and what operators did to it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::election::{by_rank, may_lead};
use tenure::port::{CandidateView, ElectionView, LeaseView, SessionView, StoreError, Term, Trouble, Verb};
use tenure::{ElectionKey, Moment, Name};

use super::act::Action;
use super::frame::{Visit, page, trouble};
use super::given::Got;
use super::{audit, home, parts, timeline, words};
use crate::App;
use crate::board::Seen;
use crate::problem::Problem;

/// How many terms are listed; all that the board has are drawn.
const LISTED: usize = 12;
/// Among how many deeds of a namespace those of this election are looked for.
const DEEDS: u32 = 200;
/// How long a page waits for the store.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the address of an election's page may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
}

pub(super) async fn show(
    State(app): State<App>,
    visit: Visit,
    Got(Path(election)): Got<Path<Name>>,
    Got(Query(asked)): Got<Query<Asked>>,
) -> Response {
    let key = ElectionKey::new(asked.namespace, election);
    let seen = match app.board.known().await {
        Ok(seen) => seen,
        Err(error) => return trouble(&visit, &error.into()),
    };
    let Some(view) = seen.elections.get(&key) else { return trouble(&visit, &unknown(&key)) };
    let terms = within(app.board.terms(view)).await;
    let deeds = within(app.store.deeds(Some(&key.namespace), None, DEEDS)).await;
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let content = html! {
        (head(view, &visit, &seen, now))
        @if let Some(done) = visit.done().and_then(outcome) { (parts::notice("good", html! { p { (done) } })) }
        div #pause data-live { (paused(view, wall)) }
        div #leaders .leaders .alone[view.slots == 1] data-live {
            @for lease in &view.leases { (seat(view, lease, &seen, now, wall)) }
        }
        div #candidates data-live { (candidates(view, &seen, &visit, now, wall)) }
        div #terms data-live { (history(view, terms, wall)) }
        div #deeds data-live { (audit::of(deeds.as_deref(), |deed| audit::sort(deed).is_empty() && deed.target == key.name.as_str(), wall)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, key.name.as_str(), "Elections", content)
}

/// There is no such election.
pub(super) fn unknown(key: &ElectionKey) -> Problem {
    let detail = format!("nobody ever stood for {key}");
    Problem::new(StatusCode::NOT_FOUND, "no-such-election", detail)
        .remedy("the front page lists those that there are")
}

/// What the store says within a bound.
pub(super) async fn within<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = || StoreError::new(Trouble::Timeout, format!("the store did not answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, request).await.unwrap_or_else(|_| Err(late()))
}

/// What came of a deed. Only what is written here is ever shown: an address must not put words into our mouth.
fn outcome(done: &str) -> Option<&'static str> {
    Some(match done {
        "transfer" => {
            "Asked. The leader finishes what it does, then hands over; this page shows it when it has happened."
        }
        "resign" => {
            "Asked. The leader finishes what it does, then resigns; this page shows it when it has happened."
        }
        "pause" => {
            "Paused. Whoever leads finishes what it does, then stops; nobody will lead until you resume it."
        }
        "resume" => "Resumed. The candidates elect a leader by themselves.",
        "already" => "Nothing to do: it was so already.",
        _ => return None,
    })
}

fn head(view: &ElectionView, visit: &Visit, seen: &Seen, now: Moment) -> Markup {
    let key = &view.key;
    let operator = visit.may(Verb::Admin, Some(&key.namespace));
    html! {
        div.head {
            div {
                p.crumb { a href="/" { "Elections" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-says=(parts::says(view)) { (parts::election_state(view, seen, now)) }
                }
            }
            @if operator {
                div #actions .buttons data-live role="group" aria-label="What an operator can do" {
                    @if view.paused.is_some() {
                        a.button.main data-key="resume" data-confirm href=(parts::href(key, Action::Resume.word())) { "Resume…" }
                    }
                    @if view.holders().next().is_some() {
                        a.button data-key="transfer" data-confirm href=(parts::href(key, Action::Transfer.word())) { "Transfer…" }
                        a.button data-key="resign" data-confirm href=(parts::href(key, Action::Resign.word())) { "Resign…" }
                    }
                    @if view.paused.is_none() {
                        a.button data-key="pause" data-confirm href=(parts::href(key, Action::Pause.word())) { "Pause…" }
                    }
                }
            }
        }
    }
}

fn paused(view: &ElectionView, wall: i64) -> Markup {
    html! {
        @if let Some(pause) = &view.paused {
            (parts::notice("warn", html! {
                p { span.strong { "Paused by " (pause.by) } ", " (words::ago(pause.at_ms, wall)) ". Nobody may lead until it is resumed." }
                @if !pause.reason.is_empty() { p { "“" (pause.reason) "”" } }
            }))
        }
    }
}

fn seat(view: &ElectionView, lease: &LeaseView, seen: &Seen, now: Moment, wall: i64) -> Markup {
    let holder = lease.holder.as_ref().filter(|holder| holder.live);
    html! {
        section.card.seat.free[holder.is_none()] data-key=(format!("slot-{}", lease.slot)) {
            @match holder {
                Some(holder) => (held(view, lease, holder, seen, now, wall)),
                None => {
                    div {
                        p.soft.small { (place(view, lease)) }
                        p.who.soft { "Nobody" }
                    }
                    dl.facts {
                        div { dt { "Last token" } dd { (parts::token(lease)) } }
                        div { dt { "Next" } dd { (successor(view, lease)) } }
                    }
                },
            }
        }
    }
}

fn held(
    view: &ElectionView,
    lease: &LeaseView,
    holder: &SessionView,
    seen: &Seen,
    now: Moment,
    wall: i64,
) -> Markup {
    let left = parts::trust_left(holder, seen, now);
    html! {
        div {
            p.soft.small { (place(view, lease)) }
            p.who { (parts::holder_id(view, holder)) }
        }
        div {
            p.soft.small { "Trust left" }
            (parts::trust(left, holder.lease() * 2 / 3, parts::holder_id(view, holder), seen))
        }
        dl.facts {
            div { dt { "Token" } dd { (parts::token(lease)) } }
            div { dt { "Came by" } dd { (lease.via.as_str()) } }
            div { dt { "Since" } dd { @match lease.granted_at_ms { Some(at) => (words::ago(at, wall)), None => "–" } } }
            div { dt { "Lease" } dd { (words::left(holder.lease_ms)) } }
        }
    }
}

fn place(view: &ElectionView, lease: &LeaseView) -> String {
    if view.slots > 1 { format!("Slot {}", lease.slot) } else { "Leader".into() }
}

fn successor(view: &ElectionView, lease: &LeaseView) -> Markup {
    let named = lease.reserved.as_ref().and_then(|session| view.candidate(session));
    html! {
        @if view.paused.is_some() { "nobody: paused" }
        @else if let Some(candidate) = named { (candidate.id) }
        @else if view.candidates.iter().any(|candidate| may_lead(candidate, &view.requires)) { "the first by rank" }
        @else { "nobody stands" }
    }
}

fn candidates(view: &ElectionView, seen: &Seen, visit: &Visit, now: Moment, wall: i64) -> Markup {
    let mut ranked: Vec<_> = view.candidates.iter().collect();
    ranked.sort_by(|a, b| by_rank(a, b));
    let operator = visit.may(Verb::Admin, Some(&view.key.namespace));
    let led = view.holders().next().is_some();
    html! {
        section.card aria-labelledby="ranked" {
            header {
                h2 #ranked { (words::count(ranked.len(), "candidate")) ", by rank" }
                @if !view.requires.is_empty() {
                    div.chips { span.soft.small { "A leader must be able to" } @for need in &view.requires { span.chip { (need) } } }
                }
            }
            @if ranked.is_empty() {
                p.empty { "Nobody stands." }
            } @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Candidate" } th scope="col" { "Role" } th.num scope="col" { "Priority" }
                        th scope="col" { "Last beat" } th scope="col" { "Through" } th scope="col" { "About" }
                        @if operator { th scope="col" { span.hidden { "Action" } } }
                    } }
                    tbody {
                        @for candidate in ranked { (standing(view, candidate, seen, operator && led, operator, now, wall)) }
                    }
                }
            }
        }
    }
}

fn standing(
    view: &ElectionView,
    candidate: &CandidateView,
    seen: &Seen,
    movable: bool,
    operator: bool,
    now: Moment,
    wall: i64,
) -> Markup {
    let leads = view.held_by(&candidate.session.id).next();
    let able = may_lead(candidate, &view.requires);
    let href = format!("{}&to={}", parts::href(&view.key, Action::Transfer.word()), candidate.session.id);
    html! {
        tr data-key=(candidate.session.id) .leads[leads.is_some()] {
            th scope="row" { span title={ "session " (candidate.session.id) ", joined " (words::utc(candidate.joined_at_ms)) } { (candidate.id) } }
            td data-label="Role" {
                @match leads {
                    Some((_, token)) => span { (parts::state("good", "leads")) " " span.soft.small { "token " } span.token { (token) } },
                    None if candidate.observer => (parts::state("idle", "observer")),
                    None if !able => (parts::state("bad", "not able")),
                    None => (parts::state("idle", "follower")),
                }
            }
            td.num data-label="Priority" { (candidate.priority) }
            td.nowrap data-label="Last beat" { (home::last_beat(seen, candidate, now)) }
            td data-label="Through" {
                @match &candidate.session.owner {
                    Some(owner) => span { "a server, as " (owner) },
                    None => "the store",
                }
            }
            td.wide data-label="About" {
                div.chips {
                    @for capability in &candidate.capabilities { span.chip.lead title="It is able to" { (capability) } }
                    @for (key, value) in &candidate.metadata { span.chip { (key) " " span.strong { (value) } } }
                    span.soft.small { "joined " (words::ago(candidate.joined_at_ms, wall)) }
                }
            }
            @if operator {
                td.num.whole {
                    @if movable && leads.is_none() && able {
                        a.button.slim data-confirm href=(href) { "Make leader…" span.hidden { " " (candidate.id) } }
                    }
                }
            }
        }
    }
}

fn history(view: &ElectionView, terms: Result<Arc<[Term]>, StoreError>, wall: i64) -> Markup {
    html! {
        section.card aria-labelledby="history" {
            header { h2 #history { "Terms" } (timeline::legend()) }
            @match terms {
                Err(error) => div.body { (parts::notice("warn", html! { p { "The terms can not be read now: " (error.kind) "." } })) },
                Ok(terms) if terms.is_empty() => p.empty { "Nobody has led yet." },
                Ok(terms) => {
                    div.body { (timeline::picture(&terms, view.slots, wall)) }
                    (listed(view, &terms, wall))
                },
            }
        }
    }
}

fn listed(view: &ElectionView, terms: &[Term], wall: i64) -> Markup {
    html! {
        table.stack {
            caption.hidden { "The last terms, the newest first" }
            thead { tr {
                th scope="col" { "Leader" } th scope="col" { "Token" } @if view.slots > 1 { th.num scope="col" { "Slot" } }
                th scope="col" { "Came by" } th scope="col" { "Began" } th scope="col" { "Lasted" } th scope="col" { "Ended" }
            } }
            tbody {
                @for term in terms.iter().take(LISTED) {
                    tr data-key=(format!("term-{}-{}", term.slot, term.token)) {
                        th scope="row" { (term.id) }
                        td data-label="Token" { span.token { (term.token) } }
                        @if view.slots > 1 { td.num data-label="Slot" { (term.slot) } }
                        td data-label="Came by" { (term.via.as_str()) }
                        td.nowrap data-label="Began" { (words::ago(term.began_at_ms, wall)) }
                        td.nowrap data-label="Lasted" { (words::lasted(term.ended_at_ms.unwrap_or(wall) - term.began_at_ms)) }
                        td data-label="Ended" {
                            @match term.end.as_deref() {
                                None => (parts::state("good", "leads")),
                                Some("expired") => (parts::state("bad", "died or fell silent")),
                                Some(end) => (end),
                            }
                        }
                    }
                }
            }
        }
    }
}
