//! Names chosen by users, and random session ids.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Entropy;

/// Maximum length of a name, in bytes.
const NAME_MAX: usize = 128;

/// A name of a namespace, election, queue, pool, topic, group or schedule: 1 to 128 letters, digits, `.`, `_`, `:` or
/// `-`, starting with a letter or digit.
///
/// ```
/// use tenure_core::Name;
///
/// assert!("nightly-report".parse::<Name>().is_ok());
/// let error = "nightly report".parse::<Name>().unwrap_err();
/// assert!(error.to_string().contains("' '"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$", example = "nightly"))]
pub struct Name(Arc<str>);

/// Why a name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name has no characters.
    #[error("the name is empty; use 1 to {NAME_MAX} letters, digits, '.', '_', ':' or '-'")]
    Empty,
    /// The name has too many bytes.
    #[error("the name has {0} bytes; at most {NAME_MAX} are allowed")]
    TooLong(usize),
    /// The name has a character that is not allowed, or that is not allowed as the first character.
    #[error(
        "name {name:?} has {found:?} at position {position}; use letters, digits, '.', '_', ':' or '-', \
         starting with a letter or digit"
    )]
    Character {
        /// The invalid name.
        name: String,
        /// The invalid character.
        found: char,
        /// Its position, counted from 1.
        position: usize,
    },
}

impl Name {
    /// The default namespace.
    pub fn default_namespace() -> Name {
        Name("default".into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;
    fn from_str(s: &str) -> Result<Self, NameError> {
        if s.is_empty() {
            return Err(NameError::Empty);
        }
        if s.len() > NAME_MAX {
            return Err(NameError::TooLong(s.len()));
        }
        let allowed =
            |i: usize, c: char| c.is_ascii_alphanumeric() || (i > 0 && matches!(c, '.' | '_' | ':' | '-'));
        match s.chars().enumerate().find(|&(i, c)| !allowed(i, c)) {
            Some((i, found)) => Err(NameError::Character { name: s.into(), found, position: i + 1 }),
            None => Ok(Name(s.into())),
        }
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;
    fn try_from(s: String) -> Result<Self, NameError> {
        s.parse()
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0.as_ref().into()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identity of an election: a name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ElectionKey {
    /// Namespace.
    pub namespace: Name,
    /// Name of the election.
    pub name: Name,
}

impl ElectionKey {
    /// The election `name` of `namespace`.
    pub fn new(namespace: Name, name: Name) -> Self {
        ElectionKey { namespace, name }
    }
}

impl fmt::Display for ElectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.as_str() == "default" {
            write!(f, "{}", self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// Id of a session: 128 random bits that identify one run of one process.
///
/// The rules compare only session ids; users see the name of the candidate. Names chosen by users may repeat: all
/// replicas of a deployment may have the same node name, and all of them would hold a lease that is identified by that
/// name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, example = "5b1c8a40c7d94f0e9a7a3c6ad0b1e2f3"))]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// Generates a random id.
    pub fn generate(entropy: &mut (impl Entropy + ?Sized)) -> Self {
        SessionId(format!("{:016x}{:016x}", entropy.next_u64(), entropy.next_u64()).into())
    }

    /// Creates an id from its stored text.
    pub fn from_stored(id: &str) -> Self {
        SessionId(id.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first eight characters, for display.
    pub fn short(&self) -> &str {
        self.0.get(..8).unwrap_or(&self.0)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for SessionId {
    fn from(id: String) -> Self {
        SessionId(id.into())
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> String {
        id.0.as_ref().into()
    }
}
