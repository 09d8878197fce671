//! Cached statistics of schedules.
//!
//! Counting a hundred thousand schedules is expensive for the store, and several scrapers may ask. A result
//! is kept while it is fresh, and longer if it took long ([`Cache`]). Cached data is never written back.

use std::sync::Arc;

use tenure::port::{ScheduleFilter, ScheduleStats, ScheduleView, Store, StoreError};
use tenure::runtime::Runtime;

use crate::snapshot::queues::Cache;

/// Maximum number of schedules with metrics of their own: each is a time series.
const EACH_MAX: u32 = 1_000;

/// Cached statistics of schedules.
pub(crate) struct ScheduleStatsCache {
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    seen: Cache<(), Arc<ScheduleStatsSnapshot>>,
}

/// Statistics as last read.
#[derive(Debug)]
pub(crate) struct ScheduleStatsSnapshot {
    /// Statistics by namespace.
    pub(crate) namespaces: Vec<ScheduleStats>,
    /// All schedules; empty if there are too many for metrics of their own.
    pub(crate) schedules: Vec<ScheduleView>,
}

impl ScheduleStatsCache {
    pub(crate) fn new(store: Arc<dyn Store>, runtime: Arc<dyn Runtime>) -> ScheduleStatsCache {
        ScheduleStatsCache { store, runtime, seen: Cache::default() }
    }

    /// Statistics, at most about one second old while the store is fast.
    pub(crate) async fn snapshot(&self) -> Result<Arc<ScheduleStatsSnapshot>, StoreError> {
        self.seen.get((), self.runtime.as_ref(), self.look()).await
    }

    async fn look(&self) -> Result<Arc<ScheduleStatsSnapshot>, StoreError> {
        let namespaces = self.store.schedule_stats().await?;
        let count: u64 = namespaces.iter().map(|stats| stats.schedule_count).sum();
        let schedules = match count {
            1.. if count <= u64::from(EACH_MAX) => {
                self.store.schedules(&ScheduleFilter { limit: EACH_MAX, ..ScheduleFilter::default() }).await?
            }
            _ => Vec::new(),
        };
        Ok(Arc::new(ScheduleStatsSnapshot { namespaces, schedules }))
    }
}
