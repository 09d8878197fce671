//! The elections to watch.
//!
//! The scope contains every election that this process has used. Before the first use, after a request for all
//! elections, or beyond a limit, the scope is all objects of Tenure.

use std::collections::BTreeSet;

use tenure_core::ElectionKey;
use tokio::sync::watch;

/// Maximum number of elections in a label selector.
pub(super) const NAMED_MAX: usize = 32;

/// The elections to watch; `None` means all.
pub(super) type WatchScope = Option<BTreeSet<ElectionKey>>;

pub(super) struct WatchScopeSender(watch::Sender<WatchScope>);

impl Default for WatchScopeSender {
    fn default() -> WatchScopeSender {
        WatchScopeSender(watch::channel(Some(BTreeSet::new())).0)
    }
}

impl WatchScopeSender {
    /// Add elections to the scope.
    pub(super) fn add(&self, keys: &[ElectionKey]) {
        self.0.send_if_modified(|watched| {
            let Some(known) = watched else { return false };
            let count = known.len();
            known.extend(keys.iter().cloned());
            let is_more = known.len() > count;
            if known.len() > NAMED_MAX {
                *watched = None;
            }
            is_more
        });
    }

    /// Extend the scope to all elections.
    pub(super) fn add_all(&self) {
        self.0.send_if_modified(|watched| watched.take().is_some());
    }

    /// Subscribe to the scope.
    pub(super) fn follow(&self) -> watch::Receiver<WatchScope> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(range: std::ops::Range<usize>) -> Vec<ElectionKey> {
        range
            .map(|n| ElectionKey::new("default".parse().unwrap(), format!("e{n}").parse().unwrap()))
            .collect()
    }

    #[test]
    fn the_scope_grows_and_beyond_the_limit_contains_all_elections() {
        let watch_scope = WatchScopeSender::default();
        let mut receiver = watch_scope.follow();
        watch_scope.add(&[]);
        assert!(!receiver.has_changed().unwrap());
        watch_scope.add(&keys(0..2));
        assert!(
            receiver.has_changed().unwrap()
                && receiver.borrow_and_update().as_ref().is_some_and(|all| all.len() == 2)
        );
        watch_scope.add(&keys(0..2));
        assert!(!receiver.has_changed().unwrap(), "nothing new");
        watch_scope.add(&keys(0..NAMED_MAX + 1));
        assert!(receiver.has_changed().unwrap() && receiver.borrow_and_update().is_none());
        watch_scope.add(&keys(90..91));
        watch_scope.add_all();
        assert!(!receiver.has_changed().unwrap(), "the scope already contains all elections");
    }
}
