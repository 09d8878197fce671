//! Chaos tests for schedules: processes fire schedules under faults, and the tick history is checked.
//!
//! Two scenarios: *postgres*, where the server's clock is set, and *sqlite*, where the clock of all processes is set.
//! Five processes campaign, and the leader fires ten schedules with all policies; all processes run the tasks of the
//! schedules whose runs must not overlap. When all faults are healed and no schedule is overdue any more, the history,
//! the tasks and the events are compared with the timetables. The *controls* follow.

mod clock;
mod controls;
mod evaluation;
pub(crate) mod history;
mod nemesis;
mod overlap;
mod plan;
mod process;

use std::time::Duration;

use tenure::port::TopicSettings;
use tenure::{ScheduleBuilder, Tenure};
use tenure_core::SplitMix;
use tenure_testkit::rig::{FakeClock, PgCluster, SettableClock, true_boottime_ns};
use tokio::runtime::Handle;

use self::clock::Clock;
use self::evaluation::evaluate;
use self::history::TOPIC;
use self::nemesis::Operator;
pub(crate) use self::plan::Plan;
use self::plan::{Fires, definitions};
pub(crate) use self::process::run_process;
use crate::faults::Nemesis;
use crate::postgres::LEASE;
use crate::process::open;
use crate::report::{self, Outcome, Progress};
use crate::scenario_context::{self, ScenarioContext};
use crate::{Failed, Options};

/// Time limit for overdue schedules once all faults are healed.
const STALL: Duration = Duration::from_secs(40);

/// Number of processes.
const PROCESSES: usize = 5;

/// A tick that is due for less than this time is not overdue.
const ABOUT_NOW_MS: i64 = 3_000;

/// How long before the first fault the history of the clock starts: longer than the preparation, shorter than a clock
/// step.
const BEFORE_MS: i64 = 600_000;

/// Run the scenarios; returns whether all checks passed.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<bool, Failed> {
    let mut server = scenario_context::server();
    match FakeClock::available() {
        Ok(()) => server = server.settable_clock(),
        Err(why) => progress.note(&format!("clock faults skipped: {why}")),
    }
    let outcomes = scenario_context::run(options, entropy, progress, runtime, server, scenario)?;
    let controls = if options.wants("controls") { controls::run(progress, runtime)? } else { Vec::new() };
    progress.done();
    Ok(report::print(&outcomes, None, &controls, options.seed))
}

fn scenario(context: &mut ScenarioContext<'_>) -> Result<Outcome, Failed> {
    let runtime = context.runtime;
    let tenure = runtime.block_on(prepare(context.url))?;
    let mut workers = context.prepare_workers([Fires; PROCESSES])?;
    // Without a server, the store uses the clock of each process.
    let worker_clock = match context.cluster {
        None if FakeClock::available().is_ok() => Some(SettableClock::new(workers.directory.path())?),
        _ => None,
    };
    workers.slots.iter_mut().for_each(|slot| slot.clock.clone_from(&worker_clock));
    workers.start_all()?;
    let mut operator = Operator {
        tenure: &tenure,
        runtime,
        clock: context.cluster.and_then(PgCluster::clock).or(worker_clock.as_ref()),
        offset_s: 0,
        shown: Clock::since(tenure::runtime::wall_ms() - BEFORE_MS),
    };
    let faults = Nemesis { context, workers: &mut workers, source: &mut operator }.run()?;
    context.progress.doing("catching up");
    workers.start_all()?;
    let left = catch_up(&tenure, operator.offset_s, context.progress, runtime);
    // Leave time for the stale firings.
    std::thread::sleep(LEASE * 2);
    workers.end_all();
    let report = runtime.block_on(history::evaluate(&tenure, operator.shown))?;
    let _ = runtime.block_on(tenure.close());
    evaluate(context.name, report, left, &faults, &workers)
}

/// Create the topic and the schedules.
async fn prepare(url: &str) -> Result<Tenure, Failed> {
    let tenure = open(url, "operator", LEASE * 4).await;
    let settings = TopicSettings { partitions: 4, ..TopicSettings::default() };
    tenure.store().set_topic(&tenure.topic(TOPIC)?, &settings).await?;
    for definition in definitions()? {
        tenure.schedules().set(definition).await?;
    }
    // A schedule whose target does not exist: it must not delay the others.
    let gone = tenure.topic("gone")?;
    tenure.store().set_topic(&gone, &settings).await?;
    tenure.schedules().set(ScheduleBuilder::new("rejected", "every 1s").event("gone")).await?;
    tenure.store().delete_topic(&gone).await?;
    Ok(tenure)
}

/// Wait until no schedule is overdue, except the one with the missing target; returns the overdue ones after the time
/// limit.
fn catch_up(operator: &Tenure, offset_s: i64, progress: &mut Progress, runtime: &Handle) -> Option<String> {
    let limit = true_boottime_ns() + u64::try_from(STALL.as_nanos()).unwrap_or(0);
    loop {
        let overdue = runtime.block_on(overdue(operator, offset_s));
        match overdue {
            Ok(overdue) if overdue.is_empty() => return None,
            Ok(overdue) if true_boottime_ns() > limit => {
                return Some(format!("still overdue after all faults were healed: {}", overdue.join(", ")));
            }
            Err(error) if true_boottime_ns() > limit => {
                return Some(format!("the store did not answer: {error}"));
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(200));
        progress.tick();
    }
}

async fn overdue(operator: &Tenure, offset_s: i64) -> Result<Vec<String>, Failed> {
    let now_ms = tenure::runtime::wall_ms() + offset_s * 1_000;
    let mut overdue = Vec::new();
    for definition in definitions()? {
        let view = operator.schedules().show(definition.name.as_str()).await?;
        let next = view.tick_state.map_or(i64::MAX, |progress| progress.next_tick_at_ms);
        if next < now_ms - ABOUT_NOW_MS || view.last_error.is_some() {
            let error = view.last_error.unwrap_or_default();
            overdue.push(format!("{} by {} ms {error}", definition.name, now_ms - next));
        }
    }
    Ok(overdue)
}
