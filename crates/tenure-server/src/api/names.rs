//! Names: who has which, answered from the board; and those of the cluster that this server has joined by gossip.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use tenure::cluster::{NAMES, NameView, Registry};
use tenure::port::Verb;
use tenure::{ElectionKey, Name};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::given::{At, In};
use super::shape;
use super::shown::{shown, tagged};
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{Need, Routes};

pub(crate) fn routes() -> Routes {
    // Each looks for itself whether the registry's namespace may be read: it is another than `default`.
    Routes::new().api(Need::Known, routes!(list)).api(Need::Known, routes!(show))
}

/// Which registry, and how sure the answer has to be.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Where {
    /// The namespace of the registry.
    #[serde(default = "names")]
    #[param(default = "names")]
    namespace: Name,
    /// Ask the store, instead of answering with what was seen last.
    #[serde(default)]
    consistent: bool,
    /// The names of the cluster that this server has joined by gossip, instead of the store's. They have no token, and in a netsplit each
    /// side may have its own.
    #[serde(default)]
    soft: bool,
}

/// The namespace of names, unless another is chosen.
pub(crate) fn names() -> Name {
    NAMES.parse().unwrap_or_else(|_| Name::default_namespace())
}

/// The names of a registry.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Names {
    /// The names that somebody has, in their order.
    names: Vec<NameView>,
}

/// List names
///
/// Who has which, under which token, and what it says of itself.
#[utoipa::path(get, path = "/v1/names", tag = "names", params(Where), responses((status = 200, body = Names)))]
pub(crate) async fn list(
    State(app): State<App>,
    principal: Principal,
    In(at): In<Where>,
) -> Result<Response, Problem> {
    principal.must(Verb::Read, Some(&at.namespace))?;
    if at.soft {
        return Ok(Json(Names { names: softly(&app).await? }).into_response());
    }
    let seen = if at.consistent { app.board.look_at_all().await? } else { app.board.known().await? };
    let all = seen.elections.iter().filter(|(key, _)| key.namespace == at.namespace);
    let names = all.filter_map(|(_, entry)| NameView::of(entry)).collect();
    Ok(shown(&app, &seen, shape::json(&Names { names })))
}

/// Show who has a name
///
/// `200` and who has it, `404` if nobody has it just now.
#[utoipa::path(get, path = "/v1/names/{name}", tag = "names",
    params(("name" = Name, Path), Where,
        ("if-none-match" = Option<String>, Header, description = "The `ETag` of what you have")),
    responses((status = 200, body = NameView, headers(("etag" = String), ("tenure-age-ms" = u64))),
        (status = 304, description = "It is as you have it."),
        (status = 404, body = Problem, description = "Nobody has it just now.")))]
pub(crate) async fn show(
    State(app): State<App>,
    principal: Principal,
    At(name): At<Name>,
    In(at): In<Where>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    principal.must(Verb::Read, Some(&at.namespace))?;
    if at.soft {
        let found = softly(&app).await?.into_iter().find(|view| view.name == name);
        return found.map(|view| Json(view).into_response()).ok_or_else(|| nobody(&name));
    }
    let key = ElectionKey::new(at.namespace, name);
    let seen = if at.consistent { app.board.look(&key).await? } else { app.board.known().await? };
    let found = seen.elections.get(&key).and_then(|entry| Some((entry, NameView::of(entry)?)));
    let (entry, view) = found.ok_or_else(|| nobody(&key.name))?;
    Ok(tagged(&app, &seen, &headers, entry.version(), Some(shape::json(&view))))
}

/// The names of the cluster that this server has joined by gossip.
async fn softly(app: &App) -> Result<Vec<NameView>, Problem> {
    let gossip = app.gossip.as_ref().ok_or_else(super::members::none)?;
    // What is heard is in memory: there is nothing that could fail.
    Ok(Registry::soft(gossip).list().await.unwrap_or_default())
}

fn nobody(name: &Name) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no-such-name", format!("nobody has the name {name}"))
        .field("name")
        .remedy("GET /v1/names lists those that somebody has")
}
