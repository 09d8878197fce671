//! Soft leadership: who leads where nothing but gossip is shared, and what that does not promise.
//!
//! **States.** A candidate *stands* until nothing has been in doubt for a hold-down, is then *ready*, and *leads* when it ranks first
//! among those that are ready, has been ready for long enough that all have heard so, and nobody else says that it leads. Its
//! [`Stance`] is told to the others.
//!
//! **Who owns the truth.** Nobody does. Each process decides by what it has heard, on its own clock. So there is no token, and in a
//! netsplit each side has a leader; after it heals, the worse-ranked one stops as soon as it hears of the better one. How long that
//! takes is measured by the simulator (`tenure-sim soft`) and the fault rig.
//!
//! **Who is alive.** Whoever's beat was seen to move within [`Pace::patience`], directly or through others ([`Pulses`]).
//!
//! **What is avoided nevertheless.** While the network holds, nobody leads beside somebody else: a better candidate that appears
//! waits until the leader has heard of it and stopped; who leaves says so, and is followed at once; a process that was asleep
//! believes nothing that it believed before.

mod candidate;
mod pace;
mod pulse;
mod rank;
#[cfg(test)]
mod tests;

pub use candidate::{SoftCandidate, SoftSight};
pub use pace::{Pace, PaceError};
pub use pulse::Pulses;
pub use rank::{Rank, Rival, Stance, leader};
