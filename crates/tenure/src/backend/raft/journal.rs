//! The log on disk: segments, each a file of lines, each line a checksum and what was done.
//!
//! Segments are only ever appended to, and synced before anybody is told. What a snapshot covers is never written anew: a purge begins a new
//! segment, whose first lines say all that the older ones said and that is not about entries (the folder's number, the vote, how far the log is
//! cut), and then removes from the front those segments of which every entry is covered.
//!
//! A crash can only have cut off the end of the last segment: that was never told of, and is left out. What is damaged anywhere else, or missing in
//! between, is no crash: the member refuses to start rather than forget what it promised.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use openraft::{LogId, Vote};
use serde::{Deserialize, Serialize};
use tenure_core::port::{StoreError, Trouble};

use super::ground::{Disk, Sheet};
use super::types::{NodeId, Types};

/// What a line says.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record {
    /// What was drawn when the folder was made.
    Made(String),
    /// How often a member was started in it.
    Started(u64),
    Vote(Vote<NodeId>),
    Append(Box<openraft::Entry<Types>>),
    /// Everything from this index on is void.
    Truncate(u64),
    /// Everything up to this is in a snapshot.
    Purge(LogId<NodeId>),
    /// The others know of promises that are not here.
    Forgotten,
}

/// The segments on a disk.
pub(super) struct Journal {
    disk: Arc<dyn Disk>,
    segments: VecDeque<Segment>,
    /// The last of them.
    file: Box<dyn Sheet>,
    /// Whether a write failed: nobody knows what is at the end then, and nothing may follow it.
    is_broken: bool,
}

struct Segment {
    number: u64,
    /// The greatest index of an entry that was ever written to it.
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
    /// Opens the segments on a disk, and takes in what they say.
    pub(super) fn open(disk: Arc<dyn Disk>, mut take_in: impl FnMut(Record)) -> Result<Journal, StoreError> {
        let failed = |place: &str, error: io::Error| {
            StoreError::new(Trouble::Unfit, format!("{place} can not be used: {error}"))
        };
        let numbers = numbers(disk.as_ref()).map_err(|error| failed(&disk.place(""), error))?;
        let mut segments = VecDeque::new();
        let (first, last) = (numbers.first().copied().unwrap_or(1), numbers.last().copied().unwrap_or(1));
        for number in first..=last {
            let name = name(number);
            let place = disk.place(&name);
            let bytes = match disk.read(&name).map_err(|error| failed(&place, error))? {
                Some(bytes) => bytes,
                None if numbers.is_empty() => Vec::new(),
                None => return Err(lost(&format!("{place} is missing"))),
            };
            let mut segment = Segment { number, highest: 0, lines: 0 };
            let whole = replay(&bytes, number == last, |record| {
                segment.note(&record);
                take_in(record);
            });
            let whole = whole.map_err(|line| lost(&format!("{place} is damaged in line {line}")))?;
            segments.push_back(segment);
            if number == last {
                let file = disk.open(&name, whole as u64).map_err(|error| failed(&place, error))?;
                return Ok(Journal { disk, segments, file, is_broken: false });
            }
        }
        Err(lost(&format!("{} has no last segment", disk.place(""))))
    }

    /// Writes, and syncs.
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

    /// How many lines the last segment has.
    pub(super) fn lines(&self) -> u64 {
        self.segments.back().map_or(0, |segment| segment.lines)
    }

    /// Begins a new segment, which repeats what is not about entries.
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

    /// Removes the segments, from the front, of which every entry is covered.
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
        "{what}: this member has lost what it promised; remove it from the cluster, empty its folder, and add it under another number"
    );
    StoreError::new(Trouble::Unfit, message)
}

fn name(number: u64) -> String {
    format!("log-{number:08}")
}

/// The segments that are there, in order.
fn numbers(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    let names = disk.names()?;
    let mut numbers: Vec<u64> =
        names.iter().filter_map(|name| name.strip_prefix("log-")?.parse().ok()).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Takes in the lines of a segment; how many bytes are whole, or the line that is damaged.
fn replay(bytes: &[u8], is_last: bool, mut take_in: impl FnMut(Record)) -> Result<usize, usize> {
    let mut whole = 0;
    for (number, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match read(line) {
            Some(record) => take_in(record),
            // The very last one may be cut off.
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

/// FNV-1a: it finds what a crash left half written.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
