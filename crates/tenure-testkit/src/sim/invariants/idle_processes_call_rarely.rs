//! After the faults, a process calls the store a few times per heartbeat and not in a loop.

use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "idle_processes_call_rarely";

/// Maximum calls per heartbeat interval: one heartbeat, two and a half reads, and a margin for a leader's read or a
/// request.
const CALLS_PER_BEAT: u64 = 5;

/// Additional calls of a last leader change.
const CALLS_MORE: u64 = 20;

pub(in super::super) fn check(simulation: &ElectionSimulation, before: &[u64]) -> CheckResult {
    let timing = &simulation.plan.timing;
    // A restart meanwhile resets the count. A fast clock sends more heartbeats.
    let beats = timing.lease().as_nanos().div_ceil(timing.heartbeat_interval().as_nanos()) as u64 + 1;
    for (number, (node, before)) in simulation.nodes.iter().zip(before).enumerate() {
        let calls = node.calls.saturating_sub(*before);
        if calls > beats * CALLS_PER_BEAT + CALLS_MORE {
            return super::broken(NAME, format!("n{number} made {calls} calls in one lease"));
        }
    }
    Ok(())
}
