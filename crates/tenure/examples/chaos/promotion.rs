//! The *promotion* scenario: the primary is lost permanently, and the promoted standby lacks the last commits.
//!
//! Each round disconnects the standby, changes leaders so that the standby misses grants, writes and fences, kills the
//! primary, promotes the standby, and redirects all clients to it. Afterwards tokens must be greater than all lost
//! ones, and stale tokens must be rejected. Each promoted standby is the primary of the next round.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, PgStandby, true_boottime_ns};
use tokio::runtime::Handle;

use crate::Failed;
use crate::evaluation::{Guarantee, Scenario, evaluate};
use crate::fault_deck::wait;
use crate::operator::Operator;
use crate::oracles::Injected;
use crate::postgres::{LEASE, migrate, plan};
use crate::proxy::Proxy;
use crate::report::{Outcome, Progress};
use crate::tables::{POSTGRES_TABLES, WriteTables};
use crate::worker_processes::{WorkerProcesses, WorkerSlot};

/// Run rounds for about this long, at least one.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.scenario("promotion", seconds);
    let first = PgCluster::builder().settings(&[("max_connections", "200")]).start()?;
    first.psql("postgres", POSTGRES_TABLES)?;
    runtime.block_on(migrate(&first.url()))?;
    let proxy = Proxy::to(first.port(), runtime)?;
    let operator = Operator { url: proxy.url("postgres"), runtime: runtime.clone() };
    let mut workers = WorkerProcesses::new()?;
    workers.slots = (0..4).map(|worker| WorkerSlot::new(plan(worker, proxy.url("postgres")))).collect();
    workers.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let mut standbys: Vec<PgStandby> = Vec::new();
    let mut faults = Vec::new();
    while standbys.is_empty() || true_boottime_ns() < until_ns {
        let primary = standbys.last().map_or(&first, PgStandby::cluster);
        let standby = PgStandby::of(primary)?;
        wait(progress, LEASE);
        progress.doing("grants missed by the standby");
        standby.disconnect()?;
        for _ in 0..=entropy.next_u64() % 3 {
            for election in ["orders", "pool"] {
                let from_ns = true_boottime_ns();
                operator.resign(election)?;
                let to_ns = true_boottime_ns();
                faults.push(Injected { name: "operator: resign", worker: None, from_ns, to_ns });
            }
            wait(progress, Duration::from_millis(300 + entropy.next_u64() % 500));
        }
        progress.doing("promotion with lost commits");
        let from_ns = true_boottime_ns();
        primary.kill9()?;
        standby.promote()?;
        proxy.point_to(standby.cluster().port());
        let to_ns = true_boottime_ns();
        faults.push(Injected { name: "lossy promotion", worker: None, from_ns, to_ns });
        standbys.push(standby);
        wait(progress, LEASE * 3);
    }
    let end_ns = true_boottime_ns();
    workers.end_all();
    let tables = WriteTables::open(&proxy.url("postgres"))?;
    let names = vec!["orders".into(), "pool".into()];
    let guarantees = vec![Guarantee::AtMostOne; 2];
    let scenario = Scenario { name: "promotion", names, guarantees, faults, end_ns, commits_survive: false };
    runtime.block_on(evaluate(scenario, &workers, &tables))
}
