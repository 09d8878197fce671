//! The label of the leader's pod, for services that select by it.
//!
//! It follows the truth at a distance, and is never asked who leads: a pod that is cut off keeps its label until it is back.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::port::{Release, Take};
use tenure_core::{ElectionKey, SessionId};

use super::address::is_label_value;
use super::api::Api;

/// The pod that this process runs in, and the label that it wants to have while it leads.
pub(super) struct Pod {
    key: Option<String>,
    name: String,
    led: Mutex<BTreeSet<(SessionId, ElectionKey, u32)>>,
    /// One after the other, each by what is so then: so the last one is right.
    writing: tokio::sync::Mutex<()>,
}

impl Pod {
    pub(super) fn new(key: Option<String>, name: String) -> Pod {
        Pod { key, name, led: Mutex::default(), writing: tokio::sync::Mutex::default() }
    }

    /// Whether a label is wanted.
    pub(super) fn is_labelled(&self) -> bool {
        self.key.is_some()
    }

    /// A session of this process was granted something.
    pub(super) fn leads(self: &Arc<Self>, api: &Arc<Api>, take: &Take) {
        self.change(api, |led| {
            led.insert((take.session.clone(), take.election.clone(), take.slot));
        });
    }

    /// It gives something back.
    pub(super) fn leads_no_more(self: &Arc<Self>, api: &Arc<Api>, release: &Release) {
        self.change(api, |led| {
            led.remove(&(release.session.clone(), release.election.clone(), release.slot));
        });
    }

    /// It is over.
    pub(super) fn leads_nothing(self: &Arc<Self>, api: &Arc<Api>, session: &SessionId) {
        self.change(api, |led| led.retain(|(id, ..)| id != session));
    }

    fn change(
        self: &Arc<Self>,
        api: &Arc<Api>,
        act: impl FnOnce(&mut BTreeSet<(SessionId, ElectionKey, u32)>),
    ) {
        if self.key.is_none() {
            return;
        }
        act(&mut self.led.lock().unwrap_or_else(PoisonError::into_inner));
        let (pod, api) = (self.clone(), api.clone());
        tokio::spawn(async move { pod.write(&api).await });
    }

    async fn write(&self, api: &Api) {
        let Some(key) = &self.key else { return };
        let _writing = self.writing.lock().await;
        let led = self.led.lock().unwrap_or_else(PoisonError::into_inner).first().map(|(_, of, _)| label(of));
        if let Err(error) = api.label_pod(&self.name, key, led.as_deref()).await {
            tracing::warn!("the label {key} of the pod {} is not as it should be: {error}", self.name);
        }
    }
}

/// The election's name, if a label can say it.
fn label(election: &ElectionKey) -> String {
    let name = election.name.as_str();
    if is_label_value(name) { name.into() } else { "true".into() }
}
