//! Every store that promises at most one leader, in one run.
//!
//! Absolute times are the machine's; so each figure stands in units that travel: a hand-over in durable writes of the same store, measured in the same
//! run; a crash in leases, of which a store may make a candidate wait; what holding costs in requests per beat.

mod counting;
mod etcdctl;
mod kube;
mod setup;
mod tap;

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use tenure::Tenure;
use tenure::backend::{StoreOptions, open};
use tenure::port::Takeover;
use tenure::runtime::now;

use self::counting::Counting;
use self::setup::{EtcdServer, Members};
use self::tap::Tap;
use crate::bare::Folder;
use crate::handover::Rivals;
use crate::server::Served;
use crate::{BenchError, Row, crash, median_ms, row};

/// How often client-go asks for each Lease that it holds, per second: its retry period is two seconds.
const CLIENT_GO_PACE: f64 = 0.5;

/// Its lease and its retry period. On Kubernetes, where each held Lease is renewed by itself, what is held is held at this pace.
const CLIENT_GO: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(2));

/// What to measure.
#[derive(Clone, Debug)]
pub struct StoresBench {
    /// Stores besides those that can be started here: `postgres://…`, `k8s:…`, an etcd of one's own. Requests to Kubernetes are counted
    /// if the kubeconfig that the address names speaks plain HTTP.
    pub also: Vec<String>,
    /// How many hand-overs to time.
    pub rounds: u32,
    /// How many crashes to time.
    pub crashes: u32,
    /// How many elections one process holds.
    pub held: Vec<u32>,
    /// How long the cost of holding is watched.
    pub window: Duration,
    /// The lease of all candidates.
    pub lease: Duration,
    /// Whether to wait a minute for the crash of `etcdctl elect`.
    pub etcdctl_crash: bool,
    /// The `tenure` program: holders and servers run it.
    pub program: PathBuf,
}

/// One store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreFigures {
    /// Its name.
    pub store: String,
    /// The least that it durably writes: one beat. On SQLite, of a session that does not end with this machine.
    pub beat_ms: f64,
    /// From a release to the next leader.
    pub hand_over_ms: f64,
    /// The same in beats.
    pub hand_over_beats: f64,
    /// From `kill -9` to the next leader; `None` where a process can not be killed alone.
    pub crash_ms: Option<f64>,
    /// The same in leases.
    pub crash_leases: Option<f64>,
    /// What holding costs.
    pub holding: Vec<Holding>,
}

