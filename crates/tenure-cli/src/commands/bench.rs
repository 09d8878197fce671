//! `tenure bench`: compares tenure with the plain database.

mod claims;
mod schedules;
mod stores;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::PathBuf;

use tenure_bench::{
    BaselineRow, BenchError, ClaimModesBench, ElectionsBench, ElectionsReport, EventsBench, QueuesBench,
    ReplicaSpec, SchedulesBench, ServerBench, ServerReport, StoresBench, lock_holder,
};

use crate::args::{BenchArgs, BenchCommand, GlobalArgs, OutputFormat};
use crate::error::{self, CliError};
use crate::output::{self, Table, TextStyle};
use crate::store;

pub(crate) async fn run(global: &GlobalArgs, args: BenchArgs) -> Result<u8, CliError> {
    let url = store::options(global)?.url;
    // Subprocesses of a benchmark need no confirmation.
    let is_part = matches!(
        args.command,
        BenchCommand::HoldAdvisory
            | BenchCommand::HoldStore
            | BenchCommand::HoldFlock { .. }
            | BenchCommand::Replica { .. }
    );
    let writes_there = store::is_postgres(&url) || matches!(args.command, BenchCommand::ClaimModes { .. });
    if !is_part && writes_there && !args.yes {
        confirm(global).await?;
    }
    match args.command {
        BenchCommand::HoldAdvisory => lock_holder::hold_advisory(&url).await.map_err(failure)?,
        BenchCommand::HoldStore => lock_holder::hold_store(&url).await.map_err(failure)?,
        BenchCommand::Stores {
            mut extra_store,
            rounds,
            crashes,
            elections,
            window,
            lease,
            no_etcdctl_crash,
        } => {
            extra_store.extend(store::is_postgres(&url).then_some(url));
            let (held, etcdctl_crash) = (elections.into_iter().map(u32::from).collect(), !no_etcdctl_crash);
            let program = program();
            let bench = StoresBench {
                extra_stores: extra_store,
                rounds,
                crashes,
                elections: held,
                window,
                lease,
                etcdctl_crash,
                program,
            };
            stores::run(global, &bench).await?;
        }
        BenchCommand::HoldFlock { path } => lock_holder::hold_flock(&path).await.map_err(failure)?,
        BenchCommand::ClaimModes { replicas, modes, tasks, callers, svg } => {
            let postgres = store::is_postgres(&url).then(|| url.clone());
            let replicas = replicas.into_iter().map(usize::from).collect();
            let bench =
                ClaimModesBench { store: url, postgres, replicas, modes, tasks, callers, program: program() };
            claims::assign(global, &bench, &svg).await?;
        }
        BenchCommand::Queues { tasks, concurrency, backlogs, open_transaction, rounds } => {
            let (postgres, program) = (postgres(global, url), program());
            let bench =
                QueuesBench { postgres, tasks, concurrency, backlogs, open_transaction, rounds, program };
            claims::drain(global, &bench).await?;
        }
        BenchCommand::Events { writers, window, repeats, events, partitions, members, rounds } => {
            let postgres = postgres(global, url);
            let [writers, members] =
                [writers, members].map(|numbers| numbers.into_iter().map(usize::from).collect::<Vec<_>>());
            let bench =
                EventsBench { postgres, writers, window, repeats, events, partitions, members, rounds };
            claims::events(global, &bench).await?;
        }
        BenchCommand::Schedules { schedules, due, repeats, rate, window } => {
            let bench =
                SchedulesBench { postgres: postgres(global, url), schedules, due, repeats, rate, window };
            schedules::run(global, &bench).await?;
        }
        BenchCommand::Replica { queue, callers } => {
            let replica = ReplicaSpec { store: url, queue, callers };
            tenure_bench::replica(&replica).await.map_err(failure)?;
        }
        BenchCommand::Elections { rounds, elections, window } => {
            let bench = ElectionsBench {
                postgres: postgres(global, url),
                rounds,
                elections,
                window,
                program: program(),
            };
            let progress = |what: &str| output::note(global, TextStyle::Dim, what);
            let report = tenure_bench::elections(&bench, &progress).await.map_err(failure)?;
            print(global, &report, render);
        }
        BenchCommand::Server { connections, window, streams, starts } => {
            let (postgres, program) = (postgres(global, url), program());
            let bench = ServerBench { postgres, connections, window, streams, starts, program };
            let progress = |what: &str| output::note(global, TextStyle::Dim, what);
            let report = tenure_bench::server(&bench, &progress).await.map_err(failure)?;
            print(global, &report, render_server);
        }
    }
    Ok(0)
}

/// Asks for confirmation if the store is in use: a benchmark writes much data and loads the machine.
async fn confirm(global: &GlobalArgs) -> Result<(), CliError> {
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
    let what =
        format!("this store is in use (namespaces: {}), and a benchmark slows it down", used.join(", "));
    if !std::io::stdin().is_terminal() {
        return Err(CliError::usage(format!("{what}; use a separate store, or --yes")));
    }
    output::note(global, TextStyle::Yellow, &format!("{what}. Continue? [y/N]"));
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(CliError::usage("cancelled")),
    }
}

