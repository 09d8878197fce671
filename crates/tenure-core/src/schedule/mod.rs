//! The rules of time: when something happens, and what becomes of what was missed.
//!
//! A *schedule* has ticks. A tick is an instant, in milliseconds since 1970, and nothing else: the n-th tick is what it is
//! whoever looks, and whenever. A [`Definition`] is what people write; its [`Timetable`] knows the ticks. The store owns
//! two facts about each schedule ([`Progress`]): the next tick that is to fire, and the last one that did. [`decide`] says
//! from these, and from the store's clock, which ticks fire now and what the next one is. It counts from the stored tick,
//! never from "now", so a slow look, a restart or another leader neither loses nor doubles one. The clock only ever says
//! how far to go. When the store is away nothing is decided; when it is back, the ticks in between are *missed* ones, and
//! the [`Misfire`] policy says which of them still fire. However many they are, they are counted by arithmetic.
//!
//! # Days that are not 24 hours long
//!
//! Cron, and intervals in days, speak of what a clock on the wall shows; intervals in hours or less speak of elapsed time
//! and know no zone. Where a wall clock jumps ahead (a *gap*), a time in the gap happens later by as much as the clock
//! jumped ([`Gap::Shift`]), or not at all ([`Gap::Skip`]). Where it is set back (an *overlap*), a time that is shown twice
//! counts when it is shown [first](Fold::First), or [both](Fold::Both) times. Unless said, a cron expression for every hour
//! of the day skips and counts both, as nobody wants an hour of silence from `*/5 * * * *`; everything else shifts and
//! counts the first, as nobody wants a nightly job twice or never. Two times that end up at one instant are one tick.
//!
//! The time zone database is part of the program ([`tzdb_version`]). When a new one moves a tick that is stored already,
//! [`Timetable::settle`] moves it to the nearest tick by the new rules, so that a day neither drops out nor counts twice.
//!
//! | | what it decides |
//! |---|---|
//! | [`When`]: [`Cron`], [`Every`] | what is written, and where it is wrong |
//! | [`Zone`], [`Dst`] | what a wall clock shows, and what a jump of it means |
//! | [`Rule`], [`Timetable`] | the ticks: the next, the last, how many; and how much later each is due |
//! | [`Misfire`], [`decide`] | which due ticks fire, which are skipped, what is next |
//! | [`Overlap`] | whether a run begins while another is under way |
//! | [`Definition`], [`Target`] | all of it, checked |
//! | [`plan`], [`revise`] | the whole decision about one schedule, for the leader and for every store |

mod ask;
mod civil;
mod cron;
mod definition;
mod dst;
mod every;
mod misfire;
mod near;
mod overlap;
mod plan;
mod target;
mod timetable;
mod when;
mod zone;

#[cfg(test)]
mod definition_tests;
#[cfg(test)]
mod misfire_tests;
#[cfg(test)]
mod reckoning_tests;
#[cfg(test)]
mod timetable_tests;

pub use self::ask::{check_fire, check_hand};
pub use self::cron::{Cron, CronError};
pub use self::definition::{Definition, DefinitionError};
pub use self::dst::{Dst, Fold, Gap};
pub use self::every::{Every, EveryError};
pub use self::misfire::{Decision, FIRE_MAX, Misfire, MisfireError, ON_TIME_MS, Progress, Skipped, decide};
pub use self::overlap::{Admission, Load, Overlap, WAIT_MAX};
pub use self::plan::{
    CALL_KIND, Call, Revised, SCHEDULE_HEADER, TICK_HEADER, due_ms, effect, in_utc, load_of, plan, plan_some,
    put_off, revise, task_key, tick_of,
};
pub use self::target::Target;
pub use self::timetable::{JITTER_MAX_MS, LAST_MS, Rule, Ticks, Timetable};
pub use self::when::{When, WhenError};
pub use self::zone::{Zone, ZoneError, tzdb_version};
