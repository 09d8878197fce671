//! Sessions and leases: the state machine that drives every store.
//!
//! **States.** A session is *closed*, *opening*, *live*, *ending* or *ended*. A live session is trusted until its
//! deadline passes without a confirmed heartbeat. In each election the process follows, takes, leads, ends its work,
//! or releases (see the private `CampaignPhase`).
//!
//! **Source of truth.** Only the store decides about leases. The machine relies on the last response of the store for
//! as long as it trusts its session.
//!
//! **Store outages.** Heartbeats fail, the deadline passes, and everything led is lost ([`LeaseEvent::Lost`]). The
//! machine keeps retrying. When the store is available again, the machine releases what the session still holds,
//! because its work was stopped, and campaigns again under a greater token.
//!
//! **Usage.** Pass a [`LeaseInput`] to [`LeaseMachine::handle`] with the time and a source of randomness. Then drain
//! [`LeaseMachine::poll_command`] and [`LeaseMachine::poll_event`]. Call it again with [`LeaseInput::Tick`] at
//! [`LeaseMachine::poll_timeout`].

mod campaign;
mod command;
mod follower;
mod heartbeat_table;
mod heartbeat_tracker;
mod machine;
mod observe;
mod phase;
mod proxy_candidate;
mod session;
#[cfg(test)]
mod tests;
mod timers;

pub use command::{
    CandidateOptions, CommandId, LeaseEvent, LeaseInput, LossReason, StoreCommand, StoreResponse,
};
pub(crate) use heartbeat_tracker::HeartbeatTracker;
pub use machine::{LeaseMachine, LeaseMachineConfig};
pub use proxy_candidate::{CandidateDecision, Ineligibility, ProxyCandidate};
pub use timers::Timer;
