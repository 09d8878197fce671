//! `tenure bench claim-modes`, `tenure bench queues` and `tenure bench events`.

use std::path::Path;

use tenure::port::AssignmentMode;
use tenure_bench::{
    ClaimModesBench, ClaimModesReport, ComparisonRow, EventsBench, EventsReport, QueuesBench, QueuesReport,
};

use super::{failure, print};
use crate::args::GlobalArgs;
use crate::error::{self, CliError};
use crate::output::{self, Table, TextStyle};

pub(super) async fn assign(global: &GlobalArgs, bench: &ClaimModesBench, svg: &Path) -> Result<(), CliError> {
    let progress = |what: &str| output::note(global, TextStyle::Dim, what);
    let report = tenure_bench::claim_modes(bench, &progress).await.map_err(failure)?;
    std::fs::write(svg, tenure_bench::svg(&report)).map_err(|error| {
        CliError::new(
            error::INTERNAL_ERROR,
            format!("cannot write {}: {error}; set another file with --svg", svg.display()),
        )
    })?;
    print(global, &report, render_assign);
    output::note(global, TextStyle::Dim, &format!("chart written to {}", svg.display()));
    Ok(())
}

pub(super) async fn drain(global: &GlobalArgs, bench: &QueuesBench) -> Result<(), CliError> {
    let progress = |what: &str| output::note(global, TextStyle::Dim, what);
    let report = tenure_bench::queues(bench, &progress).await.map_err(failure)?;
    print(global, &report, render_drain);
    Ok(())
}

pub(super) async fn events(global: &GlobalArgs, bench: &EventsBench) -> Result<(), CliError> {
    let progress = |what: &str| output::note(global, TextStyle::Dim, what);
    let report = tenure_bench::events(bench, &progress).await.map_err(failure)?;
    print(global, &report, render_events);
    Ok(())
}

fn render_assign(report: &ClaimModesReport) -> String {
    let mut out = String::new();
    for mode in [AssignmentMode::Exclusive, AssignmentMode::Distributed] {
        let mut table = Table::new(&[
            mode.as_str(),
            "successful",
            "failed",
            "avg latency",
            "p95",
            "p99",
            "claims/s",
            "p99 ratio to distributed",
            "claims/s ratio to distributed",
        ]);
        let rows: Vec<_> = report.rows.iter().filter(|row| row.mode == mode).collect();
        if rows.is_empty() {
            continue;
        }
        for row in rows {
            let beside = report
                .row(AssignmentMode::Distributed, row.replicas)
                .filter(|_| mode == AssignmentMode::Exclusive);
            let judged = |ratio: Option<f64>, good: fn(f64) -> bool| match ratio {
                Some(ratio) => {
                    (format!("{ratio:.2}"), if good(ratio) { TextStyle::Green } else { TextStyle::Red })
                }
                None => ("–".to_owned(), TextStyle::Dim),
            };
            table.row(vec![
                (format!("{} replicas", row.replicas), TextStyle::Bold),
                (row.successful.to_string(), TextStyle::Plain),
                (row.failed.to_string(), if row.failed == 0 { TextStyle::Plain } else { TextStyle::Red }),
                (format!("{:.2} ms", row.average_ms), TextStyle::Plain),
                (format!("{:.2} ms", row.p95_ms), TextStyle::Plain),
                (format!("{:.2} ms", row.p99_ms), TextStyle::Plain),
                (format!("{:.0}", row.per_second), TextStyle::Plain),
                judged(beside.map(|it| row.p99_ms / it.p99_ms), |ratio| ratio <= 1.5),
                judged(beside.map(|it| row.per_second / it.per_second), |ratio| ratio >= 0.8),
            ]);
        }
        out.push_str(&table.render());
        out.push('\n');
    }
    for mode in [AssignmentMode::Exclusive, AssignmentMode::Distributed] {
        let of = |replicas: Option<usize>| report.row(mode, replicas?);
        let all = || report.rows.iter().filter(|row| row.mode == mode).map(|row| row.replicas);
        if let (Some(few), Some(many)) = (of(all().min()), of(all().max()))
            && few.replicas < many.replicas
        {
            out.push_str(&format!(
                "{}: ratio of average latency, {} replicas to {}: {:.2} (target ≤ 1.2)\n",
                mode.as_str(),
                many.replicas,
                few.replicas,
                many.average_ms / few.average_ms
            ));
        }
    }
    if let (Some(one), Some(hundred)) = (report.baseline_one, report.baseline_hundred) {
        out.push_str(&format!(
            "baseline with pgbench, claim and complete: {one:.0}/s one per statement, {hundred:.0}/s a hundred per statement\n"
        ));
    }
    out
}

fn render_drain(report: &QueuesReport) -> String {
    compared(&report.rows)
}

fn render_events(report: &EventsReport) -> String {
    compared(&report.rows)
}

pub(super) fn compared(rows: &[ComparisonRow]) -> String {
    let mut table = Table::new(&["measurement", "tenure", "baseline", "value", "ratio", "target"]);
    for row in rows {
        let figure = |value: f64| match row.unit {
            "ms" => format!("{value:.2} ms"),
            unit => format!("{value:.0} {unit}"),
        };
        let style = match row.is_met() {
            Some(true) => TextStyle::Green,
            Some(false) => TextStyle::Red,
            None => TextStyle::Plain,
        };
        let least = row.min_ratio.map(|aim| format!("≥ {aim}"));
        let aim = least.or_else(|| row.max_ratio.map(|aim| format!("≤ {aim}"))).unwrap_or_else(|| "–".into());
        let enough = row.sufficient.map(|enough| format!(" or {}", figure(enough))).unwrap_or_default();
        let missed = if row.is_met() == Some(false) { ", missed" } else { "" };
        table.row(vec![
            (row.operation.clone(), TextStyle::Bold),
            (figure(row.tenure), TextStyle::Plain),
            (row.baseline.clone(), TextStyle::Plain),
            (figure(row.baseline_value), TextStyle::Plain),
            (format!("{:.2}", row.ratio), style),
            (format!("{aim}{enough}{missed}"), TextStyle::Dim),
        ]);
    }
    table.render()
}
