//! What a process that works leaves behind: a line of JSON for each thing that it saw, appended one by one.
//!
//! Each is written with one `write` to a file opened for appending, so whatever became of the process, all but perhaps the
//! last line is whole and in order. Times in nanoseconds are the kernel's own boot time; times in milliseconds are the
//! machine's wall clock, which is the store's too: both run on this machine.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One thing that a process saw.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Note {
    /// The store said that a task is there, under this key of ours.
    Submitted { key: String, task: u64, at_ms: i64 },
    /// A run began: the claim was ours between the two times.
    Begins { run: Run, before: u64, after: u64 },
    /// It was ours then, too.
    Holds { task: u64, token: u64, before: u64, after: u64 },
    /// A run is over: it said what it had to say, or was stopped because the claim was lost.
    Ends { task: u64, token: u64, stopped: bool },
    /// Something was said under a token that was lost, and whether the store took it.
    Stale { task: u64, token: u64, accepted: bool },
    /// A child began without its parents' outputs.
    WithoutInputs { task: u64 },
}

/// A claim, as it was when its run began.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    pub(crate) task: u64,
    pub(crate) token: u64,
    pub(crate) queue: String,
    /// Of those with the same key, only one may be claimed at once.
    pub(crate) key: Option<String>,
    /// Its place in the queue.
    pub(crate) effective_at_ms: i64,
    pub(crate) turn: Option<u64>,
    /// When it was claimed, if the store could be asked while it was.
    pub(crate) claimed_at_ms: Option<i64>,
}

/// A process's notes, open for writing.
pub(crate) struct Notebook(File);

impl Notebook {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        File::options().create(true).append(true).open(path).map(Self)
    }

    /// Appends a note. A process that can not take notes is of no use: it ends.
    pub(crate) fn write(&self, note: &Note) {
        let line = serde_json::to_string(note).map(|line| line + "\n");
        if line.is_err() || line.is_ok_and(|line| (&self.0).write_all(line.as_bytes()).is_err()) {
            std::process::exit(4);
        }
    }
}

/// The whole notes of a file.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<Note>> {
    let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}
