//! Wait and run times per task kind.

use std::collections::BTreeMap;

use crate::port::{FinishedTask, KindStats, Percentiles};

/// Statistics of these finished tasks, by kind.
///
/// ```
/// use tenure_core::rules::work::stats;
/// use tenure_core::port::FinishedTask;
///
/// let one = |run_ms| FinishedTask { kind: "mail".into(), completed: true, wait_ms: 2, run_ms, finished_at_ms: 0 };
/// let mail = &stats(&[one(10), one(30), one(20)])[0];
/// assert_eq!((mail.completed, mail.run_ms.p50, mail.run_ms.max), (3, 20, 30));
/// ```
pub fn stats(finished: &[FinishedTask]) -> Vec<KindStats> {
    let mut kinds: BTreeMap<&str, Vec<&FinishedTask>> = BTreeMap::new();
    for task in finished {
        kinds.entry(&task.kind).or_default().push(task);
    }
    let of_kind = |(kind, tasks): (&str, Vec<&FinishedTask>)| {
        let completed = tasks.iter().filter(|task| task.completed).count() as u64;
        KindStats {
            kind: kind.into(),
            completed,
            dead: tasks.len() as u64 - completed,
            wait_ms: spread(tasks.iter().map(|task| task.wait_ms).collect()),
            run_ms: spread(tasks.iter().map(|task| task.run_ms).collect()),
        }
    };
    kinds.into_iter().map(of_kind).collect()
}

/// Percentiles by the nearest-rank method: each one is a measured value, not an interpolation.
fn spread(mut values: Vec<u64>) -> Percentiles {
    values.sort_unstable();
    let at = |percent: usize| {
        let rank = (values.len() * percent).div_ceil(100);
        values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    };
    Percentiles { p50: at(50), p95: at(95), p99: at(99), max: at(100) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_nth_percentile_of_1_to_100_is_n() {
        assert_eq!(spread((1..=100).rev().collect()), Percentiles { p50: 50, p95: 95, p99: 99, max: 100 });
        assert_eq!(spread(vec![7]), Percentiles { p50: 7, p95: 7, p99: 7, max: 7 });
        assert_eq!(spread(vec![]), Percentiles::default());
    }

    #[test]
    fn kinds_are_counted_separately() {
        let task = |kind: &str, completed| FinishedTask {
            kind: kind.into(),
            completed,
            wait_ms: 1,
            run_ms: 1,
            finished_at_ms: 0,
        };
        let all = stats(&[task("b", true), task("a", false), task("b", false)]);
        let counts: Vec<_> = all.iter().map(|it| (it.kind.as_str(), it.completed, it.dead)).collect();
        assert_eq!(counts, [("a", 0, 1), ("b", 1, 1)]);
    }

    proptest! {
        #[test]
        fn a_percentile_is_an_upper_bound_of_its_share_of_the_values(values in prop::collection::vec(0..100u64, 1..50)) {
            let it = spread(values.clone());
            let at_most = |limit: u64| values.iter().filter(|value| **value <= limit).count() * 100;
            prop_assert!(at_most(it.p50) >= values.len() * 50 && at_most(it.p95) >= values.len() * 95);
            prop_assert!(it.p50 <= it.p95 && it.p95 <= it.p99 && it.p99 <= it.max);
        }
    }
}
