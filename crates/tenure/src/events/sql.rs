//! Which errors of the user's own database say nothing about what it was asked.

use std::error::Error;

use tenure_core::event::is_transient;

/// SQLite's primary result codes for "somebody else is writing", in the low byte of the extended ones.
const BUSY_OR_LOCKED: [i32; 2] = [5, 6];

/// Whether it is an error of the database that passes: others were in the way, or the server was.
pub(super) fn passes(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<sqlx::Error>().is_some_and(may_pass)
}

pub(super) fn may_pass(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => error.code().is_some_and(|code| is_passing_code(&code)),
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

/// An SQLSTATE has five characters, a code of SQLite fewer.
fn is_passing_code(code: &str) -> bool {
    match code.parse::<i32>() {
        Ok(number) if code.len() < 5 => BUSY_OR_LOCKED.contains(&(number & 0xff)),
        _ => is_transient(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadlock_a_busy_file_and_a_lost_connection_pass_and_a_broken_constraint_does_not() {
        for code in ["40001", "40P01", "55P03", "57014", "57P01", "08006", "5", "6", "261", "517"] {
            assert!(is_passing_code(code), "{code}");
        }
        for code in ["23505", "22P02", "P0001", "19", "2067", "1"] {
            assert!(!is_passing_code(code), "{code}");
        }
        assert!(may_pass(&sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into())));
        assert!(!may_pass(&sqlx::Error::RowNotFound));
    }
}
