//! A process starts no term of an election while its work of an earlier term still runs.

use tenure_core::Token;

use super::super::node::SimWork;
use super::super::simulation::CheckResult;

const NAME: &str = "terms_do_not_overlap";

pub(in super::super) fn check(work: Option<&SimWork>, node: usize, token: Token) -> CheckResult {
    match work {
        Some(work) => super::broken(
            NAME,
            format!("n{node} is elected under {token} and still works under {}", work.token),
        ),
        None => Ok(()),
    }
}
