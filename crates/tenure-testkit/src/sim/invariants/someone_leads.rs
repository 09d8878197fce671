//! After the faults, every election has as many leaders as it has slots and candidates that may lead.

use tenure_core::port::ElectionView;

use super::super::world::{Checked, World};

const NAME: &str = "someone_leads";

pub(super) fn check(world: &World, election: usize, view: &ElectionView) -> Checked {
    let key = &world.keys[election];
    let nodes = || world.nodes.iter();
    let eligible = nodes().filter(|node| node.may_lead(election)).count();
    let leaders = nodes().filter(|n| n.believes(election, key, world.now, world.mistake).is_some()).count();
    let wanted = eligible.min(view.slots as usize);
    if leaders == wanted {
        return Ok(());
    }
    super::broken(NAME, format!("{key} has {leaders} leaders where {wanted} could lead"))
}
