//! Counters of dropped datagrams, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DropReason {
    /// It was not encrypted with a known secret, or was altered in transit.
    Forged,
    /// It belongs to a cluster with another name.
    Foreign,
    /// It was received before, or was addressed to an earlier run of this process or to another process.
    Replayed,
    /// It is longer than the maximum datagram.
    Oversized,
    /// It is not a gossip datagram, or its content is invalid.
    Malformed,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [DropReason; 5] = [
        DropReason::Forged,
        DropReason::Foreign,
        DropReason::Replayed,
        DropReason::Oversized,
        DropReason::Malformed,
    ];

    /// Name of the reason in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            DropReason::Forged => "forged",
            DropReason::Foreign => "foreign",
            DropReason::Replayed => "replayed",
            DropReason::Oversized => "oversized",
            DropReason::Malformed => "malformed",
        }
    }
}

/// Number of dropped datagrams by reason.
#[derive(Debug, Default)]
pub(super) struct Drops([AtomicU64; DropReason::ALL.len()]);

impl Drops {
    pub(super) fn count(&self, drop: DropReason) {
        self.0[drop as usize].fetch_add(1, Ordering::Relaxed);
        crate::metrics::gossip_dropped(drop.as_str());
    }

    pub(super) fn of(&self, drop: DropReason) -> u64 {
        self.0[drop as usize].load(Ordering::Relaxed)
    }
}
