//! Randomness as an argument.

use std::time::Duration;

/// A source of random numbers, supplied by the caller.
pub trait Entropy {
    /// The next 64 random bits.
    fn next_u64(&mut self) -> u64;

    /// Returns `d` plus a random part of up to a quarter of `d`, so that replicas do not act in lockstep.
    fn jitter(&mut self, d: Duration) -> Duration {
        let quarter = u64::try_from(d.as_nanos() / 4).unwrap_or(u64::MAX);
        if quarter == 0 { d } else { d + Duration::from_nanos(self.next_u64() % quarter) }
    }
}

/// A small seeded generator (SplitMix64) for tests and simulations. Not for secrets.
///
/// ```
/// use tenure_core::{Entropy, SplitMix};
/// assert_eq!(SplitMix::new(7).next_u64(), SplitMix::new(7).next_u64());
/// ```
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// Creates a generator that yields the same numbers for the same seed.
    pub const fn new(seed: u64) -> Self {
        SplitMix(seed)
    }
}

impl Entropy for SplitMix {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
