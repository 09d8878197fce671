//! Classification of transient SQL errors, which are unrelated to the content of a statement.

use std::error::Error;

use tenure_core::rules::event::is_transient;

/// Primary SQLite result codes for a locked database, in the low byte of the extended codes.
const BUSY_OR_LOCKED: [i32; 2] = [5, 6];

/// Whether the error is a transient database error: lock conflicts, or a server that is unavailable.
pub(super) fn is_transient_database_error(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<sqlx::Error>().is_some_and(is_transient_sql)
}

pub(super) fn is_transient_sql(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| is_transient_code(&code)),
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

/// An SQLSTATE has five characters, an SQLite code fewer.
fn is_transient_code(code: &str) -> bool {
    match code.parse::<i32>() {
        Ok(number) if code.len() < 5 => BUSY_OR_LOCKED.contains(&(number & 0xff)),
        _ => is_transient(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlocks_busy_files_and_lost_connections_are_transient_and_constraint_violations_are_not() {
        for code in ["40001", "40P01", "55P03", "57014", "57P01", "08006", "5", "6", "261", "517"] {
            assert!(is_transient_code(code), "{code}");
        }
        for code in ["23505", "22P02", "P0001", "19", "2067", "1"] {
            assert!(!is_transient_code(code), "{code}");
        }
        assert!(is_transient_sql(&sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())));
        assert!(!is_transient_sql(&sqlx::Error::RowNotFound));
    }
}
