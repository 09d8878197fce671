//! The clock of one simulated process, with an offset and a rate.

use tenure_core::BootInstant;

const MILLION: u64 = 1_000_000;

/// `local = offset + rate · real`, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct SimClock {
    offset: u64,
    /// Rate in parts per million; 1 000 000 is exact.
    rate: u64,
    /// Real time that this clock did not count. Zero unless the injected bug stops the clock during a suspension.
    uncounted: u64,
    stopped_at: Option<u64>,
}

impl SimClock {
    pub(super) fn new(offset: u64, rate: u64) -> Self {
        SimClock { offset, rate, uncounted: 0, stopped_at: None }
    }

    /// The reading at this real time.
    pub(super) fn at(&self, real: u64) -> BootInstant {
        let counted = self.stopped_at.unwrap_or(real).saturating_sub(self.uncounted);
        BootInstant::from_nanos(self.offset + counted * self.rate / MILLION)
    }

    /// The first real time at which it shows `moment` or later.
    pub(super) fn real(&self, moment: BootInstant) -> u64 {
        let local = moment.as_nanos().saturating_sub(self.offset);
        (local * MILLION).div_ceil(self.rate) + self.uncounted
    }

    /// Stops the clock while the machine is suspended, as `std::time::Instant` does.
    pub(super) fn stop(&mut self, real: u64) {
        self.stopped_at = Some(real);
    }

    pub(super) fn resume(&mut self, real: u64) {
        if let Some(at) = self.stopped_at.take() {
            self.uncounted += real - at;
        }
    }
}
