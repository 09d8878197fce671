//! Cached copies of the store, shared by all readers of this server.
//!
//! A reader gets the newest snapshot and its age. One task per snapshot reads the store, so that the number of readers
//! does not change the load on the store.

pub mod elections;
pub(crate) mod events;
pub(crate) mod queues;
pub(crate) mod schedule_stats;
pub(crate) mod schedules;
