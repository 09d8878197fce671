//! Datagrams that were not believed, counted by why.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Dropped {
    /// It was not sealed under our secret, or changed on the way.
    Forged,
    /// It is of a cluster with another name.
    Foreign,
    /// It was seen before, or meant for an earlier life of this process or for another.
    Replayed,
    /// It is longer than any that a member sends.
    Oversized,
    /// It is none of ours, or makes no sense.
    Malformed,
}

impl Dropped {
    /// All there are.
    pub const ALL: [Dropped; 5] =
        [Dropped::Forged, Dropped::Foreign, Dropped::Replayed, Dropped::Oversized, Dropped::Malformed];

    /// As metrics say it.
    pub fn as_str(self) -> &'static str {
        match self {
            Dropped::Forged => "forged",
            Dropped::Foreign => "foreign",
            Dropped::Replayed => "replayed",
            Dropped::Oversized => "oversized",
            Dropped::Malformed => "malformed",
        }
    }
}

/// How many were dropped, by why.
#[derive(Debug, Default)]
pub(super) struct Drops([AtomicU64; Dropped::ALL.len()]);

impl Drops {
    pub(super) fn count(&self, drop: Dropped) {
        self.0[drop as usize].fetch_add(1, Ordering::Relaxed);
        crate::metrics::gossip_dropped(drop.as_str());
    }

    pub(super) fn of(&self, drop: Dropped) -> u64 {
        self.0[drop as usize].load(Ordering::Relaxed)
    }
}
