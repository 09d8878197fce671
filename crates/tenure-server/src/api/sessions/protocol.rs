//! What a client has to know before anything else: whether it understands this server, and whom else it may ask.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::app::SERVERS;
use crate::problem::Problem;

/// The version of the protocol that this server speaks.
const PROTOCOL: u32 = 1;

/// This server, and the others.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Hello {
    /// The version of this server, for people.
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// The version of the protocol of sessions. It changes only when older clients can not go on.
    #[schema(example = 1)]
    protocol: u32,
    /// The addresses of all servers on this store, as they advertise them: any of them answers anything.
    #[schema(example = json!(["https://a.example:8368", "https://b.example:8368"]))]
    servers: Vec<String>,
}

/// Meet the server
///
/// Which version of the protocol it speaks, and which other servers may be asked in its place.
#[utoipa::path(get, path = "/v1/protocol", tag = "sessions", responses((status = 200, body = Hello)))]
pub(super) async fn hello(State(app): State<App>) -> Json<Hello> {
    let seen = app.board.seen();
    let candidates =
        seen.elections.get(&*SERVERS).map(|entry| entry.candidates.as_slice()).unwrap_or_default();
    let live = candidates.iter().filter(|candidate| candidate.session.live);
    let servers = live.filter_map(|candidate| candidate.metadata.get("address")).cloned().collect();
    Json(Hello { version: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL, servers })
}

/// The store's own clock.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Clock {
    /// Seconds since some moment, to compare clock *rates*; `null` if the store has no clock of its own.
    seconds: Option<f64>,
}

/// Read the store's clock
///
/// Only its rate says anything: how fast it runs against the caller's own.
#[utoipa::path(get, path = "/v1/store/clock", tag = "store",
    responses((status = 200, body = Clock),
        (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn clock(State(app): State<App>) -> Result<Json<Clock>, Problem> {
    Ok(Json(Clock { seconds: app.store.clock_seconds().await? }))
}
