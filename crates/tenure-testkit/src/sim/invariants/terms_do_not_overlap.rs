//! A process begins no term of an election while its work of an earlier one goes on.

use tenure_core::Token;

use super::super::node::Work;
use super::super::world::Checked;

const NAME: &str = "terms_do_not_overlap";

pub(in super::super) fn check(work: Option<&Work>, node: usize, token: Token) -> Checked {
    match work {
        Some(work) => super::broken(
            NAME,
            format!("n{node} is elected under {token} and still works under {}", work.token),
        ),
        None => Ok(()),
    }
}
