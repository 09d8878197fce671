//! The *restore* scenario: the server is lost permanently, and another one continues from a dump that lacks the last
//! commits.
//!
//! Each round dumps the database under load, changes leaders so that the dump misses grants, writes and fences,
//! restores the dump in a new cluster, whose WAL timeline and system identifier start again (as after `pg_upgrade`),
//! kills the old server, and redirects all clients. Afterwards tokens must be greater than all lost ones, stale tokens
//! must be rejected, and at most one process may lead. Every second round ends with a promotion of a standby of the new
//! cluster that lost commits: by the WAL timeline alone, its tokens would equal those of the previous cluster. Each
//! cluster is the first one of the next round.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, PgClusterBuilder, PgStandby, true_boottime_ns};
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

/// The current server.
enum Server {
    Cluster(PgCluster),
    Promoted(PgStandby),
}

impl Server {
    fn cluster(&self) -> &PgCluster {
        match self {
            Server::Cluster(cluster) => cluster,
            Server::Promoted(standby) => standby.cluster(),
        }
    }
}

fn server() -> PgClusterBuilder {
    PgCluster::builder().settings(&[("max_connections", "200")])
}

/// Run rounds for about this long, at least one.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.scenario("restore", seconds);
    let first = server().start()?;
    first.psql("postgres", POSTGRES_TABLES)?;
    runtime.block_on(migrate(&first.url()))?;
    let proxy = Proxy::to(first.port(), runtime)?;
    let operator = Operator { url: proxy.url("postgres"), runtime: runtime.clone() };
    let mut workers = WorkerProcesses::new()?;
    workers.slots = (0..4).map(|worker| WorkerSlot::new(plan(worker, proxy.url("postgres")))).collect();
    workers.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let (mut servers, mut faults) = (vec![Server::Cluster(first)], Vec::new());
    while servers.len() < 2 || true_boottime_ns() < until_ns {
        let promotes = servers.len().is_multiple_of(2);
        let old = servers[servers.len() - 1].cluster();
        wait(progress, LEASE);
        progress.doing("dump under load");
        let new = if promotes {
            Server::Promoted(PgStandby::of(old)?)
        } else {
            let new = server().start()?;
            new.psql("postgres", &old.dump("postgres", &[])?)?;
            Server::Cluster(new)
        };
        if let Server::Promoted(standby) = &new {
            standby.disconnect()?;
        }
        progress.doing("grants missed by the copy");
        for _ in 0..=entropy.next_u64() % 3 {
            for election in ["orders", "pool"] {
                let from_ns = true_boottime_ns();
                operator.resign(election)?;
                let to_ns = true_boottime_ns();
                faults.push(Injected { name: "operator: resign", worker: None, from_ns, to_ns });
            }
            wait(progress, Duration::from_millis(300 + entropy.next_u64() % 500));
        }
        let name = if promotes { "promotion after a restore" } else { "restore in a new cluster" };
        progress.doing(name);
        let from_ns = true_boottime_ns();
        old.kill9()?;
        if let Server::Promoted(standby) = &new {
            standby.promote()?;
        }
        proxy.point_to(new.cluster().port());
        faults.push(Injected { name, worker: None, from_ns, to_ns: true_boottime_ns() });
        servers.push(new);
        wait(progress, LEASE * 3);
    }
    let end_ns = true_boottime_ns();
    workers.end_all();
    let tables = WriteTables::open(&proxy.url("postgres"))?;
    let names = vec!["orders".into(), "pool".into()];
    let guarantees = vec![Guarantee::AtMostOne; 2];
    let scenario = Scenario { name: "restore", names, guarantees, faults, end_ns, commits_survive: false };
    runtime.block_on(evaluate(scenario, &workers, &tables))
}
