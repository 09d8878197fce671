//! Gossip members and soft elections, as this server sees them.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use tenure::port::Permission;
use tenure::store::gossip::{DropReason, Gossip};
use utoipa::ToSchema;
use utoipa_axum::routes;

use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

pub(crate) fn routes() -> Routes {
    // Every principal may see the members; elections are limited to what the principal may read.
    Routes::new().api(RequiredPermission::AnyCredential, routes!(get_gossip))
}

/// Gossip cluster as this server sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GossipView {
    /// Name of the cluster.
    #[schema(example = "prod")]
    cluster: String,
    /// Known members, including failed ones and those that left.
    members: Vec<GossipMemberJson>,
    /// Soft elections. They have no tokens and do not exclude a second leader.
    elections: Vec<SoftElection>,
    /// Rejected datagrams by reason: `forged`, `foreign`, `replayed`, `oversized`, `malformed`.
    dropped_messages: BTreeMap<String, u64>,
}

/// Gossip member.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = GossipMember)]
pub(crate) struct GossipMemberJson {
    /// Id, new with every start.
    #[schema(example = "9f1c8a40c7d94f0e")]
    id: String,
    /// Name.
    name: String,
    /// When the member joined, by its own clock in milliseconds since 1970.
    generation: u64,
    /// Address.
    #[schema(example = "10.0.0.3:8370")]
    address: String,
    /// `live`, `failed` or `left`.
    state: String,
    /// Metadata.
    metadata: BTreeMap<String, String>,
    /// Whether this is the responding server.
    #[serde(rename = "self")]
    is_self: bool,
}

/// Soft election.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SoftElection {
    /// Namespace.
    namespace: String,
    /// Name of the election.
    election: String,
    /// Always true: in a network split each side may have a leader.
    soft: bool,
    /// Names of the leaders, best first. There are several after a network split, or if a member does not
    /// receive all messages.
    leaders: Vec<String>,
    /// Candidates, best first.
    candidates: Vec<SoftCandidateJson>,
}

/// Candidate of a soft election.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SoftCandidate)]
pub(crate) struct SoftCandidateJson {
    /// Id of the member.
    member: String,
    /// Name of the member.
    name: String,
    /// Priority. The highest leads; among equals, the one that has been a candidate longest.
    priority: i32,
    /// `candidate`, `ready` or `leading`.
    state: String,
    /// Start of the candidacy, by the member's own clock.
    since_at_ms: i64,
}

/// Get the gossip members of this server's cluster and their soft elections.
#[utoipa::path(get, path = "/v1/gossip", tag = "cluster", responses((status = 200, body = GossipView), (status = 404, body = Problem)))]
async fn get_gossip(State(app): State<App>, principal: Principal) -> Result<Json<GossipView>, Problem> {
    let gossip = app.gossip.as_ref().ok_or_else(gossip_disabled)?;
    Ok(Json(shown(gossip, &principal)))
}

fn shown(gossip: &Gossip, principal: &Principal) -> GossipView {
    let roster = gossip.roster();
    let members = roster.all().filter(|member| !member.observer).map(|member| GossipMemberJson {
        id: member.id.clone(),
        name: member.name.clone(),
        generation: member.generation,
        address: member.address.to_string(),
        state: member.state.as_str().to_owned(),
        metadata: member.metadata.clone(),
        is_self: member.id == gossip.id(),
    });
    let elections = gossip.elections().into_iter();
    let readable = elections.filter(|view| principal.may(Permission::Read, Some(&view.election.namespace)));
    let elections = readable.map(|view| SoftElection {
        namespace: view.election.namespace.to_string(),
        election: view.election.name.to_string(),
        soft: true,
        leaders: view.leaders().map(|leader| leader.member.name.clone()).collect(),
        candidates: view
            .candidates
            .iter()
            .map(|standing| SoftCandidateJson {
                member: standing.member.id.clone(),
                name: standing.member.name.clone(),
                priority: standing.rank.priority,
                state: standing.state.as_str().to_owned(),
                since_at_ms: standing.since_ms,
            })
            .collect(),
    });
    let dropped = DropReason::ALL.into_iter().map(|why| (why.as_str().to_owned(), gossip.dropped(why)));
    GossipView {
        cluster: gossip.cluster().to_owned(),
        members: members.collect(),
        elections: elections.collect(),
        dropped_messages: dropped.collect(),
    }
}

/// Problem: this server does not take part in gossip.
pub(crate) fn gossip_disabled() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "gossip-disabled", "gossip is disabled on this server")
        .remedy("start the server with --gossip gossip:HOST:PORT?seed=HOST:PORT")
}
