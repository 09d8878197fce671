//! Pools: resources, and requests for them.
//!
//! A request belongs to the principal that created it; no other principal can extend or release it.

mod wait;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    BASE_PRIORITY, ClaimRefusal, ErrorKind, NewResource, Permission, PoolKey, PoolRequest, PoolRequestAction,
    PoolRequestId, PoolRequestState, PoolRequestView, PoolSettings, PoolView,
};
use tenure::{Name, SessionId, Token};
use tenure_core::rules::work::{validate_pool, validate_pool_request, validate_resources};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::audit_writer::{AuditActor, record_of};
use super::campaign::validate_token;
use super::claim::{validate_claim_lifetime, validate_claim_timeout, validate_wait};
use super::extract::{JsonBody, OptionalJsonBody, PathParams, QueryParams};
use super::sessions::{
    NamespaceQuery, OptionalNamespaceQuery, display_actor, invalid_value, validate_display_text,
};
use super::validate::request_problem;
use crate::App;
use crate::access::{Principal, RequestPermitHandle};
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{RequiredPermission, Routes};

/// Maximum number of resources in one request.
const RESOURCES_MAX: usize = 1000;
/// Default claim timeout of a resource without a session.
const CLAIM_TIMEOUT_MS: u64 = 60_000;

pub(crate) fn routes() -> Routes {
    let (read, work, admin) = (
        RequiredPermission::In(Permission::Read),
        RequiredPermission::In(Permission::Claim),
        RequiredPermission::In(Permission::Admin),
    );
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(list_pools))
        .api(read, routes!(get_pool))
        .api(admin, routes!(put_pool))
        .api(admin, routes!(put_resource))
        .api(admin, routes!(put_resources))
        .api(admin, routes!(delete_resource))
        .api(work, routes!(create_request))
        .api(read, routes!(get_request))
        .api(work, routes!(match_request))
        .api(work, routes!(release_request))
        .api_heartbeat(work, routes!(heartbeat_request))
}

/// List of pools.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PoolList {
    /// Pools by namespace and name.
    pools: Vec<PoolView>,
}

/// Resource settings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tags": ["gpu", "rack-7"]}))]
pub(crate) struct PutResourceRequest {
    /// Tags.
    #[serde(default)]
    tags: Vec<String>,
    /// Whether the resource may be granted. A held resource stays held.
    #[serde(default = "yes")]
    #[schema(default = true)]
    enabled: bool,
}

fn yes() -> bool {
    true
}

/// Resources to add to a pool.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutResourcesRequest {
    /// Resources.
    resources: Vec<NewResource>,
}

/// Request for a resource.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"idempotency_key": "job-7", "required_tags": ["gpu"], "claim_timeout_ms": 600000, "wait_ms": 30000}))]
pub(crate) struct CreatePoolRequest {
    /// Idempotency key. While a request with the same key is waiting or granted, it is returned.
    #[schema(max_length = 1024, example = "job-7")]
    idempotency_key: String,
    /// Owner of the request, if the principal acts for several clients.
    owner: Option<String>,
    /// Tags that the resource must have.
    #[serde(default)]
    required_tags: Vec<String>,
    /// Preferred tags: among the matching free resources, the one with the most preferred tags is granted.
    #[serde(default)]
    preferred_tags: Vec<String>,
    /// Base of the priority.
    #[schema(default = 100)]
    base_priority: Option<i32>,
    /// Session whose heartbeats keep the request and the claim alive. The caller must own it.
    session: Option<SessionId>,
    /// Claim timeout, restarted by each heartbeat. Without a session the default is one minute.
    #[schema(minimum = 1, maximum = 86400000, default = 60000)]
    claim_timeout_ms: Option<u64>,
    /// The request expires if it is not granted within this time.
    max_wait_ms: Option<u64>,
    /// Whether to match at once; otherwise the request waits for a `match` call.
    #[serde(default = "yes")]
    #[schema(default = true)]
    match_now: bool,
    /// Maximum wait of this HTTP request. The pool request itself keeps waiting.
    #[serde(default)]
    #[schema(default = 0, maximum = 60000)]
    wait_ms: u64,
}

