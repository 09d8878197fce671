//! Pure decisions: no clock, no randomness, no I/O.
//!
//! | module | decides |
//! |---|---|
//! | [`lease`] | heartbeats, leases, campaigns, takeover and release |
//! | [`election`] | candidate ranking, eligibility and waiting times |
//! | [`work`] | validation of tasks, matching of workers and resources, reasons for waiting |
//! | [`event`] | partitions, rebalancing, retries and lag |
//! | [`schedule`] | cron expressions, intervals, time zones and missed ticks |
//! | [`cluster`] | registered names, singletons and conflict resolution |
//! | [`soft`] | elections over gossip without a store |

pub mod cluster;
pub mod election;
pub mod event;
pub mod lease;
pub mod schedule;
pub mod soft;
pub mod work;
