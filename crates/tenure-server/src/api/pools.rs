//! Pools: resources, and requests that wait for one that fits.
//!
//! A request belongs to who made it, by the name that the server knows them under: nobody else extends or releases it.

mod waiting;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tenure::port::{
    BASE_PRIORITY, ClaimRefusal, Handle, NewRequest, NewResource, PoolKey, PoolSettings, PoolView, RequestId,
    RequestState, RequestView, Trouble, Verb,
};
use tenure::{Name, SessionId, Token};
use tenure_core::claim::{check_pool, check_request, check_resources};
use utoipa::ToSchema;
use utoipa_axum::routes;

use super::campaign::plausible_token;
use super::claims::{check_hold, check_life, patient};
use super::deeds::{By, record_of};
use super::given::{At, Given, In, MaybeGiven};
use super::sense::of_ask;
use super::sessions::{Whose, Within, short, signed, unfit};
use crate::App;
use crate::access::{Principal, Slot};
use crate::problem::Problem;
use crate::quota::{self, Object};
use crate::route::{Need, Routes};

/// The most resources that are put into a pool at once.
const RESOURCES_MAX: usize = 1000;
/// How long a claim of a resource without a session lasts, unless it says otherwise.
const HOLD_MS: u64 = 60_000;

pub(crate) fn routes() -> Routes {
    let (read, work, admin) = (Need::In(Verb::Read), Need::In(Verb::Claim), Need::In(Verb::Admin));
    Routes::new()
        .api(Need::Known, routes!(list))
        .api(read, routes!(show))
        .api(admin, routes!(set))
        .api(admin, routes!(put_resource))
        .api(admin, routes!(put_resources))
        .api(admin, routes!(remove_resource))
        .api(work, routes!(request))
        .api(read, routes!(show_request))
        .api(work, routes!(look_again))
        .api(work, routes!(release))
        .api_heartbeat(work, routes!(extend))
}

/// Pools.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PoolList {
    /// The pools, by namespace and name.
    pools: Vec<PoolView>,
}

/// How a resource is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tags": ["gpu", "rack-7"]}))]
pub(crate) struct Resource {
    /// What it has.
    #[serde(default)]
    tags: Vec<String>,
    /// Whether it is handed out. A resource that is held stays held.
    #[serde(default = "yes")]
    #[schema(default = true)]
    enabled: bool,
}

fn yes() -> bool {
    true
}

/// Resources, to be put into a pool at once.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resources {
    /// The resources.
    resources: Vec<NewResource>,
}

/// A wish for a resource.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"key": "job-7", "requires": ["gpu"], "hold_ms": 600000, "wait_ms": 30000}))]
pub(crate) struct Wish {
    /// Asked again under the same key, while the first is waiting or granted: the first one.
    #[schema(max_length = 1024, example = "job-7")]
    key: String,
    /// Who asks, if there are several behind one principal.
    owner: Option<String>,
    /// Tags that the resource must have, all of them.
    #[serde(default)]
    requires: Vec<String>,
    /// Tags that it had better have: of the free ones that do, the one with the most.
    #[serde(default)]
    prefers: Vec<String>,
    /// The base of its priority.
    #[schema(default = 100)]
    base: Option<i32>,
    /// The session on whose beat the request and the claim live, opened through a server by whoever asks.
    session: Option<SessionId>,
    /// How long the claim lasts unless it is extended; without a session, a minute unless said otherwise.
    #[schema(minimum = 1, maximum = 86400000, default = 60000)]
    hold_ms: Option<u64>,
    /// Given up if nothing fits for this long.
    max_wait_ms: Option<u64>,
    /// Whether it is looked at once whether something fits; otherwise it only waits, for `match`.
    #[serde(default = "yes")]
    #[schema(default = true)]
    look: bool,
    /// How long this request waits for a resource. The wish itself waits on.
    #[serde(default)]
    #[schema(default = 0, maximum = 60000)]
    wait_ms: u64,
}

/// A claim of a resource, or a request that still waits.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 3}))]
pub(crate) struct Letting {
    /// The token of the claim; none while it waits.
    token: Option<Token>,
    /// Whose it is, if it was said when it was asked for.
    owner: Option<String>,
}

/// A claim of a resource that goes on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"token": 3, "hold_ms": 600000}))]
pub(crate) struct Extension {
    /// The token of the claim.
    token: Token,
    /// How long it lasts from now.
    #[schema(minimum = 1, maximum = 86400000)]
    hold_ms: u64,
    /// Whose it is, if it was said when it was asked for.
    owner: Option<String>,
}

