//! A process releases a lease only after all its work has ended.

use tenure_core::rules::lease::StoreCommand;

use super::super::node::SimWork;
use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "a_released_lease_was_not_in_use";

pub(in super::super) fn check(
    simulation: &ElectionSimulation,
    node: usize,
    command: &StoreCommand,
) -> CheckResult {
    let works = || simulation.nodes[node].works.iter().flatten();
    let in_use = match command {
        StoreCommand::Release(release) => {
            let of_it = |work: &&SimWork| {
                simulation.keys[work.place.election] == release.election
                    && work.place.slot == release.slot
                    && (work.token, &work.session) == (release.token, &release.session)
            };
            works().find(of_it)
        }
        StoreCommand::End(session) => works().find(|work| work.session == *session),
        _ => None,
    };
    match in_use {
        Some(work) => {
            super::broken(NAME, format!("n{node} releases {} while its work still runs", work.token))
        }
        None => Ok(()),
    }
}
