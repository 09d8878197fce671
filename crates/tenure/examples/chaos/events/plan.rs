//! What the processes of this stage are told.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::crew::Job;

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// So many writers at once.
    Writes(usize),
    Reads,
}

/// What a process is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EventPlan {
    pub(crate) hand: usize,
    pub(crate) role: Role,
    pub(crate) url: String,
    pub(crate) lease_ms: u64,
    pub(crate) log: PathBuf,
}

impl Job for EventPlan {
    const ROLE: &'static str = "events-process";

    fn log_to(&mut self, path: PathBuf) {
        self.log = path;
    }
}
