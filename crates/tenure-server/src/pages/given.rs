//! What a request gives to a page: parts of its address, and forms. What is wrong with them is told as a page.

use std::fmt::Display;

use axum::extract::{Form, FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::frame::{Visit, trouble};
use crate::App;
use crate::problem::Problem;

/// A part of the address.
pub(super) struct Got<E>(pub(super) E);

impl<E> FromRequestParts<App> for Got<E>
where
    E: FromRequestParts<App>,
    E::Rejection: Display + IntoResponse,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        match E::from_request_parts(parts, app).await {
            Ok(given) => Ok(Got(given)),
            Err(rejection) => Err(refused(&Visit::of(parts, app), rejection)),
        }
    }
}

/// A form.
pub(super) struct Posted<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<App> for Posted<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let visit = Visit::of(&parts, app);
        let request = Request::from_parts(parts, body);
        let form = Form::from_request(request, app).await;
        form.map(|Form(given)| Posted(given)).map_err(|rejection| refused(&visit, rejection))
    }
}

fn refused(visit: &Visit, rejection: impl Display + IntoResponse) -> Response {
    let detail = rejection.to_string();
    let status = rejection.into_response().status();
    trouble(visit, &Problem::new(status, "unfit", detail).remedy("go back, and fill in the form once more"))
}
