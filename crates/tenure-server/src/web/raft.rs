//! The members of a Raft store: leader, voters, learners and lag.

use maud::{Markup, html};
use tenure::port::{Permission, RaftStatus};

use super::election::with_timeout;
use super::layout::PageContext;
use super::{components, format};
use crate::App;
use crate::snapshot::elections::ElectionsSnapshot;

/// The status of the Raft cluster. `None` if the principal may not read all namespaces, or the store is
/// unavailable or not Raft.
pub(super) async fn status(app: &App, snapshot: &ElectionsSnapshot, ctx: &PageContext) -> Option<RaftStatus> {
    match snapshot.error.is_none() && ctx.may(Permission::Read, None) {
        true => with_timeout(app.store.raft_status()).await.ok().flatten(),
        false => None,
    }
}

pub(super) fn members(cluster: &RaftStatus) -> Markup {
    html! {
        section.card #raft aria-labelledby="members" {
            header {
                h2 #members { "Raft" }
                @match cluster.leader {
                    Some(leader) => (components::state("good", format!("Leader: node {leader}, term {}", cluster.term))),
                    None => (components::state("bad", "No quorum")),
                }
            }
            table.stack {
                thead { tr {
                    th scope="col" { "Node" } th scope="col" { "Address" } th scope="col" { "Role" } th scope="col" { "Lag (entries)" }
                } }
                tbody {
                    @for member in &cluster.members {
                        @let leads = cluster.leader == Some(member.node_id);
                        tr data-key=(format!("node-{}", member.node_id)) .leader[leads] {
                            th scope="row" { (member.node_id) @if member.node_id == cluster.reported_by { span.soft { " (this server)" } } }
                            td.mono data-label="Address" { @if member.address.is_empty() { "–" } @else { (components::breakable(&member.address)) } }
                            td data-label="Role" {
                                @if leads { (components::state("good", "Leader")) }
                                @else if member.voter { (components::state("idle", "Voter")) }
                                @else { (components::state("idle", "Learner")) }
                            }
                            td.num data-label="Lag (entries)" {
                                @match member.lag_entries {
                                    Some(entries) => (format::number(entries)),
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
