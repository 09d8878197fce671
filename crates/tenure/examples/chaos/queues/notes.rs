//! The log of a process: one line of JSON per observation.
//!
//! A line is written with one `write` to a file opened for appending. After any end of the process, all lines except
//! possibly the last are complete and in order. Times in nanoseconds are the kernel's boot time. Times in milliseconds
//! are the wall clock of this machine, which is also that of the store.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// An observation of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The store confirmed a submission under this idempotency key.
    Submitted { key: String, task: u64, at_ms: i64 },
    /// A run began; its claim was held between the two times.
    Begins { run: Run, before: u64, after: u64 },
    /// The claim was still held between the two times.
    Holds { task: u64, token: u64, before: u64, after: u64 },
    /// A run ended, by itself or because its claim was lost.
    Ends { task: u64, token: u64, stopped: bool },
    /// A settlement was sent under a lost token; `accepted` tells whether the store applied it.
    Stale { task: u64, token: u64, accepted: bool },
    /// A child began without the results of its parents.
    WithoutParentResults { task: u64 },
}

/// A claim at the beginning of its run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) task: u64,
    pub(crate) token: u64,
    pub(crate) queue: String,
    /// Concurrency key; at most one task of a key may be claimed at a time.
    pub(crate) key: Option<String>,
    /// Position in the queue.
    pub(crate) effective_at_ms: i64,
    pub(crate) claim_seq: Option<u64>,
    /// Time of the claim, if the store could be read during the run.
    pub(crate) claimed_at_ms: Option<i64>,
}

/// The log of a process, open for writing.
pub(crate) struct NoteLog(File);

impl NoteLog {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        File::options().create(true).append(true).open(path).map(Self)
    }

    /// Append a note. A process that cannot write its log exits.
    pub(crate) fn write(&self, note: &Note) {
        let line = serde_json::to_string(note).map(|line| line + "\n");
        if line.is_err() || line.is_ok_and(|line| (&self.0).write_all(line.as_bytes()).is_err()) {
            std::process::exit(4);
        }
    }
}

/// Read the complete notes of a file.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<Note>> {
    let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}
