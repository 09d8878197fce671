//! `tenure bench assign`, `tenure bench drain` and `tenure bench events`.

use std::path::Path;

use tenure::port::Mode;
use tenure_bench::{AssignBench, AssignReport, Compared, DrainBench, DrainReport, EventsBench, EventsReport};

use super::{failure, print};
use crate::args::Global;
use crate::exit::{self, Failure};
use crate::output::{self, Ink, Table};

pub(super) async fn assign(global: &Global, bench: &AssignBench, svg: &Path) -> Result<(), Failure> {
    let progress = |what: &str| output::note(global, Ink::Dim, what);
    let report = tenure_bench::assign(bench, &progress).await.map_err(failure)?;
    std::fs::write(svg, tenure_bench::svg(&report)).map_err(|error| {
        Failure::new(
            exit::OWN_FAILURE,
            format!("cannot write {}: {error}; name another file with --svg", svg.display()),
        )
    })?;
    print(global, &report, render_assign);
    output::note(global, Ink::Dim, &format!("drawn in {}", svg.display()));
    Ok(())
}

pub(super) async fn drain(global: &Global, bench: &DrainBench) -> Result<(), Failure> {
    let progress = |what: &str| output::note(global, Ink::Dim, what);
    let report = tenure_bench::drain(bench, &progress).await.map_err(failure)?;
    print(global, &report, render_drain);
    Ok(())
}

pub(super) async fn events(global: &Global, bench: &EventsBench) -> Result<(), Failure> {
    let progress = |what: &str| output::note(global, Ink::Dim, what);
    let report = tenure_bench::events(bench, &progress).await.map_err(failure)?;
    print(global, &report, render_events);
    Ok(())
}

fn render_assign(report: &AssignReport) -> String {
    let mut out = String::new();
    for mode in [Mode::Exclusive, Mode::Distributed] {
        let mut table = Table::new(&[
            mode.as_str(),
            "successful",
            "failed",
            "avg latency",
            "p95",
            "p99",
            "claims/s",
            "p99 to distributed",
            "claims/s to distributed",
        ]);
        let rows: Vec<_> = report.rows.iter().filter(|row| row.mode == mode).collect();
        if rows.is_empty() {
            continue;
        }
        for row in rows {
            let beside = report.row(Mode::Distributed, row.replicas).filter(|_| mode == Mode::Exclusive);
            let judged = |ratio: Option<f64>, good: fn(f64) -> bool| match ratio {
                Some(ratio) => (format!("{ratio:.2}"), if good(ratio) { Ink::Green } else { Ink::Red }),
                None => ("–".to_owned(), Ink::Dim),
            };
            table.row(vec![
                (format!("{} replicas", row.replicas), Ink::Bold),
                (row.successful.to_string(), Ink::Plain),
                (row.failed.to_string(), if row.failed == 0 { Ink::Plain } else { Ink::Red }),
                (format!("{:.2} ms", row.average_ms), Ink::Plain),
                (format!("{:.2} ms", row.p95_ms), Ink::Plain),
                (format!("{:.2} ms", row.p99_ms), Ink::Plain),
                (format!("{:.0}", row.per_second), Ink::Plain),
                judged(beside.map(|it| row.p99_ms / it.p99_ms), |ratio| ratio <= 1.5),
                judged(beside.map(|it| row.per_second / it.per_second), |ratio| ratio >= 0.8),
            ]);
        }
        out.push_str(&table.render());
        out.push('\n');
    }
    for mode in [Mode::Exclusive, Mode::Distributed] {
        let of = |replicas: Option<usize>| report.row(mode, replicas?);
        let all = || report.rows.iter().filter(|row| row.mode == mode).map(|row| row.replicas);
        if let (Some(few), Some(many)) = (of(all().min()), of(all().max()))
            && few.replicas < many.replicas
        {
            out.push_str(&format!(
                "{}: average latency of {} replicas to that of {}: {:.2} (aim ≤ 1.2)\n",
                mode.as_str(),
                many.replicas,
                few.replicas,
                many.average_ms / few.average_ms
            ));
        }
    }
    if let (Some(one), Some(hundred)) = (report.bare_one, report.bare_hundred) {
        out.push_str(&format!(
            "beside, by pgbench, claim and complete: {one:.0}/s one per statement, {hundred:.0}/s a hundred per statement\n"
        ));
    }
    out
}

fn render_drain(report: &DrainReport) -> String {
    compared(&report.rows)
}

fn render_events(report: &EventsReport) -> String {
    compared(&report.rows)
}

pub(super) fn compared(rows: &[Compared]) -> String {
    let mut table = Table::new(&["measured", "tenure", "beside", "figure", "ratio", "aim"]);
    for row in rows {
        let figure = |value: f64| match row.unit {
            "ms" => format!("{value:.2} ms"),
            unit => format!("{value:.0} {unit}"),
        };
        let ink = match row.holds() {
            Some(true) => Ink::Green,
            Some(false) => Ink::Red,
            None => Ink::Plain,
        };
        let least = row.at_least.map(|aim| format!("≥ {aim}"));
        let aim = least.or_else(|| row.at_most.map(|aim| format!("≤ {aim}"))).unwrap_or_else(|| "–".into());
        let enough = row.enough.map(|enough| format!(" or {}", figure(enough))).unwrap_or_default();
        let missed = if row.holds() == Some(false) { ", missed" } else { "" };
        table.row(vec![
            (row.what.clone(), Ink::Bold),
            (figure(row.tenure), Ink::Plain),
            (row.bare.clone(), Ink::Plain),
            (figure(row.beside), Ink::Plain),
            (format!("{:.2}", row.ratio), ink),
            (format!("{aim}{enough}{missed}"), Ink::Dim),
        ]);
    }
    table.render()
}
