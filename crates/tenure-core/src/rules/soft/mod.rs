//! Soft elections over gossip, which do not guarantee a single leader.
//!
//! **States.** A process is a *candidate* until it has observed nothing uncertain for a hold-down period. It is then
//! *ready*. It *leads* when it ranks first among the ready processes, has been ready long enough for all members to
//! know it, and no other process reports that it leads. It publishes its [`SoftCandidateState`].
//!
//! **No source of truth.** Each process decides from what it received, on its own clock. There is no token, and in a
//! network split each side has a leader. After the split heals, the lower-ranked leader stops as soon as it observes
//! the better one. The simulator (`tenure-sim soft`) and the fault tests measure how long that takes.
//!
//! **Liveness.** A member is live if its heartbeat advanced within [`GossipTiming::silence_limit`], directly or
//! through other members ([`GossipHeartbeatTracker`]).
//!
//! **Avoided cases.** While the network is intact there is at most one leader: a better candidate waits until the
//! leader has received its state and stopped. A leaving process announces its departure, and the next one leads at
//! once. A process that was suspended discards its earlier conclusions.

mod candidate;
mod heartbeat;
mod rank;
#[cfg(test)]
mod tests;
mod timing;

pub use candidate::{SoftCandidate, SoftObservation};
pub use heartbeat::GossipHeartbeatTracker;
pub use rank::{Rank, Rival, SoftCandidateState, leader};
pub use timing::{GossipTiming, GossipTimingError};
