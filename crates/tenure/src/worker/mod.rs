//! A worker: claims tasks of a queue and runs handlers for them, up to a concurrency limit.
//!
//! A claimed task is in one of three stages: *buffered* (claimed, not started), *running* (its handler runs),
//! or *settling* (the handler is done, the store has not confirmed yet). The store is the authority: a claim is
//! valid while its session lives and no operator or deadline cancels it. The worker compares the clock before
//! it starts a task. It drops the future of a running handler when the session is no longer trusted, when the
//! claim is cancelled, or when the run time is over on the local clock. While the store fails, handlers
//! continue until trust ends, settlements are retried until the store confirms them, and no new task starts.

mod context;
mod pool;
mod task_error;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::port::{NewWorker, QueueKey, StoreError};
use tenure_core::{Name, rules::work};
use tokio::task::JoinSet;

pub use self::context::TaskContext;
pub(crate) use self::pool::monitor_claims;
use self::pool::{FETCHERS, TaskHandler, WorkerPool};
pub use self::task_error::{IntoTaskError, IntoTaskResult, TaskError};
use crate::{Error, Tenure};

/// Maximum concurrency of one worker.
const CONCURRENCY_MAX: usize = 10_000;

/// A running worker.
///
/// ```
/// # use tenure::{TaskError, Tenure, store::memory::MemoryStore};
/// use tenure::port::NewTask;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
///
/// let worker = tenure
///     .worker("mail")
///     .concurrency(8)
///     .kind("welcome", move |task| {
///         let sender = sender.clone();
///         async move {
///             let to: String = task.payload()?;
///             let _ = sender.send(to.clone());
///             Ok::<_, TaskError>(format!("welcomed {to}")) // the result of the task
///         }
///     })
///     .start()
///     .await?;
///
/// let welcome = NewTask { payload: r#""ada""#.parse().unwrap(), ..NewTask::new("welcome") };
/// tenure.tasks().submit(&tenure.queue("mail")?, vec![welcome]).await?;
/// assert_eq!(receiver.recv().await.as_deref(), Some("ada"));
/// worker.drain().await?; // finishes running tasks, releases the others
/// # tenure.close().await }
/// ```
///
/// When dropped, the worker is aborted: the futures of its handlers are dropped, and their tasks return to the
/// queue.
#[must_use = "a dropped worker is aborted; keep it, and `drain` it in the end"]
pub struct Worker {
    pool: Arc<WorkerPool>,
    tasks: JoinSet<()>,
    grace: Duration,
    // Keeps the session open as long as its workers.
    _tenure: Tenure,
}

/// Result of draining a worker or consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainOutcome {
    /// Number of handlers that did not end within the grace. They were aborted, and their tasks returned to the
    /// queue.
    pub aborted: usize,
}

/// Settings of a worker before it starts. See [`Tenure::worker`].
#[must_use = "the worker runs only after `start`"]
pub struct WorkerBuilder {
    tenure: Tenure,
    namespace: String,
    queue: String,
    name: Option<String>,
    description: String,
    tags: Vec<String>,
    location: String,
    concurrency: usize,
    prefetch: Option<usize>,
    grace: Duration,
    listed: bool,
    handlers: HashMap<String, TaskHandler>,
    any: Option<TaskHandler>,
}

impl WorkerBuilder {
    pub(crate) fn new(tenure: Tenure, queue: String) -> Self {
        WorkerBuilder {
            tenure,
            namespace: Name::default_namespace().to_string(),
            queue,
            name: None,
            description: String::new(),
            tags: Vec::new(),
            location: String::new(),
            concurrency: 32,
            prefetch: None,
            grace: Duration::from_secs(30),
            listed: true,
            handlers: HashMap::new(),
            any: None,
        }
    }

