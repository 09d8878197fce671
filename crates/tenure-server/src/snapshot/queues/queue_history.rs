//! Recent history of a queue: task counts and throughput.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tenure::BootInstant;
use tenure::port::{FinishedTask, QueueView, TaskState};

/// Length of the history.
pub(crate) const WINDOW: Duration = Duration::from_secs(300);
/// Number of finished tasks from which throughput is measured.
pub(super) const MEASURED: u32 = 500;

/// Queue with its recent samples.
#[derive(Clone, Debug)]
pub(crate) struct QueueHistory {
    pub(crate) view: QueueView,
    /// Samples, oldest first. Between two equal samples nothing changed.
    pub(crate) samples: VecDeque<QueueSample>,
    pub(super) measure: Throughput,
}

/// Throughput of a queue as last measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Throughput {
    /// Finished tasks per second.
    pub(super) rate: f64,
    /// When the last task finished, by the store's clock, as far as it was read.
    pub(super) last_ms: Option<i64>,
    /// Counters that change when tasks finish, at the time of the measurement.
    pub(super) ends: [u64; 4],
    /// Time of the measurement, by this server's clock.
    pub(super) at: BootInstant,
}

/// Sample of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QueueSample {
    pub(crate) at: BootInstant,
    /// Ready tasks.
    pub(crate) ready: u64,
    pub(crate) claimed: u64,
    /// Finished tasks per second.
    pub(crate) rate: f64,
}

impl QueueHistory {
    #[cfg(test)]
    pub(crate) fn new(view: QueueView, samples: VecDeque<QueueSample>) -> QueueHistory {
        QueueHistory { view, samples, measure: Throughput::default() }
    }

    pub(crate) fn rate(&self) -> f64 {
        self.measure.rate
    }

    pub(super) fn push(&mut self, sample: QueueSample) {
        let same =
            |a: &QueueSample, b: &QueueSample| (a.ready, a.claimed, a.rate) == (b.ready, b.claimed, b.rate);
        remember(&mut self.samples, sample, same);
    }
}

/// Sample with its time.
pub(crate) trait TimedSample: Copy {
    fn at(&self) -> BootInstant;
}

impl TimedSample for QueueSample {
    fn at(&self) -> BootInstant {
        self.at
    }
}

/// Append a sample to a window; of equal samples only the first and the last are kept.
pub(crate) fn remember<S: TimedSample>(samples: &mut VecDeque<S>, sample: S, same: impl Fn(&S, &S) -> bool) {
    let flat = samples.len() >= 2 && samples.iter().rev().take(2).all(|before| same(before, &sample));
    if flat {
        samples.pop_back();
    }
    samples.push_back(sample);
    // The sample before the window marks the start of the line.
    while samples.get(1).is_some_and(|second| sample.at().since(second.at()) > WINDOW) {
        samples.pop_front();
    }
}

/// Counters that change when tasks finish.
pub(super) fn ends(view: &QueueView) -> [u64; 4] {
    [TaskState::Claimed, TaskState::Completed, TaskState::Dead, TaskState::Cancelled]
        .map(|state| view.count(state))
}

/// Finished tasks per second since the last measurement, and the time of the last one. Times of the store and
/// of this server are never compared with each other.
pub(super) fn throughput(
    finished: &[FinishedTask],
    last_ms: Option<i64>,
    elapsed: Duration,
) -> (f64, Option<i64>) {
    let newest = finished.iter().map(|one| one.finished_at_ms).max();
    let (Some(newest), Some(last)) = (newest, last_ms) else { return (0.0, newest.or(last_ms).or(Some(0))) };
    let fresh = finished.iter().filter(|one| one.finished_at_ms > last).count();
    let rate = if fresh == finished.len() && fresh >= MEASURED as usize {
        let oldest = finished.iter().map(|one| one.finished_at_ms).min().unwrap_or(newest);
        fresh as f64 * 1000.0 / (newest - oldest).max(1) as f64
    } else {
        fresh as f64 / elapsed.as_secs_f64().max(0.1)
    };
    (rate, Some(newest))
}

/// Whether tasks of a queue finish, or may have finished since the last measurement.
pub(super) fn is_busy(known: Option<&Arc<QueueHistory>>, view: &QueueView) -> bool {
    let (before, rate) = known.map_or(([0; 4], 0.0), |known| (known.measure.ends, known.measure.rate));
    ends(view) != before || rate > 0.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tenure::port::QueueKey;

    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_nanos(seconds * 1_000_000_000)
    }

    fn track() -> QueueHistory {
        let key = QueueKey::new("a".parse().expect("a name"), "b".parse().expect("a name"));
        let view = QueueView {
            key,
            settings: Default::default(),
            paused: None,
            counts: BTreeMap::new(),
            oldest_ready_age_ms: None,
        };
        QueueHistory::new(view, VecDeque::new())
    }

    fn finished(at_ms: i64) -> FinishedTask {
        FinishedTask { kind: String::new(), completed: true, finished_at_ms: at_ms, wait_ms: 0, run_ms: 0 }
    }

    #[test]
    fn an_idle_queue_keeps_two_samples_and_an_active_one_a_window() {
        let mut history = track();
        for second in 0..5000 {
            history.push(QueueSample { at: at(second), ready: 7, claimed: 0, rate: 0.0 });
        }
        assert_eq!(history.samples.len(), 2);
        for second in 5000..9000 {
            history.push(QueueSample { at: at(second), ready: second, claimed: 0, rate: 0.0 });
        }
        assert_eq!(history.samples.len() as u64, WINDOW.as_secs() + 2);
        // The history reaches back to the left edge of the window.
        assert!(at(8999).since(history.samples[0].at) > WINDOW);
    }

    #[test]
    fn throughput_never_mixes_store_and_server_clocks() {
        let second = Duration::from_secs(1);
        assert_eq!(throughput(&[], None, second), (0.0, Some(0)));
        // The first measurement has no previous one to compare with.
        assert_eq!(throughput(&[finished(1_000_000)], None, second), (0.0, Some(1_000_000)));
        let some: Vec<_> = (0..20).map(|n| finished(1000 + n * 10)).collect();
        assert_eq!(throughput(&some, Some(1095), second * 2), (5.0, Some(1190)));
        assert_eq!(throughput(&some, Some(1190), second), (0.0, Some(1190)));
        // More tasks than were read: the rate follows from those that were.
        let many: Vec<_> = (0..500).map(|n| finished(5000 + n / 10)).collect();
        let (rate, _) = throughput(&many, Some(10), second * 60);
        assert!((10_000.0..10_500.0).contains(&rate), "{rate}");
    }
}
