//! What the processes of this stage are told.

use serde::{Deserialize, Serialize};

use crate::process;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// So many writers at once.
    Writes(usize),
    Reads,
}

impl process::Role for Role {
    const WORD: &'static str = "events-process";
}

/// What a process is told to do.
pub(crate) type Plan = process::Plan<Role>;
