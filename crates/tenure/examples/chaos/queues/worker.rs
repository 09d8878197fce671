//! A process with a worker on each queue, and a task that sends stale settlements.
//!
//! A run logs that it holds its claim when it begins, every few milliseconds, and when it ends. When the library drops
//! a run because the claim was lost, its token is kept, and another task completes the work under it a little later:
//! the store must reject these stale settlements.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::port::{ClaimOutcome, RawJson, SettleResult, Settlement, TaskId};
use tenure::{Name, TaskContext, TaskError, Tenure, Token, Worker};
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::true_boottime_ns;
use tokio::signal::unix::Signal;

use super::notes::{Note, NoteLog, Run};
use super::plan::{MIXED, ORDERS, Plan, TaskBehaviour, TaskResult, TaskScript};
use crate::Failed;
use crate::process::retry;

/// Panic message of handlers that panic on purpose.
pub(crate) const PANIC: &str = "intended panic";

/// Interval at which a run checks its claim.
const SAMPLE: Duration = Duration::from_millis(10);

/// Concurrent runs per queue and process.
const AT_ONCE: usize = 6;

struct Shared {
    tenure: Tenure,
    note_log: Arc<NoteLog>,
    /// Lost claims.
    lost: Mutex<Vec<(TaskId, Token)>>,
}

/// Work until SIGTERM.
pub(crate) async fn work(
    tenure: &Tenure,
    plan: &Plan,
    note_log: Arc<NoteLog>,
    mut terminate: Signal,
) -> Result<(), Failed> {
    let shared = Arc::new(Shared { tenure: tenure.clone(), note_log, lost: Mutex::default() });
    let stale_settlements = tokio::spawn(settle_stale(shared.clone()));
    let mut workers = Vec::new();
    for queue in [ORDERS, MIXED] {
        tokio::select! {
            worker = start(tenure, plan, queue, &shared) => workers.push(worker),
            _ = terminate.recv() => return Ok(()),
        }
    }
    terminate.recv().await;
    stale_settlements.abort();
    for worker in workers {
        let _ = tokio::time::timeout(Duration::from_secs(2), worker.drain()).await;
    }
    Ok(())
}

/// Start a worker, with retries.
async fn start(tenure: &Tenure, plan: &Plan, queue: &str, shared: &Arc<Shared>) -> Worker {
    retry(async || {
        let shared = shared.clone();
        let tags = if plan.process.is_multiple_of(2) { vec!["even"] } else { vec![] };
        let worker = tenure
            .worker(queue)
            .name(format!("{queue}-{}", plan.process))
            .tags(tags)
            .concurrency(AT_ONCE)
            .grace(Duration::from_millis(1500))
            .handler(move |task| run(shared.clone(), task));
        worker.start().await
    })
    .await
}

/// Process a task.
async fn run(shared: Arc<Shared>, task: TaskContext) -> Result<TaskResult, TaskError> {
    let before = true_boottime_ns();
    if !task.is_claimed() {
        return Err(TaskError::release());
    }
    let after = true_boottime_ns();
    let script: TaskScript = task.payload()?;
    let run = describe(&shared, &task, &script).await;
    shared.note_log.write(&Note::Begins { run, before, after });
    let mut watch = Watch { shared: &shared, task: &task, ended: false };
    watch.sample();
    if task.parent_results().len() < script.parent_count {
        shared.note_log.write(&Note::WithoutParentResults { task: task.id().0 });
    }
    let until = true_boottime_ns() + script.duration_ms * 1_000_000;
    while true_boottime_ns() < until {
        let left = Duration::from_nanos(until.saturating_sub(true_boottime_ns()));
        tokio::time::sleep(left.min(SAMPLE)).await;
        watch.sample();
    }
    watch.end();
    match script.behaviour {
        TaskBehaviour::Fail => Err(TaskError::fail("intended failure")),
        TaskBehaviour::Panic if task.attempt() == 1 => panic!("{PANIC}"),
        _ => Ok(TaskResult { token: task.token().as_u64() }),
    }
}

async fn describe(shared: &Shared, task: &TaskContext, script: &TaskScript) -> Run {
    let (claimed, store) = (task.task(), shared.tenure.store());
    let namespace = Name::default_namespace();
    let read = tokio::time::timeout(Duration::from_millis(300), store.task(&namespace, task.id())).await;
    let view = read.ok().and_then(Result::ok).flatten().filter(|view| view.token == task.token());
    let step = tenure::port::PRIORITY_STEP_MS;
    Run {
        task: task.id().0,
        token: task.token().as_u64(),
        queue: claimed.queue.to_string(),
        key: script.key.clone(),
        effective_at_ms: claimed.submitted_at_ms - i64::from(claimed.priority) * step,
        claim_seq: claimed.claim_seq,
        claimed_at_ms: view.and_then(|view| view.claimed_at_ms),
    }
}

/// Observes a run; if dropped before `end`, the run was stopped.
struct Watch<'a> {
    shared: &'a Shared,
    task: &'a TaskContext,
    ended: bool,
}

impl Watch<'_> {
    fn sample(&self) {
        let before = true_boottime_ns();
        if self.task.is_claimed() {
            let (task, token) = (self.task.id().0, self.task.token().as_u64());
            let after = true_boottime_ns();
            self.shared.note_log.write(&Note::Holds { task, token, before, after });
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.write(false);
    }

    fn write(&self, stopped: bool) {
        let (task, token) = (self.task.id().0, self.task.token().as_u64());
        self.shared.note_log.write(&Note::Ends { task, token, stopped });
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.write(true);
            locked(&self.shared.lost).push((self.task.id(), self.task.token()));
        }
    }
}

/// Complete lost claims repeatedly, and log the response of the store.
async fn settle_stale(shared: Arc<Shared>) {
    let mut entropy = SplitMix::new(tenure::runtime::random());
    loop {
        tokio::time::sleep(Duration::from_millis(100 + entropy.next_u64() % 400)).await;
        let lost: Vec<_> = locked(&shared.lost).clone();
        for (task, token) in lost {
            let output = RawJson::of(&TaskResult { token: token.as_u64() }).ok();
            let namespace = Name::default_namespace();
            let settlement = Settlement { namespace, task, token, outcome: ClaimOutcome::Complete(output) };
            let outcome = shared.tenure.store().settle(&[settlement]).await;
            if let Ok([settled]) = outcome.as_deref() {
                let accepted = *settled != SettleResult::ClaimLost;
                shared.note_log.write(&Note::Stale { task: task.0, token: token.as_u64(), accepted });
            }
            if entropy.next_u64().is_multiple_of(3) {
                locked(&shared.lost).retain(|it| *it != (task, token));
            }
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
