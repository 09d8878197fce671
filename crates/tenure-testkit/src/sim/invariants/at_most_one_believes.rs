//! At any real instant, at most one process believes that it leads a slot.
//!
//! Beliefs begin only at a step of a process, and end by themselves as its clock goes on; so it is enough to look at the
//! others whenever one has made a step.

use super::super::world::{Checked, World};

const NAME: &str = "at_most_one_believes";

pub(super) fn check(world: &World, node: usize) -> Checked {
    for (election, key) in world.keys.iter().enumerate() {
        let belief = |n: usize| world.nodes[n].believes(election, key, world.now, world.mistake);
        let Some((place, token)) = belief(node) else { continue };
        for other in (0..world.nodes.len()).filter(|&other| other != node) {
            if let Some((_, theirs)) = belief(other).filter(|(theirs, _)| *theirs == place) {
                let what =
                    format!("n{node} leads {key}/{} under {token}, n{other} under {theirs}", place.slot);
                return super::broken(NAME, what);
            }
        }
    }
    Ok(())
}
