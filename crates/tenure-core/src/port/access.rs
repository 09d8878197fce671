//! Credentials, grants and the audit log of a server.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{ErrorKind, StoreError};
use crate::Name;

/// A permission of a principal in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Permission {
    /// Read everything.
    Read,
    /// Campaign in elections and lead them.
    Lead,
    /// Publish events.
    Publish,
    /// Submit, claim and settle tasks; request resources.
    Claim,
    /// Everything, including operator requests (transfer, resign, pause, resume). A grant for all namespaces also
    /// includes the management of credentials.
    Admin,
}

impl Permission {
    /// All permissions.
    pub const ALL: [Permission; 5] =
        [Permission::Read, Permission::Lead, Permission::Publish, Permission::Claim, Permission::Admin];

    /// Name of the permission.
    pub fn as_str(self) -> &'static str {
        match self {
            Permission::Read => "read",
            Permission::Lead => "lead",
            Permission::Publish => "publish",
            Permission::Claim => "claim",
            Permission::Admin => "admin",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a grant applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum GrantScope {
    /// In every namespace, and for objects outside namespaces: `*`.
    Everywhere,
    /// In this namespace.
    Namespace(Name),
}

impl GrantScope {
    /// Whether the scope covers a namespace. `None` stands for objects outside namespaces.
    pub fn covers(&self, namespace: Option<&Name>) -> bool {
        match self {
            GrantScope::Everywhere => true,
            GrantScope::Namespace(name) => Some(name) == namespace,
        }
    }
}

impl fmt::Display for GrantScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrantScope::Everywhere => f.write_str("*"),
            GrantScope::Namespace(name) => name.fmt(f),
        }
    }
}

impl TryFrom<String> for GrantScope {
    type Error = crate::NameError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        if text == "*" { Ok(GrantScope::Everywhere) } else { text.parse().map(GrantScope::Namespace) }
    }
}

impl From<GrantScope> for String {
    fn from(scope: GrantScope) -> String {
        scope.to_string()
    }
}

/// Permissions in a namespace, or in all: `prod:read,lead`, `*:admin`.
///
/// ```
/// use tenure_core::port::{Grant, Permission};
///
/// let grant: Grant = "prod:read,lead".parse().unwrap();
/// assert!(grant.allows(Permission::Lead, Some(&"prod".parse().unwrap())));
/// assert!(!grant.allows(Permission::Admin, Some(&"prod".parse().unwrap())));
/// assert!(!grant.allows(Permission::Read, None));
/// assert!("prod:lead,fly".parse::<Grant>().unwrap_err().to_string().contains("fly"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Namespace, or `*` for all.
    #[serde(rename = "namespace")]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "prod"))]
    pub scope: GrantScope,
    /// Permissions granted there.
    pub permissions: Vec<Permission>,
}

impl Grant {
    /// Whether this grant includes the permission in the namespace. [`Permission::Admin`] includes all others; no
    /// other permission implies another.
    pub fn allows(&self, permission: Permission, namespace: Option<&Name>) -> bool {
        self.scope.covers(namespace)
            && (self.permissions.contains(&permission) || self.permissions.contains(&Permission::Admin))
    }
}

/// Why a grant is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// The text has no colon.
    #[error(
        "{0:?} is not a grant; write NAMESPACE:PERMISSION,PERMISSION, for example prod:read,lead or \
         '*:admin'"
    )]
    Shape(String),
    /// The permission is unknown.
    #[error("unknown permission {0:?}; use read, lead, publish, claim or admin")]
    Permission(String),
    /// The namespace is invalid.
    #[error("invalid namespace in a grant: {0}")]
    Namespace(#[from] crate::NameError),
}

impl FromStr for Grant {
    type Err = GrantError;
    fn from_str(text: &str) -> Result<Self, GrantError> {
        // A namespace may contain colons, so the last colon separates it from the permissions.
        let (scope, permissions) = text.rsplit_once(':').ok_or_else(|| GrantError::Shape(text.into()))?;
        let permission = |word: &str| {
            let found = Permission::ALL.into_iter().find(|permission| permission.as_str() == word.trim());
            found.ok_or_else(|| GrantError::Permission(word.trim().into()))
        };
        let permissions = permissions.split(',').map(permission).collect::<Result<_, _>>()?;
        Ok(Grant { scope: GrantScope::try_from(scope.to_owned())?, permissions })
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let permissions: Vec<_> = self.permissions.iter().map(|permission| permission.as_str()).collect();
        write!(f, "{}:{}", self.scope, permissions.join(","))
    }
}

