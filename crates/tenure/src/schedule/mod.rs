//! Schedules: any process sets them, one process fires them.
//!
//! The store is the authority on the schedules and the next tick of each. A [`Scheduler`] is a candidate of the
//! election `tenure/scheduler`. While it leads, its fire loop ([`fire_loop`]) fires due ticks in batches that
//! suit the store ([`fire_batch`]). While there is no leader or the store fails, nothing fires and nothing is
//! lost: missed ticks fire later according to the misfire policy of their schedule. [`Schedules`] is the client
//! for setting and reading schedules. Tick handlers run as ordinary tasks ([`tick_handlers`]).

mod builder;
mod fire_batch;
mod fire_loop;
mod schedules;
mod tick;
mod tick_handlers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::Name;
use tenure_core::port::{
    LIST_MAX, NewTask, Precondition, SetScheduleOutcome, SetScheduleRequest, scheduler_election,
};
use tenure_core::rules::schedule::{ScheduleDefinition, ScheduleTarget};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::builder::ScheduleBuilder;
use self::fire_loop::{FireLoop, prune};
pub use self::schedules::Schedules;
pub use self::tick::TickContext;
use self::tick_handlers::{TickHandler, TickHandlers};
use crate::queue::context::ClientContext;
use crate::worker::IntoTaskResult;
use crate::{Elector, Error, Leadership, Tenure};

/// Default queue and election of tick handlers.
const TICK_HANDLERS: &str = "tick-handlers";

/// A running scheduler. Of all schedulers on a store, one fires at a time.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// use tenure::ScheduleBuilder;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let (sender, mut ticks) = tokio::sync::mpsc::unbounded_channel();
///
/// let scheduler = tenure
///     .scheduler()
///     // A tick handler runs in one of the processes that have it.
///     .run("often", "every 100ms", move |tick| {
///         let sender = sender.clone();
///         async move {
///             let _ = sender.send(tick.at_ms());
///         }
///     })
///     .start()
///     .await?;
///
/// // A schedule can also publish events, submit tasks or call webhooks.
/// let nightly = ScheduleBuilder::new("nightly", "0 2 * * *").time_zone("Europe/Berlin").task("reports", "nightly");
/// scheduler.set(nightly).await?;
///
/// assert_eq!(ticks.recv().await.map(|at_ms| at_ms % 100), Some(0));
/// scheduler.stop().await?; // finishes running tick handlers and resigns
/// # tenure.close().await }
/// ```
///
/// Run a scheduler in every process that should be able to fire; the elected one fires. A dropped scheduler stops
/// at once, and another one takes over its unfinished work.
#[must_use = "a dropped scheduler stops; keep it, and `stop` it in the end"]
pub struct Scheduler {
    schedules: Schedules,
    fires: Option<Arc<Elector>>,
    runs: Option<Arc<Elector>>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    grace: Duration,
}

/// Settings of a scheduler before it starts. See [`Tenure::scheduler`].
#[must_use = "the scheduler fires only after `start`"]
pub struct SchedulerBuilder {
    tenure: Tenure,
    namespace: String,
    queue: String,
    fires: bool,
    priority: i32,
    concurrency: usize,
    grace: Duration,
    handlers: Vec<(ScheduleBuilder, TickHandler)>,
}

impl SchedulerBuilder {
    pub(crate) fn new(tenure: Tenure) -> Self {
        SchedulerBuilder {
            tenure,
            namespace: Name::default_namespace().to_string(),
            queue: TICK_HANDLERS.into(),
            fires: true,
            priority: 0,
            concurrency: 32,
            grace: Duration::from_secs(5),
            handlers: Vec::new(),
        }
    }

    /// Namespace of the schedules that are set through this scheduler; `default` unless set. The scheduler fires
    /// the schedules of all namespaces.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Queue of the tick handlers, and name of the election of the process that runs them; `tick-handlers`
    /// unless set. Programs that share a store and have different tick handlers need different names.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Whether this process may fire; true unless set. If false, it only runs its tick handlers, and another
    /// process must fire, for example `tenure serve`. A client of a Tenure server never fires: the servers do.
    pub fn may_fire(mut self, fires: bool) -> Self {
        self.fires = fires;
        self
    }