/// List pools
///
/// With their resources, who has them, and who waits.
#[utoipa::path(get, path = "/v1/pools", tag = "pools", params(Whose), responses((status = 200, body = PoolList)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(whose): In<Whose>,
) -> Result<Json<PoolList>, Problem> {
    principal.must_list(whose.namespace.as_ref())?;
    let mut pools = app.store.pools(whose.namespace.as_ref()).await?;
    pools.retain(|pool| principal.may(Verb::Read, Some(&pool.key.namespace)));
    Ok(Json(PoolList { pools }))
}

/// Show a pool
///
/// Its resources, who has them, and who waits, the next one first.
#[utoipa::path(get, path = "/v1/pools/{pool}", tag = "pools", params(("pool" = Name, Path), Within),
    responses((status = 200, body = PoolView)))]
pub(crate) async fn show(
    State(app): State<App>,
    At(pool): At<Name>,
    In(within): In<Within>,
) -> Result<Json<PoolView>, Problem> {
    find(&app, &PoolKey::new(within.namespace, pool)).await.map(Json)
}

/// Set a pool
///
/// Makes it, or sets it anew: what is left out is as usual.
#[utoipa::path(put, path = "/v1/pools/{pool}", tag = "pools", params(("pool" = Name, Path), Within),
    request_body = PoolSettings, responses((status = 200, body = PoolView)))]
pub(crate) async fn set(
    State(app): State<App>,
    by: By,
    At(pool): At<Name>,
    In(within): In<Within>,
    Given(settings): Given<PoolSettings>,
) -> Result<Json<PoolView>, Problem> {
    short("priority", &settings.priority)?;
    check_pool(&settings).map_err(of_ask)?;
    let key = PoolKey::new(within.namespace, pool);
    quota::check(&app, Object::Pool(&key)).await?;
    app.store.set_pool(&key, &settings).await?;
    let detail = serde_json::to_string(&settings).unwrap_or_default();
    record_of(&app, &by, "pool.set", &key.namespace, key.name.as_str(), detail).await;
    find(&app, &key).await.map(Json)
}

/// Put a resource into a pool
///
/// Or change how one is that is there. The pool is made, if it is not there.
#[utoipa::path(put, path = "/v1/pools/{pool}/resources/{resource}", tag = "pools",
    params(("pool" = Name, Path), ("resource" = Name, Path), Within), request_body = Option<Resource>,
    responses((status = 204)))]
pub(crate) async fn put_resource(
    State(app): State<App>,
    by: By,
    At((pool, name)): At<(Name, Name)>,
    In(within): In<Within>,
    MaybeGiven(resource): MaybeGiven<Resource>,
) -> Result<StatusCode, Problem> {
    let resource = NewResource { name, tags: resource.tags, enabled: resource.enabled };
    add(&app, &by, PoolKey::new(within.namespace, pool), vec![resource]).await
}

/// Put many resources into a pool
///
/// All at once, as one by one.
#[utoipa::path(post, path = "/v1/pools/{pool}/resources", tag = "pools", params(("pool" = Name, Path), Within),
    request_body = Resources, responses((status = 204)))]
pub(crate) async fn put_resources(
    State(app): State<App>,
    by: By,
    At(pool): At<Name>,
    In(within): In<Within>,
    Given(Resources { resources }): Given<Resources>,
) -> Result<StatusCode, Problem> {
    if resources.is_empty() || resources.len() > RESOURCES_MAX {
        let detail = format!("{} resources can not be put into a pool at once", resources.len());
        return Err(unfit("resources", detail).remedy(format!("send between 1 and {RESOURCES_MAX}")));
    }
    add(&app, &by, PoolKey::new(within.namespace, pool), resources).await
}

async fn add(app: &App, by: &By, key: PoolKey, resources: Vec<NewResource>) -> Result<StatusCode, Problem> {
    check_resources(&resources).map_err(of_ask)?;
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

/// Take a resource out of a pool
///
/// Not while somebody has it: disable it, and it is not handed out again.
#[utoipa::path(delete, path = "/v1/pools/{pool}/resources/{resource}", tag = "pools",
    params(("pool" = Name, Path), ("resource" = Name, Path), Within),
    responses((status = 204), (status = 404, body = Problem, description = "It is not there."),
        (status = 409, body = Problem, description = "Somebody has it.")))]