/// Release of a resource, or cancellation of a waiting request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 3}))]
pub(crate) struct ReleaseResourceRequest {
    /// Token of the claim; omitted while the request waits.
    token: Option<Token>,
    /// Owner, if one was set at creation.
    owner: Option<String>,
}

/// Heartbeat of the claim of a resource.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 3, "claim_timeout_ms": 600000}))]
pub(crate) struct RequestHeartbeatRequest {
    /// Fencing token of the claim.
    token: Token,
    /// Claim timeout from now on.
    #[schema(minimum = 1, maximum = 86400000)]
    claim_timeout_ms: u64,
    /// Owner, if one was set at creation.
    owner: Option<String>,
}

/// List pools
///
/// With their resources, holders and waiting requests.
#[utoipa::path(get, path = "/v1/pools", tag = "pools", params(OptionalNamespaceQuery), responses((status = 200, body = PoolList)))]
pub(crate) async fn list_pools(
    State(app): State<App>,
    principal: Principal,
    QueryParams(query): QueryParams<OptionalNamespaceQuery>,
) -> Result<Json<PoolList>, Problem> {
    principal.require_list(query.namespace.as_ref())?;
    let mut pools = app.store.pools(query.namespace.as_ref()).await?;
    pools.retain(|pool| principal.may(Permission::Read, Some(&pool.key.namespace)));
    Ok(Json(PoolList { pools }))
}

/// Get a pool
///
/// The resources, their holders, and the waiting requests in order.
#[utoipa::path(get, path = "/v1/pools/{pool}", tag = "pools", params(("pool" = Name, Path), NamespaceQuery),
    responses((status = 200, body = PoolView)))]
pub(crate) async fn get_pool(
    State(app): State<App>,
    PathParams(pool): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<PoolView>, Problem> {
    find(&app, &PoolKey::new(within.namespace, pool)).await.map(Json)
}

/// Create or update a pool
///
/// Creates the pool or replaces its settings. Omitted settings get their defaults.
#[utoipa::path(put, path = "/v1/pools/{pool}", tag = "pools", params(("pool" = Name, Path), NamespaceQuery),
    request_body = PoolSettings, responses((status = 200, body = PoolView)))]
pub(crate) async fn put_pool(
    State(app): State<App>,
    by: AuditActor,
    PathParams(pool): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(settings): JsonBody<PoolSettings>,
) -> Result<Json<PoolView>, Problem> {
    validate_display_text("priority_formula", &settings.priority_formula)?;
    validate_pool(&settings).map_err(request_problem)?;
    let key = PoolKey::new(within.namespace, pool);
    quota::check(&app, Object::Pool(&key)).await?;
    app.store.set_pool(&key, &settings).await?;
    let detail = serde_json::to_string(&settings).unwrap_or_default();
    record_of(&app, &by, "pool.set", &key.namespace, key.name.as_str(), detail).await;
    find(&app, &key).await.map(Json)
}

/// Add a resource to a pool
///
/// Adds the resource or changes its tags and whether it is enabled. Creates the pool if necessary.
#[utoipa::path(put, path = "/v1/pools/{pool}/resources/{resource}", tag = "pools",
    params(("pool" = Name, Path), ("resource" = Name, Path), NamespaceQuery), request_body = Option<PutResourceRequest>,
    responses((status = 204)))]
pub(crate) async fn put_resource(
    State(app): State<App>,
    by: AuditActor,
    PathParams((pool, name)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(resource): OptionalJsonBody<PutResourceRequest>,
) -> Result<StatusCode, Problem> {
    let resource = NewResource { name, tags: resource.tags, enabled: resource.enabled };
    add_resources(&app, &by, PoolKey::new(within.namespace, pool), vec![resource]).await
}

/// Add several resources to a pool
///
/// Same as adding them one by one.
#[utoipa::path(post, path = "/v1/pools/{pool}/resources", tag = "pools", params(("pool" = Name, Path), NamespaceQuery),
    request_body = PutResourcesRequest, responses((status = 204)))]
