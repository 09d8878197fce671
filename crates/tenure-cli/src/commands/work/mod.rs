//! `tenure work`: a worker that runs a command for each task.
//!
//! The worker of the library passes each claimed task to a handler that runs the command under the watchdog of
//! [`crate::child`]. The supervisor sends the watchdog every new deadline of the claim, and the watchdog stops the
//! whole process group before the deadline. So no other worker runs the task while a process of this attempt is left,
//! even if tenure is stopped or killed. The supervisor releases a task only after its command is gone.

mod attempt;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tenure::port::{QueueKey, RawJson, Store, StoreError, TaskFilter, TaskState, WorkerProfile};
use tenure::runtime::{host_name, wall_ms};
use tenure::{TaskContext, TaskError, Tenure, Worker};
use tokio::sync::watch;

use self::attempt::{AttemptContext, AttemptResult};
use super::environment;
use super::handler_command::{CommandSpec, OutputMode, RunningCounter};
use super::signals::Signals;
use crate::args::work::WorkArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::child::SpawnError;
use crate::error::CliError;
use crate::output::{self, TextStyle, counted, plain};
use crate::store;

/// Poll interval of `--exit-when-idle`.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Number of tasks per page.
const PAGE: u32 = 100;
/// Limit of a drain: practically unlimited. A second signal ends the wait.
const UNLIMITED: Duration = Duration::from_secs(10 * 365 * 86_400);

/// State that all attempts share.
struct WorkContext {
    attempts: AttemptContext,
    store: Arc<dyn Store>,
    json: bool,
    /// Set to stop the running commands and release their tasks.
    stop: watch::Sender<bool>,
    /// Set if the command cannot be executed, which is fatal for every task.
    exec_failure: watch::Sender<Option<(u8, String)>>,
    running: AtomicU64,
    completed: AtomicU64,
    failed: AtomicU64,
}

