//! Validation of kinds, tags, worker names and keys.

/// Maximum length of a kind, tag, worker name or key, in bytes.
pub const TEXT_MAX: usize = 256;

/// Maximum length of a stored error, reason or progress text, in bytes.
pub const NOTE_MAX: usize = 8_192;

/// Shortens an error or progress text to the maximum length and replaces NUL characters, which some stores cannot
/// keep. A failure report is never rejected because of its text.
pub fn clip(note: &str) -> String {
    let end = note.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= NOTE_MAX).last();
    note[..end.unwrap_or(0)].replace('\0', "\u{fffd}")
}

/// Why a text is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// It has no characters.
    #[error("is empty; omit it, or use 1 to {TEXT_MAX} bytes")]
    Empty,
    /// It has too many bytes.
    #[error("has {0} bytes; the maximum is {TEXT_MAX}")]
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
pub(super) fn check_text(text: &str) -> Result<(), TextError> {
    if text.len() > TEXT_MAX {
        return Err(TextError::TooLong(text.len()));
    }
    match text.chars().enumerate().find(|(_, c)| c.is_control()) {
        Some((i, found)) => Err(TextError::Control { found, position: i + 1 }),
        None => Ok(()),
    }
}

/// As [`check_text`], and rejects an empty text.
pub(super) fn check_word(text: &str) -> Result<(), TextError> {
    if text.is_empty() { Err(TextError::Empty) } else { check_text(text) }
}

/// A text for error messages, shortened if it is long.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bounded_and_have_no_control_characters() {
        assert_eq!(check_word("gpu:a100 / Zürich"), Ok(()));
        assert_eq!(check_word(""), Err(TextError::Empty));
        assert_eq!(check_text(""), Ok(()));
        assert_eq!(check_word("a\nb"), Err(TextError::Control { found: '\n', position: 2 }));
        assert_eq!(check_word(&"x".repeat(257)), Err(TextError::TooLong(257)));
    }

    #[test]
    fn a_text_is_shortened_between_characters_and_has_no_nul() {
        assert_eq!(clip("a\0b"), "a\u{fffd}b");
        assert_eq!(clip(&"ü".repeat(5_000)), "ü".repeat(4_096));
        assert_eq!(clip(""), "");
    }

    #[test]
    fn a_long_text_is_shortened_for_display() {
        assert_eq!(shown("a"), "\"a\"");
        assert!(shown(&"ü".repeat(100)).chars().count() < 50);
    }
}
