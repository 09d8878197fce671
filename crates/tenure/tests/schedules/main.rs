//! Schedules as the library fires them: on time, once, by one, whatever happens.

#[path = "../../examples/chaos/schedules/apart.rs"]
#[allow(dead_code)]
mod apart;
mod bad_days;
#[path = "../../examples/chaos/schedules/clock.rs"]
#[allow(dead_code)]
mod clock;
mod closures;
mod firing;
/// What the chaos is judged by, and its own tests.
#[path = "../../examples/chaos/schedules/history.rs"]
#[allow(dead_code)]
mod history;
mod many;
mod months;
mod real;
#[path = "../claims/spy.rs"]
#[allow(dead_code)]
mod spy;
mod support;
mod torture;

/// Why the oracle could not judge.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;
