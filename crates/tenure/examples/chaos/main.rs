//! Chaos: real worker processes on real servers, under real faults, judged by what they believed and wrote.
//!
//! One process breaks things and judges; it starts itself again as each worker. Five stages, one after the other, each
//! with servers, workers and tables of its own: *servers* (PostgreSQL by every road), *promotion* (a standby that lost
//! commits), *restore* (a dump in a new cluster, which lost commits too), *files* (SQLite) and *raft* (five members, cut off from each other both ways and one way). Then the *controls*: known mistakes put back in, each of which an oracle must report.
//! Claims, events, schedules and gossip have stages of their own.
//! Nothing is shared with the machine, and everything goes with this process, however it ends: each piece has a guard
//! that waits for the end of a pipe. See `--help`.

mod claims;
mod controls;
mod crew;
mod deck;
mod events;
mod faults;
mod files;
mod forward;
mod gossip;
mod ledger;
mod log;
mod nemesis;
mod operator;
mod oracles;
mod process;
mod promotion;
mod raft;
mod report;
mod restore;
mod schedules;
mod script;
mod servers;
mod site;
mod theatre;
mod verdict;
mod worker;

use std::process::ExitCode;

use tenure_core::{Entropy, SplitMix};

use crate::crew::Job;

/// Why a run could not be made. Says nothing about Tenure.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

const HELP: &str = "\
usage: scripts/chaos [claims|events|schedules|gossip] [--seconds N] [--seed S] [--only STAGE]

Elections, unless the first word is `claims`, `events`, `schedules` or `gossip`. Starts private servers and worker processes, breaks them at random for N seconds (120 unless said), and then checks
that never two leaders believed at once, that tokens only grew, and that no stale write was accepted. It prints a table
of figures, and ends with 1 and the seed if anything was amiss.

  --seconds N    how long to break things; starting servers and the controls come on top (about 40 s)
  --seed S       draw the same faults again; a number, printed first by every run
  --only STAGE   servers, promotion, restore, files, raft or controls; of the others: servers, files or controls;
                 of gossip: members or controls

With `claims`, processes submit and work on tasks while workers, the leader and the server are killed, stopped and
restarted, and an operator changes the queue's mode, pauses, cancels and retries. In the end all that was submitted must be
completed, dead or cancelled, no task may have been in two hands at once, and in exclusive mode none may have been handed out
before one with a better place.

With `events`, sixteen writers publish in transactions of random length, and eight members read and keep books in the same
database, while they, the writers and the server are killed, stopped and restarted. In the end, by a chain of hashes for each
key, nothing may be lost, reordered or have had an effect twice, and what was said under old tokens must have been refused.

With `schedules`, five processes stand, and whoever leads fires schedules of every policy, while leaders and the server are killed,
stopped and restarted, the clock is stepped by an hour ahead and back, and an operator pauses and changes. In the end no tick may be
missing or doubled, each that fired must have had its effect once, under the token of who fired it, and those that were missed must
have fired, or not, exactly as their policy says.

With `gossip`, five `tenure run --soft` stand, each in a network of its own (which needs root), while they are killed and stopped and the
network is cut in two, both ways and one way. Two at once are not denied: it prints for how many seconds there were two while it was cut
and after it was mended. While it is whole there must never be two, and after mending only for so long; each side of a netsplit must come
to have one.

Less is promised, and so judged, in two places. In take-over mode `connection` two may believe for a while. And a leader
whose grant was lost by the promotion of an asynchronous standby may believe until its trust ends, while the new server
has granted a greater token already. In both, tokens must grow and stale writes be refused all the same.

As root some workers live in network namespaces of their own, and the server on a disk that gets full. Otherwise those
are left out, and with them the stage raft. All traffic stays on this machine. Ctrl-C ends it and cleans up.

Examples:
  scripts/chaos --seconds 600
  scripts/chaos --seconds 40 --seed 1
  scripts/chaos --seconds 20 --only files
  scripts/chaos --seconds 60 --only raft
  scripts/chaos claims --seconds 120
  scripts/chaos events --seconds 120
  scripts/chaos schedules --seconds 120
  scripts/chaos gossip --seconds 120";

/// What is put to the test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Elections,
    Claims,
    Events,
    Schedules,
    Gossip,
}

impl Subject {
    /// What it can be put to alone.
    fn stages(self) -> &'static [&'static str] {
        match self {
            Subject::Elections => &["servers", "promotion", "restore", "files", "raft", "controls"],
            Subject::Gossip => &["members", "controls"],
            _ => &["servers", "files", "controls"],
        }
    }
}

struct Options {
    subject: Subject,
    seconds: f64,
    seed: u64,
    only: Option<String>,
}

