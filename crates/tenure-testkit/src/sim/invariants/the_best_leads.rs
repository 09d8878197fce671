//! After the faults, no leader has a lower priority than somebody who could lead and does not, unless an operator put it
//! there.

use tenure_core::port::ElectionView;

use super::super::world::{Checked, World};

const NAME: &str = "the_best_leads";

pub(super) fn check(world: &World, election: usize, view: &ElectionView) -> Checked {
    let key = &world.keys[election];
    let holds = |id| view.holders().find(|(_, holder)| Some(&holder.id) == id).map(|(lease, _)| lease);
    let priority = |n: &super::super::node::Node| n.stands[election].as_ref().map(|stand| stand.priority);
    let waiting =
        world.nodes.iter().filter(|node| node.may_lead(election) && holds(node.machine.session()).is_none());
    let Some(best) = waiting.filter_map(priority).max() else { return Ok(()) };
    let leaders = world
        .nodes
        .iter()
        .filter(|node| holds(node.machine.session()).is_some_and(|lease| !lease.via.is_pinned()));
    match leaders.filter_map(priority).min() {
        Some(worst) if worst < best => {
            super::broken(NAME, format!("{key} is led at priority {worst}; {best} waits"))
        }
        _ => Ok(()),
    }
}
