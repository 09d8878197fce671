//! `tenure schedules show`: definition, state, upcoming and recent ticks of a schedule.

use serde_json::json;
use tenure::port::{ScheduleView, TickFilter, TickView};
use tenure::runtime::wall_ms;

use super::{describe, existing, history, preview};
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::watch_screen;
use crate::error::CliError;
use crate::output::{Table, TextStyle, ago, paint, plain, span};
use crate::store;

/// Number of upcoming ticks and of recent ticks.
const TICKS: usize = 5;

/// Maximum printed length of a payload.
const SHOWN: usize = 200;

pub(super) async fn run(global: &GlobalArgs, name: &str, watch: bool) -> Result<u8, CliError> {
    let key = store::schedule(global, name)?;
    let store = store::read(global).await?;
    watch_screen::show(global, store.as_ref(), watch, async || {
        let view = existing(store.as_ref(), &key).await?;
        let filter = TickFilter { key: key.clone(), before_ms: None, limit: TICKS as u32 };
        let ticks = store.ticks(&filter).await?;
        Ok(match global.output {
            OutputFormat::Json => {
                let mut value = serde_json::to_value(&view).unwrap_or_default();
                value["upcoming"] = json!(preview::ticks_of(&view, TICKS));
                value["ticks"] = json!(ticks);
                watch_screen::json(&value)
            }
            OutputFormat::Table => render_schedule(&view, &ticks, wall_ms()),
        })
    })
    .await
}

fn render_schedule(view: &ScheduleView, ticks: &[TickView], now_ms: i64) -> String {
    let (mut word, style) = describe::state(view, now_ms);
    if let Some(pause) = &view.paused {
        let reason = if pause.reason.is_empty() { String::new() } else { format!(": {}", pause.reason) };
        word =
            plain(&format!("paused by {} {} ago{reason}", pause.paused_by, ago(pause.paused_at_ms, now_ms)));
    }
    let counts = format!(
        "{} fired, {} skipped, {} overlapped",
        describe::number(view.fired_count),
        describe::number(view.skipped_count),
        describe::number(view.overlapped_count)
    );
    let mut text =
        format!("{}  {}  {counts}\n", paint(&view.key().to_string(), TextStyle::Bold), paint(&word, style),);
    if let Some(trouble) = &view.last_error {
        let again = view.due_at_ms.map(|due| format!(" (retry in {})", ago(now_ms, due))).unwrap_or_default();
        text += &format!("{}{}\n", paint(&plain(trouble), TextStyle::Red), paint(&again, TextStyle::Dim));
    }
    text += &format!("\n{}", facts(view, now_ms));
    let upcoming = preview::table(&view.definition, &preview::ticks_of(view, TICKS), now_ms, now_ms);
    if !upcoming.is_empty() {
        text += &format!("\n{upcoming}");
    }
    if !ticks.is_empty() {
        text += &format!("\n{}", history::table(&view.definition.time_zone, ticks, now_ms));
    }
    text
}

fn facts(view: &ScheduleView, now_ms: i64) -> String {
    let definition = &view.definition;
    let timetable = definition.timetable(&view.namespace);
    let clock = |at: i64| describe::format_instant(&definition.time_zone, at);
    let mut facts = vec![
        ("expression", describe::expression(definition)),
        ("target", describe::target(&definition.target)),
    ];
    facts.extend(describe::details(&definition.target));
    facts.push(("payload", describe::payload(definition, SHOWN)));
    facts.push(("misfire policy", definition.misfire_policy.to_string()));
    if definition.time_zone.as_str() != "UTC" {
        facts.push(("dst policy", describe::dst_policies(&timetable)));
    }
    let overlap = serde_json::to_value(definition.overlap_policy).unwrap_or_default();
    facts.push(("overlap policy", overlap.as_str().unwrap_or_default().to_owned()));
    if definition.jitter_ms > 0 {
        facts.push(("jitter", format!("up to {}", span(definition.jitter_ms))));
    }
    facts.extend(definition.start_at_ms.map(|at| ("start at", clock(at))));
    facts.extend(definition.end_at_ms.map(|at| ("end at", clock(at))));
    if matches!(definition.target, tenure::rules::schedule::ScheduleTarget::Webhook { .. }) {
        facts.push(("webhook signed", if view.webhook_signed { "yes" } else { "no" }.to_owned()));
    }
    facts.extend(view.source.clone().map(|source| ("source", source)));
    let since = ago(view.updated_at_ms, now_ms);
    facts.push(("version", format!("{}, by {} {since} ago", view.version, view.updated_by)));
    let mut table = Table::plain();
    for (name, value) in facts {
        table.row(vec![(name.to_owned(), TextStyle::Dim), (value, TextStyle::Plain)]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::sample;
    use super::*;

    #[test]
    fn a_schedule_is_shown_with_upcoming_ticks() {
        let now = 1_774_747_800_000 - 3_600_000;
        let text_of = render_schedule(&sample(), &[], now);
        let wanted = "\
nightly  active  1,234 fired, 2 skipped, 0 overlapped

expression      30 2 * * * in Europe/Berlin
target          task in reports
kind            nightly
max run         1h
payload         {\"full\": true}
misfire policy  fire_once
dst policy      gap: shift, overlap: first
overlap policy  skip
source          billing
version         3, by ada@box 8d14h ago

NEXT                              IN
Sun 2026-03-29 03:30:00+02:00  1h00m  the clock moves forward by 1h
Mon 2026-03-30 02:30:00+02:00  1d00h
Tue 2026-03-31 02:30:00+02:00  2d00h
Wed 2026-04-01 02:30:00+02:00  3d00h
Thu 2026-04-02 02:30:00+02:00  4d00h
";
        assert_eq!(text_of, wanted);
        let mut failing = sample();
        failing.last_error = Some("there is no topic \u{1b}".into());
        let text_of = render_schedule(&failing, &[], now);
        assert!(
            text_of.contains("failing") && text_of.contains("there is no topic \\u{1b} (retry in 1h00m)"),
            "{text_of}"
        );
    }
}
