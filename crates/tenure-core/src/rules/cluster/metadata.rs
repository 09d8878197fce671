//! Validation of the metadata of a registered name.

use std::collections::BTreeMap;

use crate::Name;

/// Metadata of the holder of a name: address, version, zone.
pub type Metadata = BTreeMap<String, String>;

/// Maximum total size of keys and values in bytes; every reader receives all of them.
pub const METADATA_MAX: usize = 2 * 1024;

/// Maximum number of keys.
const KEYS_MAX: usize = 32;

/// Maximum length of a key or value, in bytes.
const TEXT_MAX: usize = 1024;

/// The election that every user of a registry joins, so that dead ones are detected. It is not a registered name.
pub const REGISTRY_MEMBERS_ELECTION: &str = "tenure:members";

/// Why metadata are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// Too many keys.
    #[error("{0} metadata keys exceed the maximum of {KEYS_MAX}")]
    Keys(usize),
    /// A key or a value is too long.
    #[error("metadata {key:?} has {bytes} bytes; a key or value may have at most {TEXT_MAX}")]
    TooLong {
        /// The key.
        key: String,
        /// Length of the longer of key and value.
        bytes: usize,
    },
    /// The metadata are too large in total.
    #[error("the metadata have {0} bytes, more than the maximum of {METADATA_MAX}")]
    TooMuch(usize),
    /// The key is reserved or empty, or the key or value contains NUL.
    #[error("invalid metadata key {0:?}: keys must not be empty, contain NUL, or start with \"tenure.\"")]
    Key(String),
}

/// Validates metadata.
pub fn validate_metadata(metadata: &Metadata) -> Result<(), MetadataError> {
    if metadata.len() > KEYS_MAX {
        return Err(MetadataError::Keys(metadata.len()));
    }
    let mut sum = 0;
    for (key, value) in metadata {
        let bytes = key.len().max(value.len());
        if bytes > TEXT_MAX {
            return Err(MetadataError::TooLong { key: key.chars().take(40).collect(), bytes });
        }
        if key.is_empty() || key.starts_with("tenure.") || key.contains('\0') || value.contains('\0') {
            return Err(MetadataError::Key(key.clone()));
        }
        sum += key.len() + value.len();
    }
    if sum <= METADATA_MAX { Ok(()) } else { Err(MetadataError::TooMuch(sum)) }
}

/// Whether a name is reserved for Tenure.
pub fn is_reserved(name: &Name) -> bool {
    name.as_str().starts_with("tenure:")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> Metadata {
        Metadata::from([(key.into(), value.into())])
    }

    #[test]
    fn metadata_limits_are_checked() {
        assert_eq!(validate_metadata(&one("address", "10.0.0.7:80")), Ok(()));
        assert_eq!(validate_metadata(&one("", "x")), Err(MetadataError::Key(String::new())));
        assert_eq!(
            validate_metadata(&one("tenure.reserved", "1")),
            Err(MetadataError::Key("tenure.reserved".into()))
        );
        assert_eq!(validate_metadata(&one("a", "\0")), Err(MetadataError::Key("a".into())));
        let long = one("a", &"x".repeat(TEXT_MAX + 1));
        assert_eq!(validate_metadata(&long), Err(MetadataError::TooLong { key: "a".into(), bytes: 1025 }));
        let many: Metadata = (0..33).map(|n| (n.to_string(), String::new())).collect();
        assert_eq!(validate_metadata(&many), Err(MetadataError::Keys(33)));
        let much: Metadata = (0..3).map(|n| (n.to_string(), "x".repeat(1000))).collect();
        assert_eq!(validate_metadata(&much), Err(MetadataError::TooMuch(3003)));
    }
}
