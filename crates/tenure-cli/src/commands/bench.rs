//! `tenure bench`: measured beside the bare database.

use std::path::PathBuf;

use tenure_bench::{BenchError, ElectionBench, Report, hold};

use crate::args::{BenchArgs, BenchCommand, Format, Global};
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table};
use crate::store;

pub(crate) async fn run(global: &Global, args: BenchArgs) -> Result<u8, Failure> {
    let url = store::options(global)?.url;
    match args.command {
        BenchCommand::HoldAdvisory => hold::hold_advisory(&url).await.map_err(failure)?,
        BenchCommand::HoldFlock { path } => hold::hold_flock(&path).await.map_err(failure)?,
        BenchCommand::Election { rounds, held, window } => {
            let postgres = store::is_postgres(&url).then_some(url);
            if postgres.is_none() {
                output::note(
                    global,
                    Ink::Yellow,
                    "only SQLite is measured; for PostgreSQL give --store postgres://…",
                );
            }
            let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("tenure"));
            let bench = ElectionBench { postgres, rounds, held, window, program };
            let progress = |what: &str| output::note(global, Ink::Dim, what);
            let report = tenure_bench::election(&bench, &progress).await.map_err(failure)?;
            match global.output {
                Format::Json => output::print_json(&report),
                Format::Table => output::print_text(&render(&report)),
            }
        }
    }
    Ok(0)
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Tenure(error) => error.into(),
        error => Failure::new(exit::OWN_FAILURE, error.to_string()),
    }
}

fn render(report: &Report) -> String {
    let mut table = Table::new(&["measured", "tenure", "bare", "beside", "ratio", "aim"]);
    for row in &report.rows {
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
