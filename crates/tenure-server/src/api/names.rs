//! Registered names from the snapshot, and soft names from gossip.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tenure::cluster::{NAMES, RegisteredName, Registry};
use tenure::port::Permission;
use tenure::{ElectionKey, Name};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::conditional::{snapshot_response, tagged_response};
use super::election_types;
use super::extract::{PathParams, QueryParams};
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{RequiredPermission, Routes};

pub(crate) fn routes() -> Routes {
    // The handlers check the permission themselves: the namespace of the registry is not `default`.
    Routes::new()
        .api(RequiredPermission::AnyCredential, routes!(list_names))
        .api(RequiredPermission::AnyCredential, routes!(get_name))
}

/// Registry and consistency of a name query.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamesQuery {
    /// Namespace of the registry.
    #[serde(default = "names")]
    #[param(default = "names")]
    namespace: Name,
    /// Read the store instead of the snapshot.
    #[serde(default)]
    consistent: bool,
    /// List the soft names of the gossip cluster instead of the store's names. They have no token, and in a
    /// network split each side may have its own holder.
    #[serde(default)]
    soft: bool,
}

/// Default namespace of registered names.
pub(crate) fn names() -> Name {
    NAMES.parse().unwrap_or_else(|_| Name::default_namespace())
}

/// Registered names.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RegisteredNameList {
    /// Names with a holder, sorted.
    names: Vec<RegisteredName>,
}

/// List registered names
///
/// Each name with its holder, token and metadata.
#[utoipa::path(get, path = "/v1/names", tag = "cluster", params(NamesQuery), responses((status = 200, body = RegisteredNameList)))]
pub(crate) async fn list_names(
    State(app): State<App>,
    principal: Principal,
    QueryParams(at): QueryParams<NamesQuery>,
) -> Result<Response, Problem> {
    principal.require(Permission::Read, Some(&at.namespace))?;
    if at.soft {
        return Ok(Json(RegisteredNameList { names: soft_names(&app).await? }).into_response());
    }
    let snapshot =
        if at.consistent { app.elections.refresh_all().await? } else { app.elections.ready().await? };
    let all = snapshot.elections.iter().filter(|(key, _)| key.namespace == at.namespace);
    let names = all.filter_map(|(_, entry)| RegisteredName::of(entry)).collect();
    Ok(snapshot_response(&app, &snapshot, election_types::json(&RegisteredNameList { names })))
}

/// Get a registered name
///
/// `200` with the holder, `404` if the name has no holder now.
#[utoipa::path(get, path = "/v1/names/{name}", tag = "cluster",
    params(("name" = Name, Path), NamesQuery,
        ("if-none-match" = Option<String>, Header, description = "`ETag` of the representation that the client has")),
    responses((status = 200, body = RegisteredName, headers(("etag" = String), ("tenure-snapshot-age-ms" = u64))),
        (status = 304, description = "Not modified."),
        (status = 404, body = Problem, description = "The name has no holder now.")))]
pub(crate) async fn get_name(
    State(app): State<App>,
    principal: Principal,
    PathParams(name): PathParams<Name>,
    QueryParams(at): QueryParams<NamesQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    principal.require(Permission::Read, Some(&at.namespace))?;
    if at.soft {
        let found = soft_names(&app).await?.into_iter().find(|view| view.name == name);
        return found.map(|view| Json(view).into_response()).ok_or_else(|| no_such_name(&name));
    }
    let key = ElectionKey::new(at.namespace, name);
    let snapshot =
        if at.consistent { app.elections.refresh(&key).await? } else { app.elections.ready().await? };
    let found = snapshot.elections.get(&key).and_then(|entry| Some((entry, RegisteredName::of(entry)?)));
    let (entry, view) = found.ok_or_else(|| no_such_name(&key.name))?;
    Ok(tagged_response(&app, &snapshot, &headers, entry.version(), Some(election_types::json(&view))))
}

/// Soft names of the gossip cluster.
async fn soft_names(app: &App) -> Result<Vec<RegisteredName>, Problem> {
    let gossip = app.gossip.as_ref().ok_or_else(super::gossip::gossip_disabled)?;
    // The list is in memory, so reading it cannot fail.
    Ok(Registry::soft(gossip).list().await.unwrap_or_default())
}

fn no_such_name(name: &Name) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-name", format!("name {name} has no holder"))
        .field("name")
        .remedy("GET /v1/names lists the names with a holder")
}
