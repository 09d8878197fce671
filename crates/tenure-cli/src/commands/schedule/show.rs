//! `tenure schedule show`: one schedule, what is next and what was last.

use serde_json::json;
use tenure::port::{ScheduleView, TickFilter, TickView};
use tenure::runtime::wall_ms;

use super::{existing, history, next, words};
use crate::args::{Format, Global};
use crate::commands::screen;
use crate::exit::Failure;
use crate::output::{Ink, Table, ago, paint, plain, span};
use crate::store;

/// How many ticks to come, and of the past, are shown.
const TICKS: usize = 5;

/// How much of a payload is shown to people.
const SHOWN: usize = 200;

pub(super) async fn run(global: &Global, name: &str, watch: bool) -> Result<u8, Failure> {
    let key = store::schedule(global, name)?;
    let store = store::read(global).await?;
    screen::show(global, store.as_ref(), watch, async || {
        let view = existing(store.as_ref(), &key).await?;
        let filter = TickFilter { key: key.clone(), before_ms: None, limit: TICKS as u32 };
        let ticks = store.ticks(&filter).await?;
        Ok(match global.output {
            Format::Json => {
                let mut value = serde_json::to_value(&view).unwrap_or_default();
                value["next"] = json!(next::ticks_of(&view, TICKS));
                value["last"] = json!(ticks);
                screen::json(&value)
            }
            Format::Table => picture(&view, &ticks, wall_ms()),
        })
    })
    .await
}

fn picture(view: &ScheduleView, ticks: &[TickView], now_ms: i64) -> String {
    let (mut word, ink) = words::state(view, now_ms);
    if let Some(pause) = &view.paused {
        let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
        word = plain(&format!("paused by {} {} ago{reason}", pause.by, ago(pause.at_ms, now_ms)));
    }
    let counts = format!(
        "{} fired, {} skipped, {} overlapped",
        words::number(view.fired),
        words::number(view.skipped),
        words::number(view.overlapped)
    );
    let mut text =
        format!("{}  {}  {counts}\n", paint(&view.key().to_string(), Ink::Bold), paint(&word, ink),);
    if let Some(trouble) = &view.trouble {
        let again =
            view.due_ms.map(|due| format!(" (tried again in {})", ago(now_ms, due))).unwrap_or_default();
        text += &format!("{}{}\n", paint(&plain(trouble), Ink::Red), paint(&again, Ink::Dim));
    }
    text += &format!("\n{}", facts(view, now_ms));
    let coming = next::table(&view.definition, &next::ticks_of(view, TICKS), now_ms, now_ms);
    if !coming.is_empty() {
        text += &format!("\n{coming}");
    }
    if !ticks.is_empty() {
        text += &format!("\n{}", history::table(&view.definition.zone, ticks, now_ms));
    }
    text
}

fn facts(view: &ScheduleView, now_ms: i64) -> String {
    let definition = &view.definition;
    let timetable = definition.timetable(&view.namespace);
    let clock = |at: i64| words::on_clock(&definition.zone, at);
    let mut facts = vec![("when", words::times(definition)), ("does", words::target(&definition.target))];
    facts.extend(words::details(&definition.target));
    facts.push(("with", words::payload(definition, SHOWN)));
    facts.push(("missed ticks", definition.misfire.to_string()));
    if definition.zone.as_str() != "UTC" {
        facts.push(("clock changes", words::jumps(&timetable)));
    }
    let overlap = serde_json::to_value(definition.overlap).unwrap_or_default();
    facts.push(("overlapping runs", overlap.as_str().unwrap_or_default().to_owned()));
    if definition.jitter_ms > 0 {
        facts.push(("jitter", format!("up to {}", span(definition.jitter_ms))));
    }
    facts.extend(definition.start_ms.map(|at| ("from", clock(at))));
    facts.extend(definition.end_ms.map(|at| ("until", clock(at))));
    if matches!(definition.target, tenure::schedule::Target::Call { .. }) {
        facts.push(("signed", if view.signed { "yes" } else { "no" }.to_owned()));
    }
    facts.extend(view.source.clone().map(|source| ("comes from", source)));
    let since = ago(view.updated_ms, now_ms);
    facts.push(("version", format!("{}, by {} {since} ago", view.version, view.updated_by)));
    let mut table = Table::plain();
    for (name, value) in facts {
        table.row(vec![(name.to_owned(), Ink::Dim), (value, Ink::Plain)]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::sample;
    use super::*;

    #[test]
    fn a_schedule_is_told_with_what_is_next() {
        let now = 1_774_747_800_000 - 3_600_000;
        let told = picture(&sample(), &[], now);
        let wanted = "\
nightly  on  1,234 fired, 2 skipped, 0 overlapped

when              30 2 * * * in Europe/Berlin
does              task in reports
kind              nightly
longest run       1h
with              {\"full\": true}
missed ticks      fire_once
clock changes     left out: shift, shown twice: first
overlapping runs  skip
comes from        billing
version           3, by ada@box 8d14h ago

NEXT                              IN
Sun 2026-03-29 03:30:00+02:00  1h00m  the clock was set ahead by 1h
Mon 2026-03-30 02:30:00+02:00  1d00h
Tue 2026-03-31 02:30:00+02:00  2d00h
Wed 2026-04-01 02:30:00+02:00  3d00h
Thu 2026-04-02 02:30:00+02:00  4d00h
";
        assert_eq!(told, wanted);
        let mut troubled = sample();
        troubled.trouble = Some("there is no topic \u{1b}".into());
        let told = picture(&troubled, &[], now);
        assert!(
            told.contains("cannot fire") && told.contains("there is no topic \\u{1b} (tried again in 1h00m)"),
            "{told}"
        );
    }
}
