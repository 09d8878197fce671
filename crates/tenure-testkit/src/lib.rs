//! Test your leader code against the real thing.
//!
//! [`rig`] gives a test real PostgreSQL servers, networks, clocks and disks of its own, and the faults to put them
//! through.

pub mod rig;
