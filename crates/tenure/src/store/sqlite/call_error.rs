//! Errors of calls, and the conversion of arguments.

use std::path::Path;
use std::time::Duration;

use tenure_core::port::{ErrorKind, StoreError};
use tenure_core::rules::event::{EventRequestError, PublishError};
use tenure_core::rules::schedule::ScheduleDefinitionError;
use tenure_core::rules::work::{SubmissionError, WorkRequestError};

use super::connection::decode_error;
use super::{SqliteStore, error};

/// The error of a call: from SQLite, or from the rules of Tenure.
pub(super) enum CallError {
    Sql(sqlx::Error),
    Store(StoreError),
}

impl From<sqlx::Error> for CallError {
    fn from(error: sqlx::Error) -> CallError {
        CallError::Sql(error)
    }
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> CallError {
        CallError::Store(error)
    }
}

/// Errors of `tenure-core` keep their text.
macro_rules! from_core_errors {
    ($($error:ty),*) => {$(
        impl From<$error> for CallError {
            fn from(error: $error) -> CallError {
                CallError::Store(error.into())
            }
        }
    )*};
}

from_core_errors!(
    WorkRequestError,
    SubmissionError,
    PublishError,
    EventRequestError,
    ScheduleDefinitionError
);

/// Adds the file and the action to errors of SQLite.
pub(super) trait ExplainResult<T> {
    fn with_context(self, store: &SqliteStore, doing: &str) -> Result<T, StoreError>;

    /// The same for a connection of the application.
    fn with_user_context(self, doing: &str) -> Result<T, StoreError>;
}

impl<T> ExplainResult<T> for Result<T, CallError> {
    fn with_context(self, store: &SqliteStore, doing: &str) -> Result<T, StoreError> {
        self.map_err(|failed| failed.explain(store.path(), doing))
    }

    fn with_user_context(self, doing: &str) -> Result<T, StoreError> {
        self.map_err(|failed| failed.explain("the database".as_ref(), doing))
    }
}

impl CallError {
    fn explain(self, path: &Path, doing: &str) -> StoreError {
        match self {
            CallError::Sql(error) => error::sqlite(path, doing, &error),
            CallError::Store(error) => error,
        }
    }
}

/// The error for an invalid request.
pub(super) fn invalid_request(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Request, message)
}

/// A value as JSON.
pub(super) fn json(value: &impl serde::Serialize) -> sqlx::Result<String> {
    serde_json::to_string(value).map_err(|error| decode_error("json", error))
}

/// An id as a SQLite integer. A number that does not fit becomes -1, which matches no row.
pub(super) fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(-1)
}

/// Milliseconds as a SQLite integer, limited to 100 years so that sums do not overflow.
pub(super) fn ms(n: u64) -> i64 {
    const LONGEST_MS: u64 = 3_155_760_000_000;
    n.min(LONGEST_MS).cast_signed()
}

/// A duration in milliseconds, with the same limit.
pub(super) fn span_ms(span: Duration) -> i64 {
    ms(tenure_core::rules::work::bounded_ms(span))
}
