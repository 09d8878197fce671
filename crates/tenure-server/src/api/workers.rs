//! Workers: who they are, and who of them may work where approval is asked for.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{NewWorker, Verb, WorkerView};
use tenure::{Name, SessionId};
use tenure_core::claim::check_worker;
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::deeds::{By, record_of};
use super::given::{At, In, MaybeGiven};
use super::operate::Nothing;
use super::owned::{owned, plausible};
use super::queues::Changed;
use super::sense::of_ask;
use super::sessions::{Whose, Within, doer, unfit};
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{Need, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .api(Need::Known, routes!(list))
        .api(Need::In(Verb::Claim), routes!(register))
        .api(Need::In(Verb::Admin), routes!(approve))
        .api(Need::In(Verb::Admin), routes!(disapprove))
}

/// Workers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Workers {
    /// The workers, by namespace and name.
    workers: Vec<WorkerView>,
}

/// What a worker says of itself.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"kind": "gpu", "tags": ["cuda"], "queues": ["render"], "location": "rack 7", "capacity": 4}))]
pub(crate) struct Registration {
    /// Its name, if it is said once more.
    name: Option<String>,
    /// What sort of worker, for people.
    kind: String,
    /// What it has.
    tags: Vec<String>,
    /// The kinds of tasks that it knows. Empty: every kind.
    kinds: Vec<String>,
    /// The queues that it works on.
    queues: Vec<Name>,
    /// Where it is, for people.
    location: String,
    /// How many tasks it runs at once.
    capacity: u32,
    /// Its session, if it has one, opened through a server by whoever asks.
    session: Option<SessionId>,
}

/// Who approves.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Approval {
    /// Who says so, if it is another than who asks.
    by: Option<String>,
}

/// List workers
///
/// What each has and does, whether it lives, and whether it is approved.
#[utoipa::path(get, path = "/v1/workers", tag = "workers", params(Whose), responses((status = 200, body = Workers)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(whose): In<Whose>,
) -> Result<Json<Workers>, Problem> {
    principal.must_list(whose.namespace.as_ref())?;
    let mut workers = app.store.workers(whose.namespace.as_ref()).await?;
    workers.retain(|worker| principal.may(Verb::Read, Some(&worker.namespace)));
    Ok(Json(Workers { workers }))
}

/// Register a worker
///
/// A worker makes itself known, or says what changed. Whoever comes by the same name later replaces it: claims hang on sessions
/// and tokens, not on names.
#[utoipa::path(put, path = "/v1/workers/{worker}", tag = "workers", params(("worker" = String, Path), Within),
    request_body = Option<Registration>, responses((status = 204)))]
pub(crate) async fn register(
    State(app): State<App>,
    principal: Principal,
    At(worker): At<String>,
    In(within): In<Within>,
    MaybeGiven(said): MaybeGiven<Registration>,
) -> Result<StatusCode, Problem> {
    if said.name.as_ref().is_some_and(|name| *name != worker) {
        return Err(unfit("name", "the address and the body name different workers"));
    }
    if let Some(session) = &said.session {
        plausible(session)?;
        owned(&app, &principal, session).await?;
    }
    let worker = described(worker, said);
    check_worker(&worker).map_err(of_ask)?;
    app.store.register(&within.namespace, &worker).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Approve a worker
///
/// It gets tasks of queues that ask for approval. It need not be known yet.
#[utoipa::path(post, path = "/v1/workers/{worker}/approve", tag = "workers",
    params(("worker" = String, Path), Within), request_body = Option<Approval>,
    responses((status = 200, body = Changed)))]
pub(crate) async fn approve(
    State(app): State<App>,
    principal: Principal,
    by: By,
    At(worker): At<String>,
    In(within): In<Within>,
    MaybeGiven(approval): MaybeGiven<Approval>,
) -> Result<Json<Changed>, Problem> {
    named(&worker)?;
    let who = doer(&principal, approval.by)?;
    let changed = app.store.approve(&within.namespace, &worker, Some(&who)).await?;
    if changed {
        record_of(&app, &by, "worker.approve", &within.namespace, &worker, String::new()).await;
    }
    Ok(Json(Changed { changed }))
}

/// Withdraw the approval of a worker
///
/// What it has claimed it may finish.
#[utoipa::path(post, path = "/v1/workers/{worker}/disapprove", tag = "workers",
    params(("worker" = String, Path), Within), request_body = Option<Nothing>,
    responses((status = 200, body = Changed)))]
pub(crate) async fn disapprove(
    State(app): State<App>,
    by: By,
    At(worker): At<String>,
    In(within): In<Within>,
    MaybeGiven(Nothing {}): MaybeGiven<Nothing>,
) -> Result<Json<Changed>, Problem> {
    named(&worker)?;
    let changed = app.store.approve(&within.namespace, &worker, None).await?;
    if changed {
        record_of(&app, &by, "worker.disapprove", &within.namespace, &worker, String::new()).await;
    }
    Ok(Json(Changed { changed }))
}

/// Refuses what no worker can be called.
fn named(worker: &str) -> Result<(), Problem> {
    check_worker(&described(worker.into(), Registration::default())).map_err(of_ask)
}

fn described(name: String, said: Registration) -> NewWorker {
    let Registration { name: _, kind, tags, kinds, queues, location, capacity, session } = said;
    NewWorker { name, kind, tags, kinds, queues, location, capacity, session }
}