pub(crate) async fn remove_resource(
    State(app): State<App>,
    by: By,
    At((pool, resource)): At<(Name, Name)>,
    In(within): In<Within>,
) -> Result<StatusCode, Problem> {
    let key = PoolKey::new(within.namespace, pool);
    let removed = app.store.remove_resource(&key, &resource).await.map_err(|error| match error.kind {
        // The one thing that a store has against it.
        Trouble::Request => {
            Problem::told(StatusCode::CONFLICT, "resource-held", &error.message).field("resource")
        }
        _ => Problem::from(error),
    });
    if !removed? {
        let detail = format!("there is no resource {resource} in {key}");
        return Err(Problem::new(StatusCode::NOT_FOUND, "no-such-resource", detail)
            .field("resource")
            .remedy("GET the pool lists those that there are"));
    }
    let target = format!("{}/{resource}", key.name);
    record_of(&app, &by, "resource.remove", &key.namespace, &target, String::new()).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Ask for a resource
///
/// The request waits until a resource fits, and this one waits up to `wait_ms` for it. `200`: it has one, under a *token*; `202`: it
/// still waits. Asked again under the same key, it is the same request.
#[utoipa::path(post, path = "/v1/pools/{pool}/requests", tag = "pools", params(("pool" = Name, Path), Within),
    request_body = Wish,
    responses((status = 200, body = RequestView), (status = 202, body = RequestView, description = "It still waits."),
        (status = 404, body = Problem, description = "There is no such pool.")))]
pub(crate) async fn request(
    State(app): State<App>,
    principal: Principal,
    slot: Slot,
    At(pool): At<Name>,
    In(within): In<Within>,
    Given(wish): Given<Wish>,
) -> Result<Response, Problem> {
    let wait = patient(wish.wait_ms)?;
    let hold_ms = wish.hold_ms.or_else(|| wish.session.is_none().then_some(HOLD_MS));
    check_life(&app, &principal, wish.session.as_ref(), hold_ms).await?;
    let request = NewRequest {
        key: wish.key,
        owner: owner(&principal, wish.owner)?,
        requires: wish.requires,
        prefers: wish.prefers,
        base: wish.base.unwrap_or(BASE_PRIORITY),
        session: wish.session,
        hold_ms,
        max_wait_ms: wish.max_wait_ms,
    };
    check_request(&request).map_err(of_ask)?;
    let key = PoolKey::new(within.namespace, pool);
    let asked = match wish.look {
        false => app.store.request(&key, &request).await.map_err(Problem::from),
        true => waiting::asked(&app, &slot, &key, &request, wait).await,
    };
    match asked {
        Ok(view) => Ok(told(view)),
        // There is no such pool; or else the key is another's.
        Err(problem) if problem.code == "refused-by-store" => {
            find(&app, &key).await?;
            Err(problem.field("key"))
        }
        Err(problem) => Err(problem),
    }
}

/// Show a request
///
/// Where it stands, and what it got.
#[utoipa::path(get, path = "/v1/requests/{request}", tag = "pools", params(("request" = u64, Path), Within),
    responses((status = 200, body = RequestView)))]
pub(crate) async fn show_request(
    State(app): State<App>,
    At(request): At<u64>,
    In(within): In<Within>,
) -> Result<Json<RequestView>, Problem> {
    find_request(&app, &within.namespace, plausible_request(request)?).await.map(Json)
}

/// What came of a look.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Matched {
    /// Requests that got something.
    granted: Vec<RequestView>,
    /// Why nothing is handed out, if that is so.
    #[schema(value_type = Option<serde_json::Value>)]
    refused: Option<ClaimRefusal>,
}

/// Looks whether something fits a request that waits.
#[utoipa::path(post, path = "/v1/pools/{pool}/requests/{request}/match", tag = "claims",
    params(("pool" = Name, Path), ("request" = u64, Path), Within), responses((status = 200, body = Matched)))]
pub(crate) async fn look_again(
    State(app): State<App>,
    At((pool, request)): At<(Name, u64)>,
    In(within): In<Within>,
) -> Result<Json<Matched>, Problem> {
    let (key, id) = (PoolKey::new(within.namespace, pool), plausible_request(request)?);
    Ok(Json(match waiting::matched(&app, &key, id).await? {
        Ok(granted) => Matched { granted, refused: None },
        Err(refusal) => Matched { granted: Vec::new(), refused: Some(refusal) },
    }))
}