pub(crate) async fn put_resources(
    State(app): State<App>,
    by: AuditActor,
    PathParams(pool): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(PutResourcesRequest { resources }): JsonBody<PutResourcesRequest>,
) -> Result<StatusCode, Problem> {
    if resources.is_empty() || resources.len() > RESOURCES_MAX {
        let detail = format!("{} resources are out of range", resources.len());
        return Err(invalid_value("resources", detail).remedy(format!("send between 1 and {RESOURCES_MAX}")));
    }
    add_resources(&app, &by, PoolKey::new(within.namespace, pool), resources).await
}

async fn add_resources(
    app: &App,
    by: &AuditActor,
    key: PoolKey,
    resources: Vec<NewResource>,
) -> Result<StatusCode, Problem> {
    validate_resources(&resources).map_err(request_problem)?;
    quota::check(app, Object::Pool(&key)).await?;
    app.store.add_resources(&key, &resources).await?;
    for resource in &resources {
        let detail = match (resource.enabled, resource.tags.join(" ")) {
            (true, tags) => tags,
            (false, tags) => format!("disabled {tags}").trim_end().to_owned(),
        };
        let target = format!("{}/{}", key.name, resource.name);
        record_of(app, by, "resource.put", &key.namespace, &target, detail).await;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a resource from a pool
///
/// Fails while the resource is held: disable it first, so that it is not granted again.
#[utoipa::path(delete, path = "/v1/pools/{pool}/resources/{resource}", tag = "pools",
    params(("pool" = Name, Path), ("resource" = Name, Path), NamespaceQuery),
    responses((status = 204), (status = 404, body = Problem, description = "The resource does not exist."),
        (status = 409, body = Problem, description = "The resource is held.")))]
pub(crate) async fn delete_resource(
    State(app): State<App>,
    by: AuditActor,
    PathParams((pool, resource)): PathParams<(Name, Name)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<StatusCode, Problem> {
    let key = PoolKey::new(within.namespace, pool);
    let removed = app.store.remove_resource(&key, &resource).await.map_err(|error| match error.kind {
        // The store rejects a removal only if the resource is held.
        ErrorKind::Request => {
            Problem::from_message(StatusCode::CONFLICT, "resource-held", &error.message).field("resource")
        }
        _ => Problem::from(error),
    });
    if !removed? {
        let detail = format!("resource {resource} does not exist in pool {key}");
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-resource", detail)
            .field("resource")
            .remedy("GET the pool to list its resources"));
    }
    let target = format!("{}/{resource}", key.name);
    record_of(&app, &by, "resource.remove", &key.namespace, &target, String::new()).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Request a resource
///
/// Creates a request and waits up to `wait_ms` for a resource. `200`: granted under a *token*; `202`: still
/// waiting. The same idempotency key returns the same request.
#[utoipa::path(post, path = "/v1/pools/{pool}/requests", tag = "pools", params(("pool" = Name, Path), NamespaceQuery),
    request_body = CreatePoolRequest,
    responses((status = 200, body = PoolRequestView), (status = 202, body = PoolRequestView, description = "The request is waiting."),
        (status = 404, body = Problem, description = "The pool does not exist.")))]
