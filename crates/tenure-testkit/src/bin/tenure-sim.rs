//! Lives many simulated days and tells of the first that went wrong.
//!
//! `tenure-sim --seeds 1000000 --from 0 --threads 2 --scenario all`, `tenure-sim soft …` for those who share nothing but gossip, or `tenure-sim raft …` for
//! Raft clusters.

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
                     [--scenario NAME|all] [--mistake NAME]";

const HELP: &str = "
Lives simulated days, each seed one, and tells of the first that went wrong; the same seed is the same day (of Raft: nearly).

  tenure-sim --seeds 1000000                    the lease core, every kind of bad day in turn
  tenure-sim soft --scenario everything         those who share nothing but gossip
  tenure-sim raft --seeds 500 --threads 2       Raft clusters and their clients
  tenure-sim --seed 4711 --scenario churn       one day again
  tenure-sim --mistake NAME                     with a mistake built in, which has to be found";

struct Options<S, M> {
    seeds: u64,
    from: u64,
    threads: u64,
    scenarios: Vec<S>,
    mistake: Option<M>,
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1).peekable();
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        println!("{USAGE}\n{HELP}");
        return ExitCode::SUCCESS;
    }
    let lived = match words.peek().map(String::as_str) {
        Some("soft") => parse(words.skip(1), &SoftScenario::ALL)
            .map(|options| live(&options, soft::run, SoftStats::add, |stats: &SoftStats| stats.days)),
        Some("raft") => parse(words.skip(1), &RaftScenario::ALL)
            .map(|options| live(&options, raft::run, RaftStats::add, |stats: &RaftStats| stats.days)),
        _ => parse(words, &Scenario::ALL)
            .map(|options| live(&options, sim::run_with, Stats::add, |stats: &Stats| stats.days)),
    };
    lived.unwrap_or_else(|error| {
        eprintln!("{error}\n{USAGE}");
        ExitCode::from(2)
    })
}

fn parse<S, M>(mut args: impl Iterator<Item = String>, all: &[S]) -> Result<Options<S, M>, String>
where
    S: Copy + FromStr<Err = String>,
    M: FromStr<Err = String>,
{
    let mut options = Options { seeds: 10_000, from: 0, threads: 2, scenarios: all.to_vec(), mistake: None };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} wants a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} wants a number, not {value:?}"));
        match name.as_str() {
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--seed" => (options.from, options.seeds) = (number()?, 1),
            "--threads" => options.threads = number()?.max(1),
            "--scenario" if value == "all" => options.scenarios = all.to_vec(),
            "--scenario" => options.scenarios = vec![value.parse()?],
            "--mistake" => options.mistake = Some(value.parse()?),
            _ => return Err(format!("there is no option {name}")),
        }
    }
    Ok(options)
}

/// Lives the days of all seeds, each seed one day of one scenario in turn, and tells what happened.
fn live<S, M, T, F>(
    options: &Options<S, M>,
    day: impl Fn(S, u64, Option<M>) -> Result<T, F> + Sync,
    add: impl Fn(&mut T, &T) + Sync,
    days: impl Fn(&T) -> u64,
) -> ExitCode
where
    S: Copy + Sync,
    M: Copy + Sync,
    T: Default + Display + Send,
    F: Display + Send,
{
    let begun = now();
    let (stats, failure) = live_all(options, day, add);
    let seconds = now().since(begun).as_secs_f64();
    let (days, threads) = (days(&stats), options.threads);
    println!(
        "{stats}\n{days} days in {seconds:.1}s: {:.1} days/s on {threads} threads",
        days as f64 / seconds
    );
    match failure {
        Some(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn live_all<S, M, T, F>(
    options: &Options<S, M>,
    day: impl Fn(S, u64, Option<M>) -> Result<T, F> + Sync,
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
                    match day(scenario, seed, options.mistake) {
                        Ok(day) => add(&mut stats, &day),
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
            let mut naps = 0u64;
            while next.load(Ordering::Relaxed) < end && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                naps += 1;
                if naps.is_multiple_of(50) {
                    let done = next.load(Ordering::Relaxed).min(end) - options.from;
                    let rate = done as f64 / now().since(begun).as_secs_f64();
                    eprintln!("{done} of {} days, {rate:.0} days/s", options.seeds);
                }
            }
        });
    });
    outcome.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}
