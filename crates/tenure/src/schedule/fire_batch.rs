//! Fire batches: the ticks fired in one call, with a size that suits the store and the memory of this process.
//!
//! One read may return ten thousand schedules, each with ten thousand missed ticks, each with a payload of one
//! mebibyte. So ticks are planned while they are added to a batch, up to a limit of ticks or bytes; the rest
//! stays due, and is planned later from the stored state. The limit adapts, starting small: after a slow batch
//! it shrinks, and after a fast one it grows. A batch is slow if it takes close to a heartbeat interval. In a store
//! with one writer, such as SQLite, a batch blocks the heartbeats of its own leader: a leader with a batch that is
//! too large would lose its lease, and so would the next leader.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{DUE_MAX, DueResponse, DueSchedule, ScheduleFiring};
use tenure_core::rules::schedule::{plan_at_most, postpone};

/// Maximum bytes of a batch, unless one tick alone has more.
const BATCH_BYTES: usize = 16 << 20;

/// Approximate bytes of a tick without its payload.
const TICK_BYTES: usize = 512;

/// Target maximum bytes of one read.
const READ_BYTES: usize = 64 << 20;

/// Number of schedules in the first read.
const FIRST_READ: u32 = 1_000;

/// Number of ticks in the first batch.
const FIRST_TICKS: usize = 250;

/// Number of consecutive batches per concurrent call.
const WAVES: usize = 3;

/// Maximum length of an error text.
const ERROR_MAX: usize = 1_000;

/// Due schedules and their firings, in the same order.
pub(super) struct FireBatch {
    pub(super) due: Vec<DueSchedule>,
    pub(super) firings: Vec<ScheduleFiring>,
    /// Whether the batch only postpones: nothing fires, and the errors and retry times are recorded.
    pub(super) postpones: bool,
}

impl FireBatch {
    fn new(postpones: bool) -> FireBatch {
        FireBatch { due: Vec::new(), firings: Vec::new(), postpones }
    }

    /// A batch that postpones schedules that failed, with the reasons.
    pub(super) fn postpone(refused: Vec<(DueSchedule, String)>, now_ms: i64) -> FireBatch {
        let mut batch = FireBatch::new(true);
        for (due, why) in refused {
            batch.firings.push(postpone(&due, &bounded(&why), now_ms));
            batch.due.push(due);
        }
        batch
    }

    pub(super) fn len(&self) -> usize {
        self.firings.len()
    }

    /// Number of ticks; a firing without ticks counts as one.
    pub(super) fn ticks(&self) -> usize {
        self.firings.iter().map(|firing| firing.ticks.len().max(1)).sum()
    }

    /// Splits the batch into two halves.
    pub(super) fn halves(mut self) -> [FireBatch; 2] {
        let at = self.len() / 2;
        let rest = FireBatch {
            due: self.due.split_off(at),
            firings: self.firings.split_off(at),
            postpones: self.postpones,
        };
        [self, rest]
    }
}

/// Adaptive size of reads and fire batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FireLimits {
    read_limit: u32,
    ticks: usize,
}

impl FireLimits {
    pub(super) fn new() -> FireLimits {
        FireLimits { read_limit: FIRST_READ, ticks: FIRST_TICKS }
    }

    /// The limit of one tick.
    pub(super) fn minimum() -> FireLimits {
        FireLimits { ticks: 1, ..FireLimits::new() }
    }

    /// Number of schedules to read.
    pub(super) fn read_limit(&self) -> u32 {
        self.read_limit
    }

    /// Adapts the read size: larger if there are more small schedules, smaller if the read was large.
    pub(super) fn adapt_read(&mut self, response: &DueResponse) {
        let bytes: usize =
            response.schedules.iter().map(|due| TICK_BYTES + due.definition.payload.as_str().len()).sum();
        if bytes > READ_BYTES {
            self.read_limit = (self.read_limit / 4).max(1);
        } else if response.has_more && bytes <= READ_BYTES / 4 {
            self.read_limit = self.read_limit.saturating_mul(4).min(DUE_MAX);
        }
    }

