//! Exit codes, and failures told in words.

use tenure::port::{StoreError, Trouble};

use crate::output;

/// Somebody else leads, and we were not to wait (longer). `EX_TEMPFAIL`: try later.
pub(crate) const NOT_ACQUIRED: u8 = 75;
/// Leadership was lost, and the child was ended because of it.
pub(crate) const LOST: u8 = 76;
/// The store cannot be used. `EX_UNAVAILABLE`.
pub(crate) const STORE: u8 = 69;
/// What was asked makes no sense. `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;
/// The failure is tenure's own, not the child's.
pub(crate) const OWN_FAILURE: u8 = 125;

/// The codes, for `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  the child's own, or 128 + the signal that ended it
  64   what was asked makes no sense
  69   the store cannot be used
  75   not acquired: somebody else leads, and we were not to wait (longer)
  76   leadership was lost, and the child was ended because of it
  125  tenure itself failed
  126  the command cannot be executed
  127  the command was not found";

/// A failure: what, on what, and what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Failure { code, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(USAGE, message)
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn report(&self) {
        if !self.message.is_empty() {
            let tenure = output::paint_err("tenure:", output::Ink::Red);
            crate::output::err_line(format_args!("{tenure} {}", output::plain_lines(&self.message)));
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let code = match error.kind {
            Trouble::Request | Trouble::Address | Trouble::Unsupported => USAGE,
            _ => STORE,
        };
        Failure::new(code, error.message)
    }
}

impl From<tenure::Error> for Failure {
    fn from(error: tenure::Error) -> Self {
        match error {
            tenure::Error::Store(error) => error.into(),
            tenure::Error::Name(_) | tenure::Error::Timing(_) | tenure::Error::Slots { .. } => {
                Failure::usage(error.to_string())
            }
            tenure::Error::SlotCount(_) | tenure::Error::Worker(_) => Failure::usage(error.to_string()),
            error => Failure::new(OWN_FAILURE, error.to_string()),
        }
    }
}

impl From<tenure::operator::Refusal> for Failure {
    fn from(refusal: tenure::operator::Refusal) -> Self {
        match refusal {
            tenure::operator::Refusal::Store(error) => error.into(),
            refused => Failure::usage(refused.to_string()),
        }
    }
}

impl From<tenure::NameError> for Failure {
    fn from(error: tenure::NameError) -> Self {
        Failure::usage(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::new(OWN_FAILURE, error.to_string())
    }
}
