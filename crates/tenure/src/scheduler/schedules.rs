//! The schedules of a namespace, for programs that set and look at them.

use std::convert::Infallible;
use std::ops::Range;

use tenure_core::Name;
use tenure_core::port::{
    Expect, Hand, HandFired, HandOutcome, Json, Pause, ScheduleFilter, ScheduleKey, ScheduleSet,
    ScheduleView, SetSchedule, StoreError, TickFilter, TickView, Trouble,
};
use tenure_core::schedule::Definition;

use crate::{Error, Tenure};

/// How many ticks are backfilled in one call.
const BACKFILL_MAX: usize = 1_000;

/// How many ticks one range may have: what came of each is told.
const RANGE_MAX: u64 = 100_000;

/// The schedules of a namespace. Clones share everything.
///
/// To set a schedule needs no [`Scheduler`](crate::Scheduler) in this process, but one somewhere: in another process, or in
/// `tenure serve`.
///
/// ```
/// # use tenure::{ScheduleBuilder, Tenure, backend::memory::Memory};
/// use tenure::port::ScheduleSet;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let schedules = tenure.schedules();
///
/// let nightly = ScheduleBuilder::new("nightly", "0 2 * * *").zone("Europe/Berlin").task("reports", "nightly");
/// assert_eq!(schedules.set(nightly.clone()).await?, ScheduleSet::Created(1));
/// assert_eq!(schedules.set(nightly).await?, ScheduleSet::Same(1)); // as often as you like
///
/// for at_ms in schedules.show("nightly").await?.upcoming(10) {
///     println!("{at_ms}");
/// }
/// # tenure.close().await }
/// ```
#[derive(Clone)]
pub struct Schedules {
    pub(super) tenure: Tenure,
    namespace: Name,
}

impl Schedules {
    pub(crate) fn new(tenure: Tenure, namespace: Name) -> Schedules {
        Schedules { tenure, namespace }
    }

    /// Those of another tenant.
    pub fn namespace(mut self, namespace: &str) -> Result<Schedules, Error> {
        self.namespace = namespace.parse()?;
        Ok(self)
    }

    /// Which schedule is called so.
    pub fn key(&self, name: &str) -> Result<ScheduleKey, Error> {
        Ok(ScheduleKey::new(self.namespace.clone(), name.parse()?))
    }

    /// Makes a schedule, or defines it anew: a [`ScheduleBuilder`](crate::ScheduleBuilder) or a [`Definition`]. One that is as it was
    /// goes on undisturbed.
    pub async fn set<D>(&self, definition: D) -> Result<ScheduleSet, Error>
    where
        D: TryInto<Definition, Error: Into<Error>>,
    {
        self.set_if(definition, Expect::Any).await
    }

    /// The same, if what is there is what is expected: so that two who change it do not undo each other's changes.
    pub async fn set_if<D>(&self, definition: D, expect: Expect) -> Result<ScheduleSet, Error>
    where
        D: TryInto<Definition, Error: Into<Error>>,
    {
        let wish = SetSchedule {
            namespace: self.namespace.clone(),
            definition: definition.try_into().map_err(Into::into)?,
            secret: None,
            expect,
            source: None,
            by: self.tenure.name().to_owned(),
        };
        self.put(&wish).await
    }

    /// Sets a schedule, with all that can be said about it.
    pub async fn put(&self, wish: &SetSchedule) -> Result<ScheduleSet, Error> {
        let hub = self.tenure.hub();
        Ok(hub.bounded(hub.store.set_schedule(wish)).await?)
    }

    /// All of them, by name.
    pub async fn list(&self) -> Result<Vec<ScheduleView>, Error> {
        let filter = ScheduleFilter { namespace: Some(self.namespace.clone()), ..ScheduleFilter::default() };
        let hub = self.tenure.hub();
        Ok(hub.bounded(hub.store.schedules(&filter)).await?)
    }

    /// One of them, as it stands.
    pub async fn show(&self, name: &str) -> Result<ScheduleView, Error> {
        let (hub, key) = (self.tenure.hub(), self.key(name)?);
        hub.bounded(hub.store.schedule(&key)).await?.ok_or_else(|| missing(&key))
    }