impl Options {
    fn wants(&self, stage: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == stage)
    }

    /// How long a stage lasts that has this part of the time, unless it is alone.
    fn share(&self, part: f64) -> f64 {
        if self.only.is_some() { self.seconds } else { self.seconds * part }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let told = arguments.get(1).map_or("", String::as_str);
    let outcome = match arguments.first().map(String::as_str) {
        Some(<worker::Plan as Job>::ROLE) => process::live(told, worker::live).map(|()| true),
        Some(<claims::Plan as Job>::ROLE) => process::live(told, claims::live).map(|()| true),
        Some(<events::Plan as Job>::ROLE) => process::live(told, events::live).map(|()| true),
        Some(<schedules::Plan as Job>::ROLE) => process::live(told, schedules::live).map(|()| true),
        Some(gossip::COMMAND) => gossip::live(told).map(|never| match never {}),
        _ => match parse(&arguments) {
            Ok(Some(options)) => break_things(&options),
            Ok(None) => {
                println!("{HELP}");
                Ok(true)
            }
            Err(error) => {
                eprintln!("{error}\n\n{HELP}");
                return ExitCode::from(2);
            }
        },
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("the run could not be made: {error}");
            ExitCode::from(3)
        }
    }
}

fn parse(arguments: &[String]) -> Result<Option<Options>, String> {
    let subject = match arguments.first().map(String::as_str) {
        Some("claims") => Subject::Claims,
        Some("events") => Subject::Events,
        Some("schedules") => Subject::Schedules,
        Some("gossip") => Subject::Gossip,
        _ => Subject::Elections,
    };
    let seed = tenure::runtime::random() >> 32;
    let mut options = Options { subject, seconds: 120.0, seed, only: None };
    let mut arguments = arguments.iter().skip(usize::from(subject != Subject::Elections));
    while let Some(name) = arguments.next() {
        if name == "--help" || name == "-h" {
            return Ok(None);
        }
        let value = arguments.next().ok_or_else(|| format!("{name} wants a value"))?;
        let bad = |_| format!("{name} wants a number, not {value:?}");
        match name.as_str() {
            "--seconds" => options.seconds = f64::from(value.parse::<u32>().map_err(bad)?),
            "--seed" => options.seed = value.parse().map_err(bad)?,
            "--only" if subject.stages().contains(&value.as_str()) => options.only = Some(value.clone()),
            "--only" => return Err(format!("there is no stage {value}")),
            _ => return Err(format!("there is no option {name}")),
        }
    }
    Ok(Some(options))
}

fn break_things(options: &Options) -> Result<bool, Failed> {
    println!("seed {}", options.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let handle = runtime.handle();
    // Ledgers are opened outside of async code too.
    let _entered = handle.enter();
    let mut progress = report::Progress::new();
    let mut entropy = SplitMix::new(options.seed);
    match options.subject {
        Subject::Elections => {}
        Subject::Claims => return claims::run(options, &mut entropy, &mut progress, handle),
        Subject::Events => return events::run(options, &mut entropy, &mut progress, handle),
        Subject::Schedules => return schedules::run(options, &mut entropy, &mut progress, handle),
        Subject::Gossip => return gossip::run(options, &mut entropy, &mut progress),
    }
    let mut outcomes = Vec::new();
    // Each stage has a stream of its own, so that one alone draws what it drew among the others.
    let mut streams = [(); 5].map(|()| SplitMix::new(entropy.next_u64()));
    let [for_servers, for_promotion, for_files, for_raft, for_restore] = &mut streams;
    if options.wants("servers") {
        outcomes.push(servers::run(options.share(0.4), for_servers, &mut progress, handle)?);
    }
    if options.wants("promotion") {
        outcomes.push(promotion::run(options.share(0.15), for_promotion, &mut progress, handle)?);
    }
    if options.wants("restore") {
        outcomes.push(restore::run(options.share(0.1), for_restore, &mut progress, handle)?);
    }
    if options.wants("files") {
        outcomes.push(files::run(options.share(0.15), for_files, &mut progress, handle)?);
    }
    if options.wants("raft") {
        let seconds = options.share(0.2).max(raft::LEAST_SECONDS);
        outcomes.extend(raft::run(seconds, for_raft, &mut progress, handle)?);
    }
    let controls = if options.wants("controls") { controls::run(&mut progress, handle)? } else { Vec::new() };
    progress.done();
    report::demand_refusals(
        &mut outcomes,
        "no stale write was ever refused: the fence was not put to the test",
    );
    let gaps = "take-over, from the last belief to the next, ms";
    Ok(report::print(&outcomes, Some(gaps), &controls, options.seed))
}
