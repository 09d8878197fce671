//! Words that people choose more freely than names: kinds, tags, workers' names, keys.

/// The longest kind, tag, worker's name or key, in bytes.
pub const TEXT_MAX: usize = 256;

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
pub(super) fn shown(text: &str) -> String {
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
    fn a_long_word_is_shown_in_part() {
        assert_eq!(shown("a"), "\"a\"");
        assert!(shown(&"ü".repeat(100)).chars().count() < 50);
    }
}
