//! Schedules: set by anybody, fired by one.
//!
//! The store owns the truth: which schedules there are, and of each the tick that is next. A [`Scheduler`] stands for the election
//! `tenure/scheduler`, and while it leads ([`duty`]) it fires what falls due, as much at once as is good for the store
//! ([`parcel`]). When nobody leads, or the store is away, nothing fires, and nothing is lost: what was missed meanwhile fires as the
//! policy of its schedule says. [`Schedules`] is how programs set them, and closures as targets are tasks like any other
//! ([`closures`]).

mod builder;
mod closures;
mod duty;
mod parcel;
mod schedules;
mod tick;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::Name;
use tenure_core::port::{Expect, LIST_MAX, NewTask, ScheduleSet, SetSchedule, scheduler_election};
use tenure_core::schedule::{Definition, Target};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub use self::builder::ScheduleBuilder;
use self::closures::{Closure, Closures};
use self::duty::{Duty, prune};
pub use self::schedules::Schedules;
pub use self::tick::Tick;
use crate::claims::hub::Hub;
use crate::worker::Report;
use crate::{Elector, Error, Leadership, Tenure};

/// The queue of closures, and their election, unless set.
const CLOSURES: &str = "closures";

/// A running scheduler: one of those who would fire what falls due.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// use tenure::ScheduleBuilder;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let (told, mut ticks) = tokio::sync::mpsc::unbounded_channel();
///
/// let scheduler = tenure
///     .scheduler()
///     // A closure runs on one process of all that have it.
///     .run("often", "every 100ms", move |tick| {
///         let told = told.clone();
///         async move {
///             let _ = told.send(tick.at_ms());
///         }
///     })
///     .start()
///     .await?;
///
/// // So do events, tasks and calls, whoever handles them.
/// let nightly = ScheduleBuilder::new("nightly", "0 2 * * *").zone("Europe/Berlin").task("reports", "nightly");
/// scheduler.set(nightly).await?;
///
/// assert_eq!(ticks.recv().await.map(|at_ms| at_ms % 100), Some(0));
/// scheduler.stop().await?; // finishes what is begun, and lets another lead
/// # tenure.close().await }
/// ```
///
/// Run one in every process that should be able to fire; one of them does. Dropped, it stops at once: what it has begun is taken over
/// by another.
#[must_use = "a scheduler that is dropped stops; keep it, and `stop` it in the end"]
pub struct Scheduler {
    schedules: Schedules,
    fires: Option<Arc<Elector>>,
    runs: Option<Arc<Elector>>,
    halt: watch::Sender<bool>,
    tasks: JoinSet<()>,
    grace: Duration,
}

/// Settings of a scheduler, before it starts. See [`Tenure::scheduler`].
#[must_use = "a scheduler fires only after `start`"]
pub struct SchedulerBuilder {
    tenure: Tenure,
    namespace: String,
    queue: String,
    fires: bool,
    priority: i32,
    concurrency: usize,
    grace: Duration,
    closures: Vec<(ScheduleBuilder, Closure)>,
}

impl SchedulerBuilder {
    pub(crate) fn new(tenure: Tenure) -> Self {
        SchedulerBuilder {
            tenure,
            namespace: Name::default_namespace().to_string(),
            queue: CLOSURES.into(),
            fires: true,
            priority: 0,
            concurrency: 32,
            grace: Duration::from_secs(5),
            closures: Vec::new(),
        }
    }

    /// The tenant whose schedules are set through it; `default` unless set. It fires those of all.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Where the ticks of closures wait, and by what name the one is elected that runs them; `closures` unless set. Programs that
    /// share a store and have different closures need different names.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Whether it may fire; it may unless set. If not, it only runs its closures, and somebody else has to fire: `tenure serve`, say.
    /// Through a server it never does: the servers fire.
    pub fn fires(mut self, fires: bool) -> Self {
        self.fires = fires;
        self
    }

