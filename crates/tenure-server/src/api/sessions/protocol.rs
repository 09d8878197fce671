//! Handshake of the HTTP store, and the store's clock.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::problem::Problem;

/// Version of the internal protocol.
const PROTOCOL: u32 = 1;

/// Handshake response.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HandshakeResponse {
    /// Version of this server.
    #[schema(example = "0.1.0")]
    version: &'static str,
    /// Version of the internal protocol. It changes only if older clients cannot continue.
    #[schema(example = 1)]
    protocol: u32,
}

/// Handshake
///
/// Returns the version of the internal protocol. `/v1/replicas` lists the other servers.
#[utoipa::path(get, path = "/internal/v1/handshake", tag = "internal", responses((status = 200, body = HandshakeResponse)))]
pub(super) async fn handshake() -> Json<HandshakeResponse> {
    Json(HandshakeResponse { version: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL })
}

/// Clock of the store.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StoreClock {
    /// Seconds since an arbitrary instant, to compare clock *rates*; `null` if the store has no clock of its
    /// own.
    seconds: Option<f64>,
}

/// Read the store's clock
///
/// Only the rate is meaningful: how fast the clock runs against the caller's.
#[utoipa::path(get, path = "/internal/v1/store-clock", tag = "internal",
    responses((status = 200, body = StoreClock),
        (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(super) async fn read_store_clock(State(app): State<App>) -> Result<Json<StoreClock>, Problem> {
    Ok(Json(StoreClock { seconds: app.store.clock_seconds().await? }))
}
