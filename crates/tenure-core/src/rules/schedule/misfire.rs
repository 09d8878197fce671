//! Decision about due ticks.
//!
//! The due ticks start at the stored next tick and end at the last tick that is due by the store's clock. The *newest*
//! of them fire, as many as the [`MisfirePolicy`] allows; the others are skipped and counted. A policy limits the
//! number and the lateness of ticks, so the work is bounded however long an outage lasted. The next tick is computed
//! from the last due tick and never from the clock, so deciding twice, or by two leaders, gives the same result.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::interval::{Length, length, written};
use super::timetable::Timetable;

/// Maximum number of ticks of one schedule that fire at once.
pub const FIRE_MAX: u32 = 10_000;

/// Lateness up to which a tick counts as on time, in milliseconds; long enough for a leader change.
pub const ON_TIME_MS: u64 = 60_000;

/// Maximum grace: 100 years.
const GRACE_MAX_MS: u64 = 3_155_760_000_000;

/// What happens to missed ticks. Ticks are missed while no scheduler leads, the store is unavailable or the schedule is
/// paused.
///
/// Text forms: `skip`, `fire_once`, `fire_all(100)`, `within(15m)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum MisfirePolicy {
    /// They are skipped: only the newest due tick fires, and only if it is on time ([`ON_TIME_MS`]).
    Skip,
    /// Only the newest due tick fires.
    FireOnce,
    /// All fire, but only the newest ones if there are more than the cap.
    FireAll {
        /// Maximum number, 1 to [`FIRE_MAX`].
        cap: u32,
    },
    /// Ticks that are at most this late fire, but only the newest [`FIRE_MAX`].
    Within {
        /// Maximum lateness in milliseconds.
        grace_ms: u64,
    },
}

/// Why a misfire policy is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisfirePolicyError {
    /// It is unknown.
    #[error("unknown misfire policy {0:?}; use skip, fire_once, fire_all(100) or within(15m)")]
    Unknown(String),
    /// The cap is out of range.
    #[error("fire_all({0}) is out of range; use 1 to {FIRE_MAX}")]
    Cap(u64),
    /// The grace is out of range.
    #[error("within({}) is out of range; use 1ms to 100 years", written(*.0))]
    Grace(u64),
}

impl MisfirePolicy {
    /// Validates the bounds.
    pub fn check(self) -> Result<MisfirePolicy, MisfirePolicyError> {
        match self {
            MisfirePolicy::FireAll { cap } if !(1..=FIRE_MAX).contains(&cap) => {
                Err(MisfirePolicyError::Cap(cap.into()))
            }
            MisfirePolicy::Within { grace_ms } if !(1..=GRACE_MAX_MS).contains(&grace_ms) => {
                Err(MisfirePolicyError::Grace(grace_ms))
            }
            fine => Ok(fine),
        }
    }

    /// Maximum number and maximum lateness of ticks that fire.
    fn bounds(self) -> (usize, i64) {
        let (most, late_ms) = match self {
            MisfirePolicy::Skip => (1, ON_TIME_MS),
            MisfirePolicy::FireOnce => (1, u64::MAX),
            MisfirePolicy::FireAll { cap } => (cap.clamp(1, FIRE_MAX), u64::MAX),
            MisfirePolicy::Within { grace_ms } => (FIRE_MAX, grace_ms),
        };
        (most as usize, i64::try_from(late_ms).unwrap_or(i64::MAX))
    }
}

/// The stored tick state of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ScheduleTickState {
    /// The next tick to fire.
    pub next_tick_at_ms: i64,
    /// The last decided tick, fired or skipped.
    pub last_tick_at_ms: Option<i64>,
}

/// A decision about due ticks, applied in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MisfireDecision {
    /// Ticks that fire, oldest first.
    pub fire: Vec<i64>,
    /// Earlier ticks that are skipped.
    pub skipped: Option<SkippedTicks>,
    /// Tick state afterwards; `None` if no tick is left.
    pub tick_state: Option<ScheduleTickState>,
    /// When the next tick is due.
    pub next_due_at_ms: Option<i64>,
}

/// A range of ticks that do not fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SkippedTicks {
    /// Number of ticks.
    pub tick_count: u64,
    /// First tick of the range.
    pub first_tick_at_ms: i64,
    /// Last tick of the range.
    pub last_tick_at_ms: i64,
}

