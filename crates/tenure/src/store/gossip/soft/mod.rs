//! Soft elections over gossip. [`tenure_core::rules::soft`] defines the rules; this module drives them.
//!
//! A candidate publishes its state as an entry of its member, so all members see the candidates, the ready ones and the
//! leader. The task of a candidate evaluates the roster after each roster update, at least once per round, and extends
//! its trust from the time of that update. If gossip hangs or the process is paused, the trust expires by itself.

mod elector;
mod leadership;
mod view;

pub(super) use self::elector::SoftWithdrawHandle;
pub use self::elector::{SoftElector, SoftElectorBuilder};
pub use self::leadership::{SoftLeadership, SoftTermEnd};
pub(super) use self::view::elections;
pub use self::view::{SoftCandidateView, SoftElectionView};
