//! Why a store did not answer as hoped.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why the store did not answer as hoped. Whether the call happened is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    /// What kind of trouble.
    pub kind: Trouble,
    /// What failed, on what, and what to do.
    pub message: String,
}

impl StoreError {
    /// An error of this kind.
    pub fn new(kind: Trouble, message: impl Into<String>) -> Self {
        StoreError { kind, message: message.into() }
    }
}

/// Kinds of trouble with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Trouble {
    /// The address makes no sense: unknown scheme, missing part.
    Address,
    /// Nobody answers there. May pass.
    Unreachable,
    /// No answer in time. May pass.
    Timeout,
    /// The credentials or rights do not suffice.
    Denied,
    /// The tables are missing: run `tenure migrate up`.
    SchemaMissing,
    /// The tables are of another version than this program's.
    SchemaVersion,
    /// The store can not be used safely as it is: network file system, read-only server.
    Unfit,
    /// The store does not have this capability: it elects leaders and keeps no tasks, say. Does not pass; nothing was done.
    Unsupported,
    /// The store is full, read-only or broken for now. May pass.
    Unavailable,
    /// What was asked makes no sense to the store: no such election or candidate.
    Request,
    /// Anything else.
    Other,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trouble::Address => "bad address",
            Trouble::Unreachable => "unreachable",
            Trouble::Timeout => "timed out",
            Trouble::Denied => "access denied",
            Trouble::SchemaMissing => "schema missing",
            Trouble::SchemaVersion => "schema version",
            Trouble::Unfit => "unfit store",
            Trouble::Unsupported => "unsupported",
            Trouble::Unavailable => "unavailable",
            Trouble::Request => "bad request",
            Trouble::Other => "error",
        })
    }
}
