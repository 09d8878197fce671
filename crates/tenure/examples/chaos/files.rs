//! The stage *files*: workers share one SQLite file, and die, stand still or leave.
//!
//! The kernel knows who is dead, so a killed leader is followed at once; a stopped one is waited out. Nobody is stopped
//! in mid-transaction here on purpose: SQLite's write lock would stay with them, which no lease can bound.

use tenure_core::SplitMix;
use tenure_testkit::rig::true_boottime_ns;
use tokio::runtime::Handle;

use crate::Failed;
use crate::crew::{Crew, Hand};
use crate::faults::Blow;
use crate::ledger::{Ledger, SQLITE_TABLES};
use crate::nemesis::{Fault, Nemesis};
use crate::report::{Outcome, Progress};
use crate::servers::{LEASE, plan};
use crate::site;
use crate::verdict::{Promise, Stage, judge};

/// Runs the stage for this long.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.stage("files", seconds);
    let mut crew = Crew::new()?;
    let url = site::file(crew.workplace.path(), runtime)?;
    let ledger = {
        let _entered = runtime.enter();
        Ledger::open(&url)?
    };
    runtime.block_on(ledger.execute(SQLITE_TABLES))?;
    crew.hands = (0..4).map(|worker| Hand::new(plan(worker, url.clone()))).collect();
    crew.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let kinds = [Blow::Kill, Blow::Stop, Blow::End].map(Fault::Worker).into();
    let faults = Nemesis::new(&mut crew, None, entropy, progress, LEASE, kinds).rage(until_ns)?;
    let end_ns = true_boottime_ns();
    crew.end_all();
    let names = vec!["orders".into(), "pool".into()];
    let promises = vec![Promise::AtMostOne, Promise::AtMostOne];
    let stage = Stage { name: "files", names, promises, faults, end_ns, commits_survive: true };
    runtime.block_on(judge(stage, &crew, &ledger))
}
