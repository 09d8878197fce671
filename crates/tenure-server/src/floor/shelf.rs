//! Looks that many share: one while somebody waits for it, and kept while it is fresh.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::Moment;
use tenure::port::{StoreError, Trouble};
use tenure::runtime::Runtime;

/// For how long a look is fresh.
pub(crate) const FRESH: Duration = Duration::from_millis(800);
/// A look that took long is fresh for this many times as long.
pub(crate) const LEISURE: u32 = 10;
/// How long one request to the store may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many different looks of one sort are kept.
const KEPT: usize = 64;

/// A request to the store, bounded: one that hangs must not stop all others.
pub(crate) async fn within<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = || StoreError::new(Trouble::Timeout, format!("the store did not answer within {PATIENCE:?}"));
    tokio::time::timeout(PATIENCE, request).await.unwrap_or_else(|_| Err(late()))
}

/// Looks of one sort, each kept while it is fresh.
pub(crate) struct Shelf<K, V>(Mutex<HashMap<K, Arc<Place<V>>>>);

/// Until when it is fresh, and what was seen or why it was not.
type Place<V> = tokio::sync::Mutex<Option<(Moment, Result<V, StoreError>)>>;

impl<K, V> Default for Shelf<K, V> {
    fn default() -> Self {
        Shelf(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Shelf<K, V> {
    pub(crate) async fn get(
        &self,
        key: K,
        runtime: &dyn Runtime,
        look: impl Future<Output = Result<V, StoreError>>,
    ) -> Result<V, StoreError> {
        let place = {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if places.len() >= KEPT && !places.contains_key(&key) {
                // Those that somebody waits for are not lost: they have them.
                places.clear();
            }
            places.entry(key).or_default().clone()
        };
        let mut place = place.lock().await;
        let begun = runtime.now();
        if let Some((_, seen)) = place.as_ref().filter(|(until, _)| begun < *until) {
            return seen.clone();
        }
        let seen = within(look).await;
        let now = runtime.now();
        *place = Some((now + FRESH.max(now.since(begun) * LEISURE), seen.clone()));
        seen
    }

    /// Forgets what is not fresh any more.
    pub(crate) fn sweep(&self, now: Moment) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is locked is being looked at.
        places.retain(|_, place| {
            place.try_lock().map_or(true, |place| place.as_ref().is_some_and(|(until, _)| now < *until))
        });
    }

    /// Forgets all of it.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tenure::runtime::System;

    use super::*;

    #[tokio::test]
    async fn however_many_ask_the_store_is_asked_once() {
        let (shelf, asked) = (Shelf::<u8, u32>::default(), AtomicU32::new(0));
        let look = || async {
            tokio::task::yield_now().await;
            Ok(asked.fetch_add(1, Ordering::Relaxed))
        };
        let all = futures_util::future::join_all((0..100).map(|_| shelf.get(1, &System, look()))).await;
        assert!(all.iter().all(|seen| *seen == Ok(0)));
        // After a change from here it is asked again.
        shelf.clear();
        assert_eq!(shelf.get(1, &System, look()).await, Ok(1));
        for n in 0..200 {
            let _ = shelf.get(n, &System, look()).await;
        }
        let kept = || shelf.0.lock().expect("sound").len();
        assert!((1..=KEPT).contains(&kept()));
        shelf.sweep(System.now() + Duration::from_secs(60));
        assert_eq!(kept(), 0);
    }
}
