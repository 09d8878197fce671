//! Responses of a server, and their meaning.

use http::StatusCode;
use http::header::{CONTENT_TYPE, ETAG, LOCATION};
use hyper::body::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tenure_core::port::{ErrorKind, StoreError};

use super::access_token::{TOKEN_ENV, TOKEN_FILE_ENV};
use crate::store::http_client::HttpReply;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Response of a server.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: StatusCode,
    /// Number of servers tried, including this one.
    pub(super) tries: usize,
    kind: String,
    location: Option<String>,
    tag: Option<String>,
    body: Bytes,
    place: String,
}

/// Problem document of a server.
#[derive(Debug, Deserialize)]
struct Problem {
    code: String,
    detail: String,
    field: Option<String>,
    remedy: Option<String>,
}

impl HttpResponse {
    pub(super) fn new(reply: HttpReply, place: String, tries: usize) -> HttpResponse {
        let text = |name| reply.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (kind, location, tag) = (text(CONTENT_TYPE).unwrap_or_default(), text(LOCATION), text(ETAG));
        HttpResponse { status: reply.status, tries, kind, location, tag, body: reply.body, place }
    }

    /// Whether this replica cannot serve the request now, but another one might.
    pub(super) fn is_transient(&self) -> bool {
        matches!(
            self.status,
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
        )
    }

    /// Problem code, if the response is a problem of a Tenure server.
    pub(super) fn code(&self) -> Option<String> {
        self.problem().map(|problem| problem.code)
    }

    /// Whether the session has ended.
    pub(super) fn is_session_ended(&self) -> bool {
        self.says("session-ended")
    }

    /// Whether the response is a problem with this code.
    pub(super) fn says(&self, code: &str) -> bool {
        self.code().as_deref() == Some(code)
    }

    /// Version from the `ETag`.
    pub(super) fn version(&self) -> Option<u64> {
        let tag = self.tag.as_deref()?;
        tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"').parse().ok()
    }

