//! Roles of the processes of the event scenarios.

use serde::{Deserialize, Serialize};

use crate::process;

/// Role of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// This number of concurrent writers.
    Writes(usize),
    Reads,
}

impl process::Role for Role {
    const ARGUMENT: &'static str = "events-process";
}

/// Instructions of a process.
pub(crate) type Plan = process::Plan<Role>;
