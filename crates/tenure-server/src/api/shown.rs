//! Answers from what the board has: how old they are, and whether the asker has them already.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{AGE, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::shape::millis;
use crate::App;
use crate::board::Seen;

/// How many milliseconds ago this server last looked at everything.
const AGE_MS: HeaderName = HeaderName::from_static("tenure-age-ms");
/// What kind of trouble this server has with its store, if it has any.
const TROUBLE: HeaderName = HeaderName::from_static("tenure-trouble");

/// An answer in JSON, from what was seen.
pub(crate) fn shown(app: &App, seen: &Seen, body: Bytes) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    dated(app, seen, response)
}

/// An answer that its asker may have already: those who name the same version get no body.
pub(crate) fn tagged(
    app: &App,
    seen: &Seen,
    asked: &HeaderMap,
    version: &str,
    body: Option<Bytes>,
) -> Response {
    // Weak: the beats in it may be others.
    let tag = format!("W/\"{version}\"");
    let mut response = match body {
        _ if is_known(asked, &tag) => dated(app, seen, StatusCode::NOT_MODIFIED.into_response()),
        Some(body) => shown(app, seen, body),
        None => dated(app, seen, StatusCode::NO_CONTENT.into_response()),
    };
    // A version is hexadecimal digits.
    response.headers_mut().extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
    response
}

fn dated(app: &App, seen: &Seen, mut response: Response) -> Response {
    let age = seen.age(app.runtime.now());
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(AGE, HeaderValue::from(age.as_secs()));
    headers.insert(AGE_MS, HeaderValue::from(millis(age)));
    let trouble = seen.trouble.as_ref().and_then(|error| HeaderValue::try_from(word(error.kind)).ok());
    headers.extend(trouble.map(|word| (TROUBLE, word)));
    response
}

/// A kind of trouble, as programs know it.
pub(crate) fn word(trouble: tenure::port::Trouble) -> String {
    serde_json::to_value(trouble).ok().and_then(|word| word.as_str().map(Into::into)).unwrap_or_default()
}

fn is_known(asked: &HeaderMap, tag: &str) -> bool {
    let named = asked.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let strong = tag.trim_start_matches("W/");
    named.flat_map(|list| list.split(',')).map(str::trim).any(|one| one == tag || one == strong)
}
