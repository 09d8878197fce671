//! Extractors: JSON body, path parameters and query. A rejection is a [`Problem`] that names the invalid
//! part.

use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, RawPathParams, Request};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::problem::Problem;

/// Remedy for every malformed request.
const REMEDY: &str = "see /docs or /openapi.json for the expected form";

/// JSON body.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let RawJsonBody(body) = RawJsonBody::from_request(request, state).await?;
        parsed(&body).map(JsonBody)
    }
}

/// JSON body that is not parsed yet, for bodies with several forms. See [`parsed`].
pub(crate) struct RawJsonBody(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for RawJsonBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Problem::new(status, "unsupported-media-type", "the body is not declared as JSON")
                .remedy("send the header `content-type: application/json`"));
        }
        Bytes::from_request(request, state).await.map(RawJsonBody).map_err(unread)
    }
}

/// JSON body; an empty body counts as an empty object.
pub(crate) struct OptionalJsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let json = is_json(request.headers());
        let body = Bytes::from_request(request, state).await.map_err(unread)?;
        match body.is_empty() {
            true => parsed(b"{}").map(OptionalJsonBody),
            false if json => parsed(&body).map(OptionalJsonBody),
            false => {
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                Err(Problem::new(status, "unsupported-media-type", "the body is not declared as JSON")
                    .remedy("send the header `content-type: application/json`, or no body"))
            }
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json") || kind.to_ascii_lowercase().ends_with("+json")
}

fn unread(rejection: BytesRejection) -> Problem {
    match rejection.status() {
        status @ StatusCode::PAYLOAD_TOO_LARGE => {
            Problem::new(status, "body-too-large", "the body exceeds the size limit")
        }
        _ => Problem::new(StatusCode::BAD_REQUEST, "malformed-body", rejection.body_text()),
    }
}

/// Parse a body that must be an object. (serde would also accept an array of the field values.)
pub(crate) fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    if body.trim_ascii_start().starts_with(b"[") {
        let text = "the body is an array; an object is expected";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", text).remedy(REMEDY));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, error) = (error.path().to_string(), error.into_inner());
        match error.classify() {
            Category::Data => {
                let problem =
                    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", error.to_string());
                blaming(problem, &path, &error.to_string()).remedy(REMEDY)
            }
            _ => malformed(&error),
        }
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "malformed-body", format!("the body is not valid JSON: {error}"))
        .remedy(REMEDY)
}

/// Set the invalid field of a problem: the path that the parser reports, or the field that the message quotes
/// (``missing field `name` ``).
fn blaming(problem: Problem, path: &str, message: &str) -> Problem {
    let quoted = || message.split('`').nth(1).filter(|_| message.contains("field `"));
    match (path, quoted()) {
        ("." | "", Some(field)) => problem.field(field),
        ("." | "" | "?", _) => problem,
        (path, Some(field)) if message.starts_with("missing") => problem.field(format!("{path}.{field}")),
        (path, _) => problem.field(path),
    }
}

/// Path parameters.
pub(crate) struct PathParams<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = match Path::from_request_parts(parts, state).await {
            Ok(Path(path)) => return Ok(PathParams(path)),
            Err(rejection) => rejection.body_text(),
        };
        let problem = Problem::new(StatusCode::BAD_REQUEST, "malformed-path", text.clone()).remedy(REMEDY);
        // With one parameter, it is the invalid one; with several, the message quotes its name.
        let Ok(names) = RawPathParams::from_request_parts(parts, state).await else { return Err(problem) };
        let names: Vec<&str> = names.iter().map(|(name, _)| name).collect();
        let blamed = match names.as_slice() {
            [only] => Some(*only),
            several => several.iter().copied().find(|name| text.contains(&format!("`{name}`"))),
        };
        Err(match blamed {
            Some(name) => problem.field(name),
            None => problem,
        })
    }
}

/// Query parameters.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
        serde_path_to_error::deserialize(pairs).map(QueryParams).map_err(|error| {
            let (path, message) = (error.path().to_string(), error.into_inner().to_string());
            let problem = Problem::new(StatusCode::BAD_REQUEST, "malformed-query", message.clone());
            blaming(problem, &path, &message).remedy(REMEDY)
        })
    }
}
