//! One election, as it is shown.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tenure::port::{Backend, ElectionView, StoreError, Term};
use tokio::sync::OnceCell;

use super::TERMS_MAX;

/// One election as it was seen, ready to be shown. Reads like the [`ElectionView`] that it is.
#[derive(Debug)]
pub struct Entry {
    view: ElectionView,
    /// What `render` made of all of it, beats included.
    whole: OnceLock<Bytes>,
    content: Arc<Content>,
}

/// What does not change with beats, shared by all entries of one version.
#[derive(Debug)]
struct Content {
    version: String,
    leader: OnceLock<Bytes>,
    terms: OnceCell<Arc<[Term]>>,
}

impl Deref for Entry {
    type Target = ElectionView;
    fn deref(&self) -> &ElectionView {
        &self.view
    }
}

impl Entry {
    /// An election as it was just seen, after it was seen like that before.
    pub(super) fn new(view: ElectionView, before: Option<&Entry>) -> Entry {
        let version = version(&view);
        let content = before.map(|entry| &entry.content).filter(|content| content.version == version);
        let content = content.cloned().unwrap_or_else(|| {
            Arc::new(Content { version, leader: OnceLock::new(), terms: OnceCell::new() })
        });
        Entry { view, whole: OnceLock::new(), content }
    }

    /// What there is to see, in short: the same on every server for the same content, beats aside.
    pub fn version(&self) -> &str {
        &self.content.version
    }

    /// Whether the two show the same, beats included.
    pub(super) fn is_same(&self, other: &Entry) -> bool {
        Arc::ptr_eq(&self.content, &other.content) && self.view == other.view
    }

    /// What `render` makes of it, made once and shared by all who ask.
    pub(crate) fn whole(&self, render: impl FnOnce(&Entry) -> Bytes) -> Bytes {
        self.whole.get_or_init(|| render(self)).clone()
    }

    /// What `render` makes of its leaders, made once and shared by all who ask.
    pub(crate) fn leader(&self, render: impl FnOnce(&Entry) -> Bytes) -> Bytes {
        self.content.leader.get_or_init(|| render(self)).clone()
    }

    /// Its last terms, newest first, read once and shared by all who ask: no term begins or ends without a new version.
    pub(super) async fn terms(&self, store: &dyn Backend) -> Result<Arc<[Term]>, StoreError> {
        let read = || async { Ok(store.history(&self.view.key, TERMS_MAX).await?.into()) };
        self.content.terms.get_or_try_init(read).await.cloned()
    }
}

/// A digest of all but the beats, which go on all the time and change nothing.
fn version(view: &ElectionView) -> String {
    let mut still = view.clone();
    let holders = still.leases.iter_mut().filter_map(|lease| lease.holder.as_mut());
    for session in holders.chain(still.candidates.iter_mut().map(|candidate| &mut candidate.session)) {
        (session.beat, session.beat_at_ms) = (0, 0);
    }
    digest(&still)
}

/// The first 64 bits of a SHA-256, in hexadecimal.
fn digest(value: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let hash = Sha256::digest(bytes);
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
