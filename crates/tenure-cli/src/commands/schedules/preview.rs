//! `tenure schedules preview`: upcoming ticks in the time zone of the schedule.

use serde::Serialize;
use tenure::Name;
use tenure::port::ScheduleView;
use tenure::rules::schedule::{ScheduleDefinition, ScheduleTarget, Timetable, Zone};
use tenure::runtime::wall_ms;

use super::{describe, existing};
use crate::args::schedules::PreviewArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, ago, paint, span};
use crate::store;

/// An upcoming tick.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct UpcomingTick {
    tick_at_ms: i64,
    /// RFC 3339 in the time zone of the schedule.
    local_time: String,
    /// The tick plus its jitter.
    due_at_ms: i64,
}

pub(super) async fn run(global: &GlobalArgs, args: PreviewArgs) -> Result<u8, CliError> {
    let count = args.limit as usize;
    let (definition, ticks) = match (args.expression, args.schedule) {
        (Some(when), _) => {
            // Without a stored schedule, use a placeholder name and target.
            let target = ScheduleTarget::Webhook { url: "http://nowhere".to_owned() };
            let mut definition = ScheduleDefinition::new("preview".parse()?, when, target);
            definition.time_zone = args.time_zone.unwrap_or_default();
            let from = args.from.map_or_else(wall_ms, |from| from.in_zone(&definition.time_zone, wall_ms()));
            let definition = definition.started(from);
            definition.check().map_err(|error| CliError::usage(error.to_string()))?;
            let ticks =
                ticks(&definition.timetable(&Name::default_namespace()), &definition.time_zone, from, count);
            (definition, ticks)
        }
        (None, name) => {
            let key = store::schedule(global, &name.unwrap_or_default())?;
            let store = store::read(global).await?;
            let view = existing(store.as_ref(), &key).await?;
            let ticks = match args.from.map(|from| from.in_zone(&view.definition.time_zone, wall_ms())) {
                Some(from) => ticks(
                    &view.definition.timetable(&view.namespace),
                    &view.definition.time_zone,
                    from,
                    count,
                ),
                None => ticks_of(&view, count),
            };
            if global.output == OutputFormat::Table {
                headline(&view);
            }
            (view.definition, ticks)
        }
    };
    match global.output {
        OutputFormat::Json => output::print_json(&ticks),
        OutputFormat::Table if ticks.is_empty() => output::print_line("no upcoming ticks"),
        OutputFormat::Table => {
            let now_ms = wall_ms();
            let since = args.from.map_or(now_ms, |from| from.in_zone(&definition.time_zone, now_ms));
            output::print_text(&table(&definition, &ticks, since, now_ms));
        }
    }
    Ok(0)
}

/// Prints the name and expression, and whether the schedule is paused.
fn headline(view: &ScheduleView) {
    let paused = if view.paused.is_some() { paint("  paused", TextStyle::Yellow) } else { String::new() };
    let name = paint(view.definition.name.as_str(), TextStyle::Bold);
    output::print_line(&format!("{name}  {}{paused}\n", describe::expression(&view.definition)));
}

/// The next ticks of a stored schedule, missed ones included.
pub(super) fn ticks_of(view: &ScheduleView, count: usize) -> Vec<UpcomingTick> {
    let timetable = view.definition.timetable(&view.namespace);
    view.upcoming(count)
        .into_iter()
        .map(|at_ms| upcoming_tick(&timetable, &view.definition.time_zone, at_ms))
        .collect()
}

fn ticks(timetable: &Timetable, zone: &Zone, from: i64, count: usize) -> Vec<UpcomingTick> {
    timetable.ticks_from(from).take(count).map(|at_ms| upcoming_tick(timetable, zone, at_ms)).collect()
}

fn upcoming_tick(timetable: &Timetable, zone: &Zone, at_ms: i64) -> UpcomingTick {
    UpcomingTick {
        tick_at_ms: at_ms,
        local_time: zone.format_local(at_ms),
        due_at_ms: timetable.due_at(at_ms),
    }
}

/// Table of ticks. Marks changes of the UTC offset from `since_ms` on.
pub(super) fn table(
    definition: &ScheduleDefinition,
    ticks: &[UpcomingTick],
    since_ms: i64,
    now_ms: i64,
) -> String {
    if ticks.is_empty() {
        return String::new();
    }
    let zone = &definition.time_zone;
    let jitters = definition.jitter_ms > 0;
    let mut header = vec!["next", "in", ""];
    if jitters {
        header.insert(1, "jitter");
    }
    let mut table = Table::new(&header).right(&["in", "jitter"]);
    let mut before = since_ms;
    for tick in ticks {
        let wait = match tick.due_at_ms > now_ms {
            true => (ago(now_ms, tick.due_at_ms), TextStyle::Plain),
            false => (format!("{} late", ago(tick.due_at_ms, now_ms)), TextStyle::Yellow),
        };
        let jump = describe::offset_change(zone, before, tick.tick_at_ms).unwrap_or_default();
        let mut row = vec![
            (describe::format_instant(zone, tick.tick_at_ms), TextStyle::Bold),
            wait,
            (jump, TextStyle::Yellow),
        ];
        if jitters {
            row.insert(1, (format!("+{}", span(tick.due_at_ms.abs_diff(tick.tick_at_ms))), TextStyle::Dim));
        }
        table.row(row);
        before = tick.tick_at_ms;
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::sample;
    use super::*;

    #[test]
    fn a_change_of_the_utc_offset_is_marked() {
        let (view, now) = (sample(), 1_774_747_800_000 - 3_600_000);
        let text = table(&view.definition, &ticks_of(&view, 2), now, now);
        let wanted = "\
NEXT                              IN
Sun 2026-03-29 03:30:00+02:00  1h00m  the clock moves forward by 1h
Mon 2026-03-30 02:30:00+02:00  1d00h
";
        assert_eq!(text, wanted);
        let late = table(&view.definition, &ticks_of(&view, 1), now, 1_774_747_801_000);
        assert!(late.contains("1s late"), "{late}");
    }
}
