//! Report of `tenure bench schedules`.

use tenure_bench::{SchedulesBench, SchedulesReport};

use super::claims::compared;
use super::{failure, print};
use crate::args::GlobalArgs;
use crate::error::CliError;
use crate::output::{self, Table, TextStyle};

pub(super) async fn run(global: &GlobalArgs, bench: &SchedulesBench) -> Result<(), CliError> {
    let progress = |what: &str| output::note(global, TextStyle::Dim, what);
    let report = tenure_bench::schedules(bench, &progress).await.map_err(failure)?;
    print(global, &report, render);
    Ok(())
}

fn render(report: &SchedulesReport) -> String {
    let judged = |good: bool| if good { TextStyle::Green } else { TextStyle::Red };
    let mut steady = Table::new(&["steady rate", "ticks", "skipped", "late p50", "p99", "max", "target p99"])
        .right(&["ticks", "skipped", "late p50", "p99", "max"]);
    for late in &report.lateness {
        let missed = if late.p99_ms <= late.p99_limit_ms { "" } else { ", missed" };
        steady.row(vec![
            (format!("{} ticks/s", late.per_second), TextStyle::Bold),
            (late.ticks.to_string(), TextStyle::Plain),
            (late.skipped.to_string(), judged(late.skipped == 0)),
            (format!("{:.0} ms", late.p50_ms), TextStyle::Plain),
            (format!("{:.0} ms", late.p99_ms), judged(late.p99_ms <= late.p99_limit_ms)),
            (format!("{:.0} ms", late.max_ms), TextStyle::Plain),
            (format!("≤ {:.0} ms{missed}", late.p99_limit_ms), TextStyle::Dim),
        ]);
    }
    let mut idle =
        Table::new(&["idle", "statements/s", "cpu of one core"]).right(&["statements/s", "cpu of one core"]);
    for cost in &report.idle {
        let statements =
            cost.statements_per_second.map_or_else(|| "–".to_owned(), |rate| format!("{rate:.2}"));
        idle.row(vec![
            (format!("{} schedules", cost.schedules), TextStyle::Bold),
            (statements, TextStyle::Plain),
            (format!("{:.2} %", cost.cpu_percent), TextStyle::Plain),
        ]);
    }
    format!("{}\n{}\n{}", compared(&report.rows), steady.render(), idle.render())
}
