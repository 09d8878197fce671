//! Health checks for load balancers and supervisors.
//!
//! `/healthz` reports that the process is alive. It fails if a restart is needed: the process is a member of
//! a Raft cluster, and its store has stopped permanently. `/readyz` reports that the server can work: the
//! store responded recently, and the replica's own session is live. `/readyz?leader=ELECTION` reports whether
//! the leader of an election is on this node: a candidate with the name of this replica. Give a service and
//! the `tenure serve` beside it the same `TENURE_NAME`, point the load balancer's check at it, and the leader
//! gets the traffic.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::routing::get;
use futures_util::FutureExt as _;
use http::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use tenure::{ElectionKey, Name, leaders};

use crate::App;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

/// Maximum age of the snapshot of a ready server.
const RECENT: Duration = Duration::from_secs(10);

pub(crate) fn routes() -> Routes {
    Routes::new().page(RequiredPermission::None, Method::GET, "/healthz", get(alive)).page(
        RequiredPermission::None,
        Method::GET,
        "/readyz",
        get(ready),
    )
}

/// Response of a passing check.
#[derive(Debug, Serialize)]
struct HealthResponse {
    status: &'static str,
}

const OK: Json<HealthResponse> = Json(HealthResponse { status: "ok" });

async fn alive(State(app): State<App>) -> Result<Json<HealthResponse>, Problem> {
    match store_has_failed(&app) {
        false => Ok(OK),
        true => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-failed", STORE_FAILED)
            .remedy("restart the server; its log has the reason")),
    }
}

const STORE_FAILED: &str = "the store of this server has stopped permanently";

fn store_has_failed(app: &App) -> bool {
    app.store.failed().now_or_never().is_some()
}

/// Query of a readiness check.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthQuery {
    leader: Option<Name>,
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
}

async fn ready(
    State(app): State<App>,
    query: Result<Query<HealthQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<HealthResponse>, Problem> {
    let Query(query) = query.map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-query", error.body_text())
            .remedy("use /readyz, or /readyz?leader=ELECTION&namespace=NAMESPACE")
    })?;
    let why = reasons(&app);
    if !why.is_empty() {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", why.join("; "))
            .remedy("use another replica; see the log of this one")
            .retry_after(1));
    }
    let Some(name) = query.leader else { return Ok(OK) };
    if leads_here(&app, &ElectionKey::new(query.namespace, name)) {
        return Ok(OK);
    }
    // An unknown election gives the same response as one that is led elsewhere: unauthenticated clients learn
    // only one bit.
    Err(Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "not-leader",
        "the leader of the election is not on this node",
    )
    .remedy("use another replica; GET /v1/elections/{election}/leader shows the leader"))
}

/// Reasons why the server is not ready. Visible without authentication: no addresses, no messages of the
/// store.
fn reasons(app: &App) -> Vec<&'static str> {
    let now = app.runtime.now();
    let snapshot = app.elections.snapshot();
    let live = app.tenure().is_some_and(|tenure| tenure.session().is_some() && tenure.trusted_until() > now);
    let checks = [
        (*app.closing.borrow(), "the server is shutting down"),
        (!snapshot.is_loaded(), "the store has not responded yet"),
        (snapshot.is_loaded() && snapshot.age(now) > RECENT, "the store has not responded for a while"),
        (!live, "the session of this server is not live"),
        (store_has_failed(app), STORE_FAILED),
    ];
    checks.into_iter().filter(|(so, _)| *so).map(|(_, why)| why).collect()
}

fn leads_here(app: &App, key: &ElectionKey) -> bool {
    let Some(tenure) = app.tenure() else { return false };
    let snapshot = app.elections.snapshot();
    let view = snapshot.elections.get(key);
    view.is_some_and(|view| leaders(view).iter().any(|leader| leader.name == tenure.name()))
}
