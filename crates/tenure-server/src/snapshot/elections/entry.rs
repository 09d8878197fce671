//! Cached election.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tenure::port::{ElectionView, Store, StoreError, Term};
use tokio::sync::OnceCell;

use super::TERMS_MAX;

/// Cached election with its rendered forms. Dereferences to [`ElectionView`].
#[derive(Debug)]
pub struct CachedElection {
    view: ElectionView,
    /// Complete JSON form, including heartbeats.
    whole: OnceLock<Bytes>,
    content: Arc<Content>,
}

/// Parts that do not change with heartbeats, shared by all entries of one version.
#[derive(Debug)]
struct Content {
    version: String,
    leader: OnceLock<Bytes>,
    terms: OnceCell<Arc<[Term]>>,
}

impl Deref for CachedElection {
    type Target = ElectionView;
    fn deref(&self) -> &ElectionView {
        &self.view
    }
}

impl CachedElection {
    /// Create an entry from an observation, sharing the content of the previous one if unchanged.
    pub(super) fn new(view: ElectionView, before: Option<&CachedElection>) -> CachedElection {
        let version = version(&view);
        let content = before.map(|entry| &entry.content).filter(|content| content.version == version);
        let content = content.cloned().unwrap_or_else(|| {
            Arc::new(Content { version, leader: OnceLock::new(), terms: OnceCell::new() })
        });
        CachedElection { view, whole: OnceLock::new(), content }
    }

    /// Digest of the content without heartbeats: the same on every server.
    pub fn version(&self) -> &str {
        &self.content.version
    }

    /// Whether two entries are equal, including heartbeats.
    pub(super) fn is_same(&self, other: &CachedElection) -> bool {
        Arc::ptr_eq(&self.content, &other.content) && self.view == other.view
    }

    /// Rendered election, computed once.
    pub(crate) fn json(&self, render: impl FnOnce(&CachedElection) -> Bytes) -> Bytes {
        self.whole.get_or_init(|| render(self)).clone()
    }

    /// Rendered leaders, computed once.
    pub(crate) fn leaders_json(&self, render: impl FnOnce(&CachedElection) -> Bytes) -> Bytes {
        self.content.leader.get_or_init(|| render(self)).clone()
    }

    /// Last terms, newest first, read once: every start or end of a term creates a new version.
    pub(super) async fn terms(&self, store: &dyn Store) -> Result<Arc<[Term]>, StoreError> {
        let read = || async { Ok(store.term_history(&self.view.key, TERMS_MAX).await?.into()) };
        self.content.terms.get_or_try_init(read).await.cloned()
    }
}

/// Digest of everything except heartbeats, which change all the time.
fn version(view: &ElectionView) -> String {
    let mut still = view.clone();
    let holders = still.leases.iter_mut().filter_map(|lease| lease.holder.as_mut());
    for session in holders.chain(still.candidates.iter_mut().map(|candidate| &mut candidate.session)) {
        (session.heartbeat_count, session.heartbeat_at_ms) = (0, 0);
    }
    digest(&still)
}

/// First 64 bits of SHA-256 in hexadecimal.
fn digest(value: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let hash = Sha256::digest(bytes);
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
