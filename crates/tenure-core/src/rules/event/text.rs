//! Validation of keys, types and header names.

use crate::port::KEY_MAX;

/// Why a text is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventTextError {
    /// It has no characters.
    #[error("is empty; omit it, or use 1 to {KEY_MAX} bytes")]
    Empty,
    /// It has too many bytes.
    #[error("has {0} bytes; the maximum is {KEY_MAX}")]
    TooLong(usize),
    /// It has a control character, such as a line break, tab or NUL.
    #[error("has the control character {found:?} at position {position}; remove it")]
    Control {
        /// The character.
        found: char,
        /// Position, from 1.
        position: usize,
    },
}

/// Rejects a text that is too long or has control characters.
pub(super) fn check_text(text: &str) -> Result<(), EventTextError> {
    if text.len() > KEY_MAX {
        return Err(EventTextError::TooLong(text.len()));
    }
    check_control(text)
}

/// Rejects control characters.
pub(super) fn check_control(text: &str) -> Result<(), EventTextError> {
    match text.chars().enumerate().find(|(_, c)| c.is_control()) {
        Some((i, found)) => Err(EventTextError::Control { found, position: i + 1 }),
        None => Ok(()),
    }
}

/// As [`check_text`], and rejects an empty text.
pub(super) fn check_word(text: &str) -> Result<(), EventTextError> {
    if text.is_empty() { Err(EventTextError::Empty) } else { check_text(text) }
}
