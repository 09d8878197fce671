//! What calls come to, and how their arguments are kept.

use std::path::Path;
use std::time::Duration;

use tenure_core::claim::{AskError, SubmissionError};
use tenure_core::event::{EventError, GroupError};
use tenure_core::port::{StoreError, Trouble};
use tenure_core::schedule::DefinitionError;

use super::connection::broken;
use super::{Sqlite, error};

/// Why a call came to nothing: SQLite's reason, or ours.
pub(super) enum Failed {
    Sql(sqlx::Error),
    Said(StoreError),
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Failed {
        Failed::Sql(error)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Said(error)
    }
}

/// What the core refuses is said in its words.
macro_rules! said {
    ($($error:ty),*) => {$(
        impl From<$error> for Failed {
            fn from(error: $error) -> Failed {
                Failed::Said(error.into())
            }
        }
    )*};
}

said!(AskError, SubmissionError, EventError, GroupError, DefinitionError);

/// What a call comes to, with the file and what was being done in SQLite's errors.
pub(super) trait Told<T> {
    fn told(self, store: &Sqlite, doing: &str) -> Result<T, StoreError>;

    /// The same, on a connection of the user's.
    fn told_user(self, doing: &str) -> Result<T, StoreError>;
}

impl<T> Told<T> for Result<T, Failed> {
    fn told(self, store: &Sqlite, doing: &str) -> Result<T, StoreError> {
        self.map_err(|failed| failed.explain(store.path(), doing))
    }

    fn told_user(self, doing: &str) -> Result<T, StoreError> {
        self.map_err(|failed| failed.explain("the database".as_ref(), doing))
    }
}

impl Failed {
    fn explain(self, path: &Path, doing: &str) -> StoreError {
        match self {
            Failed::Sql(error) => error::sqlite(path, doing, &error),
            Failed::Said(error) => error,
        }
    }
}

/// What is asked for makes no sense to the store.
pub(super) fn nonsense(message: impl Into<String>) -> StoreError {
    StoreError::new(Trouble::Request, message)
}

/// The JSON of an argument.
pub(super) fn json(value: &impl serde::Serialize) -> sqlx::Result<String> {
    serde_json::to_string(value).map_err(|error| broken("json", error))
}

/// A number of the port as SQLite keeps it. One that it can not keep is no task's, and matches no row.
pub(super) fn number(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(-1)
}

/// Milliseconds as SQLite keeps them: a hundred years at most, so that no sum of them overflows.
pub(super) fn ms(n: u64) -> i64 {
    const LONGEST_MS: u64 = 3_155_760_000_000;
    n.min(LONGEST_MS).cast_signed()
}

/// A duration, likewise.
pub(super) fn span_ms(span: Duration) -> i64 {
    ms(tenure_core::claim::span_ms(span))
}
