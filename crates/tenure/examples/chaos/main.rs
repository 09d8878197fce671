//! Chaos tests: real worker processes on real servers under real faults, checked by oracles over their logs and tables.
//!
//! One process injects the faults and evaluates the results; it starts itself again as each worker. The election
//! scenarios run one after the other, each with its own servers, workers and tables: *postgres* (PostgreSQL, connected
//! directly, through a pooler and through a proxy), *promotion* (a standby that lost commits), *restore* (a dump
//! restored in a new cluster, which also lost commits), *sqlite* (one shared file) and *raft* (five members,
//! disconnected in both directions and in one direction). The *controls* follow: known bugs, injected on purpose, each
//! of which an oracle must report. Queues, events, schedules and gossip have scenarios of their own.
//!
//! Nothing is shared with the host, and all processes and files are removed when this process ends for any reason: each
//! has a guard process that waits for the end of a pipe. See `--help`.

mod control_runner;
mod controls;
mod evaluation;
mod events;
mod fault_deck;
mod faults;
mod gossip;
mod log;
mod nemesis;
mod operator;
mod oracles;
mod postgres;
mod process;
mod promotion;
mod proxy;
mod queues;
mod raft;
mod report;
mod restore;
mod scenario_context;
mod schedules;
mod script;
mod sqlite;
mod tables;
mod worker;
mod worker_processes;

use std::process::ExitCode;

use tenure_core::{Entropy, SplitMix};

use crate::worker_processes::Job;

/// Why a run could not be carried out. Says nothing about Tenure.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

const HELP: &str = "\
usage: scripts/chaos [queues|events|schedules|gossip] [--seconds N] [--seed S] [--only SCENARIO]

Starts private servers and worker processes, injects random faults for N seconds (default 120), and checks the results. Without a
subject it tests elections: two leaders must never overlap, tokens must only grow, and stale writes must be rejected. Prints a table
of figures; exits with 1 and the seed if a check failed.

  --seconds N       Duration of the faults; starting servers and the controls take about 40 s more
  --seed S          Seed of the random faults; every run prints its seed first
  --only SCENARIO   Run one scenario: postgres, promotion, restore, sqlite, raft or controls;
                    for queues, events and schedules: postgres, sqlite or controls; for gossip: members or controls

queues: processes submit and process tasks while workers, the broker and the server are killed, stopped and restarted, and an
operator changes the queue's mode, pauses, cancels and retries. At the end every submitted task must be completed, dead or
cancelled, no task may have been claimed by two workers at once, and in exclusive mode tasks must have been claimed in strict order.

events: sixteen publishers write in transactions of random length, and eight members process the events and record their effects in the
same database, while members, publishers and the server are killed, stopped and restarted. At the end a hash chain per key proves that no
event was lost, reordered or processed twice, and commits under old tokens must have been rejected.

schedules: five processes campaign, and the leader fires schedules of every policy, while leaders and the server are killed, stopped
and restarted, the clock is set an hour ahead and back, and an operator pauses and changes schedules. At the end no tick may be missing
or fired twice, each fired tick must have had its effect once, under the token of the leader that fired it, and missed ticks must have
been handled as their misfire policy says.

gossip: five `tenure run --soft` campaign, each in its own network namespace (requires root), while they are killed and stopped and the
network is split in two, in both directions and in one direction. Two leaders are permitted during a split: the run prints for how many
seconds there were two during and after a split. While the network is intact there must be at most one leader, after a split two only
for a limited time, and each side of a split must get a leader.

Two guarantees are weaker and are checked accordingly. In takeover mode `connection` two processes may lead for a while. A leader whose
grant was lost by the promotion of an asynchronous standby may trust its lease until it expires, while the new server has already granted
a greater token. In both cases tokens must grow and stale writes must be rejected.

As root, some workers run in network namespaces, and the server uses a disk that gets full. Without root these faults and the scenario
raft are skipped. All traffic stays on this machine. Ctrl-C stops the run and cleans up.

Examples:
  scripts/chaos --seconds 600
  scripts/chaos --seconds 40 --seed 1
  scripts/chaos --seconds 20 --only sqlite
  scripts/chaos --seconds 60 --only raft
  scripts/chaos queues --seconds 120
  scripts/chaos events --seconds 120
  scripts/chaos schedules --seconds 120
  scripts/chaos gossip --seconds 120";

/// The subject of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Elections,
    Queues,
    Events,
    Schedules,
    Gossip,
}

