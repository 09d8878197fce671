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
}

impl Pod {
    pub(super) fn new(key: Option<String>, name: String) -> Pod {
        Pod { key, name, led: Mutex::default() }
    }

    /// Whether a label is wanted.
    pub(super) fn is_labelled(&self) -> bool {
        self.key.is_some()
    }

    /// A session of this process was granted something.
    pub(super) fn leads(&self, api: &Arc<Api>, take: &Take) {
        self.change(api, |led| {
            led.insert((take.session.clone(), take.election.clone(), take.slot));
        });
    }

    /// It gives something back.
    pub(super) fn leads_no_more(&self, api: &Arc<Api>, release: &Release) {
        self.change(api, |led| {
            led.remove(&(release.session.clone(), release.election.clone(), release.slot));
        });
    }

    /// It is over.
    pub(super) fn leads_nothing(&self, api: &Arc<Api>, session: &SessionId) {
        self.change(api, |led| led.retain(|(id, ..)| id != session));
    }

    fn change(&self, api: &Arc<Api>, act: impl FnOnce(&mut BTreeSet<(SessionId, ElectionKey, u32)>)) {
        let Some(key) = self.key.clone() else { return };
        let value = {
            let mut led = self.led.lock().unwrap_or_else(PoisonError::into_inner);
            act(&mut led);
            led.first().map(|(_, election, _)| label(election))
        };
        let (api, name) = (api.clone(), self.name.clone());
        tokio::spawn(async move {
            if let Err(error) = api.label_pod(&name, &key, value.as_deref()).await {
                tracing::warn!("the label {key} of the pod {name} is not as it should be: {error}");
            }
        });
    }
}

/// The election's name, if a label can say it.
fn label(election: &ElectionKey) -> String {
    let name = election.name.as_str();
    if is_label_value(name) { name.into() } else { "true".into() }
}
