//! Comparison of all stores that guarantee at most one leader.
//!
//! Absolute times depend on the machine, so each figure has a portable unit: a handover in durable writes of the same
//! store, a crash takeover in leases, and the cost of holding in requests per heartbeat.

mod counting;
mod counting_proxy;
mod etcdctl;
mod kube;
mod setup;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use tenure::Tenure;
use tenure::port::TakeoverMode;
use tenure::runtime::now;
use tenure::store::{StoreOptions, open};

use self::counting::CountingStore;
use self::counting_proxy::CountingProxy;
use self::setup::{EtcdServer, RaftProcesses};
use crate::baseline::BenchDirectory;
use crate::handover::HandoverPair;
use crate::server::ServerProcess;
use crate::{BaselineRow, BenchError, crash, median_ms, row};

/// Requests per second of client-go for each held Lease: its retry period is two seconds.
const CLIENT_GO_REQUESTS_PER_SECOND: f64 = 0.5;

/// Lease duration and retry period of client-go. On Kubernetes, where each held Lease is renewed separately, elections
/// are held with this timing.
const CLIENT_GO: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(2));

/// Options of the store benchmark.
#[derive(Clone, Debug)]
pub struct StoresBench {
    /// Additional store URLs: `postgres://…`, `k8s:…`, `etcd://…`. Requests to Kubernetes are counted if the kubeconfig
    /// in the URL uses plain HTTP.
    pub extra_stores: Vec<String>,
    /// Number of handovers to measure.
    pub rounds: u32,
    /// Number of crashes to measure.
    pub crashes: u32,
    /// Numbers of elections held by one process.
    pub elections: Vec<u32>,
    /// Measurement window for the cost of holding.
    pub window: Duration,
    /// Lease duration of all candidates.
    pub lease: Duration,
    /// Whether to run the crash test of `etcdctl elect`, which takes one minute.
    pub etcdctl_crash: bool,
    /// The `tenure` program, run by leaders and servers.
    pub program: PathBuf,
}

/// Figures of one store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreFigures {
    /// Name of the store.
    pub store: String,
    /// Duration of a durable heartbeat. On SQLite, it is measured with a session that is not bound to this machine.
    pub heartbeat_ms: f64,
    /// Time from a release to the next leader.
    pub handover_ms: f64,
    /// Handover time in heartbeats.
    pub handover_heartbeats: f64,
    /// Time from `kill -9` to the next leader; `None` where a process cannot be killed separately.
    pub crash_ms: Option<f64>,
    /// Crash takeover time in leases.
    pub crash_leases: Option<f64>,
    /// Cost of holding.
    pub holding: Vec<HoldingRate>,
}

/// Cost of holding this many elections in one process.
#[derive(Clone, Debug, Serialize)]
pub struct HoldingRate {
    /// Number of elections.
    pub elections: u32,
    /// Requests to the store per second for all held elections.
    pub requests_per_second: f64,
    /// Requests per held election, relative to client-go's half a request per second and Lease.
    pub client_go_ratio: f64,
    /// Requests per heartbeat interval.
    pub per_heartbeat: f64,
}

/// Results of the store benchmark.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoresReport {
    /// Figures of each store.
    pub stores: Vec<StoreFigures>,
    /// etcd compared with `etcdctl`, and Kubernetes with client-go.
    pub rows: Vec<BaselineRow>,
}

/// Run the store benchmark; `progress` receives the current step.
pub async fn stores(bench: &StoresBench, progress: &dyn Fn(&str)) -> Result<StoresReport, BenchError> {
    let mut report = StoresReport::default();
    let directory = BenchDirectory::new()?;
    let mut measure =
        async |name: &str, url: &str, proxy: Option<&CountingProxy>| -> Result<(), BenchError> {
            report.stores.push(figures(bench, progress, name, url, proxy).await?);
            Ok(())
        };
    measure("memory", "memory:", None).await?;
    measure("SQLite", &directory.store("stores"), None).await?;
    let served = ServerProcess::start(&bench.program, &directory.store("served")).await?;
    let proxy = CountingProxy::to(served.address().to_owned()).await?;
    measure("server on SQLite", &format!("http://127.0.0.1:{}", proxy.port), Some(&proxy)).await?;
    served.stop().await?;
    let etcd = EtcdServer::start(&directory).await?;
    let mut tool = None;
    if let Some(etcd) = &etcd {
        let crashing = bench.etcdctl_crash.then(|| tokio::spawn(etcdctl::crash_ms(etcd.address.clone())));
        let proxy = CountingProxy::to(etcd.address.clone()).await?;
        measure("etcd", &format!("etcd://127.0.0.1:{}", proxy.port), Some(&proxy)).await?;
        progress("etcdctl elect: handover");
        tool = Some((etcdctl::handover_ms(&etcd.address, bench.rounds).await?, crashing));
    } else {
        progress("etcd is not installed, skipped");
    }
    let members = RaftProcesses::start(&bench.program, &directory).await?;
    measure("Raft, three members", &members.url, None).await?;
    for url in &bench.extra_stores {
        let name = match url.split_once(':').map_or(url.as_str(), |(scheme, _)| scheme) {
            "k8s" => "Kubernetes",
            scheme => scheme,
        };
        match kube::through_proxy(url, &directory).await? {
            Some((url, proxy)) => measure(name, &url, Some(&proxy)).await?,
            None => measure(name, url, None).await?,
        }
    }
    report.rows.extend(report.stores.iter().find(|figures| figures.store == "Kubernetes").and_then(of_lease));
    if let Some((handover, crashing)) = tool {
        let measured = report.stores.iter().find(|figures| figures.store == "etcd").cloned();
        if let Some(measured) = measured {
            report.rows.push(row(
                "handover, etcd",
                "etcdctl elect",
                measured.handover_ms,
                handover,
                Some(2.0),
            ));
            if let (Some(crash), Some(crashing)) = (measured.crash_ms, crashing) {
                progress("etcdctl elect: crash");
                let baseline_value =
                    crashing.await.map_err(|error| BenchError::Helper(error.to_string()))??;
                report.rows.push(row("crash takeover, etcd", "etcdctl elect", crash, baseline_value, None));
            }
        }
    }
    Ok(report)
}

