//! The log on disk: segments, each a file of lines, each line a checksum and what was done.
//!
//! Segments are only ever appended to, and synced before anybody is told. What a snapshot covers is never written anew: a purge begins a new
//! segment, whose first lines say all that the older ones said and that is not about entries (the folder's number, the vote, how far the log is
//! cut), and then removes from the front those segments of which every entry is covered.
//!
//! A crash can only have cut off the end of the last segment: that was never told of, and is left out. What is damaged anywhere else, or missing in
//! between, is no crash: the member refuses to start rather than forget what it promised.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use openraft::{LogId, Vote};
use serde::{Deserialize, Serialize};
use tenure_core::port::{StoreError, Trouble};

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

/// The segments of a folder.
pub(super) struct Journal {
    folder: PathBuf,
    segments: VecDeque<Segment>,
    /// The last of them.
    file: File,
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
    /// Opens the segments of a folder, and takes in what they say.
    pub(super) fn open(folder: &Path, mut take_in: impl FnMut(Record)) -> Result<Journal, StoreError> {
        let failed = |path: &Path, error: io::Error| {
            StoreError::new(Trouble::Unfit, format!("{} can not be used: {error}", path.display()))
        };
        let numbers = numbers(folder).map_err(|error| failed(folder, error))?;
        let mut segments = VecDeque::new();
        let (first, last) = (numbers.first().copied().unwrap_or(1), numbers.last().copied().unwrap_or(1));
        for number in first..=last {
            let path = path(folder, number);
            let bytes = match std::fs::read(&path) {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::NotFound && numbers.is_empty() => Vec::new(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(lost(&format!("{} is missing", path.display())));
                }
                Err(error) => return Err(failed(&path, error)),
            };
            let mut segment = Segment { number, highest: 0, lines: 0 };
            let whole = replay(&bytes, number == last, |record| {
                segment.note(&record);
                take_in(record);
            });
            let whole =
                whole.map_err(|line| lost(&format!("{} is damaged in line {line}", path.display())))?;
            segments.push_back(segment);
            if number == last {
                let cut = |file: File| {
                    // What was cut off.
                    file.set_len(whole as u64)?;
                    file.sync_all()?;
                    sync(folder)?;
                    Ok(file)
                };
                let opened = OpenOptions::new().create(true).append(true).open(&path).and_then(cut);
                let file = opened.map_err(|error| failed(&path, error))?;
                return Ok(Journal { folder: folder.into(), segments, file, is_broken: false });
            }
        }
        Err(lost(&format!("{} has no last segment", folder.display())))
    }

    /// Writes, and syncs.
    pub(super) fn append(&mut self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::new();
        records.iter().try_for_each(|record| put(record, &mut bytes))?;
        self.unless_broken(|journal| {
            journal.file.write_all(&bytes)?;
            journal.file.sync_data()
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
        let path = path(&self.folder, segment.number);
        self.unless_broken(|journal| {
            replace(&path, &bytes)?;
            journal.file = OpenOptions::new().append(true).open(&path)?;
            Ok(())
        })?;
        self.segments.push_back(segment);
        Ok(())
    }

    /// Removes the segments, from the front, of which every entry is covered.
    pub(super) fn drop_covered(&mut self, upto: u64) -> io::Result<()> {
        let before = self.segments.len();
        while self.segments.len() > 1 && self.segments.front().is_some_and(|first| first.highest <= upto) {
            let Some(first) = self.segments.front() else { break };
            std::fs::remove_file(path(&self.folder, first.number))?;
            self.segments.pop_front();
        }
        if self.segments.len() < before { sync(&self.folder) } else { Ok(()) }
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

fn path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("log-{number:08}"))
}

/// The segments that are there, in order.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix("log-")?.parse::<u64>().ok()));
    }
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

/// Puts a new file in the place of another, whole or not at all.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), sync)
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
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
