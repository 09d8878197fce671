//! Errors of commands and their exit codes.

use tenure::port::{ErrorKind, StoreError};

use crate::output;

/// Not acquired: another candidate leads, or no task or resource came in time. `EX_TEMPFAIL`: try later.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// Leadership, a claim or a name was lost.
pub(crate) const LOST: u8 = 76;
/// The store is unavailable. `EX_UNAVAILABLE`.
pub(crate) const STORE: u8 = 69;
/// Usage error. `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;
/// Internal error of tenure, as opposed to the exit code of a command it runs.
pub(crate) const INTERNAL_ERROR: u8 = 125;

/// Help text about the exit codes of `tenure run`.
pub(crate) const HELP: &str = "\
Exit codes:
  exit code of the command, or 128 + signal number
  64   usage error
  69   the store is unavailable
  75   not acquired: another candidate leads
  76   leadership was lost and the command was stopped
  125  internal error of tenure
  126  the command cannot be executed
  127  the command was not found";

/// An error with its exit code. The message states what failed, on which object, and what to do next.
#[derive(Debug)]
pub(crate) struct CliError {
    pub(crate) code: u8,
    message: String,
}

impl CliError {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        CliError { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        CliError::new(USAGE, message)
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn report(&self) {
        if !self.message.is_empty() {
            let tenure = output::paint_err("tenure:", output::TextStyle::Red);
            crate::output::err_line(format_args!("{tenure} {}", output::plain_lines(&self.message)));
        }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let code = match error.kind {
            ErrorKind::Request | ErrorKind::Address | ErrorKind::Unsupported => USAGE,
            _ => STORE,
        };
        CliError::new(code, error.message)
    }
}

impl From<tenure::Error> for CliError {
    fn from(error: tenure::Error) -> Self {
        match error {
            tenure::Error::Store(error) => error.into(),
            tenure::Error::Name(_) | tenure::Error::Timing(_) | tenure::Error::Slots { .. } => {
                CliError::usage(error.to_string())
            }
            tenure::Error::SlotCount(_) | tenure::Error::Worker(_) => CliError::usage(error.to_string()),
            error => CliError::new(INTERNAL_ERROR, error.to_string()),
        }
    }
}

impl From<tenure::election::operator::OperatorError> for CliError {
    fn from(refusal: tenure::election::operator::OperatorError) -> Self {
        match refusal {
            tenure::election::operator::OperatorError::Store(error) => error.into(),
            refused => CliError::usage(refused.to_string()),
        }
    }
}

impl From<tenure::NameError> for CliError {
    fn from(error: tenure::NameError) -> Self {
        CliError::usage(error.to_string())
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        CliError::new(INTERNAL_ERROR, error.to_string())
    }
}
