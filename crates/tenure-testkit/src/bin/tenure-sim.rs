//! Runs many simulations and reports the first failure.
//!
//! Usage: `tenure-sim --seeds 1000000 --from 0 --threads 2 --scenario all`, `tenure-sim soft …` for soft elections, or
//! `tenure-sim raft …` for Raft clusters.

use std::fmt::Display;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::runtime::now;
use tenure_testkit::sim::raft::{self, RaftScenario, RaftStats};
use tenure_testkit::sim::soft::{self, SoftScenario, SoftStats};
use tenure_testkit::sim::{self, Scenario, Stats};

const USAGE: &str = "usage: tenure-sim [soft|raft] [--seeds N] [--from SEED | --seed SEED] [--threads N] \
                     [--scenario NAME|all] [--bug NAME]";

const HELP: &str = "
Run simulations, one per seed, and report the first failure. The same seed gives the same run (for Raft: nearly the same).

  tenure-sim --seeds 1000000                    the lease machine, all scenarios in turn
  tenure-sim soft --scenario everything         soft elections over gossip
  tenure-sim raft --seeds 500 --threads 2       Raft clusters and their clients
  tenure-sim --seed 4711 --scenario churn       repeat one run
  tenure-sim --bug NAME                         inject a known bug, which the simulation must find";

struct Options<S, M> {
    seeds: u64,
    from: u64,
    threads: u64,
    scenarios: Vec<S>,
    bug: Option<M>,
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}\n{HELP}");
        return ExitCode::SUCCESS;
    }
    let code = match words.peek().map(String::as_str) {
        Some("soft") => parse(words.skip(1), &SoftScenario::ALL)
            .map(|options| run_all(&options, soft::run, SoftStats::add, |stats: &SoftStats| stats.run_count)),
        Some("raft") => parse(words.skip(1), &RaftScenario::ALL)
            .map(|options| run_all(&options, raft::run, RaftStats::add, |stats: &RaftStats| stats.run_count)),
        _ => parse(words, &Scenario::ALL)
            .map(|options| run_all(&options, sim::run_with, Stats::add, |stats: &Stats| stats.run_count)),
    };
    code.unwrap_or_else(|error| {
        eprintln!("{error}\n{USAGE}");
        ExitCode::from(2)
    })
}

fn parse<S, M>(mut args: impl Iterator<Item = String>, all: &[S]) -> Result<Options<S, M>, String>
where
    S: Copy + FromStr<Err = String>,
    M: FromStr<Err = String>,
{
    let mut options = Options { seeds: 10_000, from: 0, threads: 2, scenarios: all.to_vec(), bug: None };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} needs a number, not {value:?}"));
        match name.as_str() {
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--seed" => (options.from, options.seeds) = (number()?, 1),
            "--threads" => options.threads = number()?.max(1),
            "--scenario" if value == "all" => options.scenarios = all.to_vec(),
            "--scenario" => options.scenarios = vec![value.parse()?],
            "--bug" => options.bug = Some(value.parse()?),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(options)
}

/// Runs all seeds, rotating through the scenarios, and prints statistics.
fn run_all<S, M, T, F>(
    options: &Options<S, M>,
    run: impl Fn(S, u64, Option<M>) -> Result<T, F> + Sync,
    add: impl Fn(&mut T, &T) + Sync,
    run_count: impl Fn(&T) -> u64,
) -> ExitCode
where
    S: Copy + Sync,
    M: Copy + Sync,
    T: Default + Display + Send,
    F: Display + Send,
{
    let begun = now();
    let (stats, failure) = run_threads(options, run, add);
    let seconds = now().since(begun).as_secs_f64();
    let (run_count, threads) = (run_count(&stats), options.threads);
    println!(
        "{stats}\n{run_count} runs in {seconds:.1}s: {:.1} runs/s on {threads} threads",
        run_count as f64 / seconds
    );
    match failure {
        Some(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn run_threads<S, M, T, F>(
    options: &Options<S, M>,
    run: impl Fn(S, u64, Option<M>) -> Result<T, F> + Sync,
    add: impl Fn(&mut T, &T) + Sync,
) -> (T, Option<F>)
where
    S: Copy + Sync,
    M: Copy + Sync,
    T: Default + Send,
    F: Send,
{
    let next = AtomicU64::new(options.from);
    let end = options.from + options.seeds;
    let stop = AtomicBool::new(false);
    let outcome: Mutex<(T, Option<F>)> = Mutex::new((T::default(), None));
    let begun = now();
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                let mut stats = T::default();
                let mut failure = None;
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let scenario = options.scenarios[(seed % options.scenarios.len() as u64) as usize];
                    match run(scenario, seed, options.bug) {
                        Ok(run) => add(&mut stats, &run),
                        Err(found) => {
                            stop.store(true, Ordering::Relaxed);
                            failure = Some(found);
                        }
                    }
                }
                let mut outcome = outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                add(&mut outcome.0, &stats);
                outcome.1 = outcome.1.take().or(failure);
            });
        }
        scope.spawn(|| {
            let mut polls = 0u64;
            while next.load(Ordering::Relaxed) < end && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                polls += 1;
                if polls.is_multiple_of(50) {
                    let done = next.load(Ordering::Relaxed).min(end) - options.from;
                    let rate = done as f64 / now().since(begun).as_secs_f64();
                    eprintln!("{done} of {} runs, {rate:.0} runs/s", options.seeds);
                }
            }
        });
    });
    outcome.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}
