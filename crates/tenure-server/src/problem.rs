//! What went wrong, as `application/problem+json` (RFC 9457): for programs a stable `code`, for people a remedy.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use tenure::port::{StoreError, Trouble};
use utoipa::ToSchema;

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema, thiserror::Error)]
#[error("{detail}")]
pub struct Problem {
    /// `urn:tenure:` and the code.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
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
    pub detail: String,
    /// The field or parameter that is to blame, if one is.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub field: Option<Box<str>>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub remedy: Option<Box<str>>,
    /// After how many seconds it makes sense to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u32>,
}

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
            detail: detail.into(),
            field: None,
            remedy: None,
            retry_after: None,
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

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        let message = error.message;
        match error.kind {
            Trouble::Request => Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "refused-by-store", message),
            Trouble::Timeout => Problem::new(StatusCode::GATEWAY_TIMEOUT, "store-timeout", message)
                .remedy("whether it happened is unknown; try again")
                .retry_after(1),
            Trouble::Unreachable | Trouble::Unavailable => {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unavailable", message)
                    .remedy("whether it happened is unknown; try again")
                    .retry_after(1)
            }
            _ => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "store-unfit", message)
                .remedy("`tenure doctor` on the server's machine says more"),
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
        response
    }
}
