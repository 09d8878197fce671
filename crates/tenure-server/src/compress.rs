//! Compression of responses for clients that accept gzip: pages, style sheets, scripts and JSON.
//!
//! Only complete responses to GET are compressed, not streams. The length of a compressed response reveals
//! something about its content to an attacker who controls a part of it and observes the traffic (BREACH).
//! Pages contain no CSRF tokens, cookies are `SameSite=Strict`, so another site cannot request pages as the
//! user, and responses with a secret are marked with [`Secret`] and stay uncompressed.

use std::io::Write as _;

use axum::body::Body;
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, VARY};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use crate::middleware::Secret;

/// Minimum size; smaller bodies do not shrink.
const LEAST: u64 = 860;
/// Maximum size, because the body is held in memory twice.
const MOST: u64 = 8 << 20;
/// Compressed content types; images and binary payloads are not compressed.
const KINDS: [&str; 6] = [
    "text/html",
    "text/css",
    "text/javascript",
    "application/json",
    "application/problem+json",
    "image/svg+xml",
];

/// Whether a client accepts gzip.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let all = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        let refused = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0_f32));
        matches!(name.trim(), "gzip" | "*") && !refused
    })
}

/// Compress a response if possible and accepted.
pub(crate) async fn compressed(response: Response, accepted: bool) -> Response {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let length = response.body().size_hint().exact();
    let fits = KINDS.contains(&kind)
        && length.is_some_and(|length| (LEAST..=MOST).contains(&length))
        && !response.headers().contains_key(CONTENT_ENCODING)
        && response.extensions().get::<Secret>().is_none();
    if !fits {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.append(VARY, HeaderValue::from_static("accept-encoding"));
    if !accepted {
        return Response::from_parts(parts, body);
    }
    // The length is known, so the body is already in memory.
    let Ok(whole) = body.collect().await else { return Response::from_parts(parts, Body::empty()) };
    let whole = whole.to_bytes();
    let mut encoder = GzEncoder::new(Vec::with_capacity(whole.len() / 4), Compression::new(4));
    let written = encoder.write_all(&whole).and_then(|()| encoder.finish());
    let Ok(short) = written else { return Response::from_parts(parts, Body::from(whole)) };
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(short))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use axum::response::IntoResponse as _;

    use super::*;

    #[test]
    fn accept_encoding_is_parsed() {
        let says = |text: &'static str| {
            is_accepted(&HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(text))]))
        };
        assert!(says("gzip") && says("br, gzip;q=0.5") && says("*"));
        assert!(!says("br") && !says("gzip;q=0") && !is_accepted(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn pages_are_compressed_but_not_secrets_and_streams() {
        let page = "<p>the same words again and again</p>".repeat(500);
        let answer = || ([(CONTENT_TYPE, "text/html; charset=utf-8")], page.clone()).into_response();
        let short = compressed(answer(), true).await;
        assert_eq!(short.headers()[CONTENT_ENCODING], "gzip");
        assert_eq!(short.headers()[VARY], "accept-encoding");
        let bytes = short.into_body().collect().await.expect("a body").to_bytes();
        assert!(bytes.len() < page.len() / 20, "{}", bytes.len());
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).expect("gzip");
        assert_eq!(text, page);
        let mut secret = answer();
        secret.extensions_mut().insert(Secret);
        let stream = Body::from_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(page.clone())]));
        let stream = ([(CONTENT_TYPE, "text/event-stream")], stream).into_response();
        let image = ([(CONTENT_TYPE, "image/png")], page.clone()).into_response();
        for (plain, accepted) in [(secret, true), (stream, true), (image, true), (answer(), false)] {
            let answer = compressed(plain, accepted).await;
            assert!(!answer.headers().contains_key(CONTENT_ENCODING));
            assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes(), page);
        }
    }
}
