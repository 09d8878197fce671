//! The *raft* scenario: five workers form a Raft cluster, each in its own network namespace, without any server.
//!
//! They are killed, stopped, ended, run with wrong clocks, and are disconnected from all others: in both directions, in
//! the sending direction only, or in the receiving direction only. In addition to the checks of every scenario, a
//! disconnected worker must not believe once its trust has expired, however long the fault lasts: a minority has no
//! leader. Leaders write to a file that checks only tokens.

use tenure_core::SplitMix;
use tenure_testkit::rig::{FakeClock, NetworkSwitch, true_boottime_ns};
use tokio::runtime::Handle;

use crate::Failed;
use crate::evaluation::{Guarantee, Scenario, evaluate, terms};
use crate::faults::ProcessFault;
use crate::nemesis::{CANNOT_RECEIVE, CANNOT_SEND, DISCONNECTED, Fault, Nemesis};
use crate::oracles::{Injected, Term};
use crate::postgres::{LEASE, plan};
use crate::report::{Outcome, Progress};
use crate::scenario_context;
use crate::tables::{SQLITE_TABLES, WriteTables};
use crate::worker::Plan;
use crate::worker_processes::{WorkerProcesses, WorkerSlot};

/// Minimum duration: the cluster must form, and each network fault outlasts a lease.
pub(crate) const LEAST_SECONDS: f64 = 12.0;

const MEMBERS: usize = 5;
const PORT: u16 = 8369;

/// Run the scenario for this long; skipped without root.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Option<Outcome>, Failed> {
    progress.scenario("raft", seconds);
    if let Err(why) = NetworkSwitch::available() {
        progress.note(&format!("skipped: {why}"));
        return Ok(None);
    }
    let mut workers = WorkerProcesses::new()?;
    // Check that the feature is compiled in.
    let alone = format!("raft:{}", workers.directory.path().join("alone").display());
    runtime
        .block_on(async { tenure::Tenure::open(&alone).await?.close().await })
        .map_err(|error| format!("{error} (build with --features raft)"))?;
    let url = scenario_context::file(workers.directory.path(), runtime)?;
    let tables = WriteTables::external(&url)?;
    runtime.block_on(tables.execute(SQLITE_TABLES))?;
    let switch = NetworkSwitch::of(MEMBERS)?;
    let peers: Vec<String> =
        (0..MEMBERS).map(|member| format!("{}@{}:{PORT}", member + 1, switch.address(member))).collect();
    workers.switch = Some(switch);
    for worker in 0..MEMBERS {
        let directory = workers.directory.path().join(format!("raft-{worker}"));
        let store = format!("raft:{}?node={}&peers={}", directory.display(), worker + 1, peers.join(","));
        workers.slots.push(WorkerSlot::new(Plan { tables: Some(url.clone()), ..plan(worker, store) }));
    }
    workers.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let mut kinds = vec![
        Fault::Isolate,
        Fault::BlockSending,
        Fault::BlockReceiving,
        Fault::Isolate,
        Fault::Worker(ProcessFault::Kill),
        Fault::Worker(ProcessFault::Stop),
        Fault::Worker(ProcessFault::End),
    ];
    kinds.extend(FakeClock::available().is_ok().then_some(Fault::SkewWorker));
    let faults = Nemesis::new(&mut workers, None, entropy, progress, LEASE, kinds).run(until_ns)?;
    let end_ns = true_boottime_ns();
    workers.end_all();
    let minorities = minorities_that_led(&terms(&workers)?, &faults);
    let names = vec!["orders".into(), "pool".into()];
    let guarantees = vec![Guarantee::AtMostOne, Guarantee::AtMostOne];
    let scenario = Scenario { name: "raft", names, guarantees, faults, end_ns, commits_survive: true };
    let mut outcome = runtime.block_on(evaluate(scenario, &workers, &tables))?;
    outcome.violations.extend(minorities);
    Ok(Some(outcome))
}

/// Terms that continued although their worker was disconnected from all others for longer than its trust. The limit
/// allows for clocks that run at 0.9; the slowest one runs at 0.92.
fn minorities_that_led(terms: &[Term], faults: &[Injected]) -> Vec<String> {
    let trust_ns = (LEASE.as_nanos() as f64 * 2.0 / 3.0 / 0.9) as u64;
    // `to_ns` is the end of healing; the worker may be connected again this long before.
    let moment_ns = 300_000_000;
    let network_faults =
        faults.iter().filter(|fault| [DISCONNECTED, CANNOT_SEND, CANNOT_RECEIVE].contains(&fault.name));
    let mut found = Vec::new();
    for fault in network_faults {
        let (from, to) = (fault.from_ns.saturating_add(trust_ns), fault.to_ns.saturating_sub(moment_ns));
        let within =
            |term: &&Term| Some(term.worker) == fault.worker && term.from_ns < to && term.to_ns > from;
        for term in terms.iter().filter(within) {
            let ms = (term.to_ns.min(to) - from) / 1_000_000;
            found.push(format!(
                "raft: worker {} led {ms} ms longer than its trust during: {}",
                term.worker, fault.name
            ));
        }
    }
    found
}
