//! After the faults, every lease that is held is led by a live process under that very token.

use tenure_core::port::ElectionView;

use super::super::world::{Checked, World};

const NAME: &str = "nothing_strays";

pub(super) fn check(world: &World, election: usize, view: &ElectionView) -> Checked {
    let key = &world.keys[election];
    for (lease, holder) in view.holders() {
        let leads = world.nodes.iter().any(|node| {
            node.machine.session() == Some(&holder.id)
                && node
                    .believes(election, key, world.now, world.mistake)
                    .is_some_and(|(place, token)| (place.slot, token) == (lease.slot, lease.token))
        });
        // An election in which no living process stands is nobody's to tidy up.
        let tended = world.nodes.iter().any(|node| node.stands(election));
        if !leads && tended {
            return super::broken(
                NAME,
                format!(
                    "{key}/{} {} is held by {}, led by nobody",
                    lease.slot,
                    lease.token,
                    holder.id.short()
                ),
            );
        }
    }
    Ok(())
}
