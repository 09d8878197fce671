//! The store behind this server: guarantees and status.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tenure::port::{Finding, Permission};
use utoipa::ToSchema;

use super::conditional::error_word;
use super::election_types::millis;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;

/// Status of the store.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StoreStatus {
    guarantees: StoreGuaranteesJson,
    /// Whether the last query succeeded.
    ok: bool,
    /// Duration of the last query.
    query_latency_ms: u64,
    /// Age of the snapshot; `null` if the store was never read.
    snapshot_age_ms: Option<u64>,
    /// Kind of the last error, if any.
    #[schema(example = "unreachable")]
    error_kind: Option<String>,
    /// Message of the last error; only with `admin` in `*`.
    error_detail: Option<String>,
    /// Epoch of the store: it grows when a standby is promoted.
    epoch: u32,
    /// Findings of the store check; `null` without `admin` in `*`, and while the store has an error.
    findings: Option<Vec<Finding>>,
}

/// Guarantees of a store.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = StoreGuarantees)]
struct StoreGuaranteesJson {
    #[schema(example = "sqlite")]
    backend: &'static str,
    /// Scope of the guarantee that there is at most one leader.
    at_most_one: &'static str,
    /// Behaviour in a network split.
    netsplit: &'static str,
    /// Delay of the next leader after a crash.
    after_crash: &'static str,
}

/// Get the store status
///
/// Guarantees, reachability, and findings of the store check.
#[utoipa::path(get, path = "/v1/store", tag = "store", responses((status = 200, body = StoreStatus)))]
pub(crate) async fn get_store_status(
    State(app): State<App>,
    principal: Principal,
) -> Result<Json<StoreStatus>, Problem> {
    let snapshot = app.elections.snapshot();
    let admin = principal.may(Permission::Admin, None);
    let findings = match admin && snapshot.error.is_none() {
        true => app.elections.findings().await.ok(),
        false => None,
    };
    let guarantees = app.store.guarantees();
    Ok(Json(StoreStatus {
        guarantees: StoreGuaranteesJson {
            backend: guarantees.backend,
            at_most_one: guarantees.at_most_one,
            netsplit: guarantees.netsplit,
            after_crash: guarantees.after_crash,
        },
        ok: snapshot.is_loaded() && snapshot.error.is_none(),
        query_latency_ms: millis(snapshot.latency),
        snapshot_age_ms: snapshot.is_loaded().then(|| millis(snapshot.age(app.runtime.now()))),
        error_kind: snapshot.error.as_ref().map(|error| error_word(error.kind)),
        // The message may contain host and user names.
        error_detail: snapshot.error.as_ref().filter(|_| admin).map(|error| error.message.clone()),
        epoch: snapshot.epoch,
        findings: findings.map(|findings| findings.to_vec()),
    }))
}
