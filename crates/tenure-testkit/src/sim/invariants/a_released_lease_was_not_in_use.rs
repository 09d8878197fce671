//! A process gives a lease back only when nothing of its work runs any more.

use tenure_core::lease::Command;

use super::super::node::Work;
use super::super::world::{Checked, World};

const NAME: &str = "a_released_lease_was_not_in_use";

pub(in super::super) fn check(world: &World, node: usize, command: &Command) -> Checked {
    let works = || world.nodes[node].works.iter().flatten();
    let in_use = match command {
        Command::Release(release) => {
            let of_it = |work: &&Work| {
                world.keys[work.place.election] == release.election
                    && work.place.slot == release.slot
                    && (work.token, &work.session) == (release.token, &release.session)
            };
            works().find(of_it)
        }
        Command::End(session) => works().find(|work| work.session == *session),
        _ => None,
    };
    match in_use {
        Some(work) => super::broken(NAME, format!("n{node} gives {} back and works under it", work.token)),
        None => Ok(()),
    }
}
