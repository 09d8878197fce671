//! What a server keeps in the store for itself: who may do what, and who did.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{StoreError, Trouble};
use crate::Name;

/// Something that a principal may do in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// See what is there.
    Read,
    /// Stand for elections and lead them.
    Lead,
    /// Publish events.
    Publish,
    /// Submit, claim and finish work.
    Claim,
    /// Everything, operators' requests included: transfer, resign, pause, resume; and, over all namespaces, credentials.
    Admin,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 5] = [Verb::Read, Verb::Lead, Verb::Publish, Verb::Claim, Verb::Admin];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Read => "read",
            Verb::Lead => "lead",
            Verb::Publish => "publish",
            Verb::Claim => "claim",
            Verb::Admin => "admin",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a grant holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Realm {
    /// In every namespace, and over what belongs to none: `*`.
    Everywhere,
    /// In this namespace.
    Namespace(Name),
}

impl Realm {
    /// Whether it covers a namespace; `None` asks for what belongs to none.
    pub fn covers(&self, namespace: Option<&Name>) -> bool {
        match self {
            Realm::Everywhere => true,
            Realm::Namespace(name) => Some(name) == namespace,
        }
    }
}

impl fmt::Display for Realm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Realm::Everywhere => f.write_str("*"),
            Realm::Namespace(name) => name.fmt(f),
        }
    }
}

impl TryFrom<String> for Realm {
    type Error = crate::NameError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == "*" { Ok(Realm::Everywhere) } else { text.parse().map(Realm::Namespace) }
    }
}

impl From<Realm> for String {
    fn from(realm: Realm) -> String {
        realm.to_string()
    }
}

/// What a principal may do, and where: `prod:read,lead`, `*:admin`.
///
/// ```
/// use tenure_core::port::{Grant, Verb};
///
/// let grant: Grant = "prod:read,lead".parse().unwrap();
/// assert!(grant.allows(Verb::Lead, Some(&"prod".parse().unwrap())));
/// assert!(!grant.allows(Verb::Admin, Some(&"prod".parse().unwrap())));
/// assert!(!grant.allows(Verb::Read, None));
/// assert!("prod:lead,fly".parse::<Grant>().unwrap_err().to_string().contains("fly"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Where.
    #[serde(rename = "namespace")]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "prod"))]
    pub realm: Realm,
    /// What.
    pub verbs: Vec<Verb>,
}

impl Grant {
    /// Whether this grant allows it. [`Verb::Admin`] allows everything; nothing else implies anything.
    pub fn allows(&self, verb: Verb, namespace: Option<&Name>) -> bool {
        self.realm.covers(namespace) && (self.verbs.contains(&verb) || self.verbs.contains(&Verb::Admin))
    }
}

/// Why a grant was refused. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// There is no colon.
    #[error("{0:?} is no grant; write NAMESPACE:VERB,VERB, such as prod:read,lead or '*:admin'")]
    Shape(String),
    /// There is no such verb.
    #[error("{0:?} is nothing that can be granted; choose among read, lead, publish, claim and admin")]
    Verb(String),
    /// The namespace makes no sense.
    #[error("the namespace of a grant: {0}")]
    Namespace(#[from] crate::NameError),
}

impl FromStr for Grant {
    type Err = GrantError;
    fn from_str(text: &str) -> Result<Self, GrantError> {
        // A name may have colons itself: the last one divides.
        let (realm, verbs) = text.rsplit_once(':').ok_or_else(|| GrantError::Shape(text.into()))?;
        let verb = |word: &str| {
            let found = Verb::ALL.into_iter().find(|verb| verb.as_str() == word.trim());
            found.ok_or_else(|| GrantError::Verb(word.trim().into()))
        };
        let verbs = verbs.split(',').map(verb).collect::<Result<_, _>>()?;
        Ok(Grant { realm: Realm::try_from(realm.to_owned())?, verbs })
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs: Vec<_> = self.verbs.iter().map(|verb| verb.as_str()).collect();
        write!(f, "{}:{}", self.realm, verbs.join(","))
    }
}

/// How a principal proves who it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Proof {
    /// By a random secret, of which only the digest is kept.
    Token {
        /// SHA-256 of the secret, in hexadecimal.
        digest: String,
    },
    /// By a certificate that a trusted authority signed.
    Certificate {
        /// The certificate's subject, as RFC 4514 writes it: `CN=worker-1,O=acme`.
        subject: String,
    },
}

/// A principal, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Credential {
    /// Which: random, public, the first part of a token.
    pub id: String,
    /// What people call the principal. Several credentials may have one name: that is how secrets are rotated.
    pub name: String,
    /// How it proves who it is.
    pub proof: Proof,
    /// What it may do.
    pub grants: Vec<Grant>,
    /// When it was made, by the wall clock of who made it.
    pub created_at_ms: i64,
    /// Who made it.
    pub created_by: String,
    /// From when it is worth nothing; `None`: never.
    pub expires_at_ms: Option<i64>,
    /// When it was revoked, if it was.
    pub revoked_at_ms: Option<i64>,
}

impl Credential {
    /// Whether it is worth anything at this time.
    pub fn is_valid(&self, wall_ms: i64) -> bool {
        self.revoked_at_ms.is_none() && self.expires_at_ms.is_none_or(|at| wall_ms < at)
    }

    /// Whether it allows this.
    pub fn allows(&self, verb: Verb, namespace: Option<&Name>) -> bool {
        self.grants.iter().any(|grant| grant.allows(verb, namespace))
    }
}

/// Something that somebody did: a line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Deed {
    /// Its place in the audit, given by the store; 0 before it is recorded.
    pub n: i64,
    /// When, by the wall clock of the server.
    pub at_ms: i64,
    /// Who.
    pub principal: String,
    /// What: `transfer`, `resign`, `pause`, `resume`, `token.create`, …
    pub action: String,
    /// In which namespace, if in one.
    pub namespace: Option<Name>,
    /// To what: an election's name, a token's id.
    pub target: String,
    /// More, for people: the successor, the reason.
    pub detail: String,
    /// The request that asked for it.
    pub request_id: String,
}

/// What a server keeps for itself. A store that keeps nothing of the kind says so.
#[async_trait]
pub trait Office: Send + Sync + 'static {
    /// All credentials that are not forgotten yet, the newest first.
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        Err(unsupported("credentials"))
    }

    /// Keeps a credential: a new one, or a known one with other dates. Dates only ever come nearer, so that who writes
    /// back an older view of it revives nothing; all else of a known one must be as it was.
    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        let _ = credential;
        Err(unsupported("credentials"))
    }

    /// Records what somebody did.
    async fn record(&self, deed: &Deed) -> Result<(), StoreError> {
        let _ = deed;
        Err(unsupported("an audit"))
    }

    /// The last deeds in a namespace, or in all and none, the newest first; `before` is the place to go on from.
    async fn deeds(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Deed>, StoreError> {
        let _ = (namespace, before, limit);
        Err(unsupported("an audit"))
    }

    /// Forgets deeds before a time, and credentials that have been worth nothing since then.
    async fn forget(&self, before_ms: i64) -> Result<(), StoreError> {
        let _ = before_ms;
        Ok(())
    }
}

fn unsupported(what: &str) -> StoreError {
    let message =
        format!("this store does not keep {what}; use sqlite: or postgres: for a server with access control");
    StoreError::new(Trouble::Request, message)
}
