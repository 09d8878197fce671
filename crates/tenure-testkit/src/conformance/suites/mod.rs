//! Macros that create one test per conformance function, one macro per part of a store.

mod claims;
mod elections;
mod events;
mod schedules;
