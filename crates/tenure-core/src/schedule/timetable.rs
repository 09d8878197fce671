//! The ticks of a schedule: the next, the last, how many.
//!
//! A timetable walks the zone's pieces of time. In each the wall clock runs evenly, so that asking for a tick is asking the
//! pattern for a local time, and counting ticks is arithmetic. Ticks are from the start on, before the end, and within the
//! years 1970 to 9998. Nothing here depends on the present.

use super::cron::Cron;
use super::dst::{Dst, Fold, Gap};
use super::every::Length;
use super::when::When;
use super::zone::{Piece, Zone};
use crate::{Entropy, SplitMix};

/// The last instant that can be a tick, in milliseconds since 1970: the end of the year 9998.
pub const LAST_MS: i64 = 253_370_764_799_999;

/// The most jitter: a day.
pub const JITTER_MAX_MS: u64 = 86_400_000;

/// What decides when something happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which times.
    pub when: When,
    /// On which wall clock.
    pub zone: Zone,
    /// No tick before this, in milliseconds since 1970. An interval [from its start](super::Every::counted_from_start) is counted
    /// from here.
    pub start_ms: Option<i64>,
    /// No tick from this on.
    pub end_ms: Option<i64>,
    /// Each tick is due later by up to this, so that not all schedules are due at once.
    pub jitter_ms: u64,
    /// What a jump of the wall clock means.
    pub dst: Dst,
}

impl Rule {
    /// These times in UTC, for ever.
    pub fn new(when: impl Into<When>) -> Rule {
        let (zone, dst) = (Zone::utc(), Dst::default());
        Rule { when: when.into(), zone, start_ms: None, end_ms: None, jitter_ms: 0, dst }
    }

    /// These times on the wall clocks of a zone.
    pub fn in_zone(self, zone: Zone) -> Rule {
        Rule { zone, ..self }
    }
}

/// The ticks of a schedule.
///
/// ```
/// use tenure_core::schedule::{Rule, Timetable, When};
///
/// let when: When = "30 2 * * *".parse().unwrap();
/// let rule = Rule::new(when).in_zone("Europe/Berlin".parse().unwrap());
/// let timetable = Timetable::new(&rule, "nightly");
/// // On 29 March 2026, clocks jump from 02:00 to 03:00.
/// let ticks: Vec<i64> = timetable.ticks_from(1_774_659_600_000).take(3).collect();
/// let shown: Vec<String> = ticks.iter().map(|tick| rule.zone.shown(*tick)).collect();
/// assert_eq!(shown, ["2026-03-28T02:30:00+01:00", "2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"]);
/// ```
#[derive(Clone, Debug)]
pub struct Timetable {
    pattern: Pattern,
    zone: Zone,
    gap: Gap,
    fold: Fold,
    from: i64,
    to: i64,
    jitter_ms: u64,
    seed: u64,
}

/// Which local times are meant.
#[derive(Clone, Debug)]
enum Pattern {
    Cron(Box<Cron>),
    /// One at the anchor, and others at equal distances before and after it.
    Steps {
        step: i64,
        anchor: i64,
    },
}

impl Timetable {
    /// The timetable of a rule. The name decides nothing but each tick's jitter: schedules of different names are due at
    /// different times, one schedule always at the same.
    pub fn new(rule: &Rule, name: &str) -> Timetable {
        let (gap, fold) = rule.dst.over(&rule.when);
        let mut zone = rule.zone.clone();
        let pattern = match &rule.when {
            When::Cron(cron) => Pattern::Cron(cron.clone()),
            When::Every(every) => {
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

    /// The first tick that is not before an instant. A schedule that is created now begins with the first from now on.
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

    /// How many ticks are not before an instant, and before another. It costs no more for millions of them.
    pub fn count(&self, from_ms: i64, to_ms: i64) -> u64 {
        let (mut from, last) = (from_ms.max(self.from), to_ms.min(self.to));
        let mut count = 0;
        while from < last {
            let piece = self.piece(from);
            let to = piece.to.min(last);
            count += match piece.offsets {
                [Some(offset), None] => self.pattern.count_in(from + offset, to + offset),
                [None, None] => 0,
                // For an hour or so after a gap two clocks may mean one instant: these are looked at one by one.
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
    pub fn ticks_from(&self, at_ms: i64) -> Ticks<'_> {
        self.ticks_between(at_ms, i64::MAX)
    }

    /// The ticks that are not before an instant, and before another.
    pub fn ticks_between(&self, from_ms: i64, to_ms: i64) -> Ticks<'_> {
        Ticks { timetable: self, from: from_ms, to: to_ms }
    }

    /// When a tick is due: at the tick, or later by its jitter. Never as late as the next tick, so ticks fall due in order.
    pub fn due_at(&self, tick_ms: i64) -> i64 {
        if self.jitter_ms == 0 {
            return tick_ms;
        }
        let next = self.next_after(tick_ms).map_or(u64::MAX, |next| next.abs_diff(tick_ms) - 1);
        let most = self.jitter_ms.min(JITTER_MAX_MS).min(next);
        let random = SplitMix::new(self.seed ^ tick_ms as u64).next_u64();
        tick_ms + (random % (most + 1)) as i64
    }

    /// What a stored next tick is by the rules of today: itself if it is a tick; otherwise, as when a new time zone database
    /// has moved it, the nearest that is one and comes after the last that fired.
    pub fn settle(&self, next_ms: i64, last_ms: Option<i64>) -> Option<i64> {
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

    /// What holds where the wall clock jumps.
    pub fn policies(&self) -> (Gap, Fold) {
        (self.gap, self.fold)
    }

    fn piece(&self, at: i64) -> Piece {
        self.zone.piece(at, self.gap, self.fold)
    }
}

/// Ticks one after the other. See [`Timetable::ticks_between`].
#[derive(Clone, Debug)]
pub struct Ticks<'a> {
    timetable: &'a Timetable,
    from: i64,
    to: i64,
}

impl Iterator for Ticks<'_> {
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
