//! `tenure work`: a worker that runs a command for each task.
//!
//! The library's worker claims, and gives each task to a handler that runs the command under the watchdog of
//! [`crate::child`]. The watchdog is told until when the claim is ours, every time that is extended, and ends the whole
//! process group before that: so nobody else works on the task while something of our attempt is left, also when we are
//! stopped or killed. We ourselves give a task back only when its command is gone.

mod attempt;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tenure::port::{Backend, Json, Profile, QueueKey, StoreError, TaskFilter, TaskState};
use tenure::runtime::{host_name, wall_ms};
use tenure::{TaskContext, TaskError, Tenure, Worker};
use tokio::sync::watch;

use self::attempt::{Bench, Verdict};
use super::environment;
use super::program::{Output, Program, Running};
use super::signals::Signals;
use crate::args::work::WorkArgs;
use crate::args::{Format, Global};
use crate::child::SpawnError;
use crate::exit::Failure;
use crate::output::{self, Ink, counted, plain};
use crate::store;

/// How often an emptying queue is looked at.
const GLANCE: Duration = Duration::from_millis(250);
/// How many tasks are read at once.
const PAGE: u32 = 100;
/// A drain waits for commands for as long as they take; who does not want to wait says it twice.
const PATIENCE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What all attempts share.
struct Shop {
    bench: Bench,
    store: Arc<dyn Backend>,
    json: bool,
    /// No more waiting: commands are ended, and their tasks go back.
    stop: watch::Sender<bool>,
    /// The command cannot be executed, which no other task will change.
    unfit: watch::Sender<Option<(u8, String)>>,
    running: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
}

