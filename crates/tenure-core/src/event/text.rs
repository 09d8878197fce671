//! Words of events: keys, types, header names.

use crate::port::KEY_MAX;

/// What is wrong with a word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WordError {
    /// It has no characters.
    #[error("is empty; leave it out, or give it 1 to {KEY_MAX} bytes")]
    Empty,
    /// It has too many bytes.
    #[error("has {0} bytes; at most {KEY_MAX} are allowed")]
    TooLong(usize),
    /// It has a control character: a line break, a tab, a zero.
    #[error("has the control character {found:?} at position {position}; take it out")]
    Control {
        /// Which.
        found: char,
        /// Where, counted from 1.
        position: usize,
    },
}

/// Refuses a word that is too long, or has control characters.
pub(super) fn check_text(text: &str) -> Result<(), WordError> {
    if text.len() > KEY_MAX {
        return Err(WordError::TooLong(text.len()));
    }
    check_control(text)
}

/// Refuses control characters.
pub(super) fn check_control(text: &str) -> Result<(), WordError> {
    match text.chars().enumerate().find(|(_, c)| c.is_control()) {
        Some((i, found)) => Err(WordError::Control { found, position: i + 1 }),
        None => Ok(()),
    }
}

/// As [`check_text`], and it must not be empty.
pub(super) fn check_word(text: &str) -> Result<(), WordError> {
    if text.is_empty() { Err(WordError::Empty) } else { check_text(text) }
}
