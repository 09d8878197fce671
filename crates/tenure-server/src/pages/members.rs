//! The members of the cluster that this server has joined by gossip, and what they lead softly.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use tenure::backend::gossip::{Dropped, Gossip, Member, Presence, SoftElectionView};
use tenure::port::Verb;
use tenure::soft::Stance;

use super::frame::{Visit, page, trouble};
use super::{parts, words};
use crate::App;

/// More than this are not read by anybody.
const SHOWN: usize = 200;

pub(super) async fn show(State(app): State<App>, visit: Visit) -> Response {
    let Some(gossip) = app.gossip.as_ref() else { return trouble(&visit, &crate::api::no_gossip()) };
    let wall = app.runtime.wall_ms();
    let elections = gossip.elections();
    let readable = elections.iter().filter(|view| visit.may(Verb::Read, Some(&view.election.namespace)));
    let readable: Vec<_> = readable.collect();
    let content = html! {
        div.head { div {
            h1 { "Members" }
            p { "Who is there, as this server hears it by gossip. Others may see it differently for a while, and in a netsplit for as long as it lasts." }
        } }
        div #members data-live { (members(gossip, wall)) }
        div #soft data-live { (soft(&readable, wall)) }
        noscript { p { a href=(visit.here) { "Refresh" } } }
    };
    page(&visit, "Members", "Members", content)
}

fn members(gossip: &Gossip, wall: i64) -> Markup {
    let roster = gossip.roster();
    let mut known: Vec<_> = roster.all().filter(|member| !member.guest).collect();
    known.sort_by(|a, b| (!a.is_live(), &a.name, &a.id).cmp(&(!b.is_live(), &b.name, &b.id)));
    let live = known.iter().filter(|member| member.is_live()).count();
    let dropped: Vec<_> = Dropped::ALL.into_iter().filter(|why| gossip.dropped(*why) > 0).collect();
    html! {
        section.card aria-labelledby="all" {
            header { h2 #all { (live) " of " (words::count(known.len(), "member")) " of " (gossip.cluster()) " live" } }
            table.stack {
                thead { tr {
                    th scope="col" { "Member" } th scope="col" { "State" } th scope="col" { "Joined" }
                    th scope="col" { "Address" } th scope="col" { "Tells" }
                } }
                tbody { @for member in known.iter().take(SHOWN) { (row(member, gossip, wall)) } }
            }
            @if known.len() > SHOWN { p.empty { (known.len() - SHOWN) " more are not shown." } }
            @if !dropped.is_empty() {
                p.empty {
                    "Datagrams that were not believed: "
                    @for (at, why) in dropped.iter().enumerate() {
                        @if at > 0 { ", " } (gossip.dropped(*why)) " " (why.as_str())
                    }
                    "."
                }
            }
        }
    }
}

fn row(member: &Arc<Member>, gossip: &Gossip, wall: i64) -> Markup {
    let (kind, word) = match member.presence {
        Presence::Live => ("good", "live"),
        Presence::Silent => ("warn", "silent"),
        _ => ("off", "left"),
    };
    let told: Vec<_> = member.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let joined = i64::try_from(member.generation).unwrap_or(i64::MAX);
    html! {
        tr data-key=(format!("member-{}", member.id)) .gone[!member.is_live()] {
            th scope="row" { (member.name) @if member.id == gossip.id() { " " span.soft { "(this server)" } } }
            td data-label="State" { (parts::state(kind, word)) }
            td data-label="Joined" { (words::ago(joined, wall)) }
            td data-label="Address" { (parts::breakable(&member.address.to_string())) }
            td data-label="Tells" { (parts::chips(&told)) }
        }
    }
}

fn soft(elections: &[&SoftElectionView], wall: i64) -> Markup {
    html! {
        section.card aria-labelledby="led" {
            header { h2 #led { "Soft elections" } }
            @if elections.is_empty() { p.empty { "Nobody stands for any." } }
            @for view in elections {
                div.body {
                    h3 { (view.election) }
                    @if view.leaders().count() > 1 {
                        (parts::notice("warn", html! { p { "Several lead at once: a netsplit has just healed, or somebody does not hear all. It passes when they do." } }))
                    }
                    ul { @for standing in &view.candidates {
                        li {
                            (standing.member.name) " "
                            @match standing.stance {
                                Stance::Leading => (parts::state("good", "leads")),
                                Stance::Ready => (parts::state("next", "ready")),
                                Stance::Standing => (parts::state("later", "stands")),
                            }
                            " " span.soft { "since " (words::ago(standing.since_ms, wall)) ", priority " (standing.rank.priority) }
                        }
                    } }
                }
            }
            p.empty { "No token, and nobody is kept from leading beside somebody else: use a store where that would do harm." }
        }
    }
}
