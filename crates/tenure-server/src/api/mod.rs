//! `/v1`: elections for whatever can speak HTTP, and the document that describes it.

mod campaign;
mod deeds;
mod elections;
mod given;
mod operate;
mod owned;
mod sessions;
mod shape;
mod shown;
mod store;

use tenure::port::Verb;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::routes;

pub(crate) use self::sessions::Hints;
use crate::route::{Need, Routes};

#[derive(utoipa::OpenApi)]
#[openapi(info(title = "Tenure", description = "One leads, many share."))]
struct Document;

/// The document without its paths.
pub(crate) fn document() -> OpenApi {
    Document::openapi()
}

/// The routes of the API.
pub(crate) fn routes() -> Routes {
    let read = Need::In(Verb::Read);
    Routes::new()
        .api(Need::Known, routes!(elections::list))
        .api(read, routes!(elections::show))
        .api(read, routes!(elections::leader))
        .api(read, routes!(elections::candidates))
        .api(read, routes!(elections::history))
        .api(Need::In(Verb::Lead), routes!(campaign::campaign))
        // Those who lead step down by themselves; it takes an operator to make others do so.
        .api(Need::In(Verb::Lead), routes!(operate::resign))
        .api(Need::In(Verb::Admin), routes!(operate::transfer))
        .api(Need::In(Verb::Admin), routes!(operate::pause))
        .api(Need::In(Verb::Admin), routes!(operate::resume))
        .api(Need::Known, routes!(store::show))
        .merge(sessions::routes())
}
