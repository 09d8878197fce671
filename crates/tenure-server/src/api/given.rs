//! What a request gives: its body, the parts of its path, its query. What is wrong with them is told as a [`Problem`] that
//! names the part to blame.

use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, RawPathParams, Request};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::problem::Problem;

/// Where it is written what a request may give.
const REMEDY: &str = "/openapi.json says what is expected, and /docs says it for people";

/// The body, as JSON.
pub(crate) struct Given<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Given<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let Unread(body) = Unread::from_request(request, state).await?;
        parsed(&body).map(Given)
    }
}

/// The body, said to be JSON and not read yet: for what may be one thing or another. See [`parsed`].
pub(crate) struct Unread(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for Unread {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Problem::new(status, "not-json", "the body has to be JSON")
                .remedy("send the header `content-type: application/json`"));
        }
        Bytes::from_request(request, state).await.map(Unread).map_err(unread)
    }
}

/// The body, as JSON; nothing at all counts as an empty object.
pub(crate) struct MaybeGiven<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for MaybeGiven<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let json = is_json(request.headers());
        let body = Bytes::from_request(request, state).await.map_err(unread)?;
        match body.is_empty() {
            true => parsed(b"{}").map(MaybeGiven),
            false if json => parsed(&body).map(MaybeGiven),
            false => {
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                Err(Problem::new(status, "not-json", "the body has to be JSON")
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
            Problem::new(status, "body-too-large", "the body is larger than this server reads")
        }
        _ => Problem::new(StatusCode::BAD_REQUEST, "malformed-body", rejection.body_text()),
    }
}

/// Reads a body: an object. (A list with the values of its fields would do as well, and is what nobody means.)
pub(crate) fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    if body.trim_ascii_start().starts_with(b"[") {
        let told = "the body is a list, and an object is expected";
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", told).remedy(REMEDY));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, error) = (error.path().to_string(), error.into_inner());
        match error.classify() {
            Category::Data => {
                let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit", error.to_string());
                blaming(problem, &path, &error.to_string()).remedy(REMEDY)
            }
            _ => malformed(&error),
        }
    })?;
    json.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "malformed-body", format!("the body is no JSON: {error}"))
        .remedy(REMEDY)
}

/// Names the field: where the reader stood, or the one that the message quotes (``missing field `id` ``).
fn blaming(problem: Problem, path: &str, message: &str) -> Problem {
    let quoted = || message.split('`').nth(1).filter(|_| message.contains("field `"));
    match (path, quoted()) {
        ("." | "", Some(field)) => problem.field(field),
        ("." | "" | "?", _) => problem,
        (path, Some(field)) if message.starts_with("missing") => problem.field(format!("{path}.{field}")),
        (path, _) => problem.field(path),
    }
}

/// The parts of the path.
pub(crate) struct At<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let told = match Path::from_request_parts(parts, state).await {
            Ok(Path(path)) => return Ok(At(path)),
            Err(rejection) => rejection.body_text(),
        };
        let problem = Problem::new(StatusCode::BAD_REQUEST, "malformed-path", told.clone()).remedy(REMEDY);
        // With one part, that is the one; with more, the message quotes its name.
        let Ok(names) = RawPathParams::from_request_parts(parts, state).await else { return Err(problem) };
        let names: Vec<&str> = names.iter().map(|(name, _)| name).collect();
        let blamed = match names.as_slice() {
            [only] => Some(*only),
            several => several.iter().copied().find(|name| told.contains(&format!("`{name}`"))),
        };
        Err(match blamed {
            Some(name) => problem.field(name),
            None => problem,
        })
    }
}

/// The query.
pub(crate) struct In<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for In<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = serde_urlencoded::Deserializer::new(form_urlencoded::parse(query.as_bytes()));
        serde_path_to_error::deserialize(pairs).map(In).map_err(|error| {
            let (path, message) = (error.path().to_string(), error.into_inner().to_string());
            let problem = Problem::new(StatusCode::BAD_REQUEST, "malformed-query", message.clone());
            blaming(problem, &path, &message).remedy(REMEDY)
        })
    }
}