    /// Priority; 0 unless set. The live scheduler with the highest priority fires.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Number of tick handlers that run at the same time; 32 unless set.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long tick handlers may take to finish when the scheduler stops; five seconds unless set. After that
    /// they are dropped, and their ticks run again elsewhere.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Adds a schedule with a tick handler. `expression` is a cron expression or an interval such as `every 90s`, in
    /// UTC.
    pub fn run<F, Fut>(self, name: impl Into<String>, expression: impl Into<String>, handler: F) -> Self
    where
        F: Fn(TickContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTaskResult> + Send + 'static,
    {
        self.run_schedule(ScheduleBuilder::new(name, expression), handler)
    }

    /// Adds a tick handler for a full schedule without a target. The schedule is set when the scheduler starts.
    ///
    /// The handler runs in one of the processes that have it, at least once for each tick: again if that
    /// process dies meanwhile. It returns nothing, or a `Result` whose value becomes the result of the task. An
    /// error or a panic is a failed attempt, and the task is retried ([`run_with_task`](Self::run_with_task)
    /// sets how often).
    pub fn run_schedule<F, Fut>(self, schedule: ScheduleBuilder, handler: F) -> Self
    where
        F: Fn(TickContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTaskResult> + Send + 'static,
    {
        self.run_with_task(schedule, NewTask::default(), handler)
    }

    /// Adds a tick handler whose ticks are tasks like this template: its maximum attempts, maximum run time and
    /// priority.
    pub fn run_with_task<F, Fut>(mut self, schedule: ScheduleBuilder, task: NewTask, handler: F) -> Self
    where
        F: Fn(TickContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTaskResult> + Send + 'static,
    {
        let schedule = schedule.task_template(&self.queue, task);
        self.handlers.push((
            schedule,
            Arc::new(move |tick| handler(tick).map(IntoTaskResult::into_task_result).boxed()),
        ));
        self
    }

    /// Sets the schedules of its tick handlers and joins the elections.
    pub async fn start(self) -> Result<Scheduler, Error> {
        let (namespace, queue): (Name, Name) = (self.namespace.parse()?, self.queue.parse()?);
        let schedules = Schedules::new(self.tenure.clone(), namespace.clone());
        let (mut definitions, mut handlers) = (Vec::<ScheduleDefinition>::new(), BTreeMap::new());
        for (schedule, handler) in self.handlers {
            // The queue may have been set after the tick handler.
            let definition = on_queue(schedule.build()?, &queue);
            if handlers.insert(definition.name.to_string(), handler).is_some() {
                let twice =
                    format!("two tick handlers have the name {}; use distinct names", definition.name);
                return Err(Error::Scheduler(twice));
            }
            definitions.push(definition);
        }
        if handlers.len() > LIST_MAX {
            let many = handlers.len();
            let many = format!("{many} tick handlers are too many; one queue allows {LIST_MAX}");
            return Err(Error::Scheduler(many));
        }
        if !self.fires && handlers.is_empty() {
            let nothing = "it may not fire and has no tick handler; add one with `.run(…)`";
            return Err(Error::Scheduler(nothing.into()));
        }
        // If the store is a Tenure server, only servers fire.
        let by_servers = self.tenure.ctx().store.routes_to_broker();
        if by_servers && handlers.is_empty() {
            let nothing = "the servers fire, and it has no tick handler; add one with `.run(…)`";
            return Err(Error::Scheduler(nothing.into()));
        }
        let fires = match self.fires && !by_servers {
            true => Some(Arc::new(join_election(&self.tenure, self.priority).await?)),
            false => None,
        };
        for definition in definitions {
            let request = SetScheduleRequest {
                namespace: namespace.clone(),
                definition,
                secret: None,
                precondition: Precondition::Any,
                source: Some(format!("tick handlers of {queue}")),
                updated_by: self.tenure.name().to_owned(),
            };
            schedules.set_with(&request).await?;
        }
        let (stop, mut tasks) = (watch::Sender::new(false), JoinSet::new());
        let ctx = self.tenure.ctx().clone();
        if let Some(elector) = &fires {
            tasks.spawn_on(run_terms(ctx.clone(), elector.clone(), stop.subscribe()), &ctx.handle);
        }
        let mut runs = None;
        if !handlers.is_empty() {
            let (tenure, concurrency, grace) = (self.tenure, self.concurrency, self.grace);
            let handlers = TickHandlers { tenure, namespace, queue, concurrency, grace, handlers };
            let elector = Arc::new(handlers.join_election().await.map_err(already_running)?);
            tasks.spawn_on(handlers.run(elector.clone(), stop.subscribe()), &ctx.handle);
            runs = Some(elector);
        }
        Ok(Scheduler { schedules, fires, runs, stop, tasks, grace: self.grace })
    }
}

/// Sets the queue of a tick handler's schedule, and the name of the schedule as task kind.
fn on_queue(mut definition: ScheduleDefinition, handlers: &Name) -> ScheduleDefinition {
    if let ScheduleTarget::Task { queue, task } = &mut definition.target {
        queue.clone_from(handlers);
        task.kind = definition.name.to_string();
    }
    definition
}

async fn join_election(tenure: &Tenure, priority: i32) -> Result<Elector, Error> {
    let election = scheduler_election();
    let elector = tenure.elector(election.name.as_str()).namespace(election.namespace.as_str());
    elector.priority(priority).start().await.map_err(already_running)
}

fn already_running(error: Error) -> Error {
    match error {
        Error::AlreadyCandidate(election) => Error::Scheduler(format!(
            "this process already runs a scheduler, a candidate of {election}; use that one, or open a second Tenure"
        )),
        other => other,
    }
}

/// Fires whenever this process leads, until it is told to stop.
async fn run_terms(ctx: Arc<ClientContext>, elector: Arc<Elector>, mut stop: watch::Receiver<bool>) {
    loop {
        let leadership = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            elected = elector.elected() => match elected {
                Ok(leadership) => leadership,
                Err(error) => {
                    tracing::debug!("scheduler left the election: {error}");
                    return;
                }
            },
        };
        run_term(&ctx, leadership, stop.clone()).await;
    }
}

async fn run_term(ctx: &ClientContext, leadership: Leadership, stop: watch::Receiver<bool>) {
    let token = leadership.token();
    tracing::info!(%token, "scheduler started firing");
    let mut fire_loop = FireLoop::new(ctx, &leadership, stop);
    tokio::select! {
        biased;
        _ = leadership.lost() => {}
        () = ctx.closed() => {}
        // Ends on a leader request or a stop.
        () = fire_loop.fire() => {}
        () = prune(ctx, &leadership) => {}
    }
    tracing::info!(%token, "scheduler stopped firing");
}

impl Scheduler {
    /// The schedules of its namespace.
    pub fn schedules(&self) -> &Schedules {
        &self.schedules
    }

    /// Creates or updates a schedule. See [`Schedules::set`].
    pub async fn set<D>(&self, definition: D) -> Result<SetScheduleOutcome, Error>
    where
        D: TryInto<ScheduleDefinition, Error: Into<Error>>,
    {
        self.schedules.set(definition).await
    }

    /// Whether this process fires *now*. Every call compares the clock.
    pub fn is_leader(&self) -> bool {
        self.fires.as_ref().is_some_and(|elector| elector.is_leader())
    }

    /// Whether this process runs the tick handlers *now*.
    pub fn runs_tick_handlers(&self) -> bool {
        self.runs.as_ref().is_some_and(|elector| elector.is_leader())
    }

    /// Stops gracefully: finishes a running fire call, waits for tick handlers up to the grace, and leaves the
    /// elections.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.stop.send_replace(true);
        let ctx = self.schedules.tenure.ctx().clone();
        // Firing is one call; tick handlers have the grace and then a call each to settle.
        let limit = ctx.runtime.now() + self.grace + ctx.call_limit() * 2;
        tokio::select! {
            () = async { while self.tasks.join_next().await.is_some() {} } => {}
            () = ctx.runtime.sleep_until(limit) => self.tasks.abort_all(),
        }
        for elector in [self.fires.take(), self.runs.take()].into_iter().flatten() {
            // A task that blocks its thread may still hold the elector. Then the candidate is withdrawn when it ends.
            if let Some(elector) = Arc::into_inner(elector) {
                match elector.stop().await {
                    Ok(()) | Err(Error::Closed) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // Running work is dropped with the tasks; the electors withdraw.
        self.stop.send_replace(true);
        self.tasks.abort_all();
    }
}
