//! What operators did, recorded: the one place through which this API writes the audit.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;
use tenure::port::Deed;
use tenure::{ElectionKey, Name};

use crate::App;
use crate::access::Principal;
use crate::envelope::RequestId;

/// Who does something, by which request.
#[derive(Clone)]
pub(crate) struct By {
    /// What they are called.
    pub(super) principal: Arc<str>,
    request_id: String,
}

impl By {
    /// By which request.
    pub(super) fn request_id(&self) -> &str {
        &self.request_id
    }
}

impl<S: Send + Sync> FromRequestParts<S> for By {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        // Without a principal the gate lets nobody through.
        let principal =
            parts.extensions.get::<Principal>().map_or_else(|| "nobody".into(), |p| p.name.clone());
        let RequestId(id) = RequestId::from_request_parts(parts, state).await?;
        Ok(By { principal, request_id: id.to_string() })
    }
}

/// Records a deed that was done to an election.
pub(super) async fn record(app: &App, by: &By, action: &str, key: &ElectionKey, detail: String) {
    record_of(app, by, action, &key.namespace, key.name.as_str(), detail).await;
}

/// Records a deed that was done. It was done whether or not it can be recorded: then the log has it.
pub(super) async fn record_of(
    app: &App,
    by: &By,
    action: &str,
    namespace: &Name,
    target: &str,
    detail: String,
) {
    let deed = Deed {
        n: 0,
        at_ms: app.runtime.wall_ms(),
        principal: by.principal.to_string(),
        action: action.into(),
        namespace: Some(namespace.clone()),
        target: target.into(),
        detail,
        request_id: by.request_id.clone(),
    };
    app.record(&deed).await;
}
