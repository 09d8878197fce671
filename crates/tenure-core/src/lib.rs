//! The rules of Tenure as pure functions and state machines.
//!
//! This crate makes decisions and performs no I/O. It reads no clock, draws no randomness and opens no connection. Time
//! ([`BootInstant`]) and randomness ([`Entropy`]) are arguments. The lease machine returns commands and events
//! ([`StoreCommand`](rules::lease::StoreCommand), [`LeaseEvent`](rules::lease::LeaseEvent)) and receives responses as
//! inputs ([`LeaseInput`](rules::lease::LeaseInput)). The `tenure` crate drives these rules against a real store;
//! `tenure-testkit` drives them through simulations.
//!
//! # Model
//!
//! Everything that can be held is a **lease**: a named thing with one holder, under a fencing [`Token`] that only
//! grows. Every lease belongs to a **session**. A process sends one heartbeat per interval for its session, which
//! extends everything the session holds.
//!
//! # Trust
//!
//! A holder reads its clock *before* it sends a heartbeat. If the store confirms the heartbeat, the holder may trust
//! its leases until that reading plus two thirds of the lease. A candidate takes over only after it has observed an
//! unchanged heartbeat count for the whole lease on its *own* clock. No wall clock is involved. If the rates of two
//! clocks differ by less than a factor of 1.5, the holder always stops before another process may start. [`Timing`]
//! has the arithmetic, and [`LeaseMachine`](rules::lease::LeaseMachine) applies it.
//!
//! | module | contents |
//! |---|---|
//! | [`rules::lease`] | sessions and leases: heartbeat, trust, expiry; campaign, hold, lose, release, transfer |
//! | [`rules::election`] | ranking and eligibility of candidates, delays before a take |
//! | [`port`] | the operations that a store implements |
//! | [`rules::work`] | queues and pools: validation, matching, order, wait reasons |
//! | [`rules::cluster`] | registered names and singletons, and their conflicts after a network split |
//! | [`rules::event`] | partitions, rebalancing, parked events and retries |
//! | [`model::Elections`] | reference implementation of sessions and elections, which every store must match |
//! | [`model::Work`] | reference implementation of queues, pools, events and schedules |
//! | [`rules::schedule`] | cron expressions, intervals, time zones, misfire and overlap policies |
//! | [`rules::soft`] | soft elections over gossip, which do not guarantee a single leader |

mod entropy;
mod instant;
pub mod model;
mod names;
pub mod port;
pub mod rules;
mod timing;
mod token;

pub use entropy::{Entropy, SplitMix};
pub use instant::BootInstant;
pub use names::{ElectionKey, Name, NameError, SessionId};
pub use timing::{DEFAULT_HEARTBEAT, DEFAULT_KILL_AFTER, DEFAULT_LEASE, Timing, TimingError};
pub use token::{EPOCH_MAX, Token, next_epoch};