    /// Namespace of the queue; `default` unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Name of the worker; the name of the process unless set. Tasks list it as allowed worker, and operators
    /// approve it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Description of the worker for operators.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = description.into();
        self
    }

    /// Tags of the worker. Tasks require and prefer tags.
    pub fn tags<S: Into<String>>(mut self, tags: impl IntoIterator<Item = S>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Location of the worker for operators.
    pub fn location(mut self, location: impl Into<String>) -> Self {
        self.location = location.into();
        self
    }

    /// Number of tasks that run at the same time; 32 unless set.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Number of tasks to claim beyond the running ones. Unless set, as many as the worker completes in about
    /// 50 ms, so none if tasks take long.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// How long [`Worker::drain`] waits for handlers; 30 seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Do not register the worker, so that operators neither see nor approve it. For internal workers that
    /// appear elsewhere. A queue that requires approval assigns it no tasks.
    pub fn unlisted(mut self) -> Self {
        self.listed = false;
        self
    }

    /// Sets the handler for tasks of this kind. A worker with only such handlers claims only tasks of their
    /// kinds.
    ///
    /// The handler returns nothing, or a `Result` whose value becomes the result of the task. An error or a
    /// panic is a failed attempt.
    pub fn kind<F, Fut>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTaskResult> + Send + 'static,
    {
        self.handlers.insert(kind.into(), boxed(handler));
        self
    }

    /// Sets the handler for tasks of all other kinds.
    pub fn handler<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTaskResult> + Send + 'static,
    {
        self.any = Some(boxed(handler));
        self
    }

    /// Registers the worker and starts it. The process also campaigns for broker and maintenance
    /// ([`TaskClient::campaign_for_maintenance`](crate::TaskClient::campaign_for_maintenance)).
    pub async fn start(self) -> Result<Worker, Error> {
        if self.handlers.is_empty() && self.any.is_none() {
            return Err(Error::Worker("no handler; set one with `.handler(…)` or `.kind(…)`".into()));
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            let (given, most) = (self.concurrency, CONCURRENCY_MAX);
            return Err(Error::Worker(format!(
                "concurrency {given} is out of range; use a number between 1 and {most}"
            )));
        }
        let queue = QueueKey::new(self.namespace.parse()?, self.queue.parse()?);
        let mut kinds: Vec<String> = self.handlers.keys().cloned().collect();
        kinds.sort();
        if self.any.is_some() {
            kinds.clear();
        }
        let registration = NewWorker {
            name: self.name.unwrap_or_else(|| self.tenure.name().to_owned()),
            description: self.description,
            tags: self.tags,
            task_kinds: kinds,
            queues: vec![queue.name.clone()],
            location: self.location,
            capacity: u32::try_from(self.concurrency).unwrap_or(u32::MAX),
            session: None,
        };
        work::validate_worker(&registration).map_err(StoreError::from)?;
        let ctx = self.tenure.ctx().clone();
        self.tenure.tasks().campaign_for_maintenance().await?;
        ctx.monitor_workers();
        let (concurrency, prefetch) = (self.concurrency, self.prefetch);
        let mut pool =
            WorkerPool::new(ctx, queue, registration, self.handlers, self.any, concurrency, prefetch);
        pool.listed = self.listed;
        let pool = Arc::new(pool);
        let session = self.tenure.session();
        if let Some(session) = &session {
            pool.register(session).await?;
        }
        let mut tasks = JoinSet::new();
        (0..FETCHERS).for_each(|_| drop(tasks.spawn(pool.clone().fetch(session.clone()))));
        (0..concurrency).for_each(|_| drop(tasks.spawn(pool.clone().run_tasks())));
        Ok(Worker { pool, tasks, grace: self.grace, _tenure: self.tenure })
    }
}

fn boxed<F, Fut>(handler: F) -> TaskHandler
where
    F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoTaskResult> + Send + 'static,
{
    Arc::new(move |context| handler(context).map(IntoTaskResult::into_task_result).boxed())
}

impl Worker {
    /// Name of the worker.
    pub fn name(&self) -> &str {
        &self.pool.registration.name
    }

    /// Queue of the worker.
    pub fn queue(&self) -> &QueueKey {
        &self.pool.queue
    }

    /// Stops gracefully: claims no more tasks, releases buffered ones, waits for handlers up to the grace, and
    /// then for the store to confirm their settlements.
    ///
    /// Aborts handlers that run longer than the grace, and returns their number. Fails with [`Error::NotDrained`]
    /// if a handler cannot be aborted or the store does not confirm in time.
    pub async fn drain(mut self) -> Result<DrainOutcome, Error> {
        let pool = self.pool.clone();
        let runtime = pool.ctx.runtime.clone();
        pool.begin_drain();
        let limit = runtime.now() + self.grace;
        let mut aborted = 0;
        tokio::select! {
            () = all(&mut self.tasks) => {}
            () = runtime.sleep_until(limit) => aborted = pool.abort_running(),
        }
        // Stopped handlers end at their next await. A handler that blocks its thread does not, and keeps its
        // task.
        let limit = runtime.now() + pool.ctx.call_limit();
        let ended = async {
            all(&mut self.tasks).await;
            // Release tasks of running claims before the session can end: they have not started, so no attempt
            // is lost.
            pool.ctx.polls_finished(&pool.queue).await;
            pool.all_acknowledged().await;
        };
        tokio::select! {
            () = ended => Ok(DrainOutcome { aborted }),
            () = runtime.sleep_until(limit) => Err(Error::NotDrained(pool.registration.name.clone())),
            () = pool.ctx.closed() => Ok(DrainOutcome { aborted }),
        }
    }
}

async fn all(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Releases the buffered tasks. A running task is released when the future of its handler is dropped.
        self.pool.begin_drain();
        self.tasks.abort_all();
    }
}
