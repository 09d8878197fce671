//! A process that works: a library worker on each queue, and someone careless.
//!
//! A run writes down that its claim is ours when it begins, every few milliseconds, and when it is done. When the library drops
//! it, because the claim was lost, its token goes to the careless one, who completes the task under it all the same, a little
//! later: those are the stale settlements that the store must refuse.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::port::{Json, Outcome, Settled, Settlement, TaskId};
use tenure::{Name, TaskContext, TaskError, Tenure, Token, Worker};
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::true_boottime_ns;
use tokio::signal::unix::Signal;

use super::notes::{Note, Notebook, Run};
use super::plan::{Does, Done, Errand, MIXED, ORDERS, Plan};
use crate::Failed;
use crate::process::insist;

/// What handlers say that panic as they are told.
pub(crate) const PANIC: &str = "it panics, as it was told";

/// How often a run that takes long looks whether the claim is still its own.
const SAMPLE: Duration = Duration::from_millis(10);

/// How many runs of one queue a process has at once.
const AT_ONCE: usize = 6;

struct Shared {
    tenure: Tenure,
    notebook: Arc<Notebook>,
    /// Claims that were lost.
    lost: Mutex<Vec<(TaskId, Token)>>,
}

/// Works until it is told to end.
pub(crate) async fn work(
    tenure: &Tenure,
    plan: &Plan,
    notebook: Arc<Notebook>,
    mut terminate: Signal,
) -> Result<(), Failed> {
    let shared = Arc::new(Shared { tenure: tenure.clone(), notebook, lost: Mutex::default() });
    let careless = tokio::spawn(settle_carelessly(shared.clone()));
    let mut workers = Vec::new();
    for queue in [ORDERS, MIXED] {
        tokio::select! {
            worker = start(tenure, plan, queue, &shared) => workers.push(worker),
            _ = terminate.recv() => return Ok(()),
        }
    }
    terminate.recv().await;
    careless.abort();
    for worker in workers {
        let _ = tokio::time::timeout(Duration::from_secs(2), worker.drain()).await;
    }
    Ok(())
}

/// Starts a worker, as often as it takes.
async fn start(tenure: &Tenure, plan: &Plan, queue: &str, shared: &Arc<Shared>) -> Worker {
    insist(async || {
        let shared = shared.clone();
        let tags = if plan.hand.is_multiple_of(2) { vec!["even"] } else { vec![] };
        let worker = tenure
            .worker(queue)
            .name(format!("{queue}-{}", plan.hand))
            .tags(tags)
            .concurrency(AT_ONCE)
            .grace(Duration::from_millis(1500))
            .handler(move |task| run(shared.clone(), task));
        worker.start().await
    })
    .await
}

/// Does a task.
async fn run(shared: Arc<Shared>, task: TaskContext) -> Result<Done, TaskError> {
    let before = true_boottime_ns();
    if !task.is_claimed() {
        return Err(TaskError::release());
    }
    let after = true_boottime_ns();
    let errand: Errand = task.payload()?;
    let run = describe(&shared, &task, &errand).await;
    shared.notebook.write(&Note::Begins { run, before, after });
    let mut watch = Watch { shared: &shared, task: &task, ended: false };
    watch.sample();
    if task.inputs().len() < errand.inputs {
        shared.notebook.write(&Note::WithoutInputs { task: task.id().0 });
    }
    let until = true_boottime_ns() + errand.takes_ms * 1_000_000;
    while true_boottime_ns() < until {
        let left = Duration::from_nanos(until.saturating_sub(true_boottime_ns()));
        tokio::time::sleep(left.min(SAMPLE)).await;
        watch.sample();
    }
    watch.end();
    match errand.does {
        Does::Badly => Err(TaskError::fail("it always does")),
        Does::Panics if task.attempt() == 1 => panic!("{PANIC}"),
        _ => Ok(Done { token: task.token().as_u64() }),
    }
}

async fn describe(shared: &Shared, task: &TaskContext, errand: &Errand) -> Run {
    let (claimed, store) = (task.task(), shared.tenure.store());
    let namespace = Name::default_namespace();
    let looked = tokio::time::timeout(Duration::from_millis(300), store.task(&namespace, task.id())).await;
    let view = looked.ok().and_then(Result::ok).flatten().filter(|view| view.token == task.token());
    let step = tenure::port::PRIORITY_STEP_MS;
    Run {
        task: task.id().0,
        token: task.token().as_u64(),
        queue: claimed.queue.to_string(),
        key: errand.key.clone(),
        effective_at_ms: claimed.enqueued_at_ms - i64::from(claimed.priority) * step,
        turn: claimed.turn,
        claimed_at_ms: view.and_then(|view| view.claimed_at_ms),
    }
}

/// A run, watched: dropped before its end, it was stopped.
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
            self.shared.notebook.write(&Note::Holds { task, token, before, after });
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.write(false);
    }

    fn write(&self, stopped: bool) {
        let (task, token) = (self.task.id().0, self.task.token().as_u64());
        self.shared.notebook.write(&Note::Ends { task, token, stopped });
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

/// Completes what was lost, again and again, and writes down what the store says to it.
async fn settle_carelessly(shared: Arc<Shared>) {
    let mut entropy = SplitMix::new(tenure::runtime::random());
    loop {
        tokio::time::sleep(Duration::from_millis(100 + entropy.next_u64() % 400)).await;
        let lost: Vec<_> = locked(&shared.lost).clone();
        for (task, token) in lost {
            let output = Json::of(&Done { token: token.as_u64() }).ok();
            let namespace = Name::default_namespace();
            let settlement = Settlement { namespace, task, token, outcome: Outcome::Complete(output) };
            let said = shared.tenure.store().settle(&[settlement]).await;
            if let Ok([settled]) = said.as_deref() {
                let accepted = *settled != Settled::Lost;
                shared.notebook.write(&Note::Stale { task: task.0, token: token.as_u64(), accepted });
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
