//! Chaos for events: processes publish and read, everything breaks, and the books are judged.
//!
//! Two stages: *servers* (PostgreSQL) and *files* (SQLite). Sixteen writers in two processes go on with chains of hashes, in
//! transactions of random length, some of them rolled back; eight members read them and keep books in the same database. When all
//! is healed and nothing more is written, what is left is read. Then the *controls*.

pub(crate) mod books;
mod controls;
mod nemesis;
mod plan;
mod pools;
mod process;
pub(crate) mod reader;
mod verdict;

use std::time::Duration;

use tenure::port::TopicSettings;
use tenure_core::{Entropy, SplitMix};
use tenure_testkit::rig::{PgCluster, true_boottime_ns};
use tokio::runtime::Handle;

use self::books::{Judged, SLOTS, topic};
use self::nemesis::Nemesis;
pub(crate) use self::plan::Plan;
use self::plan::Role;
pub(crate) use self::process::live;
use self::verdict::conclude;
use crate::crew::{Crew, Hand};
use crate::process::open;
use crate::report::{self, Outcome, Progress};
use crate::servers::{LEASE, migrate};
use crate::{Failed, Options};

/// How long nothing may be read of what is left once all is healed.
const STALL: Duration = Duration::from_secs(30);

/// How many read.
const MEMBERS: usize = 8;

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
        let (url, seconds) = (cluster.url(), options.share(0.7));
        outcomes.push(stage("servers", &url, Some(&cluster), seconds, for_servers, progress, runtime)?);
    }
    if options.wants("files") {
        let folder = tempfile::tempdir()?;
        let url = format!("sqlite:{}", folder.path().join("chaos.db").display());
        outcomes.push(stage("files", &url, None, options.share(0.3), for_files, progress, runtime)?);
    }
    let controls = if options.wants("controls") { controls::run(progress, runtime)? } else { Vec::new() };
    progress.done();
    Ok(report::print(&outcomes, None, &controls, options.seed))
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
    runtime.block_on(prepare(url))?;
    let mut crew = Crew::new()?;
    let roles = [Role::Writes(8); 2].into_iter().chain([Role::Reads; MEMBERS]);
    for (hand, role) in roles.enumerate() {
        let plan = Plan { hand, role, url: url.into(), log: Default::default() };
        crew.hands.push(Hand::new(plan));
    }
    crew.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let nemesis = Nemesis {
        crew: &mut crew,
        cluster,
        url,
        runtime,
        entropy,
        progress,
        lease: LEASE,
        injected: Vec::new(),
    };
    let faults = nemesis.rage(until_ns)?;
    drain(&mut crew, url, progress, runtime)?;
    crew.end_all();
    let judged = runtime.block_on(judge(url))?;
    conclude(name, judged, &faults, &crew)
}

/// Makes the topic and the books.
async fn prepare(url: &str) -> Result<(), Failed> {
    let tenure = open(url, "home", LEASE).await;
    let settings = TopicSettings { slots: SLOTS, ..TopicSettings::default() };
    tenure.store().set_topic(&topic()?, &settings).await?;
    match url.starts_with("sqlite:") {
        true => books::sqlite::create(&pools::sqlite(url, 1)?).await?,
        false => books::postgres::create(&pools::postgres(url, 1)?).await?,
    }
    tenure.close().await?;
    Ok(())
}

async fn judge(url: &str) -> Result<Judged, Failed> {
    match url.starts_with("sqlite:") {
        true => books::sqlite::judge(&pools::sqlite(url, 1)?).await,
        false => books::postgres::judge(&pools::postgres(url, 1)?).await,
    }
}

async fn counts(url: &str) -> Result<(i64, i64), Failed> {
    match url.starts_with("sqlite:") {
        true => books::sqlite::counts(&pools::sqlite(url, 1)?).await,
        false => books::postgres::counts(&pools::postgres(url, 1)?).await,
    }
}

/// Nothing more is written; waits until all that is there is read, or nothing of it is any more.
fn drain(crew: &mut Crew<Plan>, url: &str, progress: &mut Progress, runtime: &Handle) -> Result<(), Failed> {
    progress.doing("draining");
    for hand in 0..crew.hands.len() {
        match crew.hands[hand].plan.role {
            Role::Writes(_) => drop(crew.end(hand)),
            Role::Reads => crew.start(hand)?,
        }
    }
    let stall_ns = u64::try_from(STALL.as_nanos())?;
    let (mut most, mut since_ns) = (-1, true_boottime_ns());
    while true_boottime_ns() < since_ns + stall_ns {
        match runtime.block_on(counts(url)) {
            Ok((published, read)) if read >= published => break,
            Ok((_, read)) if read > most => (most, since_ns) = (read, true_boottime_ns()),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(100));
        progress.tick();
    }
    // Those who are careless have a while to say what is too late.
    std::thread::sleep(LEASE * 2);
    Ok(())
}