/// Decides about the ticks that are due at `now_ms` by the store's clock.
///
/// ```
/// use tenure_core::rules::schedule::{MisfirePolicy, RecurrenceRule, ScheduleExpression, ScheduleTickState, Timetable, decide};
///
/// let expression: ScheduleExpression = "every 1m".parse().unwrap();
/// let timetable = Timetable::new(&RecurrenceRule::new(expression), "minutely");
/// let stored = ScheduleTickState { next_tick_at_ms: 60_000, last_tick_at_ms: Some(0) };
/// let decision = decide(&timetable, MisfirePolicy::FireAll { cap: 2 }, stored, 245_000);
/// assert_eq!(decision.fire, [180_000, 240_000]);
/// assert_eq!(decision.skipped.unwrap().tick_count, 2);
/// assert_eq!(decision.tick_state.unwrap().next_tick_at_ms, 300_000);
/// ```
pub fn decide(
    timetable: &Timetable,
    misfire: MisfirePolicy,
    stored: ScheduleTickState,
    now_ms: i64,
) -> MisfireDecision {
    let last = stored.last_tick_at_ms;
    let Some(next) = timetable.revalidate(stored.next_tick_at_ms, last) else {
        return MisfireDecision { fire: Vec::new(), skipped: None, tick_state: None, next_due_at_ms: None };
    };
    let Some(newest) = newest_due(timetable, now_ms).filter(|newest| *newest >= next) else {
        return after(timetable, Vec::new(), None, Some(next), last);
    };
    let fire = suffix(timetable, misfire, next, newest, now_ms);
    let skipped_to = fire.first().copied().unwrap_or(newest.saturating_add(1));
    let skipped =
        timetable.last_before(skipped_to).filter(|last| *last >= next).map(|last_ms| SkippedTicks {
            tick_count: timetable.count(next, skipped_to),
            first_tick_at_ms: next,
            last_tick_at_ms: last_ms,
        });
    after(timetable, fire, skipped, timetable.next_after(newest), Some(newest))
}

fn after(
    timetable: &Timetable,
    fire: Vec<i64>,
    skipped: Option<SkippedTicks>,
    next: Option<i64>,
    last_at_ms: Option<i64>,
) -> MisfireDecision {
    let progress =
        next.map(|next_at_ms| ScheduleTickState { next_tick_at_ms: next_at_ms, last_tick_at_ms: last_at_ms });
    MisfireDecision {
        fire,
        skipped,
        tick_state: progress,
        next_due_at_ms: next.map(|next| timetable.due_at(next)),
    }
}

/// The last due tick. Ticks become due in order, so at most the last tick before now is not due yet.
fn newest_due(timetable: &Timetable, now_ms: i64) -> Option<i64> {
    let come = timetable.last_before(now_ms.saturating_add(1))?;
    if timetable.due_at(come) <= now_ms { Some(come) } else { timetable.last_before(come) }
}

/// The newest due ticks that the policy allows to fire, oldest first.
fn suffix(timetable: &Timetable, misfire: MisfirePolicy, next: i64, newest: i64, now_ms: i64) -> Vec<i64> {
    let (most, late_ms) = misfire.bounds();
    let back = std::iter::successors(Some(newest), |tick| timetable.last_before(*tick));
    let fires = |tick: &i64| *tick >= next && now_ms.saturating_sub(timetable.due_at(*tick)) <= late_ms;
    let mut fire: Vec<i64> = back.take_while(fires).take(most).collect();
    fire.reverse();
    fire
}

impl FromStr for MisfirePolicy {
    type Err = MisfirePolicyError;
    fn from_str(text: &str) -> Result<Self, MisfirePolicyError> {
        let unknown = || MisfirePolicyError::Unknown(text.chars().take(100).collect());
        let argument = |name: &str| text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
        match text {
            "skip" => return Ok(MisfirePolicy::Skip),
            "fire_once" => return Ok(MisfirePolicy::FireOnce),
            _ => {}
        }
        if let Some(cap) = argument("fire_all") {
            let cap: u64 = cap.trim().parse().map_err(|_| unknown())?;
            let fits = u32::try_from(cap).map_err(|_| MisfirePolicyError::Cap(cap))?;
            return MisfirePolicy::FireAll { cap: fits }.check();
        }
        let grace = argument("within").ok_or_else(unknown)?.trim();
        let grace_ms = match length(text, 0, grace).map_err(|_| unknown())? {
            Length::Ms(ms) => ms,
            Length::Days(days) => days.saturating_mul(86_400_000),
        };
        MisfirePolicy::Within { grace_ms }.check()
    }
}

impl Default for MisfirePolicy {
    /// The default fires once: a missed tick is not lost, and many missed ticks cause no burst.
    fn default() -> Self {
        MisfirePolicy::FireOnce
    }
}

impl TryFrom<String> for MisfirePolicy {
    type Error = MisfirePolicyError;
    fn try_from(text: String) -> Result<Self, MisfirePolicyError> {
        text.parse()
    }
}

impl From<MisfirePolicy> for String {
    fn from(misfire: MisfirePolicy) -> String {
        misfire.to_string()
    }
}

impl fmt::Display for MisfirePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MisfirePolicy::Skip => f.write_str("skip"),
            MisfirePolicy::FireOnce => f.write_str("fire_once"),
            MisfirePolicy::FireAll { cap } => write!(f, "fire_all({cap})"),
            MisfirePolicy::Within { grace_ms } => write!(f, "within({})", written(*grace_ms)),
        }
    }
}
