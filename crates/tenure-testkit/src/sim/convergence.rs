//! Convergence after the faults: the expected state is reached and stays.

use super::invariants;
use super::network::RandomExt as _;
use super::node::SimProcess;
use super::simulation::{CheckResult, ElectionSimulation};

/// Maximum time to converge, in leases: a process that died unnoticed is detected at the second periodic read of a
/// leader, with up to two and a half leases between reads, on a slow clock.
const PATIENCE_LEASES: u64 = 14;

impl ElectionSimulation {
    /// Waits for the expected state and fails if it is not reached in time.
    pub(super) fn settle(&mut self) -> CheckResult {
        // Trust from before was either renewed by now or has expired.
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
        // The expected state must stay without much activity. Checking one run in four is enough.
        if !self.rng.chance(250) {
            return Ok(());
        }
        let before: Vec<u64> = self.nodes.iter().map(|node| node.calls).collect();
        self.run_until(self.now + self.plan.lease)?;
        invariants::settled(self)?;
        invariants::idle_processes_call_rarely::check(self, &before)
    }
}
