//! Claims as the library makes them: shared, waited for, routed, worked on.

mod direct;
mod exclusive;
mod pool;
mod spy;
mod support;
mod worker;
