//! What a store promises, and what an examination of it finds.

use serde::{Deserialize, Serialize};

/// What a backend promises; printed, tested, never overstated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Promises {
    /// The backend's name.
    pub backend: &'static str,
    /// Where at most one leader is promised.
    pub at_most_one: &'static str,
    /// What happens in a netsplit.
    pub netsplit: &'static str,
    /// How soon the next leader comes after a crash.
    pub after_crash: &'static str,
}

/// Something that an examination found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Finding {
    /// What was looked at.
    pub check: String,
    /// How it is.
    pub value: String,
    /// What to think of it.
    pub verdict: Verdict,
    /// What it means and what to do; empty if nothing.
    pub advice: String,
}

/// What to think of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, and could be better.
    Fair,
    /// Will hurt.
    Bad,
}

impl Finding {
    /// A finding.
    pub fn new(check: &str, value: impl Into<String>, verdict: Verdict, advice: impl Into<String>) -> Self {
        Finding { check: check.into(), value: value.into(), verdict, advice: advice.into() }
    }
}
