//! Chaos for schedules: processes fire, everything breaks, and the history is judged.
//!
//! Two stages: *servers* (PostgreSQL, whose clock is stepped) and *files* (SQLite, where the clock of all processes is). Five
//! processes stand, and whoever leads fires ten schedules with every policy; all of them do the tasks of those whose runs may not
//! overlap. When all is healed, and nothing is overdue any more,
//! the history, the tasks and the events are held against the timetables. Then the *controls*.

mod apart;
mod clock;
mod controls;
pub(crate) mod history;
mod nemesis;
mod plan;
mod process;
mod verdict;

use std::time::Duration;

use tenure::port::TopicSettings;
use tenure::{ScheduleBuilder, Tenure};
use tenure_core::SplitMix;
use tenure_testkit::rig::{FakeClock, PgCluster, SettableClock, true_boottime_ns};
use tokio::runtime::Handle;

use self::clock::Clock;
use self::history::TOPIC;
use self::nemesis::Operator;
pub(crate) use self::plan::Plan;
use self::plan::{Fires, definitions};
pub(crate) use self::process::live;
use self::verdict::conclude;
use crate::faults::Nemesis;
use crate::process::open;
use crate::report::{self, Outcome, Progress};
use crate::servers::LEASE;
use crate::site::{self, Site};
use crate::{Failed, Options};

/// How long something may be overdue once all is healed.
const STALL: Duration = Duration::from_secs(40);

/// How many stand.
const HANDS: usize = 5;

/// What is ahead of now by less is not overdue: somebody is about to fire it.
const ABOUT_NOW_MS: i64 = 3_000;

/// How long before the first fault a tick may have been decided about: less than a step of the clock.
const BEFORE_MS: i64 = 600_000;

/// Runs the stages, and tells whether all is well.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<bool, Failed> {
    let mut server = site::server();
    match FakeClock::available() {
        Ok(()) => server = server.settable_clock(),
        Err(why) => progress.note(&format!("clocks stay as they are: {why}")),
    }
    let outcomes = site::run(options, entropy, progress, runtime, server, stage)?;
    let controls = if options.wants("controls") { controls::run(progress, runtime)? } else { Vec::new() };
    progress.done();
    Ok(report::print(&outcomes, None, &controls, options.seed))
}

fn stage(site: &mut Site<'_>) -> Result<Outcome, Failed> {
    let runtime = site.runtime;
    let tenure = runtime.block_on(prepare(site.url))?;
    let mut crew = site.hire([Fires; HANDS])?;
    // Without a server, the clock of a store is that of who asks.
    let theirs = match site.cluster {
        None if FakeClock::available().is_ok() => Some(SettableClock::new(crew.workplace.path())?),
        _ => None,
    };
    crew.hands.iter_mut().for_each(|hand| hand.clock.clone_from(&theirs));
    crew.start_all()?;
    let mut operator = Operator {
        tenure: &tenure,
        runtime,
        clock: site.cluster.and_then(PgCluster::clock).or(theirs.as_ref()),
        offset_s: 0,
        shown: Clock::since(tenure::runtime::wall_ms() - BEFORE_MS),
    };
    let faults = Nemesis { site, crew: &mut crew, mischief: &mut operator }.rage()?;
    site.progress.doing("catching up");
    crew.start_all()?;
    let left = catch_up(&tenure, operator.offset_s, site.progress, runtime);
    // Those who are careless have a while to say what is too late.
    std::thread::sleep(LEASE * 2);
    crew.end_all();
    let judged = runtime.block_on(history::judge(&tenure, operator.shown))?;
    let _ = runtime.block_on(tenure.close());
    conclude(site.name, judged, left, &faults, &crew)
}

/// Makes the topic and the schedules.
async fn prepare(url: &str) -> Result<Tenure, Failed> {
    let tenure = open(url, "operator", LEASE * 4).await;
    let settings = TopicSettings { slots: 4, ..TopicSettings::default() };
    tenure.store().set_topic(&tenure.topic(TOPIC)?, &settings).await?;
    for definition in definitions()? {
        tenure.schedules().set(definition).await?;
    }
    // One that is of no use, for as long as the run lasts: it must not hold up the others.
    let gone = tenure.topic("gone")?;
    tenure.store().set_topic(&gone, &settings).await?;
    tenure.schedules().set(ScheduleBuilder::new("refused", "every 1s").event("gone")).await?;
    tenure.store().delete_topic(&gone).await?;
    Ok(tenure)
}

/// Waits until nothing is overdue but what is refused; tells what is, if that does not come to be.
fn catch_up(operator: &Tenure, offset_s: i64, progress: &mut Progress, runtime: &Handle) -> Option<String> {
    let limit = true_boottime_ns() + u64::try_from(STALL.as_nanos()).unwrap_or(0);
    loop {
        let overdue = runtime.block_on(overdue(operator, offset_s));
        match overdue {
            Ok(overdue) if overdue.is_empty() => return None,
            Ok(overdue) if true_boottime_ns() > limit => {
                return Some(format!("still overdue when all was healed: {}", overdue.join(", ")));
            }
            Err(error) if true_boottime_ns() > limit => return Some(format!("not answered: {error}")),
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
        let next = view.progress.map_or(i64::MAX, |progress| progress.next_at_ms);
        if next < now_ms - ABOUT_NOW_MS || view.trouble.is_some() {
            let trouble = view.trouble.unwrap_or_default();
            overdue.push(format!("{} by {} ms {trouble}", definition.name, now_ms - next));
        }
    }
    Ok(overdue)
}