/// What it costs to hold so many elections in one process.
#[derive(Clone, Debug, Serialize)]
pub struct Holding {
    /// How many.
    pub held: u32,
    /// Requests to the store per second, by all that are held.
    pub requests_per_second: f64,
    /// The same for each that is held, in client-go's: half a request per second for each Lease.
    pub of_client_go: f64,
    /// How many requests there are per beat.
    pub per_beat: f64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoresReport {
    /// Each store.
    pub stores: Vec<StoreFigures>,
    /// etcd beside its own tool.
    pub rows: Vec<Row>,
}

/// Measures every store; `progress` is told what is being done.
pub async fn stores(bench: &StoresBench, progress: &dyn Fn(&str)) -> Result<StoresReport, BenchError> {
    let mut report = StoresReport::default();
    let folder = Folder::new()?;
    let mut measure = async |name: &str, url: &str, tap: Option<&Tap>| -> Result<(), BenchError> {
        report.stores.push(figures(bench, progress, name, url, tap).await?);
        Ok(())
    };
    measure("memory", "memory:", None).await?;
    measure("SQLite", &folder.store("stores"), None).await?;
    let served = Served::start(&bench.program, &folder.store("served")).await?;
    let tap = Tap::to(served.address().to_owned()).await?;
    measure("server on SQLite", &format!("http://127.0.0.1:{}", tap.port), Some(&tap)).await?;
    served.stop().await?;
    let etcd = EtcdServer::start(&folder).await?;
    let mut tool = None;
    if let Some(etcd) = &etcd {
        let crashing = bench.etcdctl_crash.then(|| tokio::spawn(etcdctl::crash_ms(etcd.place.clone())));
        let tap = Tap::to(etcd.place.clone()).await?;
        measure("etcd", &format!("etcd://127.0.0.1:{}", tap.port), Some(&tap)).await?;
        progress("etcdctl elect: hand-over");
        tool = Some((etcdctl::hand_over_ms(&etcd.place, bench.rounds).await?, crashing));
    } else {
        progress("there is no etcd on this machine: it is left out");
    }
    let members = Members::start(&bench.program, &folder).await?;
    measure("Raft, three members", &members.url, None).await?;
    for url in &bench.also {
        let name = match url.split_once(':').map_or(url.as_str(), |(scheme, _)| scheme) {
            "k8s" => "Kubernetes",
            scheme => scheme,
        };
        match kube::tapped(url, &folder).await? {
            Some((url, tap)) => measure(name, &url, Some(&tap)).await?,
            None => measure(name, url, None).await?,
        }
    }
    report.rows.extend(report.stores.iter().find(|figures| figures.store == "Kubernetes").and_then(of_lease));
    if let Some((hand_over, crashing)) = tool {
        let ours = report.stores.iter().find(|figures| figures.store == "etcd").cloned();
        if let Some(ours) = ours {
            report.rows.push(row(
                "hand-over, etcd",
                "etcdctl elect",
                ours.hand_over_ms,
                hand_over,
                Some(2.0),
            ));
            if let (Some(crash), Some(crashing)) = (ours.crash_ms, crashing) {
                progress("etcdctl elect: crash");
                let beside = crashing.await.map_err(|error| BenchError::Helper(error.to_string()))??;
                report.rows.push(row("crash take-over, etcd", "etcdctl elect", crash, beside, None));
            }
        }
    }
    Ok(report)
}

/// Requests for each of many Leases that are held, beside client-go's pace.
fn of_lease(kubernetes: &StoreFigures) -> Option<Row> {
    let most = kubernetes.holding.last()?;
    let each = most.requests_per_second / f64::from(most.held);
    Some(Row {
        what: format!("each of {} held Leases, Kubernetes", most.held),
        bare: "client-go's pace".into(),
        tenure: each,
        beside: CLIENT_GO_PACE,
        unit: "requests/s",
        ratio: each / CLIENT_GO_PACE,
        aim: Some(1.1),
    })
}

async fn figures(
    bench: &StoresBench,
    progress: &dyn Fn(&str),
    name: &str,
    url: &str,
    tap: Option<&Tap>,
) -> Result<StoreFigures, BenchError> {
    progress(&format!("{name}: hand-over"));
    let is_memory = url == "memory:";
    let rivals = Rivals::stand(url).await?;
    let mut times = Vec::new();
    for _ in 0..bench.rounds {
        times.push(rivals.hand_over().await?);
    }
    let hand_over_ms = median_ms(times);
    let beat_ms = median_ms(rivals.beats(bench.rounds).await?);
    rivals.close().await?;
    let mut crashes = Vec::new();
    for round in (0..bench.crashes).filter(|_| !is_memory) {
        progress(&format!("{name}: crash {}", round + 1));
        let holder =
            crash::Holder { program: &bench.program, lease: Some(bench.lease), takeover: Takeover::Lease };
        crashes.push(crash::takeover(&holder, url, round).await?);
    }
    let crash_ms = (!crashes.is_empty()).then(|| median_ms(crashes));
    let mut holding = Vec::new();
    // One call of ours is a request to all of these but Kubernetes, where they are counted on the way or not at all.
    let is_counted = tap.is_some() || !url.starts_with(kube::SCHEME);
    for &held in bench.held.iter().filter(|_| is_counted) {
        progress(&format!("{name}: holding {held}"));
        holding.push(hold(bench, url, held, tap).await?);
    }
    let crash_leases = crash_ms.map(|ms| ms / 1e3 / bench.lease.as_secs_f64());
    let (store, hand_over_beats) = (name.to_owned(), hand_over_ms / beat_ms);
    Ok(StoreFigures { store, beat_ms, hand_over_ms, hand_over_beats, crash_ms, crash_leases, holding })
}

async fn hold(bench: &StoresBench, url: &str, held: u32, tap: Option<&Tap>) -> Result<Holding, BenchError> {
    let store = open(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await?;
    let (counting, calls) = Counting::new(store);
    let builder = Tenure::builder().store(counting).name("holder");
    let (builder, beat) = match url.starts_with(kube::SCHEME) {
        true => (builder.lease(CLIENT_GO.0).beat(CLIENT_GO.1), CLIENT_GO.1),
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
    // Whatever becoming leader set off is over.
    tokio::time::sleep(bench.lease).await;
    let count = || tap.map_or_else(|| calls.load(Ordering::Relaxed), Tap::requests);
    let (start, before) = (now(), count());
    tokio::time::sleep(bench.window).await;
    let (requests, seconds) = (count() - before, now().since(start).as_secs_f64());
    drop((leaderships, electors));
    tenure.close().await?;
    let per_second = requests as f64 / seconds;
    Ok(Holding {
        held,
        requests_per_second: per_second,
        of_client_go: per_second / f64::from(held) / CLIENT_GO_PACE,
        per_beat: per_second * beat.as_secs_f64(),
    })
}
