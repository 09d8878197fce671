//! Schedules through the library: on time, once, by one process, under faults.

#[path = "../../examples/chaos/schedules/clock.rs"]
#[allow(dead_code)]
mod clock;
mod faults;
mod firing;
/// The oracle of the chaos runs, and its own tests.
#[path = "../../examples/chaos/schedules/history.rs"]
#[allow(dead_code)]
mod history;
#[path = "../queue/instrumented_store.rs"]
#[allow(dead_code)]
mod instrumented_store;
mod many;
mod months;
#[path = "../../examples/chaos/schedules/overlap.rs"]
#[allow(dead_code)]
mod overlap;
mod real;
mod support;
mod tick_handlers;
mod torture;

/// Error with which the oracle fails.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;
