//! `tenure schedule history`: what became of the last ticks.

use tenure::port::{Cause, TickFilter, TickState, TickView};
use tenure::runtime::wall_ms;
use tenure::schedule::Zone;

use super::{existing, words};
use crate::args::schedules::HistoryArgs;
use crate::args::{Format, Global};
use crate::commands::screen;
use crate::exit::Failure;
use crate::output::{Ink, Table, ago, paint, span};
use crate::store;

/// How late a tick may be without being remarkable.
const REMARKABLE_MS: i64 = 1_000;

pub(super) async fn run(global: &Global, args: HistoryArgs) -> Result<u8, Failure> {
    let key = store::schedule(global, &args.name)?;
    let store = store::read(global).await?;
    let zone = existing(store.as_ref(), &key).await?.definition.zone;
    let before_ms = args.before.map(|point| point.in_zone(&zone, wall_ms()));
    let filter = TickFilter { key: key.clone(), before_ms, limit: args.limit };
    screen::show(global, store.as_ref(), args.watch, async || {
        let ticks = store.ticks(&filter).await?;
        Ok(match global.output {
            Format::Json => screen::json(&ticks),
            Format::Table if ticks.is_empty() => format!("no tick of {key} is remembered\n"),
            Format::Table => table(&zone, &ticks, wall_ms()) + &more(&zone, &ticks, filter.limit),
        })
    })
    .await
}

pub(super) fn table(zone: &Zone, ticks: &[TickView], now_ms: i64) -> String {
    let mut table = Table::new(&["tick", "became", "late", "decided", "token", "by", "made"])
        .right(&["late", "decided", "token"]);
    for tick in ticks {
        let late = match tick.state {
            TickState::Skipped => ("–".to_owned(), Ink::Dim),
            _ if tick.cause != Cause::Clock => ("–".to_owned(), Ink::Dim),
            _ => (
                span(tick.late_ms.max(0).unsigned_abs()),
                if tick.late_ms > REMARKABLE_MS { Ink::Yellow } else { Ink::Plain },
            ),
        };
        let token = tick.token.map_or_else(|| "–".to_owned(), |token| token.to_string());
        table.row(vec![
            (when(zone, tick), Ink::Bold),
            became(tick),
            late,
            (format!("{} ago", ago(tick.decided_ms, now_ms)), Ink::Dim),
            (token, Ink::Plain),
            (if tick.by.is_empty() { "–".to_owned() } else { tick.by.clone() }, Ink::Plain),
            made(tick),
        ]);
    }
    table.render()
}

fn when(zone: &Zone, tick: &TickView) -> String {
    match tick.first_ms {
        Some(first) if tick.count > 1 => {
            let last = words::on_clock(zone, tick.at_ms);
            format!("{} to {}", words::on_clock(zone, first), last.get(4..).unwrap_or(&last))
        }
        _ => words::on_clock(zone, tick.at_ms),
    }
}

fn became(tick: &TickView) -> (String, Ink) {
    let word = tick.state.as_str();
    match (tick.state, tick.cause) {
        (TickState::Skipped, _) if tick.count > 1 => {
            (format!("{} {word}", words::number(tick.count)), Ink::Yellow)
        }
        (TickState::Skipped | TickState::Overlapped, _) => (word.to_owned(), Ink::Yellow),
        (TickState::Fired, Cause::Clock) => (word.to_owned(), Ink::Green),
        (TickState::Fired, cause) => (format!("{word}, {}", cause.as_str()), Ink::Green),
    }
}

fn made(tick: &TickView) -> (String, Ink) {
    match (tick.event, tick.task) {
        (Some(event), _) => (format!("event {event}"), Ink::Plain),
        (None, Some(task)) => (format!("task {task}"), Ink::Plain),
        (None, None) => ("–".to_owned(), Ink::Dim),
    }
}

fn more(zone: &Zone, ticks: &[TickView], limit: u32) -> String {
    match ticks.last() {
        Some(last) if ticks.len() >= limit as usize => {
            paint(&format!("… older ones: --before {}", zone.shown(last.at_ms)), Ink::Dim) + "\n"
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_told_with_their_lateness_and_what_they_made() {
        let text = r#"[
            {"at_ms": 1774747800000, "state": "fired", "cause": "clock", "count": 1, "decided_ms": 1774747800012, "late_ms": 12,
             "token": 7, "by": "web-1", "task": 42},
            {"at_ms": 1774661400000, "state": "skipped", "cause": "clock", "count": 1234, "first_ms": 1668065400000,
             "decided_ms": 1774747800012, "late_ms": 0, "token": 7, "by": "web-1"},
            {"at_ms": 1668000000000, "state": "fired", "cause": "trigger", "count": 1, "decided_ms": 1668000000000, "late_ms": 0,
             "token": null, "by": "ada\u001b", "event": 9}]"#;
        let ticks: Vec<TickView> = serde_json::from_str(text).unwrap();
        let zone: Zone = "Europe/Berlin".parse().unwrap();
        let told = table(&zone, &ticks, 1_774_747_860_012);
        let wanted = "\
TICK                                                        BECAME          LATE       DECIDED  TOKEN  BY         MADE
Sun 2026-03-29 03:30:00+02:00                               fired           12ms     1m00s ago      7  web-1      task 42
Thu 2022-11-10 08:30:00+01:00 to 2026-03-28 02:30:00+01:00  1,234 skipped      –     1m00s ago      7  web-1      –
Wed 2022-11-09 14:20:00+01:00                               fired, trigger     –  1235d12h ago      –  ada\\u{1b}  event 9
";
        assert_eq!(told, wanted);
        assert!(more(&zone, &ticks, 3).contains("--before 2022-11-09T14:20:00+01:00"));
    }
}
