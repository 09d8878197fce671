//! The principal of a request.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;
use tenure::port::{Credential, Grant, GrantScope, Permission};
use tenure::{Name, NameError};

use crate::problem::Problem;

/// Principal: the authenticated client of a request.
#[derive(Clone, Debug)]
pub struct Principal {
    /// Name.
    pub name: Arc<str>,
    /// Grants.
    pub grants: Arc<[Grant]>,
    /// Id of the credential.
    pub(super) credential: Option<Arc<str>>,
}

/// Name of the principal of local clients without access control.
const LOCAL: &str = "local";

/// Reason why a principal name is invalid.
#[derive(Debug, thiserror::Error)]
pub enum PrincipalNameError {
    /// It is not a valid name.
    #[error(transparent)]
    Shape(#[from] NameError),
    /// It is reserved.
    #[error("{0} is reserved for unauthenticated clients; choose another name")]
    Taken(Name),
}

/// Validate the name of a principal. It appears in logs, as the owner of sessions, and as an account name.
///
/// ```
/// use tenure_server::access::principal_name;
///
/// assert!(principal_name("worker-1").is_ok());
/// for text in ["local", "anonymous", "anonymous-1", "a b", "a\n"] {
///     assert!(principal_name(text).is_err(), "{text:?}");
/// }
/// ```
pub fn principal_name(text: &str) -> Result<Name, PrincipalNameError> {
    let name: Name = text.parse()?;
    if text == LOCAL || text.starts_with(super::ANONYMOUS) {
        return Err(PrincipalNameError::Taken(name));
    }
    Ok(name)
}

impl Principal {
    /// Principal of local clients without access control.
    pub fn local() -> Principal {
        let all = Grant { scope: GrantScope::Everywhere, permissions: vec![Permission::Admin] };
        Principal::new(LOCAL, [all])
    }

    /// Principal with the given grants.
    pub fn new(name: impl Into<Arc<str>>, grants: impl IntoIterator<Item = Grant>) -> Principal {
        Principal { name: name.into(), grants: grants.into_iter().collect(), credential: None }
    }

    pub(super) fn of(credential: &Credential) -> Principal {
        let known = Some(credential.id.as_str().into());
        Principal { credential: known, ..Principal::new(credential.name.as_str(), credential.grants.clone()) }
    }

    /// Whether the principal has a permission in a namespace; `None` means objects outside namespaces.
    pub fn may(&self, verb: Permission, namespace: Option<&Name>) -> bool {
        self.grants.iter().any(|grant| grant.allows(verb, namespace))
    }

    /// Like [`may`](Self::may), but returns a problem.
    pub fn require(&self, verb: Permission, namespace: Option<&Name>) -> Result<(), Problem> {
        if self.may(verb, namespace) {
            return Ok(());
        }
        let place = namespace
            .map_or_else(|| "in '*' (all namespaces)".to_owned(), |name| format!("in namespace {name}"));
        let realm = namespace.map_or("'*'", |name| name.as_str());
        let detail = format!("{} lacks the permission {verb} {place}", self.name);
        Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", detail).remedy(format!(
            "an administrator can create a credential with it: `tenure credentials create --name NAME --grant {realm}:{verb}`"
        )))
    }

    /// Check the permission to list a namespace. Without a namespace the check passes: the list is filtered.
    pub fn require_list(&self, namespace: Option<&Name>) -> Result<(), Problem> {
        namespace.map_or(Ok(()), |namespace| self.require(Permission::Read, Some(namespace)))
    }
}

impl<S: Sync> FromRequestParts<S> for Principal {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Principal, Problem> {
        parts
            .extensions
            .get::<Principal>()
            .cloned()
            .ok_or_else(|| super::unknown("unauthenticated", "the request has no principal"))
    }
}
