//! Who asks, and whether they may.
//!
//! There is one gate, in front of every route; it knows the route's [`Need`] and who asks, and denies what nobody
//! allowed.

pub mod token;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tenure::Name;
use tenure::port::{Grant, Realm, Verb};

use crate::App;
use crate::route::Need;

/// How this server finds out who asks.
#[derive(Debug, Default)]
pub enum Access {
    /// Everybody who gets through to it is trusted: on loopback or a unix socket only.
    #[default]
    Open,
}

/// Whoever asks.
#[derive(Clone, Debug)]
pub struct Principal {
    /// What people call it.
    pub name: Arc<str>,
    /// What it may do.
    pub grants: Arc<[Grant]>,
}

impl Principal {
    /// Whoever is on this machine, where access control is off.
    pub fn local() -> Principal {
        let all = Grant { realm: Realm::Everywhere, verbs: vec![Verb::Admin] };
        Principal { name: "local".into(), grants: [all].into() }
    }

    /// Whether it may do this there; `None` asks for what belongs to no namespace.
    pub fn may(&self, verb: Verb, namespace: Option<&Name>) -> bool {
        self.grants.iter().any(|grant| grant.allows(verb, namespace))
    }
}

/// Lets a request through to its route, as its principal, or answers it.
pub(crate) async fn gate(
    State((_app, _need)): State<(App, Need)>,
    mut request: Request,
    next: Next,
) -> Response {
    request.extensions_mut().insert(Principal::local());
    next.run(request).await.into_response()
}
