//! After the faults, the stored candidates equal the campaigns of the live processes with their current options.

use tenure_core::port::ElectionView;

use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "stored_candidates_match";

pub(super) fn check(simulation: &ElectionSimulation, election: usize, view: &ElectionView) -> CheckResult {
    let key = &simulation.keys[election];
    let standing: Vec<_> = simulation.nodes.iter().filter(|node| node.stands(election)).collect();
    for node in &standing {
        let stand = node.stands[election].as_ref();
        let stored = node.machine.session().and_then(|session| view.candidate(session));
        let same = stand
            .zip(stored)
            .is_some_and(|(s, c)| (s.priority, s.observer, &s.name) == (c.priority, c.observer, &c.name));
        if !same {
            let id = stand.map_or("?", |stand| &stand.name);
            return super::broken(
                NAME,
                format!("{key} does not have {id} with its current options: {stored:?}"),
            );
        }
    }
    if !standing.is_empty() && view.candidates.len() > standing.len() {
        let (found, expected) = (view.candidates.len(), standing.len());
        return super::broken(NAME, format!("{key} has {found} candidates, expected {expected}"));
    }
    Ok(())
}