    /// Parse the JSON body of a successful response.
    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T, StoreError> {
        if !self.status.is_success() {
            return Err(self.into_error());
        }
        if !self.kind.starts_with("application/json") {
            return Err(self.unexpected_response());
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            let message = format!(
                "the response of the server at {} is not understood by tenure {VERSION}: {error}; \
                it may have another version",
                self.place
            );
            StoreError::new(ErrorKind::Misconfigured, message)
        })
    }

    /// Expect an empty successful response.
    pub(super) fn done(self) -> Result<(), StoreError> {
        match self.status {
            StatusCode::NO_CONTENT => Ok(()),
            status if status.is_success() => Err(self.unexpected_response()),
            _ => Err(self.into_error()),
        }
    }

    fn problem(&self) -> Option<Problem> {
        self.kind
            .starts_with("application/problem+json")
            .then(|| serde_json::from_slice(&self.body).ok())
            .flatten()
    }

    /// Convert a problem into a store error.
    pub(super) fn into_error(self) -> StoreError {
        let Some(problem) = self.problem() else { return self.unexpected_response() };
        let place = &self.place;
        let field = problem.field.map(|field| format!(" ({field})")).unwrap_or_default();
        let remedy = problem.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        let reported = format!("the server at {place}: {}{field}{remedy}", problem.detail);
        let (kind, advice) = match (self.status, problem.code.as_str()) {
            (StatusCode::UNAUTHORIZED, _) => (
                ErrorKind::Denied,
                format!(
                    "; set ${TOKEN_ENV} or ${TOKEN_FILE_ENV} to an access token from `tenure credentials create`, or \
                    $TENURE_CLIENT_CERT and $TENURE_CLIENT_KEY to a certificate that the server knows"
                ),
            ),
            (StatusCode::FORBIDDEN, _) => (
                ErrorKind::Denied,
                format!("; the access token in ${TOKEN_ENV} or ${TOKEN_FILE_ENV} lacks the permission"),
            ),
            (StatusCode::TOO_MANY_REQUESTS, _) => (ErrorKind::Unavailable, String::new()),
            (StatusCode::GATEWAY_TIMEOUT, _) => (ErrorKind::Timeout, String::new()),
            (StatusCode::NOT_IMPLEMENTED, "unsupported") => (ErrorKind::Unsupported, String::new()),
            (_, "store-misconfigured") => (ErrorKind::Misconfigured, String::new()),
            (status, _) if status.is_server_error() => (ErrorKind::Unavailable, String::new()),
            (
                StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED,
                "no-such-route" | "method-not-allowed",
            ) => (
                ErrorKind::Misconfigured,
                format!("; the server probably has another version than this tenure {VERSION}"),
            ),
            _ => (ErrorKind::Request, String::new()),
        };
        StoreError::new(kind, format!("{reported}{advice}"))
    }

    /// Error for a response that a Tenure server would not send.
    fn unexpected_response(&self) -> StoreError {
        let (place, status) = (&self.place, self.status);
        if let (true, Some(location)) = (status.is_redirection(), &self.location) {
            let message =
                format!("{place} redirects to {location}; use the address of the Tenure server itself");
            return StoreError::new(ErrorKind::Address, message);
        }
        // A proxy that cannot reach its server does not mean a wrong address.
        let kind = if self.is_transient() { ErrorKind::Unavailable } else { ErrorKind::Address };
        let content_type = if self.kind.is_empty() { "no content type" } else { &self.kind };
        let message = format!(
            "{place} is not a Tenure server, or not one that tenure {VERSION} knows: it responded with \
            {status} and {content_type}; check the address, and proxies on the way"
        );
        StoreError::new(kind, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, kind: &str, body: &str) -> HttpResponse {
        let mut headers = http::HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        headers.insert(LOCATION, "https://login.example/".parse().unwrap());
        let status = StatusCode::from_u16(status).unwrap();
        let body = Bytes::copy_from_slice(body.as_bytes());
        HttpResponse::new(HttpReply { status, headers, body }, "http://h:1".into(), 1)
    }

    fn problem(status: u16, code: &str) -> HttpResponse {
        let body =
            format!(r#"{{"code":"{code}","detail":"what happened","field":"lease_ms","remedy":"do this"}}"#);
        response(status, "application/problem+json", &body)
    }

    #[test]
    fn a_problem_keeps_its_detail_and_names_the_server() {
        let error = problem(422, "invalid-value").into_error();
        assert_eq!(error.kind, ErrorKind::Request);
        assert_eq!(error.message, "the server at http://h:1: what happened (lease_ms); do this");
        assert_eq!(problem(503, "store-unavailable").into_error().kind, ErrorKind::Unavailable);
        assert_eq!(problem(503, "store-misconfigured").into_error().kind, ErrorKind::Misconfigured);
        assert_eq!(problem(501, "unsupported").into_error().kind, ErrorKind::Unsupported);
        assert_eq!(problem(504, "store-timeout").into_error().kind, ErrorKind::Timeout);
        assert_eq!(problem(429, "too-many").into_error().kind, ErrorKind::Unavailable);
        assert!(
            problem(410, "session-ended").is_session_ended() && !problem(410, "other").is_session_ended()
        );
    }

    #[test]
    fn an_access_error_names_the_environment_variables() {
        for status in [401, 403] {
            let error = problem(status, "x").into_error();
            assert_eq!(error.kind, ErrorKind::Denied);
            assert!(error.message.contains("$TENURE_ACCESS_TOKEN"), "{error}");
        }
    }

    #[test]
    fn responses_of_other_servers_are_detected() {
        let unexpected = [
            response(200, "text/html", "<html>"),
            response(404, "text/html; charset=utf-8", "<html>"),
            response(410, "text/plain", "session-ended"),
            response(204, "", ""),
        ];
        for unexpected_response in unexpected {
            assert!(!unexpected_response.is_session_ended());
            let error = unexpected_response.read::<u32>().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Address);
            assert!(
                error.message.contains("not a Tenure server") && error.message.contains("http://h:1"),
                "{error}"
            );
        }
        let error = response(302, "text/html", "").read::<u32>().unwrap_err();
        assert!(error.message.contains("login.example"), "{error}");
        assert_eq!(response(502, "text/html", "").read::<u32>().unwrap_err().kind, ErrorKind::Unavailable);
        let error = response(200, "application/json", "{}").read::<u32>().unwrap_err();
        assert!(error.message.contains("another version"), "{error}");
    }
}