/// Release a resource
///
/// Gives it back; or calls the request off, if it still waits.
#[utoipa::path(post, path = "/v1/requests/{request}/release", tag = "pools", params(("request" = u64, Path), Within),
    request_body = Option<Letting>,
    responses((status = 200, body = RequestView), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn release(
    State(app): State<App>,
    principal: Principal,
    At(request): At<u64>,
    In(within): In<Within>,
    MaybeGiven(letting): MaybeGiven<Letting>,
) -> Result<Json<RequestView>, Problem> {
    letting.token.map_or(Ok(()), plausible_token)?;
    let owner = owner(&principal, letting.owner)?;
    handle(&app, within.namespace, request, &owner, letting.token, Handle::Release).await
}

/// Extend the claim of a resource
///
/// It lasts another `hold_ms` from now.
#[utoipa::path(post, path = "/v1/requests/{request}/extend", tag = "pools", params(("request" = u64, Path), Within),
    request_body = Extension,
    responses((status = 200, body = RequestView), (status = 409, body = Problem, description = "The claim was lost.")))]
pub(crate) async fn extend(
    State(app): State<App>,
    principal: Principal,
    At(request): At<u64>,
    In(within): In<Within>,
    Given(extension): Given<Extension>,
) -> Result<Json<RequestView>, Problem> {
    plausible_token(extension.token)?;
    check_hold(extension.hold_ms)?;
    let owner = owner(&principal, extension.owner)?;
    let extend = Handle::Extend(extension.hold_ms);
    handle(&app, within.namespace, request, &owner, Some(extension.token), extend).await
}

async fn handle(
    app: &App,
    namespace: Name,
    request: u64,
    owner: &str,
    token: Option<Token>,
    handle: Handle,
) -> Result<Json<RequestView>, Problem> {
    let id = plausible_request(request)?;
    let done = app.store.handle_request(&namespace, id, owner, token, handle).await?;
    let view = find_request(app, &namespace, id).await?;
    if done {
        return Ok(Json(view));
    }
    Err(lost(&view, owner, token))
}

/// The claim was lost, or is another's.
fn lost(view: &RequestView, owner: &str, token: Option<Token>) -> Problem {
    if view.request.owner != owner {
        let detail = format!("request {} belongs to somebody else than {owner}", view.id);
        return Problem::new(StatusCode::FORBIDDEN, "not-your-request", detail)
            .field("owner")
            .remedy("only who asked for a resource gives it back or extends it");
    }
    let held = match (view.state, view.token) {
        (RequestState::Granted, Some(held)) => format!("it is granted under token {held}"),
        (state, _) => format!("it is {}", state.as_str()),
    };
    let under = token.map_or_else(|| "waiting".to_owned(), |token| format!("granted under token {token}"));
    let detail = format!("request {} is not {under}: {held}", view.id);
    Problem::new(StatusCode::CONFLICT, "claim-lost", detail)
        .field("token")
        .remedy("do not use the resource any more; ask for one anew")
}

/// Whose a request is: the principal's, or of somebody behind it.
fn owner(principal: &Principal, given: Option<String>) -> Result<String, Problem> {
    let Some(owner) = given else { return Ok(principal.name.to_string()) };
    short("owner", &owner)?;
    // As it was shown to them.
    let is_signed = owner.ends_with(&format!(" ({})", principal.name));
    Ok(if is_signed { owner } else { signed(principal, &owner) })
}

/// A request that has what it wants, or waits for it.
fn told(view: RequestView) -> Response {
    let status = match view.state {
        RequestState::Waiting => StatusCode::ACCEPTED,
        _ => StatusCode::OK,
    };
    (status, Json(view)).into_response()
}

fn plausible_request(request: u64) -> Result<RequestId, Problem> {
    if i64::try_from(request).is_ok() { Ok(RequestId(request)) } else { Err(none(RequestId(request))) }
}

async fn find(app: &App, key: &PoolKey) -> Result<PoolView, Problem> {
    app.store.pool(key).await?.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "no-such-pool", format!("there is no pool {key}"))
            .field("pool")
            .remedy("GET /v1/pools lists those that there are; a PUT, or a resource, makes one")
    })
}

async fn find_request(app: &App, namespace: &Name, id: RequestId) -> Result<RequestView, Problem> {
    app.store.pool_request(namespace, id).await?.ok_or_else(|| none(id))
}

fn none(id: RequestId) -> Problem {
    let detail = format!("there is no request {id} in this namespace, or it ended long ago and is forgotten");
    Problem::new(StatusCode::NOT_FOUND, "no-such-request", detail)
        .field("request")
        .remedy("GET the pool lists those that wait and those that have something")
}
