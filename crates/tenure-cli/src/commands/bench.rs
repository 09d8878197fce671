//! `tenure bench`: measured beside the bare database.

mod claims;
mod schedules;
mod stores;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::PathBuf;

use tenure_bench::{
    AssignBench, BenchError, DrainBench, ElectionBench, EventsBench, Replica, Report, Row, SchedulesBench,
    ServerBench, ServerReport, StoresBench, hold,
};

use crate::args::{BenchArgs, BenchCommand, Format, Global};
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table};
use crate::store;

pub(crate) async fn run(global: &Global, args: BenchArgs) -> Result<u8, Failure> {
    let url = store::options(global)?.url;
    // What the bench starts itself was confirmed by whoever started the bench.
    let is_part = matches!(
        args.command,
        BenchCommand::HoldAdvisory
            | BenchCommand::HoldStore
            | BenchCommand::HoldFlock { .. }
            | BenchCommand::Replica { .. }
    );
    let writes_there = store::is_postgres(&url) || matches!(args.command, BenchCommand::Assign { .. });
    if !is_part && writes_there && !args.yes {
        confirm(global).await?;
    }
    match args.command {
        BenchCommand::HoldAdvisory => hold::hold_advisory(&url).await.map_err(failure)?,
        BenchCommand::HoldStore => hold::hold_store(&url).await.map_err(failure)?,
        BenchCommand::Stores { mut also, rounds, crashes, held, window, lease, no_etcdctl_crash } => {
            also.extend(store::is_postgres(&url).then_some(url));
            let (held, etcdctl_crash) = (held.into_iter().map(u32::from).collect(), !no_etcdctl_crash);
            let program = program();
            let bench = StoresBench { also, rounds, crashes, held, window, lease, etcdctl_crash, program };
            stores::run(global, &bench).await?;
        }
        BenchCommand::HoldFlock { path } => hold::hold_flock(&path).await.map_err(failure)?,
        BenchCommand::Assign { replicas, modes, tasks, callers, svg } => {
            let postgres = store::is_postgres(&url).then(|| url.clone());
            let replicas = replicas.into_iter().map(usize::from).collect();
            let bench =
                AssignBench { store: url, postgres, replicas, modes, tasks, callers, program: program() };
            claims::assign(global, &bench, &svg).await?;
        }
        BenchCommand::Drain { tasks, concurrency, backlogs, held_open, rounds } => {
            let (postgres, program) = (postgres(global, url), program());
            let bench = DrainBench { postgres, tasks, concurrency, backlogs, held_open, rounds, program };
            claims::drain(global, &bench).await?;
        }
        BenchCommand::Events { writers, window, repeats, events, slots, members, rounds } => {
            let postgres = postgres(global, url);
            let [writers, members] =
                [writers, members].map(|numbers| numbers.into_iter().map(usize::from).collect::<Vec<_>>());
            let bench = EventsBench { postgres, writers, window, repeats, events, slots, members, rounds };
            claims::events(global, &bench).await?;
        }
        BenchCommand::Schedules { schedules, due, repeats, rate, window } => {
            let bench =
                SchedulesBench { postgres: postgres(global, url), schedules, due, repeats, rate, window };
            schedules::run(global, &bench).await?;
        }
        BenchCommand::Replica { queue, callers } => {
            let replica = Replica { store: url, queue, callers };
            tenure_bench::replica(&replica).await.map_err(failure)?;
        }
        BenchCommand::Election { rounds, held, window } => {
            let bench =
                ElectionBench { postgres: postgres(global, url), rounds, held, window, program: program() };
            let progress = |what: &str| output::note(global, Ink::Dim, what);
            let report = tenure_bench::election(&bench, &progress).await.map_err(failure)?;
            print(global, &report, render);
        }
        BenchCommand::Server { connections, window, watchers, starts } => {
            let (postgres, program) = (postgres(global, url), program());
            let bench = ServerBench { postgres, connections, window, watchers, starts, program };
            let progress = |what: &str| output::note(global, Ink::Dim, what);
            let report = tenure_bench::server(&bench, &progress).await.map_err(failure)?;
            print(global, &report, render_server);
        }
    }
    Ok(0)
}

/// Asks whoever measures on a store that others use: a bench writes a lot, and takes what the machine has.
async fn confirm(global: &Global) -> Result<(), Failure> {
    let store = store::open(global).await?;
    let of_bench = |namespace: &tenure::Name| {
        let name = namespace.as_str();
        name == tenure_bench::NAMESPACE || name.starts_with("bench-") || name == "tenure"
    };
    let elections = store.elections(None).await?.into_iter().map(|view| view.key.namespace);
    let queues = store.queues(None).await.unwrap_or_default().into_iter().map(|view| view.key.namespace);
    let topics = store.topics(None).await.unwrap_or_default().into_iter().map(|view| view.key.namespace);
    let used: BTreeSet<tenure::Name> =
        elections.chain(queues).chain(topics).filter(|name| !of_bench(name)).collect();
    if used.is_empty() {
        return Ok(());
    }
    let used: Vec<&str> = used.iter().map(tenure::Name::as_str).collect();
    let what = format!("this store is in use (namespaces: {}), and a bench slows it down", used.join(", "));
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{what}; measure on one of its own, or say --yes")));
    }
    output::note(global, Ink::Yellow, &format!("{what}. Measure here? [y/N]"));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::usage("nothing was measured")),
    }
}