    /// Its last ticks, the newest first.
    pub async fn ticks(&self, name: &str, limit: u32) -> Result<Vec<TickView>, Error> {
        let (hub, key) = (self.tenure.hub(), self.key(name)?);
        let filter = TickFilter { key, before_ms: None, limit };
        Ok(hub.bounded(hub.store.ticks(&filter)).await?)
    }

    /// Deletes a schedule with its history; `false` if it is not there. What it has published or submitted stays.
    pub async fn delete(&self, name: &str) -> Result<bool, Error> {
        let (hub, key) = (self.tenure.hub(), self.key(name)?);
        Ok(hub.bounded(hub.store.delete_schedule(&key, None)).await?.is_some())
    }

    /// Lets it fire no more until it is resumed; `false` if it was paused already.
    pub async fn pause(&self, name: &str, reason: &str) -> Result<bool, Error> {
        let at_ms = self.tenure.runtime().wall_ms();
        let pause = Pause { by: self.tenure.name().to_owned(), reason: reason.into(), at_ms };
        self.set_paused(name, Some(&pause)).await
    }

    /// Lets it fire again; `false` if it was not paused. What fell due meanwhile was missed: its policy says what becomes of that.
    pub async fn resume(&self, name: &str) -> Result<bool, Error> {
        self.set_paused(name, None).await
    }

    async fn set_paused(&self, name: &str, pause: Option<&Pause>) -> Result<bool, Error> {
        let (hub, key) = (self.tenure.hub(), self.key(name)?);
        hub.bounded(hub.store.set_schedule_paused(&key, pause)).await?.ok_or_else(|| missing(&key))
    }

    /// Fires once now, beside its times; with another payload, if one is given.
    pub async fn trigger(&self, name: &str, payload: Option<Json>) -> Result<HandFired, Error> {
        let key = self.key(name)?;
        let hand = Hand { payload, ..self.hand(&key, None) };
        let fired = self.by_hand(&hand).await?;
        fired.into_iter().next().ok_or_else(|| {
            StoreError::new(Trouble::Other, format!("the store did not tell what came of firing {key}"))
                .into()
        })
    }

    /// Fires the ticks of these instants, in milliseconds since 1970, that have passed and did not fire; or only says which would. In
    /// parts, each all or nothing; what fired before an error stays fired, and does not fire again if this is called again. A range has
    /// 100,000 past ticks at most.
    pub async fn backfill(
        &self,
        name: &str,
        range_ms: Range<i64>,
        dry_run: bool,
    ) -> Result<Vec<HandFired>, Error> {
        let (key, view) = (self.key(name)?, self.show(name).await?);
        let timetable = view.definition.timetable(&self.namespace);
        let passed_ms = view.progress.map_or(range_ms.end, |progress| progress.next_at_ms.min(range_ms.end));
        let count = timetable.count(range_ms.start, passed_ms);
        if count > RANGE_MAX {
            let message = format!("{key} has {count} ticks in that time; backfill {RANGE_MAX} at a time");
            return Err(StoreError::new(Trouble::Request, message).into());
        }
        let mut ticks = timetable.ticks_between(range_ms.start, range_ms.end).peekable();
        let mut all = Vec::new();
        while ticks.peek().is_some() {
            let part: Vec<i64> = ticks.by_ref().take(BACKFILL_MAX).collect();
            let hand = Hand { dry_run, ..self.hand(&key, Some(part)) };
            let fired = self.by_hand(&hand).await?;
            let ahead = fired.last().is_some_and(|last| last.outcome == HandOutcome::Ahead);
            all.extend(fired);
            if ahead {
                // So are all that follow, and they may be without end.
                break;
            }
        }
        Ok(all)
    }

    fn hand(&self, key: &ScheduleKey, ticks: Option<Vec<i64>>) -> Hand {
        Hand { key: key.clone(), ticks, payload: None, by: self.tenure.name().to_owned(), dry_run: false }
    }

    async fn by_hand(&self, hand: &Hand) -> Result<Vec<HandFired>, Error> {
        let hub = self.tenure.hub();
        hub.bounded(hub.store.fire_by_hand(hand)).await?.ok_or_else(|| missing(&hand.key))
    }
}

fn missing(key: &ScheduleKey) -> Error {
    let remedy = "`tenure schedule list` shows those that there are";
    StoreError::new(Trouble::Request, format!("there is no schedule {key}; {remedy}")).into()
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}
