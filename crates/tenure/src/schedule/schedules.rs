//! Client for the schedules of a namespace.

use std::convert::Infallible;
use std::ops::Range;

use tenure_core::Name;
use tenure_core::port::{
    ErrorKind, ManualFire, ManualFireOutcome, ManualFireResult, Pause, Precondition, RawJson, ScheduleFilter,
    ScheduleKey, ScheduleView, SetScheduleOutcome, SetScheduleRequest, StoreError, TickFilter, TickView,
};
use tenure_core::rules::schedule::ScheduleDefinition;

use crate::{Error, Tenure};

/// Maximum number of ticks per backfill call.
const BACKFILL_MAX: usize = 1_000;

/// Maximum number of ticks in a backfill range, because the outcome of each is returned.
const RANGE_MAX: u64 = 100_000;

/// The schedules of a namespace. Clones share everything.
///
/// Schedules fire only while a [`Scheduler`](crate::Scheduler) runs, in this process, in another process or in
/// `tenure serve`.
///
/// ```
/// # use tenure::{ScheduleBuilder, Tenure, store::memory::MemoryStore};
/// use tenure::port::SetScheduleOutcome;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let schedules = tenure.schedules();
///
/// let nightly = ScheduleBuilder::new("nightly", "0 2 * * *").time_zone("Europe/Berlin").task("reports", "nightly");
/// assert_eq!(schedules.set(nightly.clone()).await?, SetScheduleOutcome::Created(1));
/// assert_eq!(schedules.set(nightly).await?, SetScheduleOutcome::Unchanged(1)); // idempotent
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

    /// The schedules of another namespace.
    pub fn namespace(mut self, namespace: &str) -> Result<Schedules, Error> {
        self.namespace = namespace.parse()?;
        Ok(self)
    }

    /// Key of the schedule with this name.
    pub fn key(&self, name: &str) -> Result<ScheduleKey, Error> {
        Ok(ScheduleKey::new(self.namespace.clone(), name.parse()?))
    }

    /// Creates or updates a schedule from a [`ScheduleBuilder`](crate::ScheduleBuilder) or a
    /// [`ScheduleDefinition`]. An unchanged definition has no effect.
    pub async fn set<D>(&self, definition: D) -> Result<SetScheduleOutcome, Error>
    where
        D: TryInto<ScheduleDefinition, Error: Into<Error>>,
    {
        self.set_if(definition, Precondition::Any).await
    }

    /// Creates or updates a schedule if the precondition holds, to avoid lost updates.
    pub async fn set_if<D>(&self, definition: D, expect: Precondition) -> Result<SetScheduleOutcome, Error>
    where
        D: TryInto<ScheduleDefinition, Error: Into<Error>>,
    {
        let request = SetScheduleRequest {
            namespace: self.namespace.clone(),
            definition: definition.try_into().map_err(Into::into)?,
            secret: None,
            precondition: expect,
            source: None,
            updated_by: self.tenure.name().to_owned(),
        };
        self.set_with(&request).await
    }

    /// Sets a schedule with all options.
    pub async fn set_with(&self, request: &SetScheduleRequest) -> Result<SetScheduleOutcome, Error> {
        let ctx = self.tenure.ctx();
        Ok(ctx.bounded(ctx.store.set_schedule(request)).await?)
    }

    /// Reads all schedules, ordered by name.
    pub async fn list(&self) -> Result<Vec<ScheduleView>, Error> {
        let filter = ScheduleFilter { namespace: Some(self.namespace.clone()), ..ScheduleFilter::default() };
        let ctx = self.tenure.ctx();
        Ok(ctx.bounded(ctx.store.schedules(&filter)).await?)
    }

    /// Reads one schedule. Fails if the schedule does not exist.
    pub async fn show(&self, name: &str) -> Result<ScheduleView, Error> {
        let (ctx, key) = (self.tenure.ctx(), self.key(name)?);
        ctx.bounded(ctx.store.schedule(&key)).await?.ok_or_else(|| missing(&key))
    }

    /// Reads the last ticks of a schedule, newest first.
    pub async fn ticks(&self, name: &str, limit: u32) -> Result<Vec<TickView>, Error> {
        let (ctx, key) = (self.tenure.ctx(), self.key(name)?);
        let filter = TickFilter { key, before_ms: None, limit };
        Ok(ctx.bounded(ctx.store.ticks(&filter)).await?)
    }

    /// Deletes a schedule with its history. Returns `false` if it does not exist. Published events and submitted
    /// tasks stay.
    pub async fn delete(&self, name: &str) -> Result<bool, Error> {
        let (ctx, key) = (self.tenure.ctx(), self.key(name)?);
        Ok(ctx.bounded(ctx.store.delete_schedule(&key, None)).await?.is_some())
    }

    /// Pauses a schedule. Returns `false` if it was already paused, and fails if it does not exist.
    pub async fn pause(&self, name: &str, reason: &str) -> Result<bool, Error> {
        let at_ms = self.tenure.runtime().wall_ms();
        let pause =
            Pause { paused_by: self.tenure.name().to_owned(), reason: reason.into(), paused_at_ms: at_ms };
        self.set_paused(name, Some(&pause)).await
    }

    /// Resumes a schedule. Returns `false` if it was not paused, and fails if it does not exist. The misfire policy
    /// applies to ticks that were due during the pause.
    pub async fn resume(&self, name: &str) -> Result<bool, Error> {
        self.set_paused(name, None).await
    }

    async fn set_paused(&self, name: &str, pause: Option<&Pause>) -> Result<bool, Error> {
        let (ctx, key) = (self.tenure.ctx(), self.key(name)?);
        ctx.bounded(ctx.store.set_schedule_paused(&key, pause)).await?.ok_or_else(|| missing(&key))
    }

    /// Fires one extra tick now, optionally with another payload.
    pub async fn trigger(&self, name: &str, payload: Option<RawJson>) -> Result<ManualFireResult, Error> {
        let key = self.key(name)?;
        let fire = ManualFire { payload, ..self.manual_fire(&key, None) };
        let fired = self.fire_all_manually(&fire).await?;
        fired.into_iter().next().ok_or_else(|| {
            StoreError::new(ErrorKind::Other, format!("the store returned no outcome of triggering {key}"))
                .into()
        })
    }

    /// Fires the past ticks between two instants (milliseconds since 1970) that have not fired. With `dry_run`,
    /// only lists them.
    ///
    /// A range may contain at most 100,000 past ticks. They fire in parts of 1,000, each of which fires
    /// completely or not at all. After an error, repeat the call: ticks that have fired do not fire again.
    pub async fn backfill(
        &self,
        name: &str,
        range_ms: Range<i64>,
        dry_run: bool,
    ) -> Result<Vec<ManualFireResult>, Error> {
        let (key, view) = (self.key(name)?, self.show(name).await?);
        let timetable = view.definition.timetable(&self.namespace);
        let passed_ms =
            view.tick_state.map_or(range_ms.end, |progress| progress.next_tick_at_ms.min(range_ms.end));
        let count = timetable.count(range_ms.start, passed_ms);
        if count > RANGE_MAX {
            let message =
                format!("{key} has {count} ticks in that range; backfill at most {RANGE_MAX} at a time");
            return Err(StoreError::new(ErrorKind::Request, message).into());
        }
        let mut ticks = timetable.ticks_between(range_ms.start, range_ms.end).peekable();
        let mut all = Vec::new();
        while ticks.peek().is_some() {
            let part: Vec<i64> = ticks.by_ref().take(BACKFILL_MAX).collect();
            let fire = ManualFire { dry_run, ..self.manual_fire(&key, Some(part)) };
            let fired = self.fire_all_manually(&fire).await?;
            let ahead = fired.last().is_some_and(|last| last.outcome == ManualFireOutcome::InFuture);
            all.extend(fired);
            if ahead {
                // All later ticks are in the future, too. Their number may be unlimited.
                break;
            }
        }
        Ok(all)
    }

    fn manual_fire(&self, key: &ScheduleKey, ticks: Option<Vec<i64>>) -> ManualFire {
        ManualFire {
            key: key.clone(),
            ticks,
            payload: None,
            requested_by: self.tenure.name().to_owned(),
            dry_run: false,
        }
    }

    async fn fire_all_manually(&self, fire: &ManualFire) -> Result<Vec<ManualFireResult>, Error> {
        let ctx = self.tenure.ctx();
        ctx.bounded(ctx.store.fire_manually(fire)).await?.ok_or_else(|| missing(&fire.key))
    }
}

fn missing(key: &ScheduleKey) -> Error {
    let remedy = "run `tenure schedules list` to see all schedules";
    StoreError::new(ErrorKind::Request, format!("schedule {key} does not exist; {remedy}")).into()
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}
