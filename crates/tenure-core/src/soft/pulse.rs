//! Who is alive: whoever's beat was seen to move.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Moment;

/// The beats of others, as they were seen on our own clock. No clock of theirs takes part.
///
/// A beat that is heard of for the first time proves nothing: it may be of somebody long dead. One that has moved proves that its
/// owner lived since.
///
/// ```
/// use std::time::Duration;
/// use tenure_core::{Moment, soft::Pulses};
///
/// let second = Duration::from_secs(1);
/// let mut pulses = Pulses::new(3 * second);
/// pulses.observe(Moment::ZERO, [("a", 7)]);
/// assert!(!pulses.is_live("a"));
/// pulses.observe(Moment::ZERO + second, [("a", 8)]);
/// assert!(pulses.is_live("a"));
/// pulses.observe(Moment::ZERO + 2 * second, [("a", 8)]);
/// pulses.observe(Moment::ZERO + 4 * second, [("a", 8)]);
/// assert!(!pulses.is_live("a"));
/// ```
#[derive(Clone, Debug)]
pub struct Pulses {
    patience: Duration,
    seen: BTreeMap<String, Pulse>,
    looked: Option<Moment>,
}

#[derive(Clone, Debug)]
struct Pulse {
    beat: u64,
    /// When it was last seen to move, if ever.
    moved: Option<Moment>,
    live: bool,
}

impl Pulses {
    /// Nobody has been heard of.
    pub fn new(patience: Duration) -> Self {
        Pulses { patience, seen: BTreeMap::new(), looked: None }
    }

    /// All beats that are known now. Who is not among them is forgotten. Tells whether we ourselves were asleep for longer than our
    /// patience: then nobody's silence meanwhile is held against it.
    pub fn observe<'i>(&mut self, now: Moment, beats: impl IntoIterator<Item = (&'i str, u64)>) -> bool {
        let slept = self.looked.is_some_and(|looked| now.since(looked) > self.patience);
        self.looked = Some(now);
        let mut seen = BTreeMap::new();
        for (id, beat) in beats {
            let pulse = match self.seen.remove(id) {
                None => Pulse { beat, moved: None, live: false },
                Some(old) if beat > old.beat => Pulse { beat, moved: Some(now), live: true },
                Some(old) => {
                    let moved = if slept && old.live { Some(now) } else { old.moved };
                    let live = moved.is_some_and(|moved| now.since(moved) < self.patience);
                    Pulse { beat: old.beat, moved, live }
                }
            };
            seen.insert(id.to_owned(), pulse);
        }
        self.seen = seen;
        slept
    }

    /// Whether its beat moved within our patience, as of the last look.
    pub fn is_live(&self, id: &str) -> bool {
        self.seen.get(id).is_some_and(|pulse| pulse.live)
    }

    /// When its beat was last seen to move.
    pub fn moved(&self, id: &str) -> Option<Moment> {
        self.seen.get(id)?.moved
    }
}
