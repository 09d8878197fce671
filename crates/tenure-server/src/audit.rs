//! Who did what: written down in the store.

use tenure::Name;
use tenure::port::Deed;

use crate::access::Principal;
use crate::metrics::names;
use crate::{App, RequestId};

impl App {
    /// Records what somebody did. It was done whether or not it can be recorded: then the log has it, and a metric counts
    /// it, but the request does not fail.
    pub async fn audit(
        &self,
        principal: &Principal,
        action: &str,
        namespace: Option<&Name>,
        target: &str,
        detail: impl Into<String>,
        request: &RequestId,
    ) {
        let deed = Deed {
            n: 0,
            at_ms: self.runtime.wall_ms(),
            principal: principal.name.to_string(),
            action: action.into(),
            namespace: namespace.cloned(),
            target: target.into(),
            detail: detail.into(),
            request_id: request.0.to_string(),
        };
        self.record(&deed).await;
    }

    /// Records a deed.
    pub(crate) async fn record(&self, deed: &Deed) {
        let namespace = deed.namespace.as_ref().map_or("*", Name::as_str);
        let Deed { principal, action, target, detail, request_id: id, .. } = deed;
        tracing::info!(target: "tenure_server::audit", id, principal, action, namespace, what = target, detail);
        if let Err(error) = self.store.record(deed).await {
            ::metrics::counter!(names::AUDIT_FAILURES).increment(1);
            tracing::error!(
                id,
                principal,
                action,
                namespace,
                what = target,
                detail,
                "not recorded in the audit: {error}"
            );
        }
    }
}
