//! The simulated network, and random numbers.

use tenure_core::{Entropy, SplitMix, Timing};

/// Random numbers from a seed.
pub(super) trait RandomExt {
    /// A number less than `n`.
    fn below(&mut self, n: u64) -> u64;
    /// True with this probability in thousandths.
    fn chance(&mut self, permille: u64) -> bool;
    /// A number from `a` to below `b`.
    fn between(&mut self, a: u64, b: u64) -> u64;
}

impl RandomExt for SplitMix {
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

/// Fault rates of the network, in thousandths.
#[derive(Clone, Debug)]
pub(super) struct NetworkFaultRates {
    /// A message takes slightly longer than the request timeout.
    slow: u64,
    /// A message takes up to two leases.
    stuck: u64,
    /// A request is lost before the store receives it.
    pub(super) request_lost: u64,
    /// The store applies the call, and the response is lost.
    pub(super) answer_lost: u64,
    /// A notification is lost.
    pub(super) notification_lost: u64,
    /// A notification is duplicated.
    pub(super) notification_doubled: u64,
}

impl NetworkFaultRates {
    pub(super) fn fair(rng: &mut SplitMix) -> Self {
        NetworkFaultRates {
            slow: rng.below(20),
            stuck: rng.below(3),
            request_lost: rng.below(4),
            answer_lost: rng.below(4),
            notification_lost: rng.below(100),
            notification_doubled: rng.below(50),
        }
    }

    pub(super) fn rough(rng: &mut SplitMix) -> Self {
        NetworkFaultRates {
            slow: rng.below(300),
            stuck: rng.below(80),
            request_lost: rng.below(200),
            answer_lost: rng.below(200),
            notification_lost: rng.below(1000),
            notification_doubled: rng.below(300),
        }
    }

    /// The network without faults.
    pub(super) fn calm() -> Self {
        NetworkFaultRates {
            slow: 0,
            stuck: 0,
            request_lost: 0,
            answer_lost: 0,
            notification_lost: 0,
            notification_doubled: 0,
        }
    }

    /// Delay of one message.
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
