//! The page of one election: leaders, candidates, terms and activity.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde::Deserialize;
use tenure::port::{
    CandidateView, ElectionView, ErrorKind, LeaseView, Permission, SessionView, StoreError, Term,
};
use tenure::rules::election::{by_rank, is_eligible};
use tenure::{BootInstant, ElectionKey, Name};

use super::election_actions::Action;
use super::extract::PageParams;
use super::layout::{PageContext, page, problem_page};
use super::{audit, components, format, home, timeline};
use crate::App;
use crate::problem::Problem;
use crate::snapshot::elections::ElectionsSnapshot;

/// Number of terms in the table; the chart shows all terms of the snapshot.
const LISTED: usize = 12;
/// Number of audit entries of the namespace that are searched for this election.
const ENTRIES: u32 = 200;
/// Timeout of a store request of a page.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The query of an election's page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ElectionPageQuery {
    #[serde(default = "Name::default_namespace")]
    pub(super) namespace: Name,
}

pub(super) async fn show(
    State(app): State<App>,
    ctx: PageContext,
    PageParams(Path(election)): PageParams<Path<Name>>,
    PageParams(Query(query)): PageParams<Query<ElectionPageQuery>>,
) -> Response {
    let key = ElectionKey::new(query.namespace, election);
    let snapshot = match app.elections.ready().await {
        Ok(snapshot) => snapshot,
        Err(error) => return problem_page(&ctx, &error.into()),
    };
    let Some(view) = snapshot.elections.get(&key) else { return problem_page(&ctx, &unknown(&key)) };
    let terms = with_timeout(app.elections.terms(view)).await;
    let entries = with_timeout(app.store.audit_entries(Some(&key.namespace), None, ENTRIES)).await;
    let (now, wall) = (app.runtime.now(), app.runtime.wall_ms());
    let content = html! {
        (head(view, &ctx, &snapshot, now))
        @if let Some(message) = ctx.message().and_then(message_text) { (components::notice("good", html! { p { (message) } })) }
        div #pause data-live { (paused(view, wall)) }
        div #leaders .leaders .alone[view.slots == 1] data-live {
            @for lease in &view.leases { (leader_card(view, lease, &snapshot, now, wall)) }
        }
        div #candidates data-live { (candidates(view, &snapshot, &ctx, now, wall)) }
        div #terms data-live { (terms_card(view, terms, wall)) }
        div #activity data-live { (audit::of(entries.as_deref(), |entry| audit::resource(entry) == "election" && entry.target == key.name.as_str(), wall)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, key.name.as_str(), "Elections", content)
}

/// The problem: no such election.
pub(super) fn unknown(key: &ElectionKey) -> Problem {
    let detail = format!("no such election: {key}");
    Problem::new(StatusCode::NOT_FOUND, "no-such-election", detail).remedy("See Elections for the list.")
}

/// Run a store request with a timeout.
pub(super) async fn with_timeout<T>(
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late = || StoreError::new(ErrorKind::Timeout, format!("the store did not answer within {TIMEOUT:?}"));
    tokio::time::timeout(TIMEOUT, request).await.unwrap_or_else(|_| Err(late()))
}

/// The text of a one-time message. Unknown words show nothing, because the cookie is not signed.
fn message_text(message: &str) -> Option<&'static str> {
    Some(match message {
        "transfer" => {
            "Transfer requested. The leader finishes its work first; this page updates when leadership moves."
        }
        "resign" => {
            "Resignation requested. The leader finishes its work first; this page updates when it resigns."
        }
        "pause" => {
            "Paused. The leader finishes its work and stops; no candidate leads until you resume the election."
        }
        "resume" => "Resumed. The candidates elect a leader.",
        "already" => "No change: already in that state.",
        _ => return None,
    })
}

fn head(view: &ElectionView, ctx: &PageContext, snapshot: &ElectionsSnapshot, now: BootInstant) -> Markup {
    let key = &view.key;
    let operator = ctx.may(Permission::Admin, Some(&key.namespace));
    html! {
        div.head {
            div {
                p.crumb { a href="/" { "Elections" } " / " (key.namespace) }
                div.title {
                    h1 { (key.name) }
                    div #state data-live data-announce=(components::announcement(view)) { (components::election_state(view, snapshot, now)) }
                }
            }
            @if operator {
                div #actions .buttons data-live role="group" aria-label="Actions" {
                    @if view.paused.is_some() {
                        a.button.main data-key="resume" data-confirm href=(components::href(key, Action::Resume.word())) { "Resume…" }
                    }
                    @if view.holders().next().is_some() {
                        a.button data-key="transfer" data-confirm href=(components::href(key, Action::Transfer.word())) { "Transfer…" }
                        a.button data-key="resign" data-confirm href=(components::href(key, Action::Resign.word())) { "Resign…" }
                    }
                    @if view.paused.is_none() {
                        a.button data-key="pause" data-confirm href=(components::href(key, Action::Pause.word())) { "Pause…" }
                    }
                }
            }
        }
    }
}

