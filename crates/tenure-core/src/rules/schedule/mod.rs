//! Rules of schedules: ticks, time zones, missed ticks and overlapping runs.
//!
//! A *schedule* has ticks. A tick is an instant in milliseconds since 1970, which does not depend on when or where it
//! is computed. A [`ScheduleDefinition`] is what users write; its [`Timetable`] computes the ticks. The store keeps
//! two instants per schedule ([`ScheduleTickState`]): the next tick and the last decided one. From these and the
//! store's clock [`decide`] determines which ticks fire now and what the next one is. It counts from the stored tick
//! and never from "now", so a slow read, a restart or a new leader neither loses nor duplicates a tick. While the
//! store is unavailable nothing is decided. Afterwards the ticks in between are *missed*, and the [`MisfirePolicy`]
//! determines which of them still fire. Missed ticks are counted by arithmetic, however many they are.
//!
//! # Daylight saving time
//!
//! Cron expressions and intervals in days refer to the wall clock of the time zone; intervals in hours or less are
//! elapsed time. A local time inside a DST *gap* occurs later by the length of the gap ([`DstGapPolicy::Shift`]) or
//! not at all ([`DstGapPolicy::Skip`]). A local time inside an *overlap* occurs the [first](DstOverlapPolicy::First)
//! or [both](DstOverlapPolicy::Both) times. By default a cron expression with times in every hour of the day skips
//! and uses both, so that `*/5 * * * *` has no silent hour. All others shift and use the first, so that a nightly job
//! runs exactly once. Two local times at one instant are one tick.
//!
//! The time zone database is compiled into the program ([`tzdb_version`]). If a new version moves a stored tick,
//! [`Timetable::revalidate`] moves it to the nearest tick by the new rules, so that no day is skipped or repeated.
//!
//! | item | purpose |
//! |---|---|
//! | [`ScheduleExpression`]: [`Cron`], [`Interval`] | parsing, with positions of errors |
//! | [`Zone`], [`DstPolicy`] | local time, and its gaps and overlaps |
//! | [`RecurrenceRule`], [`Timetable`] | ticks: next, last, count, due time |
//! | [`MisfirePolicy`], [`decide`] | which due ticks fire, which are skipped, which is next |
//! | [`OverlapPolicy`] | whether a run starts while another is unfinished |
//! | [`ScheduleDefinition`], [`ScheduleTarget`] | the complete definition and its validation |
//! | [`plan`], [`revise`] | the complete decision about one schedule, for the scheduler and for every store |

mod civil;
mod cron;
mod definition;
mod dst;
mod expression;
mod interval;
mod misfire;
mod overlap;
mod plan;
mod target;
mod timetable;
mod validate;
mod zone;
mod zone_suggestion;

#[cfg(test)]
mod cron_reference_tests;
#[cfg(test)]
mod definition_tests;
#[cfg(test)]
mod misfire_tests;
#[cfg(test)]
mod timetable_tests;

pub use self::cron::{Cron, CronError};
pub use self::definition::{ScheduleDefinition, ScheduleDefinitionError};
pub use self::dst::{DstGapPolicy, DstOverlapPolicy, DstPolicy};
pub use self::expression::{ScheduleExpression, ScheduleExpressionError};
pub use self::interval::{Interval, IntervalError};
pub use self::misfire::{
    FIRE_MAX, MisfireDecision, MisfirePolicy, MisfirePolicyError, ON_TIME_MS, ScheduleTickState,
    SkippedTicks, decide,
};
pub use self::overlap::{OverlapDecision, OverlapPolicy, UnfinishedRuns, WAIT_MAX};
pub use self::plan::{
    RevisedSchedule, SCHEDULE_HEADER, TICK_HEADER, WEBHOOK_TASK_KIND, WebhookCall, due_ms, effect, plan,
    plan_at_most, postpone, revise, task_key, tick_of, to_rfc3339, unfinished_runs,
};
pub use self::target::ScheduleTarget;
pub use self::timetable::{JITTER_MAX_MS, LAST_MS, RecurrenceRule, TickIter, Timetable};
pub use self::validate::{validate_fire, validate_manual_fire};
pub use self::zone::{Zone, ZoneError, tzdb_version};
