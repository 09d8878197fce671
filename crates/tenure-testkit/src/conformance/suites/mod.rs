//! Which claims there are: a macro for each part of a store that makes one test of each.

mod claims;
mod elections;
mod events;
mod schedules;