impl Subject {
    /// Scenarios that `--only` accepts.
    fn scenarios(self) -> &'static [&'static str] {
        match self {
            Subject::Elections => &["postgres", "promotion", "restore", "sqlite", "raft", "controls"],
            Subject::Gossip => &["members", "controls"],
            _ => &["postgres", "sqlite", "controls"],
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
    fn wants(&self, scenario: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == scenario)
    }

    /// Duration of a scenario with this share of the time; the whole time if it runs alone.
    fn duration(&self, share: f64) -> f64 {
        if self.only.is_some() { self.seconds } else { self.seconds * share }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = arguments.get(1).map_or("", String::as_str);
    let outcome = match arguments.first().map(String::as_str) {
        Some(<worker::Plan as Job>::ROLE) => {
            process::run_process(argument, worker::run_process).map(|()| true)
        }
        Some(<queues::Plan as Job>::ROLE) => {
            process::run_process(argument, queues::run_process).map(|()| true)
        }
        Some(<events::Plan as Job>::ROLE) => {
            process::run_process(argument, events::run_process).map(|()| true)
        }
        Some(<schedules::Plan as Job>::ROLE) => {
            process::run_process(argument, schedules::run_process).map(|()| true)
        }
        Some(gossip::COMMAND) => gossip::run_process(argument).map(|never| match never {}),
        _ => match parse(&arguments) {
            Ok(Some(options)) => run_chaos(&options),
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
            eprintln!("chaos run failed to start or finish: {error}");
            ExitCode::from(3)
        }
    }
}

fn parse(arguments: &[String]) -> Result<Option<Options>, String> {
    let subject = match arguments.first().map(String::as_str) {
        Some("queues") => Subject::Queues,
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
        let value = arguments.next().ok_or_else(|| format!("{name} requires a value"))?;
        let bad = |_| format!("{name} requires a number, got {value:?}");
        match name.as_str() {
            "--seconds" => options.seconds = f64::from(value.parse::<u32>().map_err(bad)?),
            "--seed" => options.seed = value.parse().map_err(bad)?,
            "--only" if subject.scenarios().contains(&value.as_str()) => options.only = Some(value.clone()),
            "--only" => return Err(format!("unknown scenario {value}")),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(Some(options))
}

fn run_chaos(options: &Options) -> Result<bool, Failed> {
    println!("seed {}", options.seed);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let handle = runtime.handle();
    // Tables are opened outside of async code too.
    let _entered = handle.enter();
    let mut progress = report::Progress::new();
    let mut entropy = SplitMix::new(options.seed);
    match options.subject {
        Subject::Elections => {}
        Subject::Queues => return queues::run(options, &mut entropy, &mut progress, handle),
        Subject::Events => return events::run(options, &mut entropy, &mut progress, handle),
        Subject::Schedules => return schedules::run(options, &mut entropy, &mut progress, handle),
        Subject::Gossip => return gossip::run(options, &mut entropy, &mut progress),
    }
    let mut outcomes = Vec::new();
    // Each scenario has its own random stream, so it draws the same faults alone and among others.
    let mut streams = [(); 5].map(|()| SplitMix::new(entropy.next_u64()));
    let [for_postgres, for_promotion, for_sqlite, for_raft, for_restore] = &mut streams;
    if options.wants("postgres") {
        outcomes.push(postgres::run(options.duration(0.4), for_postgres, &mut progress, handle)?);
    }
    if options.wants("promotion") {
        outcomes.push(promotion::run(options.duration(0.15), for_promotion, &mut progress, handle)?);
    }
    if options.wants("restore") {
        outcomes.push(restore::run(options.duration(0.1), for_restore, &mut progress, handle)?);
    }
    if options.wants("sqlite") {
        outcomes.push(sqlite::run(options.duration(0.15), for_sqlite, &mut progress, handle)?);
    }
    if options.wants("raft") {
        let seconds = options.duration(0.2).max(raft::LEAST_SECONDS);
        outcomes.extend(raft::run(seconds, for_raft, &mut progress, handle)?);
    }
    let controls = if options.wants("controls") { controls::run(&mut progress, handle)? } else { Vec::new() };
    progress.done();
    report::demand_refusals(&mut outcomes, "no stale write was rejected: the fence was not tested");
    let gaps = "takeover: time from the end of one term to the next, ms";
    Ok(report::print(&outcomes, Some(gaps), &controls, options.seed))
}
