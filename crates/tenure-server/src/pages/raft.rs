//! The members of the store, where it is a cluster of its own: who leads it, who votes, who is behind.

use maud::{Markup, html};
use tenure::port::{Membership, Verb};

use super::election::within;
use super::frame::Visit;
use super::{parts, words};
use crate::App;
use crate::board::Seen;

/// The members, for those who may see everything; nothing while the store does not answer.
pub(super) async fn seen(app: &App, seen: &Seen, visit: &Visit) -> Option<Membership> {
    match seen.trouble.is_none() && visit.may(Verb::Read, None) {
        true => within(app.store.membership()).await.ok().flatten(),
        false => None,
    }
}

pub(super) fn members(cluster: &Membership) -> Markup {
    html! {
        section.card #raft aria-labelledby="members" {
            header {
                h2 #members { "Raft" }
                @match cluster.leader {
                    Some(leader) => (parts::state("good", format!("node {leader} leads, term {}", cluster.term))),
                    None => (parts::state("bad", "no majority")),
                }
            }
            table.stack {
                thead { tr {
                    th scope="col" { "Node" } th scope="col" { "Address" } th scope="col" { "Role" } th scope="col" { "Behind" }
                } }
                tbody {
                    @for member in &cluster.members {
                        @let leads = cluster.leader == Some(member.node);
                        tr data-key=(format!("node-{}", member.node)) .leads[leads] {
                            th scope="row" { (member.node) @if member.node == cluster.node { span.soft { " (here)" } } }
                            td.mono data-label="Address" { @if member.place.is_empty() { "–" } @else { (parts::breakable(&member.place)) } }
                            td data-label="Role" {
                                @if leads { (parts::state("good", "leads")) }
                                @else if member.votes { (parts::state("idle", "votes")) }
                                @else { (parts::state("idle", "learns")) }
                            }
                            td.num data-label="Behind" {
                                @match member.behind {
                                    Some(entries) => (words::number(entries)),
                                    None => "–",
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
