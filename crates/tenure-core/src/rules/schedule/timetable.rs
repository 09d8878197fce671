//! The ticks of a schedule: next, last and count.
//!
//! A timetable walks through periods in which the UTC offset of the zone does not change. In each period, finding a
//! tick means finding a local time, and counting is arithmetic. Ticks are at or after the start, before the end, and
//! in the years 1970 to 9998. Nothing depends on the current time.

use super::cron::Cron;
use super::dst::{DstGapPolicy, DstOverlapPolicy, DstPolicy};
use super::expression::ScheduleExpression;
use super::interval::Length;
use super::zone::{UniformPeriod, Zone};
use crate::{Entropy, SplitMix};

/// The last possible tick, in milliseconds since 1970: the end of the year 9998.
pub const LAST_MS: i64 = 253_370_764_799_999;

/// Maximum jitter: a day.
pub const JITTER_MAX_MS: u64 = 86_400_000;

/// The fields that determine the ticks of a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecurrenceRule {
    /// Cron expression or interval.
    pub expression: ScheduleExpression,
    /// Time zone.
    pub time_zone: Zone,
    /// No tick before this, in milliseconds since 1970. An interval [from its
    /// start](super::Interval::counted_from_start) counts from here.
    pub start_ms: Option<i64>,
    /// No tick at or after this.
    pub end_ms: Option<i64>,
    /// Maximum jitter, so that not all schedules are due at the same time.
    pub jitter_ms: u64,
    /// Policy for DST gaps and overlaps.
    pub dst: DstPolicy,
}

impl RecurrenceRule {
    /// These times in UTC, without bounds.
    pub fn new(expression: impl Into<ScheduleExpression>) -> RecurrenceRule {
        let (time_zone, dst) = (Zone::utc(), DstPolicy::default());
        RecurrenceRule {
            expression: expression.into(),
            time_zone,
            start_ms: None,
            end_ms: None,
            jitter_ms: 0,
            dst,
        }
    }

    /// The same times in a time zone.
    pub fn in_zone(self, zone: Zone) -> RecurrenceRule {
        RecurrenceRule { time_zone: zone, ..self }
    }
}

/// The ticks of a schedule.
///
/// ```
/// use tenure_core::rules::schedule::{RecurrenceRule, ScheduleExpression, Timetable};
///
/// let expression: ScheduleExpression = "30 2 * * *".parse().unwrap();
/// let rule = RecurrenceRule::new(expression).in_zone("Europe/Berlin".parse().unwrap());
/// let timetable = Timetable::new(&rule, "nightly");
/// // On 29 March 2026, clocks jump from 02:00 to 03:00.
/// let ticks: Vec<i64> = timetable.ticks_from(1_774_659_600_000).take(3).collect();
/// let local: Vec<String> = ticks.iter().map(|tick| rule.time_zone.format_local(*tick)).collect();
/// assert_eq!(local, ["2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"]);
/// ```
#[derive(Clone, Debug)]
pub struct Timetable {
    pattern: Pattern,
    zone: Zone,
    gap: DstGapPolicy,
    fold: DstOverlapPolicy,
    from: i64,
    to: i64,
    jitter_ms: u64,
    seed: u64,
}

/// The selected local times.
#[derive(Clone, Debug)]
enum Pattern {
    Cron(Box<Cron>),
    /// An anchor and equal distances before and after it.
    Steps {
        step: i64,
        anchor: i64,
    },
}

impl Timetable {
    /// The timetable of a rule. The name determines only the jitter: schedules with different names are due at
    /// different times, and one schedule always has the same jitter for the same tick.
    pub fn new(rule: &RecurrenceRule, name: &str) -> Timetable {
        let (gap, fold) = rule.dst.resolve(&rule.expression);
        let mut zone = rule.time_zone.clone();
        let pattern = match &rule.expression {
            ScheduleExpression::Cron(cron) => Pattern::Cron(cron.clone()),
            ScheduleExpression::Interval(every) => {
                if matches!(every.length(), Length::Ms(_)) {
                    zone = Zone::utc();
                }
                let start = rule.start_ms.filter(|_| every.is_from_start()).map(|at| at.clamp(0, LAST_MS));
                let anchor = start.map_or(0, |start| start + zone.offset_ms(start));
                Pattern::Steps { step: every.step_ms(), anchor }
            }
        };
        Timetable {
            pattern,
            zone,
            gap,
            fold,
            from: rule.start_ms.unwrap_or(0).max(0),
            to: rule.end_ms.unwrap_or(i64::MAX).min(LAST_MS + 1),
            jitter_ms: rule.jitter_ms,
            seed: hash(name),
        }
    }

    /// The first tick after an instant.
    pub fn next_after(&self, at_ms: i64) -> Option<i64> {
        self.first_from(at_ms.saturating_add(1))
    }

    /// The first tick at or after an instant. A new schedule starts with the first tick from now.
    pub fn first_from(&self, at_ms: i64) -> Option<i64> {
        let mut from = at_ms.max(self.from);
        while from < self.to {
            let piece = self.piece(from);
            let to = piece.to.min(self.to);
            let ticks = piece.offsets.iter().flatten().filter_map(|offset| {
                self.pattern.next_in(from + offset, to + offset).map(|local| local - offset)
            });
            if let Some(tick) = ticks.min() {
                return Some(tick);
            }
            from = to;
        }
        None
    }

