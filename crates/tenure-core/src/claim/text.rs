//! Words that people choose more freely than names: kinds, tags, workers' names, keys.

/// The longest kind, tag, worker's name or key, in bytes.
pub const TEXT_MAX: usize = 256;

/// The longest error, reason or note of progress that is kept, in bytes.
pub const NOTE_MAX: usize = 8_192;

/// What is kept of an error or a note of progress: not all of it, if it is long, and no zeros, which some stores can not
/// keep. A failure is never refused because of how it is told.
pub fn clip(note: &str) -> String {
    let end = note.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= NOTE_MAX).last();
    note[..end.unwrap_or(0)].replace('\0', "\u{fffd}")
}

/// What is wrong with a word.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// It has no characters.
    #[error("is empty; leave it out, or give it 1 to {TEXT_MAX} bytes")]
    Empty,
    /// It has too many bytes.
    #[error("has {0} bytes; at most {TEXT_MAX} are allowed")]
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
pub(super) fn check_text(text: &str) -> Result<(), TextError> {
    if text.len() > TEXT_MAX {
        return Err(TextError::TooLong(text.len()));
    }
    match text.chars().enumerate().find(|(_, c)| c.is_control()) {
        Some((i, found)) => Err(TextError::Control { found, position: i + 1 }),
        None => Ok(()),
    }
}

/// As [`check_text`], and it must not be empty.
pub(super) fn check_word(text: &str) -> Result<(), TextError> {
    if text.is_empty() { Err(TextError::Empty) } else { check_text(text) }
}

/// A word as it is shown in an error: not all of it, if it is long.
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
    fn words_are_bounded_and_have_no_control_characters() {
        assert_eq!(check_word("gpu:a100 / Zürich"), Ok(()));
        assert_eq!(check_word(""), Err(TextError::Empty));
        assert_eq!(check_text(""), Ok(()));
        assert_eq!(check_word("a\nb"), Err(TextError::Control { found: '\n', position: 2 }));
        assert_eq!(check_word(&"x".repeat(257)), Err(TextError::TooLong(257)));
    }

    #[test]
    fn a_note_is_clipped_between_characters_and_has_no_zeros() {
        assert_eq!(clip("a\0b"), "a\u{fffd}b");
        assert_eq!(clip(&"ü".repeat(5_000)), "ü".repeat(4_096));
        assert_eq!(clip(""), "");
    }

    #[test]
    fn a_long_word_is_shown_in_part() {
        assert_eq!(shown("a"), "\"a\"");
        assert!(shown(&"ü".repeat(100)).chars().count() < 50);
    }
}
