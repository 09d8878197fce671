//! How long tasks waited and ran, from those that finished.

use std::collections::BTreeMap;

use tenure::port::{Finished, KindStats, Spread};

/// The tasks of each kind, by kind.
pub(super) fn by_kind(finished: Vec<Finished>) -> Vec<KindStats> {
    let mut kinds: BTreeMap<String, Vec<Finished>> = BTreeMap::new();
    for one in finished {
        kinds.entry(one.kind.clone()).or_default().push(one);
    }
    let stats = |(kind, all): (String, Vec<Finished>)| {
        let completed = all.iter().filter(|one| one.completed).count() as u64;
        KindStats {
            kind,
            completed,
            dead: all.len() as u64 - completed,
            wait_ms: spread(all.iter().map(|one| one.wait_ms)),
            run_ms: spread(all.iter().map(|one| one.run_ms)),
        }
    };
    kinds.into_iter().map(stats).collect()
}

fn spread(durations: impl Iterator<Item = u64>) -> Spread {
    let mut sorted: Vec<u64> = durations.collect();
    sorted.sort_unstable();
    // The least that so many of a hundred do not exceed.
    let at = |percent: usize| {
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    };
    Spread { p50: at(50), p95: at(95), p99: at(99), max: at(100) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_what_so_many_of_a_hundred_do_not_exceed() {
        assert_eq!(spread(std::iter::empty()), Spread::default());
        assert_eq!(spread([7].into_iter()), Spread { p50: 7, p95: 7, p99: 7, max: 7 });
        assert_eq!(spread((1..=200).rev()), Spread { p50: 100, p95: 190, p99: 198, max: 200 });
    }
}
