//! Claims as the library makes them: shared, waited for, routed, worked on.

mod direct;
mod exclusive;
mod link;
mod pool;
mod spy;
#[cfg(feature = "sqlite")]
mod sqlite;
mod support;
mod worker;