pub(crate) async fn run(global: &GlobalArgs, args: WorkArgs) -> Result<u8, CliError> {
    let queue = store::queue(global, &args.queue)?;
    let mut signals = Signals::ending()?;
    let tenure = session(global, &args).await?;
    let context = Arc::new(WorkContext {
        attempts: AttemptContext {
            program: CommandSpec {
                argv: args.command.clone(),
                kill_after: args.kill_after,
                tick: tenure.timing().heartbeat_interval() / 4,
                output: OutputMode::Kept,
                withheld: environment::withheld(&args.pass_env),
            },
            worker: tenure.name().to_owned(),
            namespace: queue.namespace.to_string(),
        },
        store: tenure.store().clone(),
        json: global.output == OutputFormat::Json,
        stop: watch::Sender::new(false),
        exec_failure: watch::Sender::new(None),
        running: AtomicU64::new(0),
        completed: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let worker = worker(&tenure, &args, &queue, &context).await?;
    output::note(global, TextStyle::Green, &format!("{} works on {queue}", plain(tenure.name())));
    let idle_for = args.exit_when_idle.then(|| WorkerProfile {
        name: tenure.name().to_owned(),
        task_kinds: args.kinds.clone(),
        tags: args.tags.clone(),
    });
    let ended = wait_for_stop(&context, &queue, idle_for, &mut signals).await;
    let drained = drain(global, worker, &context, &mut signals).await;
    tokio::select! {
        closed = tenure.close() => closed?,
        // A second signal: exit at once without releasing the lease.
        _ = signals.next() => {}
    }
    let (completed, failed) =
        (context.completed.load(Ordering::Relaxed), context.failed.load(Ordering::Relaxed));
    let done = counted(usize::try_from(completed).unwrap_or(usize::MAX), "task");
    output::note(global, TextStyle::Dim, &format!("{done} completed, {failed} failed"));
    ended?;
    drained.map(|()| 0)
}

async fn session(global: &GlobalArgs, args: &WorkArgs) -> Result<Tenure, CliError> {
    tenure::Timing::new(args.lease, None).map_err(tenure::Error::from)?;
    let mut builder = store::builder(global)?.lease(args.lease);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    Ok(builder.open().await?)
}

async fn worker(
    tenure: &Tenure,
    args: &WorkArgs,
    queue: &QueueKey,
    context: &Arc<WorkContext>,
) -> Result<Worker, CliError> {
    let handler = {
        let context = context.clone();
        move |task: TaskContext| {
            let context = context.clone();
            async move { context.work_on(task).await }
        }
    };
    let builder = tenure
        .worker(queue.name.as_str())
        .namespace(queue.namespace.as_str())
        .description("command")
        .location(host_name())
        .tags(args.tags.clone())
        .concurrency(args.concurrency as usize)
        // Running a command takes longer than claiming a task, so prefetched tasks would only wait in this process.
        .prefetch(0)
        .grace(UNLIMITED);
    let builder = match args.kinds.is_empty() {
        true => builder.handler(handler),
        false => args.kinds.iter().fold(builder, |builder, kind| builder.kind(kind, handler.clone())),
    };
    Ok(builder.start().await?)
}

/// Waits for a signal, for an idle queue, or for a command that cannot be executed.
async fn wait_for_stop(
    context: &WorkContext,
    queue: &QueueKey,
    idle_for: Option<WorkerProfile>,
    signals: &mut Signals,
) -> Result<(), CliError> {
    let mut exec_failure = context.exec_failure.subscribe();
    let empty = async {
        match idle_for {
            Some(worker) => wait_until_idle(context.store.as_ref(), queue, &worker).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = signals.next() => Ok(()),
        () = empty => Ok(()),
        found = exec_failure.wait_for(Option::is_some) => match found.ok().and_then(|found| found.clone()) {
            Some((code, message)) => Err(CliError::new(code, message)),
            None => Ok(()),
        },
    }
}

/// Completes when the queue has no task that this worker could claim, now or after another worker releases it.
async fn wait_until_idle(store: &dyn Store, queue: &QueueKey, worker: &WorkerProfile) {
    loop {
        match has_task_for(store, queue, worker).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => tracing::warn!("cannot read the tasks of {queue}: {error}"),
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether a ready, blocked or claimed task of the queue matches the worker. Checks the counts first, then reads the
/// tasks page by page until one matches.
async fn has_task_for(
    store: &dyn Store,
    queue: &QueueKey,
    worker: &WorkerProfile,
) -> Result<bool, StoreError> {
    const BUSY: [TaskState; 3] = [TaskState::Ready, TaskState::Blocked, TaskState::Claimed];
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
        if tasks.iter().any(|task| task.may_be_claimed_by(worker)) {
            return Ok(true);
        }
        match tasks.last() {
            Some(last) if tasks.len() == PAGE as usize => filter.before = Some(last.id),
            _ => return Ok(false),
        }
    }
}

/// Waits for running commands; a second signal stops them.
async fn drain(
    global: &GlobalArgs,
    worker: Worker,
    context: &WorkContext,
    signals: &mut Signals,
) -> Result<(), CliError> {
    if context.running.load(Ordering::Relaxed) > 0 {
        output::note(
            global,
            TextStyle::Dim,
            "waiting for running commands; send the signal again to stop them and release their tasks",
        );
    }
    let drained = worker.drain();
    tokio::pin!(drained);
    let drained = tokio::select! {
        drained = &mut drained => drained,
        _ = signals.next() => {
            output::note(global, TextStyle::Yellow, "stopping running commands and releasing their tasks");
            context.stop.send_replace(true);
            drained.await
        }
    };
    drained?;
    Ok(())
}

impl WorkContext {
    async fn work_on(&self, context: TaskContext) -> Result<Option<RawJson>, TaskError> {
        let _running = RunningCounter::start(&self.running);
        let keep = self.store.kernel_lock(context.session());
        let mut stop = self.stop.subscribe();
        let over = async {
            // The sender lives as long as `self`.
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let result = match self.attempts.attempt(&context, keep, over).await {
            Ok(result) => result,
            Err(error @ SpawnError::Exec { .. }) => {
                // Not a failure of the task: release it without counting the attempt.
                self.exec_failure.send_replace(Some((error.exit_code() as u8, error.to_string())));
                return Err(TaskError::release());
            }
            Err(error) => AttemptResult::Failed(error.to_string()),
        };
        self.print_result(&context, &result);
        match result {
            AttemptResult::Completed(result) => Ok(result),
            AttemptResult::Failed(why) => Err(TaskError::fail(why)),
            // If the claim is lost, the release has no effect.
            AttemptResult::Ended => Err(TaskError::release()),
        }
    }

    fn print_result(&self, context: &TaskContext, result: &AttemptResult) {
        let task = context.task();
        let (word, style, why) = match result {
            AttemptResult::Completed(_) => ("completed", TextStyle::Green, ""),
            AttemptResult::Failed(why) => ("failed", TextStyle::Red, why.as_str()),
            AttemptResult::Ended => ("stopped", TextStyle::Yellow, "the claim is lost or released"),
        };
        match result {
            AttemptResult::Completed(_) => drop(self.completed.fetch_add(1, Ordering::Relaxed)),
            AttemptResult::Failed(_) => drop(self.failed.fetch_add(1, Ordering::Relaxed)),
            AttemptResult::Ended => {}
        }
        if self.json {
            output::print_json(&json!({
                "task_id": task.id, "token": task.token, "attempt": task.attempt, "outcome": word, "error": why,
                "finished_at_ms": wall_ms(),
            }));
            return;
        }
        let why = if why.is_empty() { String::new() } else { format!(": {}", plain(why)) };
        crate::output::err_line(format_args!(
            "{} task {} {word}, attempt {} of {}{why}",
            output::paint_err("●", style),
            task.id,
            task.attempt,
            task.max_attempts
        ));
    }
}
