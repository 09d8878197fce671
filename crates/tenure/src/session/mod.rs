//! The session of this process: its heartbeats and everything it holds.

pub(crate) mod driver;
