//! The log and the vote of this member, durable.
//!
//! One file, a record each line: a checksum, and what was done. It is only ever appended to, and synced before anybody is told; a line that
//! was cut off by a crash was never told of, and is left out. When the log is cut because a snapshot covers it, the file is written anew beside
//! and moved into place. What is damaged anywhere but at its end is no crash: the member refuses to start rather than forget what it promised.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::RangeBounds;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{AnyError, ErrorSubject, ErrorVerb, LogId, StorageError, StorageIOError, Vote};
use serde::{Deserialize, Serialize};
use tenure_core::port::{StoreError, Trouble};

use super::types::{NodeId, Types};
use crate::runtime;

type Entry = openraft::Entry<Types>;
type Failed = StorageError<NodeId>;

/// What a line says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Record {
    /// What was drawn when the folder was made.
    Made(String),
    Vote(Vote<NodeId>),
    Append(Box<Entry>),
    /// Everything from this index on is void.
    Truncate(u64),
    /// Everything up to this is in a snapshot.
    Purge(LogId<NodeId>),
}

/// The log of a member. Clones share it.
#[derive(Clone)]
pub(super) struct Log(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote<NodeId>>,
    purged: Option<LogId<NodeId>>,
    made: String,
    journal: Option<Journal>,
}

struct Journal {
    path: PathBuf,
    file: File,
}

impl Log {
    /// The log in a folder; of a member without one, a log in memory.
    pub(super) fn open(folder: Option<&Path>) -> Result<Log, StoreError> {
        let mut inner = Inner::default();
        if let Some(folder) = folder {
            let path = folder.join("log");
            let unfit = |what: String| StoreError::new(Trouble::Unfit, format!("{} {what}", path.display()));
            let bytes = match std::fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(error) => return Err(unfit(format!("can not be read: {error}"))),
            };
            let whole = inner.replay(&bytes).map_err(|line| {
                unfit(format!(
                    "is damaged in line {line}: this member has lost what it promised; remove it from the cluster, empty its \
                     folder, and add it under another number"
                ))
            })?;
            let opened = OpenOptions::new().create(true).append(true).open(&path).and_then(|file| {
                // What was cut off.
                file.set_len(whole as u64)?;
                file.sync_all()?;
                sync_folder(&path)?;
                Ok(file)
            });
            let file = opened.map_err(|error| unfit(format!("can not be written: {error}")))?;
            inner.journal = Some(Journal { path, file });
            if inner.made.is_empty() {
                let drawn = format!("{:016x}{:016x}", runtime::random(), runtime::random());
                let made = inner.append(vec![Record::Made(drawn)]);
                made.map_err(|error| {
                    StoreError::new(
                        Trouble::Unfit,
                        format!("{} can not be written: {error}", folder.display()),
                    )
                })?;
            }
        }
        Ok(Log(Arc::new(Mutex::new(inner))))
    }

    /// What was drawn when the folder was made.
    pub(super) fn folder(&self) -> String {
        self.locked().made.clone()
    }

    /// Whether this member never promised anything.
    pub(super) fn is_pristine(&self) -> bool {
        let inner = self.locked();
        inner.vote.is_none() && inner.entries.is_empty() && inner.purged.is_none()
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the log and its file, off the threads that must not wait.
    async fn write(&self, act: impl FnOnce(&mut Inner) -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let log = self.clone();
        tokio::task::spawn_blocking(move || act(&mut log.locked()))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

impl Inner {
    /// Takes in what was written; how many bytes of it are whole, or the line that is damaged.
    fn replay(&mut self, bytes: &[u8]) -> Result<usize, usize> {
        let mut whole = 0;
        for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            match read(line) {
                Some(record) => self.take_in(record),
                // The last one may be cut off.
                None if whole + line.len() == bytes.len() => return Ok(whole),
                None => return Err(number + 1),
            }
            whole += line.len();
        }
        Ok(whole)
    }

    fn take_in(&mut self, record: Record) {
        match record {
            Record::Made(drawn) => self.made = drawn,
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Append(entry) => drop(self.entries.insert(entry.log_id.index, *entry)),
            Record::Truncate(from) => drop(self.entries.split_off(&from)),
            Record::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(upto);
            }
        }
    }

    fn append(&mut self, records: Vec<Record>) -> io::Result<()> {
        if let Some(journal) = &mut self.journal {
            let mut bytes = Vec::new();
            for record in &records {
                put(record, &mut bytes)?;
            }
            journal.file.write_all(&bytes)?;
            journal.file.sync_data()?;
        }
        records.into_iter().for_each(|record| self.take_in(record));
        Ok(())
    }

    /// Writes the file anew, without what is void.
    fn rewrite(&mut self) -> io::Result<()> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let mut bytes = Vec::new();
        put(&Record::Made(self.made.clone()), &mut bytes)?;
        if let Some(vote) = self.vote {
            put(&Record::Vote(vote), &mut bytes)?;
        }
        if let Some(upto) = self.purged {
            put(&Record::Purge(upto), &mut bytes)?;
        }
        for entry in self.entries.values() {
            put(&Record::Append(Box::new(entry.clone())), &mut bytes)?;
        }
        replace(&journal.path, &bytes)?;
        journal.file = OpenOptions::new().append(true).open(&journal.path)?;
        Ok(())
    }
}

/// Puts a new file in the place of another, whole or not at all.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    sync_folder(path)
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

fn put(record: &Record, to: &mut Vec<u8>) -> io::Result<()> {
    let text = serde_json::to_string(record)?;
    writeln!(to, "{:016x} {text}", checksum(text.as_bytes()))
}

fn read(line: &[u8]) -> Option<Record> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, text) = line.split_at_checked(17)?;
    let sum = u64::from_str_radix(std::str::from_utf8(sum).ok()?.trim_end(), 16).ok()?;
    (sum == checksum(text)).then(|| serde_json::from_slice(text).ok())?
}

/// FNV-1a: it finds what a crash left half written.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn failed(verb: ErrorVerb, error: &io::Error) -> Failed {
    StorageIOError::new(ErrorSubject::Logs, verb, AnyError::new(error)).into()
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<B: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: B,
    ) -> Result<Vec<Entry>, Failed> {
        Ok(self.locked().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, Failed> {
        let inner = self.locked();
        let last = inner.entries.last_key_value().map(|(_, entry)| entry.log_id).or(inner.purged);
        Ok(LogState { last_purged_log_id: inner.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<NodeId>) -> Result<(), Failed> {
        let vote = *vote;
        let saved = self.write(move |inner| inner.append(vec![Record::Vote(vote)])).await;
        saved.map_err(|error| failed(ErrorVerb::Write, &error))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<NodeId>>, Failed> {
        Ok(self.locked().vote)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), Failed>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let records = entries.into_iter().map(|entry| Record::Append(Box::new(entry))).collect();
        let written = self.write(move |inner| inner.append(records)).await;
        let told = written.as_ref().map_err(|error| failed(ErrorVerb::Write, error)).copied();
        callback.log_io_completed(written);
        told
    }

    async fn truncate(&mut self, log_id: LogId<NodeId>) -> Result<(), Failed> {
        let cut = self.write(move |inner| inner.append(vec![Record::Truncate(log_id.index)])).await;
        cut.map_err(|error| failed(ErrorVerb::Delete, &error))
    }

    async fn purge(&mut self, log_id: LogId<NodeId>) -> Result<(), Failed> {
        let cut = self
            .write(move |inner| {
                inner.take_in(Record::Purge(log_id));
                inner.rewrite()
            })
            .await;
        cut.map_err(|error| failed(ErrorVerb::Delete, &error))
    }
}
