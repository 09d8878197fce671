//! The log and the vote of this member: in memory, and durably in its [`Journal`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{AnyError, EntryPayload, ErrorSubject, ErrorVerb, LogId, StorageError, StorageIOError, Vote};
use tenure_core::port::{StoreError, Trouble};
use tokio::sync::watch;

use super::ground::Disk;
use super::journal::{Journal, Record};
use super::types::{self, Change, Folder, NodeId, Types};
use crate::runtime::Runtime;

/// A segment with fewer lines than that is not left for a new one.
const SEGMENT_LINES: u64 = 256;

type Entry = openraft::Entry<Types>;
type Failed = StorageError<NodeId>;

/// The log of a member. Clones share it.
#[derive(Clone)]
pub(super) struct Log {
    inner: Arc<Mutex<Inner>>,
    disk: Arc<dyn Disk>,
    /// How many entries are in a snapshot on disk; `None` once one could not be written.
    covered: watch::Receiver<Option<u64>>,
}

struct Inner {
    said: Said,
    journal: Journal,
}

/// All that the journal says.
#[derive(Default)]
struct Said {
    entries: BTreeMap<u64, Entry>,
    vote: Option<Vote<NodeId>>,
    purged: Option<LogId<NodeId>>,
    made: String,
    started: u64,
    has_forgotten: bool,
}

impl Log {
    /// The log on a disk, which is drawn a number for if it is new.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        covered: watch::Receiver<Option<u64>>,
        runtime: &dyn Runtime,
    ) -> Result<Log, StoreError> {
        let mut said = Said::default();
        let journal = Journal::open(disk.clone(), |record| said.take_in(record))?;
        let next = said.purged.map_or(0, |upto| upto.index + 1);
        if said.entries.first_key_value().is_some_and(|(first, _)| *first > next) {
            let message = format!("{} has a log without its beginning", disk.place(""));
            return Err(StoreError::new(Trouble::Unfit, message));
        }
        let drawn = format!("{:016x}{:016x}", runtime.random(), runtime.random());
        let made = Some(Record::Made(drawn)).filter(|_| said.made.is_empty());
        let begun = made.into_iter().chain([Record::Started(said.started + 1)]).collect();
        let mut inner = Inner { said, journal };
        inner.append(begun).map_err(|error| {
            StoreError::new(Trouble::Unfit, format!("the log can not be written: {error}"))
        })?;
        Ok(Log { inner: Arc::new(Mutex::new(inner)), disk, covered })
    }

    /// What was drawn when the folder was made.
    pub(super) fn folder(&self) -> String {
        self.locked().said.made.clone()
    }

    /// How often a member was started in the folder, this time included.
    pub(super) fn started(&self) -> u64 {
        self.locked().said.started
    }

    /// The term of its last vote, and the index of its last entry.
    pub(super) fn reach(&self) -> (u64, u64) {
        let Inner { said, .. } = &*self.locked();
        let term = said.vote.map_or(0, |vote| vote.leader_id().term);
        (term, said.last().map_or(0, |last| last.index))
    }

    /// Whether it was found out that promises were made that are not here.
    pub(super) fn has_forgotten(&self) -> bool {
        self.locked().said.has_forgotten
    }

    /// It was found out.
    pub(super) async fn forgot(&self) -> io::Result<()> {
        self.write(|inner| inner.append(vec![Record::Forgotten])).await
    }

    /// Whether this member never promised anything.
    pub(super) fn is_pristine(&self) -> bool {
        let Inner { said, .. } = &*self.locked();
        said.vote.is_none() && said.entries.is_empty() && said.purged.is_none()
    }

    /// The folder that a member registered last, in what the log has of it.
    pub(super) fn registered(&self, node: NodeId) -> Option<Folder> {
        let Inner { said, .. } = &*self.locked();
        said.entries.values().rev().find_map(|entry| match &entry.payload {
            EntryPayload::Normal(types::Entry { change: Change::Register(who, folder), .. })
                if *who == node =>
            {
                Some(folder.clone())
            }
            _ => None,
        })
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to the log and its files, off the threads that must not wait.
    async fn write(&self, act: impl FnOnce(&mut Inner) -> io::Result<()> + Send + 'static) -> io::Result<()> {
        let log = self.clone();
        self.disk.during(Box::new(move || act(&mut log.locked()))).await
    }
}

impl Said {
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
}

impl Inner {
    fn append(&mut self, records: Vec<Record>) -> io::Result<()> {
        self.journal.append(&records)?;
        records.into_iter().for_each(|record| self.said.take_in(record));
        Ok(())
    }

    fn purge(&mut self, upto: LogId<NodeId>) -> io::Result<()> {
        self.append(vec![Record::Purge(upto)])?;
        let Inner { said, journal } = self;
        if journal.lines() >= SEGMENT_LINES {
            let mut head = vec![Record::Made(said.made.clone()), Record::Started(said.started)];
            head.extend(said.vote.map(Record::Vote));
            head.extend(said.has_forgotten.then_some(Record::Forgotten));
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
        let Inner { said, .. } = &*self.locked();
        // Of what is cut off in front, the rest is not sent: whoever took it in would have a gap.
        if let Bound::Included(first) = range.start_bound()
            && !said.entries.contains_key(first)
        {
            return Ok(Vec::new());
        }
        Ok(said.entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, Failed> {
        let Inner { said, .. } = &*self.locked();
        Ok(LogState { last_purged_log_id: said.purged, last_log_id: said.last() })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<NodeId>) -> Result<(), Failed> {
        let vote = *vote;
        let saved = self.write(move |inner| inner.append(vec![Record::Vote(vote)])).await;
        saved.map_err(|error| failed(ErrorVerb::Write, &error))
    }

    /// As a promise, not as an office: who led before it was started anew is elected anew. openraft would have it lead on at once, and look at a state that
    /// lacks what was agreed on since its last snapshot.
    async fn read_vote(&mut self) -> Result<Option<Vote<NodeId>>, Failed> {
        Ok(self.locked().said.vote.map(|vote| Vote { committed: false, ..vote }))
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

    /// Waits for the snapshot that covers it: openraft does both at once, and a crash must not find both gone.
    async fn purge(&mut self, log_id: LogId<NodeId>) -> Result<(), Failed> {
        let covers = |covered: &Option<u64>| covered.is_none_or(|entries| entries > log_id.index);
        let is_covered = self.covered.wait_for(covers).await.is_ok_and(|covered| covered.is_some());
        if !is_covered {
            return Err(failed(ErrorVerb::Delete, &io::Error::other("the state could not be written down")));
        }
        let cut = self.write(move |inner| inner.purge(log_id)).await;
        cut.map_err(|error| failed(ErrorVerb::Delete, &error))
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