fn postgres(global: &Global, url: String) -> Option<String> {
    let postgres = store::is_postgres(&url).then_some(url);
    if postgres.is_none() {
        let hint = "only SQLite is measured; for PostgreSQL give --store postgres://…";
        output::note(global, Ink::Yellow, hint);
    }
    postgres
}

fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("tenure"))
}

fn print<R: serde::Serialize>(global: &Global, report: &R, render: fn(&R) -> String) {
    match global.output {
        Format::Json => output::print_json(report),
        Format::Table => output::print_text(&render(report)),
    }
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Tenure(error) => error.into(),
        error => Failure::new(exit::OWN_FAILURE, error.to_string()),
    }
}

fn beside(rows: &[Row]) -> Table {
    let mut table = Table::new(&["measured", "tenure", "bare", "beside", "ratio", "aim"]);
    for row in rows {
        let (aim, ink) = match row.aim {
            Some(aim) if row.ratio <= aim => (format!("≤ {aim}"), Ink::Green),
            Some(aim) => (format!("≤ {aim}, missed"), Ink::Red),
            None => ("–".to_owned(), Ink::Plain),
        };
        table.row(vec![
            (row.what.clone(), Ink::Bold),
            (format!("{:.2} {}", row.tenure, row.unit), Ink::Plain),
            (row.bare.clone(), Ink::Plain),
            (format!("{:.2} {}", row.beside, row.unit), Ink::Plain),
            (format!("{:.2}", row.ratio), ink),
            (aim, Ink::Dim),
        ]);
    }
    table
}

fn render(report: &Report) -> String {
    let table = beside(&report.rows);
    let mut costs = Table::new(&["held by one process", "store", "statements/s", "cpu of one core"]);
    for cost in &report.costs {
        let statements =
            cost.statements_per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.2}"));
        let ink = if cost.cpu_percent < 1.0 { Ink::Green } else { Ink::Red };
        costs.row(vec![
            (cost.held.to_string(), Ink::Bold),
            (cost.store.to_owned(), Ink::Plain),
            (statements, Ink::Plain),
            (format!("{:.2} %", cost.cpu_percent), ink),
        ]);
    }
    format!("{}\n{}", table.render(), costs.render())
}

fn render_server(report: &ServerReport) -> String {
    let mut rates =
        Table::new(&["store", "asked", "per second", "p50", "p99", "beside", "per second", "ratio", "aim"]);
    for rate in &report.rates {
        let (aim, ink) = match rate.aim {
            Some(aim) if rate.ratio >= aim => (format!("≥ {aim}"), Ink::Green),
            Some(aim) => (format!("≥ {aim}"), Ink::Red),
            None => ("–".to_owned(), Ink::Plain),
        };
        rates.row(vec![
            (rate.store.to_owned(), Ink::Plain),
            (rate.what.to_owned(), Ink::Bold),
            (format!("{:.0}", rate.tenure.per_second), Ink::Plain),
            (format!("{:.2} ms", rate.tenure.p50_ms), Ink::Plain),
            (format!("{:.2} ms", rate.tenure.p99_ms), Ink::Plain),
            (rate.bare.to_owned(), Ink::Plain),
            (format!("{:.0}", rate.beside.per_second), Ink::Plain),
            (format!("{:.2}", rate.ratio), ink),
            (aim, Ink::Dim),
        ]);
    }
    let judged = |good: bool| if good { Ink::Green } else { Ink::Red };
    let watchers = &report.watchers;
    let mut others = Table::new(&["measured", "figure", "aim"]);
    others.row(vec![
        (format!("resident with {} idle watchers", watchers.watchers), Ink::Bold),
        (format!("{:.1} MiB", watchers.after_mib), judged(watchers.after_mib < watchers.aim_mib)),
        (format!("< {} MiB", watchers.aim_mib), Ink::Dim),
    ]);
    others.row(vec![
        ("for each idle watcher".to_owned(), Ink::Bold),
        (format!("{:.1} KiB", watchers.each_kib), Ink::Plain),
        ("–".to_owned(), Ink::Dim),
    ]);
    others.row(vec![
        ("start-up on SQLite".to_owned(), Ink::Bold),
        (format!("{:.0} ms", report.start_up_ms), judged(report.start_up_ms < report.start_up_aim_ms)),
        (format!("< {} ms", report.start_up_aim_ms), Ink::Dim),
    ]);
    format!("{}\n{}", rates.render(), others.render())
}
