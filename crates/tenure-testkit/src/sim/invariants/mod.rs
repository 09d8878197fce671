//! What must always be true, one per file.

pub(super) mod a_released_lease_was_not_in_use;
pub(super) mod a_trusted_session_lives;
mod at_most_one_believes;
pub(super) mod guarded_writes_only_by_the_holder;
pub(super) mod no_stale_write_accepted;
mod nothing_strays;
mod someone_leads;
pub(super) mod terms_do_not_overlap;
mod the_best_leads;
mod the_book_matches;
pub(super) mod the_quiet_are_quiet;
pub(super) mod tokens_only_grow;

use super::world::{Checked, World};

/// An invariant that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The file it is in.
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

pub(super) fn broken(invariant: &'static str, what: String) -> Checked {
    Err(Violation { invariant, what })
}

/// After every step of a process.
pub(super) fn after_step(world: &World, node: usize) -> Checked {
    at_most_one_believes::check(world, node)?;
    a_trusted_session_lives::check(world, node)
}

/// Once the faults have ended and some time has passed.
pub(super) fn settled(world: &World) -> Checked {
    for (election, key) in world.keys.iter().enumerate() {
        let Some(view) = world.store.book.election(key) else { continue };
        someone_leads::check(world, election, &view)?;
        the_best_leads::check(world, election, &view)?;
        nothing_strays::check(world, election, &view)?;
        the_book_matches::check(world, election, &view)?;
    }
    Ok(())
}
