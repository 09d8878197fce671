//! What a client has to know before anything else: whether it understands this server.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::problem::Problem;

/// The version of the protocol that this server speaks.
const PROTOCOL: u32 = 1;

/// This server.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Hello {
    /// The version of this server, for people.
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// The version of the protocol of sessions. It changes only when older clients can not go on.
    #[schema(example = 1)]
    protocol: u32,
}

/// Meet the server
///
/// Which version of the protocol it speaks. `/v1/replicas` says who else may be asked.
#[utoipa::path(get, path = "/v1/protocol", tag = "sessions", responses((status = 200, body = Hello)))]
pub(super) async fn hello() -> Json<Hello> {
    Json(Hello { version: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL })
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
