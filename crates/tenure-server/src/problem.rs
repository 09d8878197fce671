//! What went wrong, as `application/problem+json` (RFC 9457): for programs a stable `code`, for people a remedy.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use tenure::Error;
use tenure::port::{StoreError, Trouble};
use utoipa::ToSchema;

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// `urn:tenure:` and the code.
    #[serde(rename = "type")]
    #[schema(value_type = String, example = "urn:tenure:no-such-election")]
    pub kind: Box<str>,
    /// The status in words.
    pub title: &'static str,
    /// The status.
    #[serde(serialize_with = "number")]
    #[schema(value_type = u16, example = 404)]
    pub status: StatusCode,
    /// What happened, in a word that never changes.
    #[schema(example = "no-such-election")]
    pub code: &'static str,
    /// What happened, for people.
    #[schema(value_type = String)]
    pub detail: Box<str>,
    /// The field or parameter that is to blame, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "election")]
    pub field: Option<Box<str>>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub remedy: Option<Box<str>>,
    /// After how many seconds it makes sense to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
    /// What the store said. For the log: it names hosts, files and users, which are nobody's business.
    #[serde(skip)]
    pub(crate) cause: Option<Arc<String>>,
}

/// What the store said. On an answer, for the log.
#[derive(Clone, Debug)]
pub(crate) struct Cause(pub(crate) Arc<String>);

fn number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

impl Problem {
    /// A problem.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("urn:tenure:{code}").into(),
            title: status.canonical_reason().unwrap_or("Error"),
            status,
            code,
            detail: detail.into().into(),
            field: None,
            remedy: None,
            retry_after: None,
            cause: None,
        }
    }

    /// A problem as the stores and the core tell theirs: what is wrong; and what to do about it.
    pub(crate) fn told(status: StatusCode, code: &'static str, message: &str) -> Problem {
        match message.rsplit_once("; ") {
            Some((detail, remedy)) => Problem::new(status, code, detail).remedy(remedy),
            None => {
                Problem::new(status, code, message).remedy("change what is wrong with it, and send it again")
            }
        }
    }

    /// Names the field that is to blame.
    #[must_use]
    pub fn field(mut self, field: impl Into<Box<str>>) -> Problem {
        self.field = Some(field.into());
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<Box<str>>) -> Problem {
        self.remedy = Some(remedy.into());
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Problem {
        self.retry_after = Some(seconds);
        self
    }
}

impl Problem {
    /// Puts what only the log is told on an answer.
    pub(crate) fn note(&self, response: &mut Response) {
        if let Some(cause) = &self.cause {
            response.extensions_mut().insert(Cause(cause.clone()));
        }
    }
}

impl Problem {
    /// Whether the store failed, or did not answer, rather than anything about the request.
    pub(crate) fn is_about_the_store(&self) -> bool {
        matches!(self.code, "store-timeout" | "store-unavailable")
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let again = "whether it happened is unknown; try again; the server's log says more";
        let problem = match error.kind {
            // About what was asked, and so for whoever asked it.
            Trouble::Request => {
                return Problem::told(StatusCode::UNPROCESSABLE_ENTITY, "refused-by-store", &error.message);
            }
            // About what the store is for, which is no secret and does not pass.
            Trouble::Unsupported => {
                return Problem::told(StatusCode::NOT_IMPLEMENTED, "unsupported", &error.message);
            }
            Trouble::Timeout => {
                let detail = "the store did not answer the server in time";
                Problem::new(StatusCode::GATEWAY_TIMEOUT, "store-timeout", detail)
                    .remedy(again)
                    .retry_after(1)
            }
            Trouble::Unreachable | Trouble::Unavailable => {
                let detail = "the server has no store to work with at the moment";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", detail)
                    .remedy(again)
                    .retry_after(1)
            }
            _ => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unfit",
                "the server's store is not as it must be",
            )
            .remedy("the server's log says more, and so does `tenure doctor` on its machine"),
        };
        Problem { cause: Some(Arc::new(error.message)), ..problem }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        match error {
            Error::Store(error) => error.into(),
            Error::Closed | Error::NotClosed(_) | Error::Unconfirmed(..) => {
                let detail = "this server is shutting down";
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "closing", detail)
                    .remedy("ask another replica")
                    .retry_after(1)
            }
            error => Problem::told(StatusCode::UNPROCESSABLE_ENTITY, "unfit", &error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        self.note(&mut response);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_says_of_itself_is_for_the_log_only() {
        for kind in [Trouble::Timeout, Trouble::Unreachable, Trouble::Unavailable, Trouble::Unfit] {
            let problem = Problem::from(StoreError::new(kind, "no route to db-7 for user app"));
            let told = serde_json::to_string(&problem).expect("JSON");
            assert!(!told.contains("db-7") && problem.remedy.is_some(), "{told}");
            let answer = problem.into_response();
            let noted = answer.extensions().get::<Cause>().expect("a cause for the log");
            assert!(noted.0.contains("db-7"));
        }
        // What the store is not for does not pass: no status that a client would try again after.
        let problem = Problem::from(StoreError::new(Trouble::Unsupported, "no tasks here; use sqlite:"));
        assert_eq!((problem.status.as_u16(), problem.code, problem.retry_after), (501, "unsupported", None));
        assert_eq!((&*problem.detail, problem.remedy.as_deref()), ("no tasks here", Some("use sqlite:")));
        // What was wrong with the request is for whoever sent it.
        let problem = Problem::from(StoreError::new(Trouble::Request, "a lease is at most an hour"));
        assert_eq!((&*problem.detail, &problem.cause), ("a lease is at most an hour", &None));
        assert!(problem.remedy.is_some());
        let problem =
            Problem::from(StoreError::new(Trouble::Request, "its key \"a; b\" is taken; use another"));
        assert_eq!(
            (&*problem.detail, problem.remedy.as_deref()),
            ("its key \"a; b\" is taken", Some("use another"))
        );
    }
}
