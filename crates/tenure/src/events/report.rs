//! What a handler says of the events that it was given.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tenure_core::port::{StoreError, Trouble};

use super::sql;

/// Why a handler did not do what its events ask for, and what shall become of them.
///
/// Whatever is an error, or a text, is a failure that is worth another attempt, so `?` and `Err("…")` do; and an error that says
/// nothing about the events, such as a deadlock or a lost connection, is recognized as what it is, wherever it lies in the chain
/// of causes. The constructors say more.
///
/// ```
/// use tenure::HandlerError;
///
/// fn amount(text: &str) -> Result<u32, HandlerError> {
///     if text.is_empty() {
///         return Err(HandlerError::fail_for_good("there is no amount"));
///     }
///     Ok(text.parse()?) // tried again
/// }
/// assert!(amount("").is_err() && amount("x").is_err() && amount("7").is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Retry,
    RetryAfter(Duration),
    ForGood,
    Passing,
    /// It did not return in time, and was dropped.
    Late,
}

impl HandlerError {
    /// It failed. Another attempt, if one is left, after what the group's backoff says.
    pub fn fail(message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: Kind::Retry, message: message.to_string() }
    }

    /// It failed, and no attempt will succeed: the event is dead, and its key parked.
    pub fn fail_for_good(message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: Kind::ForGood, message: message.to_string() }
    }

    /// It failed. Another attempt, if one is left, after this long.
    pub fn retry_after(after: Duration, message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: Kind::RetryAfter(after), message: message.to_string() }
    }

    /// It says nothing about the events: something they need is away for now. Tried again without end, in order, and the attempt does
    /// not count: at first in place; if it does not pass while others get through, aside, so that it holds up only its own key.
    pub fn passing(message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: Kind::Passing, message: message.to_string() }
    }

    pub(super) fn late(message: impl fmt::Display) -> HandlerError {
        HandlerError { kind: Kind::Late, message: message.to_string() }
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(super) fn is_late(&self) -> bool {
        self.kind == Kind::Late
    }

    /// Whether the events have nothing to do with it, and are tried again without being counted.
    pub fn is_passing(&self) -> bool {
        self.kind == Kind::Passing
    }

    fn of(error: &(dyn Error + 'static)) -> HandlerError {
        let (mut message, mut passing) = (error.to_string(), passes(error));
        let mut source = error.source();
        while let Some(cause) = source {
            passing |= passes(cause);
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        if passing { HandlerError::passing(message) } else { HandlerError::fail(message) }
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

/// Whether an error says something about the store, and nothing about what it was to do.
fn passes(error: &(dyn Error + 'static)) -> bool {
    match error.downcast_ref::<StoreError>() {
        Some(error) => store_passes(error),
        None => sql::passes(error),
    }
}

fn store_passes(error: &StoreError) -> bool {
    matches!(error.kind, Trouble::Unreachable | Trouble::Timeout | Trouble::Unavailable)
}

/// What a handler may give as the reason of a failure: a [`HandlerError`], whatever is an error, or a text.
pub trait Cause {
    /// The failure.
    fn into_error(self) -> HandlerError;
}

impl Cause for HandlerError {
    fn into_error(self) -> HandlerError {
        self
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> Cause for E {
    fn into_error(self) -> HandlerError {
        HandlerError::of(&*self.into())
    }
}

/// What a handler may return: nothing, or a result.
pub trait Handled {
    /// Whether it is done.
    fn handled(self) -> Result<(), HandlerError>;
}

impl Handled for () {
    fn handled(self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<T, E: Cause> Handled for Result<T, E> {
    fn handled(self) -> Result<(), HandlerError> {
        self.map(drop).map_err(Cause::into_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_handlers_return_is_understood() {
        assert_eq!(().handled(), Ok(()));
        assert_eq!(Ok::<_, String>(7).handled(), Ok(()));
        assert_eq!(Err::<(), _>("no").handled(), Err(HandlerError::fail("no")));
        assert_eq!(
            Err::<(), _>(HandlerError::fail_for_good("no")).handled().unwrap_err().kind,
            Kind::ForGood
        );
        let boxed: Box<dyn Error + Send + Sync> = "boxed".into();
        assert_eq!(Err::<(), _>(boxed).handled().unwrap_err().message, "boxed");
    }

    #[test]
    fn a_store_that_is_away_says_nothing_about_the_event_however_deep_it_lies() {
        #[derive(Debug, thiserror::Error)]
        #[error("can not pay")]
        struct Unpaid(#[source] StoreError);
        let unpaid = |kind| Err::<(), _>(Unpaid(StoreError::new(kind, "away"))).handled().unwrap_err();
        assert!(unpaid(Trouble::Unreachable).is_passing());
        assert_eq!(unpaid(Trouble::Unreachable).message, "can not pay: away");
        assert!(!unpaid(Trouble::Request).is_passing());
    }
}
