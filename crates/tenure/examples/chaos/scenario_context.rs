//! Environment of the queue, event and schedule scenarios: one on PostgreSQL, one on SQLite.

use std::path::Path;
use std::time::Duration;

use tenure::Tenure;
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, PgClusterBuilder, true_boottime_ns};
use tokio::runtime::Handle;

use crate::postgres::migrate;
use crate::process::{Plan, Role};
use crate::report::{Outcome, Progress};
use crate::worker_processes::{WorkerProcesses, WorkerSlot};
use crate::{Failed, Options};

/// Time without progress after which draining gives up, once all faults are healed.
const STALL: Duration = Duration::from_secs(30);

/// Store, duration and helpers of a scenario.
pub(crate) struct ScenarioContext<'a> {
    pub(crate) name: &'static str,
    pub(crate) url: &'a str,
    /// The PostgreSQL server, unless the store is a file.
    pub(crate) cluster: Option<&'a PgCluster>,
    pub(crate) seconds: f64,
    pub(crate) entropy: &'a mut SplitMix,
    pub(crate) progress: &'a mut Progress,
    pub(crate) runtime: &'a Handle,
}

/// A PostgreSQL server for many processes.
pub(crate) fn server() -> PgClusterBuilder {
    PgCluster::builder().durable().settings(&[("max_connections", "200")])
}

/// A SQLite file for many processes, in this directory.
pub(crate) fn file(directory: &Path, runtime: &Handle) -> Result<String, Failed> {
    let url = format!("sqlite:{}", directory.join("chaos.db").display());
    // Opening the store creates the file and the schema.
    runtime.block_on(async { Tenure::open(&url).await?.close().await })?;
    Ok(url)
}

/// Run the scenario on PostgreSQL and on SQLite.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
    server: PgClusterBuilder,
    scenario: fn(&mut ScenarioContext<'_>) -> Result<Outcome, Failed>,
) -> Result<Vec<Outcome>, Failed> {
    // Each scenario has its own random stream, so it draws the same faults alone and with the other.
    let mut streams = [(); 2].map(|()| SplitMix::new(entropy.next_u64()));
    let [for_postgres, for_sqlite] = &mut streams;
    let mut outcomes = Vec::new();
    let mut run_one = |name, url: &str, cluster: Option<&PgCluster>, seconds, entropy: &mut SplitMix| {
        progress.scenario(name, seconds);
        outcomes.push(scenario(&mut ScenarioContext {
            name,
            url,
            cluster,
            seconds,
            entropy,
            progress,
            runtime,
        })?);
        Ok::<_, Failed>(())
    };
    if options.wants("postgres") {
        let cluster = server.start()?;
        runtime.block_on(migrate(&cluster.url()))?;
        run_one("postgres", &cluster.url(), Some(&cluster), options.duration(0.7), for_postgres)?;
    }
    if options.wants("sqlite") {
        let directory = tempfile::tempdir()?;
        let url = file(directory.path(), runtime)?;
        run_one("sqlite", &url, None, options.duration(0.3), for_sqlite)?;
    }
    Ok(outcomes)
}

impl ScenarioContext<'_> {
    /// Prepare processes for these roles without starting them.
    pub(crate) fn prepare_workers<R>(
        &self,
        roles: impl IntoIterator<Item = R>,
    ) -> Result<WorkerProcesses<Plan<R>>, Failed> {
        let mut workers = WorkerProcesses::new()?;
        for (process, role) in roles.into_iter().enumerate() {
            workers.slots.push(WorkerSlot::new(Plan {
                process,
                role,
                url: self.url.into(),
                log: Default::default(),
            }));
        }
        Ok(workers)
    }

    /// Stop the processes that add work, then wait until no work is left or no progress is made.
    pub(crate) fn drain<R: Role>(
        &mut self,
        workers: &mut WorkerProcesses<Plan<R>>,
        adds: impl Fn(&R) -> bool,
        left: impl Fn() -> Result<u64, Failed>,
    ) -> Result<(), Failed> {
        self.progress.doing("draining");
        for process in 0..workers.slots.len() {
            if adds(&workers.slots[process].plan.role) {
                workers.end(process);
            } else {
                workers.start(process)?;
            }
        }
        let stall_ns = u64::try_from(STALL.as_nanos())?;
        let (mut least, mut since_ns) = (u64::MAX, true_boottime_ns());
        while true_boottime_ns() < since_ns + stall_ns {
            match left() {
                Ok(0) => break,
                Ok(left) if left < least => (least, since_ns) = (left, true_boottime_ns()),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(100));
            self.progress.tick();
        }
        Ok(())
    }
}
