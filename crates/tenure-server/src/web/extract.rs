//! Extractors of paths, queries and forms. They render a rejection as a page.

use std::fmt::Display;

use axum::extract::{Form, FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::layout::{PageContext, problem_page};
use crate::App;
use crate::problem::Problem;

/// Extractor of the path or the query.
pub(super) struct PageParams<E>(pub(super) E);

impl<E> FromRequestParts<App> for PageParams<E>
where
    E: FromRequestParts<App>,
    E::Rejection: Display + IntoResponse,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        match E::from_request_parts(parts, app).await {
            Ok(params) => Ok(PageParams(params)),
            Err(rejection) => Err(rejected(&PageContext::of(parts, app), rejection)),
        }
    }
}

/// Extractor of a form.
pub(super) struct FormBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<App> for FormBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &App) -> Result<Self, Response> {
        let (parts, body) = request.into_parts();
        let ctx = PageContext::of(&parts, app);
        let request = Request::from_parts(parts, body);
        let form = Form::from_request(request, app).await;
        form.map(|Form(form)| FormBody(form)).map_err(|rejection| rejected(&ctx, rejection))
    }
}

fn rejected(ctx: &PageContext, rejection: impl Display + IntoResponse) -> Response {
    let detail = rejection.to_string();
    let status = rejection.into_response().status();
    problem_page(ctx, &Problem::new(status, "invalid-value", detail).remedy("Go back and correct the form."))
}
