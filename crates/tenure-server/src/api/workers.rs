//! Workers and their approval.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{NewWorker, Permission, WorkerView};
use tenure::{Name, SessionId};
use tenure_core::rules::work::validate_worker;
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::audit_writer::{AuditActor, record_of};
use super::election_actions::EmptyRequest;
use super::extract::{OptionalJsonBody, PathParams, QueryParams};
use super::queues::ChangeResponse;
use super::session_owner::{require_owned_session, validate_session_id};
use super::sessions::{NamespaceQuery, OptionalNamespaceQuery, actor, invalid_value};
use super::validate::request_problem;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

pub(crate) fn routes() -> Routes {
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(list_workers))
        .api(RequiredPermission::In(Permission::Claim), routes!(register_worker))
        .api(RequiredPermission::In(Permission::Admin), routes!(approve_worker))
        .api(RequiredPermission::In(Permission::Admin), routes!(revoke_worker_approval))
}

/// List of workers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WorkerList {
    /// Workers by namespace and name.
    workers: Vec<WorkerView>,
}

/// Registration of a worker.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"description": "gpu", "tags": ["cuda"], "queues": ["render"], "location": "rack 7", "capacity": 4}))]
pub(crate) struct RegisterWorkerRequest {
    /// Name; if given, it must equal the name in the path.
    name: Option<String>,
    /// Description, for operators.
    description: String,
    /// Tags.
    tags: Vec<String>,
    /// Task kinds that the worker runs; empty means every kind.
    task_kinds: Vec<String>,
    /// Queues that the worker serves.
    queues: Vec<Name>,
    /// Location, for operators.
    location: String,
    /// Number of tasks that the worker runs at once.
    capacity: u32,
    /// Session of the worker. The caller must own it.
    session: Option<SessionId>,
}

/// Approval request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ApproveWorkerRequest {
    /// Principal that the client acts for; the caller if omitted.
    on_behalf_of: Option<String>,
}

/// List workers
///
/// Tags, task kinds and queues of each worker, whether it is online, and whether it is approved.
#[utoipa::path(get, path = "/v1/workers", tag = "workers", params(OptionalNamespaceQuery), responses((status = 200, body = WorkerList)))]
pub(crate) async fn list_workers(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<OptionalNamespaceQuery>,
) -> Result<Json<WorkerList>, Problem> {
    principal.require_list(query.namespace.as_ref())?;
    let mut workers = app.store.workers(query.namespace.as_ref()).await?;
    workers.retain(|worker| principal.may(Permission::Read, Some(&worker.namespace)));
    Ok(Json(WorkerList { workers }))
}

/// Register a worker
///
/// Registers the worker or updates its registration. A later registration with the same name replaces it:
/// claims depend on sessions and tokens, not on names.
#[utoipa::path(put, path = "/v1/workers/{worker}", tag = "workers", params(("worker" = String, Path), NamespaceQuery),
    request_body = Option<RegisterWorkerRequest>, responses((status = 204)))]
pub(crate) async fn register_worker(
    State(app): State<App>,
    principal: Principal,
    PathParams(worker): PathParams<String>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(registration): OptionalJsonBody<RegisterWorkerRequest>,
) -> Result<StatusCode, Problem> {
    if registration.name.as_ref().is_some_and(|name| *name != worker) {
        return Err(invalid_value("name", "path and body name different workers"));
    }
    if let Some(session) = &registration.session {
        validate_session_id(session)?;
        require_owned_session(&app, &principal, session).await?;
    }
    let worker = new_worker(worker, registration);
    validate_worker(&worker).map_err(request_problem)?;
    app.store.register_worker(&within.namespace, &worker).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Approve a worker
///
/// The worker may claim tasks of queues that require approval. It need not be registered yet.
#[utoipa::path(post, path = "/v1/workers/{worker}/approve", tag = "workers",
    params(("worker" = String, Path), NamespaceQuery), request_body = Option<ApproveWorkerRequest>,
    responses((status = 200, body = ChangeResponse)))]
pub(crate) async fn approve_worker(
    State(app): State<App>,
    principal: Principal,
    by: AuditActor,
    PathParams(worker): PathParams<String>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(approval): OptionalJsonBody<ApproveWorkerRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    validate_name(&worker)?;
    let who = actor(&principal, approval.on_behalf_of)?;
    let changed = app.store.set_worker_approval(&within.namespace, &worker, Some(&who)).await?;
    if changed {
        record_of(&app, &by, "worker.approve", &within.namespace, &worker, String::new()).await;
    }
    Ok(Json(ChangeResponse { changed }))
}

/// Revoke the approval of a worker
///
/// The worker may finish its claimed tasks.
#[utoipa::path(post, path = "/v1/workers/{worker}/revoke-approval", tag = "workers",
    params(("worker" = String, Path), NamespaceQuery), request_body = Option<EmptyRequest>,
    responses((status = 200, body = ChangeResponse)))]
pub(crate) async fn revoke_worker_approval(
    State(app): State<App>,
    by: AuditActor,
    PathParams(worker): PathParams<String>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(EmptyRequest {}): OptionalJsonBody<EmptyRequest>,
) -> Result<Json<ChangeResponse>, Problem> {
    validate_name(&worker)?;
    let changed = app.store.set_worker_approval(&within.namespace, &worker, None).await?;
    if changed {
        record_of(&app, &by, "worker.revoke_approval", &within.namespace, &worker, String::new()).await;
    }
    Ok(Json(ChangeResponse { changed }))
}

/// Reject an invalid worker name.
fn validate_name(worker: &str) -> Result<(), Problem> {
    validate_worker(&new_worker(worker.into(), RegisterWorkerRequest::default())).map_err(request_problem)
}

fn new_worker(name: String, registration: RegisterWorkerRequest) -> NewWorker {
    let RegisterWorkerRequest {
        name: _,
        description: kind,
        tags,
        task_kinds: kinds,
        queues,
        location,
        capacity,
        session,
    } = registration;
    NewWorker { name, description: kind, tags, task_kinds: kinds, queues, location, capacity, session }
}
