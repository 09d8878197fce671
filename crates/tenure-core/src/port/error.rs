//! Errors of store calls.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A failed store call. Unless the kind says otherwise, the call may or may not have been applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// What failed, on which object, why, and what to do next.
    pub message: String,
}

impl StoreError {
    /// Creates an error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        StoreError { kind, message: message.into() }
    }
}

/// Kind of a store error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store URL is invalid: unknown scheme or missing part.
    Address,
    /// The store cannot be reached. Transient.
    Unreachable,
    /// The store did not respond in time. Transient.
    Timeout,
    /// The credentials or permissions do not suffice.
    Denied,
    /// The tables are missing. Run `tenure migrate up`.
    SchemaMissing,
    /// The schema has another version than this program needs.
    SchemaVersion,
    /// The store cannot be used safely as configured, for example on a network file system or a read-only server.
    Misconfigured,
    /// The store lacks this capability, for example it has elections but no queues. Permanent; nothing was changed.
    Unsupported,
    /// The store is full, read-only or broken at the moment. Transient.
    Unavailable,
    /// The request is invalid for this store, for example it names an unknown election or candidate.
    Request,
    /// Any other error.
    Other,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::Address => "invalid address",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Timeout => "timed out",
            ErrorKind::Denied => "access denied",
            ErrorKind::SchemaMissing => "schema missing",
            ErrorKind::SchemaVersion => "schema version",
            ErrorKind::Misconfigured => "misconfigured store",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Request => "invalid request",
            ErrorKind::Other => "error",
        })
    }
}
