//! Which elections this process has to do with: only what is about them is watched.
//!
//! Whatever it was ever asked about counts. Who asked about nothing yet, about everything, or about very much, watches everything of ours.

use std::collections::BTreeSet;

use tenure_core::ElectionKey;
use tokio::sync::watch;

/// The most elections that are asked for by name.
pub(super) const NAMED_MAX: usize = 32;

/// The elections that are watched; `None` for all.
pub(super) type Watched = Option<BTreeSet<ElectionKey>>;

pub(super) struct Interest(watch::Sender<Watched>);

impl Default for Interest {
    fn default() -> Interest {
        Interest(watch::channel(Some(BTreeSet::new())).0)
    }
}

impl Interest {
    /// These too.
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

    /// All of them.
    pub(super) fn add_all(&self) {
        self.0.send_if_modified(|watched| watched.take().is_some());
    }

    /// What is to be watched, and whether that has changed.
    pub(super) fn follow(&self) -> watch::Receiver<Watched> {
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
    fn who_is_asked_about_more_is_told_so_and_about_very_much_watches_everything() {
        let interest = Interest::default();
        let mut told = interest.follow();
        interest.add(&[]);
        assert!(!told.has_changed().unwrap());
        interest.add(&keys(0..2));
        assert!(
            told.has_changed().unwrap()
                && told.borrow_and_update().as_ref().is_some_and(|all| all.len() == 2)
        );
        interest.add(&keys(0..2));
        assert!(!told.has_changed().unwrap(), "nothing new");
        interest.add(&keys(0..NAMED_MAX + 1));
        assert!(told.has_changed().unwrap() && told.borrow_and_update().is_none());
        interest.add(&keys(90..91));
        interest.add_all();
        assert!(!told.has_changed().unwrap(), "it is everything already");
    }
}
