//! `tenure schedule next`: the ticks to come, on their wall clock.

use serde::Serialize;
use tenure::Name;
use tenure::port::ScheduleView;
use tenure::runtime::wall_ms;
use tenure::schedule::{Definition, Target, Timetable, Zone};

use super::{existing, words};
use crate::args::schedules::NextArgs;
use crate::args::{Format, Global};
use crate::exit::Failure;
use crate::output::{self, Ink, Table, ago, paint, span};
use crate::store;

/// A tick to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Coming {
    at_ms: i64,
    /// On the wall clock.
    at: String,
    /// Later by its jitter.
    due_ms: i64,
}

pub(super) async fn run(global: &Global, args: NextArgs) -> Result<u8, Failure> {
    let count = args.count as usize;
    let (definition, ticks) = match (args.when, args.name) {
        (Some(when), _) => {
            // No schedule, and no store: a name and a target stand in for it.
            let target = Target::Call { url: "http://nowhere".to_owned() };
            let mut definition = Definition::new("preview".parse()?, when, target);
            definition.zone = args.zone.unwrap_or_default();
            let from = args.from.map_or_else(wall_ms, |from| from.in_zone(&definition.zone, wall_ms()));
            let definition = definition.started(from);
            definition.check().map_err(|error| Failure::usage(error.to_string()))?;
            let ticks =
                ticks(&definition.timetable(&Name::default_namespace()), &definition.zone, from, count);
            (definition, ticks)
        }
        (None, name) => {
            let key = store::schedule(global, &name.unwrap_or_default())?;
            let store = store::read(global).await?;
            let view = existing(store.as_ref(), &key).await?;
            let ticks = match args.from.map(|from| from.in_zone(&view.definition.zone, wall_ms())) {
                Some(from) => {
                    ticks(&view.definition.timetable(&view.namespace), &view.definition.zone, from, count)
                }
                None => ticks_of(&view, count),
            };
            if global.output == Format::Table {
                headline(&view);
            }
            (view.definition, ticks)
        }
    };
    match global.output {
        Format::Json => output::print_json(&ticks),
        Format::Table if ticks.is_empty() => output::print_line("no tick is left"),
        Format::Table => {
            let now_ms = wall_ms();
            let since = args.from.map_or(now_ms, |from| from.in_zone(&definition.zone, now_ms));
            output::print_text(&table(&definition, &ticks, since, now_ms));
        }
    }
    Ok(0)
}

/// What is shown holds only if it is resumed.
fn headline(view: &ScheduleView) {
    let paused = if view.paused.is_some() { paint("  paused", Ink::Yellow) } else { String::new() };
    let name = paint(view.definition.name.as_str(), Ink::Bold);
    output::print_line(&format!("{name}  {}{paused}\n", words::times(&view.definition)));
}

/// The next ticks of a schedule as it stands.
pub(super) fn ticks_of(view: &ScheduleView, count: usize) -> Vec<Coming> {
    let timetable = view.definition.timetable(&view.namespace);
    view.upcoming(count).into_iter().map(|at_ms| coming(&timetable, &view.definition.zone, at_ms)).collect()
}

fn ticks(timetable: &Timetable, zone: &Zone, from: i64, count: usize) -> Vec<Coming> {
    timetable.ticks_from(from).take(count).map(|at_ms| coming(timetable, zone, at_ms)).collect()
}

fn coming(timetable: &Timetable, zone: &Zone, at_ms: i64) -> Coming {
    Coming { at_ms, at: zone.shown(at_ms), due_ms: timetable.due_at(at_ms) }
}

/// As a table: where the wall clock is set, from `since_ms` on, is marked.
pub(super) fn table(definition: &Definition, ticks: &[Coming], since_ms: i64, now_ms: i64) -> String {
    if ticks.is_empty() {
        return String::new();
    }
    let zone = &definition.zone;
    let jitters = definition.jitter_ms > 0;
    let mut header = vec!["next", "in", ""];
    if jitters {
        header.insert(1, "jitter");
    }
    let mut table = Table::new(&header).right(&["in", "jitter"]);
    let mut before = since_ms;
    for tick in ticks {
        let wait = match tick.due_ms > now_ms {
            true => (ago(now_ms, tick.due_ms), Ink::Plain),
            false => (format!("{} late", ago(tick.due_ms, now_ms)), Ink::Yellow),
        };
        let jump = words::jump(zone, before, tick.at_ms).unwrap_or_default();
        let mut row = vec![(words::on_clock(zone, tick.at_ms), Ink::Bold), wait, (jump, Ink::Yellow)];
        if jitters {
            row.insert(1, (format!("+{}", span(tick.due_ms.abs_diff(tick.at_ms))), Ink::Dim));
        }
        table.row(row);
        before = tick.at_ms;
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::sample;
    use super::*;

    #[test]
    fn a_jump_of_the_clock_is_marked() {
        let (view, now) = (sample(), 1_774_747_800_000 - 3_600_000);
        let told = table(&view.definition, &ticks_of(&view, 2), now, now);
        let wanted = "\
NEXT                              IN
Sun 2026-03-29 03:30:00+02:00  1h00m  the clock was set ahead by 1h
Mon 2026-03-30 02:30:00+02:00  1d00h
";
        assert_eq!(told, wanted);
        let late = table(&view.definition, &ticks_of(&view, 1), now, 1_774_747_801_000);
        assert!(late.contains("1s late"), "{late}");
    }
}