pub(crate) async fn run(global: &Global, args: WorkArgs) -> Result<u8, Failure> {
    let queue = store::queue(global, &args.queue)?;
    let mut signals = Signals::ending()?;
    let tenure = session(global, &args).await?;
    let shop = Arc::new(Shop {
        bench: Bench {
            program: Program {
                argv: args.command.clone(),
                kill_after: args.kill_after,
                tick: tenure.timing().beat() / 4,
                output: Output::Kept,
                withheld: environment::withheld(&args.pass_env),
            },
            worker: tenure.name().to_owned(),
            namespace: queue.namespace.to_string(),
        },
        store: tenure.store().clone(),
        json: global.output == Format::Json,
        stop: watch::Sender::new(false),
        unfit: watch::Sender::new(None),
        running: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let worker = worker(&tenure, &args, &queue, &shop).await?;
    output::note(global, Ink::Green, &format!("{} works on {queue}", plain(tenure.name())));
    let until_empty = args.until_empty.then(|| Profile {
        name: tenure.name().to_owned(),
        kinds: args.kinds.clone(),
        tags: args.tags.clone(),
    });
    let ended = until_told(&shop, &queue, until_empty, &mut signals).await;
    let drained = drain(global, worker, &shop, &mut signals).await;
    tokio::select! {
        closed = tenure.close() => closed?,
        // Told to end once more: the store gets no farewell, and waits for the lease.
        _ = signals.next() => {}
    }
    let (completed, failed) = (shop.completed.load(Ordering::Relaxed), shop.failed.load(Ordering::Relaxed));
    let done = counted(usize::try_from(completed).unwrap_or(usize::MAX), "task");
    output::note(global, Ink::Dim, &format!("{done} completed, {failed} failed"));
    ended?;
    drained.map(|()| 0)
}

async fn session(global: &Global, args: &WorkArgs) -> Result<Tenure, Failure> {
    tenure::Timing::new(args.lease, None).map_err(tenure::Error::from)?;
    let mut builder = store::builder(global)?.lease(args.lease);
    if let Some(name) = &args.worker {
        builder = builder.name(name);
    }
    Ok(builder.open().await?)
}

async fn worker(
    tenure: &Tenure,
    args: &WorkArgs,
    queue: &QueueKey,
    shop: &Arc<Shop>,
) -> Result<Worker, Failure> {
    let handler = {
        let shop = shop.clone();
        move |task: TaskContext| {
            let shop = shop.clone();
            async move { shop.work_on(task).await }
        }
    };
    let builder = tenure
        .worker(queue.name.as_str())
        .namespace(queue.namespace.as_str())
        .sort("command")
        .location(host_name())
        .tags(args.tags.clone())
        .concurrency(args.concurrency as usize)
        // A command takes longer than a claim: none waits here that another could begin.
        .prefetch(0)
        .grace(PATIENCE);
    let builder = match args.kinds.is_empty() {
        true => builder.handler(handler),
        false => args.kinds.iter().fold(builder, |builder, kind| builder.kind(kind, handler.clone())),
    };
    Ok(builder.start().await?)
}

/// Until we are told to end, nothing is left, or the command turns out to be none.
async fn until_told(
    shop: &Shop,
    queue: &QueueKey,
    until_empty: Option<Profile>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let mut unfit = shop.unfit.subscribe();
    let empty = async {
        match until_empty {
            Some(worker) => emptied(shop.store.as_ref(), queue, &worker).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = signals.next() => Ok(()),
        () = empty => Ok(()),
        found = unfit.wait_for(Option::is_some) => match found.ok().and_then(|found| found.clone()) {
            Some((code, message)) => Err(Failure::new(code, message)),
            None => Ok(()),
        },
    }
}

/// Completes when the queue has no task that this worker could claim, now or when another worker returns it.
async fn emptied(store: &dyn Backend, queue: &QueueKey, worker: &Profile) {
    loop {
        match has_task_for(store, queue, worker).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => tracing::warn!("cannot see whether {queue} is empty: {error}"),
        }
        tokio::time::sleep(GLANCE).await;
    }
}

/// Whether a ready, held or claimed task of the queue suits the worker. The counts answer for an empty queue; otherwise the
/// tasks are read page by page until one suits.
async fn has_task_for(store: &dyn Backend, queue: &QueueKey, worker: &Profile) -> Result<bool, StoreError> {
    const BUSY: [TaskState; 3] = [TaskState::Ready, TaskState::Held, TaskState::Claimed];
    match store.queue(queue).await? {
        Some(view) if BUSY.iter().any(|state| view.count(*state) > 0) => {}
        _ => return Ok(false),
    }
    let mut filter = TaskFilter {
        namespace: Some(queue.namespace.clone()),
        queue: Some(queue.name.clone()),
        states: BUSY.to_vec(),
        limit: PAGE,
        ..TaskFilter::default()
    };
    loop {
        let tasks = store.tasks(&filter).await?;
        if tasks.iter().any(|task| task.suits(worker)) {
            return Ok(true);
        }
        match tasks.last() {
            Some(last) if tasks.len() == PAGE as usize => filter.before = Some(last.id),
            _ => return Ok(false),
        }
    }
}

/// Finishes what runs; told again, ends it.
async fn drain(global: &Global, worker: Worker, shop: &Shop, signals: &mut Signals) -> Result<(), Failure> {
    if shop.running.load(Ordering::Relaxed) > 0 {
        output::note(global, Ink::Dim, "finishing what runs; told again, it is ended and given back");
    }
    let drained = worker.drain();
    tokio::pin!(drained);
    let drained = tokio::select! {
        drained = &mut drained => drained,
        _ = signals.next() => {
            output::note(global, Ink::Yellow, "told again: ending what runs, and giving it back");
            shop.stop.send_replace(true);
            drained.await
        }
    };
    drained?;
    Ok(())
}

impl Shop {
    async fn work_on(&self, context: TaskContext) -> Result<Option<Json>, TaskError> {
        let _running = Running::begin(&self.running);
        let keep = self.store.kernel_lock(context.session());
        let mut stop = self.stop.subscribe();
        let over = async {
            // The sender lives as long as we do.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let verdict = match self.bench.attempt(&context, keep, over).await {
            Ok(verdict) => verdict,
            Err(error @ SpawnError::Exec { .. }) => {
                // Not this task's fault: it goes back as if it had not been claimed.
                self.unfit.send_replace(Some((error.exit_code() as u8, error.to_string())));
                return Err(TaskError::release());
            }
            Err(error) => Verdict::Failed(error.to_string()),
        };
        self.tell(&context, &verdict);
        match verdict {
            Verdict::Completed(output) => Ok(output),
            Verdict::Failed(why) => Err(TaskError::fail(why)),
            // If the claim is lost, it is not ours to give back, and nothing comes of it.
            Verdict::Ended => Err(TaskError::release()),
        }
    }

    fn tell(&self, context: &TaskContext, verdict: &Verdict) {
        let task = context.task();
        let (word, ink, why) = match verdict {
            Verdict::Completed(_) => ("completed", Ink::Green, ""),
            Verdict::Failed(why) => ("failed", Ink::Red, why.as_str()),
            Verdict::Ended => ("ended", Ink::Yellow, "the claim is lost, or given back"),
        };
        match verdict {
            Verdict::Completed(_) => drop(self.completed.fetch_add(1, Ordering::Relaxed)),
            Verdict::Failed(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
            Verdict::Ended => {}
        }
        if self.json {
            output::print_json(&json!({
                "task": task.id, "token": task.token, "attempt": task.attempt, "outcome": word, "why": why, "at_ms": wall_ms(),
            }));
            return;
        }
        let why = if why.is_empty() { String::new() } else { format!(": {}", plain(why)) };
        crate::output::err_line(format_args!(
            "{} task {} {word}, attempt {} of {}{why}",
            output::paint_err("●", ink),
            task.id,
            task.attempt,
            task.max_attempts
        ));
    }
}
