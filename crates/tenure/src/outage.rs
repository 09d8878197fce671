//! Rate limiting of log lines about a repeated call that fails.

use std::time::Duration;

use tenure_core::BootInstant;

/// Pause before the second log line. Each later pause is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// Decides which failures of a repeated call are logged: the first one of an outage, then one after each of
/// ever longer pauses, with the number of failures in between, and the end of the outage.
#[derive(Debug, Default)]
pub(crate) struct OutageLog(Option<Outage>);

#[derive(Debug)]
struct Outage {
    since: BootInstant,
    next: BootInstant,
    pause: Duration,
    failures: u64,
    unlogged: u64,
}

impl OutageLog {
    /// Counts a failure. If it must be logged, returns the number of failures since the last logged one.
    pub(crate) fn failed(&mut self, now: BootInstant) -> Option<u64> {
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

    /// Ends the outage. If there was one, returns its number of failures and its duration.
    pub(crate) fn succeeded(&mut self, now: BootInstant) -> Option<(u64, Duration)> {
        self.0.take().map(|outage| (outage.failures, now.since(outage.since)))
    }
}

/// Logs a failure of a repeated call, unless its [`OutageLog`] logged the same outage a short time ago.
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

    fn at(ms: u64) -> BootInstant {
        BootInstant::ZERO + Duration::from_millis(ms)
    }

    /// Regression: while a database was down, the same warning was printed 38 times in 12 seconds.
    #[test]
    fn an_outage_is_logged_at_its_start_then_rarely_and_at_its_end() {
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
