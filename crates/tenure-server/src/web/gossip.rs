//! The gossip cluster of this server: members and soft elections.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use tenure::port::Permission;
use tenure::rules::soft::SoftCandidateState;
use tenure::store::gossip::{DropReason, Gossip, GossipMember, GossipMemberState, SoftElectionView};

use super::layout::{PageContext, page, problem_page};
use super::{components, format};
use crate::App;

/// Maximum number of rows.
const SHOWN: usize = 200;

pub(super) async fn show(State(app): State<App>, ctx: PageContext) -> Response {
    let Some(gossip) = app.gossip.as_ref() else { return problem_page(&ctx, &crate::api::no_gossip()) };
    let wall = app.runtime.wall_ms();
    let elections = gossip.elections();
    let readable = elections.iter().filter(|view| ctx.may(Permission::Read, Some(&view.election.namespace)));
    let readable: Vec<_> = readable.collect();
    let content = html! {
        div.head { div {
            h1 { "Gossip members" }
            p { "Members of the gossip cluster as seen by this server. Other servers may see different members for a while, and during a network split." }
        } }
        div #members data-live { (members(gossip, wall)) }
        div #soft data-live { (soft(&readable, wall)) }
        noscript { p { a href=(ctx.path) { "Refresh" } } }
    };
    page(&ctx, "Gossip members", "Gossip", content)
}

fn members(gossip: &Gossip, wall: i64) -> Markup {
    let roster = gossip.roster();
    let mut known: Vec<_> = roster.all().filter(|member| !member.observer).collect();
    known.sort_by(|a, b| (!a.is_live(), &a.name, &a.id).cmp(&(!b.is_live(), &b.name, &b.id)));
    let live = known.iter().filter(|member| member.is_live()).count();
    let dropped: Vec<_> = DropReason::ALL.into_iter().filter(|why| gossip.dropped(*why) > 0).collect();
    html! {
        section.card aria-labelledby="all" {
            header { h2 #all { (live) " of " (format::count(known.len(), "member")) " of " (gossip.cluster()) " live" } }
            table.stack {
                thead { tr {
                    th scope="col" { "Member" } th scope="col" { "State" } th scope="col" { "Joined" }
                    th scope="col" { "Address" } th scope="col" { "Metadata" }
                } }
                tbody { @for member in known.iter().take(SHOWN) { (row(member, gossip, wall)) } }
            }
            @if known.len() > SHOWN { p.empty { (known.len() - SHOWN) " more." } }
            @if !dropped.is_empty() {
                p.empty {
                    "Dropped messages: "
                    @for (at, why) in dropped.iter().enumerate() {
                        @if at > 0 { ", " } (gossip.dropped(*why)) " " (why.as_str())
                    }
                    "."
                }
            }
        }
    }
}

fn row(member: &Arc<GossipMember>, gossip: &Gossip, wall: i64) -> Markup {
    let (kind, word) = match member.state {
        GossipMemberState::Live => ("good", "Live"),
        GossipMemberState::Failed => ("warn", "Failed"),
        _ => ("off", "Left"),
    };
    let metadata: Vec<_> = member.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let joined = i64::try_from(member.generation).unwrap_or(i64::MAX);
    html! {
        tr data-key=(format!("member-{}", member.id)) .inactive[!member.is_live()] {
            th scope="row" { (member.name) @if member.id == gossip.id() { " " span.soft { "(this server)" } } }
            td data-label="State" { (components::state(kind, word)) }
            td data-label="Joined" { (format::ago(joined, wall)) }
            td data-label="Address" { (components::breakable(&member.address.to_string())) }
            td data-label="Metadata" { (components::chips(&metadata)) }
        }
    }
}

fn soft(elections: &[&SoftElectionView], wall: i64) -> Markup {
    html! {
        section.card aria-labelledby="led" {
            header { h2 #led { "Soft elections" } }
            @if elections.is_empty() { p.empty { "No candidates." } }
            @for view in elections {
                div.body {
                    h3 { (view.election) }
                    @if view.leaders().count() > 1 {
                        (components::notice("warn", html! { p { "Several leaders: a network split has just ended, or messages are delayed. It resolves when all members are connected." } }))
                    }
                    ul { @for candidate in &view.candidates {
                        li {
                            (candidate.member.name) " "
                            @match candidate.state {
                                SoftCandidateState::Leading => (components::state("good", "Leader")),
                                SoftCandidateState::Ready => (components::state("next", "Ready")),
                                SoftCandidateState::Candidate => (components::state("later", "Candidate")),
                            }
                            " " span.soft { "since " (format::ago(candidate.since_ms, wall)) ", priority " (candidate.rank.priority) }
                        }
                    } }
                }
            }
            p.empty { "Soft elections have no token and may have several leaders. Use a store if that is unsafe." }
        }
    }
}
