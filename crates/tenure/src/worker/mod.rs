//! A worker: claims tasks of a queue and gives them to handlers, as many at once as it is told.
//!
//! A task is *claimed* (in the buffer), *running* (its handler has it), *said* (the handler is done, the store has not
//! acknowledged it yet), or gone. The store owns the truth: a claim is ours while our session lives and nobody called it off.
//! Trust in that is a comparison with the clock before a task is begun, and while it runs the handler's future is dropped when
//! the session is not trusted any more, when the claim was called off, or when its run time is over on our own clock. When the
//! store is away, handlers go on until trust is over, their words are said again until the store hears them, and nothing new
//! begins.

mod crew;
mod report;
mod task;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tenure_core::port::{NewWorker, QueueKey, StoreError};
use tenure_core::{Name, claim};
use tokio::task::JoinSet;

pub(crate) use self::crew::attend;
use self::crew::{Crew, FETCHERS, Handler};
pub use self::report::{Reason, Report, TaskError};
pub use self::task::TaskContext;
use crate::{Error, Tenure};

/// The most tasks that one worker does at once.
const CONCURRENCY_MAX: usize = 10_000;

/// A running worker.
///
/// ```
/// # use tenure::{TaskError, Tenure, backend::memory::Memory};
/// use tenure::port::NewTask;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = Tenure::builder().store(Memory::new()).open().await?;
/// let (sent, mut seen) = tokio::sync::mpsc::unbounded_channel();
///
/// let worker = tenure
///     .worker("mail")
///     .concurrency(8)
///     .kind("welcome", move |task| {
///         let sent = sent.clone();
///         async move {
///             let to: String = task.payload()?;
///             let _ = sent.send(to.clone());
///             Ok::<_, TaskError>(format!("welcomed {to}")) // the task's output
///         }
///     })
///     .start()
///     .await?;
///
/// let welcome = NewTask { payload: r#""ada""#.parse().unwrap(), ..NewTask::new("welcome") };
/// tenure.claims().submit(&tenure.queue("mail")?, vec![welcome]).await?;
/// assert_eq!(seen.recv().await.as_deref(), Some("ada"));
/// worker.drain().await?; // finishes what is begun, gives back what is not
/// # tenure.close().await }
/// ```
///
/// Dropped, it is aborted: handlers' futures are dropped, and their tasks go back to the queue.
#[must_use = "a worker that is dropped is aborted; keep it, and `drain` it in the end"]
pub struct Worker {
    crew: Arc<Crew>,
    tasks: JoinSet<()>,
    grace: Duration,
    // The session lives as long as its workers.
    _tenure: Tenure,
}

/// What came of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// How many handlers did not end within the grace: they were dropped, and their tasks went back to the queue.
    pub cut_short: usize,
}

/// Settings of a worker, before it starts. See [`Tenure::worker`].
#[must_use = "a worker works only after `start`"]
pub struct WorkerBuilder {
    tenure: Tenure,
    namespace: String,
    queue: String,
    name: Option<String>,
    sort: String,
    tags: Vec<String>,
    location: String,
    concurrency: usize,
    prefetch: Option<usize>,
    grace: Duration,
    listed: bool,
    handlers: HashMap<String, Handler>,
    any: Option<Handler>,
}

