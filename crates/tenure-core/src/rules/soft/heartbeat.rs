//! Liveness of members by their heartbeats.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::BootInstant;

/// Heartbeats of other members, observed on our own clock. Their clocks are not used.
///
/// A heartbeat observed for the first time proves nothing, because its member may have died long ago. A heartbeat
/// that has advanced proves that its member was alive since.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::{BootInstant, rules::soft::GossipHeartbeatTracker};
///
/// let second = Duration::from_secs(1);
/// let mut tracker = GossipHeartbeatTracker::new(3 * second);
/// tracker.observe(BootInstant::ZERO, [("a", 7)]);
/// assert!(!tracker.is_live("a"));
/// tracker.observe(BootInstant::ZERO + second, [("a", 8)]);
/// assert!(tracker.is_live("a"));
/// tracker.observe(BootInstant::ZERO + 2 * second, [("a", 8)]);
/// tracker.observe(BootInstant::ZERO + 4 * second, [("a", 8)]);
/// assert!(!tracker.is_live("a"));
/// ```
#[derive(Clone, Debug)]
pub struct GossipHeartbeatTracker {
    silence_limit: Duration,
    heartbeats: BTreeMap<String, GossipHeartbeat>,
    observed_at: Option<BootInstant>,
}

#[derive(Clone, Debug)]
struct GossipHeartbeat {
    count: u64,
    /// When it was last observed to advance.
    advanced_at: Option<BootInstant>,
    live: bool,
}

impl GossipHeartbeatTracker {
    /// A tracker without observations.
    pub fn new(silence_limit: Duration) -> Self {
        GossipHeartbeatTracker { silence_limit, heartbeats: BTreeMap::new(), observed_at: None }
    }

    /// Records all known heartbeats and removes other members. Returns whether this process was itself suspended for
    /// longer than the silence limit; in that case the silence of other members is not counted.
    pub fn observe<'i>(
        &mut self,
        now: BootInstant,
        counts: impl IntoIterator<Item = (&'i str, u64)>,
    ) -> bool {
        let was_suspended =
            self.observed_at.is_some_and(|observed_at| now.since(observed_at) > self.silence_limit);
        self.observed_at = Some(now);
        let mut heartbeats = BTreeMap::new();
        for (id, count) in counts {
            let entry = match self.heartbeats.remove(id) {
                None => GossipHeartbeat { count, advanced_at: None, live: false },
                Some(old) if count > old.count => {
                    GossipHeartbeat { count, advanced_at: Some(now), live: true }
                }
                Some(old) => {
                    let advanced_at = if was_suspended && old.live { Some(now) } else { old.advanced_at };
                    let live =
                        advanced_at.is_some_and(|advanced_at| now.since(advanced_at) < self.silence_limit);
                    GossipHeartbeat { count: old.count, advanced_at, live }
                }
            };
            heartbeats.insert(id.to_owned(), entry);
        }
        self.heartbeats = heartbeats;
        was_suspended
    }

    /// Whether its heartbeat advanced within the silence limit, as of the last observation.
    pub fn is_live(&self, id: &str) -> bool {
        self.heartbeats.get(id).is_some_and(|entry| entry.live)
    }

    /// When its heartbeat was last observed to advance.
    pub fn advanced_at(&self, id: &str) -> Option<BootInstant> {
        self.heartbeats.get(id)?.advanced_at
    }
}
