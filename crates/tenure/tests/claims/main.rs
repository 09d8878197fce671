//! Claims as the library makes them: shared, waited for, routed, worked on.

mod direct;
mod exclusive;
mod link;
mod pool;
mod real;
mod spy;
mod support;
mod worker;
