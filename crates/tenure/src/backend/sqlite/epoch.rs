//! The epoch of a file: how a file that was restored or copied is found out.
//!
//! The row of `tenure_epoch` says in which file the tables are (inode and time of birth), and counts the grants and starts of sessions
//! (`writes`). Beside the database, `<file>.tenure/epoch` repeats that count after each commit. So there are two signs:
//!
//! | what happened | how it shows |
//! |---|---|
//! | a copy is used: `cp`, `.backup`, `VACUUM INTO`, a file from a backup, another machine | the row names another file |
//! | an older copy was written over the same file: `cp copy file`, `.restore` | the file beside it has counted further |
//! | the file was deleted, and a new one made in its place | likewise |
//!
//! Then a new epoch begins, before anything else is granted: all later tokens and event numbers are greater than all before, and
//! candidates wait until every leader of the old epoch must have stopped. A restart, a checkpoint, `VACUUM` and renaming the file
//! change none of this. Whoever sets back the whole disk (a snapshot of the machine) sets back both: nothing can show that, and
//! `tenure epoch bump` is for it.
//!
//! The file beside the database is written after the commit, so that a crash in between leaves it behind, which means nothing.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{EpochBump, EpochView, StoreError, Trouble};
use tenure_core::{EPOCH_MAX, Moment, next_epoch};

use super::Sqlite;
use super::connection::{Explain, Transaction, query};
use super::lock::Folder;
use crate::backend::private;
use crate::runtime;

/// How often a process that only beats looks whether its file was replaced, and counts.
const NOTED_EVERY: Duration = Duration::from_secs(60);

/// What one client knows of the epoch.
#[derive(Debug, Default)]
pub(super) struct Epochs {
    /// As it was read last.
    last: AtomicU32,
    /// When a beat last looked.
    looked: Mutex<Option<Moment>>,
}

/// The row.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    epoch: u32,
    file: String,
    writes: i64,
    changed_at: i64,
    reason: String,
}

/// What lies beside the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    epoch: u32,
    writes: i64,
}

/// What the signs say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// It is the file that it was.
    Same,
    /// It is new.
    New,
    /// It was restored or copied.
    Changed(&'static str),
}

impl Sqlite {
    /// The epoch as it was read last.
    pub(super) fn last_epoch(&self) -> u32 {
        self.inner.epochs.last.load(Ordering::Relaxed)
    }

    /// Notes the epoch that a row shows.
    pub(super) fn saw_epoch(&self, row: &SqliteRow) -> sqlx::Result<u32> {
        let epoch: u32 = row.try_get("epoch")?;
        self.inner.epochs.last.store(epoch, Ordering::Relaxed);
        Ok(epoch)
    }

    /// Looks whether this is still the file that it was, and begins a new epoch if it is not.
    pub(super) async fn verify_epoch(&self) -> sqlx::Result<()> {
        let here = file_id(self.path()).map_err(sqlx::Error::Io)?;
        // In this order: what lies beside the file is never ahead of what is committed in it.
        let mark = Mark::read(&self.inner.folder);
        let read = query(self.queries.get("epoch_read"));
        let stored = stored(&read.fetch_one(&self.inner.pools.reads).await?)?;
        self.inner.epochs.last.store(stored.epoch, Ordering::Relaxed);
        match sign(&stored, &here, mark) {
            Sign::Same => Ok(()),
            Sign::New | Sign::Changed(_) => {
                self.renew_epoch(None).await?.map_err(|error| sqlx::Error::Protocol(error.message))
            }
        }
    }

    /// Begins a new epoch if the signs ask for one, or if it is ordered.
    async fn renew_epoch(&self, bump: Option<&EpochBump>) -> sqlx::Result<Result<(), StoreError>> {
        let here = file_id(self.path()).map_err(sqlx::Error::Io)?;
        let mut transaction = Transaction::write(&self.inner.pools.writes).await?;
        let mark = Mark::read(&self.inner.folder).unwrap_or_default();
        let row = transaction.one(query(self.queries.get("epoch_read"))).await?;
        let stored = stored(&row.ok_or(sqlx::Error::RowNotFound)?)?;
        let wall_ms = runtime::wall_ms();
        let known = stored.epoch.max(mark.epoch);
        let (epoch, reason) = match (bump, sign(&stored, &here, Some(mark))) {
            (Some(bump), _) => match bump.after(known, wall_ms) {
                Ok(epoch) => (epoch, Some(bump.reason.as_str())),
                Err(error) => return Ok(Err(error)),
            },
            (None, Sign::Changed(why)) => (next_epoch(known, wall_ms), Some(why)),
            (None, Sign::Same | Sign::New) => (stored.epoch, None),
        };
        if epoch > EPOCH_MAX {
            let message = format!("the epoch after {known} is beyond the last one, {EPOCH_MAX}");
            return Ok(Err(StoreError::new(Trouble::Unfit, message)));
        }
        let set = query(self.queries.get("epoch_set"));
        let set = set.bind(epoch).bind(&here).bind(mark.writes).bind(wall_ms).bind(reason);
        let row = transaction.one(set).await?.ok_or(sqlx::Error::RowNotFound)?;
        if reason.is_some() {
            transaction.execute(query(self.queries.get("epoch_sequence"))).await?;
            transaction.execute(query(self.queries.get("epoch_numbers")).bind(epoch)).await?;
        }
        let writes = row.try_get("writes")?;
        self.saw_epoch(&row)?;
        transaction.commit().await?;
        self.mark_epoch(writes);
        if let Some(reason) = reason {
            tracing::warn!(epoch, reason, file = %self.path().display(), "new epoch began");
        }
        Ok(Ok(()))
    }

