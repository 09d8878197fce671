//! After the faults, every election has as many leaders as its slots and eligible candidates allow.

use tenure_core::port::ElectionView;

use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "every_election_has_its_leaders";

pub(super) fn check(simulation: &ElectionSimulation, election: usize, view: &ElectionView) -> CheckResult {
    let key = &simulation.keys[election];
    let nodes = || simulation.nodes.iter();
    let eligible = nodes().filter(|node| node.may_lead(election)).count();
    let leaders = nodes()
        .filter(|n| n.trusts_leadership(election, key, simulation.now, simulation.bug).is_some())
        .count();
    let expected = eligible.min(view.slots as usize);
    if leaders == expected {
        return Ok(());
    }
    super::broken(NAME, format!("{key} has {leaders} leaders, expected {expected}"))
}
