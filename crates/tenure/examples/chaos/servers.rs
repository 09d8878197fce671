//! The stage *servers*: workers reach one PostgreSQL server by every road, and everything breaks.
//!
//! The roads: directly, through PgBouncer (with and without a direct address beside it), from a network namespace, and
//! through a forwarder whose answers can be withheld. Two clocks run wrong, within what is promised. Two more workers
//! stand in an election of their own in take-over mode `connection`, which promises less and is judged by it. As root the
//! server lives on a small disk that can be filled.

use std::time::Duration;

use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::port::Takeover;
use tenure_core::SplitMix;
use tenure_testkit::rig::{FakeClock, Namespace, PgBouncer, PgCluster, SmallDisk, true_boottime_ns};
use tokio::runtime::Handle;

use crate::Failed;
use crate::crew::{Crew, Hand};
use crate::faults::{Blow, Outage};
use crate::forward::Forwarder;
use crate::ledger::{Ledger, POSTGRES_TABLES};
use crate::nemesis::{Fault, Nemesis};
use crate::operator::Operator;
use crate::report::{Outcome, Progress};
use crate::verdict::{Promise, Stage, judge};
use crate::worker::{Election, Plan};

/// The lease of all workers: short, so that many fit into a run.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// What stands between workers and their data. Fields drop in this order.
pub(crate) struct Servers {
    pub(crate) forwarder: Forwarder,
    pub(crate) behind_forwarder: usize,
    pub(crate) operator: Operator,
    bouncer: PgBouncer,
    pub(crate) cluster: PgCluster,
    pub(crate) disk: Option<SmallDisk>,
}

impl Servers {
    fn start(namespace: Option<&Namespace>, runtime: &Handle) -> Result<Self, Failed> {
        let disk = SmallDisk::available().ok().map(|()| SmallDisk::new(384 << 20)).transpose()?;
        let mut builder = PgCluster::builder().durable().settings(&[
            ("max_connections", "200"),
            ("max_wal_size", "64MB"),
            ("min_wal_size", "32MB"),
        ]);
        if let Some(namespace) = namespace {
            builder = builder.listen_on(namespace.host_address());
        }
        if let Some(disk) = &disk {
            builder = builder.inside(disk.path());
        }
        let cluster = builder.start()?;
        cluster.psql("postgres", POSTGRES_TABLES)?;
        runtime.block_on(migrate(&cluster.url()))?;
        let bouncer = PgBouncer::in_front_of(&cluster)?;
        let forwarder = Forwarder::to(cluster.port(), runtime)?;
        let operator = Operator { url: cluster.url(), runtime: runtime.clone() };
        Ok(Self { forwarder, behind_forwarder: 3, operator, bouncer, cluster, disk })
    }

    /// Makes room again, and starts a server that the full disk brought down.
    pub(crate) fn empty_disk(&self) -> Result<(), Failed> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.free())?;
        if self.cluster.psql("postgres", "SELECT 1").is_err() {
            self.cluster.kill9()?;
            self.cluster.start_again()?;
        }
        Ok(())
    }
}

/// Creates Tenure's tables.
pub(crate) async fn migrate(url: &str) -> Result<(), Failed> {
    Postgres::connect_unchecked(PostgresOptions::new(url)).await?.migrate().await?;
    Ok(())
}

/// Elections that every worker campaigns in: one with one leader, and a semaphore for two.
pub(crate) fn elections() -> Vec<Election> {
    [("orders", 1), ("pool", 2)]
        .iter()
        .zip(0..)
        .map(|((name, slots), index)| Election { index, name: (*name).into(), slots: *slots })
        .collect()
}

/// A worker with nothing special about it.
pub(crate) fn plan(worker: usize, url: String) -> Plan {
    Plan {
        worker,
        url,
        direct_url: None,
        ledger: None,
        takeover: Takeover::Lease,
        lease_ms: u64::try_from(LEASE.as_millis()).unwrap_or(0),
        priority: 0,
        elections: elections(),
        log: Default::default(),
        trust_is_a_flag: false,
    }
}

