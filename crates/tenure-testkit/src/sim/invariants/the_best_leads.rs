//! After the faults, no leader has a lower priority than an eligible candidate that does not lead, unless an operator
//! chose it.

use tenure_core::port::ElectionView;

use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "the_best_leads";

pub(super) fn check(simulation: &ElectionSimulation, election: usize, view: &ElectionView) -> CheckResult {
    let key = &simulation.keys[election];
    let holds = |id| view.holders().find(|(_, holder)| Some(&holder.id) == id).map(|(lease, _)| lease);
    let priority =
        |n: &super::super::node::SimProcess| n.stands[election].as_ref().map(|stand| stand.priority);
    let waiting = simulation
        .nodes
        .iter()
        .filter(|node| node.may_lead(election) && holds(node.machine.session()).is_none());
    let Some(best) = waiting.filter_map(priority).max() else { return Ok(()) };
    let leaders = simulation.nodes.iter().filter(|node| {
        holds(node.machine.session()).is_some_and(|lease| !lease.start_reason.is_operator_choice())
    });
    match leaders.filter_map(priority).min() {
        Some(worst) if worst < best => super::broken(
            NAME,
            format!("{key} is led at priority {worst}; a candidate with priority {best} waits"),
        ),
        _ => Ok(()),
    }
}
