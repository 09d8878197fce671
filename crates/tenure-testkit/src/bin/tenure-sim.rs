//! Lives many simulated days and tells of the first that went wrong.
//!
//! `tenure-sim --seeds 1000000 --from 0 --threads 2 --scenario all`, or `tenure-sim soft …` for those who share nothing but gossip.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure::runtime::now;
use tenure_testkit::sim::soft::{self, SoftMistake, SoftScenario, SoftStats};
use tenure_testkit::sim::{self, Failure, Mistake, Scenario, Stats};

const USAGE: &str =
    "usage: tenure-sim [soft] [--seeds N] [--from SEED] [--threads N] [--scenario NAME|all] [--mistake NAME]";

struct Options {
    seeds: u64,
    from: u64,
    threads: u64,
    scenarios: Vec<Scenario>,
    mistake: Option<Mistake>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|word| word == "soft") {
        return soft_days(std::env::args().skip(2)).unwrap_or_else(|error| {
            eprintln!("{error}\n{USAGE}");
            ExitCode::from(2)
        });
    }
    let options = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let begun = now();
    let (stats, failure) = live(&options);
    let seconds = now().since(begun).as_secs_f64();
    println!("{stats}");
    let rate = stats.days as f64 / seconds;
    println!("{} days in {seconds:.1}s: {rate:.0} days/s on {} threads", stats.days, options.threads);
    match failure {
        Some(failure) => {
            eprintln!("\n{failure}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options =
        Options { seeds: 10_000, from: 0, threads: 2, scenarios: Scenario::ALL.to_vec(), mistake: None };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} wants a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} wants a number, not {value:?}"));
        match name.as_str() {
            "--seeds" => options.seeds = number()?,
            "--from" => options.from = number()?,
            "--threads" => options.threads = number()?.max(1),
            "--scenario" if value == "all" => options.scenarios = Scenario::ALL.to_vec(),
            "--scenario" => options.scenarios = vec![value.parse()?],
            "--mistake" => options.mistake = Some(value.parse()?),
            _ => return Err(format!("there is no option {name}")),
        }
    }
    Ok(options)
}

/// Lives the days of all seeds, each seed one day of one scenario in turn.
fn live(options: &Options) -> (Stats, Option<Box<Failure>>) {
    let next = AtomicU64::new(options.from);
    let end = options.from + options.seeds;
    let stop = AtomicBool::new(false);
    let outcome: Mutex<(Stats, Option<Box<Failure>>)> = Mutex::default();
    let begun = now();
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| {
                let mut stats = Stats::default();
                let mut failure = None;
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        break;
                    }
                    let scenario = options.scenarios[(seed % options.scenarios.len() as u64) as usize];
                    match sim::run_with(scenario, seed, options.mistake) {
                        Ok(day) => stats.add(&day),
                        Err(found) => {
                            stop.store(true, Ordering::Relaxed);
                            failure = Some(found);
                        }
                    }
                }
                let mut outcome = outcome.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                outcome.0.add(&stats);
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

/// Days of those who share nothing but gossip, one after the other.
fn soft_days(mut args: impl Iterator<Item = String>) -> Result<ExitCode, String> {
    let (mut seeds, mut from, mut scenarios) = (10_000, 0, SoftScenario::ALL.to_vec());
    let mut mistake: Option<SoftMistake> = None;
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} wants a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} wants a number, not {value:?}"));
        match name.as_str() {
            "--seeds" => seeds = number()?,
            "--from" => from = number()?,
            "--threads" => {}
            "--scenario" if value == "all" => scenarios = SoftScenario::ALL.to_vec(),
            "--scenario" => scenarios = vec![value.parse()?],
            "--mistake" => mistake = Some(value.parse()?),
            _ => return Err(format!("there is no option {name}")),
        }
    }
    let begun = now();
    let mut stats = SoftStats::default();
    for seed in from..from + seeds {
        match soft::run(scenarios[(seed % scenarios.len() as u64) as usize], seed, mistake) {
            Ok(day) => stats.add(&day),
            Err(failure) => {
                println!("{stats}");
                eprintln!("\n{failure}");
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    println!("{stats}\n{} days in {:.1}s", stats.days, now().since(begun).as_secs_f64());
    Ok(ExitCode::SUCCESS)
}
