//! At the moment a guarded write commits, its session holds the lease under its token.

use super::super::node::Work;
use super::super::world::{Checked, World};

const NAME: &str = "guarded_writes_only_by_the_holder";

pub(in super::super) fn check(world: &World, work: &Work) -> Checked {
    let key = &world.keys[work.place.election];
    if world.store.holds(key, work.place.slot, work.token, &work.session) {
        return Ok(());
    }
    super::broken(NAME, format!("a write of {} under {} was committed", work.session.short(), work.token))
}