pub(crate) async fn create_request(
    State(app): State<App>,
    principal: Principal,
    permit: RequestPermitHandle,
    PathParams(pool): PathParams<Name>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(body): JsonBody<CreatePoolRequest>,
) -> Result<Response, Problem> {
    let wait = validate_wait(body.wait_ms)?;
    let claim_timeout_ms =
        body.claim_timeout_ms.or_else(|| body.session.is_none().then_some(CLAIM_TIMEOUT_MS));
    validate_claim_lifetime(&app, &principal, body.session.as_ref(), claim_timeout_ms).await?;
    let request = PoolRequest {
        idempotency_key: body.idempotency_key,
        owner: owner(&principal, body.owner)?,
        required_tags: body.required_tags,
        preferred_tags: body.preferred_tags,
        base_priority: body.base_priority.unwrap_or(BASE_PRIORITY),
        session: body.session,
        claim_timeout_ms,
        max_wait_ms: body.max_wait_ms,
    };
    validate_pool_request(&request).map_err(request_problem)?;
    let key = PoolKey::new(within.namespace, pool);
    let created = match body.match_now {
        false => app.store.create_pool_request(&key, &request).await.map_err(Problem::from),
        true => wait::request_and_wait(&app, &permit, &key, &request, wait).await,
    };
    match created {
        Ok(view) => Ok(request_response(view)),
        // The pool does not exist, or another owner has a request with this key.
        Err(problem) if problem.code == "rejected-by-store" => {
            find(&app, &key).await?;
            Err(problem.field("idempotency_key"))
        }
        Err(problem) => Err(problem),
    }
}

/// Get a request
///
/// Its state, and the granted resource.
#[utoipa::path(get, path = "/v1/requests/{request}", tag = "pools", params(("request" = u64, Path), NamespaceQuery),
    responses((status = 200, body = PoolRequestView)))]
pub(crate) async fn get_request(
    State(app): State<App>,
    PathParams(request): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<PoolRequestView>, Problem> {
    find_request(&app, &within.namespace, validate_request_id(request)?).await.map(Json)
}

/// Result of a match.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PoolMatchResponse {
    /// Granted requests.
    granted: Vec<PoolRequestView>,
    /// Why nothing was granted, if the match was refused.
    #[schema(value_type = Option<serde_json::Value>)]
    refusal: Option<ClaimRefusal>,
}

/// Match a waiting request with the free resources.
#[utoipa::path(post, path = "/internal/v1/pools/{pool}/requests/{request}/match", tag = "internal",
    params(("pool" = Name, Path), ("request" = u64, Path), NamespaceQuery), responses((status = 200, body = PoolMatchResponse)))]
pub(crate) async fn match_request(
    State(app): State<App>,
    PathParams((pool, request)): PathParams<(Name, u64)>,
    QueryParams(within): QueryParams<NamespaceQuery>,
) -> Result<Json<PoolMatchResponse>, Problem> {
    let (key, id) = (PoolKey::new(within.namespace, pool), validate_request_id(request)?);
    Ok(Json(match wait::matched(&app, &key, id).await? {
        Ok(granted) => PoolMatchResponse { granted, refusal: None },
        Err(refusal) => PoolMatchResponse { granted: Vec::new(), refusal: Some(refusal) },
    }))
}