fn postgres(global: &GlobalArgs, url: String) -> Option<String> {
    let postgres = store::is_postgres(&url).then_some(url);
    if postgres.is_none() {
        let hint = "measuring SQLite only; use --store postgres://… for PostgreSQL";
        output::note(global, TextStyle::Yellow, hint);
    }
    postgres
}

fn program() -> PathBuf {
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("tenure"))
}

fn print<R: serde::Serialize>(global: &GlobalArgs, report: &R, render: fn(&R) -> String) {
    match global.output {
        OutputFormat::Json => output::print_json(report),
        OutputFormat::Table => output::print_text(&render(report)),
    }
}

fn failure(error: BenchError) -> CliError {
    match error {
        BenchError::Tenure(error) => error.into(),
        error => CliError::new(error::INTERNAL_ERROR, error.to_string()),
    }
}

fn beside(rows: &[BaselineRow]) -> Table {
    let mut table = Table::new(&["measurement", "tenure", "baseline", "value", "ratio", "target"]);
    for row in rows {
        let (aim, style) = match row.max_ratio {
            Some(aim) if row.ratio <= aim => (format!("≤ {aim}"), TextStyle::Green),
            Some(aim) => (format!("≤ {aim}, missed"), TextStyle::Red),
            None => ("–".to_owned(), TextStyle::Plain),
        };
        table.row(vec![
            (row.operation.clone(), TextStyle::Bold),
            (format!("{:.2} {}", row.tenure, row.unit), TextStyle::Plain),
            (row.baseline.clone(), TextStyle::Plain),
            (format!("{:.2} {}", row.baseline_value, row.unit), TextStyle::Plain),
            (format!("{:.2}", row.ratio), style),
            (aim, TextStyle::Dim),
        ]);
    }
    table
}

fn render(report: &ElectionsReport) -> String {
    let table = beside(&report.rows);
    let mut costs = Table::new(&["elections held", "store", "statements/s", "cpu of one core"]);
    for cost in &report.costs {
        let statements =
            cost.statements_per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.2}"));
        let style = if cost.cpu_percent < 1.0 { TextStyle::Green } else { TextStyle::Red };
        costs.row(vec![
            (cost.elections.to_string(), TextStyle::Bold),
            (cost.store.to_owned(), TextStyle::Plain),
            (statements, TextStyle::Plain),
            (format!("{:.2} %", cost.cpu_percent), style),
        ]);
    }
    format!("{}\n{}", table.render(), costs.render())
}

fn render_server(report: &ServerReport) -> String {
    let mut rates = Table::new(&[
        "store",
        "request",
        "per second",
        "p50",
        "p99",
        "baseline",
        "per second",
        "ratio",
        "target",
    ]);
    for rate in &report.rates {
        let (aim, style) = match rate.min_ratio {
            Some(aim) if rate.ratio >= aim => (format!("≥ {aim}"), TextStyle::Green),
            Some(aim) => (format!("≥ {aim}"), TextStyle::Red),
            None => ("–".to_owned(), TextStyle::Plain),
        };
        rates.row(vec![
            (rate.store.to_owned(), TextStyle::Plain),
            (rate.operation.to_owned(), TextStyle::Bold),
            (format!("{:.0}", rate.tenure.per_second), TextStyle::Plain),
            (format!("{:.2} ms", rate.tenure.p50_ms), TextStyle::Plain),
            (format!("{:.2} ms", rate.tenure.p99_ms), TextStyle::Plain),
            (rate.baseline.to_owned(), TextStyle::Plain),
            (format!("{:.0}", rate.baseline_value.per_second), TextStyle::Plain),
            (format!("{:.2}", rate.ratio), style),
            (aim, TextStyle::Dim),
        ]);
    }
    let judged = |good: bool| if good { TextStyle::Green } else { TextStyle::Red };
    let watchers = &report.streams;
    let mut others = Table::new(&["measurement", "value", "target"]);
    others.row(vec![
        (format!("resident memory with {} idle streams", watchers.streams), TextStyle::Bold),
        (format!("{:.1} MiB", watchers.after_mib), judged(watchers.after_mib < watchers.max_mib)),
        (format!("< {} MiB", watchers.max_mib), TextStyle::Dim),
    ]);
    others.row(vec![
        ("per idle stream".to_owned(), TextStyle::Bold),
        (format!("{:.1} KiB", watchers.each_kib), TextStyle::Plain),
        ("–".to_owned(), TextStyle::Dim),
    ]);
    others.row(vec![
        ("startup on SQLite".to_owned(), TextStyle::Bold),
        (format!("{:.0} ms", report.startup_ms), judged(report.startup_ms < report.max_startup_ms)),
        (format!("< {} ms", report.max_startup_ms), TextStyle::Dim),
    ]);
    format!("{}\n{}", rates.render(), others.render())
}
