//! The store behind this server: what it promises, and how it is.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use tenure::port::{Finding, Verb};
use utoipa::ToSchema;

use super::shape::millis;
use super::shown::word;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;

/// The store behind a server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StoreState {
    promises: Promised,
    /// Whether the last look at it succeeded.
    ok: bool,
    /// How long the last look took.
    latency_ms: u64,
    /// How long ago everything was last looked at; `null` if it never was.
    age_ms: Option<u64>,
    /// What kind of trouble there is, if there is any.
    #[schema(example = "unreachable")]
    trouble: Option<String>,
    /// What the trouble is, for those who may administer everything.
    detail: Option<String>,
    /// The store's epoch: it grows when a standby is promoted.
    epoch: u32,
    /// What an examination found, for those who may administer everything; `null` for others, and while there is trouble.
    findings: Option<Vec<Finding>>,
}

/// What a store promises.
#[derive(Debug, Serialize, ToSchema)]
struct Promised {
    #[schema(example = "sqlite")]
    backend: &'static str,
    /// Where at most one leader is promised.
    at_most_one: &'static str,
    /// What happens in a netsplit.
    netsplit: &'static str,
    /// How soon the next leader comes after a crash.
    after_crash: &'static str,
}

/// Show the store
///
/// What it promises, whether it answers, and what an examination of it found.
#[utoipa::path(get, path = "/v1/store", tag = "store", responses((status = 200, body = StoreState)))]
pub(crate) async fn show(State(app): State<App>, principal: Principal) -> Result<Json<StoreState>, Problem> {
    let seen = app.board.seen();
    let admin = principal.may(Verb::Admin, None);
    let findings = match admin && seen.trouble.is_none() {
        true => app.board.findings().await.ok(),
        false => None,
    };
    let promises = app.store.promises();
    Ok(Json(StoreState {
        promises: Promised {
            backend: promises.backend,
            at_most_one: promises.at_most_one,
            netsplit: promises.netsplit,
            after_crash: promises.after_crash,
        },
        ok: seen.is_known() && seen.trouble.is_none(),
        latency_ms: millis(seen.latency),
        age_ms: seen.is_known().then(|| millis(seen.age(app.runtime.now()))),
        trouble: seen.trouble.as_ref().map(|error| word(error.kind)),
        // It may name hosts and users.
        detail: seen.trouble.as_ref().filter(|_| admin).map(|error| error.message.clone()),
        epoch: seen.epoch,
        findings: findings.map(|findings| findings.to_vec()),
    }))
}
