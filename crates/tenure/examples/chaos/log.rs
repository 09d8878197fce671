//! The log of a worker process: fixed-size records, appended one by one.
//!
//! A record is written with one `write` to a file opened for appending. After any end of the process, all records
//! except possibly the last are complete and in order. Times are the kernel's boot time, which no preloaded library
//! changes, so records of all processes on this machine are comparable.

use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `is_leader()` was called between the two times and returned true.
    Believes,
    /// `is_leader()` returned false for the first time after it was true.
    StopsBelieving,
    /// A guarded transaction was committed.
    Guarded,
    /// The guard rejected a transaction.
    GuardRefused,
    /// A fenced transaction was committed.
    Fenced,
    /// The fence rejected a stale token.
    FenceRefused,
    /// A write failed in another way, or its outcome is unknown.
    Unknown,
}

const KINDS: [Kind; 7] = [
    Kind::Believes,
    Kind::StopsBelieving,
    Kind::Guarded,
    Kind::GuardRefused,
    Kind::Fenced,
    Kind::FenceRefused,
    Kind::Unknown,
];

/// One observation of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) election: u8,
    pub(crate) slot: u16,
    pub(crate) token: u64,
    /// True boot time before the call, in nanoseconds.
    pub(crate) before: u64,
    /// True boot time after the call, in nanoseconds.
    pub(crate) after: u64,
}

const SIZE: usize = 28;

/// The log of a worker, open for writing.
pub(crate) struct Log(File);

impl Log {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        File::options().create(true).append(true).open(path).map(Self)
    }

    /// Append a record. A worker that cannot write its log exits.
    pub(crate) fn write(&self, record: Record) {
        let mut bytes = [0; SIZE];
        bytes[0] = KINDS.iter().position(|kind| *kind == record.kind).unwrap_or(0) as u8;
        bytes[1] = record.election;
        bytes[2..4].copy_from_slice(&record.slot.to_le_bytes());
        bytes[4..12].copy_from_slice(&record.token.to_le_bytes());
        bytes[12..20].copy_from_slice(&record.before.to_le_bytes());
        bytes[20..28].copy_from_slice(&record.after.to_le_bytes());
        if (&self.0).write_all(&bytes).is_err() {
            std::process::exit(4);
        }
    }
}

/// Read the complete records of a log.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<Record>> {
    Ok(std::fs::read(path)?.chunks_exact(SIZE).map(decode).collect())
}

fn decode(bytes: &[u8]) -> Record {
    let number = |from: usize| {
        u64::from_le_bytes(bytes[from..from + 8].try_into().expect("a slice of eight bytes has eight bytes"))
    };
    Record {
        kind: KINDS[usize::from(bytes[0]) % KINDS.len()],
        election: bytes[1],
        slot: u16::from_le_bytes([bytes[2], bytes[3]]),
        token: number(4),
        before: number(12),
        after: number(20),
    }
}
