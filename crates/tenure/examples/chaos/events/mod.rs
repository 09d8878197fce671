//! Chaos tests for events: processes publish and consume under faults, and hash chains are compared.
//!
//! Two scenarios: *postgres* and *sqlite*. Sixteen writers in two processes extend hash chains in transactions of
//! random length, some of them rolled back; eight members consume the events and record effects in the same database.
//! When all faults are healed and no event is written any more, the remaining events are consumed. The *controls*
//! follow.

pub(crate) mod chains;
mod controls;
mod evaluation;
mod nemesis;
mod plan;
mod pools;
mod process;
pub(crate) mod reader;

use tenure::port::TopicSettings;
use tenure_core::SplitMix;
use tokio::runtime::Handle;

use self::chains::{ChainReport, PARTITIONS, topic};
use self::evaluation::evaluate;
use self::nemesis::Operator;
pub(crate) use self::plan::Plan;
use self::plan::Role;
pub(crate) use self::process::run_process;
use crate::faults::Nemesis;
use crate::postgres::LEASE;
use crate::process::open;
use crate::report::{self, Outcome, Progress};
use crate::scenario_context::{self, ScenarioContext};
use crate::{Failed, Options};

/// Number of members.
const MEMBERS: usize = 8;

/// Run the scenarios; returns whether all checks passed.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<bool, Failed> {
    let outcomes =
        scenario_context::run(options, entropy, progress, runtime, scenario_context::server(), scenario)?;
    let controls = if options.wants("controls") { controls::run(progress, runtime)? } else { Vec::new() };
    progress.done();
    Ok(report::print(&outcomes, None, &controls, options.seed))
}

fn scenario(context: &mut ScenarioContext<'_>) -> Result<Outcome, Failed> {
    let (url, runtime) = (context.url, context.runtime);
    runtime.block_on(prepare(url))?;
    let mut workers =
        context.prepare_workers([Role::Writes(8); 2].into_iter().chain([Role::Reads; MEMBERS]))?;
    workers.start_all()?;
    let source = &mut Operator { url, runtime };
    let faults = Nemesis { context, workers: &mut workers, source }.run()?;
    context.drain(&mut workers, |role| *role != Role::Reads, || runtime.block_on(unread(url)))?;
    // Leave time for the stale commits.
    std::thread::sleep(LEASE * 2);
    workers.end_all();
    evaluate(context.name, runtime.block_on(compare_chains(url))?, &faults, &workers)
}

/// Create the topic and the tables.
async fn prepare(url: &str) -> Result<(), Failed> {
    let tenure = open(url, "setup", LEASE).await;
    let settings = TopicSettings { partitions: PARTITIONS, ..TopicSettings::default() };
    tenure.store().set_topic(&topic()?, &settings).await?;
    match url.starts_with("sqlite:") {
        true => chains::sqlite::create(&pools::sqlite(url, 1)?).await?,
        false => chains::postgres::create(&pools::postgres(url, 1)?).await?,
    }
    tenure.close().await?;
    Ok(())
}

async fn compare_chains(url: &str) -> Result<ChainReport, Failed> {
    match url.starts_with("sqlite:") {
        true => chains::sqlite::evaluate(&pools::sqlite(url, 1)?).await,
        false => chains::postgres::evaluate(&pools::postgres(url, 1)?).await,
    }
}

/// Number of events without an effect.
async fn unread(url: &str) -> Result<u64, Failed> {
    let (published, read) = match url.starts_with("sqlite:") {
        true => chains::sqlite::counts(&pools::sqlite(url, 1)?).await?,
        false => chains::postgres::counts(&pools::postgres(url, 1)?).await?,
    };
    Ok(u64::try_from(published - read).unwrap_or(0))
}
