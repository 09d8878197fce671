//! The epoch of a file: detection of restored and copied files.
//!
//! The row of `tenure_epoch` stores the identity of the file (inode and creation time) and counts grants and started sessions
//! (`write_count`). The mark file `<file>.tenure/epoch` repeats that count after each commit. Two signs show a restore or copy:
//!
//! | event | sign |
//! |---|---|
//! | a copy is used: `cp`, `.backup`, `VACUUM INTO`, a file from a backup, another machine | the row names another file |
//! | an older copy was written over the same file: `cp copy file`, `.restore` | the count in the mark file is higher |
//! | the file was deleted and created again | the count in the mark file is higher |
//!
//! Then a new epoch starts before the next grant: all later tokens and event ids are greater than all earlier ones, and candidates
//! wait until every leader of the old epoch must have stopped. A restart, a checkpoint, `VACUUM` and renaming the file do not start an
//! epoch. A snapshot of the whole disk restores both files, which nothing can detect; after such a restore, run `tenure epoch bump`.
//!
//! The mark file is written after the commit. A crash in between leaves a lower count, which has no effect.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{EpochBump, EpochView, ErrorKind, StoreError};
use tenure_core::{BootInstant, EPOCH_MAX, next_epoch};

use super::SqliteStore;
use super::connection::{Explain, Transaction, query};
use super::lock::LockDirectory;
use crate::runtime;
use crate::store::private;

/// How often a process that only sends heartbeats checks the identity of its file and counts a write.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The epoch as one client knows it.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// The epoch that was read last.
    last: AtomicU32,
    /// When a heartbeat last checked the file.
    checked_at: Mutex<Option<BootInstant>>,
}

/// The row of `tenure_epoch`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    epoch: u32,
    file_identity: String,
    write_count: i64,
    changed_at: i64,
    reason: String,
}

/// The content of the mark file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    epoch: u32,
    write_count: i64,
}

/// The result of comparing the row with the file and the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileIdentity {
    /// The file is unchanged.
    Same,
    /// The file is new.
    New,
    /// The file was restored or copied.
    Changed(&'static str),
}

impl SqliteStore {
    /// The epoch that was read last.
    pub(super) fn last_epoch(&self) -> u32 {
        self.inner.epochs.last.load(Ordering::Relaxed)
    }

    /// Record the epoch of a row.
    pub(super) fn record_epoch(&self, row: &SqliteRow) -> sqlx::Result<u32> {
        let epoch: u32 = row.try_get("epoch")?;
        self.inner.epochs.last.store(epoch, Ordering::Relaxed);
        Ok(epoch)
    }

    /// Check the identity of the file, and start a new epoch if the file was restored or copied.
    pub(super) async fn verify_epoch(&self) -> sqlx::Result<()> {
        let current_file = file_id(self.path()).map_err(sqlx::Error::Io)?;
        // Read the mark first: its count never exceeds the committed one.
        let mark = Mark::read(&self.inner.directory);
        let read = query(self.queries.get("epoch_get"));
        let stored = stored(&read.fetch_one(&self.inner.pools.reads).await?)?;
        self.inner.epochs.last.store(stored.epoch, Ordering::Relaxed);
        match compare_identity(&stored, &current_file, mark) {
            FileIdentity::Same => Ok(()),
            FileIdentity::New | FileIdentity::Changed(_) => {
                self.renew_epoch(None).await?.map_err(|error| sqlx::Error::Protocol(error.message))
            }
        }
    }

    /// Start a new epoch if the file was restored or copied, or if an operator requests it.
    async fn renew_epoch(&self, bump: Option<&EpochBump>) -> sqlx::Result<Result<(), StoreError>> {
        let current_file = file_id(self.path()).map_err(sqlx::Error::Io)?;
        let mut transaction = Transaction::write(&self.inner.pools.writes).await?;
        let mark = Mark::read(&self.inner.directory).unwrap_or_default();
        let row = transaction.one(query(self.queries.get("epoch_get"))).await?;
        let stored = stored(&row.ok_or(sqlx::Error::RowNotFound)?)?;
        let wall_ms = runtime::wall_ms();
        let known_epoch = stored.epoch.max(mark.epoch);
        let (epoch, reason) = match (bump, compare_identity(&stored, &current_file, Some(mark))) {
            (Some(bump), _) => match bump.after(known_epoch, wall_ms) {
                Ok(epoch) => (epoch, Some(bump.reason.as_str())),
                Err(error) => return Ok(Err(error)),
            },
            (None, FileIdentity::Changed(why)) => (next_epoch(known_epoch, wall_ms), Some(why)),
            (None, FileIdentity::Same | FileIdentity::New) => (stored.epoch, None),
        };
        if epoch > EPOCH_MAX {
            let message = format!("the epoch after {known_epoch} exceeds the maximum, {EPOCH_MAX}");
            return Ok(Err(StoreError::new(ErrorKind::Misconfigured, message)));
        }
        let set = query(self.queries.get("epoch_set"));
        let set = set.bind(epoch).bind(&current_file).bind(mark.write_count).bind(wall_ms).bind(reason);
        let row = transaction.one(set).await?.ok_or(sqlx::Error::RowNotFound)?;
        if reason.is_some() {
            transaction.execute(query(self.queries.get("epoch_create_event_sequence"))).await?;
            transaction.execute(query(self.queries.get("epoch_raise_event_sequence")).bind(epoch)).await?;
        }
        let write_count = row.try_get("write_count")?;
        self.record_epoch(&row)?;
        transaction.commit().await?;
        self.write_epoch_mark(write_count);
        if let Some(reason) = reason {
            tracing::warn!(epoch, reason, file = %self.path().display(), "epoch started");
        }
        Ok(Ok(()))
    }

