//! Chaos tests for gossip: real `tenure run --soft` in network namespaces; overlaps of soft leaders are measured.
//!
//! Five members, each in a network namespace, are connected to one switch. They are killed, stopped and terminated; the
//! network between them is split in two, in both directions or in one. The leader runs a command, and the runs of the
//! command are checked: while the network is intact at most one runs at a time, whatever happens to the members; during
//! a split each side gets one; after a split there is one again within a bound, the same as in the simulator
//! ([`HEALING`]). The time with two leaders is reported. The *controls* follow.

mod controls;
mod evaluation;
mod member;
mod nemesis;
mod oracle;

use std::time::Duration;

use tenure_core::SplitMix;
use tenure_testkit::rig::{NetworkSwitch, true_boottime_ns};
use tenure_testkit::sim::soft::HEALING;

use self::evaluation::evaluate;
pub(crate) use self::member::{COMMAND, run_process};
use self::member::{KILL_AFTER, MemberPlan};
use self::nemesis::{Broken, Nemesis};
use crate::evaluation::terms;
use crate::fault_deck::wait;
use crate::oracles::Term;
use crate::report::{self, Outcome, Progress};
use crate::worker_processes::{WorkerProcesses, WorkerSlot};
use crate::{Failed, Options};

const MEMBERS: usize = 5;

/// Gossip interval, silence limit and hold-down.
const ROUND: Duration = Duration::from_millis(100);
const SILENCE_LIMIT: Duration = Duration::from_millis(1200);
const HOLD_DOWN: Duration = Duration::from_millis(1000);

/// Maximum time with two running commands after a split is healed: the bound of the simulator plus the time that a
/// terminated command has to end.
fn bound() -> Duration {
    ROUND * HEALING + KILL_AFTER
}

/// Maximum time until one member leads after the last change: the silence limit, the hold-down and a few rounds to
/// publish the result. Doubled, because the next leader may have failed too.
fn settled() -> Duration {
    (SILENCE_LIMIT + HOLD_DOWN + ROUND * 4) * 2
}

/// Run the scenario and the controls; returns whether all checks passed.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
) -> Result<bool, Failed> {
    progress.scenario("gossip", options.seconds);
    NetworkSwitch::available()
        .map_err(|why| format!("{why}: gossip scenarios require network namespaces"))?;
    let mut outcomes = Vec::new();
    if options.wants("members") {
        outcomes.push(scenario(options.seconds, entropy, progress)?);
    }
    let controls = if options.wants("controls") { controls::run(progress)? } else { Vec::new() };
    progress.done();
    Ok(report::print(
        &outcomes,
        Some("time from the end of one command to the next, ms"),
        &controls,
        options.seed,
    ))
}

fn scenario(seconds: f64, entropy: &mut SplitMix, progress: &mut Progress) -> Result<Outcome, Failed> {
    let mut workers = gather(MEMBERS)?;
    // One member has a higher priority: it takes over when it returns.
    workers.slots[0].plan.priority = 5;
    workers.start_all()?;
    let begun_ns = until_leads(&workers)?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let broken =
        Nemesis { workers: &mut workers, entropy, progress, broken: Broken::default() }.run(until_ns)?;
    progress.doing("waiting for a stable leader");
    wait(progress, settled());
    let last = leading(&workers)?;
    let end_ns = true_boottime_ns();
    workers.end_all();
    Ok(evaluate(&terms(&workers)?, &broken, &last, end_ns - begun_ns, &workers))
}

/// Prepare members that share a secret, without starting them.
fn gather(members: usize) -> Result<WorkerProcesses<MemberPlan>, Failed> {
    let mut workers = WorkerProcesses::new()?;
    let switch = NetworkSwitch::of(members)?;
    let secret = workers.directory.path().join("secret");
    std::fs::write(&secret, "secret of the chaos cluster")?;
    let addresses: Vec<_> = (0..members).map(|member| switch.address(member)).collect();
    workers.slots =
        (0..members).map(|it| WorkerSlot::new(MemberPlan::new(it, &addresses, &secret))).collect();
    workers.switch = Some(switch);
    Ok(workers)
}

/// Members whose command runs now, according to its log.
fn leading(workers: &WorkerProcesses<MemberPlan>) -> Result<Vec<usize>, Failed> {
    let now = true_boottime_ns();
    let lives = |term: &Term| now.saturating_sub(term.to_ns) < 100_000_000;
    Ok(terms(workers)?.into_iter().filter(lives).map(|term| term.worker).collect())
}

/// Wait until a member leads, and return the time.
fn until_leads(workers: &WorkerProcesses<MemberPlan>) -> Result<u64, Failed> {
    crate::script::until(|| Ok(!leading(workers)?.is_empty()))?;
    Ok(true_boottime_ns())
}