    /// After a commit: writes down beside the file how far it has counted.
    pub(super) fn mark_epoch(&self, writes: i64) {
        let mark = Mark { epoch: self.last_epoch(), writes };
        if let Err(error) = mark.write(&self.inner.folder) {
            tracing::debug!(%error, "could not note the epoch beside the file");
        }
    }

    /// With a beat, now and then: a process that neither opens sessions nor is granted anything counts as well.
    pub(super) async fn note_epoch_now_and_then(&self) -> sqlx::Result<()> {
        let now = runtime::now();
        {
            let mut looked = self.inner.epochs.looked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match *looked {
                Some(last) if now.since(last) < NOTED_EVERY => return Ok(()),
                None => {
                    *looked = Some(now);
                    return Ok(());
                }
                Some(_) => *looked = Some(now),
            }
        }
        self.verify_epoch().await?;
        let note = query(self.queries.get("epoch_note")).fetch_one(&self.inner.pools.writes).await?;
        self.saw_epoch(&note)?;
        self.mark_epoch(note.try_get("writes")?);
        Ok(())
    }

    pub(super) async fn epoch_view(&self) -> Result<EpochView, StoreError> {
        let read = query(self.queries.get("epoch_read")).fetch_one(&self.inner.pools.reads).await;
        let stored = read.and_then(|row| stored(&row)).explain(self.path(), "reading its epoch")?;
        Ok(EpochView::new(stored.epoch, stored.changed_at, stored.reason, format!("file {}", stored.file)))
    }

    pub(super) async fn begin_epoch(&self, bump: &EpochBump) -> Result<EpochView, StoreError> {
        self.renew_epoch(Some(bump)).await.explain(self.path(), "beginning a new epoch")??;
        self.epoch_view().await
    }
}

fn stored(row: &SqliteRow) -> sqlx::Result<Stored> {
    Ok(Stored {
        epoch: row.try_get("epoch")?,
        file: row.try_get("file")?,
        writes: row.try_get("writes")?,
        changed_at: row.try_get("changed_at")?,
        reason: row.try_get("reason")?,
    })
}

fn sign(stored: &Stored, here: &str, mark: Option<Mark>) -> Sign {
    if mark.is_some_and(|mark| mark.epoch > stored.epoch || mark.writes > stored.writes) {
        return Sign::Changed("older content");
    }
    match stored.file.as_str() {
        "" => Sign::New,
        file if file == here => Sign::Same,
        _ => Sign::Changed("other file"),
    }
}

/// What a copy of a file does not have of it: its inode, and when that was born, where the file system knows.
fn file_id(path: &Path) -> io::Result<String> {
    let found = std::fs::metadata(path)?;
    let born = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{}.{}", found.ino(), born.map_or(0, |at| at.as_nanos())))
}

impl Mark {
    fn read(folder: &Folder) -> Option<Mark> {
        let text = std::fs::read_to_string(folder.path().join("epoch")).ok()?;
        let (epoch, writes) = text.trim_end().split_once(' ')?;
        Some(Mark { epoch: epoch.parse().ok()?, writes: writes.parse().ok()? })
    }

    /// Never back: others write it too.
    fn write(self, folder: &Folder) -> io::Result<()> {
        if Mark::read(folder).is_some_and(|there| (there.epoch, there.writes) >= (self.epoch, self.writes)) {
            return Ok(());
        }
        let new = folder.path().join(format!("epoch.{:016x}", runtime::random()));
        let mut file = private::options().write(true).create_new(true).open(&new)?;
        file.write_all(format!("{} {}\n", self.epoch, self.writes).as_bytes())?;
        std::fs::rename(&new, folder.path().join("epoch"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_file_or_a_count_that_went_back_is_a_sign() {
        let stored = |file: &str| Stored {
            epoch: 3,
            file: file.into(),
            writes: 9,
            changed_at: 0,
            reason: String::new(),
        };
        let mark = |epoch, writes| Some(Mark { epoch, writes });
        assert_eq!(sign(&stored("a"), "a", None), Sign::Same, "the folder was removed");
        assert_eq!(sign(&stored("a"), "a", mark(3, 9)), Sign::Same);
        assert_eq!(sign(&stored("a"), "a", mark(3, 8)), Sign::Same, "a crash before it was written");
        assert_eq!(sign(&stored("a"), "a", mark(2, 8)), Sign::Same);
        assert_eq!(sign(&stored(""), "a", None), Sign::New);
        assert_eq!(sign(&stored("b"), "a", mark(3, 9)), Sign::Changed("other file"));
        assert_eq!(sign(&stored("a"), "a", mark(3, 10)), Sign::Changed("older content"));
        assert_eq!(
            sign(&stored(""), "a", mark(3, 10)),
            Sign::Changed("older content"),
            "a new file in its place"
        );
        assert_eq!(sign(&stored("a"), "a", mark(4, 1)), Sign::Changed("older content"));
    }
}
