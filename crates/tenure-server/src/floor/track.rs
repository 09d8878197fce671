//! A queue over the last minutes: what stood in it, and how fast its tasks finished.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tenure::Moment;
use tenure::port::{Finished, QueueView, TaskState};

/// How far back a queue's picture goes.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);
/// From how many tasks throughput is measured.
pub(super) const MEASURED: u32 = 500;

/// A queue, and what it looked like before.
#[derive(Clone, Debug)]
pub(crate) struct Track {
    pub(crate) view: QueueView,
    /// The oldest first. Between two that are alike nothing changed.
    pub(crate) samples: VecDeque<Sample>,
    pub(super) measure: Measure,
}

/// How fast tasks of a queue finish, as it was last measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measure {
    /// How many in a second.
    pub(super) rate: f64,
    /// When the last one did, by the store's wall clock, as far as that was looked at.
    pub(super) last_ms: Option<i64>,
    /// What moves when tasks finish, as it was then.
    pub(super) ends: [u64; 4],
    /// When it was measured, by ours.
    pub(super) at: Moment,
}

/// A queue at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: Moment,
    /// Tasks that wait for a worker.
    pub(crate) ready: u64,
    pub(crate) claimed: u64,
    /// How many finished in a second.
    pub(crate) rate: f64,
}

impl Track {
    #[cfg(test)]
    pub(crate) fn of(view: QueueView, samples: VecDeque<Sample>) -> Track {
        Track { view, samples, measure: Measure::default() }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.measure.rate
    }

    pub(super) fn push(&mut self, sample: Sample) {
        let same = |a: &Sample, b: &Sample| (a.ready, a.claimed, a.rate) == (b.ready, b.claimed, b.rate);
        remember(&mut self.samples, sample, same);
    }
}

/// How something was at a moment.
pub(crate) trait Sampled: Copy {
    fn at(&self) -> Moment;
}

impl Sampled for Sample {
    fn at(&self) -> Moment {
        self.at
    }
}

/// Puts one more to what is remembered: a window of it, and of what stays the same only the ends.
pub(crate) fn remember<S: Sampled>(samples: &mut VecDeque<S>, sample: S, same: impl Fn(&S, &S) -> bool) {
    let flat = samples.len() >= 2 && samples.iter().rev().take(2).all(|before| same(before, &sample));
    if flat {
        samples.pop_back();
    }
    samples.push_back(sample);
    // The one before the first of the window is where its line begins.
    while samples.get(1).is_some_and(|second| sample.at().since(second.at()) > WINDOW) {
        samples.pop_front();
    }
}

/// What moves when tasks finish.
pub(super) fn ends(view: &QueueView) -> [u64; 4] {
    [TaskState::Claimed, TaskState::Completed, TaskState::Dead, TaskState::Cancelled]
        .map(|state| view.count(state))
}

/// How many finished in a second since the last look, and when the last one did. Only times of the store are compared with
/// one another, and only ours with ours.
pub(super) fn throughput(
    finished: &[Finished],
    last_ms: Option<i64>,
    elapsed: Duration,
) -> (f64, Option<i64>) {
    let newest = finished.iter().map(|one| one.at_ms).max();
    let (Some(newest), Some(last)) = (newest, last_ms) else { return (0.0, newest.or(last_ms).or(Some(0))) };
    let fresh = finished.iter().filter(|one| one.at_ms > last).count();
    let rate = if fresh == finished.len() && fresh >= MEASURED as usize {
        let oldest = finished.iter().map(|one| one.at_ms).min().unwrap_or(newest);
        fresh as f64 * 1000.0 / (newest - oldest).max(1) as f64
    } else {
        fresh as f64 / elapsed.as_secs_f64().max(0.1)
    };
    (rate, Some(newest))
}

/// Whether tasks of a queue finish, or may have since it was measured.
pub(super) fn is_busy(known: Option<&Arc<Track>>, view: &QueueView) -> bool {
    let (before, rate) = known.map_or(([0; 4], 0.0), |known| (known.measure.ends, known.measure.rate));
    ends(view) != before || rate > 0.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tenure::port::QueueKey;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    fn track() -> Track {
        let key = QueueKey::new("a".parse().expect("a name"), "b".parse().expect("a name"));
        let view = QueueView {
            key,
            settings: Default::default(),
            paused: None,
            counts: BTreeMap::new(),
            oldest_ready_ms: None,
        };
        Track::of(view, VecDeque::new())
    }

    fn finished(at_ms: i64) -> Finished {
        Finished { kind: String::new(), completed: true, at_ms, wait_ms: 0, run_ms: 0 }
    }

    #[test]
    fn a_queue_that_rests_takes_no_room_and_one_that_works_a_window() {
        let mut track = track();
        for second in 0..5000 {
            track.push(Sample { at: at(second), ready: 7, claimed: 0, rate: 0.0 });
        }
        assert_eq!(track.samples.len(), 2);
        for second in 5000..9000 {
            track.push(Sample { at: at(second), ready: second, claimed: 0, rate: 0.0 });
        }
        assert_eq!(track.samples.len() as u64, WINDOW.as_secs() + 2);
        // Nothing is known to have been otherwise at the left edge.
        assert!(at(8999).since(track.samples[0].at) > WINDOW);
    }

    #[test]
    fn throughput_is_told_from_the_stores_clock_or_from_ours_but_never_from_both() {
        let second = Duration::from_secs(1);
        assert_eq!(throughput(&[], None, second), (0.0, Some(0)));
        // The first look says only when the last one was.
        assert_eq!(throughput(&[finished(1_000_000)], None, second), (0.0, Some(1_000_000)));
        let some: Vec<_> = (0..20).map(|n| finished(1000 + n * 10)).collect();
        assert_eq!(throughput(&some, Some(1095), second * 2), (5.0, Some(1190)));
        assert_eq!(throughput(&some, Some(1190), second), (0.0, Some(1190)));
        // More than are read: what is read says how fast they come.
        let many: Vec<_> = (0..500).map(|n| finished(5000 + n / 10)).collect();
        let (rate, _) = throughput(&many, Some(10), second * 60);
        assert!((10_000.0..10_500.0).contains(&rate), "{rate}");
    }
}
