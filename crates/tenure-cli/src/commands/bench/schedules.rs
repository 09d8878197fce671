//! Schedules, as they were measured.

use tenure_bench::{SchedulesBench, SchedulesReport};

use super::claims::compared;
use super::{failure, print};
use crate::args::Global;
use crate::exit::Failure;
use crate::output::{self, Ink, Table};

pub(super) async fn run(global: &Global, bench: &SchedulesBench) -> Result<(), Failure> {
    let progress = |what: &str| output::note(global, Ink::Dim, what);
    let report = tenure_bench::schedules(bench, &progress).await.map_err(failure)?;
    print(global, &report, render);
    Ok(())
}

fn render(report: &SchedulesReport) -> String {
    let judged = |good: bool| if good { Ink::Green } else { Ink::Red };
    let mut steady = Table::new(&["steady", "ticks", "skipped", "late, p50", "p99", "most", "aim of p99"])
        .right(&["ticks", "skipped", "late, p50", "p99", "most"]);
    for late in &report.lateness {
        let missed = if late.p99_ms <= late.aim_ms { "" } else { ", missed" };
        steady.row(vec![
            (format!("{} ticks/s", late.per_second), Ink::Bold),
            (late.ticks.to_string(), Ink::Plain),
            (late.skipped.to_string(), judged(late.skipped == 0)),
            (format!("{:.0} ms", late.p50_ms), Ink::Plain),
            (format!("{:.0} ms", late.p99_ms), judged(late.p99_ms <= late.aim_ms)),
            (format!("{:.0} ms", late.most_ms), Ink::Plain),
            (format!("≤ {:.0} ms{missed}", late.aim_ms), Ink::Dim),
        ]);
    }
    let mut idle = Table::new(&["none due", "statements/s", "cpu of one core"])
        .right(&["statements/s", "cpu of one core"]);
    for cost in &report.idle {
        let statements =
            cost.statements_per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.2}"));
        idle.row(vec![
            (format!("{} schedules", cost.schedules), Ink::Bold),
            (statements, Ink::Plain),
            (format!("{:.2} %", cost.cpu_percent), Ink::Plain),
        ]);
    }
    format!("{}\n{}\n{}", compared(&report.rows), steady.render(), idle.render())
}
