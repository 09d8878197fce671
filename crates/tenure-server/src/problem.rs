//! Error responses as `application/problem+json` (RFC 9457), with a stable `code` and a remedy.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use tenure::Error;
use tenure::port::{ErrorKind, StoreError};
use utoipa::ToSchema;

/// Error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// `urn:tenure:` and the code.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "urn:tenure:no-such-election")]
    pub kind: Box<str>,
    /// Name of the status.
    pub title: &'static str,
    /// HTTP status.
    #[serde(serialize_with = "number")]
    #[schema(value_type = u16, example = 404)]
    pub status: StatusCode,
    /// Stable error code.
    #[schema(example = "no-such-election")]
    pub code: &'static str,
    /// What failed and why.
    #[schema(value_type = String)]
    pub detail: Box<str>,
    /// Invalid field or parameter, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "election")]
    pub field: Option<Box<str>>,
    /// What to do next.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub remedy: Option<Box<str>>,
    /// Time after which to retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u32>,
    /// Error of the store, only for the log: it may contain host, file and user names.
    #[serde(skip)]
    pub(crate) cause: Option<Arc<String>>,
}

/// Error of the store. Response extension, for the log.
#[derive(Clone, Debug)]
pub(crate) struct ProblemCause(pub(crate) Arc<String>);

fn number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

impl Problem {
    /// Create a problem.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("urn:tenure:{code}").into(),
            title: status.canonical_reason().unwrap_or("Error"),
            status,
            code,
            detail: detail.into().into(),
            field: None,
            remedy: None,
            retry_after_ms: None,
            cause: None,
        }
    }

    /// Create a problem from a message of the core or a store: the detail, then `; ` and the remedy.
    pub(crate) fn from_message(status: StatusCode, code: &'static str, message: &str) -> Problem {
        match message.rsplit_once("; ") {
            Some((detail, remedy)) => Problem::new(status, code, detail).remedy(remedy),
            None => Problem::new(status, code, message).remedy("correct the request and send it again"),
        }
    }

    /// Set the invalid field.
    #[must_use]
    pub fn field(mut self, field: impl Into<Box<str>>) -> Problem {
        self.field = Some(field.into());
        self
    }

    /// Set the remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Box<str>>) -> Problem {
        self.remedy = Some(remedy.into());
        self
    }

    /// Set the time after which to retry, in seconds.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Problem {
        self.retry_after_ms = Some(seconds.saturating_mul(1000));
        self
    }
}

impl Problem {
    /// Attach the store error to a response, for the log.
    pub(crate) fn attach_cause(&self, response: &mut Response) {
        if let Some(cause) = &self.cause {
            response.extensions_mut().insert(ProblemCause(cause.clone()));
        }
    }
}

impl Problem {
    /// Whether the store failed or did not respond, as opposed to an error of the request.
    pub(crate) fn is_store_error(&self) -> bool {
        matches!(self.code, "store-timeout" | "store-unavailable")
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let again = "the outcome is unknown; retry; see the server's log";
        let problem = match error.kind {
            // The message is about the request, so the client may see it.
            ErrorKind::Request => {
                return Problem::from_message(
                    StatusCode::UNPROCESSABLE_ENTITY,
                    "rejected-by-store",
                    &error.message,
                );
            }
            // The message is about features of the store. It reveals no secret, and the error is permanent.
            ErrorKind::Unsupported => {
                return Problem::from_message(StatusCode::NOT_IMPLEMENTED, "unsupported", &error.message);
            }
            ErrorKind::Timeout => {
                let detail = "the store did not respond in time";
                Problem::new(StatusCode::GATEWAY_TIMEOUT, "store-timeout", detail)
                    .remedy(again)
                    .retry_after(1)
            }
            ErrorKind::Unreachable | ErrorKind::Unavailable => {
                let detail = "the store is unavailable";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail)
                    .remedy(again)
                    .retry_after(1)
            }
            _ => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store-misconfigured",
                "the store is misconfigured",
            )
            .remedy("see the server's log, or run `tenure doctor` on its machine"),
        };
        Problem { cause: Some(Arc::new(error.message)), ..problem }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        match error {
            Error::Store(error) => error.into(),
            Error::Closed | Error::NotClosed(_) | Error::LeaveUnconfirmed(..) => {
                let detail = "the server is shutting down";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "shutting-down", detail)
                    .remedy("use another replica")
                    .retry_after(1)
            }
            error => {
                Problem::from_message(StatusCode::UNPROCESSABLE_ENTITY, "invalid-value", &error.to_string())
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(ms) = self.retry_after_ms {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
        }
        self.attach_cause(&mut response);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_errors_are_only_logged() {
        for kind in
            [ErrorKind::Timeout, ErrorKind::Unreachable, ErrorKind::Unavailable, ErrorKind::Misconfigured]
        {
            let problem = Problem::from(StoreError::new(kind, "no route to db-7 for user app"));
            let json = serde_json::to_string(&problem).expect("JSON");
            assert!(!json.contains("db-7") && problem.remedy.is_some(), "{json}");
            let answer = problem.into_response();
            let noted = answer.extensions().get::<ProblemCause>().expect("a cause for the log");
            assert!(noted.0.contains("db-7"));
        }
        // A permanent error has no status that clients would retry.
        let problem = Problem::from(StoreError::new(ErrorKind::Unsupported, "no tasks here; use sqlite:"));
        assert_eq!(
            (problem.status.as_u16(), problem.code, problem.retry_after_ms),
            (501, "unsupported", None)
        );
        assert_eq!((&*problem.detail, problem.remedy.as_deref()), ("no tasks here", Some("use sqlite:")));
        // Errors of the request are for the client.
        let problem = Problem::from(StoreError::new(ErrorKind::Request, "a lease is at most an hour"));
        assert_eq!((&*problem.detail, &problem.cause), ("a lease is at most an hour", &None));
        assert!(problem.remedy.is_some());
        let problem =
            Problem::from(StoreError::new(ErrorKind::Request, "its key \"a; b\" is taken; use another"));
        assert_eq!(
            (&*problem.detail, problem.remedy.as_deref()),
            ("its key \"a; b\" is taken", Some("use another"))
        );
    }
}
