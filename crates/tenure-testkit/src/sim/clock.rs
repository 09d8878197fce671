//! One process's own clock: it starts anywhere, and runs a little fast or slow.

use tenure_core::Moment;

const MILLION: u64 = 1_000_000;

/// `local = offset + rate · real`, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    offset: u64,
    /// Parts per million: 1 000 000 runs true.
    rate: u64,
    /// Real time that this clock did not count. Stays zero unless the clock is the wrong one.
    uncounted: u64,
    stopped_at: Option<u64>,
}

impl Clock {
    pub(super) fn new(offset: u64, rate: u64) -> Self {
        Clock { offset, rate, uncounted: 0, stopped_at: None }
    }

    /// What it shows at this real time.
    pub(super) fn at(&self, real: u64) -> Moment {
        let counted = self.stopped_at.unwrap_or(real).saturating_sub(self.uncounted);
        Moment::from_nanos(self.offset + counted * self.rate / MILLION)
    }

    /// The first real time at which it shows `moment` or later.
    pub(super) fn real(&self, moment: Moment) -> u64 {
        let local = moment.as_nanos().saturating_sub(self.offset);
        (local * MILLION).div_ceil(self.rate) + self.uncounted
    }

    /// As `std::time::Instant` when the machine is suspended.
    pub(super) fn stop(&mut self, real: u64) {
        self.stopped_at = Some(real);
    }

    pub(super) fn go_on(&mut self, real: u64) {
        if let Some(at) = self.stopped_at.take() {
            self.uncounted += real - at;
        }
    }
}
