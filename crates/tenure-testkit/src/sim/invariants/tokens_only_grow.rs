//! Every grant of a slot has a greater token than all before it, over promotions too.

use tenure_core::Token;

use super::super::resource::{Grant, Place};
use super::super::world::Checked;

const NAME: &str = "tokens_only_grow";

pub(in super::super) fn check(grants: &[Grant], place: Place, token: Token) -> Checked {
    match grants.iter().find(|grant| grant.place == place && grant.token >= token) {
        Some(earlier) => super::broken(NAME, format!("{token} was granted after {}", earlier.token)),
        None => Ok(()),
    }
}
