//! The *postgres* scenario: workers connect to one PostgreSQL server in several ways, under all kinds of faults.
//!
//! They connect directly, through PgBouncer (with and without a direct URL), from a network namespace, and through a
//! proxy that can withhold responses. Two clocks run at wrong rates within the permitted limit. Two more workers are
//! candidates of an election in takeover mode `connection`, which has weaker guarantees and is checked by those. As
//! root, the server's data is on a small disk that can be filled.

use std::time::Duration;

use tenure::port::TakeoverMode;
use tenure::store::migrations::SchemaMigrator;
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::SplitMix;
use tenure_testkit::rig::{FakeClock, NetworkNamespace, PgBouncer, PgCluster, SmallDisk, true_boottime_ns};
use tokio::runtime::Handle;

use crate::Failed;
use crate::evaluation::{Guarantee, Scenario, evaluate};
use crate::faults::{ProcessFault, ServerFault};
use crate::nemesis::{Fault, Nemesis};
use crate::operator::Operator;
use crate::proxy::Proxy;
use crate::report::{Outcome, Progress};
use crate::tables::{POSTGRES_TABLES, WriteTables};
use crate::worker::{Election, Plan};
use crate::worker_processes::{WorkerProcesses, WorkerSlot};

/// Lease of all workers: short, so that a run has many of them.
pub(crate) const LEASE: Duration = Duration::from_millis(1500);

/// Servers and proxies of the scenario. Fields drop in this order.
pub(crate) struct Servers {
    pub(crate) proxy: Proxy,
    pub(crate) behind_proxy: usize,
    pub(crate) operator: Operator,
    bouncer: PgBouncer,
    pub(crate) cluster: PgCluster,
    pub(crate) disk: Option<SmallDisk>,
}

impl Servers {
    fn start(namespace: Option<&NetworkNamespace>, runtime: &Handle) -> Result<Self, Failed> {
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
        let proxy = Proxy::to(cluster.port(), runtime)?;
        let operator = Operator { url: cluster.url(), runtime: runtime.clone() };
        Ok(Self { proxy, behind_proxy: 3, operator, bouncer, cluster, disk })
    }

    /// Free the disk, and start a server that the full disk stopped.
    pub(crate) fn empty_disk(&self) -> Result<(), Failed> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.free())?;
        if self.cluster.psql("postgres", "SELECT 1").is_err() {
            self.cluster.kill9()?;
            self.cluster.start_again()?;
        }
        Ok(())
    }
}

/// Create the schema.
pub(crate) async fn migrate(url: &str) -> Result<(), Failed> {
    PostgresStore::connect_unchecked(PostgresOptions::new(url)).await?.migrate().await?;
    Ok(())
}

/// Elections of every worker: one with one slot, and one with two.
pub(crate) fn elections() -> Vec<Election> {
    [("orders", 1), ("pool", 2)]
        .iter()
        .zip(0..)
        .map(|((name, slots), index)| Election { index, name: (*name).into(), slots: *slots })
        .collect()
}

/// A worker with default settings.
pub(crate) fn plan(worker: usize, url: String) -> Plan {
    Plan {
        worker,
        url,
        direct_url: None,
        tables: None,
        takeover: TakeoverMode::Lease,
        lease_ms: u64::try_from(LEASE.as_millis()).unwrap_or(0),
        priority: 0,
        elections: elections(),
        log: Default::default(),
        trust_is_a_flag: false,
    }
}

/// Run the scenario for this long.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.scenario("postgres", seconds);
    let mut workers = WorkerProcesses::new()?;
    match NetworkNamespace::available() {
        Ok(()) => workers.namespace = Some(NetworkNamespace::new()?),
        Err(why) => progress.note(&format!("one-way network fault skipped: {why}")),
    }
    let servers = Servers::start(workers.namespace.as_ref(), runtime)?;
    prepare_workers(&mut workers, &servers, progress);
    workers.start_all()?;
    progress.scenario("postgres", seconds);
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let kinds = kinds(&workers, &servers);
    let nemesis = Nemesis::new(&mut workers, Some(&servers), entropy, progress, LEASE, kinds);
    let faults = nemesis.run(until_ns)?;
    let end_ns = true_boottime_ns();
    workers.end_all();
    let tables = WriteTables::open(&servers.cluster.url())?;
    let names = vec!["orders".into(), "pool".into(), "connection-mode".into()];
    let guarantees = vec![Guarantee::AtMostOne, Guarantee::AtMostOne, Guarantee::Fencing];
    let scenario = Scenario { name: "postgres", names, guarantees, faults, end_ns, commits_survive: true };
    runtime.block_on(evaluate(scenario, &workers, &tables))
}

fn prepare_workers(workers: &mut WorkerProcesses, servers: &Servers, progress: &mut Progress) {
    let direct = servers.cluster.url();
    let pooled = servers.bouncer.url("postgres");
    let host = workers.namespace.as_ref().map(|it| it.host_address().to_string());
    let from_namespace = host.as_ref().map(|host| servers.cluster.url_at(host, "postgres"));
    let roads = [
        (direct.clone(), None, None),
        (pooled.clone(), Some(direct.clone()), None),
        (from_namespace.clone().unwrap_or_else(|| direct.clone()), None, None),
        (servers.proxy.url("postgres"), None, Some(0.93)),
        (pooled, None, Some(1.08)),
        (direct.clone(), None, None),
        (direct, None, None),
    ];
    let fakes = FakeClock::available();
    if let Err(why) = &fakes {
        progress.note(&format!("clock faults skipped: {why}"));
    }
    for (worker, (url, direct_url, rate)) in roads.into_iter().enumerate() {
        let mut slot = WorkerSlot::new(Plan { direct_url, ..plan(worker, url) });
        slot.rate = rate.filter(|_| fakes.is_ok());
        slot.inside = worker == 2 && from_namespace.is_some();
        // A preferred candidate: when it returns, it preempts the leader.
        slot.plan.priority = if worker == 0 { 10 } else { 0 };
        if worker >= 5 {
            slot.plan.takeover = TakeoverMode::Connection;
            slot.plan.elections = vec![Election { index: 2, name: "connection-mode".into(), slots: 1 }];
        }
        workers.slots.push(slot);
    }
}

/// The faults of this scenario.
fn kinds(workers: &WorkerProcesses, servers: &Servers) -> Vec<Fault> {
    let mut kinds = vec![
        Fault::Worker(ProcessFault::Kill),
        Fault::Worker(ProcessFault::Kill),
        Fault::Worker(ProcessFault::Stop),
        Fault::Worker(ProcessFault::Stop),
        Fault::Worker(ProcessFault::End),
        Fault::StopInTransaction,
        Fault::Server(ServerFault::Restart),
        Fault::Server(ServerFault::Kill),
        Fault::Server(ServerFault::Freeze),
        Fault::Server(ServerFault::EndConnections),
        Fault::WithholdResponses,
        Fault::Resign,
        Fault::Transfer,
        Fault::Pause,
    ];
    kinds.extend(FakeClock::available().is_ok().then_some(Fault::SkewWorker));
    kinds.extend(workers.namespace.is_some().then_some(Fault::CutResponses));
    kinds.extend(servers.disk.is_some().then_some(Fault::FillDisk));
    kinds
}
