//! What a request gives: its body, the parts of its path, its query. What is wrong with them is told as a [`Problem`].

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Json, Path, Query, Request};
use http::StatusCode;
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// The body, as JSON.
pub(super) struct Given<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Given<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let told = |rejection: JsonRejection| {
            let status = rejection.status();
            let code = match status {
                StatusCode::PAYLOAD_TOO_LARGE => "body-too-large",
                StatusCode::UNSUPPORTED_MEDIA_TYPE => "not-json",
                StatusCode::UNPROCESSABLE_ENTITY => "unfit",
                _ => "malformed-body",
            };
            Problem::new(status, code, rejection.body_text()).remedy("/openapi.json says what is expected")
        };
        Json::from_request(request, state).await.map(|Json(body)| Given(body)).map_err(told)
    }
}

/// The parts of the path.
pub(super) struct At<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let told = |rejection: PathRejection| {
            Problem::new(StatusCode::BAD_REQUEST, "malformed-path", rejection.body_text())
        };
        Path::from_request_parts(parts, state).await.map(|Path(path)| At(path)).map_err(told)
    }
}

/// The query.
pub(super) struct In<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for In<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let told = |rejection: QueryRejection| {
            Problem::new(StatusCode::BAD_REQUEST, "malformed-query", rejection.body_text())
        };
        Query::from_request_parts(parts, state).await.map(|Query(query)| In(query)).map_err(told)
    }
}