impl WorkerBuilder {
    pub(crate) fn new(tenure: Tenure, queue: String) -> Self {
        WorkerBuilder {
            tenure,
            namespace: Name::default_namespace().to_string(),
            queue,
            name: None,
            sort: String::new(),
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

    /// The tenant; `default` unless set.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// What tasks call this worker, and what approval is given to; the process's name unless set.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What sort of worker it is, for people.
    pub fn sort(mut self, sort: impl Into<String>) -> Self {
        self.sort = sort.into();
        self
    }

    /// What it has: tasks require and prefer such tags.
    pub fn tags<S: Into<String>>(mut self, tags: impl IntoIterator<Item = S>) -> Self {
        self.tags = tags.into_iter().map(Into::into).collect();
        self
    }

    /// Where it is, for people.
    pub fn location(mut self, location: impl Into<String>) -> Self {
        self.location = location.into();
        self
    }

    /// How many tasks it does at once; 32 unless set.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How many tasks it claims beyond those that it works on. Unless set, as many as it does in about 50 ms: none, if they
    /// take long.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// How long [`Worker::drain`] waits for handlers; 30 seconds unless set.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// It is not among the workers that people see and approve of: for what works off its own tasks, and is shown as something else. A
    /// queue that asks for approval gives it nothing.
    pub fn unlisted(mut self) -> Self {
        self.listed = false;
        self
    }

    /// What does tasks of this kind. A worker that only has such handlers is offered only tasks of their kinds.
    ///
    /// The handler returns nothing, or a result whose value is the task's output. An error is a failure, and so is a panic.
    pub fn kind<F, Fut>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Report> + Send + 'static,
    {
        self.handlers.insert(kind.into(), boxed(handler));
        self
    }

    /// What does tasks of every other kind.
    pub fn handler<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Report> + Send + 'static,
    {
        self.any = Some(boxed(handler));
        self
    }

    /// Makes itself known and begins to work. The process stands for the election of those who recover and hand out
    /// ([`Claims::stand`](crate::Claims::stand)).
    pub async fn start(self) -> Result<Worker, Error> {
        if self.handlers.is_empty() && self.any.is_none() {
            return Err(Error::Worker(
                "it has no handler; give it one with `.handler(…)` or `.kind(…)`".into(),
            ));
        }
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            let (given, most) = (self.concurrency, CONCURRENCY_MAX);
            return Err(Error::Worker(format!(
                "{given} tasks at once are not possible; choose between 1 and {most}"
            )));
        }
        let queue = QueueKey::new(self.namespace.parse()?, self.queue.parse()?);
        let mut kinds: Vec<String> = self.handlers.keys().cloned().collect();
        kinds.sort();
        if self.any.is_some() {
            kinds.clear();
        }
        let card = NewWorker {
            name: self.name.unwrap_or_else(|| self.tenure.name().to_owned()),
            kind: self.sort,
            tags: self.tags,
            kinds,
            queues: vec![queue.name.clone()],
            location: self.location,
            capacity: u32::try_from(self.concurrency).unwrap_or(u32::MAX),
            session: None,
        };
        claim::check_worker(&card).map_err(StoreError::from)?;
        let hub = self.tenure.hub().clone();
        self.tenure.claims().stand().await?;
        hub.attend_workers();
        let (concurrency, prefetch) = (self.concurrency, self.prefetch);
        let mut crew = Crew::new(hub, queue, card, self.handlers, self.any, concurrency, prefetch);
        crew.listed = self.listed;
        let crew = Arc::new(crew);
        let session = self.tenure.session();
        if let Some(session) = &session {
            crew.register(session).await?;
        }
        let mut tasks = JoinSet::new();
        (0..FETCHERS).for_each(|_| drop(tasks.spawn(crew.clone().fetch(session.clone()))));
        (0..concurrency).for_each(|_| drop(tasks.spawn(crew.clone().toil())));
        Ok(Worker { crew, tasks, grace: self.grace, _tenure: self.tenure })
    }
}

fn boxed<F, Fut>(handler: F) -> Handler
where
    F: Fn(TaskContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: Report> + Send + 'static,
{
    Arc::new(move |context| handler(context).map(Report::report).boxed())
}

impl Worker {
    /// What tasks call it.
    pub fn name(&self) -> &str {
        &self.crew.card.name
    }

    /// Its queue.
    pub fn queue(&self) -> &QueueKey {
        &self.crew.queue
    }

    /// Stops in good order: claims no more, gives back what is not begun, waits for handlers up to the grace, and for the store
    /// to acknowledge what they said.
    pub async fn drain(mut self) -> Result<Drained, Error> {
        let crew = self.crew.clone();
        let runtime = crew.hub.runtime.clone();
        crew.begin_drain();
        let limit = runtime.now() + self.grace;
        let mut cut_short = 0;
        tokio::select! {
            () = all(&mut self.tasks) => {}
            () = runtime.sleep_until(limit) => cut_short = crew.cut_short(),
        }
        // Those that were told to stop do so when they next wait; one that blocks its thread does not, and keeps its task.
        let limit = runtime.now() + crew.hub.call_limit();
        let ended = async {
            all(&mut self.tasks).await;
            // What a claim brings that was under way goes back before the session can end: nobody has begun it, and no attempt is lost.
            crew.hub.looks_over(&crew.queue).await;
            crew.all_acknowledged().await;
        };
        tokio::select! {
            () = ended => Ok(Drained { cut_short }),
            () = runtime.sleep_until(limit) => Err(Error::NotDrained(crew.card.name.clone())),
            () = crew.hub.closed() => Ok(Drained { cut_short }),
        }
    }
}

async fn all(tasks: &mut JoinSet<()>) {
    while tasks.join_next().await.is_some() {}
}

impl Drop for Worker {
    fn drop(&mut self) {
        // What is in the buffer goes back here, what is worked on when its handler's future is dropped.
        self.crew.begin_drain();
        self.tasks.abort_all();
    }
}
