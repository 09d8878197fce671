//! After the faults, the candidates in the store are the candidacies of the live processes, as they stand now.

use tenure_core::port::ElectionView;

use super::super::world::{Checked, World};

const NAME: &str = "the_book_matches";

pub(super) fn check(world: &World, election: usize, view: &ElectionView) -> Checked {
    let key = &world.keys[election];
    let standing: Vec<_> = world.nodes.iter().filter(|node| node.stands(election)).collect();
    for node in &standing {
        let stand = node.stands[election].as_ref();
        let in_book = node.machine.session().and_then(|session| view.candidate(session));
        let same = stand
            .zip(in_book)
            .is_some_and(|(s, c)| (s.priority, s.observer, &s.id) == (c.priority, c.observer, &c.id));
        if !same {
            let id = stand.map_or("?", |stand| &stand.id);
            return super::broken(NAME, format!("{key} has not {id} as it stands: {in_book:?}"));
        }
    }
    if !standing.is_empty() && view.candidates.len() > standing.len() {
        let (found, wanted) = (view.candidates.len(), standing.len());
        return super::broken(NAME, format!("{key} has {found} candidates where {wanted} stand"));
    }
    Ok(())
}
