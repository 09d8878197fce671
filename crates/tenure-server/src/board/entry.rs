//! One election, as it is shown.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tenure::port::ElectionView;

/// One election as it was seen, ready to be shown. Reads like the [`ElectionView`] that it is.
#[derive(Debug)]
pub struct Entry {
    view: ElectionView,
    version: Arc<str>,
    rendered: OnceLock<Bytes>,
}

impl Deref for Entry {
    type Target = ElectionView;
    fn deref(&self) -> &ElectionView {
        &self.view
    }
}

impl Entry {
    /// An election as it was just seen.
    pub fn new(view: ElectionView) -> Entry {
        let version = version(&view);
        Entry { view, version, rendered: OnceLock::new() }
    }

    /// What there is to see, in short: the same on every server for the same content, beats aside.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether the two show the same, beats included.
    pub(super) fn is_same(&self, other: &Entry) -> bool {
        self.version == other.version && self.view == other.view
    }

    /// What `render` makes of it, made once and shared by all who ask.
    pub(crate) fn rendered(&self, render: impl FnOnce(&Entry) -> Bytes) -> Bytes {
        self.rendered.get_or_init(|| render(self)).clone()
    }
}

/// A digest of all but the beats, which go on all the time and change nothing.
fn version(view: &ElectionView) -> Arc<str> {
    let mut still = view.clone();
    let holders = still.leases.iter_mut().filter_map(|lease| lease.holder.as_mut());
    for session in holders.chain(still.candidates.iter_mut().map(|candidate| &mut candidate.session)) {
        (session.beat, session.beat_at_ms) = (0, 0);
    }
    digest(&still).into()
}

/// The first 64 bits of a SHA-256, in hexadecimal.
fn digest(value: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let hash = Sha256::digest(bytes);
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}
