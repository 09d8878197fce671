//! What a server answered, and what that means.

use http::StatusCode;
use http::header::{CONTENT_TYPE, ETAG, LOCATION};
use hyper::body::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tenure_core::port::{StoreError, Trouble};

use super::proof::{TOKEN_ENV, TOKEN_FILE_ENV};
use crate::backend::wire::Reply;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a server answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// How many servers were tried before this answer, this one included.
    pub(super) tries: usize,
    kind: String,
    location: Option<String>,
    tag: Option<String>,
    body: Bytes,
    place: String,
}

/// What went wrong, as a server tells it.
#[derive(Debug, Deserialize)]
struct Problem {
    code: String,
    detail: String,
    field: Option<String>,
    remedy: Option<String>,
}

impl Answer {
    pub(super) fn new(reply: Reply, place: String, tries: usize) -> Answer {
        let text = |name| reply.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (kind, location, tag) = (text(CONTENT_TYPE).unwrap_or_default(), text(LOCATION), text(ETAG));
        Answer { status: reply.status, tries, kind, location, tag, body: reply.body, place }
    }

    /// Whether this replica can not do it now, and another one might.
    pub(super) fn is_passing(&self) -> bool {
        matches!(
            self.status,
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
        )
    }

    /// The stable word for what went wrong, if a Tenure server said one.
    pub(super) fn code(&self) -> Option<String> {
        self.problem().map(|problem| problem.code)
    }

