//! Keyed cache: concurrent requests share one read, and its result is kept while it is fresh.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::BootInstant;
use tenure::port::{ErrorKind, StoreError};
use tenure::runtime::Runtime;

/// How long a result is fresh.
pub(crate) const FRESH: Duration = Duration::from_millis(800);
/// A slow result is fresh for this many times its duration.
pub(crate) const BACKOFF_FACTOR: u32 = 10;
/// Timeout of one store call.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of cached results of one kind.
const KEPT: usize = 64;

/// Run a store call with a timeout, so that a hanging call does not block the others.
pub(crate) async fn with_timeout<T>(
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let late =
        || StoreError::new(ErrorKind::Timeout, format!("the store did not respond within {STORE_TIMEOUT:?}"));
    tokio::time::timeout(STORE_TIMEOUT, request).await.unwrap_or_else(|_| Err(late()))
}

/// Cached results of one kind.
pub(crate) struct Cache<K, V>(Mutex<HashMap<K, Arc<CacheCell<V>>>>);

/// Expiry and result of a read.
type CacheCell<V> = tokio::sync::Mutex<Option<(BootInstant, Result<V, StoreError>)>>;

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Cache(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    pub(crate) async fn get(
        &self,
        key: K,
        runtime: &dyn Runtime,
        read: impl Future<Output = Result<V, StoreError>>,
    ) -> Result<V, StoreError> {
        let place = {
            let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if places.len() >= KEPT && !places.contains_key(&key) {
                // Waiting requests keep their own handles.
                places.clear();
            }
            places.entry(key).or_default().clone()
        };
        let mut place = place.lock().await;
        let begun = runtime.now();
        if let Some((_, snapshot)) = place.as_ref().filter(|(until, _)| begun < *until) {
            return snapshot.clone();
        }
        let snapshot = with_timeout(read).await;
        let now = runtime.now();
        *place = Some((now + FRESH.max(now.since(begun) * BACKOFF_FACTOR), snapshot.clone()));
        snapshot
    }

    /// Drop expired results.
    pub(crate) fn sweep(&self, now: BootInstant) {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A locked cell is being read.
        places.retain(|_, place| {
            place.try_lock().map_or(true, |place| place.as_ref().is_some_and(|(until, _)| now < *until))
        });
    }

    /// Drop all results.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tenure::runtime::SystemRuntime;

    use super::*;

    #[tokio::test]
    async fn concurrent_requests_share_one_read() {
        let (cache, reads) = (Cache::<u8, u32>::default(), AtomicU32::new(0));
        let read = || async {
            tokio::task::yield_now().await;
            Ok(reads.fetch_add(1, Ordering::Relaxed))
        };
        let all =
            futures_util::future::join_all((0..100).map(|_| cache.get(1, &SystemRuntime, read()))).await;
        assert!(all.iter().all(|snapshot| *snapshot == Ok(0)));
        // After `clear` the store is read again.
        cache.clear();
        assert_eq!(cache.get(1, &SystemRuntime, read()).await, Ok(1));
        for n in 0..200 {
            let _ = cache.get(n, &SystemRuntime, read()).await;
        }
        let kept = || cache.0.lock().expect("sound").len();
        assert!((1..=KEPT).contains(&kept()));
        cache.sweep(SystemRuntime.now() + Duration::from_secs(60));
        assert_eq!(kept(), 0);
    }
}
