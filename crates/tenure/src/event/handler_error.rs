//! Results and errors of event handlers.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tenure_core::port::{ErrorKind, StoreError};

use super::transient_error;

/// Error of an event handler. Its kind decides whether and when the events are retried.
///
/// Any error or text is a failure that is retried, so `?` and `Err("…")` work. An error that is unrelated to
/// the events, such as a deadlock or a lost connection, is recognized as transient anywhere in the chain of
/// sources. The constructors give other outcomes.
///
/// ```
/// use tenure::HandlerError;
///
/// fn amount(text: &str) -> Result<u32, HandlerError> {
///     if text.is_empty() {
///         return Err(HandlerError::permanent("the amount is missing"));
///     }
///     Ok(text.parse()?) // retried
/// }
/// assert!(amount("").is_err() && amount("x").is_err() && amount("7").is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerError {
    pub(crate) kind: HandlerErrorKind,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerErrorKind {
    Retry,
    RetryIn(Duration),
    Permanent,
    Transient,
    /// The handler did not return in time, and its future was dropped.
    Late,
}

impl HandlerError {
    /// A failed attempt. The event is retried after the backoff of the group if attempts are left.
    pub fn fail(message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: HandlerErrorKind::Retry, message: message.to_string() }
    }

    /// A failure that no retry can fix: the event becomes a dead letter, and its key is parked.
    pub fn permanent(message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: HandlerErrorKind::Permanent, message: message.to_string() }
    }

    /// A failed attempt. The event is retried after this delay if attempts are left.
    pub fn retry_in(delay: Duration, message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: HandlerErrorKind::RetryIn(delay), message: message.to_string() }
    }

    /// A failure unrelated to the events: a dependency is unavailable. The events are retried in order and
    /// without limit, and the attempt does not count. At first the whole batch is retried and later events
    /// wait. If other events succeed meanwhile, the failed event is parked, so that it blocks only its own key.
    pub fn transient(message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: HandlerErrorKind::Transient, message: message.to_string() }
    }

    pub(super) fn late(message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: HandlerErrorKind::Late, message: message.to_string() }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) fn is_late(&self) -> bool {
        self.kind == HandlerErrorKind::Late
    }

    /// Whether the failure is unrelated to the events, so that they are retried without counting an attempt.
    pub fn is_transient(&self) -> bool {
        self.kind == HandlerErrorKind::Transient
    }

    fn of(error: &(dyn Error + 'static)) -> HandlerError {
        let (mut message, mut transient) = (error.to_string(), is_transient(error));
        let mut source = error.source();
        while let Some(cause) = source {
            transient |= is_transient(cause);
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        if transient { HandlerError::transient(message) } else { HandlerError::fail(message) }
    }
}

impl<E: Error + 'static> From<E> for HandlerError {
    fn from(error: E) -> HandlerError {
        HandlerError::of(&error)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Whether an error concerns the availability of the store and not the content of the call.
fn is_transient(error: &(dyn Error + 'static)) -> bool {
    match error.downcast_ref::<StoreError>() {
        Some(error) => is_transient_store_error(error),
        None => transient_error::is_transient_database_error(error),
    }
}

fn is_transient_store_error(error: &StoreError) -> bool {
    matches!(error.kind, ErrorKind::Unreachable | ErrorKind::Timeout | ErrorKind::Unavailable)
}

/// Conversion of a failure into a handler error: a [`HandlerError`], any error, or a text.
pub trait IntoHandlerError {
    /// Returns the handler error.
    fn into_error(self) -> HandlerError;
}

impl IntoHandlerError for HandlerError {
    fn into_error(self) -> HandlerError {
        self
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> IntoHandlerError for E {
    fn into_error(self) -> HandlerError {
        HandlerError::of(&*self.into())
    }
}

/// Conversion of a handler's return value: nothing, or a `Result`.
pub trait IntoHandlerResult {
    /// Returns the result.
    fn into_handler_result(self) -> Result<(), HandlerError>;
}

impl IntoHandlerResult for () {
    fn into_handler_result(self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<T, E: IntoHandlerError> IntoHandlerResult for Result<T, E> {
    fn into_handler_result(self) -> Result<(), HandlerError> {
        self.map(drop).map_err(IntoHandlerError::into_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_return_values_are_converted() {
        assert_eq!(().into_handler_result(), Ok(()));
        assert_eq!(Ok::<_, String>(7).into_handler_result(), Ok(()));
        assert_eq!(Err::<(), _>("no").into_handler_result(), Err(HandlerError::fail("no")));
        assert_eq!(
            Err::<(), _>(HandlerError::permanent("no")).into_handler_result().unwrap_err().kind,
            HandlerErrorKind::Permanent
        );
        let boxed: Box<dyn Error + Send + Sync> = "boxed".into();
        assert_eq!(Err::<(), _>(boxed).into_handler_result().unwrap_err().message, "boxed");
    }

    #[test]
    fn an_unavailable_store_is_transient_anywhere_in_the_error_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot pay")]
        struct Unpaid(#[source] StoreError);
        let unpaid = |kind| {
            Err::<(), _>(Unpaid(StoreError::new(kind, "unreachable"))).into_handler_result().unwrap_err()
        };
        assert!(unpaid(ErrorKind::Unreachable).is_transient());
        assert_eq!(unpaid(ErrorKind::Unreachable).message, "cannot pay: unreachable");
        assert!(!unpaid(ErrorKind::Request).is_transient());
    }
}
