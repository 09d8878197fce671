//! What all who break things share: a shuffled deck of faults, a die, and patience.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::true_boottime_ns;

use crate::Failed;
use crate::report::Progress;

/// How many faults a stage adds when its time is over and nothing was put to the test yet: a short run may strike nobody in the midst of
/// anything. What is not by then, is told.
pub(crate) const MORE: usize = 20;

/// Faults of every kind that a stage knows, shuffled, and shuffled anew when they are used up: a short run sees most kinds, a long one sees
/// them about equally often.
pub(crate) struct Deck<F> {
    kinds: Vec<F>,
    left: Vec<F>,
}

impl<F: Copy> Deck<F> {
    pub(crate) fn new(kinds: Vec<F>) -> Self {
        Deck { kinds, left: Vec::new() }
    }

    /// The next one that fits, if there is one left that does.
    pub(crate) fn draw(&mut self, entropy: &mut SplitMix, fits: impl Fn(&F) -> bool) -> Option<F> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
            for n in (1..self.left.len()).rev() {
                self.left.swap(n, below(entropy, n + 1));
            }
        }
        let place = self.left.iter().rposition(fits)?;
        Some(self.left.remove(place))
    }
}

/// A number below this one.
pub(crate) fn below(entropy: &mut SplitMix, bound: usize) -> usize {
    usize::try_from(entropy.next_u64() % bound.max(1) as u64).unwrap_or(0)
}

/// A time between these.
pub(crate) fn between(entropy: &mut SplitMix, (least_ms, most_ms): (u64, u64)) -> Duration {
    Duration::from_millis(least_ms + entropy.next_u64() % (most_ms - least_ms).max(1))
}

/// Undoes something, again and again if need be: something else may be broken just now.
pub(crate) fn undo(act: impl Fn() -> Result<(), Failed>) -> Result<(), Failed> {
    (0..10).find_map(|_| act().ok()).map_or_else(act, Ok)
}

/// Waits, and shows how far it is meanwhile.
pub(crate) fn wait(progress: &mut Progress, wait: Duration) {
    let until = true_boottime_ns() + u64::try_from(wait.as_nanos()).unwrap_or(0);
    while true_boottime_ns() < until {
        let left = Duration::from_nanos(until.saturating_sub(true_boottime_ns()));
        std::thread::sleep(left.min(Duration::from_millis(200)));
        progress.tick();
    }
}