/// Requests per held Lease, compared with client-go.
fn of_lease(kubernetes: &StoreFigures) -> Option<BaselineRow> {
    let most = kubernetes.holding.last()?;
    let each = most.requests_per_second / f64::from(most.elections);
    Some(BaselineRow {
        operation: format!("each of {} held Leases, Kubernetes", most.elections),
        baseline: "client-go".into(),
        tenure: each,
        baseline_value: CLIENT_GO_REQUESTS_PER_SECOND,
        unit: "requests/s",
        ratio: each / CLIENT_GO_REQUESTS_PER_SECOND,
        max_ratio: Some(1.1),
    })
}

async fn figures(
    bench: &StoresBench,
    progress: &dyn Fn(&str),
    name: &str,
    url: &str,
    proxy: Option<&CountingProxy>,
) -> Result<StoreFigures, BenchError> {
    progress(&format!("{name}: handover"));
    let is_memory = url == "memory:";
    let pair = HandoverPair::campaign(url).await?;
    let mut times = Vec::new();
    for _ in 0..bench.rounds {
        times.push(pair.handover().await?);
    }
    let handover_ms = median_ms(times);
    let heartbeat_ms = median_ms(pair.heartbeat_durations(bench.rounds).await?);
    pair.close().await?;
    let mut crashes = Vec::new();
    for round in (0..bench.crashes).filter(|_| !is_memory) {
        progress(&format!("{name}: crash {}", round + 1));
        let holder = crash::HolderSpec {
            program: &bench.program,
            lease: Some(bench.lease),
            takeover: TakeoverMode::Lease,
        };
        crashes.push(crash::takeover(&holder, url, round).await?);
    }
    let crash_ms = (!crashes.is_empty()).then(|| median_ms(crashes));
    let mut holding = Vec::new();
    // One call is one request on all stores except Kubernetes, where requests are counted by a proxy or not at all.
    let is_counted = proxy.is_some() || !url.starts_with(kube::SCHEME);
    for &held in bench.elections.iter().filter(|_| is_counted) {
        progress(&format!("{name}: holding {held}"));
        holding.push(hold(bench, url, held, proxy).await?);
    }
    let crash_leases = crash_ms.map(|ms| ms / 1e3 / bench.lease.as_secs_f64());
    let (store, handover_heartbeats) = (name.to_owned(), handover_ms / heartbeat_ms);
    Ok(StoreFigures {
        store,
        heartbeat_ms,
        handover_ms,
        handover_heartbeats,
        crash_ms,
        crash_leases,
        holding,
    })
}

async fn hold(
    bench: &StoresBench,
    url: &str,
    held: u32,
    proxy: Option<&CountingProxy>,
) -> Result<HoldingRate, BenchError> {
    let store = open(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await?;
    let (counting, calls) = CountingStore::new(store);
    let builder = Tenure::builder().store(counting).name("holder");
    let (builder, heartbeat_interval) = match url.starts_with(kube::SCHEME) {
        true => (builder.lease(CLIENT_GO.0).heartbeat_interval(CLIENT_GO.1), CLIENT_GO.1),
        false => (builder.lease(bench.lease), bench.lease / 5),
    };
    let tenure = builder.open().await?;
    let mut electors = Vec::new();
    for number in 0..held {
        let name = format!("held-{}-{held}-{number}", std::process::id());
        electors.push(tenure.elector(name).namespace(crate::NAMESPACE).start().await?);
    }
    let mut leaderships = Vec::new();
    for elector in &electors {
        leaderships.push(elector.elected().await?);
    }
    // Wait until the effects of becoming leader are over.
    tokio::time::sleep(bench.lease).await;
    let count = || proxy.map_or_else(|| calls.load(Ordering::Relaxed), CountingProxy::requests);
    let (start, before) = (now(), count());
    tokio::time::sleep(bench.window).await;
    let (requests, seconds) = (count() - before, now().since(start).as_secs_f64());
    drop((leaderships, electors));
    tenure.close().await?;
    let per_second = requests as f64 / seconds;
    Ok(HoldingRate {
        elections: held,
        requests_per_second: per_second,
        client_go_ratio: per_second / f64::from(held) / CLIENT_GO_REQUESTS_PER_SECOND,
        per_heartbeat: per_second * heartbeat_interval.as_secs_f64(),
    })
}
