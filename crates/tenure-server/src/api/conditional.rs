//! Responses from the snapshot: age, `ETag` and `304`.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{AGE, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::election_types::millis;
use crate::App;
use crate::snapshot::elections::ElectionsSnapshot;

/// Age of the snapshot in milliseconds.
const AGE_MS: HeaderName = HeaderName::from_static("tenure-snapshot-age-ms");
/// Kind of the last store error, if any.
const STORE_ERROR: HeaderName = HeaderName::from_static("tenure-store-error");

/// JSON response from the snapshot.
pub(crate) fn snapshot_response(app: &App, snapshot: &ElectionsSnapshot, body: Bytes) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    dated(app, snapshot, response)
}

/// JSON response with an `ETag`; `304` if the client has the same version.
pub(crate) fn tagged_response(
    app: &App,
    snapshot: &ElectionsSnapshot,
    headers: &HeaderMap,
    version: &str,
    body: Option<Bytes>,
) -> Response {
    // A weak tag, because responses of one version may differ in heartbeat times.
    let tag = format!("W/\"{version}\"");
    let mut response = match body {
        _ if is_known(headers, &tag) => dated(app, snapshot, StatusCode::NOT_MODIFIED.into_response()),
        Some(body) => snapshot_response(app, snapshot, body),
        None => dated(app, snapshot, StatusCode::NO_CONTENT.into_response()),
    };
    // A version consists of hexadecimal digits, so the conversion succeeds.
    response.headers_mut().extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
    response
}

fn dated(app: &App, snapshot: &ElectionsSnapshot, mut response: Response) -> Response {
    let age = snapshot.age(app.runtime.now());
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(AGE, HeaderValue::from(age.as_secs()));
    headers.insert(AGE_MS, HeaderValue::from(millis(age)));
    let error = snapshot.error.as_ref().and_then(|error| HeaderValue::try_from(error_word(error.kind)).ok());
    headers.extend(error.map(|word| (STORE_ERROR, word)));
    response
}

/// Error kind as a word.
pub(crate) fn error_word(error: tenure::port::ErrorKind) -> String {
    serde_json::to_value(error).ok().and_then(|word| word.as_str().map(Into::into)).unwrap_or_default()
}

fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let named = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let strong = tag.trim_start_matches("W/");
    named.flat_map(|list| list.split(',')).map(str::trim).any(|one| one == tag || one == strong)
}
