//! What fires now: the decision about due ticks.
//!
//! The ticks that are due are those from the stored next tick on that have fallen due by the store's clock. Of these the
//! *newest* ones fire, how many being a matter of the [`Misfire`] policy; the others are skipped, and counted. So a policy
//! is two bounds, a number and an age, and whatever happened in between, the work is bounded by the number. The next tick
//! follows from the last due one, never from the clock: decided twice, or by two leaders, the outcome is the same.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::every::{Length, length, written};
use super::timetable::Timetable;

/// How many ticks of one schedule fire at once at most.
pub const FIRE_MAX: u32 = 10_000;

/// How late a tick may be and still count as on time, in milliseconds: long enough for another leader to take over.
pub const ON_TIME_MS: u64 = 60_000;

/// The longest grace: a hundred years.
const GRACE_MAX_MS: u64 = 3_155_760_000_000;

/// What becomes of ticks that were missed: nobody led, the store was away, the schedule was paused.
///
/// As text: `skip`, `fire_once`, `fire_all(100)`, `within(15m)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Misfire {
    /// They are left out: only the newest due tick fires, and only on time ([`ON_TIME_MS`]).
    Skip,
    /// One fires for all: the newest.
    FireOnce,
    /// All fire, the newest first to be kept if there are more than the cap.
    FireAll {
        /// How many at most, 1 to [`FIRE_MAX`].
        cap: u32,
    },
    /// Those fire that are not later than this, the newest [`FIRE_MAX`] at most.
    Within {
        /// How late, in milliseconds.
        grace_ms: u64,
    },
}

/// A policy that can not be. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MisfireError {
    /// It is not known.
    #[error("there is no policy {0:?} for missed ticks; say skip, fire_once, fire_all(100) or within(15m)")]
    Unknown(String),
    /// The cap is out of range.
    #[error("fire_all({0}) is out of range; its cap is between 1 and {FIRE_MAX}")]
    Cap(u64),
    /// The grace is out of range.
    #[error("within({}) is out of range; its grace is between 1ms and 100 years", written(*.0))]
    Grace(u64),
}

impl Misfire {
    /// Refuses bounds that make no sense.
    pub fn check(self) -> Result<Misfire, MisfireError> {
        match self {
            Misfire::FireAll { cap } if !(1..=FIRE_MAX).contains(&cap) => Err(MisfireError::Cap(cap.into())),
            Misfire::Within { grace_ms } if !(1..=GRACE_MAX_MS).contains(&grace_ms) => {
                Err(MisfireError::Grace(grace_ms))
            }
            fine => Ok(fine),
        }
    }

    /// How many fire at most, and how late they may be.
    fn bounds(self) -> (usize, i64) {
        let (most, late_ms) = match self {
            Misfire::Skip => (1, ON_TIME_MS),
            Misfire::FireOnce => (1, u64::MAX),
            Misfire::FireAll { cap } => (cap.clamp(1, FIRE_MAX), u64::MAX),
            Misfire::Within { grace_ms } => (FIRE_MAX, grace_ms),
        };
        (most as usize, i64::try_from(late_ms).unwrap_or(i64::MAX))
    }
}

/// What the store knows of a schedule's ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The next tick to fire.
    pub next_at_ms: i64,
    /// The last one that was decided about: fired or skipped.
    pub last_at_ms: Option<i64>,
}

/// What to do now, all of it in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// These ticks fire, oldest first.
    pub fire: Vec<i64>,
    /// Those before them are skipped.
    pub skipped: Option<Skipped>,
    /// What the store knows from then on; `None` if no tick is left.
    pub progress: Option<Progress>,
    /// When to look again: when the next tick falls due.
    pub wake_at_ms: Option<i64>,
}

/// Ticks that do not fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Skipped {
    /// How many.
    pub count: u64,
    /// The first of them.
    pub first_ms: i64,
    /// The last of them.
    pub last_ms: i64,
}

