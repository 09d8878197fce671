//! Chaos for gossip: real `tenure run --soft` in networks of their own, and what is not promised is measured.
//!
//! Five members, each in a namespace, all plugged into one switch. They are killed, stopped and told to end; the network between them is cut in
//! two, both ways and one way. Whoever leads runs a command, and the commands' lives are judged: while the network is whole never two live
//! at once, whoever dies or stops; while it is cut both sides come to have one; and after it is mended there is one again within a bound,
//! the simulator's own ([`HEALING`]). How long there were two is told, not denied. Then the *controls*.

mod controls;
mod member;
mod nemesis;
mod oracle;
mod verdict;

use std::time::Duration;

use tenure_core::SplitMix;
use tenure_testkit::rig::{Switch, true_boottime_ns};
use tenure_testkit::sim::soft::HEALING;

pub(crate) use self::member::{COMMAND, live};
use self::member::{KILL_AFTER, MemberPlan};
use self::nemesis::{Broken, Nemesis};
use self::verdict::conclude;
use crate::crew::{Crew, Hand};
use crate::deck::wait;
use crate::oracles::Term;
use crate::report::{self, Outcome, Progress};
use crate::verdict::terms;
use crate::{Failed, Options};

const MEMBERS: usize = 5;

/// How often members gossip, how long one may be silent, and how long nothing may be in doubt.
const ROUND: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(1200);
const HOLD_DOWN: Duration = Duration::from_millis(1000);

/// How long after the network is mended two may still be at work: as the simulator has it, and the time that a command has to end.
fn bound() -> Duration {
    ROUND * HEALING + KILL_AFTER
}

/// How long it takes at most until one leads, once nothing changes any more: a death is noticed, doubted and told, and so is that of
/// whoever was to follow.
fn settled() -> Duration {
    (PATIENCE + HOLD_DOWN + ROUND * 4) * 2
}

/// Runs the stage and the controls, and tells whether all is well.
pub(crate) fn run(
    options: &Options,
    entropy: &mut SplitMix,
    progress: &mut Progress,
) -> Result<bool, Failed> {
    progress.stage("gossip", options.seconds);
    Switch::available().map_err(|why| format!("{why}: without namespaces there is nothing to cut"))?;
    let mut outcomes = Vec::new();
    if options.wants("members") {
        outcomes.push(stage(options.seconds, entropy, progress)?);
    }
    let controls = if options.wants("controls") { controls::run(progress)? } else { Vec::new() };
    progress.done();
    Ok(report::print(&outcomes, Some("from one command to the next, ms"), &controls, options.seed))
}

fn stage(seconds: f64, entropy: &mut SplitMix, progress: &mut Progress) -> Result<Outcome, Failed> {
    let mut crew = gather(MEMBERS)?;
    // One ranks before the others, whoever is older: when it comes back it takes over.
    crew.hands[0].plan.priority = 5;
    crew.start_all()?;
    let begun_ns = until_leads(&crew)?;
    let until_ns = true_boottime_ns() + (seconds * 1e9) as u64;
    let broken = Nemesis { crew: &mut crew, entropy, progress, broken: Broken::default() }.rage(until_ns)?;
    progress.doing("calming down");
    wait(progress, settled());
    let last = leading(&crew)?;
    let end_ns = true_boottime_ns();
    crew.end_all();
    Ok(conclude(&terms(&crew)?, &broken, &last, end_ns - begun_ns, &crew))
}

/// Members that know of each other and share a secret; none of them runs yet.
fn gather(members: usize) -> Result<Crew<MemberPlan>, Failed> {
    let mut crew = Crew::new()?;
    let switch = Switch::of(members)?;
    let secret = crew.workplace.path().join("secret");
    std::fs::write(&secret, "chaos, and nothing but chaos")?;
    let addresses: Vec<_> = (0..members).map(|member| switch.address(member)).collect();
    crew.hands = (0..members).map(|it| Hand::new(MemberPlan::new(it, &addresses, &secret))).collect();
    crew.switch = Some(switch);
    Ok(crew)
}

/// Whose command lives just now, as far as it has said so.
fn leading(crew: &Crew<MemberPlan>) -> Result<Vec<usize>, Failed> {
    let now = true_boottime_ns();
    let lives = |term: &Term| now.saturating_sub(term.to_ns) < 100_000_000;
    Ok(terms(crew)?.into_iter().filter(lives).map(|term| term.worker).collect())
}

/// Waits until somebody leads, and tells since when.
fn until_leads(crew: &Crew<MemberPlan>) -> Result<u64, Failed> {
    crate::script::until(|| Ok(!leading(crew)?.is_empty()))?;
    Ok(true_boottime_ns())
}