    /// Adapts the batch size to the duration of an accepted batch.
    pub(super) fn arrived(&mut self, batch: &FireBatch, took: Duration, heartbeat: Duration) {
        if took > heartbeat / 2 {
            self.ticks = (batch.ticks() / 4).max(1);
        } else if took < heartbeat / 8 && batch.ticks() >= self.ticks / 2 {
            self.ticks = self.ticks.saturating_mul(4).min(DUE_MAX as usize);
        }
    }

    /// Shrinks the batch size after a timeout.
    pub(super) fn was_too_large(&mut self, batch: &FireBatch) {
        self.ticks = (batch.ticks() / 10).max(1);
    }

    /// The limit for `concurrency` concurrent batches: distributes the due schedules among them, unless there are
    /// few, so that the first batch runs while most ticks are still to be planned.
    pub(super) fn divide(&self, due: usize, concurrency: usize) -> FireLimits {
        if concurrency < 2 {
            return *self;
        }
        let per_batch = due.div_ceil(concurrency * WAVES).max(FIRST_TICKS);
        FireLimits { ticks: self.ticks.min(per_batch), ..*self }
    }

    /// Plans the next batch, and removes its schedules from `due`.
    pub(super) fn pack(&self, due: &mut VecDeque<DueSchedule>, token: Token, now_ms: i64) -> FireBatch {
        let mut batch = FireBatch::new(false);
        let (mut ticks, mut bytes) = (0, 0);
        while ticks < self.ticks
            && bytes < BATCH_BYTES
            && let Some(next) = due.pop_front()
        {
            let per_tick = TICK_BYTES + next.definition.payload.as_str().len();
            let most = (self.ticks - ticks).min((BATCH_BYTES - bytes) / per_tick).max(1);
            let firing = plan_at_most(&next, token, now_ms, most);
            // A firing without ticks counts as one.
            ticks += firing.ticks.len().max(1);
            bytes += per_tick * firing.ticks.len().max(1);
            batch.firings.push(firing);
            batch.due.push(next);
        }
        batch
    }
}

/// Shortens a text and removes control characters, so that any store accepts it.
fn bounded(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_MAX).collect()
}

#[cfg(test)]
mod tests {
    use tenure_core::Name;
    use tenure_core::port::{RawJson, ScheduleKey};
    use tenure_core::rules::schedule::{
        MisfirePolicy, ScheduleDefinition, ScheduleExpression, ScheduleTickState, UnfinishedRuns,
    };

    use super::*;

    const NOW_MS: i64 = 1_000_000_000;
    const HEARTBEAT: Duration = Duration::from_secs(2);

    /// Limits after only fast batches.
    fn grown() -> FireLimits {
        FireLimits { ticks: DUE_MAX as usize, ..FireLimits::new() }
    }

