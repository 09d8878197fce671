//! Label of the leading pod, for services that select by it.
//!
//! The label is updated after the fact and is never read to decide leadership. A pod that is disconnected keeps its
//! label until it reconnects.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::port::{ReleaseLeaseRequest, TakeLeaseRequest};
use tenure_core::{ElectionKey, SessionId};

use super::address::is_label_value;
use super::api::Api;

/// The pod of this process, and the label it has while it leads.
pub(super) struct LeaderLabel {
    key: Option<String>,
    name: String,
    held_leases: Mutex<BTreeSet<(SessionId, ElectionKey, u32)>>,
    /// Serializes the writes; each one writes the current state, so the last one is correct.
    writing: tokio::sync::Mutex<()>,
}

impl LeaderLabel {
    pub(super) fn new(key: Option<String>, name: String) -> LeaderLabel {
        LeaderLabel { key, name, held_leases: Mutex::default(), writing: tokio::sync::Mutex::default() }
    }

    /// Whether the pod is labelled.
    pub(super) fn is_labelled(&self) -> bool {
        self.key.is_some()
    }

    /// A session of this process took a lease.
    pub(super) fn lease_taken(self: &Arc<Self>, api: &Arc<Api>, take: &TakeLeaseRequest) {
        self.change(api, |held_leases| {
            held_leases.insert((take.session.clone(), take.election.clone(), take.slot));
        });
    }

    /// The session releases a lease.
    pub(super) fn lease_released(self: &Arc<Self>, api: &Arc<Api>, release: &ReleaseLeaseRequest) {
        self.change(api, |held_leases| {
            held_leases.remove(&(release.session.clone(), release.election.clone(), release.slot));
        });
    }

    /// The session has ended.
    pub(super) fn session_ended(self: &Arc<Self>, api: &Arc<Api>, session: &SessionId) {
        self.change(api, |held_leases| held_leases.retain(|(id, ..)| id != session));
    }

    fn change(
        self: &Arc<Self>,
        api: &Arc<Api>,
        act: impl FnOnce(&mut BTreeSet<(SessionId, ElectionKey, u32)>),
    ) {
        if self.key.is_none() {
            return;
        }
        act(&mut self.held_leases.lock().unwrap_or_else(PoisonError::into_inner));
        let (pod, api) = (self.clone(), api.clone());
        tokio::spawn(async move { pod.write(&api).await });
    }

    async fn write(&self, api: &Api) {
        let Some(key) = &self.key else { return };
        let _writing = self.writing.lock().await;
        let value = self
            .held_leases
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .first()
            .map(|(_, of, _)| label(of));
        if let Err(error) = api.label_pod(&self.name, key, value.as_deref()).await {
            tracing::warn!("pod label not updated label={key} pod={}: {error}", self.name);
        }
    }
}

/// Name of the election, if it is a valid label value.
fn label(election: &ElectionKey) -> String {
    let name = election.name.as_str();
    if is_label_value(name) { name.into() } else { "true".into() }
}
