//! A limit on everything that a member says.

use tenure_core::port::{StoreError, Trouble};

/// The longest name.
pub(super) const NAME_MAX: usize = 128;

/// The longest key, in bytes.
const KEY_MAX: usize = 256;

/// The longest value, in bytes. A message holds several of these.
const VALUE_MAX: usize = 8 << 10;

/// The most entries of one member.
pub(super) const ENTRIES_MAX: usize = 4096;

/// The most that all entries of one member have together, in bytes.
pub(super) const BYTES_MAX: usize = 1 << 20;

pub(super) fn text(what: &str, given: &str, most: usize) -> Result<(), StoreError> {
    let told = match given.len() {
        0 => format!("{what} is empty"),
        length if length > most => format!("{what} has {length} bytes; at most {most} are allowed"),
        _ if given.contains(char::is_control) => format!("{what} has a control character in it"),
        _ => return Ok(()),
    };
    Err(refused(told))
}

pub(super) fn entry(key: &str, value: &str) -> Result<(), StoreError> {
    text("the key", key, KEY_MAX)?;
    match value.len() {
        length if length > VALUE_MAX => {
            Err(refused(format!("the value of {key:?} has {length} bytes; at most {VALUE_MAX} are gossiped")))
        }
        _ => Ok(()),
    }
}

pub(super) fn refused(message: impl Into<String>) -> StoreError {
    StoreError::new(Trouble::Request, message)
}
