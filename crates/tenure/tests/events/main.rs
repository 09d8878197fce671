//! Events through the library: batched, ordered, rebalanced, parked, exactly once.

mod delivery;
mod draining;
mod failing;
#[path = "../queue/instrumented_store.rs"]
#[allow(dead_code)]
mod instrumented_store;
mod poison;
mod rebalancing;
mod store_failures;
mod support;
mod torture;
mod transactional;
mod transient_errors;

/// The oracle of the chaos runs is used here, too.
#[path = "../../examples/chaos/events"]
mod events {
    pub(crate) mod chains;
    pub(crate) mod reader;
}
