//! Results and errors of task handlers.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tenure_core::port::{PAYLOAD_MAX, RawJson};

/// Error of a task handler, with the next state of the task.
///
/// Any displayable error is a failure that is retried, so `?` and `Err("…")` work. The constructors give other
/// outcomes.
///
/// ```
/// use std::time::Duration;
/// use tenure::TaskError;
///
/// fn parse(text: &str) -> Result<u32, TaskError> {
///     if text.is_empty() {
///         return Err(TaskError::permanent("the text is empty"));
///     }
///     Ok(text.parse()?) // retried
/// }
/// assert!(parse("").is_err() && parse("x").is_err() && parse("7").is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskError {
    pub(crate) kind: TaskErrorKind,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskErrorKind {
    Retry,
    RetryIn(Duration),
    Permanent,
    Release,
}

impl TaskError {
    /// A failed attempt. The task is retried after its backoff if attempts are left.
    pub fn fail(message: impl fmt::Display) -> TaskError {
        TaskError { kind: TaskErrorKind::Retry, message: message.to_string() }
    }

    /// A failure that no retry can fix: the task becomes dead.
    pub fn permanent(message: impl fmt::Display) -> TaskError {
        TaskError { kind: TaskErrorKind::Permanent, message: message.to_string() }
    }

    /// A failed attempt. The task is retried after this delay if attempts are left.
    pub fn retry_in(delay: Duration, message: impl fmt::Display) -> TaskError {
        TaskError { kind: TaskErrorKind::RetryIn(delay), message: message.to_string() }
    }

    /// Returns the task to its queue at once; the attempt does not count. For a task that was not started or
    /// that another worker should run.
    pub fn release() -> TaskError {
        TaskError { kind: TaskErrorKind::Release, message: String::new() }
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

/// Conversion of a failure into a task error: a [`TaskError`] or any displayable value.
pub trait IntoTaskError {
    /// Returns the task error.
    fn into_error(self) -> TaskError;
}

impl IntoTaskError for TaskError {
    fn into_error(self) -> TaskError {
        self
    }
}

impl<E: fmt::Display> IntoTaskError for E {
    fn into_error(self) -> TaskError {
        TaskError::fail(self)
    }
}

/// Conversion of a handler's return value: nothing, or a `Result` whose value becomes the result of the task.
pub trait IntoTaskResult {
    /// Returns the result of the task, or the error.
    fn into_task_result(self) -> Result<Option<RawJson>, TaskError>;
}

impl IntoTaskResult for () {
    fn into_task_result(self) -> Result<Option<RawJson>, TaskError> {
        Ok(None)
    }
}

impl<T: Serialize, E: IntoTaskError> IntoTaskResult for Result<T, E> {
    fn into_task_result(self) -> Result<Option<RawJson>, TaskError> {
        let output = RawJson::of(&self.map_err(IntoTaskError::into_error)?).map_err(|error| {
            TaskError::permanent(format!("the result cannot be serialized as JSON: {error}"))
        })?;
        match output.as_str().len() {
            // `()` and null mean no result.
            _ if output.as_str() == "null" => Ok(None),
            bytes if bytes > PAYLOAD_MAX => Err(TaskError::permanent(format!(
                "the result has {bytes} bytes, the maximum is {PAYLOAD_MAX}: store it elsewhere and return a reference"
            ))),
            _ => Ok(Some(output)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handler_return_values_are_converted() {
        assert_eq!(().into_task_result(), Ok(None));
        assert_eq!(Ok::<_, TaskError>(()).into_task_result(), Ok(None));
        assert_eq!(Ok::<_, String>(7).into_task_result().unwrap().unwrap().as_str(), "7");
        assert_eq!(Err::<(), _>("no").into_task_result().unwrap_err(), TaskError::fail("no"));
        assert_eq!(
            Err::<(), _>(TaskError::release()).into_task_result().unwrap_err().kind,
            TaskErrorKind::Release
        );
        let boxed: Box<dyn std::error::Error + Send + Sync> = "boxed".into();
        assert_eq!(Err::<(), _>(boxed).into_task_result().unwrap_err().message, "boxed");
        let long = Ok::<_, TaskError>("x".repeat(PAYLOAD_MAX)).into_task_result().unwrap_err();
        assert_eq!(long.kind, TaskErrorKind::Permanent);
    }
}
