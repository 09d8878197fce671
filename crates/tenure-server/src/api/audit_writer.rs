//! Audit entries: the only place where the API writes to the audit log.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use tenure::port::AuditEntry;
use tenure::{ElectionKey, Name};

use crate::App;
use crate::access::Principal;
use crate::middleware::RequestId;

/// Principal and request id of an audited change.
#[derive(Clone)]
pub(crate) struct AuditActor {
    /// Name of the principal.
    pub(super) principal: Arc<str>,
    request_id: String,
}

impl AuditActor {
    /// Request id.
    pub(super) fn request_id(&self) -> &str {
        &self.request_id
    }
}

impl<S: Send + Sync> FromRequestParts<S> for AuditActor {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        // The access middleware rejects requests without a principal.
        let principal =
            parts.extensions.get::<Principal>().map_or_else(|| "unknown".into(), |p| p.name.clone());
        let RequestId(id) = RequestId::from_request_parts(parts, state).await?;
        Ok(AuditActor { principal, request_id: id.to_string() })
    }
}

/// Record a change of an election.
pub(super) async fn record(app: &App, by: &AuditActor, action: &str, key: &ElectionKey, detail: String) {
    record_of(app, by, action, &key.namespace, key.name.as_str(), detail).await;
}

/// Record a change that has been made. If the store rejects the entry, it is logged instead.
pub(super) async fn record_of(
    app: &App,
    by: &AuditActor,
    action: &str,
    namespace: &Name,
    target: &str,
    detail: String,
) {
    let entry = AuditEntry {
        seq: 0,
        recorded_at_ms: app.runtime.wall_ms(),
        principal: by.principal.to_string(),
        action: action.into(),
        namespace: Some(namespace.clone()),
        target: target.into(),
        detail,
        request_id: by.request_id.clone(),
    };
    app.record(&entry).await;
}
