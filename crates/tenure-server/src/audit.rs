//! Writing audit entries to the store.

use tenure::Name;
use tenure::port::AuditEntry;

use crate::access::Principal;
use crate::metrics::names;
use crate::{App, RequestId};

impl App {
    /// Record a change that a principal made. If the store rejects the entry, it is logged and counted, and
    /// the request still succeeds.
    pub async fn audit(
        &self,
        principal: &Principal,
        action: &str,
        namespace: Option<&Name>,
        target: &str,
        detail: impl Into<String>,
        request: &RequestId,
    ) {
        let entry = AuditEntry {
            seq: 0,
            recorded_at_ms: self.runtime.wall_ms(),
            principal: principal.name.to_string(),
            action: action.into(),
            namespace: namespace.cloned(),
            target: target.into(),
            detail: detail.into(),
            request_id: request.0.to_string(),
        };
        self.record(&entry).await;
    }

    /// Write an audit entry.
    pub(crate) async fn record(&self, entry: &AuditEntry) {
        let namespace = entry.namespace.as_ref().map_or("*", Name::as_str);
        let AuditEntry { principal, action, target, detail, request_id: id, .. } = entry;
        tracing::info!(target: "tenure_server::audit", id, principal, action, namespace, what = target, detail);
        if let Err(error) = self.store.append_audit(entry).await {
            ::metrics::counter!(names::AUDIT_WRITE_FAILURES).increment(1);
            tracing::error!(
                id,
                principal,
                action,
                namespace,
                what = target,
                detail,%error, "writing an audit entry failed");
        }
    }
}
