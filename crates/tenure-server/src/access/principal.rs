//! Whoever asks.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;
use tenure::port::{Credential, Grant, Realm, Verb};
use tenure::{Name, NameError};

use crate::problem::Problem;

/// Whoever asks.
#[derive(Clone, Debug)]
pub struct Principal {
    /// What people call it.
    pub name: Arc<str>,
    /// What it may do.
    pub grants: Arc<[Grant]>,
    /// By which credential it proved who it is.
    pub(super) credential: Option<Arc<str>>,
}

/// What whoever is on this machine is called where access control is off.
const LOCAL: &str = "local";

/// Why nobody can be called so.
#[derive(Debug, thiserror::Error)]
pub enum NameRefused {
    /// It is no name.
    #[error(transparent)]
    Shape(#[from] NameError),
    /// It is somebody else's.
    #[error("{0} is what a server calls those without a name; choose another")]
    Taken(Name),
}

/// Reads the name of a principal. It goes where names go: into logs, to sessions as their owner, and on accounts.
///
/// ```
/// use tenure_server::access::principal_name;
///
/// assert!(principal_name("worker-1").is_ok());
/// for text in ["local", "strangers", "strangers-1", "a b", "a\n"] {
///     assert!(principal_name(text).is_err(), "{text:?}");
/// }
/// ```
pub fn principal_name(text: &str) -> Result<Name, NameRefused> {
    let name: Name = text.parse()?;
    if text == LOCAL || text.starts_with(super::STRANGERS) {
        return Err(NameRefused::Taken(name));
    }
    Ok(name)
}

impl Principal {
    /// Whoever is on this machine, where access control is off.
    pub fn local() -> Principal {
        let all = Grant { realm: Realm::Everywhere, verbs: vec![Verb::Admin] };
        Principal::new(LOCAL, [all])
    }

    /// Somebody who may do this.
    pub fn new(name: impl Into<Arc<str>>, grants: impl IntoIterator<Item = Grant>) -> Principal {
        Principal { name: name.into(), grants: grants.into_iter().collect(), credential: None }
    }

    pub(super) fn of(credential: &Credential) -> Principal {
        let known = Some(credential.id.as_str().into());
        Principal { credential: known, ..Principal::new(credential.name.as_str(), credential.grants.clone()) }
    }

    /// Whether it may do this there; `None` asks for what belongs to no namespace.
    pub fn may(&self, verb: Verb, namespace: Option<&Name>) -> bool {
        self.grants.iter().any(|grant| grant.allows(verb, namespace))
    }

    /// As [`may`](Self::may), with the answer for whoever may not.
    pub fn must(&self, verb: Verb, namespace: Option<&Name>) -> Result<(), Problem> {
        if self.may(verb, namespace) {
            return Ok(());
        }
        let place = namespace
            .map_or_else(|| "in '*', over all namespaces".to_owned(), |name| format!("in namespace {name}"));
        let realm = namespace.map_or("'*'", |name| name.as_str());
        let detail = format!("{} may not {verb} {place}", self.name);
        Err(Problem::new(StatusCode::FORBIDDEN, "denied", detail).remedy(format!(
            "somebody with admin rights can grant it: `tenure token create --name NAME --grant {realm}:{verb}`"
        )))
    }

    /// Whether it may list what is in this namespace. Without one nobody is refused: the list has what they may read.
    pub fn must_list(&self, namespace: Option<&Name>) -> Result<(), Problem> {
        namespace.map_or(Ok(()), |namespace| self.must(Verb::Read, Some(namespace)))
    }
}

impl<S: Sync> FromRequestParts<S> for Principal {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Principal, Problem> {
        parts
            .extensions
            .get::<Principal>()
            .cloned()
            .ok_or_else(|| super::unknown("unauthenticated", "nobody asks"))
    }
}
