//! What schedules look like, kept for a moment: looks that many share.
//!
//! Pages about schedules are rendered from here by the rules of the [`floor`](crate::floor), but nothing is looked at while nobody
//! asks: there may be a hundred thousand schedules, so a list is read in pieces, and how it stands with all of them is counted in
//! the store. What is ahead of a schedule is worked out once for each look.
//!
//! Nothing here is ever written back: it may be old.

use std::sync::Arc;

use tenure::Name;
use tenure::port::{
    Backend, Json, ScheduleFilter, ScheduleKey, ScheduleStats, ScheduleView, StoreError, TickFilter, TickView,
};
use tenure::runtime::Runtime;

use crate::floor::Shelf;
use crate::pages::{Ahead, Laid};

/// How many schedules are read at once.
pub(crate) const PIECE: u32 = 200;

/// Of which namespace, and after which schedule.
type Piece = (Option<Name>, Option<ScheduleKey>);

/// What is known of schedules.
pub(crate) struct Agenda {
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    pieces: Shelf<Piece, Arc<[ScheduleView]>>,
    one: Shelf<ScheduleKey, Option<Arc<Planned>>>,
    ticks: Shelf<(ScheduleKey, Option<i64>, u32), Arc<[TickView]>>,
    stats: Shelf<(), Arc<[ScheduleStats]>>,
}

/// A schedule, and what is ahead of it.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// The schedule, without what its ticks carry.
    pub(crate) view: ScheduleView,
    /// What its ticks carry, laid out.
    pub(crate) payload: Laid,
    pub(crate) ahead: Ahead,
}

impl Planned {
    pub(crate) fn of(view: ScheduleView, wall_ms: i64) -> Planned {
        let payload = Laid::of(&view.definition.payload);
        let ahead = Ahead::of(&view, wall_ms);
        Planned { view: light(view), payload, ahead }
    }
}

/// A schedule without what its ticks carry: that may be a megabyte, and nobody reads it in a list.
fn light(mut view: ScheduleView) -> ScheduleView {
    view.definition.payload = Json::default();
    view
}

impl Agenda {
    /// What is known of a store's schedules.
    pub(crate) fn new(store: Arc<dyn Backend>, runtime: Arc<dyn Runtime>) -> Agenda {
        Agenda {
            store,
            runtime,
            pieces: Shelf::default(),
            one: Shelf::default(),
            ticks: Shelf::default(),
            stats: Shelf::default(),
        }
    }

    /// The first schedules after one, by namespace and name: [`PIECE`], if there are so many.
    pub(crate) async fn piece(
        &self,
        namespace: Option<&Name>,
        after: Option<&ScheduleKey>,
    ) -> Result<Arc<[ScheduleView]>, StoreError> {
        let filter = ScheduleFilter {
            namespace: namespace.cloned(),
            source: None,
            after: after.cloned(),
            limit: PIECE,
        };
        let look = async { Ok(self.store.schedules(&filter).await?.into_iter().map(light).collect()) };
        self.pieces.get((filter.namespace.clone(), filter.after.clone()), self.runtime.as_ref(), look).await
    }

    /// One schedule.
    pub(crate) async fn schedule(&self, key: &ScheduleKey) -> Result<Option<Arc<Planned>>, StoreError> {
        let look = async {
            let view = self.store.schedule(key).await?;
            Ok(view.map(|view| Arc::new(Planned::of(view, self.runtime.wall_ms()))))
        };
        self.one.get(key.clone(), self.runtime.as_ref(), look).await
    }

    /// The last ticks of a schedule, the newest first.
    pub(crate) async fn ticks(&self, filter: &TickFilter) -> Result<Arc<[TickView]>, StoreError> {
        let look = async { Ok(self.store.ticks(filter).await?.into()) };
        let which = (filter.key.clone(), filter.before_ms, filter.limit);
        self.ticks.get(which, self.runtime.as_ref(), look).await
    }

    /// How it stands with all of them, by namespace.
    pub(crate) async fn stats(&self) -> Result<Arc<[ScheduleStats]>, StoreError> {
        let look = async { Ok(self.store.schedule_stats().await?.into()) };
        self.stats.get((), self.runtime.as_ref(), look).await
    }

    /// Something was changed from here: what is shown next is looked at after this was called.
    pub(crate) fn changed(&self) {
        self.pieces.clear();
        self.one.clear();
        self.ticks.clear();
        self.stats.clear();
    }
}
