//! Log and vote of this member, in memory and durably in its [`Journal`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{AnyError, EntryPayload, ErrorSubject, ErrorVerb, LogId, StorageError, StorageIOError, Vote};
use tenure_core::port::{ErrorKind, StoreError};
use tokio::sync::watch;

use super::env::Disk;
use super::journal::{Journal, Record};
use super::types::{self, LogDirectoryId, NodeId, RaftWrite, Types};
use crate::runtime::Runtime;

/// Minimum length of a segment before a purge starts a new one.
const SEGMENT_LINES: u64 = 256;

type Entry = openraft::Entry<Types>;
type StorageFailure = StorageError<NodeId>;

/// The log of a member. Clones share it.
#[derive(Clone)]
pub(super) struct Log {
    inner: Arc<Mutex<Inner>>,
    disk: Arc<dyn Disk>,
    /// Number of entries covered by the snapshot on disk; `None` after a snapshot could not be written.
    covered: watch::Receiver<Option<u64>>,
}

struct Inner {
    contents: LogContents,
    journal: Journal,
}

/// State that results from all journal records.
#[derive(Default)]
struct LogContents {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote<NodeId>>,
    purged: Option<LogId<NodeId>>,
    directory_id: String,
    started: u64,
    has_lost_state: bool,
}

impl Log {
    /// Open the log on a disk. A new log gets a random directory id.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        covered: watch::Receiver<Option<u64>>,
        runtime: &dyn Runtime,
    ) -> Result<Log, StoreError> {
        let mut contents = LogContents::default();
        let journal = Journal::open(disk.clone(), |record| contents.apply(record))?;
        let next = contents.purged.map_or(0, |upto| upto.index + 1);
        if contents.entries.first_key_value().is_some_and(|(first, _)| *first > next) {
            let message = format!(
                "the log in {} has no beginning: its first segments are missing",
                disk.display_path("")
            );
            return Err(StoreError::new(ErrorKind::Misconfigured, message));
        }
        let random_id = format!("{:016x}{:016x}", runtime.random(), runtime.random());
        let directory_id = Some(Record::DirectoryId(random_id)).filter(|_| contents.directory_id.is_empty());
        let start_records = directory_id.into_iter().chain([Record::Started(contents.started + 1)]).collect();
        let mut inner = Inner { contents, journal };
        inner.append(start_records).map_err(|error| {
            StoreError::new(ErrorKind::Misconfigured, format!("cannot write the Raft log: {error}"))
        })?;
        Ok(Log { inner: Arc::new(Mutex::new(inner)), disk, covered })
    }

    /// Random id chosen when the directory was created.
    pub(super) fn directory_id(&self) -> String {
        self.locked().contents.directory_id.clone()
    }

    /// Number of starts of the member in this directory, including the current one.
    pub(super) fn started(&self) -> u64 {
        self.locked().contents.started
    }

    /// Term of the last vote and index of the last entry.
    pub(super) fn last_position(&self) -> (u64, u64) {
        let Inner { contents, .. } = &*self.locked();
        let term = contents.vote.map_or(0, |vote| vote.leader_id().term);
        (term, contents.last().map_or(0, |last| last.index))
    }

    /// Whether the member has recorded that it lost votes or entries.
    pub(super) fn has_lost_state(&self) -> bool {
        self.locked().contents.has_lost_state
    }

    /// Record durably that votes or entries are lost.
    pub(super) async fn record_state_lost(&self) -> io::Result<()> {
        self.write(|inner| inner.append(vec![Record::StateLost])).await
    }

    /// Whether the log has no vote and no entry.
    pub(super) fn is_new(&self) -> bool {
        let Inner { contents, .. } = &*self.locked();
        contents.vote.is_none() && contents.entries.is_empty() && contents.purged.is_none()
    }

    /// Directory that a member registered last, according to the entries in the log.
    pub(super) fn registered_directory(&self, node: NodeId) -> Option<LogDirectoryId> {
        let Inner { contents, .. } = &*self.locked();
        contents.entries.values().rev().find_map(|entry| match &entry.payload {
            EntryPayload::Normal(types::TimedWrite {
                change: RaftWrite::Register(registered, directory_id),
                ..
            }) if *registered == node => Some(directory_id.clone()),
            _ => None,
        })
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Run an operation on the log without blocking the async runtime.
    async fn write(&self, act: impl FnOnce(&mut Inner) -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let log = self.clone();
        self.disk.run_blocking(Box::new(move || act(&mut log.locked()))).await
    }
}

