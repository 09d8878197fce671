//! The log and the vote of this member: in memory, and durably in its [`Journal`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{AnyError, ErrorSubject, ErrorVerb, LogId, StorageError, StorageIOError, Vote};
use tenure_core::port::{StoreError, Trouble};

use super::journal::{Journal, Record};
use super::types::{NodeId, Types};
use crate::runtime;

/// A segment with fewer lines than that is not left for a new one.
const SEGMENT_LINES: u64 = 256;

type Entry = openraft::Entry<Types>;
type Failed = StorageError<NodeId>;

/// The log of a member. Clones share it.
#[derive(Clone)]
pub(super) struct Log(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote<NodeId>>,
    purged: Option<LogId<NodeId>>,
    made: String,
    started: u64,
    has_forgotten: bool,
    journal: Option<Journal>,
}

impl Log {
    /// The log in a folder, which is drawn a number for if it is new; of a member without one, a log in memory.
    pub(super) fn open(folder: Option<&Path>) -> Result<Log, StoreError> {
        let mut inner = Inner::default();
        if let Some(folder) = folder {
            let journal = Journal::open(folder, |record| inner.take_in(record))?;
            inner.journal = Some(journal);
            let next = inner.purged.map_or(0, |upto| upto.index + 1);
            if inner.entries.first_key_value().is_some_and(|(first, _)| *first > next) {
                let message = format!("{} has a log without its beginning", folder.display());
                return Err(StoreError::new(Trouble::Unfit, message));
            }
        }
        let drawn = format!("{:016x}{:016x}", runtime::random(), runtime::random());
        let made = Some(Record::Made(drawn)).filter(|_| inner.made.is_empty());
        let begun = made.into_iter().chain([Record::Started(inner.started + 1)]).collect();
        inner.append(begun).map_err(|error| {
            StoreError::new(Trouble::Unfit, format!("the log can not be written: {error}"))
        })?;
        Ok(Log(Arc::new(Mutex::new(inner))))
    }

    /// What was drawn when the folder was made.
    pub(super) fn folder(&self) -> String {
        self.locked().made.clone()
    }

    /// How often a member was started in the folder, this time included.
    pub(super) fn started(&self) -> u64 {
        self.locked().started
    }

    /// The term of its last vote, and the index of its last entry.
    pub(super) fn reach(&self) -> (u64, u64) {
        let inner = self.locked();
        let term = inner.vote.map_or(0, |vote| vote.leader_id().term);
        (term, inner.last().map_or(0, |last| last.index))
    }

    /// Whether it was found out that promises were made that are not here.
    pub(super) fn has_forgotten(&self) -> bool {
        self.locked().has_forgotten
    }

    /// It was found out.
    pub(super) async fn forgot(&self) -> io::Result<()> {
        self.write(|inner| inner.append(vec![Record::Forgotten])).await
    }

    /// Whether this member never promised anything.
    pub(super) fn is_pristine(&self) -> bool {
        let inner = self.locked();
        inner.vote.is_none() && inner.entries.is_empty() && inner.purged.is_none()
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the log and its files, off the threads that must not wait.
    async fn write(&self, act: impl FnOnce(&mut Inner) -> io::Result<()> + Send + 'static) -> io::Result<()> {
        if self.locked().journal.is_none() {
            return act(&mut self.locked());
        }
        let log = self.clone();
        tokio::task::spawn_blocking(move || act(&mut log.locked()))
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
    }
}

impl Inner {
    fn last(&self) -> Option<LogId<NodeId>> {
        self.entries.last_key_value().map(|(_, entry)| entry.log_id).or(self.purged)
    }

    fn take_in(&mut self, record: Record) {
        match record {
            Record::Made(drawn) => self.made = drawn,
            Record::Started(times) => self.started = times,
            Record::Forgotten => self.has_forgotten = true,
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
            journal.append(&records)?;
        }
        records.into_iter().for_each(|record| self.take_in(record));
        Ok(())
    }

    fn purge(&mut self, upto: LogId<NodeId>) -> io::Result<()> {
        self.append(vec![Record::Purge(upto)])?;
        let Some(journal) = &mut self.journal else { return Ok(()) };
        if journal.lines() >= SEGMENT_LINES {
            let mut head = vec![Record::Made(self.made.clone()), Record::Started(self.started)];
            head.extend(self.vote.map(Record::Vote));
            head.extend(self.has_forgotten.then_some(Record::Forgotten));
            head.push(Record::Purge(upto));
            journal.rotate(&head)?;
        }
        journal.drop_covered(upto.index)
    }
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
        Ok(LogState { last_purged_log_id: inner.purged, last_log_id: inner.last() })
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
        let cut = self.write(move |inner| inner.purge(log_id)).await;
        cut.map_err(|error| failed(ErrorVerb::Delete, &error))
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
