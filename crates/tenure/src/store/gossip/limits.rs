//! Size limits for the data that a member publishes.

use tenure_core::port::{ErrorKind, StoreError};

/// Maximum length of a name.
pub(super) const NAME_MAX: usize = 128;

/// Maximum length of a key, in bytes.
const KEY_MAX: usize = 256;

/// Maximum length of a value, in bytes. A message holds several values.
const VALUE_MAX: usize = 8 << 10;

/// Maximum number of entries per member.
pub(super) const ENTRIES_MAX: usize = 4096;

/// Maximum total size of a member's entries, in bytes.
pub(super) const BYTES_MAX: usize = 1 << 20;

pub(super) fn text(what: &str, given: &str, most: usize) -> Result<(), StoreError> {
    let message = match given.len() {
        0 => format!("{what} is empty"),
        length if length > most => format!("{what} has {length} bytes; the maximum is {most}"),
        _ if given.contains(char::is_control) => format!("{what} contains a control character"),
        _ => return Ok(()),
    };
    Err(invalid(message))
}

pub(super) fn entry(key: &str, value: &str) -> Result<(), StoreError> {
    text("the key", key, KEY_MAX)?;
    match value.len() {
        length if length > VALUE_MAX => {
            Err(invalid(format!("the value of {key:?} has {length} bytes; the maximum is {VALUE_MAX}")))
        }
        _ => Ok(()),
    }
}

pub(super) fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(ErrorKind::Request, message)
}