/// Release a resource
///
/// Releases the resource, or cancels the request if it is waiting.
#[utoipa::path(post, path = "/v1/requests/{request}/release", tag = "pools", params(("request" = u64, Path), NamespaceQuery),
    request_body = Option<ReleaseResourceRequest>,
    responses((status = 200, body = PoolRequestView), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn release_request(
    State(app): State<App>,
    principal: Principal,
    PathParams(request): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    OptionalJsonBody(letting): OptionalJsonBody<ReleaseResourceRequest>,
) -> Result<Json<PoolRequestView>, Problem> {
    letting.token.map_or(Ok(()), validate_token)?;
    let owner = owner(&principal, letting.owner)?;
    update_request(&app, within.namespace, request, &owner, letting.token, PoolRequestAction::Release).await
}

/// Send a heartbeat for a resource
///
/// Extends the claim by `claim_timeout_ms` from now.
#[utoipa::path(post, path = "/v1/requests/{request}/heartbeat", tag = "pools", params(("request" = u64, Path), NamespaceQuery),
    request_body = RequestHeartbeatRequest,
    responses((status = 200, body = PoolRequestView), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn heartbeat_request(
    State(app): State<App>,
    principal: Principal,
    PathParams(request): PathParams<u64>,
    QueryParams(within): QueryParams<NamespaceQuery>,
    JsonBody(extension): JsonBody<RequestHeartbeatRequest>,
) -> Result<Json<PoolRequestView>, Problem> {
    validate_token(extension.token)?;
    validate_claim_timeout(extension.claim_timeout_ms)?;
    let owner = owner(&principal, extension.owner)?;
    let extend = PoolRequestAction::Heartbeat(extension.claim_timeout_ms);
    update_request(&app, within.namespace, request, &owner, Some(extension.token), extend).await
}

async fn update_request(
    app: &App,
    namespace: Name,
    request: u64,
    owner: &str,
    token: Option<Token>,
    action: PoolRequestAction,
) -> Result<Json<PoolRequestView>, Problem> {
    let id = validate_request_id(request)?;
    let done = app.store.update_pool_request(&namespace, id, owner, token, action).await?;
    let view = find_request(app, &namespace, id).await?;
    if done {
        return Ok(Json(view));
    }
    Err(claim_lost(&view, owner, token))
}

/// Problem: the claim was lost, or the request belongs to another owner.
fn claim_lost(view: &PoolRequestView, owner: &str, token: Option<Token>) -> Problem {
    if view.request.owner != owner {
        let detail = format!("request {} does not belong to {owner}", view.id);
        return Problem::new(StatusCode::FORBIDDEN, "request-owned-by-other", detail)
            .field("owner")
            .remedy("only the owner of a request can release or extend it");
    }
    let held = match (view.state, view.token) {
        (PoolRequestState::Granted, Some(held)) => format!("it is granted under token {held}"),
        (state, _) => format!("it is {}", state.as_str()),
    };
    let under = token.map_or_else(|| "waiting".to_owned(), |token| format!("granted under token {token}"));
    let detail = format!("request {} is not {under}: {held}", view.id);
    Problem::new(StatusCode::CONFLICT, "claim-lost", detail)
        .field("token")
        .remedy("stop using the resource and request another")
}

/// Owner of a request: the principal, or a client behind it.
fn owner(principal: &Principal, owner: Option<String>) -> Result<String, Problem> {
    let Some(owner) = owner else { return Ok(principal.name.to_string()) };
    validate_display_text("owner", &owner)?;
    // Responses show the owner as `OWNER (PRINCIPAL)`. Clients may send it back in that form.
    let is_signed = owner.ends_with(&format!(" ({})", principal.name));
    Ok(if is_signed { owner } else { display_actor(principal, &owner) })
}

/// Response: `200` for a granted request, `202` for a waiting one.
fn request_response(view: PoolRequestView) -> Response {
    let status = match view.state {
        PoolRequestState::Waiting => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    (status, Json(view)).into_response()
}

fn validate_request_id(request: u64) -> Result<PoolRequestId, Problem> {
    if i64::try_from(request).is_ok() {
        Ok(PoolRequestId(request))
    } else {
        Err(no_such_request(PoolRequestId(request)))
    }
}

async fn find(app: &App, key: &PoolKey) -> Result<PoolView, Problem> {
    app.store.pool(key).await?.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-pool", format!("pool {key} does not exist"))
            .field("pool")
            .remedy("GET /v1/pools lists pools; PUT creates one, and so does adding a resource")
    })
}

async fn find_request(app: &App, namespace: &Name, id: PoolRequestId) -> Result<PoolRequestView, Problem> {
    app.store.pool_request(namespace, id).await?.ok_or_else(|| no_such_request(id))
}

fn no_such_request(id: PoolRequestId) -> Problem {
    let detail = format!("request {id} does not exist in this namespace, or was pruned");
    Problem::new(StatusCode::NOT_FOUND, "no-such-request", detail)
        .field("request")
        .remedy("GET the pool to list waiting and granted requests")
}
