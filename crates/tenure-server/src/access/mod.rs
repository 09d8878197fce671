//! Who asks, and whether they may.
//!
//! There is one gate, in front of every route; it knows the route's [`Need`](crate::route::Need) and who asks, and denies
//! what nobody allowed. Who asks is proved by a token (`Authorization: Bearer`), by a client's certificate, or in a browser by
//! the cookie of a dashboard session. What they are worth is in the store, read again every two seconds: what is revoked there is worth nothing
//! within seconds on every replica.

mod answer;
mod body;
mod browser;
mod credentials;
mod gate;
mod owners;
mod principal;
mod session;
pub mod token;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};
use tenure::port::Backend;
use tenure::runtime::Runtime;

pub(crate) use self::browser::{cookie, no_cookie};
pub use self::credentials::Credentials;
pub use self::gate::Slot;
pub(crate) use self::gate::{Denied, astray, gate};
pub(crate) use self::owners::Owners;
pub use self::principal::{NameRefused, Principal, principal_name};
pub use self::session::is_dashboard_session;
use crate::problem::Problem;

/// What the accounts of those without a name begin with. No principal is called so.
pub(crate) const STRANGERS: &str = "strangers";

/// What whoever is not known is asked for.
pub(crate) const CHALLENGE: HeaderValue = HeaderValue::from_static("Bearer realm=\"tenure\"");

/// How this server finds out who asks.
#[derive(Debug, Default)]
pub enum Access {
    /// Everybody who gets through to it is trusted: on loopback or a unix socket only.
    #[default]
    Open,
    /// Everybody has to prove who they are.
    Guarded(Arc<Credentials>),
}

impl Access {
    /// Access for those whom the store knows.
    pub async fn guarded(
        store: Arc<dyn Backend>,
        runtime: Arc<dyn Runtime>,
    ) -> Result<Access, tenure::port::StoreError> {
        Credentials::watching(store, runtime).await.map(Access::Guarded)
    }

    /// Makes a dashboard session for whoever shows an access token; the text of its cookie, or `None` where nobody is
    /// asked for one.
    pub(crate) async fn log_in(&self, token: &str) -> Result<Option<String>, Problem> {
        match self {
            Access::Open => Ok(None),
            Access::Guarded(credentials) => credentials.log_in(token.trim()).await.map(Some),
        }
    }

    /// Ends the dashboard session of a request, if it has one.
    pub(crate) async fn log_out(&self, headers: &HeaderMap, tls: bool) -> Result<(), Problem> {
        match (self, browser::cookie_of(headers, tls)) {
            (Access::Guarded(credentials), Some(cookie)) => credentials.log_out(cookie).await,
            _ => Ok(()),
        }
    }

    /// Reads the credentials again, now that they were changed here.
    pub(crate) async fn refresh(&self) {
        if let Access::Guarded(credentials) = self {
            credentials.read().await;
        }
    }
}

/// Nobody, or not whom they claim to be.
fn unknown(code: &'static str, detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, code, detail).remedy(
        "send `Authorization: Bearer` with a token; `tenure token create --name NAME --grant NAMESPACE:read,lead` makes one",
    )
}
