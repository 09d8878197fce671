//! The servers on this store: the candidates of their own election.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::routes;

use crate::App;
use crate::app::SERVERS;
use crate::problem::Problem;
use crate::route::{Need, Routes};

pub(crate) fn routes() -> Routes {
    // Whoever is known may know where else to ask.
    Routes::new().api(Need::Known, routes!(list))
}

/// The servers on this store.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Replicas {
    /// All that stand, best first.
    replicas: Vec<Replica>,
}

/// A server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Replica {
    /// What people call it.
    #[schema(example = "tenure-a")]
    name: String,
    /// Where it is reached.
    #[schema(example = "https://tenure-a:8368")]
    address: String,
    /// What it runs.
    #[schema(example = "0.1.0")]
    version: String,
    /// The highest alive keeps house.
    priority: i32,
    /// Whether the store counts it as living.
    live: bool,
    /// When it last said so, by the store's wall clock; for people.
    seen_at_ms: i64,
    /// How long it may be silent, in milliseconds.
    lease_ms: u64,
    /// Whether it keeps house for all.
    leads: bool,
    /// Whether it is the one that answers.
    here: bool,
}

/// The servers on this store, and which of them answers.
#[utoipa::path(get, path = "/v1/replicas", tag = "server", responses((status = 200, body = Replicas), (status = 503, body = Problem)))]
async fn list(State(app): State<App>) -> Result<Json<Replicas>, Problem> {
    let seen = app.board.seen();
    let view = match seen.elections.get(&*SERVERS) {
        Some(entry) => Some((***entry).clone()),
        None => app.store.election(&SERVERS).await?,
    };
    let Some(mut view) = view else { return Ok(Json(Replicas { replicas: Vec::new() })) };
    let own = app.tenure().and_then(|tenure| tenure.session());
    // Whoever came through a server is none: clients show their tokens to those that are listed here.
    view.candidates.retain(|candidate| candidate.session.owner.is_none());
    view.candidates.sort_by(tenure::election::by_rank);
    let replica = |candidate: &tenure::port::CandidateView| {
        let told = |key: &str| candidate.metadata.get(key).cloned().unwrap_or_default();
        let session = &candidate.session;
        Replica {
            name: candidate.id.clone(),
            address: told("address"),
            version: told("version"),
            priority: candidate.priority,
            live: session.live,
            seen_at_ms: session.beat_at_ms,
            lease_ms: session.lease_ms,
            leads: view.held_by(&session.id).next().is_some(),
            here: own.as_ref() == Some(&session.id),
        }
    };
    Ok(Json(Replicas { replicas: view.candidates.iter().map(replica).collect() }))
}
