//! The stage *promotion*: the server dies for good, and the standby that takes its place lost the last commits.
//!
//! Rounds: the standby's stream is cut; leaders change, so that there are grants, writes and fences that it never hears
//! of; the primary is killed; the standby is promoted, and a forwarder leads everybody there. Afterwards tokens must be
//! greater than all that was lost, and stale tokens refused. Each promoted standby is the next round's primary.

use std::time::Duration;

use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, PgStandby, true_boottime_ns};
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

/// Runs rounds for about this long, and at least one.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.stage("promotion", seconds);
    let first = PgCluster::builder().settings(&[("max_connections", "200")]).start()?;
    first.psql("postgres", POSTGRES_TABLES)?;
    runtime.block_on(migrate(&first.url()))?;
    let forwarder = Forwarder::to(first.port(), runtime)?;
    let operator = Operator { url: forwarder.url("postgres"), runtime: runtime.clone() };
    let mut crew = Crew::new()?;
    crew.hands = (0..4).map(|worker| Hand::new(plan(worker, forwarder.url("postgres")))).collect();
    crew.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let mut standbys: Vec<PgStandby> = Vec::new();
    let mut faults = Vec::new();
    while standbys.is_empty() || true_boottime_ns() < until_ns {
        let primary = standbys.last().map_or(&first, PgStandby::cluster);
        let standby = PgStandby::of(primary)?;
        wait(progress, LEASE);
        progress.doing("grants that the standby never hears of");
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
        progress.doing("promotion that lost commits");
        let from_ns = true_boottime_ns();
        primary.kill9()?;
        standby.promote()?;
        forwarder.point_to(standby.cluster().port());
        let to_ns = true_boottime_ns();
        faults.push(Injected { name: "lossy promotion", worker: None, from_ns, to_ns });
        standbys.push(standby);
        wait(progress, LEASE * 3);
    }
    let end_ns = true_boottime_ns();
    crew.end_all();
    let ledger = Ledger::open(&forwarder.url("postgres"))?;
    let names = vec!["orders".into(), "pool".into()];
    let promises = vec![Promise::AtMostOne; 2];
    let stage = Stage { name: "promotion", names, promises, faults, end_ns, commits_survive: false };
    runtime.block_on(judge(stage, &crew, &ledger))
}
