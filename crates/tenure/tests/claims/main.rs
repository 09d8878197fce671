//! Claims as the library makes them: shared, waited for, routed, worked on.

mod direct;
mod exclusive;
mod link;
#[path = "../real/mod.rs"]
mod on_stores;
mod pool;
mod real;
mod spy;
mod support;
mod worker;
