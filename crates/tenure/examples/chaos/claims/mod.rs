//! Chaos for claims: processes submit and work, everything breaks, and what they did is judged.
//!
//! Two stages: *servers* (PostgreSQL) and *files* (SQLite). Each has submitters and workers; one of the workers leads. The queue
//! `orders` holds plain tasks of different priority and changes its mode; its turns are judged. The queue `mixed` holds
//! everything else: graphs, keys, tags, tasks that fail, panic or take long. When all is healed and nothing more is submitted,
//! what is left is worked off. Then the *controls*.

mod controls;
mod nemesis;
mod notes;
mod operator;
mod oracles;
mod plan;
mod submitter;
mod verdict;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tenure_core::SplitMix;
use tokio::runtime::Handle;
use tokio::signal::unix::Signal;

use self::notes::Notebook;
use self::operator::Operator;
pub(crate) use self::plan::Plan;
use self::plan::Role;
use self::verdict::judge;
use crate::faults::Nemesis;
use crate::process::open;
use crate::report::{self, Outcome, Progress};
use crate::servers::LEASE;
use crate::site::{self, Site};
use crate::{Failed, Options};

/// Runs the stages, and tells whether all is well.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<bool, Failed> {
    let mut outcomes = site::run(options, entropy, progress, runtime, site::server(), stage)?;
    let controls = if options.wants("controls") { controls::run(progress, runtime)? } else { Vec::new() };
    progress.done();
    report::demand_refusals(
        &mut outcomes,
        "no stale settlement was ever refused: the tokens were not put to the test",
    );
    let gaps = "recovery, from the last hold of a lost task to its next run, ms";
    Ok(report::print(&outcomes, Some(gaps), &controls, options.seed))
}

fn stage(site: &mut Site<'_>) -> Result<Outcome, Failed> {
    let roles = [Role::Submits, Role::Submits, Role::Works, Role::Works, Role::Works, Role::Works];
    let mut crew = site.hire(roles)?;
    let mut operator = Operator::new(site.url.into(), site.runtime.clone());
    crew.start_all()?;
    let faults = Nemesis { site, crew: &mut crew, mischief: &mut operator }.rage()?;
    site.drain(&mut crew, |role| *role == Role::Submits, || operator.unfinished())?;
    crew.end_all();
    let lease_ns = u64::try_from(LEASE.as_nanos())?;
    site.runtime.block_on(judge(site.name, &crew, &operator, &faults, lease_ns))
}

/// Lives the life of a process.
pub(crate) async fn live(plan: Plan, mut terminate: Signal) -> Result<(), Failed> {
    // Handlers panic as they are told.
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload_as_str() != Some(worker::PANIC) {
            eprintln!("{panic}");
        }
    }));
    let notebook = Arc::new(Notebook::open(&plan.log)?);
    let name = format!("process-{}", plan.hand);
    let tenure = tokio::select! {
        tenure = open(&plan.url, &name, LEASE) => tenure,
        _ = terminate.recv() => return Ok(()),
    };
    match plan.role {
        Role::Submits => tokio::select! {
            () = submitter::submit(&tenure, notebook) => {}
            _ = terminate.recv() => {}
        },
        Role::Works => worker::work(&tenure, &plan, notebook, terminate).await?,
    }
    let _ = tokio::time::timeout(Duration::from_secs(3), tenure.close()).await;
    Ok(())
}
