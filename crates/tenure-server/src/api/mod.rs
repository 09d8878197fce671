//! `/v1`: elections for whatever can speak HTTP, and the document that describes it.

mod elections;
mod given;
mod sessions;

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
    Routes::new().api(Need::In(Verb::Read), routes!(elections::show)).merge(sessions::routes())
}
