//! Calls of the user's callbacks. A panic in one is contained: it is logged and counted, and the task that calls goes on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::metrics;

/// Calls the callback of this name. `None`: it panicked.
pub(crate) fn contained<T>(name: &'static str, call: impl FnOnce() -> T) -> Option<T> {
    // What the callback captured may be left half-changed. That is between the callback and its next call.
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| report(name, &*panic)).ok()
}

/// Logs and counts a panic of the callback of this name.
pub(crate) fn report(name: &'static str, panic: &(dyn Any + Send)) {
    metrics::callback_panicked(name);
    tracing::error!(callback = name, "callback {}", panic_message(panic));
}

/// What a panic says.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.as_deref().unwrap_or("no message"))
}
