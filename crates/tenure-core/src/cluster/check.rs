//! What may be said about a name.

use std::collections::BTreeMap;

use crate::Name;

/// What people and programs want to know about who has a name: an address, a version, a zone.
pub type Metadata = BTreeMap<String, String>;

/// The most bytes of all keys and values together: everybody who looks reads them all.
pub const METADATA_MAX: usize = 2 * 1024;

/// The most keys.
const KEYS_MAX: usize = 32;

/// The longest key or value, in bytes.
const TEXT_MAX: usize = 1024;

/// The election in which all who use a registry stand, so that the dead among them are found. It is no name.
pub const MEMBERS_ELECTION: &str = "tenure:members";

/// Why something can not be said about a name. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// Too many keys.
    #[error("{0} keys are too many; at most {KEYS_MAX} are kept with a name")]
    Keys(usize),
    /// A key or a value is too long.
    #[error("{key:?} has {bytes} bytes; a key or value has at most {TEXT_MAX}")]
    TooLong {
        /// Which.
        key: String,
        /// How long the longer of both is.
        bytes: usize,
    },
    /// All of it together is too much.
    #[error("the metadata have {0} bytes; at most {METADATA_MAX} are kept with a name")]
    TooMuch(usize),
    /// The key is Tenure's own, or empty, or there is a NUL in it or its value.
    #[error("{0:?} is no key: keys are not empty, have no NUL, and do not begin with \"tenure.\"")]
    Key(String),
}

/// Refuses what some store could not keep.
pub fn check_metadata(metadata: &Metadata) -> Result<(), MetadataError> {
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

/// Whether a name is kept for Tenure itself.
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
    fn what_fits_is_taken_and_what_does_not_is_refused_with_its_key() {
        assert_eq!(check_metadata(&one("address", "10.0.0.7:80")), Ok(()));
        assert_eq!(check_metadata(&one("", "x")), Err(MetadataError::Key(String::new())));
        assert_eq!(check_metadata(&one("tenure.took", "1")), Err(MetadataError::Key("tenure.took".into())));
        assert_eq!(check_metadata(&one("a", "\0")), Err(MetadataError::Key("a".into())));
        let long = one("a", &"x".repeat(TEXT_MAX + 1));
        assert_eq!(check_metadata(&long), Err(MetadataError::TooLong { key: "a".into(), bytes: 1025 }));
        let many: Metadata = (0..33).map(|n| (n.to_string(), String::new())).collect();
        assert_eq!(check_metadata(&many), Err(MetadataError::Keys(33)));
        let much: Metadata = (0..3).map(|n| (n.to_string(), "x".repeat(1000))).collect();
        assert_eq!(check_metadata(&much), Err(MetadataError::TooMuch(3003)));
    }
}