    /// Of those who would fire, the highest priority alive does; 0 unless set.
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// How many closures run at once; 32 unless set.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How long closures may go on that are asked to finish; five seconds unless set. After that they are dropped, and run again
    /// elsewhere.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// A schedule with a closure: `name` at the times of a cron expression, or `every 90s`, in UTC.
    pub fn run<F, Fut>(self, name: impl Into<String>, when: impl Into<String>, closure: F) -> Self
    where
        F: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Report> + Send + 'static,
    {
        self.run_as(ScheduleBuilder::new(name, when), closure)
    }

    /// A schedule with a closure, and all that can be said about it but what it does. It is set when the scheduler starts.
    ///
    /// The closure runs on one process of all that have it, at least once for each tick: again if that process dies in between. It
    /// returns nothing, or a result whose value is kept as the tick's output. An error is a failure, and so is a panic; another
    /// attempt follows, as with any task ([`run_like`](Self::run_like) says how many).
    pub fn run_as<F, Fut>(self, schedule: ScheduleBuilder, closure: F) -> Self
    where
        F: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Report> + Send + 'static,
    {
        self.run_like(schedule, NewTask::default(), closure)
    }

    /// The same, with ticks that are tasks like this one: its attempts, its longest run, its priority.
    pub fn run_like<F, Fut>(mut self, schedule: ScheduleBuilder, task: NewTask, closure: F) -> Self
    where
        F: Fn(Tick) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Report> + Send + 'static,
    {
        let schedule = schedule.task_like(&self.queue, task);
        self.closures.push((schedule, Arc::new(move |tick| closure(tick).map(Report::report).boxed())));
        self
    }

    /// Sets the schedules of its closures, and stands.
    pub async fn start(self) -> Result<Scheduler, Error> {
        let (namespace, queue): (Name, Name) = (self.namespace.parse()?, self.queue.parse()?);
        let schedules = Schedules::new(self.tenure.clone(), namespace.clone());
        let (mut definitions, mut closures) = (Vec::<Definition>::new(), BTreeMap::new());
        for (schedule, closure) in self.closures {
            // The queue may have been named after the closure.
            let definition = on_queue(schedule.build()?, &queue);
            if closures.insert(definition.name.to_string(), closure).is_some() {
                let twice = format!("it has two closures named {}; give each its own", definition.name);
                return Err(Error::Scheduler(twice));
            }
            definitions.push(definition);
        }
        if closures.len() > LIST_MAX {
            let many = closures.len();
            let many = format!("{many} closures are not possible; at most {LIST_MAX} are, with one queue");
            return Err(Error::Scheduler(many));
        }
        if !self.fires && closures.is_empty() {
            let nothing = "it neither fires nor has closures; give it one with `.run(…)`";
            return Err(Error::Scheduler(nothing.into()));
        }
        // Through a server nobody fires but the servers themselves.
        let by_servers = self.tenure.hub().store.routes_claims();
        if by_servers && closures.is_empty() {
            let nothing =
                "the servers fire by themselves, and it has no closures; give it one with `.run(…)`";
            return Err(Error::Scheduler(nothing.into()));
        }
        let fires = match self.fires && !by_servers {
            true => Some(Arc::new(stand(&self.tenure, self.priority).await?)),
            false => None,
        };
        for definition in definitions {
            let wish = SetSchedule {
                namespace: namespace.clone(),
                definition,
                secret: None,
                expect: Expect::Any,
                source: Some(format!("closures of {queue}")),
                by: self.tenure.name().to_owned(),
            };
            schedules.put(&wish).await?;
        }
        let (halt, mut tasks) = (watch::Sender::new(false), JoinSet::new());
        let hub = self.tenure.hub().clone();
        if let Some(elector) = &fires {
            tasks.spawn_on(preside(hub.clone(), elector.clone(), halt.subscribe()), &hub.handle);
        }
        let mut runs = None;
        if !closures.is_empty() {
            let (tenure, concurrency, grace) = (self.tenure, self.concurrency, self.grace);
            let closures = Closures { tenure, namespace, queue, concurrency, grace, closures };
            let elector = Arc::new(closures.stand().await.map_err(running_already)?);
            tasks.spawn_on(closures.run(elector.clone(), halt.subscribe()), &hub.handle);
            runs = Some(elector);
        }
        Ok(Scheduler { schedules, fires, runs, halt, tasks, grace: self.grace })
    }
}

