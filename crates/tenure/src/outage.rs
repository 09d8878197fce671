//! Which failures of a call that is made again and again are logged.

use std::time::Duration;

use tenure_core::Moment;

/// How long the second line comes after the first. Each later pause is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// One outage after the other, as far as the log is concerned: its first failure is logged, then one after ever longer
/// pauses with the number of those in between, and its end.
#[derive(Debug, Default)]
pub(crate) struct OutageLog(Option<Outage>);

#[derive(Debug)]
struct Outage {
    since: Moment,
    next: Moment,
    pause: Duration,
    failures: u64,
    unlogged: u64,
}

impl OutageLog {
    /// Counts a failure. If it is to be logged: how many were not since the last one that was.
    pub(crate) fn failed(&mut self, now: Moment) -> Option<u64> {
        let Some(outage) = &mut self.0 else {
            let next = now + PAUSE_MIN;
            self.0 = Some(Outage { since: now, next, pause: PAUSE_MIN, failures: 1, unlogged: 0 });
            return Some(0);
        };
        outage.failures += 1;
        if now < outage.next {
            outage.unlogged += 1;
            return None;
        }
        outage.pause = (outage.pause * 2).min(PAUSE_MAX);
        outage.next = now + outage.pause;
        Some(std::mem::take(&mut outage.unlogged))
    }

    /// Ends the outage. If there was one: its failures, and how long it lasted.
    pub(crate) fn succeeded(&mut self, now: Moment) -> Option<(u64, Duration)> {
        self.0.take().map(|outage| (outage.failures, now.since(outage.since)))
    }
}

/// Logs a failure of a repeated call, unless an [`OutageLog`] has logged the same outage a short while ago.
macro_rules! log_failure {
    ($outages:expr, $now:expr, $($message:tt)+) => {
        if let Some(unlogged) = $outages.failed($now) {
            tracing::warn!(unlogged, $($message)+);
        }
    };
}

/// Logs the end of an outage, if there was one.
macro_rules! log_recovery {
    ($outages:expr, $now:expr, $($message:tt)+) => {
        if let Some((failures, lasted)) = $outages.succeeded($now) {
            tracing::info!(failures, ?lasted, $($message)+);
        }
    };
}

pub(crate) use {log_failure, log_recovery};

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::ZERO + Duration::from_millis(ms)
    }

    /// While a database was down, the same warning was printed 38 times in 12 seconds.
    #[test]
    fn an_outage_is_logged_at_its_beginning_then_rarely_and_at_its_end() {
        let mut log = OutageLog::default();
        assert_eq!(log.succeeded(at(0)), None);
        let logged: Vec<_> =
            (0..=400).filter_map(|n| log.failed(at(300 * n)).map(|unlogged| (300 * n, unlogged))).collect();
        assert_eq!(logged, [(0, 0), (10_200, 33), (30_300, 66), (70_500, 133)]);
        assert_eq!(log.succeeded(at(120_000)), Some((401, Duration::from_secs(120))));
        assert_eq!(log.succeeded(at(120_001)), None);
        assert_eq!(log.failed(at(120_002)), Some(0), "another outage");
        for n in 1..100 {
            log.failed(at(1_000_000 * n));
        }
        assert_eq!(log.failed(at(99_299_999)), None);
        assert_eq!(log.failed(at(99_300_000)), Some(1), "never more rarely than every five minutes");
    }
}
