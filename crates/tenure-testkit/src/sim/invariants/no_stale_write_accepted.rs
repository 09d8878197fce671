//! After a grant has written to a fenced resource, no write of an earlier grant is accepted.

use super::super::node::SimWork;
use super::super::simulation::{CheckResult, ElectionSimulation};

const NAME: &str = "no_stale_write_accepted";

pub(in super::super) fn check(simulation: &mut ElectionSimulation, work: &SimWork) -> CheckResult {
    let of_work = |grant: &super::super::resource::LeaseGrant| {
        grant.place == work.place && grant.token == work.token && grant.session == work.session
    };
    let Some(number) = simulation.grants.iter().rposition(of_work) else {
        return super::broken(NAME, format!("a write under {}, which was never granted", work.token));
    };
    let newest = &mut simulation.newest_writer[work.place.index()];
    if number < *newest {
        let by = &simulation.grants[*newest];
        return super::broken(
            NAME,
            format!("a write under {} was accepted after one under {}", work.token, by.token),
        );
    }
    *newest = number;
    Ok(())
}
