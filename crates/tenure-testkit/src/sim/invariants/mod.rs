//! Invariants of the simulation, one per file.

pub(super) mod a_released_lease_was_not_in_use;
pub(super) mod a_trusted_session_lives;
mod at_most_one_trusted_leader;
mod every_election_has_its_leaders;
mod every_held_lease_is_led;
pub(super) mod guarded_writes_only_by_the_holder;
pub(super) mod idle_processes_call_rarely;
pub(super) mod no_stale_write_accepted;
mod stored_candidates_match;
pub(super) mod terms_do_not_overlap;
mod the_best_leads;
pub(super) mod tokens_only_grow;

use super::simulation::{CheckResult, ElectionSimulation};

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the invariant.
    pub invariant: &'static str,
    /// Observed violation.
    pub what: String,
}

pub(super) fn broken(invariant: &'static str, what: String) -> CheckResult {
    Err(Violation { invariant, what })
}

/// Checked after every step of a process.
pub(super) fn after_step(simulation: &ElectionSimulation, node: usize) -> CheckResult {
    at_most_one_trusted_leader::check(simulation, node)?;
    a_trusted_session_lives::check(simulation, node)
}

/// Checked once the faults have ended and some time has passed.
pub(super) fn settled(simulation: &ElectionSimulation) -> CheckResult {
    for (election, key) in simulation.keys.iter().enumerate() {
        let Some(view) = simulation.store.elections.election(key) else { continue };
        every_election_has_its_leaders::check(simulation, election, &view)?;
        the_best_leads::check(simulation, election, &view)?;
        every_held_lease_is_led::check(simulation, election, &view)?;
        stored_candidates_match::check(simulation, election, &view)?;
    }
    Ok(())
}