    /// The last tick before an instant.
    pub fn last_before(&self, at_ms: i64) -> Option<i64> {
        let mut to = at_ms.min(self.to);
        while to > self.from {
            let piece = self.piece(to - 1);
            let from = piece.from.max(self.from);
            let ticks = piece.offsets.iter().flatten().filter_map(|offset| {
                self.pattern.last_in(from + offset, to + offset).map(|local| local - offset)
            });
            if let Some(tick) = ticks.max() {
                return Some(tick);
            }
            to = from;
        }
        None
    }

    /// The number of ticks in a range. The cost does not depend on the number.
    pub fn count(&self, from_ms: i64, to_ms: i64) -> u64 {
        let (mut from, last) = (from_ms.max(self.from), to_ms.min(self.to));
        let mut count = 0;
        while from < last {
            let piece = self.piece(from);
            let to = piece.to.min(last);
            count += match piece.offsets {
                [Some(offset), None] => self.pattern.count_in(from + offset, to + offset),
                [None, None] => 0,
                // For about an hour after a gap, two local times may be the same instant, so count these ticks one by
                // one.
                _ => self.ticks_between(from, to).count() as u64,
            };
            from = to;
        }
        count
    }

    /// Whether an instant is a tick.
    pub fn is_tick(&self, at_ms: i64) -> bool {
        self.first_from(at_ms) == Some(at_ms)
    }

    /// The ticks from an instant on.
    pub fn ticks_from(&self, at_ms: i64) -> TickIter<'_> {
        self.ticks_between(at_ms, i64::MAX)
    }

    /// The ticks of a range.
    pub fn ticks_between(&self, from_ms: i64, to_ms: i64) -> TickIter<'_> {
        TickIter { timetable: self, from: from_ms, to: to_ms }
    }

    /// When a tick is due: the tick plus its jitter, but before the next tick, so that ticks become due in order.
    pub fn due_at(&self, tick_ms: i64) -> i64 {
        if self.jitter_ms == 0 {
            return tick_ms;
        }
        let next = self.next_after(tick_ms).map_or(u64::MAX, |next| next.abs_diff(tick_ms) - 1);
        let most = self.jitter_ms.min(JITTER_MAX_MS).min(next);
        let random = SplitMix::new(self.seed ^ tick_ms as u64).next_u64();
        tick_ms + (random % (most + 1)) as i64
    }

    /// A stored next tick under the current rules: itself if it is still a tick. Otherwise, for example after an
    /// update of the time zone database, the nearest tick after the last decided one.
    pub fn revalidate(&self, next_ms: i64, last_ms: Option<i64>) -> Option<i64> {
        let later = self.first_from(next_ms.max(last_ms.map_or(i64::MIN, |last| last.saturating_add(1))));
        if later == Some(next_ms) {
            return later;
        }
        let earlier = self.last_before(next_ms).filter(|it| last_ms.is_none_or(|last| *it > last));
        match (earlier, later) {
            (Some(earlier), Some(later)) if next_ms - earlier < later - next_ms => Some(earlier),
            (earlier, later) => later.or(earlier),
        }
    }

    /// The effective policies for DST gaps and overlaps.
    pub fn policies(&self) -> (DstGapPolicy, DstOverlapPolicy) {
        (self.gap, self.fold)
    }

    fn piece(&self, at: i64) -> UniformPeriod {
        self.zone.piece(at, self.gap, self.fold)
    }
}

/// Iterator over ticks. See [`Timetable::ticks_between`].
#[derive(Clone, Debug)]
pub struct TickIter<'a> {
    timetable: &'a Timetable,
    from: i64,
    to: i64,
}

impl Iterator for TickIter<'_> {
    type Item = i64;
    fn next(&mut self) -> Option<i64> {
        let tick = self.timetable.first_from(self.from).filter(|tick| *tick < self.to)?;
        self.from = tick + 1;
        Some(tick)
    }
}

impl Pattern {
    fn next_in(&self, from: i64, to: i64) -> Option<i64> {
        match self {
            Pattern::Cron(cron) => cron.next_in(from, to),
            Pattern::Steps { step, anchor } => {
                let ahead = (anchor - from).rem_euclid(*step);
                Some(from + ahead).filter(|next| *next < to)
            }
        }
    }

    fn last_in(&self, from: i64, to: i64) -> Option<i64> {
        match self {
            Pattern::Cron(cron) => cron.last_in(from, to),
            Pattern::Steps { step, anchor } => {
                let last = to - 1;
                Some(last - (last - anchor).rem_euclid(*step)).filter(|last| *last >= from)
            }
        }
    }

    fn count_in(&self, from: i64, to: i64) -> u64 {
        match self {
            Pattern::Cron(cron) => cron.count_in(from, to),
            Pattern::Steps { step, anchor } if from < to => {
                let before = |at: i64| (at - 1 - anchor).div_euclid(*step);
                before(to).abs_diff(before(from))
            }
            Pattern::Steps { .. } => 0,
        }
    }
}

/// A hash that is the same in every version and on every machine (FNV-1a).
fn hash(name: &str) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}
