//! Health, for load balancers and whoever restarts what is broken.
//!
//! `/healthz` says that the process lives: restarting it would not help more. It fails when a restart is what the process needs: its store (it is a
//! member of a Raft cluster) has stopped for good. `/readyz` says that it can do its work: the
//! store answered lately and the replica's own session is live. `/readyz?leader=NAME` says whether the leader of an election
//! is *here*: a candidate with this replica's name. Give a service and the `tenure serve` beside it one `NODE_ID`, point the
//! load balancer's check at it, and the leader gets the traffic.

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
use crate::route::{Need, Routes};

/// How long ago the store may have been seen.
const RECENT: Duration = Duration::from_secs(10);

pub(crate) fn routes() -> Routes {
    Routes::new().page(Need::Nothing, Method::GET, "/healthz", get(alive)).page(
        Need::Nothing,
        Method::GET,
        "/readyz",
        get(ready),
    )
}

/// What a check is told when all is well.
#[derive(Debug, Serialize)]
struct Fine {
    status: &'static str,
}

const OK: Json<Fine> = Json(Fine { status: "ok" });

async fn alive(State(app): State<App>) -> Result<Json<Fine>, Problem> {
    match store_has_failed(&app) {
        false => Ok(OK),
        true => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-failed", STORE_FAILED)
            .remedy("restart this server; its log says why")),
    }
}

const STORE_FAILED: &str = "this server's store has stopped for good";

fn store_has_failed(app: &App) -> bool {
    app.store.failed().now_or_never().is_some()
}

/// What is asked.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    leader: Option<Name>,
    #[serde(default = "Name::default_namespace")]
    namespace: Name,
}

async fn ready(
    State(app): State<App>,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Fine>, Problem> {
    let Query(asked) = asked.map_err(|error| {
        Problem::new(StatusCode::BAD_REQUEST, "malformed-query", error.body_text())
            .remedy("ask for /readyz, or /readyz?leader=NAME&namespace=NAMESPACE")
    })?;
    let why = reasons(&app);
    if !why.is_empty() {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", why.join("; "))
            .remedy("ask another replica; this one's log says more")
            .retry_after(1));
    }
    let Some(name) = asked.leader else { return Ok(OK) };
    if leads_here(&app, &ElectionKey::new(asked.namespace, name)) {
        return Ok(OK);
    }
    // An election that does not exist is answered as one that is led elsewhere: strangers learn one bit.
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-leader", "the leader is not here")
        .remedy("ask another replica; GET /v1/elections/{election}/leader tells who leads"))
}

/// Why no work should be sent here. Told to strangers: no addresses, no messages of the store.
fn reasons(app: &App) -> Vec<&'static str> {
    let now = app.runtime.now();
    let seen = app.board.seen();
    let live = app.tenure().is_some_and(|tenure| tenure.session().is_some() && tenure.trusted_until() > now);
    let checks = [
        (*app.closing.borrow(), "this server is about to end"),
        (!seen.is_known(), "the store was not seen yet"),
        (seen.is_known() && seen.age(now) > RECENT, "the store has not answered for a while"),
        (!live, "this server's own session is not live"),
        (store_has_failed(app), STORE_FAILED),
    ];
    checks.into_iter().filter(|(so, _)| *so).map(|(_, why)| why).collect()
}

fn leads_here(app: &App, key: &ElectionKey) -> bool {
    let Some(tenure) = app.tenure() else { return false };
    let seen = app.board.seen();
    let view = seen.elections.get(key);
    view.is_some_and(|view| leaders(view).iter().any(|leader| leader.id == tenure.name()))
}
