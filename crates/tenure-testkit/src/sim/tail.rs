//! The quiet after the faults: everything must come right, and stay so.

use super::invariants;
use super::network::Draw as _;
use super::node::Node;
use super::world::{Checked, World};

/// How long it may take to come right, in leases: a process that died unseen is found at the second of a leader's
/// occasional looks, each up to two and a half leases apart, on a slow clock.
const PATIENCE_LEASES: u64 = 14;

impl World {
    /// Waits until everything is right, and fails if it does not become so.
    pub(super) fn settle(&mut self) -> Checked {
        // Trust from before either was renewed by now, or is over.
        self.run_until(self.now + self.plan.lease * 3 / 4)?;
        let mut begun = self.now;
        let step = self.plan.lease / 4;
        loop {
            self.run_until(self.now + step)?;
            if self.nodes.iter().any(Node::is_restless) {
                begun = self.now;
                continue;
            }
            match invariants::settled(self) {
                Ok(()) => break,
                Err(violation) if self.now - begun > PATIENCE_LEASES * self.plan.lease => {
                    return Err(violation);
                }
                Err(_) => {}
            }
        }
        // What is right stays right, and nobody is busy about it. One day in four is enough to tell.
        if !self.rng.chance(250) {
            return Ok(());
        }
        let before: Vec<u64> = self.nodes.iter().map(|node| node.calls).collect();
        self.run_until(self.now + self.plan.lease)?;
        invariants::settled(self)?;
        invariants::the_quiet_are_quiet::check(self, &before)
    }
}
