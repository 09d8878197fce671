//! Helpers of all fault injectors: a shuffled deck of faults, random numbers and waiting.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::true_boottime_ns;

use crate::Failed;
use crate::report::Progress;

/// Maximum number of additional faults when the time is over and the tested situation has not occurred yet. In a short
/// run, no fault may hit a process at the relevant moment. If it still has not occurred after that, the report says so.
pub(crate) const EXTRA_FAULTS: usize = 20;

/// All faults of a scenario in random order, reshuffled when used up: a short run sees most kinds, and a long run sees
/// each kind about equally often.
pub(crate) struct Deck<F> {
    kinds: Vec<F>,
    left: Vec<F>,
}

impl<F: Copy> Deck<F> {
    pub(crate) fn new(kinds: Vec<F>) -> Self {
        Deck { kinds, left: Vec::new() }
    }

    /// Draw the next fault that fits, if one is left.
    pub(crate) fn draw(&mut self, entropy: &mut SplitMix, fits: impl Fn(&F) -> bool) -> Option<F> {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
            for n in (1..self.left.len()).rev() {
                self.left.swap(n, below(entropy, n + 1));
            }
        }
        let index = self.left.iter().rposition(fits)?;
        Some(self.left.remove(index))
    }
}

/// A random number below the bound.
pub(crate) fn below(entropy: &mut SplitMix, bound: usize) -> usize {
    usize::try_from(entropy.next_u64() % bound.max(1) as u64).unwrap_or(0)
}

/// A random duration within the bounds.
pub(crate) fn between(entropy: &mut SplitMix, (least_ms, most_ms): (u64, u64)) -> Duration {
    Duration::from_millis(least_ms + entropy.next_u64() % (most_ms - least_ms).max(1))
}

/// Undo a fault, with retries because another fault may be active.
pub(crate) fn undo(act: impl Fn() -> Result<(), Failed>) -> Result<(), Failed> {
    (0..10).find_map(|_| act().ok()).map_or_else(act, Ok)
}

/// Wait and update the progress line.
pub(crate) fn wait(progress: &mut Progress, wait: Duration) {
    let until = true_boottime_ns() + u64::try_from(wait.as_nanos()).unwrap_or(0);
    while true_boottime_ns() < until {
        let left = Duration::from_nanos(until.saturating_sub(true_boottime_ns()));
        std::thread::sleep(left.min(Duration::from_millis(200)));
        progress.tick();
    }
}
