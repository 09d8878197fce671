//! At any real instant, at most one process trusts that it leads a slot.
//!
//! Trust starts only at a step of a process and expires as its clock advances, so it suffices to check the other
//! processes after every step.

use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "at_most_one_trusted_leader";

pub(super) fn check(simulation: &ElectionSimulation, node: usize) -> CheckResult {
    for (election, key) in simulation.keys.iter().enumerate() {
        let belief =
            |n: usize| simulation.nodes[n].trusts_leadership(election, key, simulation.now, simulation.bug);
        let Some((place, token)) = belief(node) else { continue };
        for other in (0..simulation.nodes.len()).filter(|&other| other != node) {
            if let Some((_, theirs)) = belief(other).filter(|(theirs, _)| *theirs == place) {
                let what =
                    format!("n{node} leads {key}/{} under {token}, n{other} under {theirs}", place.slot);
                return super::broken(NAME, what);
            }
        }
    }
    Ok(())
}
