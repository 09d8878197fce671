//! After the faults, every held lease is led by a live process under its token.

use tenure_core::port::ElectionView;

use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "every_held_lease_is_led";

pub(super) fn check(simulation: &ElectionSimulation, election: usize, view: &ElectionView) -> CheckResult {
    let key = &simulation.keys[election];
    for (lease, holder) in view.holders() {
        let leads = simulation.nodes.iter().any(|node| {
            node.machine.session() == Some(&holder.id)
                && node
                    .trusts_leadership(election, key, simulation.now, simulation.bug)
                    .is_some_and(|(place, token)| (place.slot, token) == (lease.slot, lease.token))
        });
        // If an election has no live candidate, no process expires the holders of its leases.
        let tended = simulation.nodes.iter().any(|node| node.stands(election));
        if !leads && tended {
            return super::broken(
                NAME,
                format!(
                    "{key}/{} {} is held by {}, but no process leads it",
                    lease.slot,
                    lease.token,
                    holder.id.short()
                ),
            );
        }
    }
    Ok(())
}
