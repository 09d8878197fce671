//! Calls of user callbacks. A panic in a callback is contained: it is logged and counted, and the calling task
//! continues.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::metrics;

/// Calls the callback with this name. Returns `None` if it panicked.
pub(crate) fn contained<T>(name: &'static str, call: impl FnOnce() -> T) -> Option<T> {
    // A panic may leave the captured state of the callback inconsistent; only the callback itself uses that
    // state.
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| report(name, &*panic)).ok()
}

/// Logs and counts a panic of the callback with this name.
pub(crate) fn report(name: &'static str, panic: &(dyn Any + Send)) {
    metrics::callback_panicked(name);
    tracing::error!(callback = name, "callback {}", panic_message(panic));
}

/// Text of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.as_deref().unwrap_or("no message"))
}