/// Decides about the ticks that are due at `now_ms` by the store's clock.
///
/// ```
/// use tenure_core::schedule::{Misfire, Progress, Rule, Timetable, When, decide};
///
/// let when: When = "every 1m".parse().unwrap();
/// let timetable = Timetable::new(&Rule::new(when), "minutely");
/// let stored = Progress { next_at_ms: 60_000, last_at_ms: Some(0) };
/// let decision = decide(&timetable, Misfire::FireAll { cap: 2 }, stored, 245_000);
/// assert_eq!(decision.fire, [180_000, 240_000]);
/// assert_eq!(decision.skipped.unwrap().count, 2);
/// assert_eq!(decision.progress.unwrap().next_at_ms, 300_000);
/// ```
pub fn decide(timetable: &Timetable, misfire: Misfire, stored: Progress, now_ms: i64) -> Decision {
    let last = stored.last_at_ms;
    let Some(next) = timetable.settle(stored.next_at_ms, last) else {
        return Decision { fire: Vec::new(), skipped: None, progress: None, wake_at_ms: None };
    };
    let Some(newest) = newest_due(timetable, now_ms).filter(|newest| *newest >= next) else {
        return after(timetable, Vec::new(), None, Some(next), last);
    };
    let fire = suffix(timetable, misfire, next, newest, now_ms);
    let skipped_to = fire.first().copied().unwrap_or(newest.saturating_add(1));
    let skipped = timetable.last_before(skipped_to).filter(|last| *last >= next).map(|last_ms| Skipped {
        count: timetable.count(next, skipped_to),
        first_ms: next,
        last_ms,
    });
    after(timetable, fire, skipped, timetable.next_after(newest), Some(newest))
}

fn after(
    timetable: &Timetable,
    fire: Vec<i64>,
    skipped: Option<Skipped>,
    next: Option<i64>,
    last_at_ms: Option<i64>,
) -> Decision {
    let progress = next.map(|next_at_ms| Progress { next_at_ms, last_at_ms });
    Decision { fire, skipped, progress, wake_at_ms: next.map(|next| timetable.due_at(next)) }
}

/// The last tick that has fallen due. Ticks fall due in order, so only the last that has come may still be waiting.
fn newest_due(timetable: &Timetable, now_ms: i64) -> Option<i64> {
    let come = timetable.last_before(now_ms.saturating_add(1))?;
    if timetable.due_at(come) <= now_ms { Some(come) } else { timetable.last_before(come) }
}

/// The newest due ticks, as many as the policy lets fire, oldest first.
fn suffix(timetable: &Timetable, misfire: Misfire, next: i64, newest: i64, now_ms: i64) -> Vec<i64> {
    let (most, late_ms) = misfire.bounds();
    let back = std::iter::successors(Some(newest), |tick| timetable.last_before(*tick));
    let fires = |tick: &i64| *tick >= next && now_ms.saturating_sub(timetable.due_at(*tick)) <= late_ms;
    let mut fire: Vec<i64> = back.take_while(fires).take(most).collect();
    fire.reverse();
    fire
}

impl FromStr for Misfire {
    type Err = MisfireError;
    fn from_str(text: &str) -> Result<Self, MisfireError> {
        let unknown = || MisfireError::Unknown(text.chars().take(100).collect());
        let argument = |name: &str| text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
        match text {
            "skip" => return Ok(Misfire::Skip),
            "fire_once" => return Ok(Misfire::FireOnce),
            _ => {}
        }
        if let Some(cap) = argument("fire_all") {
            let cap: u64 = cap.trim().parse().map_err(|_| unknown())?;
            let fits = u32::try_from(cap).map_err(|_| MisfireError::Cap(cap))?;
            return Misfire::FireAll { cap: fits }.check();
        }
        let grace = argument("within").ok_or_else(unknown)?.trim();
        let grace_ms = match length(text, 0, grace).map_err(|_| unknown())? {
            Length::Ms(ms) => ms,
            Length::Days(days) => days.saturating_mul(86_400_000),
        };
        Misfire::Within { grace_ms }.check()
    }
}

impl Default for Misfire {
    /// One for all: nothing that was due is forgotten, and nothing floods.
    fn default() -> Self {
        Misfire::FireOnce
    }
}

impl TryFrom<String> for Misfire {
    type Error = MisfireError;
    fn try_from(text: String) -> Result<Self, MisfireError> {
        text.parse()
    }
}

impl From<Misfire> for String {
    fn from(misfire: Misfire) -> String {
        misfire.to_string()
    }
}

impl fmt::Display for Misfire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfire::Skip => f.write_str("skip"),
            Misfire::FireOnce => f.write_str("fire_once"),
            Misfire::FireAll { cap } => write!(f, "fire_all({cap})"),
            Misfire::Within { grace_ms } => write!(f, "within({})", written(*grace_ms)),
        }
    }
}
