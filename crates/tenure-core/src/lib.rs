//! The rules of Tenure, and nothing else.
//!
//! This crate decides; it never acts. It reads no clock, draws no randomness, opens no socket and knows no
//! database: time ([`Moment`]) and randomness ([`Entropy`]) are arguments, what to do leaves as values
//! ([`lease::Command`], [`lease::Event`]), and what came of it returns as values ([`lease::Input`]). The `tenure`
//! crate drives it against a real store; `tenure-testkit` drives it through millions of simulated days.
//!
//! # The one idea
//!
//! Everything is a **lease**: a named thing with one holder, under a fencing [`Token`] that only ever grows. Every
//! lease hangs on a **session**: a process says "I live" once per beat, in one row, for all that it holds.
//!
//! # The rule of trust
//!
//! A holder reads its clock *before* it sends a beat. If the store says that the beat counted, everything that the
//! session holds is trusted until that reading plus two thirds of the lease. A candidate takes over only after it has
//! watched the beat stand still for the whole lease on its *own* clock. No wall clock takes part, and for clocks whose
//! rates differ by less than 1.5×, the holder always stops believing before anybody else may start. The arithmetic
//! is in [`Timing`]; the machine that applies it is [`lease::Machine`].
//!
//! | module | what it decides |
//! |---|---|
//! | [`lease`] | sessions and leases: beat, doubt, expire; campaign, hold, lose, release, hand over |
//! | [`election`] | who ranks before whom, who may lead, who waits how long |
//! | [`port`] | what a store must be able to do: two small traits |
//! | [`claim`] | work: what makes sense, who fits, whose turn it is, why not yet |
//! | [`cluster`] | names and singletons: who has which, who runs what, what a netsplit leaves to settle |
//! | [`event`] | events: into which slot, who reads which, what becomes of a failure |
//! | [`book`] | the same, as a pure value: the reference store that every other one must agree with |
//! | [`ledger`] | likewise for tasks, queues, workers and pools |
//! | [`schedule`] | when something happens: cron, intervals, zones, what was missed |
//! | [`soft`] | who leads where nothing but gossip is shared, and what that does not promise |

pub mod book;
pub mod cabinet;
pub mod claim;
pub mod cluster;
pub mod election;
mod entropy;
pub mod event;
pub mod lease;
pub mod ledger;
mod names;
pub mod port;
pub mod schedule;
pub mod soft;
mod time;
mod timing;
mod token;

pub use entropy::{Entropy, SplitMix};
pub use names::{ElectionKey, Name, NameError, SessionId};
pub use time::Moment;
pub use timing::{DEFAULT_HEARTBEAT, DEFAULT_KILL_AFTER, DEFAULT_LEASE, Timing, TimingError};
pub use token::{EPOCH_MAX, Token, next_epoch};