/// Runs the stage for this long.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.stage("servers", seconds);
    let mut crew = Crew::new()?;
    match Namespace::available() {
        Ok(()) => crew.namespace = Some(Namespace::new()?),
        Err(why) => progress.note(&format!("no one-way cut: {why}")),
    }
    let servers = Servers::start(crew.namespace.as_ref(), runtime)?;
    hire(&mut crew, &servers, progress);
    crew.start_all()?;
    progress.stage("servers", seconds);
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let kinds = kinds(&crew, &servers);
    let nemesis = Nemesis::new(&mut crew, Some(&servers), entropy, progress, LEASE, kinds);
    let faults = nemesis.rage(until_ns)?;
    let end_ns = true_boottime_ns();
    crew.end_all();
    let ledger = Ledger::open(&servers.cluster.url())?;
    let names = vec!["orders".into(), "pool".into(), "hasty".into()];
    let promises = vec![Promise::AtMostOne, Promise::AtMostOne, Promise::Fencing];
    let stage = Stage { name: "servers", names, promises, faults, end_ns, commits_survive: true };
    runtime.block_on(judge(stage, &crew, &ledger))
}

fn hire(crew: &mut Crew, servers: &Servers, progress: &mut Progress) {
    let direct = servers.cluster.url();
    let pooled = servers.bouncer.url("postgres");
    let host = crew.namespace.as_ref().map(|it| it.host_address().to_string());
    let from_namespace = host.as_ref().map(|host| servers.cluster.url_at(host, "postgres"));
    let roads = [
        (direct.clone(), None, None),
        (pooled.clone(), Some(direct.clone()), None),
        (from_namespace.clone().unwrap_or_else(|| direct.clone()), None, None),
        (servers.forwarder.url("postgres"), None, Some(0.93)),
        (pooled, None, Some(1.08)),
        (direct.clone(), None, None),
        (direct, None, None),
    ];
    let fakes = FakeClock::available();
    if let Err(why) = &fakes {
        progress.note(&format!("all clocks run true: {why}"));
    }
    for (worker, (url, direct_url, rate)) in roads.into_iter().enumerate() {
        let mut hand = Hand::new(Plan { direct_url, ..plan(worker, url) });
        hand.rate = rate.filter(|_| fakes.is_ok());
        hand.inside = worker == 2 && from_namespace.is_some();
        // A favourite: when it comes back it asks the leader to hand over.
        hand.plan.priority = if worker == 0 { 10 } else { 0 };
        if worker >= 5 {
            hand.plan.takeover = Takeover::Connection;
            hand.plan.elections = vec![Election { index: 2, name: "hasty".into(), slots: 1 }];
        }
        crew.hands.push(hand);
    }
}

/// What can be broken here.
fn kinds(crew: &Crew, servers: &Servers) -> Vec<Fault> {
    let mut kinds = vec![
        Fault::Worker(Blow::Kill),
        Fault::Worker(Blow::Kill),
        Fault::Worker(Blow::Stop),
        Fault::Worker(Blow::Stop),
        Fault::Worker(Blow::End),
        Fault::StopInTransaction,
        Fault::Server(Outage::Restart),
        Fault::Server(Outage::Kill),
        Fault::Server(Outage::Freeze),
        Fault::Server(Outage::EndConnections),
        Fault::WithholdAnswers,
        Fault::Resign,
        Fault::Transfer,
        Fault::Pause,
    ];
    kinds.extend(FakeClock::available().is_ok().then_some(Fault::SkewWorker));
    kinds.extend(crew.namespace.is_some().then_some(Fault::CutAnswers));
    kinds.extend(servers.disk.is_some().then_some(Fault::FillDisk));
    kinds
}
