//! What SQLite and the file system say, in words that name the file and the remedy.

use std::io;
use std::path::Path;

use tenure_core::port::{StoreError, Trouble};

/// SQLite's primary result codes, the low byte of the extended ones: <https://sqlite.org/rescode.html>.
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

/// An error of SQLite or its pool, while `doing` something with the file at `path`.
pub(super) fn sqlite(path: &Path, doing: &str, error: &sqlx::Error) -> StoreError {
    let file = path.display();
    let (kind, remedy) = match error {
        sqlx::Error::Database(inner) if inner.message().contains("no such table: tenure_") => {
            let message = format!(
                "{file} has no Tenure tables; create them with `tenure migrate up --store sqlite:{file}`"
            );
            return StoreError::new(Trouble::SchemaMissing, message);
        }
        sqlx::Error::Io(inner) => return io(path, doing, inner),
        sqlx::Error::PoolTimedOut => {
            (Trouble::Timeout, "every connection is busy; a transaction on this file takes too long")
        }
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
            (Trouble::Other, "a row is not as Tenure writes it; was it edited by hand?")
        }
        _ => remedy(primary_code(error)),
    };
    StoreError::new(kind, format!("{file}: {doing} failed: {error}; {remedy}"))
}

/// The error for a file that a command would have to create, and must not.
pub(super) fn no_file(path: &Path) -> StoreError {
    let file = path.display();
    let message = format!(
        "{file} does not exist, and a command that only reads does not create it; check the path, or create the file with \
         `tenure migrate up --store sqlite:{file}`"
    );
    StoreError::new(Trouble::SchemaMissing, message)
}

/// An error of the file system at `path`.
pub(super) fn io(path: &Path, doing: &str, error: &io::Error) -> StoreError {
    let (kind, remedy) = match error.kind() {
        io::ErrorKind::NotFound => {
            (Trouble::Address, "create the folder first (`mkdir -p`), or name another file")
        }
        io::ErrorKind::PermissionDenied => (
            Trouble::Denied,
            "this user must be able to write the file and its folder; see `ls -ld`, or name another",
        ),
        io::ErrorKind::ReadOnlyFilesystem => (
            Trouble::Unavailable,
            "the file system is mounted read-only; remount it, or name a file elsewhere",
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (Trouble::Unavailable, "the disk is full; free some space, and Tenure goes on by itself")
        }
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            (Trouble::Address, "name a file, in a folder that exists")
        }
        _ => (Trouble::Unavailable, "look at the disk and at the limit of open files (`ulimit -n`)"),
    };
    StoreError::new(kind, format!("{}: {doing} failed: {error}; {remedy}", path.display()))
}

/// Whether somebody else was writing for the whole time that we were ready to wait.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(code::BUSY | code::LOCKED))
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?.parse::<i32>().ok()?;
    Some(code & 0xff)
}

fn remedy(code: Option<i32>) -> (Trouble, &'static str) {
    match code {
        Some(code::BUSY | code::LOCKED) => (
            Trouble::Timeout,
            "another process was writing all the while; keep transactions on this file short",
        ),
        Some(code::FULL) => {
            (Trouble::Unavailable, "the disk is full; free some space, and Tenure goes on by itself")
        }
        Some(code::READONLY) => (
            Trouble::Unavailable,
            "the file or its folder is read-only; make both writable, or name another file",
        ),
        Some(code::CANTOPEN) => (
            Trouble::Unavailable,
            "the file, or one beside it (-wal, -shm), cannot be opened; is its folder writable?",
        ),
        Some(code::IOERR) => (
            Trouble::Unavailable,
            "the disk could not be read or written; see `dmesg` and `df`, then try again",
        ),
        Some(code::CORRUPT) => (
            Trouble::Unavailable,
            "the file is damaged; restore it (`sqlite3 FILE .recover`) or name another",
        ),
        Some(code::NOTADB) => (Trouble::Unfit, "this is not a SQLite database; name another file"),
        Some(code::PERM) => (Trouble::Denied, "this user must be able to write the file and its folder"),
        _ => (Trouble::Other, "please report this"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_that_may_pass_is_told_from_trouble_that_will_not() {
        assert_eq!(remedy(Some(5)).0, Trouble::Timeout);
        assert_eq!(remedy(Some(13)).0, Trouble::Unavailable);
        assert_eq!(remedy(Some(8)).0, Trouble::Unavailable);
        assert_eq!(remedy(Some(26)).0, Trouble::Unfit);
        let path = Path::new("/no/such/file.db");
        let missing = io(path, "opening it", &io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(missing.kind, Trouble::Address);
        assert!(missing.message.contains("/no/such/file.db") && missing.message.contains("mkdir -p"));
    }
}
