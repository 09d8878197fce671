//! The *sqlite* scenario: workers share one SQLite file and are killed, stopped or ended.
//!
//! The kernel reports dead processes, so a killed leader is replaced at once; a stopped leader is replaced after its
//! lease. No worker is stopped in the middle of a transaction: SQLite's write lock would remain held, which no lease
//! can bound.

use tenure_core::SplitMix;
use tenure_testkit::rig::true_boottime_ns;
use tokio::runtime::Handle;

use crate::Failed;
use crate::evaluation::{Guarantee, Scenario, evaluate};
use crate::faults::ProcessFault;
use crate::nemesis::{Fault, Nemesis};
use crate::postgres::{LEASE, plan};
use crate::report::{Outcome, Progress};
use crate::scenario_context;
use crate::tables::{SQLITE_TABLES, WriteTables};
use crate::worker_processes::{WorkerProcesses, WorkerSlot};

/// Run the scenario for this long.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.scenario("sqlite", seconds);
    let mut workers = WorkerProcesses::new()?;
    let url = scenario_context::file(workers.directory.path(), runtime)?;
    let tables = {
        let _entered = runtime.enter();
        WriteTables::open(&url)?
    };
    runtime.block_on(tables.execute(SQLITE_TABLES))?;
    workers.slots = (0..4).map(|worker| WorkerSlot::new(plan(worker, url.clone()))).collect();
    workers.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let kinds = [ProcessFault::Kill, ProcessFault::Stop, ProcessFault::End].map(Fault::Worker).into();
    let faults = Nemesis::new(&mut workers, None, entropy, progress, LEASE, kinds).run(until_ns)?;
    let end_ns = true_boottime_ns();
    workers.end_all();
    let names = vec!["orders".into(), "pool".into()];
    let guarantees = vec![Guarantee::AtMostOne, Guarantee::AtMostOne];
    let scenario = Scenario { name: "sqlite", names, guarantees, faults, end_ns, commits_survive: true };
    runtime.block_on(evaluate(scenario, &workers, &tables))
}
