//! Who did what.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use tenure::Name;
use tenure::port::{Deed, Verb};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::routes;

use super::elections::number;
use super::given::In;
use crate::App;
use crate::access::Principal;
use crate::problem::Problem;
use crate::route::{Need, Routes};

/// How many deeds are on a page, unless asked otherwise, and at most.
const PAGE: (u32, u32) = (50, 500);

pub(crate) fn routes() -> Routes {
    Routes::new().api(Need::Known, routes!(list))
}

/// Which deeds.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Which {
    /// The tenant; without one, of all and of none, for those who may read everything.
    namespace: Option<Name>,
    /// Go on before this one: `next` of the page before.
    before: Option<i64>,
    /// How many at most.
    #[param(default = 50, minimum = 1, maximum = 500)]
    limit: Option<u32>,
}

/// A page of the audit.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deeds {
    /// The newest first.
    deeds: Vec<Deed>,
    /// Where the next page begins, if there may be one.
    next: Option<i64>,
}

/// Who did what, the newest first.
#[utoipa::path(get, path = "/v1/audit", tag = "server", params(Which),
    responses((status = 200, body = Deeds), (status = 400, body = Problem), (status = 403, body = Problem)))]
async fn list(
    State(app): State<App>,
    principal: Principal,
    In(which): In<Which>,
) -> Result<Json<Deeds>, Problem> {
    principal.must(Verb::Read, which.namespace.as_ref())?;
    let limit = number("limit", which.limit, PAGE)?;
    let deeds = app.store.deeds(which.namespace.as_ref(), which.before, limit).await?;
    let next = (deeds.len() == limit as usize).then(|| deeds.last().map(|deed| deed.n)).flatten();
    Ok(Json(Deeds { deeds, next }))
}
