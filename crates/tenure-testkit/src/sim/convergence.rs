//! Convergence after the faults: the simulation reaches the expected state and stays in it.

use super::invariants;
use super::network::RandomExt as _;
use super::node::SimProcess;
use super::simulation::{CheckResult, ElectionSimulation};

/// Maximum time to converge, in leases. A leader detects a dead process at its second periodic read; on a slow clock up
/// to two and a half leases pass between reads.
const PATIENCE_LEASES: u64 = 14;

impl ElectionSimulation {
    /// Waits for the expected state and fails if it is not reached in time.
    pub(super) fn settle(&mut self) -> CheckResult {
        // By now, trust from before was either renewed or has expired.
        self.run_until(self.now + self.plan.lease * 3 / 4)?;
        let mut begun = self.now;
        let step = self.plan.lease / 4;
        loop {
            self.run_until(self.now + step)?;
            if self.nodes.iter().any(SimProcess::is_restless) {
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
        // Check in one run of four that the state stays as expected with few store calls.
        if !self.rng.chance(250) {
            return Ok(());
        }
        let before: Vec<u64> = self.nodes.iter().map(|node| node.calls).collect();
        self.run_until(self.now + self.plan.lease)?;
        invariants::settled(self)?;
        invariants::idle_processes_call_rarely::check(self, &before)
    }
}
