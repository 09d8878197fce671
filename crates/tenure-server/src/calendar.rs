//! How it stands with schedules, looked at once for all who ask within the same second.
//!
//! Counting a hundred thousand schedules costs the store something, and scrapers come from everywhere: what was seen is kept while
//! it is fresh, and for longer the longer it took to see ([`Shelf`]). Nothing here is ever written back.

use std::sync::Arc;

use tenure::port::{Backend, ScheduleFilter, ScheduleStats, ScheduleView, StoreError};
use tenure::runtime::Runtime;

use crate::floor::Shelf;

/// Of how many schedules something is said of each: every one is a time series for ever.
const EACH_MAX: u32 = 1_000;

/// What is known of a store's schedules.
pub(crate) struct Calendar {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    seen: Shelf<(), Arc<Seen>>,
}

/// Schedules, as they were last seen.
#[derive(Debug)]
pub(crate) struct Seen {
    /// How it stands in each namespace.
    pub(crate) namespaces: Vec<ScheduleStats>,
    /// Each of them; none if there are too many to speak of each.
    pub(crate) schedules: Vec<ScheduleView>,
}

impl Calendar {
    pub(crate) fn new(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Calendar {
        Calendar { store, runtime, seen: Shelf::default() }
    }

    /// How it stands, about a second ago at most while the store is quick.
    pub(crate) async fn seen(&self) -> Result<Arc<Seen>, StoreError> {
        self.seen.get((), self.runtime.as_ref(), self.look()).await
    }

    async fn look(&self) -> Result<Arc<Seen>, StoreError> {
        let namespaces = self.store.schedule_stats().await?;
        let count: u64 = namespaces.iter().map(|stats| stats.schedules).sum();
        let schedules = match count {
            1.. if count <= u64::from(EACH_MAX) => {
                self.store.schedules(&ScheduleFilter { limit: EACH_MAX, ..ScheduleFilter::default() }).await?
            }
            _ => Vec::new(),
        };
        Ok(Arc::new(Seen { namespaces, schedules }))
    }
}
