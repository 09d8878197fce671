//! After the faults, a process calls the store a few times per beat, and not in a loop.

use super::super::world::{Checked, World};

const NAME: &str = "the_quiet_are_quiet";

/// One beat, two and a half polls, and room for a tend or an ask.
const CALLS_PER_BEAT: u64 = 5;

/// What a last hand-over may add.
const CALLS_MORE: u64 = 20;

pub(in super::super) fn check(world: &World, before: &[u64]) -> Checked {
    let timing = &world.plan.timing;
    // A restart in the meantime begins to count anew; a fast clock beats more often.
    let beats = timing.lease().as_nanos().div_ceil(timing.beat().as_nanos()) as u64 + 1;
    for (number, (node, before)) in world.nodes.iter().zip(before).enumerate() {
        let calls = node.calls.saturating_sub(*before);
        if calls > beats * CALLS_PER_BEAT + CALLS_MORE {
            return super::broken(NAME, format!("n{number} made {calls} calls in one lease"));
        }
    }
    Ok(())
}
