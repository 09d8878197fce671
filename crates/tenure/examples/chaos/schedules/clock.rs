//! History of the store's clock, which the scenario sets.

/// Tolerance for the inaccuracy of the recorded step times.
const SLACK_MS: i64 = 100;

/// The store's clock over a run: intervals of true time with a constant offset, oldest first.
#[derive(Clone, Debug)]
pub(super) struct Clock(Vec<Stretch>);

#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// The interval began between these two instants of true time.
    since_ms: (i64, i64),
    offset_ms: i64,
}

/// A possible clock step between a decision and its record: the decision saw the earlier offset, the record the later
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    /// Index of the interval in which the record was written.
    pub(super) steps: usize,
    /// The earlier offset minus the later one.
    pub(super) by_ms: i64,
}

impl Default for Clock {
    /// The true clock, without a step.
    fn default() -> Clock {
        Clock::since(i64::MIN / 2)
    }
}

impl Clock {
    /// The true clock, not used before this instant.
    pub(super) fn since(ms: i64) -> Clock {
        Clock(vec![Stretch { since_ms: (ms, ms), offset_ms: 0 }])
    }

    /// Record a step: from some instant between these two on, the clock has this offset.
    pub(super) fn set(&mut self, since_ms: (i64, i64), offset_ms: i64) {
        self.0.push(Stretch { since_ms, offset_ms });
    }

    /// True time at which the clock showed `shown_ms`; `None` if it showed it never or more than once.
    pub(super) fn true_ms(&self, shown_ms: i64) -> Option<i64> {
        let mut all = self.stretches(shown_ms).map(|n| shown_ms - self.0[n].offset_ms);
        let first = all.next()?;
        all.all(|other| other == first).then_some(first)
    }

    /// Clock steps that may have happened in the last `within_ms` before the clock showed `shown_ms`.
    pub(super) fn earlier(&self, shown_ms: i64, within_ms: i64) -> Vec<Earlier> {
        let mut all = Vec::new();
        for n in self.stretches(shown_ms) {
            let Stretch { offset_ms, .. } = self.0[n];
            let read_at_ms = shown_ms - offset_ms - within_ms;
            let before = (0..n).filter(|m| self.until(*m) + SLACK_MS >= read_at_ms);
            all.extend(before.map(|m| Earlier { steps: n, by_ms: self.0[m].offset_ms - offset_ms }));
        }
        all
    }

    /// Indexes of the intervals in which the clock may have shown `shown_ms`.
    fn stretches(&self, shown_ms: i64) -> impl Iterator<Item = usize> + '_ {
        (0..self.0.len()).filter(move |n| {
            let Stretch { since_ms, offset_ms } = self.0[*n];
            let at_ms = shown_ms - offset_ms;
            since_ms.0 - SLACK_MS <= at_ms && at_ms <= self.until(*n).saturating_add(SLACK_MS)
        })
    }

    /// End of an interval.
    fn until(&self, n: usize) -> i64 {
        self.0.get(n + 1).map_or(i64::MAX / 2, |next| next.since_ms.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;

    /// A clock that is set back by one hour at 10 s and ahead again at 20 s.
    fn clock() -> Clock {
        let mut clock = Clock::since(0);
        clock.set((10_000, 10_005), -HOUR_MS);
        clock.set((20_000, 20_005), 0);
        clock
    }

    #[test]
    fn shown_times_are_converted_to_true_time() {
        let clock = clock();
        assert_eq!(clock.true_ms(5_000), Some(5_000));
        assert_eq!(clock.true_ms(15_000 - HOUR_MS), Some(15_000));
        assert_eq!(clock.true_ms(25_000), Some(25_000));
        assert_eq!(clock.true_ms(15_000), None, "the clock never showed that");
    }

    #[test]
    fn earlier_times_are_reported_only_across_a_step_and_within_the_limit() {
        let clock = clock();
        assert_eq!(clock.earlier(5_000, 4_000), []);
        assert_eq!(clock.earlier(12_000 - HOUR_MS, 4_000), [Earlier { steps: 1, by_ms: HOUR_MS }]);
        assert_eq!(clock.earlier(18_000 - HOUR_MS, 4_000), []);
        assert_eq!(clock.earlier(21_000, 4_000), [Earlier { steps: 2, by_ms: -HOUR_MS }]);
        assert_eq!(clock.earlier(21_000, 12_000).len(), 2, "before both steps");
    }
}