    fn due(name: &str, missed: i64, payload: usize) -> DueSchedule {
        let target = serde_json::from_str(r#"{"task":{"queue":"q"}}"#).unwrap();
        let name: Name = name.parse().unwrap();
        let mut definition =
            ScheduleDefinition::new(name.clone(), "every 1s".parse::<ScheduleExpression>().unwrap(), target);
        definition.misfire_policy = MisfirePolicy::FireAll { cap: 10_000 };
        definition.payload = RawJson::of(&"x".repeat(payload)).unwrap();
        DueSchedule {
            key: ScheduleKey::new(Name::default_namespace(), name),
            version: 1,
            definition,
            tick_state: ScheduleTickState {
                next_tick_at_ms: NOW_MS - (missed - 1) * 1_000,
                last_tick_at_ms: None,
            },
            unfinished_runs: UnfinishedRuns::default(),
            consecutive_failures: 0,
        }
    }

    fn pack_all(limits: FireLimits, mut due: VecDeque<DueSchedule>) -> Vec<(usize, usize)> {
        let mut batches = Vec::new();
        while !due.is_empty() {
            let batch = limits.pack(&mut due, Token::from_u64(1), NOW_MS);
            batches.push((batch.len(), batch.firings.iter().map(|firing| firing.ticks.len()).sum()));
        }
        batches
    }

    #[test]
    fn many_schedules_with_one_tick_each_are_one_batch() {
        let due = (0..10_000).map(|n| due(&format!("s{n}"), 1, 10)).collect();
        assert_eq!(pack_all(grown(), due), [(10_000, 10_000)]);
    }

    #[test]
    fn many_schedules_are_divided_among_concurrent_batches_and_few_are_not() {
        let due: VecDeque<_> = (0..10_000).map(|n| due(&format!("s{n}"), 1, 10)).collect();
        let sizes = |limits: FireLimits, some: usize| -> Vec<usize> {
            let due: VecDeque<_> = due.iter().take(some).cloned().collect();
            pack_all(limits.divide(some, 4), due).into_iter().map(|(firings, _)| firings).collect()
        };
        assert_eq!(sizes(grown(), 9_600), [800; 12]);
        assert_eq!(sizes(grown(), 300), [250, 50]);
        assert_eq!(sizes(FireLimits::new(), 10_000), [250; 40], "the first batches stay small");
    }

    #[test]
    fn many_missed_ticks_do_not_make_a_batch_larger() {
        let due = (0..3).map(|n| due(&format!("s{n}"), 8_000, 10)).collect();
        let batches = pack_all(grown(), due);
        assert_eq!(batches, [(2, 10_000), (1, 8_000)]);
    }

    #[test]
    fn large_payloads_make_batches_of_few_ticks_and_never_of_none() {
        let due = [due("a", 1_000, 1 << 20), due("b", 1, 1 << 20)].into();
        let batches = pack_all(grown(), due);
        // Fifteen fit, plus the last one whatever its size.
        assert_eq!(batches, [(2, 16)]);
        let due = [self::due("a", 5, 32 << 20), self::due("b", 5, 0)].into();
        assert_eq!(pack_all(FireLimits::minimum(), due), [(1, 1), (1, 1)]);
    }

    fn batch(limits: &FireLimits) -> FireBatch {
        let mut due = (0..=limits.ticks).map(|n| due(&format!("s{n}"), 1, 0)).collect();
        limits.pack(&mut due, Token::from_u64(1), NOW_MS)
    }

    #[test]
    fn batches_shrink_to_one_tick_after_timeouts_and_grow_again() {
        let mut limits = grown();
        for most in [1_000, 100, 10, 1, 1] {
            limits.was_too_large(&batch(&limits));
            assert_eq!(limits.ticks, most);
        }
        for _ in 0..7 {
            limits.arrived(&batch(&limits), Duration::ZERO, HEARTBEAT);
        }
        assert_eq!(limits.ticks, DUE_MAX as usize);
    }

    #[test]
    fn a_slow_batch_is_followed_by_a_smaller_one() {
        let mut limits = grown();
        limits.arrived(&batch(&limits), HEARTBEAT, HEARTBEAT);
        assert_eq!(limits.ticks, 2_500);
        limits.arrived(&batch(&limits), HEARTBEAT / 4, HEARTBEAT);
        assert_eq!(limits.ticks, 2_500);
        // A batch that was not full proves nothing.
        limits.arrived(&FireBatch::new(false), Duration::ZERO, HEARTBEAT);
        assert_eq!(limits.ticks, 2_500);
    }

    #[test]
    fn a_large_read_shrinks_the_next_one_and_a_small_one_with_more_grows_it() {
        let mut limits = FireLimits::new();
        let response = |payload: usize, more| DueResponse {
            schedules: (0..100).map(|n| due(&format!("s{n}"), 1, payload)).collect(),
            has_more: more,
            ..DueResponse::default()
        };
        limits.adapt_read(&response(10, false));
        assert_eq!(limits.read_limit(), FIRST_READ);
        limits.adapt_read(&response(10, true));
        assert_eq!(limits.read_limit(), FIRST_READ * 4);
        let heavy = response(1 << 20, true);
        limits.adapt_read(&heavy);
        assert_eq!(limits.read_limit(), FIRST_READ);
        (0..9).for_each(|_| limits.adapt_read(&heavy));
        assert_eq!(limits.read_limit(), 1);
    }

    #[test]
    fn an_error_text_is_shortened_so_that_any_store_accepts_it() {
        assert_eq!(bounded("a\u{0}b\nc"), "a b c");
        assert_eq!(bounded(&"é".repeat(5_000)).chars().count(), ERROR_MAX);
    }
}
