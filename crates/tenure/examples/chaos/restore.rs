//! The stage *restore*: the server is gone for good, and another goes on from a dump that does not know the last commits.
//!
//! Rounds: the database is dumped under load; leaders change, so that there are grants, writes and fences that the dump does not know; the
//! dump is restored in a new cluster, whose WAL timeline and system identifier begin anew, as after `pg_upgrade`; the old server is killed,
//! and a forwarder leads everybody to the new one. Afterwards tokens must be greater than all that was lost, stale tokens
//! refused, and never two leaders. Every second round ends with a promotion of a standby of the new cluster that lost commits:
//! by the WAL timeline alone its tokens would be those of the cluster before. Each cluster is the next round's first.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, PgClusterBuilder, PgStandby, true_boottime_ns};
use tokio::runtime::Handle;

use crate::Failed;
use crate::crew::{Crew, Hand};
use crate::deck::wait;
use crate::forward::Forwarder;
use crate::ledger::{Ledger, POSTGRES_TABLES};
use crate::operator::Operator;
use crate::oracles::Injected;
use crate::report::{Outcome, Progress};
use crate::servers::{LEASE, migrate, plan};
use crate::verdict::{Promise, Stage, judge};

/// The server of this moment.
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

/// Runs rounds for about this long, and at least one.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.stage("restore", seconds);
    let first = server().start()?;
    first.psql("postgres", POSTGRES_TABLES)?;
    runtime.block_on(migrate(&first.url()))?;
    let forwarder = Forwarder::to(first.port(), runtime)?;
    let operator = Operator { url: forwarder.url("postgres"), runtime: runtime.clone() };
    let mut crew = Crew::new()?;
    crew.hands = (0..4).map(|worker| Hand::new(plan(worker, forwarder.url("postgres")))).collect();
    crew.start_all()?;
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
        progress.doing("grants that the copy does not know");
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
        forwarder.point_to(new.cluster().port());
        faults.push(Injected { name, worker: None, from_ns, to_ns: true_boottime_ns() });
        servers.push(new);
        wait(progress, LEASE * 3);
    }
    let end_ns = true_boottime_ns();
    crew.end_all();
    let ledger = Ledger::open(&forwarder.url("postgres"))?;
    let names = vec!["orders".into(), "pool".into()];
    let promises = vec![Promise::AtMostOne; 2];
    let stage = Stage { name: "restore", names, promises, faults, end_ns, commits_survive: false };
    runtime.block_on(judge(stage, &crew, &ledger))
}
