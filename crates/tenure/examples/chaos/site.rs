//! Where claims, events and schedules are put to the test: one stage on a server, and one on a file.

use std::path::Path;
use std::time::Duration;

use tenure::Tenure;
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, PgClusterBuilder, true_boottime_ns};
use tokio::runtime::Handle;

use crate::crew::{Crew, Hand};
use crate::process::{Plan, Role};
use crate::report::{Outcome, Progress};
use crate::servers::migrate;
use crate::{Failed, Options};

/// How long nothing may be done of what is left once all is healed.
const STALL: Duration = Duration::from_secs(30);

/// Where a stage takes place, for how long, and with what.
pub(crate) struct Site<'a> {
    pub(crate) name: &'static str,
    pub(crate) url: &'a str,
    /// The server, unless the store is a file.
    pub(crate) cluster: Option<&'a PgCluster>,
    pub(crate) seconds: f64,
    pub(crate) entropy: &'a mut SplitMix,
    pub(crate) progress: &'a mut Progress,
    pub(crate) runtime: &'a Handle,
}

/// A server for many processes.
pub(crate) fn server() -> PgClusterBuilder {
    PgCluster::builder().durable().settings(&[("max_connections", "200")])
}

/// A file for many processes, in this folder.
pub(crate) fn file(folder: &Path, runtime: &Handle) -> Result<String, Failed> {
    let url = format!("sqlite:{}", folder.join("chaos.db").display());
    // Opening the store makes the file and Tenure's tables.
    runtime.block_on(async { Tenure::open(&url).await?.close().await })?;
    Ok(url)
}

/// Runs the stage on such a server, and on a file.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
    server: PgClusterBuilder,
    stage: fn(&mut Site<'_>) -> Result<Outcome, Failed>,
) -> Result<Vec<Outcome>, Failed> {
    // Each stage has a stream of its own, so that one alone draws what it drew with the other.
    let mut streams = [(); 2].map(|()| SplitMix::new(entropy.next_u64()));
    let [for_servers, for_files] = &mut streams;
    let mut outcomes = Vec::new();
    let mut play = |name, url: &str, cluster: Option<&PgCluster>, seconds, entropy: &mut SplitMix| {
        progress.stage(name, seconds);
        outcomes.push(stage(&mut Site { name, url, cluster, seconds, entropy, progress, runtime })?);
        Ok::<_, Failed>(())
    };
    if options.wants("servers") {
        let cluster = server.start()?;
        runtime.block_on(migrate(&cluster.url()))?;
        play("servers", &cluster.url(), Some(&cluster), options.share(0.7), for_servers)?;
    }
    if options.wants("files") {
        let folder = tempfile::tempdir()?;
        let url = file(folder.path(), runtime)?;
        play("files", &url, None, options.share(0.3), for_files)?;
    }
    Ok(outcomes)
}

impl Site<'_> {
    /// Processes for these roles. None of them runs yet.
    pub(crate) fn hire<R>(&self, roles: impl IntoIterator<Item = R>) -> Result<Crew<Plan<R>>, Failed> {
        let mut crew = Crew::new()?;
        for (hand, role) in roles.into_iter().enumerate() {
            crew.hands.push(Hand::new(Plan { hand, role, url: self.url.into(), log: Default::default() }));
        }
        Ok(crew)
    }

    /// Nothing more is added; waits until nothing is left of what is there, or nothing of it is done any more.
    pub(crate) fn drain<R: Role>(
        &mut self,
        crew: &mut Crew<Plan<R>>,
        adds: impl Fn(&R) -> bool,
        left: impl Fn() -> Result<u64, Failed>,
    ) -> Result<(), Failed> {
        self.progress.doing("draining");
        for hand in 0..crew.hands.len() {
            if adds(&crew.hands[hand].plan.role) {
                crew.end(hand);
            } else {
                crew.start(hand)?;
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
