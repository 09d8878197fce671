//! What a handler says of its task.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tenure_core::port::{Json, PAYLOAD_MAX};

/// Why a handler did not complete its task, and what shall become of it.
///
/// Whatever can be displayed is a failure that is worth another attempt; so `?` and `Err("…")` do. The constructors say more.
///
/// ```
/// use std::time::Duration;
/// use tenure::TaskError;
///
/// fn parse(text: &str) -> Result<u32, TaskError> {
///     if text.is_empty() {
///         return Err(TaskError::fail_for_good("there is nothing to parse"));
///     }
///     Ok(text.parse()?) // tried again
/// }
/// assert!(parse("").is_err() && parse("x").is_err() && parse("7").is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Retry,
    RetryAfter(Duration),
    ForGood,
    Release,
}

impl TaskError {
    /// It failed. Another attempt, if one is left, after what the task's backoff says.
    pub fn fail(message: impl fmt::Display) -> TaskError {
        TaskError { kind: Kind::Retry, message: message.to_string() }
    }

    /// It failed, and no attempt will succeed: the task is dead.
    pub fn fail_for_good(message: impl fmt::Display) -> TaskError {
        TaskError { kind: Kind::ForGood, message: message.to_string() }
    }

    /// It failed. Another attempt, if one is left, after this long.
    pub fn retry_after(after: Duration, message: impl fmt::Display) -> TaskError {
        TaskError { kind: Kind::RetryAfter(after), message: message.to_string() }
    }

    /// It was not begun, or somebody else should: back to the queue at once, and the attempt does not count.
    pub fn release() -> TaskError {
        TaskError { kind: Kind::Release, message: String::new() }
    }
}

impl<E: std::error::Error> From<E> for TaskError {
    fn from(error: E) -> TaskError {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message = format!("{message}: {cause}");
            source = cause.source();
        }
        TaskError::fail(message)
    }
}

/// What a handler may give as the reason of a failure: a [`TaskError`], or whatever can be displayed.
pub trait Reason {
    /// The failure.
    fn into_error(self) -> TaskError;
}

impl Reason for TaskError {
    fn into_error(self) -> TaskError {
        self
    }
}

impl<E: fmt::Display> Reason for E {
    fn into_error(self) -> TaskError {
        TaskError::fail(self)
    }
}

/// What a handler may return: nothing, or a result whose value is the task's output.
pub trait Report {
    /// The output, or why there is none.
    fn report(self) -> Result<Option<Json>, TaskError>;
}

impl Report for () {
    fn report(self) -> Result<Option<Json>, TaskError> {
        Ok(None)
    }
}

impl<T: Serialize, E: Reason> Report for Result<T, E> {
    fn report(self) -> Result<Option<Json>, TaskError> {
        let output = Json::of(&self.map_err(Reason::into_error)?)
            .map_err(|error| TaskError::fail_for_good(format!("its output is no JSON: {error}")))?;
        match output.as_str().len() {
            // Of `()`, and of nothing.
            _ if output.as_str() == "null" => Ok(None),
            bytes if bytes > PAYLOAD_MAX => Err(TaskError::fail_for_good(format!(
                "its output has {bytes} bytes; at most {PAYLOAD_MAX} are kept: keep it elsewhere and return its address"
            ))),
            _ => Ok(Some(output)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_handlers_return_is_understood() {
        assert_eq!(().report(), Ok(None));
        assert_eq!(Ok::<_, TaskError>(()).report(), Ok(None));
        assert_eq!(Ok::<_, String>(7).report().unwrap().unwrap().as_str(), "7");
        assert_eq!(Err::<(), _>("no").report().unwrap_err(), TaskError::fail("no"));
        assert_eq!(Err::<(), _>(TaskError::release()).report().unwrap_err().kind, Kind::Release);
        let boxed: Box<dyn std::error::Error + Send + Sync> = "boxed".into();
        assert_eq!(Err::<(), _>(boxed).report().unwrap_err().message, "boxed");
        let long = Ok::<_, TaskError>("x".repeat(PAYLOAD_MAX)).report().unwrap_err();
        assert_eq!(long.kind, Kind::ForGood);
    }
}