    /// Whether the session has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.says("session-gone")
    }

    /// Whether a Tenure server said this word.
    pub(super) fn says(&self, code: &str) -> bool {
        self.code().as_deref() == Some(code)
    }

    /// The version of what was asked about, as the `ETag` says it.
    pub(super) fn version(&self) -> Option<u64> {
        let tag = self.tag.as_deref()?;
        tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"').parse().ok()
    }

    /// What was asked for.
    pub(super) fn read<T: DeserializeOwned>(self) -> Result<T, StoreError> {
        if !self.status.is_success() {
            return Err(self.into_error());
        }
        if !self.kind.starts_with("application/json") {
            return Err(self.stranger());
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            let message = format!(
                "the server at {} answered in a form that tenure {VERSION} does not understand: {error}; \
                 is it of another version?",
                self.place
            );
            StoreError::new(Trouble::Unfit, message)
        })
    }

    /// That it was done.
    pub(super) fn done(self) -> Result<(), StoreError> {
        match self.status {
            StatusCode::NO_CONTENT => Ok(()),
            status if status.is_success() => Err(self.stranger()),
            _ => Err(self.into_error()),
        }
    }

    fn problem(&self) -> Option<Problem> {
        self.kind
            .starts_with("application/problem+json")
            .then(|| serde_json::from_slice(&self.body).ok())
            .flatten()
    }

    /// What the refusal means for whoever asked.
    pub(super) fn into_error(self) -> StoreError {
        let Some(problem) = self.problem() else { return self.stranger() };
        let place = &self.place;
        let field = problem.field.map(|field| format!(" ({field})")).unwrap_or_default();
        let remedy = problem.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
        let told = format!("the server at {place}: {}{field}{remedy}", problem.detail);
        let (kind, advice) = match (self.status, problem.code.as_str()) {
            (StatusCode::UNAUTHORIZED, _) => (
                Trouble::Denied,
                format!(
                    "; set ${TOKEN_ENV} or ${TOKEN_FILE_ENV} to a token that `tenure token create` made, or \
                     $TENURE_CLIENT_CERT and $TENURE_CLIENT_KEY to a certificate that the server knows"
                ),
            ),
            (StatusCode::FORBIDDEN, _) => (
                Trouble::Denied,
                format!("; the token in ${TOKEN_ENV} or ${TOKEN_FILE_ENV} does not suffice"),
            ),
            (StatusCode::TOO_MANY_REQUESTS, _) => (Trouble::Unavailable, String::new()),
            (StatusCode::GATEWAY_TIMEOUT, _) => (Trouble::Timeout, String::new()),
            (StatusCode::NOT_IMPLEMENTED, "unsupported") => (Trouble::Unsupported, String::new()),
            (_, "store-unfit") => (Trouble::Unfit, String::new()),
            (status, _) if status.is_server_error() => (Trouble::Unavailable, String::new()),
            (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED, "no-such-path" | "no-such-method") => {
                (Trouble::Unfit, format!("; it is probably of another version than this tenure, {VERSION}"))
            }
            _ => (Trouble::Request, String::new()),
        };
        StoreError::new(kind, format!("{told}{advice}"))
    }

    /// The error for what no Tenure server of ours would say.
    fn stranger(&self) -> StoreError {
        let (place, status) = (&self.place, self.status);
        if let (true, Some(location)) = (status.is_redirection(), &self.location) {
            let message = format!(
                "{place} sends us on to {location}; give the address of the Tenure server itself, not of a page before it"
            );
            return StoreError::new(Trouble::Address, message);
        }
        // A proxy in between that cannot reach its server is no wrong address.
        let kind = if self.is_passing() { Trouble::Unavailable } else { Trouble::Address };
        let said = if self.kind.is_empty() { "nothing" } else { &self.kind };
        let message = format!(
            "what answers at {place} is no Tenure server, or one that this tenure {VERSION} does not know: it said \
             {status} with {said}; check the address, and proxies on the way"
        );
        StoreError::new(kind, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, kind: &str, body: &str) -> Answer {
        let mut headers = http::HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        headers.insert(LOCATION, "https://login.example/".parse().unwrap());
        let status = StatusCode::from_u16(status).unwrap();
        let body = Bytes::copy_from_slice(body.as_bytes());
        Answer::new(Reply { status, headers, body }, "http://h:1".into(), 1)
    }

    fn problem(status: u16, code: &str) -> Answer {
        let body =
            format!(r#"{{"code":"{code}","detail":"what happened","field":"lease_ms","remedy":"do this"}}"#);
        answer(status, "application/problem+json", &body)
    }

    #[test]
    fn a_problem_keeps_its_words_and_says_where() {
        let error = problem(422, "unfit").into_error();
        assert_eq!(error.kind, Trouble::Request);
        assert_eq!(error.message, "the server at http://h:1: what happened (lease_ms); do this");
        assert_eq!(problem(503, "store-unavailable").into_error().kind, Trouble::Unavailable);
        assert_eq!(problem(503, "store-unfit").into_error().kind, Trouble::Unfit);
        assert_eq!(problem(501, "unsupported").into_error().kind, Trouble::Unsupported);
        assert_eq!(problem(504, "store-timeout").into_error().kind, Trouble::Timeout);
        assert_eq!(problem(429, "too-many").into_error().kind, Trouble::Unavailable);
        assert!(problem(410, "session-gone").is_gone() && !problem(410, "other").is_gone());
    }

    #[test]
    fn whoever_is_refused_learns_what_to_set() {
        for status in [401, 403] {
            let error = problem(status, "x").into_error();
            assert_eq!(error.kind, Trouble::Denied);
            assert!(error.message.contains("$TENURE_ACCESS_TOKEN"), "{error}");
        }
    }

    #[test]
    fn what_is_no_tenure_server_is_called_so() {
        let strangers = [
            answer(200, "text/html", "<html>"),
            answer(404, "text/html; charset=utf-8", "<html>"),
            answer(410, "text/plain", "session-gone"),
            answer(204, "", ""),
        ];
        for stranger in strangers {
            assert!(!stranger.is_gone());
            let error = stranger.read::<u32>().unwrap_err();
            assert_eq!(error.kind, Trouble::Address);
            assert!(
                error.message.contains("no Tenure server") && error.message.contains("http://h:1"),
                "{error}"
            );
        }
        let error = answer(302, "text/html", "").read::<u32>().unwrap_err();
        assert!(error.message.contains("login.example"), "{error}");
        assert_eq!(answer(502, "text/html", "").read::<u32>().unwrap_err().kind, Trouble::Unavailable);
        let error = answer(200, "application/json", "{}").read::<u32>().unwrap_err();
        assert!(error.message.contains("another version"), "{error}");
    }
}
