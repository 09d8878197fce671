//! Soft leadership over gossip: the rules are [`tenure_core::soft`], driven here.
//!
//! A candidate's stance is an entry of its member, so that all see who stands, who is ready and who leads. Its task looks whenever
//! the roster was looked at, which happens at least once a round, and its trust follows from *that*: if gossip hangs, or the process
//! is stopped, trust runs out by itself.

mod elector;
mod leadership;
mod view;

pub(super) use self::elector::Withdraw;
pub use self::elector::{SoftElector, SoftElectorBuilder};
pub use self::leadership::{SoftLeadership, SoftOver};
pub(super) use self::view::elections;
pub use self::view::{SoftElectionView, SoftStanding};
