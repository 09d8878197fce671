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

use tenure::port::TopicSettings;
use tenure_core::SplitMix;
use tokio::runtime::Handle;

use self::books::{Judged, SLOTS, topic};
use self::nemesis::Operator;
pub(crate) use self::plan::Plan;
use self::plan::Role;
pub(crate) use self::process::live;
use self::verdict::conclude;
use crate::faults::Nemesis;
use crate::process::open;
use crate::report::{self, Outcome, Progress};
use crate::servers::LEASE;
use crate::site::{self, Site};
use crate::{Failed, Options};

/// How many read.
const MEMBERS: usize = 8;

/// Runs the stages, and tells whether all is well.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<bool, Failed> {
    let outcomes = site::run(options, entropy, progress, runtime, site::server(), stage)?;
    let controls = if options.wants("controls") { controls::run(progress, runtime)? } else { Vec::new() };
    progress.done();
    Ok(report::print(&outcomes, None, &controls, options.seed))
}

fn stage(site: &mut Site<'_>) -> Result<Outcome, Failed> {
    let (url, runtime) = (site.url, site.runtime);
    runtime.block_on(prepare(url))?;
    let mut crew = site.hire([Role::Writes(8); 2].into_iter().chain([Role::Reads; MEMBERS]))?;
    crew.start_all()?;
    let mischief = &mut Operator { url, runtime };
    let faults = Nemesis { site, crew: &mut crew, mischief }.rage()?;
    site.drain(&mut crew, |role| *role != Role::Reads, || runtime.block_on(unread(url)))?;
    // Those who are careless have a while to say what is too late.
    std::thread::sleep(LEASE * 2);
    crew.end_all();
    conclude(site.name, runtime.block_on(judge(url))?, &faults, &crew)
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

/// How many events are there that were not read.
async fn unread(url: &str) -> Result<u64, Failed> {
    let (published, read) = match url.starts_with("sqlite:") {
        true => books::sqlite::counts(&pools::sqlite(url, 1)?).await?,
        false => books::postgres::counts(&pools::postgres(url, 1)?).await?,
    };
    Ok(u64::try_from(published - read).unwrap_or(0))
}
