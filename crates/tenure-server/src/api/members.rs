//! Who is there, as gossip tells this server.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::Serialize;
use tenure::backend::gossip::{Dropped, Gossip};
use tenure::port::Verb;
use utoipa::ToSchema;
use utoipa_axum::routes;

use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{Need, Routes};

pub(crate) fn routes() -> Routes {
    // Who is there, everybody may know; of what is led, each sees what it may read.
    Routes::new().api(Need::Known, routes!(list))
}

/// A cluster, as this server sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Members {
    /// Its name.
    #[schema(example = "prod")]
    cluster: String,
    /// All who are known, those who are silent or left included.
    members: Vec<MemberView>,
    /// Soft elections: nobody is kept from leading beside somebody else, and there are no tokens.
    elections: Vec<SoftElection>,
    /// Datagrams that were not believed, by why: `forged`, `foreign`, `replayed`, `oversized`, `malformed`.
    dropped: BTreeMap<String, u64>,
}

/// A member.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MemberView {
    /// New with every start.
    #[schema(example = "9f1c8a40c7d94f0e")]
    id: String,
    /// What people call it.
    name: String,
    /// When it joined, in milliseconds since 1970 by its own clock.
    generation: u64,
    /// Where it is reached.
    #[schema(example = "10.0.0.3:8370")]
    address: String,
    /// `live`, `silent` or `left`.
    presence: String,
    /// What it tells of itself.
    metadata: BTreeMap<String, String>,
    /// Whether it is the one that answers.
    here: bool,
}

/// A soft election.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SoftElection {
    /// The tenant.
    namespace: String,
    /// Its name.
    election: String,
    /// Always true: in a netsplit each side has a leader.
    soft: bool,
    /// Who says that it leads, by name, the best first. Several: a netsplit has just healed, or somebody does not hear all.
    leaders: Vec<String>,
    /// Who stands, the best first.
    candidates: Vec<SoftCandidateView>,
}

/// Who stands for a soft election.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SoftCandidateView {
    /// The member's id.
    member: String,
    /// The member's name.
    name: String,
    /// The highest leads; among equals, who stands for longest.
    priority: i32,
    /// `standing`, `ready` or `leading`.
    stance: String,
    /// Since when, in milliseconds since 1970 by its own clock.
    since_ms: i64,
}

/// The members of the cluster that this server has joined by gossip, and what they lead softly.
#[utoipa::path(get, path = "/v1/members", tag = "gossip", responses((status = 200, body = Members), (status = 404, body = Problem)))]
async fn list(State(app): State<App>, principal: Principal) -> Result<Json<Members>, Problem> {
    let gossip = app.gossip.as_ref().ok_or_else(none)?;
    Ok(Json(shown(gossip, &principal)))
}

fn shown(gossip: &Gossip, principal: &Principal) -> Members {
    let roster = gossip.roster();
    let members = roster.all().filter(|member| !member.guest).map(|member| MemberView {
        id: member.id.clone(),
        name: member.name.clone(),
        generation: member.generation,
        address: member.address.to_string(),
        presence: member.presence.as_str().to_owned(),
        metadata: member.metadata.clone(),
        here: member.id == gossip.id(),
    });
    let elections = gossip.elections().into_iter();
    let readable = elections.filter(|view| principal.may(Verb::Read, Some(&view.election.namespace)));
    let elections = readable.map(|view| SoftElection {
        namespace: view.election.namespace.to_string(),
        election: view.election.name.to_string(),
        soft: true,
        leaders: view.leaders().map(|leader| leader.member.name.clone()).collect(),
        candidates: view
            .candidates
            .iter()
            .map(|standing| SoftCandidateView {
                member: standing.member.id.clone(),
                name: standing.member.name.clone(),
                priority: standing.rank.priority,
                stance: standing.stance.as_str().to_owned(),
                since_ms: standing.since_ms,
            })
            .collect(),
    });
    let dropped = Dropped::ALL.into_iter().map(|why| (why.as_str().to_owned(), gossip.dropped(why)));
    Members {
        cluster: gossip.cluster().to_owned(),
        members: members.collect(),
        elections: elections.collect(),
        dropped: dropped.collect(),
    }
}

/// That this server takes part in no gossip.
pub(crate) fn none() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-gossip", "this server has joined no cluster by gossip")
        .remedy("start it with --gossip gossip:HOST:PORT?seed=HOST:PORT")
}
