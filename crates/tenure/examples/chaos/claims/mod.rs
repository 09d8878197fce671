//! Chaos for claims: processes submit and work, everything breaks, and what they did is judged.
//!
//! Two stages: *servers* (PostgreSQL) and *files* (SQLite). Each has submitters and workers; one of the workers leads. The queue
//! `orders` holds plain tasks of different priority and changes its mode; its turns are judged. The queue `mixed` holds
//! everything else: graphs, keys, tags, tasks that fail, panic or take long. When all is healed and nothing more is submitted,
//! what is left is worked off. Then the *controls*.

mod controls;
mod nemesis;
mod notes;
mod operator;
mod oracles;
mod plan;
mod submitter;
mod verdict;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tenure::Tenure;
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, true_boottime_ns};
use tokio::runtime::Handle;
use tokio::signal::unix::Signal;

use self::nemesis::Nemesis;
use self::notes::Notebook;
use self::operator::Operator;
pub(crate) use self::plan::Plan;
use self::plan::Role;
use self::verdict::judge;
use crate::crew::{Crew, Hand};
use crate::process::open;
use crate::report::{self, Outcome, Progress};
use crate::servers::{LEASE, migrate};
use crate::{Failed, Options};

/// How long nothing may be finished of what is left once all is healed.
const STALL: Duration = Duration::from_secs(30);

/// Runs the stages, and tells whether all is well.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<bool, Failed> {
    let mut streams = [(); 2].map(|()| SplitMix::new(entropy.next_u64()));
    let [for_servers, for_files] = &mut streams;
    let mut outcomes = Vec::new();
    if options.wants("servers") {
        let cluster = PgCluster::builder().durable().settings(&[("max_connections", "200")]).start()?;
        runtime.block_on(migrate(&cluster.url()))?;
        let url = cluster.url();
        outcomes.push(stage(
            "servers",
            &url,
            Some(&cluster),
            options.share(0.7),
            for_servers,
            progress,
            runtime,
        )?);
    }
    if options.wants("files") {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("chaos.db").display());
        runtime.block_on(async { Tenure::open(&url).await?.close().await })?;
        outcomes.push(stage("files", &url, None, options.share(0.3), for_files, progress, runtime)?);
    }
    let controls = if options.wants("controls") { controls::run(progress, runtime)? } else { Vec::new() };
    progress.done();
    report::demand_refusals(
        &mut outcomes,
        "no stale settlement was ever refused: the tokens were not put to the test",
    );
    let gaps = "recovery, from the last hold of a lost task to its next run, ms";
    Ok(report::print(&outcomes, Some(gaps), &controls, options.seed))
}

fn stage(
    name: &'static str,
    url: &str,
    cluster: Option<&PgCluster>,
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Outcome, Failed> {
    progress.stage(name, seconds);
    let mut crew = Crew::new()?;
    let roles = [Role::Submits, Role::Submits, Role::Works, Role::Works, Role::Works, Role::Works];
    for (hand, role) in roles.into_iter().enumerate() {
        let plan = Plan { hand, role, url: url.into(), log: Default::default() };
        crew.hands.push(Hand::new(plan));
    }
    let mut operator = Operator::new(url.into(), runtime.clone());
    crew.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let nemesis = Nemesis {
        crew: &mut crew,
        cluster,
        operator: &mut operator,
        entropy,
        progress,
        lease: LEASE,
        injected: Vec::new(),
    };
    let faults = nemesis.rage(until_ns)?;
    drain(&mut crew, &operator, progress)?;
    crew.end_all();
    let lease_ns = u64::try_from(LEASE.as_nanos())?;
    runtime.block_on(judge(name, &crew, &operator, &faults, lease_ns))
}

/// Nothing more is submitted; waits until all that is there is finished, or nothing of it is any more.
fn drain(crew: &mut Crew<Plan>, operator: &Operator, progress: &mut Progress) -> Result<(), Failed> {
    progress.doing("draining");
    for hand in 0..crew.hands.len() {
        match crew.hands[hand].plan.role {
            Role::Submits => drop(crew.end(hand)),
            Role::Works => crew.start(hand)?,
        }
    }
    let stall_ns = u64::try_from(STALL.as_nanos())?;
    let (mut least, mut since_ns) = (u64::MAX, true_boottime_ns());
    while true_boottime_ns() < since_ns + stall_ns {
        match operator.unfinished() {
            Ok(0) => break,
            Ok(left) if left < least => (least, since_ns) = (left, true_boottime_ns()),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(100));
        progress.tick();
    }
    Ok(())
}

/// Lives the life of a process.
pub(crate) async fn live(plan: Plan, mut terminate: Signal) -> Result<(), Failed> {
    // Handlers panic as they are told.
    std::panic::set_hook(Box::new(|panic| {
        if panic.payload_as_str() != Some(worker::PANIC) {
            eprintln!("{panic}");
        }
    }));
    let notebook = Arc::new(Notebook::open(&plan.log)?);
    let name = format!("process-{}", plan.hand);
    let tenure = tokio::select! {
        tenure = open(&plan.url, &name, LEASE) => tenure,
        _ = terminate.recv() => return Ok(()),
    };
    match plan.role {
        Role::Submits => tokio::select! {
            () = submitter::submit(&tenure, notebook) => {}
            _ = terminate.recv() => {}
        },
        Role::Works => worker::work(&tenure, &plan, notebook, terminate).await?,
    }
    let _ = tokio::time::timeout(Duration::from_secs(3), tenure.close()).await;
    Ok(())
}
