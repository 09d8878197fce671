//! The stage *raft*: five workers that are a cluster of their own, each in a network of its own, and no server anywhere.
//!
//! They are killed, stopped, ended and given wrong clocks, and cut off from all others: both ways, so that nobody hears them, and so that they hear
//! nobody. Besides what is true of every stage, a worker that is cut off must not believe once its trust has run out, however long the cut lasts: the
//! minority has no leader. What leaders write goes to a file that knows nothing but tokens.

use tenure_core::SplitMix;
use tenure_testkit::rig::{FakeClock, Switch, true_boottime_ns};
use tokio::runtime::Handle;

use crate::Failed;
use crate::crew::{Crew, Hand};
use crate::faults::Blow;
use crate::ledger::{Ledger, SQLITE_TABLES};
use crate::nemesis::{DEAFENED, Fault, ISOLATED, MUTED, Nemesis};
use crate::oracles::{Injected, Term};
use crate::report::{Outcome, Progress};
use crate::servers::{LEASE, plan};
use crate::site;
use crate::verdict::{Promise, Stage, judge, terms};
use crate::worker::Plan;

/// Less than that proves nothing: a cluster gathers, and each cut outlasts a lease.
pub(crate) const LEAST_SECONDS: f64 = 12.0;

const MEMBERS: usize = 5;
const PORT: u16 = 8369;

/// Runs the stage for this long; not without root.
pub(crate) fn run(
    seconds: f64,
    entropy: &mut SplitMix,
    progress: &mut Progress,
    runtime: &Handle,
) -> Result<Option<Outcome>, Failed> {
    progress.stage("raft", seconds);
    if let Err(why) = Switch::available() {
        progress.note(&format!("left out: {why}"));
        return Ok(None);
    }
    let mut crew = Crew::new()?;
    // Is it built in?
    let alone = format!("raft:{}", crew.workplace.path().join("alone").display());
    runtime
        .block_on(async { tenure::Tenure::open(&alone).await?.close().await })
        .map_err(|error| format!("{error} (build with --features raft)"))?;
    let url = site::file(crew.workplace.path(), runtime)?;
    let ledger = Ledger::elsewhere(&url)?;
    runtime.block_on(ledger.execute(SQLITE_TABLES))?;
    let switch = Switch::of(MEMBERS)?;
    let peers: Vec<String> =
        (0..MEMBERS).map(|member| format!("{}@{}:{PORT}", member + 1, switch.address(member))).collect();
    crew.switch = Some(switch);
    for worker in 0..MEMBERS {
        let folder = crew.workplace.path().join(format!("raft-{worker}"));
        let store = format!("raft:{}?node={}&peers={}", folder.display(), worker + 1, peers.join(","));
        crew.hands.push(Hand::new(Plan { ledger: Some(url.clone()), ..plan(worker, store) }));
    }
    crew.start_all()?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let mut kinds = vec![
        Fault::Isolate,
        Fault::Mute,
        Fault::Deafen,
        Fault::Isolate,
        Fault::Worker(Blow::Kill),
        Fault::Worker(Blow::Stop),
        Fault::Worker(Blow::End),
    ];
    kinds.extend(FakeClock::available().is_ok().then_some(Fault::SkewWorker));
    let faults = Nemesis::new(&mut crew, None, entropy, progress, LEASE, kinds).rage(until_ns)?;
    let end_ns = true_boottime_ns();
    crew.end_all();
    let minorities = minorities_that_led(&terms(&crew)?, &faults);
    let names = vec!["orders".into(), "pool".into()];
    let promises = vec![Promise::AtMostOne, Promise::AtMostOne];
    let stage = Stage { name: "raft", names, promises, faults, end_ns, commits_survive: true };
    let mut outcome = runtime.block_on(judge(stage, &crew, &ledger))?;
    outcome.violations.extend(minorities);
    Ok(Some(outcome))
}

/// Terms that went on although their worker had been cut off from all others for longer than it may trust. The slowest clock runs at 0.92.
fn minorities_that_led(terms: &[Term], faults: &[Injected]) -> Vec<String> {
    let trust_ns = (LEASE.as_nanos() as f64 * 2.0 / 3.0 / 0.9) as u64;
    // Mending takes a moment, in which it is not cut off any more.
    let moment_ns = 300_000_000;
    let cuts = faults.iter().filter(|fault| [ISOLATED, MUTED, DEAFENED].contains(&fault.name));
    let mut found = Vec::new();
    for cut in cuts {
        let (from, to) = (cut.from_ns.saturating_add(trust_ns), cut.to_ns.saturating_sub(moment_ns));
        let within = |term: &&Term| Some(term.worker) == cut.worker && term.from_ns < to && term.to_ns > from;
        for term in terms.iter().filter(within) {
            let ms = (term.to_ns.min(to) - from) / 1_000_000;
            found.push(format!("raft: worker {} led for {ms} ms too long, {}", term.worker, cut.name));
        }
    }
    found
}
