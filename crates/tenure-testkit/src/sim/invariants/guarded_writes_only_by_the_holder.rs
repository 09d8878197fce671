//! When a guarded write commits, its session holds the lease under its token.

use super::super::node::SimWork;
use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "guarded_writes_only_by_the_holder";

pub(in super::super) fn check(simulation: &ElectionSimulation, work: &SimWork) -> CheckResult {
    let key = &simulation.keys[work.place.election];
    if simulation.store.holds(key, work.place.slot, work.token, &work.session) {
        return Ok(());
    }
    super::broken(NAME, format!("a write of {} under {} was committed", work.session.short(), work.token))
}