impl LogContents {
    fn last(&self) -> Option<LogId<NodeId>> {
        self.entries.last_key_value().map(|(_, entry)| entry.log_id).or(self.purged)
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::DirectoryId(random_id) => self.directory_id = random_id,
            Record::Started(times) => self.started = times,
            Record::StateLost => self.has_lost_state = true,
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Append(entry) => drop(self.entries.insert(entry.log_id.index, *entry)),
            Record::Truncate(from) => drop(self.entries.split_off(&from)),
            Record::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(upto);
            }
        }
    }
}

impl Inner {
    fn append(&mut self, records: Vec<Record>) -> io::Result<()> {
        self.journal.append(&records)?;
        records.into_iter().for_each(|record| self.contents.apply(record));
        Ok(())
    }

    fn purge(&mut self, upto: LogId<NodeId>) -> io::Result<()> {
        self.append(vec![Record::Purge(upto)])?;
        let Inner { contents, journal } = self;
        if journal.lines() >= SEGMENT_LINES {
            let mut head =
                vec![Record::DirectoryId(contents.directory_id.clone()), Record::Started(contents.started)];
            head.extend(contents.vote.map(Record::Vote));
            head.extend(contents.has_lost_state.then_some(Record::StateLost));
            head.push(Record::Purge(upto));
            journal.rotate(&head)?;
        }
        journal.drop_covered(upto.index)
    }
}

fn failed(verb: ErrorVerb, error: &io::Error) -> StorageFailure {
    StorageIOError::new(ErrorSubject::Logs, verb, AnyError::new(error)).into()
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<B: RangeBounds<u64> + Clone + Debug + Send>(
        &mut self,
        range: B,
    ) -> Result<Vec<Entry>, StorageFailure> {
        let Inner { contents, .. } = &*self.locked();
        // A range whose start is purged is not served in part: the receiver would have a gap.
        if let Bound::Included(first) = range.start_bound()
            && !contents.entries.contains_key(first)
        {
            return Ok(Vec::new());
        }
        Ok(contents.entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageFailure> {
        let Inner { contents, .. } = &*self.locked();
        Ok(LogState { last_purged_log_id: contents.purged, last_log_id: contents.last() })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<NodeId>) -> Result<(), StorageFailure> {
        let vote = *vote;
        let saved = self.write(move |inner| inner.append(vec![Record::Vote(vote)])).await;
        saved.map_err(|error| failed(ErrorVerb::Write, &error))
    }

    /// Returns the vote as not committed, so a former leader must be elected again after a restart. Otherwise openraft
    /// would let it lead at once and serve reads from a state without the entries committed since its last snapshot.
    async fn read_vote(&mut self) -> Result<Option<Vote<NodeId>>, StorageFailure> {
        Ok(self.locked().contents.vote.map(|vote| Vote { committed: false, ..vote }))
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageFailure>
    where
        I: IntoIterator<Item = Entry> + Send,
        I::IntoIter: Send,
    {
        let records = entries.into_iter().map(|entry| Record::Append(Box::new(entry))).collect();
        let written = self.write(move |inner| inner.append(records)).await;
        let result = written.as_ref().map_err(|error| failed(ErrorVerb::Write, error)).copied();
        callback.log_io_completed(written);
        result
    }

    async fn truncate(&mut self, log_id: LogId<NodeId>) -> Result<(), StorageFailure> {
        let cut = self.write(move |inner| inner.append(vec![Record::Truncate(log_id.index)])).await;
        cut.map_err(|error| failed(ErrorVerb::Delete, &error))
    }

    /// Wait for the covering snapshot: openraft does both concurrently, and after a crash at least one of the two must
    /// exist.
    async fn purge(&mut self, log_id: LogId<NodeId>) -> Result<(), StorageFailure> {
        let covers = |covered: &Option<u64>| covered.is_none_or(|entries| entries > log_id.index);
        let is_covered = self.covered.wait_for(covers).await.is_ok_and(|covered| covered.is_some());
        if !is_covered {
            return Err(failed(ErrorVerb::Delete, &io::Error::other("the snapshot could not be written")));
        }
        let cut = self.write(move |inner| inner.purge(log_id)).await;
        cut.map_err(|error| failed(ErrorVerb::Delete, &error))
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
