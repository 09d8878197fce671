//! The log on disk: a sequence of segment files. Each line of a segment is a checksum and a record.
//!
//! A segment is only appended to, and every append is synced before the caller continues. A purge does not rewrite
//! entries: it starts a new segment, repeats the records that are not entries (directory id, vote, purge mark) at its
//! head, and then removes the oldest segments whose entries are all covered by a snapshot.
//!
//! A crash can only truncate the end of the last segment. That record was never acknowledged, so it is ignored. Damage
//! anywhere else, or a missing segment, is not caused by a crash: the member refuses to start instead of forgetting
//! acknowledged entries or votes.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use openraft::{LogId, Vote};
use serde::{Deserialize, Serialize};
use tenure_core::port::{ErrorKind, StoreError};

use super::env::{AppendFile, Disk};
use super::types::{NodeId, Types};

/// A record of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record {
    /// Random id chosen when the directory was created.
    DirectoryId(String),
    /// Number of starts of the member in this directory.
    Started(u64),
    Vote(Vote<NodeId>),
    Append(Box<openraft::Entry<Types>>),
    /// Entries from this index on are void.
    Truncate(u64),
    /// Entries up to this one are in a snapshot.
    Purge(LogId<NodeId>),
    /// Other members know of votes or entries that are missing here.
    StateLost,
}

/// The journal segments on a disk.
pub(super) struct Journal {
    disk: Arc<dyn Disk>,
    segments: VecDeque<Segment>,
    /// The last segment.
    file: Box<dyn AppendFile>,
    /// Set after a failed write: the end of the file is unknown then, and further appends are rejected.
    is_broken: bool,
}

struct Segment {
    number: u64,
    /// Highest index of an entry ever written to the segment.
    highest: u64,
    lines: u64,
}

impl Segment {
    fn note(&mut self, record: &Record) {
        self.lines += 1;
        if let Record::Append(entry) = record {
            self.highest = self.highest.max(entry.log_id.index);
        }
    }
}

impl Journal {
    /// Open the segments on a disk and pass every record to `take_in`.
    pub(super) fn open(disk: Arc<dyn Disk>, mut apply: impl FnMut(Record)) -> Result<Journal, StoreError> {
        let failed = |path: &str, error: io::Error| {
            StoreError::new(ErrorKind::Misconfigured, format!("cannot use {path}: {error}"))
        };
        let numbers = numbers(disk.as_ref()).map_err(|error| failed(&disk.display_path(""), error))?;
        let mut segments = VecDeque::new();
        let (first, last) = (numbers.first().copied().unwrap_or(1), numbers.last().copied().unwrap_or(1));
        for number in first..=last {
            let name = name(number);
            let path = disk.display_path(&name);
            let bytes = match disk.read(&name).map_err(|error| failed(&path, error))? {
                Some(bytes) => bytes,
                None if numbers.is_empty() => Vec::new(),
                None => return Err(lost(&format!("{path} is missing"))),
            };
            let mut segment = Segment { number, highest: 0, lines: 0 };
            let whole = replay(&bytes, number == last, |record| {
                segment.note(&record);
                apply(record);
            });
            let whole = whole.map_err(|line| lost(&format!("{path} is damaged in line {line}")))?;
            segments.push_back(segment);
            if number == last {
                let file = disk.open(&name, whole as u64).map_err(|error| failed(&path, error))?;
                return Ok(Journal { disk, segments, file, is_broken: false });
            }
        }
        Err(lost(&format!("{} has no last segment", disk.display_path(""))))
    }

    /// Append records and sync.
    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::new();
        records.iter().try_for_each(|record| put(record, &mut bytes))?;
        self.unless_broken(|journal| {
            journal.file.write(&bytes)?;
            journal.file.sync()
        })?;
        if let Some(last) = self.segments.back_mut() {
            records.iter().for_each(|record| last.note(record));
        }
        Ok(())
    }

    /// Number of lines in the last segment.
    pub(super) fn lines(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.lines)
    }

    /// Start a new segment with the given head records.
    pub(super) fn rotate(&mut self, head: &[Record]) -> io::Result<()> {
        let mut segment =
            Segment { number: self.segments.back().map_or(0, |last| last.number) + 1, highest: 0, lines: 0 };
        let mut bytes = Vec::new();
        for record in head {
            put(record, &mut bytes)?;
            segment.note(record);
        }
        let name = name(segment.number);
        self.unless_broken(|journal| {
            journal.disk.replace(&name, &bytes)?;
            journal.file = journal.disk.open(&name, bytes.len() as u64)?;
            Ok(())
        })?;
        self.segments.push_back(segment);
        Ok(())
    }

    /// Remove the oldest segments whose entries are all covered by a snapshot.
    pub(super) fn drop_covered(&mut self, upto: u64) -> io::Result<()> {
        let last = self.segments.len().saturating_sub(1);
        let covered = self.segments.iter().take(last).take_while(|segment| segment.highest <= upto).count();
        if covered == 0 {
            return Ok(());
        }
        let names: Vec<String> =
            self.segments.iter().take(covered).map(|segment| name(segment.number)).collect();
        self.disk.remove(&names)?;
        self.segments.drain(..covered);
        Ok(())
    }

    fn unless_broken(&mut self, act: impl FnOnce(&mut Journal) -> io::Result<()>) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("an earlier write to the log failed"));
        }
        let done = act(self);
        self.is_broken = done.is_err();
        done
    }
}

fn lost(what: &str) -> StoreError {
    let message = format!(
        "{what}: the log of this Raft member is incomplete; remove the member from the cluster, empty its data directory, and add it under a new node id"
    );
    StoreError::new(ErrorKind::Misconfigured, message)
}

fn name(number: u64) -> String {
    format!("log-{number:08}")
}

/// Numbers of the existing segments, ascending.
fn numbers(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    let names = disk.names()?;
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|name| name.strip_prefix("log-")?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Pass every record of a segment to `take_in`. Returns the length of the intact part, or the number of the damaged
/// line.
fn replay(bytes: &[u8], is_last: bool, mut apply: impl FnMut(Record)) -> Result<usize, usize> {
    let mut whole = 0;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match read(line) {
            Some(record) => apply(record),
            // A crash may have truncated the last line.
            None if is_last && whole + line.len() == bytes.len() => return Ok(whole),
            None => return Err(number + 1),
        }
        whole += line.len();
    }
    Ok(whole)
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

/// FNV-1a; detects lines that a crash left incomplete.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
