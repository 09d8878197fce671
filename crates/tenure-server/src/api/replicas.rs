//! Servers on this store: the candidates of the election `tenure/coordinator`.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::routes;

use crate::App;
use crate::app::COORDINATOR_ELECTION;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

pub(crate) fn routes() -> Routes {
    // Every principal may know the addresses of the other servers.
    Routes::new().api(RequiredPermission::AnyCredential, routes!(list_replicas))
}

/// Servers on this store.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplicaList {
    /// Candidates, best first.
    replicas: Vec<ReplicaView>,
}

/// Server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplicaView {
    /// Name.
    #[schema(example = "tenure-a")]
    name: String,
    /// Address.
    #[schema(example = "https://tenure-a:8368")]
    address: String,
    /// Version.
    #[schema(example = "0.1.0")]
    version: String,
    /// Priority; the live server with the highest one is the coordinator.
    priority: i32,
    /// Whether the store counts the server as live.
    online: bool,
    /// Last heartbeat, by the store's clock.
    last_seen_at_ms: i64,
    /// Lease duration.
    lease_ms: u64,
    /// Whether the server is the coordinator.
    coordinator: bool,
    /// Whether this is the responding server.
    #[serde(rename = "self")]
    is_self: bool,
}

/// List the servers on this store.
#[utoipa::path(get, path = "/v1/replicas", tag = "servers", responses((status = 200, body = ReplicaList), (status = 503, body = Problem)))]
async fn list_replicas(State(app): State<App>) -> Result<Json<ReplicaList>, Problem> {
    let snapshot = app.elections.snapshot();
    let view = match snapshot.elections.get(&*COORDINATOR_ELECTION) {
        Some(entry) => Some((***entry).clone()),
        None => app.store.election(&COORDINATOR_ELECTION).await?,
    };
    let Some(mut view) = view else { return Ok(Json(ReplicaList { replicas: Vec::new() })) };
    let own = app.tenure().and_then(|tenure| tenure.session());
    // Skip candidates that joined through a server: clients send their access tokens to the addresses listed
    // here.
    view.candidates.retain(|candidate| candidate.session.owner.is_none());
    view.candidates.sort_by(tenure::rules::election::by_rank);
    let replica = |candidate: &tenure::port::CandidateView| {
        let metadata = |key: &str| candidate.metadata.get(key).cloned().unwrap_or_default();
        let session = &candidate.session;
        ReplicaView {
            name: candidate.name.clone(),
            address: metadata("address"),
            version: metadata("version"),
            priority: candidate.priority,
            online: session.live,
            last_seen_at_ms: session.heartbeat_at_ms,
            lease_ms: session.lease_ms,
            coordinator: view.held_by(&session.id).next().is_some(),
            is_self: own.as_ref() == Some(&session.id),
        }
    };
    Ok(Json(ReplicaList { replicas: view.candidates.iter().map(replica).collect() }))
}
