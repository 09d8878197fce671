//! Chaos tests for queues: processes submit and process tasks under faults, and the results are checked.
//!
//! Two scenarios: *postgres* and *sqlite*. Each has submitters and workers; one of the workers is the broker. The queue
//! `orders` has plain tasks of different priority and changes its mode; its claim order is checked. The queue `mixed`
//! has everything else: graphs, concurrency keys, tags, and tasks that fail, panic or take long. When all faults are
//! healed and no task is submitted any more, the remaining tasks are processed. The *controls* follow.

mod controls;
mod evaluation;
mod nemesis;
mod notes;
mod operator;
mod oracles;
mod plan;
mod submitter;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::SplitMix;
use tokio::runtime::Handle;
use tokio::signal::unix::Signal;

use self::evaluation::evaluate;
use self::notes::NoteLog;
use self::operator::Operator;
pub(crate) use self::plan::Plan;
use self::plan::Role;
use crate::faults::Nemesis;
use crate::postgres::LEASE;
use crate::process::open;
use crate::report::{self, Outcome, Progress};
use crate::scenario_context::{self, ScenarioContext};
use crate::{Failed, Options};

/// Run the scenarios; returns whether all checks passed.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<bool, Failed> {
    let mut outcomes =
        scenario_context::run(options, entropy, progress, runtime, scenario_context::server(), scenario)?;
    let controls = if options.wants("controls") { controls::run(progress, runtime)? } else { Vec::new() };
    progress.done();
    report::demand_refusals(&mut outcomes, "no stale settlement was rejected: the tokens were not tested");
    let gaps = "recovery: time from the loss of a claim to the next run of its task, ms";
    Ok(report::print(&outcomes, Some(gaps), &controls, options.seed))
}

fn scenario(context: &mut ScenarioContext<'_>) -> Result<Outcome, Failed> {
    let roles = [Role::Submits, Role::Submits, Role::Works, Role::Works, Role::Works, Role::Works];
    let mut workers = context.prepare_workers(roles)?;
    let mut operator = Operator::new(context.url.into(), context.runtime.clone());
    workers.start_all()?;
    let faults = Nemesis { context, workers: &mut workers, source: &mut operator }.run()?;
    context.drain(&mut workers, |role| *role == Role::Submits, || operator.unfinished())?;
    workers.end_all();
    let lease_ns = u64::try_from(LEASE.as_nanos())?;
    context.runtime.block_on(evaluate(context.name, &workers, &operator, &faults, lease_ns))
}

/// Run a process.
pub(crate) async fn run_process(plan: Plan, mut terminate: Signal) -> Result<(), Failed> {
    // Handlers panic on purpose.
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload_as_str() != Some(worker::PANIC) {
            eprintln!("{panic}");
        }
    }));
    let note_log = Arc::new(NoteLog::open(&plan.log)?);
    let name = format!("process-{}", plan.process);
    let tenure = tokio::select! {
        tenure = open(&plan.url, &name, LEASE) => tenure,
        _ = terminate.recv() => return Ok(()),
    };
    match plan.role {
        Role::Submits => tokio::select! {
            () = submitter::submit(&tenure, note_log) => {}
            _ = terminate.recv() => {}
        },
        Role::Works => worker::work(&tenure, &plan, note_log, terminate).await?,
    }
    let _ = tokio::time::timeout(Duration::from_secs(3), tenure.close()).await;
    Ok(())
}
