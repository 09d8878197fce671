//! Every grant of a slot has a greater token than all before it, also across promotions.

use tenure_core::Token;

use super::super::resource::{LeaseGrant, SlotId};
use super::super::simulation::CheckResult;

const NAME: &str = "tokens_only_grow";

pub(in super::super) fn check(grants: &[LeaseGrant], place: SlotId, token: Token) -> CheckResult {
    match grants.iter().find(|grant| grant.place == place && grant.token >= token) {
        Some(earlier) => super::broken(NAME, format!("{token} was granted after {}", earlier.token)),
        None => Ok(()),
    }
}