/// The same, but its ticks wait here, for who knows them by the schedule's name.
fn on_queue(mut definition: Definition, closures: &Name) -> Definition {
    if let Target::Task { queue, task } = &mut definition.target {
        queue.clone_from(closures);
        task.kind = definition.name.to_string();
    }
    definition
}

async fn stand(tenure: &Tenure, priority: i32) -> Result<Elector, Error> {
    let election = scheduler_election();
    let elector = tenure.elector(election.name.as_str()).namespace(election.namespace.as_str());
    elector.priority(priority).start().await.map_err(running_already)
}

fn running_already(error: Error) -> Error {
    match error {
        Error::AlreadyStanding(election) => Error::Scheduler(format!(
            "this process runs a scheduler already, and stands in {election}; use that, or open a second Tenure"
        )),
        other => other,
    }
}

/// Fires whenever this process leads, until it is told to halt.
async fn preside(hub: Arc<Hub>, elector: Arc<Elector>, mut halt: watch::Receiver<bool>) {
    loop {
        let leadership = tokio::select! {
            biased;
            _ = halt.wait_for(|halt| *halt) => return,
            elected = elector.elected() => match elected {
                Ok(leadership) => leadership,
                Err(error) => {
                    tracing::debug!("schedules: no longer a candidate: {error}");
                    return;
                }
            },
        };
        lead(&hub, leadership, halt.clone()).await;
    }
}

async fn lead(hub: &Hub, leadership: Leadership, halt: watch::Receiver<bool>) {
    let token = leadership.token();
    tracing::info!(%token, "fires what falls due");
    let mut duty = Duty::new(hub, &leadership, halt);
    tokio::select! {
        biased;
        _ = leadership.lost() => {}
        () = hub.closed() => {}
        // Ends when it is asked to.
        () = duty.fire() => {}
        () = prune(hub, &leadership) => {}
    }
    tracing::info!(%token, "leaves it to others to fire what falls due");
}

impl Scheduler {
    /// The schedules of its namespace.
    pub fn schedules(&self) -> &Schedules {
        &self.schedules
    }

    /// Makes a schedule, or defines it anew. See [`Schedules::set`].
    pub async fn set<D>(&self, definition: D) -> Result<ScheduleSet, Error>
    where
        D: TryInto<Definition, Error: Into<Error>>,
    {
        self.schedules.set(definition).await
    }

    /// Whether this process is the one that fires *now*. The clock is compared at every call.
    pub fn fires(&self) -> bool {
        self.fires.as_ref().is_some_and(|elector| elector.is_leader())
    }

    /// Whether it is the one that runs the closures.
    pub fn runs_closures(&self) -> bool {
        self.runs.as_ref().is_some_and(|elector| elector.is_leader())
    }

    /// Stops in good order: finishes what is begun, closures within the grace, and lets another lead.
    pub async fn stop(mut self) -> Result<(), Error> {
        self.halt.send_replace(true);
        let hub = self.schedules.tenure.hub().clone();
        // What fires is one call; closures have their grace, and then as much again to be told.
        let limit = hub.runtime.now() + self.grace + hub.call_limit() * 2;
        tokio::select! {
            () = async { while self.tasks.join_next().await.is_some() {} } => {}
            () = hub.runtime.sleep_until(limit) => self.tasks.abort_all(),
        }
        for elector in [self.fires.take(), self.runs.take()].into_iter().flatten() {
            // Nobody else has it, unless a task blocks its thread; then it is withdrawn with that.
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
        // What is under way is dropped with the tasks; the electors withdraw.
        self.halt.send_replace(true);
        self.tasks.abort_all();
    }
}
