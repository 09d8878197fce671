//! Authentication and authorization.
//!
//! One middleware in front of every route checks the route's
//! [`RequiredPermission`](crate::route::RequiredPermission) and denies everything that is not granted. A
//! client proves its identity with an access token (`Authorization: Bearer`), a client certificate, or the
//! cookie of a dashboard session. Credentials are in the store and are read every two seconds, so a
//! revocation takes effect within seconds on every replica.

pub mod access_token;
mod answer;
mod body;
mod browser;
mod credential_cache;
mod middleware;
mod principal;
mod session;
mod session_owners;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};
use tenure::port::Store;
use tenure::runtime::Runtime;

pub(crate) use self::browser::{cookie, no_cookie};
pub use self::credential_cache::CredentialCache;
pub use self::middleware::RequestPermitHandle;
pub(crate) use self::middleware::{DeniedPrincipal, authorize, check_unrouted_request};
pub use self::principal::{Principal, PrincipalNameError, principal_name};
pub use self::session::is_dashboard_session;
pub(crate) use self::session_owners::SessionOwners;
use crate::problem::Problem;

/// Prefix of the accounts of unauthenticated clients. No principal has such a name.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Challenge for unauthenticated clients.
pub(crate) const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"tenure\"");

/// Whether the server requires credentials.
#[derive(Debug, Default)]
pub enum AccessMode {
    /// Every client that can connect is trusted: only on loopback or a Unix socket.
    #[default]
    Open,
    /// Every client needs a credential.
    Guarded(Arc<CredentialCache>),
}

impl AccessMode {
    /// Require the credentials of the store.
    pub async fn guarded(
        store: Arc<dyn Store>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<AccessMode, tenure::port::StoreError> {
        CredentialCache::start(store, runtime).await.map(AccessMode::Guarded)
    }

    /// Create a dashboard session for an access token. Returns the cookie, or `None` if the server requires
    /// no credentials.
    pub(crate) async fn log_in(&self, token: &str) -> Result<Option<String>, Problem> {
        match self {
            AccessMode::Open => Ok(None),
            AccessMode::Guarded(credentials) => credentials.log_in(token.trim()).await.map(Some),
        }
    }

    /// End the dashboard session of a request, if it has one.
    pub(crate) async fn log_out(&self, headers: &HeaderMap, tls: bool) -> Result<(), Problem> {
        match (self, browser::cookie_of(headers, tls)) {
            (AccessMode::Guarded(credentials), Some(cookie)) => credentials.log_out(cookie).await,
            _ => Ok(()),
        }
    }

    /// Refresh the credentials after a change through this server.
    pub(crate) async fn refresh(&self) {
        if let AccessMode::Guarded(credentials) = self {
            credentials.read().await;
        }
    }
}

/// Problem: missing or invalid credential.
fn unknown(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, code, detail).remedy(
        "send `Authorization: Bearer` with an access token; create one with `tenure credentials create --name NAME --grant NAMESPACE:read,lead`",
    )
}
