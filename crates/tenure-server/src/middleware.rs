//! Outer middleware: request id, access log, security headers, and a 500 instead of a panic.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, REFERRER_POLICY,
    STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use tenure::runtime::Runtime;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::App;
use crate::access::access_token::redact;
use crate::access::{DeniedPrincipal, Principal, check_unrouted_request};
use crate::compress;
use crate::listen::Peer;
use crate::problem::{Problem, ProblemCause};
use crate::route::is_api;

/// Content security policy: no foreign content, nothing inline, no framing.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; \
     form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
);
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length of a request id from a client.
const ID_MAX: usize = 64;
/// Maximum run of letters and digits: secrets are longer; a trace id or a UUID without dashes has 32.
const RUN_MAX: usize = 32;

/// Response extension: the response shows a secret and must not be compressed, because the compressed length
/// reveals something about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret;

/// Request id: the client's own if it is valid, else a random one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestId(pub Arc<str>);

impl RequestId {
    fn of(headers: &HeaderMap, runtime: &dyn Runtime) -> RequestId {
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
        match given.filter(|id| is_id(id)) {
            Some(id) => RequestId(id.into()),
            None => RequestId(format!("{:016x}", runtime.random()).into()),
        }
    }
}

/// Whether a client's request id is valid. It is logged and written to the audit log, so possible secrets are
/// rejected: parts of access tokens, values of `Authorization` headers, and long runs of letters and digits.
fn is_id(text: &str) -> bool {
    let sane = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
    let run = text.split(|c: char| !c.is_ascii_alphanumeric()).map(str::len).max().unwrap_or(0);
    (1..=ID_MAX).contains(&text.len())
        && text.bytes().all(sane)
        && run <= RUN_MAX
        && !text.to_ascii_lowercase().contains("tenure_")
}

impl<S: Sync> FromRequestParts<S> for RequestId {
    type Rejection = std::convert::Infallible;
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<RequestId, Self::Rejection> {
        // Only a router without this middleware has requests without an id.
        Ok(parts.extensions.get().cloned().unwrap_or_else(|| RequestId("".into())))
    }
}

/// Wrap a request and its response.
pub(crate) async fn wrap(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let began = app.runtime.now();
    let id = RequestId::of(request.headers(), app.runtime.as_ref());
    for name in [AUTHORIZATION, COOKIE] {
        // Mark as sensitive, so that not even a trace log shows them.
        if let http::header::Entry::Occupied(mut values) = request.headers_mut().entry(name) {
            values.iter_mut().for_each(|value| value.set_sensitive(true));
        }
    }
    let peer = request.extensions().get::<Peer>().cloned();
    let method = request.method().clone();
    // The path may contain an access token.
    let path = redact(request.uri().path()).into_owned();
    let route = request.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    request.extensions_mut().insert(id.clone());
    if let Ok(value) = HeaderValue::from_str(&id.0) {
        request.headers_mut().insert(REQUEST_ID, value);
    }
    let gzip = method == Method::GET && compress::is_accepted(request.headers());
    let span = span(&id, &method, route.as_deref().unwrap_or("none"));
    let answered = AssertUnwindSafe(next.run(request).instrument(span.clone())).catch_unwind().await;
    let mut response = answered.unwrap_or_else(|_| {
        // The panic message is on the error stream.
        tracing::error!(id = %id.0, %method, path, "handler panicked");
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal-error",
            "the server failed because of a bug",
        )
        .remedy(format!("report it with the log lines of request {}", id.0))
        .into_response()
    });
    if method == Method::GET {
        response = compress::compressed(response, gzip).await;
    }
    let took = app.runtime.now().since(began);
    let status = response.status();
    span.record("status", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
    crate::metrics::answered(&method, route.as_deref().unwrap_or("none"), status, took);
    if let Some(ProblemCause(cause)) = response.extensions().get() {
        tracing::warn!(id = %id.0, %method, path, status = status.as_u16(), error = %cause, "store error");
    }
    let passed = response.extensions().get::<Principal>().map(|principal| principal.name.clone());
    let principal = passed.or_else(|| response.extensions().get().map(|DeniedPrincipal(name)| name.clone()));
    tracing::info!(
        target: "tenure_server::access",
        id = %id.0,
        %method,
        path,
        status = status.as_u16(),
        took_ms = took.as_secs_f64() * 1000.0,
        principal = principal.as_deref().unwrap_or("-"),
        peer = peer.as_ref().map(Peer::label).as_deref().unwrap_or("-"),
    );
    set_headers(response.headers_mut(), &id, peer.is_some_and(|peer| peer.tls));
    response
}

