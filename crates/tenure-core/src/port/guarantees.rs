//! Guarantees of a store, and findings about its configuration.

use serde::{Deserialize, Serialize};

/// The guarantees of a store. They are displayed and tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct StoreGuarantees {
    /// Name of the store implementation.
    pub backend: &'static str,
    /// Where at most one leader is guaranteed.
    pub at_most_one: &'static str,
    /// Behaviour in a network split.
    pub netsplit: &'static str,
    /// Time until the next leader after a crash.
    pub after_crash: &'static str,
}

/// A finding about the configuration of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Finding {
    /// Name of the check.
    pub check: String,
    /// Observed value.
    pub value: String,
    /// Severity of the finding.
    pub status: FindingStatus,
    /// Meaning and remedy; empty if nothing needs to be done.
    pub advice: String,
}

/// Severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FindingStatus {
    /// As recommended.
    Ok,
    /// Works, but could be improved.
    Warning,
    /// Will cause failures.
    Error,
}

impl Finding {
    /// Creates a finding.
    pub fn new(
        check: &str,
        value: impl Into<String>,
        status: FindingStatus,
        advice: impl Into<String>,
    ) -> Self {
        Finding { check: check.into(), value: value.into(), status, advice: advice.into() }
    }
}