    /// Write the mark file after a commit.
    pub(super) fn write_epoch_mark(&self, write_count: i64) {
        let mark = Mark { epoch: self.last_epoch(), write_count };
        if let Err(error) = mark.write(&self.inner.directory) {
            tracing::debug!(%error, "writing the epoch mark failed");
        }
    }

    /// Check the file and count a write, at most once per interval. Heartbeats call it, so that a process without grants also counts.
    pub(super) async fn check_epoch_periodically(&self) -> sqlx::Result<()> {
        let now = runtime::now();
        {
            let mut checked_at =
                self.inner.epochs.checked_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match *checked_at {
                Some(last) if now.since(last) < CHECK_INTERVAL => return Ok(()),
                None => {
                    *checked_at = Some(now);
                    return Ok(());
                }
                Some(_) => *checked_at = Some(now),
            }
        }
        self.verify_epoch().await?;
        let note = query(self.queries.get("epoch_count_write")).fetch_one(&self.inner.pools.writes).await?;
        self.record_epoch(&note)?;
        self.write_epoch_mark(note.try_get("write_count")?);
        Ok(())
    }

    pub(super) async fn epoch_view(&self) -> Result<EpochView, StoreError> {
        let read = query(self.queries.get("epoch_get")).fetch_one(&self.inner.pools.reads).await;
        let stored = read.and_then(|row| stored(&row)).explain(self.path(), "reading the epoch")?;
        Ok(EpochView::new(
            stored.epoch,
            stored.changed_at,
            stored.reason,
            format!("file {}", stored.file_identity),
        ))
    }

    pub(super) async fn begin_epoch(&self, bump: &EpochBump) -> Result<EpochView, StoreError> {
        self.renew_epoch(Some(bump)).await.explain(self.path(), "starting a new epoch")??;
        self.epoch_view().await
    }
}

fn stored(row: &SqliteRow) -> sqlx::Result<Stored> {
    Ok(Stored {
        epoch: row.try_get("epoch")?,
        file_identity: row.try_get("file_identity")?,
        write_count: row.try_get("write_count")?,
        changed_at: row.try_get("changed_at_ms")?,
        reason: row.try_get("reason")?,
    })
}

fn compare_identity(stored: &Stored, current_file: &str, mark: Option<Mark>) -> FileIdentity {
    if mark.is_some_and(|mark| mark.epoch > stored.epoch || mark.write_count > stored.write_count) {
        return FileIdentity::Changed("older content");
    }
    match stored.file_identity.as_str() {
        "" => FileIdentity::New,
        file if file == current_file => FileIdentity::Same,
        _ => FileIdentity::Changed("other file"),
    }
}

/// The identity of a file that copies do not share: its inode and, if known, its creation time.
fn file_id(path: &Path) -> io::Result<String> {
    let found = std::fs::metadata(path)?;
    let born = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{}.{}", found.ino(), born.map_or(0, |at| at.as_nanos())))
}

impl Mark {
    fn read(directory: &LockDirectory) -> Option<Mark> {
        let text = std::fs::read_to_string(directory.path().join("epoch")).ok()?;
        let (epoch, write_count) = text.trim_end().split_once(' ')?;
        Some(Mark { epoch: epoch.parse().ok()?, write_count: write_count.parse().ok()? })
    }

    /// Write the mark, unless another process has written a higher one.
    fn write(self, directory: &LockDirectory) -> io::Result<()> {
        if Mark::read(directory)
            .is_some_and(|there| (there.epoch, there.write_count) >= (self.epoch, self.write_count))
        {
            return Ok(());
        }
        let new = directory.path().join(format!("epoch.{:016x}", runtime::random()));
        let mut file = private::options().write(true).create_new(true).open(&new)?;
        file.write_all(format!("{} {}\n", self.epoch, self.write_count).as_bytes())?;
        std::fs::rename(&new, directory.path().join("epoch"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_or_a_lower_count_starts_an_epoch() {
        let stored = |file: &str| Stored {
            epoch: 3,
            file_identity: file.into(),
            write_count: 9,
            changed_at: 0,
            reason: String::new(),
        };
        let mark = |epoch, write_count| Some(Mark { epoch, write_count });
        assert_eq!(
            compare_identity(&stored("a"), "a", None),
            FileIdentity::Same,
            "the lock directory was removed"
        );
        assert_eq!(compare_identity(&stored("a"), "a", mark(3, 9)), FileIdentity::Same);
        assert_eq!(
            compare_identity(&stored("a"), "a", mark(3, 8)),
            FileIdentity::Same,
            "a crash before the mark was written"
        );
        assert_eq!(compare_identity(&stored("a"), "a", mark(2, 8)), FileIdentity::Same);
        assert_eq!(compare_identity(&stored(""), "a", None), FileIdentity::New);
        assert_eq!(compare_identity(&stored("b"), "a", mark(3, 9)), FileIdentity::Changed("other file"));
        assert_eq!(compare_identity(&stored("a"), "a", mark(3, 10)), FileIdentity::Changed("older content"));
        assert_eq!(
            compare_identity(&stored(""), "a", mark(3, 10)),
            FileIdentity::Changed("older content"),
            "a new file at the same path"
        );
        assert_eq!(compare_identity(&stored("a"), "a", mark(4, 1)), FileIdentity::Changed("older content"));
    }
}
