//! Events as the library publishes and consumes them: shared, in order, rebalanced, set aside, exactly once.

mod away;
mod draining;
mod failing;
mod flowing;
mod passing;
mod poison;
mod rebalancing;
#[path = "../claims/spy.rs"]
#[allow(dead_code)]
mod spy;
mod support;
mod torture;
mod transactional;

/// What the chaos is judged by judges here, too.
#[path = "../../examples/chaos/events"]
mod events {
    pub(crate) mod books;
    pub(crate) mod reader;
}
