//! The network between the processes and the store, and the dice for everything.

use tenure_core::{Entropy, SplitMix, Timing};

/// Draws from a seed.
pub(super) trait Draw {
    /// Less than `n`.
    fn below(&mut self, n: u64) -> u64;
    /// True so many times in a thousand.
    fn chance(&mut self, permille: u64) -> bool;
    /// At least `a`, less than `b`.
    fn between(&mut self, a: u64, b: u64) -> u64;
}

impl Draw for SplitMix {
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    fn between(&mut self, a: u64, b: u64) -> u64 {
        a + self.below(b.saturating_sub(a).max(1))
    }
}

/// How bad the network is today; chances in a thousand.
#[derive(Clone, Debug)]
pub(super) struct Weather {
    /// A message takes up to a little longer than a request may.
    slow: u64,
    /// A message takes up to two leases.
    stuck: u64,
    /// A request is lost before the store sees it.
    pub(super) request_lost: u64,
    /// The store did it, and the answer is lost.
    pub(super) answer_lost: u64,
    /// A hint is lost.
    pub(super) hint_lost: u64,
    /// A hint comes twice.
    pub(super) hint_doubled: u64,
}

impl Weather {
    pub(super) fn fair(rng: &mut SplitMix) -> Self {
        Weather {
            slow: rng.below(20),
            stuck: rng.below(3),
            request_lost: rng.below(4),
            answer_lost: rng.below(4),
            hint_lost: rng.below(100),
            hint_doubled: rng.below(50),
        }
    }

    pub(super) fn rough(rng: &mut SplitMix) -> Self {
        Weather {
            slow: rng.below(300),
            stuck: rng.below(80),
            request_lost: rng.below(200),
            answer_lost: rng.below(200),
            hint_lost: rng.below(1000),
            hint_doubled: rng.below(300),
        }
    }

    /// After the faults have ended.
    pub(super) fn calm() -> Self {
        Weather { slow: 0, stuck: 0, request_lost: 0, answer_lost: 0, hint_lost: 0, hint_doubled: 0 }
    }

    /// How long one message takes.
    pub(super) fn delay(&self, rng: &mut SplitMix, timing: &Timing) -> u64 {
        let roll = rng.below(1000);
        if roll < self.stuck {
            rng.below(timing.lease().as_nanos() as u64 * 2)
        } else if roll < self.stuck + self.slow {
            rng.below(timing.request_timeout().as_nanos() as u64 * 5 / 4)
        } else {
            rng.between(200_000, 3_000_000)
        }
    }
}