/// Span of a request, up to the response headers. It is built only if it is enabled. It is named after the
/// route, not the path, so that tools can group spans.
fn span(id: &RequestId, method: &Method, route: &str) -> Span {
    tracing::info_span!(
        target: "tenure_server::request",
        "request",
        otel.name = %format_args!("{method} {route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        id = %id.0,
        %method,
        route,
        status = Empty,
    )
}

/// Headers of every response. A page may have a stricter policy.
fn set_headers(headers: &mut HeaderMap, id: &RequestId, tls: bool) {
    let mut set = |name: HeaderName, value: HeaderValue| {
        headers.entry(name).or_insert(value);
    };
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    set(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    set(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if tls {
        set(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
    if let Ok(id) = HeaderValue::from_str(&id.0) {
        set(REQUEST_ID, id);
    }
}

/// Response for an unknown route: a page for browsers, a problem for other clients.
pub(crate) async fn unknown_route(app: App, request: Request) -> Response {
    let problem = check_unrouted_request(&app, &request).err().unwrap_or_else(|| {
        let detail = format!("no route matches {}", redact(request.uri().path()));
        Problem::new(StatusCode::NOT_FOUND, "no-such-route", detail)
            .remedy("see /openapi.json for the routes")
    });
    unrouted_response(&app, request, problem)
}

/// Response for a known route with another method.
pub(crate) async fn unknown_method(app: App, request: Request) -> Response {
    let problem = check_unrouted_request(&app, &request).err().unwrap_or_else(|| {
        let detail = format!("{} does not support {}", redact(request.uri().path()), request.method());
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
            .remedy("see /openapi.json for its methods")
    });
    unrouted_response(&app, request, problem)
}

fn unrouted_response(app: &App, request: Request, problem: Problem) -> Response {
    let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if is_api(request.uri().path()) || !accept.contains("text/html") {
        return problem.into_response();
    }
    let remedy = "check the address, or start from the home page";
    crate::web::rejection_page(app, &request.into_parts().0, &problem.remedy(remedy))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::Router;
    use axum::body::Body;
    use axum::routing::get;
    use tenure::runtime::SystemRuntime;
    use tenure::store::memory::MemoryStore;
    use tower::ServiceExt as _;

    use super::*;
    use crate::access::AccessMode;

    async fn boom() -> &'static str {
        panic!("deliberate panic of the test")
    }

    /// Regression: An access token that was sent as `x-request-id` by mistake appeared in the log.
    #[test]
    fn possible_secrets_are_rejected_as_request_ids() {
        let token = crate::access::access_token::AccessToken::generate(tenure::runtime::random).text;
        let secret = &token[token.len() - 64..];
        let (upper, long) = (token.to_uppercase(), "a-".repeat(40));
        let wrong = [
            "",
            &token,
            &token[..40],
            &token[10..],
            secret,
            &secret[..33],
            &upper,
            "Bearer x",
            "a b",
            "é",
            &long,
            "a/b",
            "a=b",
        ];
        for text in wrong {
            assert!(!is_id(text), "{text}");
        }
        for text in [
            "r-1",
            "4bf92f3577b34da6a3ce929d0e0e4736",
            "123e4567-e89b-12d3-a456-426614174000",
            "web:01HV5Z.4",
            "Root_1-5759e988-bd862e3fe1be46a994272793",
        ] {
            assert!(is_id(text), "{text}");
        }
    }

    #[tokio::test]
    async fn a_panic_becomes_a_500_and_the_server_continues() {
        let app = App::new(Arc::new(MemoryStore::new()), AccessMode::Open, Arc::new(SystemRuntime));
        let layer = axum::middleware::from_fn_with_state(app, wrap);
        let router =
            Router::new().route("/boom", get(boom)).route("/fine", get(async || "fine")).layer(layer);
        let ask = |path: &str| {
            let request = Request::builder().uri(path).header("x-request-id", "r-1").body(Body::empty());
            router.clone().oneshot(request.expect("a request"))
        };
        let broken = ask("/boom").await.expect("infallible");
        assert_eq!(broken.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(broken.headers()["content-type"], "application/problem+json");
        assert_eq!(broken.headers()["x-request-id"], "r-1");
        assert!(broken.headers().contains_key(CONTENT_SECURITY_POLICY));
        assert_eq!(ask("/fine").await.expect("infallible").status(), StatusCode::OK);
    }
}
