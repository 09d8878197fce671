//! Errors of SQLite and the file system, with the file and a remedy.

use std::io;
use std::path::Path;

use tenure_core::port::{ErrorKind, StoreError};

/// Primary result codes of SQLite, the low byte of the extended codes: <https://sqlite.org/rescode.html>.
mod code {
    pub(super) const PERM: i32 = 3;
    pub(super) const BUSY: i32 = 5;
    pub(super) const LOCKED: i32 = 6;
    pub(super) const READONLY: i32 = 8;
    pub(super) const IOERR: i32 = 10;
    pub(super) const CORRUPT: i32 = 11;
    pub(super) const FULL: i32 = 13;
    pub(super) const CANTOPEN: i32 = 14;
    pub(super) const NOTADB: i32 = 26;
}

/// An error of SQLite or of a pool, during the action `doing` on the file at `path`.
pub(super) fn sqlite(path: &Path, doing: &str, error: &sqlx::Error) -> StoreError {
    let file = path.display();
    let (kind, remedy) = match error {
        sqlx::Error::Database(inner) if inner.message().contains("no such table: tenure_") => {
            let message = format!(
                "{file} has no Tenure tables; create them with `tenure migrate up --store sqlite:{file}`"
            );
            return StoreError::new(ErrorKind::SchemaMissing, message);
        }
        sqlx::Error::Io(inner) => return io(path, doing, inner),
        sqlx::Error::PoolTimedOut => {
            (ErrorKind::Timeout, "all connections are busy; shorten the transactions on this file")
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
            (ErrorKind::Other, "a row has an invalid value; check whether another program changed it")
        }
        _ => remedy(primary_code(error)),
    };
    StoreError::new(kind, format!("{file}: {doing} failed: {error}; {remedy}"))
}

/// The error for a missing file that a command must not create.
pub(super) fn no_file(path: &Path) -> StoreError {
    let file = path.display();
    let message = format!(
        "{file} does not exist, and commands that only read do not create it; check the path, or create the file with \
         `tenure migrate up --store sqlite:{file}`"
    );
    StoreError::new(ErrorKind::SchemaMissing, message)
}

/// An error of the file system at `path`.
pub(super) fn io(path: &Path, doing: &str, error: &io::Error) -> StoreError {
    let (kind, remedy) = match error.kind() {
        io::ErrorKind::NotFound => {
            (ErrorKind::Address, "create the directory first (`mkdir -p`), or name another file")
        }
        io::ErrorKind::PermissionDenied => (
            ErrorKind::Denied,
            "the user needs write access to the file and its directory; check with `ls -ld`, or name another file",
        ),
        io::ErrorKind::ReadOnlyFilesystem => {
            (ErrorKind::Unavailable, "the file system is read-only; remount it, or name another file")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (
            ErrorKind::Unavailable,
            "the disk is full; free some space, and Tenure continues without a restart",
        ),
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            (ErrorKind::Address, "name a file in an existing directory")
        }
        _ => (ErrorKind::Unavailable, "check the disk and the limit of open files (`ulimit -n`)"),
    };
    StoreError::new(kind, format!("{}: {doing} failed: {error}; {remedy}", path.display()))
}

/// Whether another transaction held the write lock for the whole busy timeout.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(code::BUSY | code::LOCKED))
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?.parse::<i32>().ok()?;
    Some(code & 0xff)
}

fn remedy(code: Option<i32>) -> (ErrorKind, &'static str) {
    match code {
        Some(code::BUSY | code::LOCKED) => (
            ErrorKind::Timeout,
            "another process held the write lock for the whole timeout; keep transactions on this file short",
        ),
        Some(code::FULL) => (
            ErrorKind::Unavailable,
            "the disk is full; free some space, and Tenure continues without a restart",
        ),
        Some(code::READONLY) => (
            ErrorKind::Unavailable,
            "the file or its directory is read-only; make both writable, or name another file",
        ),
        Some(code::CANTOPEN) => (
            ErrorKind::Unavailable,
            "the file or one of its log files (-wal, -shm) cannot be opened; check that the directory is writable",
        ),
        Some(code::IOERR) => {
            (ErrorKind::Unavailable, "reading or writing the disk failed; check `dmesg` and `df`, then retry")
        }
        Some(code::CORRUPT) => (
            ErrorKind::Unavailable,
            "the file is damaged; recover it (`sqlite3 FILE .recover`) or name another file",
        ),
        Some(code::NOTADB) => {
            (ErrorKind::Misconfigured, "the file is not a SQLite database; name another file")
        }
        Some(code::PERM) => (ErrorKind::Denied, "the user needs write access to the file and its directory"),
        _ => (ErrorKind::Other, "report this error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_errors_are_distinguished_from_permanent_ones() {
        assert_eq!(remedy(Some(5)).0, ErrorKind::Timeout);
        assert_eq!(remedy(Some(13)).0, ErrorKind::Unavailable);
        assert_eq!(remedy(Some(8)).0, ErrorKind::Unavailable);
        assert_eq!(remedy(Some(26)).0, ErrorKind::Misconfigured);
        let path = Path::new("/no/such/file.db");
        let missing = io(path, "opening it", &io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(missing.kind, ErrorKind::Address);
        assert!(missing.message.contains("/no/such/file.db") && missing.message.contains("mkdir -p"));
    }
}