/// How a server verifies a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CredentialVerifier {
    /// A random secret. Only its digest is stored.
    AccessToken {
        /// SHA-256 of the secret, in hexadecimal.
        digest: String,
    },
    /// A client certificate signed by a trusted authority.
    Certificate {
        /// Subject of the certificate in the format of RFC 4514: `CN=worker-1,O=acme`.
        certificate_subject: String,
    },
}

/// An access token or client certificate with its grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Credential {
    /// Random public id; the first part of an access token.
    pub id: String,
    /// Principal. Several credentials may have the same principal, so that secrets can be rotated.
    pub name: String,
    /// How the credential is verified.
    pub verifier: CredentialVerifier,
    /// Grants of the credential.
    pub grants: Vec<Grant>,
    /// Time of creation, by the wall clock of the creating process.
    pub created_at_ms: i64,
    /// Principal that created it.
    pub created_by: String,
    /// Expiry; `None` if it does not expire.
    pub expires_at_ms: Option<i64>,
    /// Time of revocation, if it was revoked.
    pub revoked_at_ms: Option<i64>,
}

impl Credential {
    /// Whether the credential is neither revoked nor expired at this time.
    pub fn is_valid(&self, wall_ms: i64) -> bool {
        self.revoked_at_ms.is_none() && self.expires_at_ms.is_none_or(|at| wall_ms < at)
    }

    /// Whether a grant includes the permission in the namespace.
    pub fn allows(&self, permission: Permission, namespace: Option<&Name>) -> bool {
        self.grants.iter().any(|grant| grant.allows(permission, namespace))
    }
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct AuditEntry {
    /// Sequence number assigned by the store; 0 before the entry is stored.
    pub seq: i64,
    /// Time of the action, by the wall clock of the server.
    pub recorded_at_ms: i64,
    /// Principal that acted.
    pub principal: String,
    /// Action as `resource.verb`: `election.transfer`, `credential.create`, …
    pub action: String,
    /// Namespace of the target, if it has one.
    pub namespace: Option<Name>,
    /// Target of the action: the name of an election, the id of a credential.
    pub target: String,
    /// Details for display: successor, reason.
    pub detail: String,
    /// Id of the HTTP request.
    pub request_id: String,
}

/// Credentials and the audit log. A store without them returns an error from every call.
#[async_trait]
pub trait AccessStore: Send + Sync + 'static {
    /// All credentials that have not been pruned, newest first.
    async fn credentials(&self) -> Result<Vec<Credential>, StoreError> {
        Err(unsupported("credentials"))
    }

    /// Stores a credential, or changes the expiry or revocation of a stored one. Both times can only move earlier, so
    /// that writing an outdated copy never reactivates a credential. All other fields of a stored credential must be
    /// unchanged.
    async fn put_credential(&self, credential: &Credential) -> Result<(), StoreError> {
        let _ = credential;
        Err(unsupported("credentials"))
    }

    /// Appends an entry to the audit log.
    async fn append_audit(&self, entry: &AuditEntry) -> Result<(), StoreError> {
        let _ = entry;
        Err(unsupported("an audit log"))
    }

    /// The latest audit entries of a namespace, or of all, newest first. `before` continues a list: only entries with
    /// a lower sequence number are returned.
    async fn audit_entries(
        &self,
        namespace: Option<&Name>,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let _ = (namespace, before, limit);
        Err(unsupported("an audit log"))
    }

    /// Prunes audit entries before a time, and credentials that expired or were revoked before it.
    async fn prune_access(&self, before_ms: i64) -> Result<(), StoreError> {
        let _ = before_ms;
        Ok(())
    }
}

fn unsupported(what: &str) -> StoreError {
    let message =
        format!("this store does not keep {what}; use sqlite: or postgres: for a server with access control");
    StoreError::new(ErrorKind::Request, message)
}
