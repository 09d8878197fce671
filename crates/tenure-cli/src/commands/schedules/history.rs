//! `tenure schedules history`: lists recent ticks.

use tenure::port::{TickCause, TickFilter, TickOutcome, TickView};
use tenure::rules::schedule::Zone;
use tenure::runtime::wall_ms;

use super::{describe, existing};
use crate::args::schedules::HistoryArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::watch_screen;
use crate::error::CliError;
use crate::output::{Table, TextStyle, ago, paint, span};
use crate::store;

/// Lateness above which a tick is highlighted.
const LATE_MS: i64 = 1_000;

pub(super) async fn run(global: &GlobalArgs, args: HistoryArgs) -> Result<u8, CliError> {
    let key = store::schedule(global, &args.schedule)?;
    let store = store::read(global).await?;
    let zone = existing(store.as_ref(), &key).await?.definition.time_zone;
    let before_ms = args.before.map(|point| point.in_zone(&zone, wall_ms()));
    let filter = TickFilter { key: key.clone(), before_ms, limit: args.limit };
    watch_screen::show(global, store.as_ref(), args.watch, async || {
        let ticks = store.ticks(&filter).await?;
        Ok(match global.output {
            OutputFormat::Json => watch_screen::json(&ticks),
            OutputFormat::Table if ticks.is_empty() => format!("{key} has no recorded ticks\n"),
            OutputFormat::Table => table(&zone, &ticks, wall_ms()) + &more(&zone, &ticks, filter.limit),
        })
    })
    .await
}

pub(super) fn table(zone: &Zone, ticks: &[TickView], now_ms: i64) -> String {
    let mut table = Table::new(&["tick", "outcome", "late", "decided", "token", "decided by", "result"])
        .right(&["late", "decided", "token"]);
    for tick in ticks {
        let late = match tick.state {
            TickOutcome::Skipped => ("–".to_owned(), TextStyle::Dim),
            _ if tick.cause != TickCause::Schedule => ("–".to_owned(), TextStyle::Dim),
            _ => (
                span(tick.lateness_ms.max(0).unsigned_abs()),
                if tick.lateness_ms > LATE_MS { TextStyle::Yellow } else { TextStyle::Plain },
            ),
        };
        let token = tick.token.map_or_else(|| "–".to_owned(), |token| token.to_string());
        table.row(vec![
            (tick_time(zone, tick), TextStyle::Bold),
            outcome(tick),
            late,
            (format!("{} ago", ago(tick.decided_at_ms, now_ms)), TextStyle::Dim),
            (token, TextStyle::Plain),
            (
                if tick.decided_by.is_empty() { "–".to_owned() } else { tick.decided_by.clone() },
                TextStyle::Plain,
            ),
            result(tick),
        ]);
    }
    table.render()
}

fn tick_time(zone: &Zone, tick: &TickView) -> String {
    match tick.first_tick_at_ms {
        Some(first) if tick.tick_count > 1 => {
            let last = describe::format_instant(zone, tick.tick_at_ms);
            format!("{} to {}", describe::format_instant(zone, first), last.get(4..).unwrap_or(&last))
        }
        _ => describe::format_instant(zone, tick.tick_at_ms),
    }
}

fn outcome(tick: &TickView) -> (String, TextStyle) {
    let word = tick.state.as_str();
    match (tick.state, tick.cause) {
        (TickOutcome::Skipped, _) if tick.tick_count > 1 => {
            (format!("{} {word}", describe::number(tick.tick_count)), TextStyle::Yellow)
        }
        (TickOutcome::Skipped | TickOutcome::Overlapped, _) => (word.to_owned(), TextStyle::Yellow),
        (TickOutcome::Fired, TickCause::Schedule) => (word.to_owned(), TextStyle::Green),
        (TickOutcome::Fired, cause) => (format!("{word}, {}", cause.as_str()), TextStyle::Green),
    }
}

fn result(tick: &TickView) -> (String, TextStyle) {
    match (tick.event_id, tick.task_id) {
        (Some(event), _) => (format!("event {event}"), TextStyle::Plain),
        (None, Some(task)) => (format!("task {task}"), TextStyle::Plain),
        (None, None) => ("–".to_owned(), TextStyle::Dim),
    }
}

fn more(zone: &Zone, ticks: &[TickView], limit: u32) -> String {
    match ticks.last() {
        Some(last) if ticks.len() >= limit as usize => {
            paint(&format!("… more: --before {}", zone.format_local(last.tick_at_ms)), TextStyle::Dim) + "\n"
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_listed_with_lateness_and_result() {
        let text = r#"[
            {"tick_at_ms": 1774747800000, "state": "fired", "cause": "schedule", "tick_count": 1, "decided_at_ms": 1774747800012,
             "lateness_ms": 12, "token": 7, "decided_by": "web-1", "task_id": 42},
            {"tick_at_ms": 1774661400000, "state": "skipped", "cause": "schedule", "tick_count": 1234,
             "first_tick_at_ms": 1668065400000, "decided_at_ms": 1774747800012, "lateness_ms": 0, "token": 7,
             "decided_by": "web-1"},
            {"tick_at_ms": 1668000000000, "state": "fired", "cause": "trigger", "tick_count": 1, "decided_at_ms": 1668000000000,
             "lateness_ms": 0, "token": null, "decided_by": "ada\u001b", "event_id": 9}]"#;
        let ticks: Vec<TickView> = serde_json::from_str(text).unwrap();
        let zone: Zone = "Europe/Berlin".parse().unwrap();
        let text = table(&zone, &ticks, 1_774_747_860_012);
        let wanted = "\
TICK                                                        OUTCOME         LATE       DECIDED  TOKEN  DECIDED BY  RESULT
Sun 2026-03-29 03:30:00+02:00                               fired           12ms     1m00s ago      7  web-1       task 42
Thu 2022-11-10 08:30:00+01:00 to 2026-03-28 02:30:00+01:00  1,234 skipped      –     1m00s ago      7  web-1       –
Wed 2022-11-09 14:20:00+01:00                               fired, trigger     –  1235d12h ago      –  ada\\u{1b}   event 9
";
        assert_eq!(text, wanted);
        assert!(more(&zone, &ticks, 3).contains("--before 2022-11-09T14:20:00+01:00"));
    }
}