fn paused(view: &ElectionView, wall: i64) -> Markup {
    html! {
        @if let Some(pause) = &view.paused {
            (components::notice("warn", html! {
                p { span.strong { "Paused by " (pause.paused_by) } ", " (format::ago(pause.paused_at_ms, wall)) ". No candidate leads until the election is resumed." }
                @if !pause.reason.is_empty() { p { "“" (pause.reason) "”" } }
            }))
        }
    }
}

fn leader_card(
    view: &ElectionView,
    lease: &LeaseView,
    snapshot: &ElectionsSnapshot,
    now: BootInstant,
    wall: i64,
) -> Markup {
    let holder = lease.holder.as_ref().filter(|holder| holder.live);
    html! {
        section.card.leader-card.vacant[holder.is_none()] data-key=(format!("slot-{}", lease.slot)) {
            @match holder {
                Some(holder) => (held(view, lease, holder, snapshot, now, wall)),
                None => {
                    div {
                        p.soft.small { (slot_name(view, lease)) }
                        p.name.soft { "No leader" }
                    }
                    dl.facts {
                        div { dt { "Last token" } dd { (components::token(lease)) } }
                        div { dt { "Next leader" } dd { (successor(view, lease)) } }
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
    snapshot: &ElectionsSnapshot,
    now: BootInstant,
    wall: i64,
) -> Markup {
    let left = components::lease_remaining(holder, snapshot, now);
    html! {
        div {
            p.soft.small { (slot_name(view, lease)) }
            p.name { (components::holder_name(view, holder)) }
        }
        div {
            p.soft.small { "Lease remaining" }
            (components::lease_bar(left, holder.lease() * 2 / 3, components::holder_name(view, holder), snapshot))
        }
        dl.facts {
            div { dt { "Token" } dd { (components::token(lease)) } }
            div { dt { "Start reason" } dd { (lease.start_reason.as_str()) } }
            div { dt { "Leader since" } dd { @match lease.granted_at_ms { Some(at) => (format::ago(at, wall)), None => "–" } } }
            div { dt { "Lease duration" } dd { (format::seconds(holder.lease_ms)) } }
        }
    }
}

fn slot_name(view: &ElectionView, lease: &LeaseView) -> String {
    if view.slots > 1 { format!("Slot {}", lease.slot) } else { "Leader".into() }
}

fn successor(view: &ElectionView, lease: &LeaseView) -> Markup {
    let named = lease.reserved_for.as_ref().and_then(|session| view.candidate(session));
    html! {
        @if view.paused.is_some() { "none (paused)" }
        @else if let Some(candidate) = named { (candidate.name) }
        @else if view.candidates.iter().any(|candidate| is_eligible(candidate, &view.required_capabilities)) { "the highest-ranked candidate" }
        @else { "none (no candidates)" }
    }
}

fn candidates(
    view: &ElectionView,
    snapshot: &ElectionsSnapshot,
    ctx: &PageContext,
    now: BootInstant,
    wall: i64,
) -> Markup {
    let mut ranked: Vec<_> = view.candidates.iter().collect();
    ranked.sort_by(|a, b| by_rank(a, b));
    let operator = ctx.may(Permission::Admin, Some(&view.key.namespace));
    let led = view.holders().next().is_some();
    html! {
        section.card aria-labelledby="ranked" {
            header {
                h2 #ranked { "Candidates, by rank" }
                @if !view.required_capabilities.is_empty() {
                    div.chips { span.soft.small { "Required capabilities" } @for need in &view.required_capabilities { span.chip { (need) } } }
                }
            }
            @if ranked.is_empty() {
                p.empty { "No candidates." }
            } @else {
                table.stack {
                    thead { tr {
                        th scope="col" { "Candidate" } th scope="col" { "Role" } th.num scope="col" { "Priority" }
                        th scope="col" { "Last heartbeat" } th scope="col" { "Connected through" } th scope="col" { "Details" }
                        @if operator { th scope="col" { span.hidden { "Action" } } }
                    } }
                    tbody {
                        @for candidate in ranked { (candidate_row(view, candidate, snapshot, operator && led, operator, now, wall)) }
                    }
                }
            }
        }
    }
}

fn candidate_row(
    view: &ElectionView,
    candidate: &CandidateView,
    snapshot: &ElectionsSnapshot,
    movable: bool,
    operator: bool,
    now: BootInstant,
    wall: i64,
) -> Markup {
    let leads = view.held_by(&candidate.session.id).next();
    let able = is_eligible(candidate, &view.required_capabilities);
    let href =
        format!("{}&to={}", components::href(&view.key, Action::Transfer.word()), candidate.session.id);
    html! {
        tr data-key=(candidate.session.id) .leader[leads.is_some()] {
            th scope="row" { span title={ "session " (candidate.session.id) ", joined " (format::utc(candidate.joined_at_ms)) } { (candidate.name) } }
            td data-label="Role" {
                @match leads {
                    Some((_, token)) => span { (components::state("good", "Leader")) " " span.soft.small { "token " } span.token { (token) } },
                    None if candidate.observer => (components::state("idle", "Observer")),
                    None if !able => (components::state("bad", "Missing capabilities")),
                    None => (components::state("idle", "Follower")),
                }
            }
            td.num data-label="Priority" { (candidate.priority) }
            td.nowrap data-label="Last heartbeat" { (home::last_heartbeat(snapshot, candidate, now)) }
            td data-label="Connected through" {
                @match &candidate.session.owner {
                    Some(owner) => span { "server, as principal " (owner) },
                    None => "the store",
                }
            }
            td.wide data-label="Details" {
                div.chips {
                    @for capability in &candidate.capabilities { span.chip.lead title="Capability" { (capability) } }
                    @for (key, value) in &candidate.metadata { span.chip { (key) " " span.strong { (value) } } }
                    span.soft.small { "joined " (format::ago(candidate.joined_at_ms, wall)) }
                }
            }
            @if operator {
                td.num.whole {
                    @if movable && leads.is_none() && able {
                        a.button.slim data-confirm href=(href) { "Transfer leadership…" span.hidden { " " (candidate.name) } }
                    }
                }
            }
        }
    }
}

fn terms_card(view: &ElectionView, terms: Result<Arc<[Term]>, StoreError>, wall: i64) -> Markup {
    html! {
        section.card aria-labelledby="history" {
            header { h2 #history { "Terms" } (timeline::legend()) }
            @match terms {
                Err(error) => div.body { (components::notice("warn", html! { p { "Could not load terms: " (error.kind) "." } })) },
                Ok(terms) if terms.is_empty() => p.empty { "No terms yet." },
                Ok(terms) => {
                    div.body { (timeline::chart(&terms, view.slots, wall)) }
                    (listed(view, &terms, wall))
                },
            }
        }
    }
}

fn listed(view: &ElectionView, terms: &[Term], wall: i64) -> Markup {
    html! {
        table.stack {
            caption.hidden { "Recent terms, newest first" }
            thead { tr {
                th scope="col" { "Leader" } th scope="col" { "Token" } @if view.slots > 1 { th.num scope="col" { "Slot" } }
                th scope="col" { "Start reason" } th scope="col" { "Started" } th scope="col" { "Duration" } th scope="col" { "End reason" }
            } }
            tbody {
                @for term in terms.iter().take(LISTED) {
                    tr data-key=(format!("term-{}-{}", term.slot, term.token)) {
                        th scope="row" { (term.candidate_name) }
                        td data-label="Token" { span.token { (term.token) } }
                        @if view.slots > 1 { td.num data-label="Slot" { (term.slot) } }
                        td data-label="Start reason" { (term.start_reason.as_str()) }
                        td.nowrap data-label="Started" { (format::ago(term.started_at_ms, wall)) }
                        td.nowrap data-label="Duration" { (format::elapsed(term.ended_at_ms.unwrap_or(wall) - term.started_at_ms)) }
                        td data-label="End reason" {
                            @match term.end_reason.as_deref() {
                                None => (components::state("good", "Leader")),
                                Some("expired") => (components::state("bad", "Session expired")),
                                Some(end) => (end),
                            }
                        }
                    }
                }
            }
        }
    }
}
