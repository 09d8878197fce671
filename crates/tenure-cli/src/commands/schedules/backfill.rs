//! `tenure schedules backfill`: fires past ticks that have not fired.
//!
//! This command computes the ticks batch by batch, and each batch fires in its own transaction. A tick is a primary
//! key, so a repeated backfill fires the remaining ticks and none twice.

use serde_json::json;
use tenure::port::{ManualFire, ManualFireOutcome, ManualFireResult, ScheduleView, Store};
use tenure::rules::schedule::Timetable;
use tenure::runtime::wall_ms;

use super::{describe, existing, no_such};
use crate::args::schedules::BackfillArgs;
use crate::args::{GlobalArgs, OutputFormat};
use crate::commands::elections::whoami;
use crate::commands::input;
use crate::error::CliError;
use crate::output::{self, Table, TextStyle, paint};
use crate::store;

/// Number of ticks per batch.
const BATCH: usize = 1_000;

/// Maximum number of ticks that a dry run prints.
const SHOWN: usize = 20;

/// Number of ticks by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct BackfillTotals {
    fired: u64,
    already_fired: u64,
    in_future: u64,
    not_ticks: u64,
    pruned: u64,
}

impl BackfillTotals {
    fn add(&mut self, fired: &[ManualFireResult]) {
        for tick in fired {
            match tick.outcome {
                ManualFireOutcome::Fired { .. } => self.fired += 1,
                ManualFireOutcome::AlreadyFired => self.already_fired += 1,
                ManualFireOutcome::InFuture => self.in_future += 1,
                ManualFireOutcome::NotATick => self.not_ticks += 1,
                ManualFireOutcome::Pruned => self.pruned += 1,
            }
        }
    }

    fn summary(self, dry_run: bool) -> String {
        let verb = if dry_run { "would fire" } else { "fired" };
        let mut text = format!("{} {verb}", describe::numbered(self.fired, "tick"));
        for (count, why) in [
            (self.already_fired, "had already fired"),
            (self.in_future, "are in the future"),
            (self.not_ticks, "are not ticks of the changed schedule"),
            (self.pruned, "are older than the kept history and are not fired"),
        ] {
            if count > 0 {
                text += &format!(", {} {why}", describe::number(count));
            }
        }
        text
    }
}

pub(super) async fn run(global: &GlobalArgs, args: BackfillArgs) -> Result<u8, CliError> {
    let key = store::schedule(global, &args.schedule)?;
    let payload = args.payload.as_deref().map(|payload| input::json("--payload", payload)).transpose()?;
    let store = store::open(global).await?;
    let view = existing(store.as_ref(), &key).await?;
    let zone = &view.definition.time_zone;
    let now_ms = wall_ms();
    let [from, to] = [args.from, args.to].map(|point| point.in_zone(zone, now_ms));
    if to <= from {
        return Err(CliError::usage(format!(
            "--to ({}) must be after --from ({})",
            zone.format_local(to),
            zone.format_local(from)
        )));
    }
    let timetable = view.definition.timetable(&view.namespace);
    let count = timetable.count(from, to);
    if count > args.max_ticks {
        return Err(CliError::usage(format!(
            "{key} has {} in that range; use --max-ticks {count} to fire them",
            describe::numbered(count, "tick")
        )));
    }
    let fire = ManualFire { key, ticks: None, payload, requested_by: whoami(), dry_run: args.dry_run };
    let mut fired = Vec::new();
    let totals = fire_all(global, store.as_ref(), &timetable, &fire, (from, to, count), &mut fired).await?;
    match global.output {
        OutputFormat::Json => output::print_json(&json!({
            "dry_run": args.dry_run, "fired_count": totals.fired, "already_fired_count": totals.already_fired, "in_future_count": totals.in_future,
            "pruned_count": totals.pruned, "ticks": fired,
        })),
        OutputFormat::Table if args.dry_run => output::print_text(&table(&view, &fired)),
        OutputFormat::Table => {}
    }
    let style = if totals.fired == 0 { TextStyle::Yellow } else { TextStyle::Green };
    output::note(global, style, &format!("{}: {}", fire.key, totals.summary(args.dry_run)));
    Ok(0)
}

/// Fires batch by batch. An error states how many ticks fired before it.
async fn fire_all(
    global: &GlobalArgs,
    store: &dyn Store,
    timetable: &Timetable,
    fire: &ManualFire,
    (from, to, count): (i64, i64, u64),
    all: &mut Vec<ManualFireResult>,
) -> Result<BackfillTotals, CliError> {
    let mut totals = BackfillTotals::default();
    let mut ticks = timetable.ticks_between(from, to).peekable();
    while ticks.peek().is_some() {
        let batch: Vec<i64> = ticks.by_ref().take(BATCH).collect();
        let fire = ManualFire { ticks: Some(batch), ..fire.clone() };
        let fired = store.fire_manually(&fire).await.map_err(CliError::from);
        let fired = fired.and_then(|fired| fired.ok_or_else(|| no_such(&fire.key)));
        let fired = fired.map_err(|failure| {
            output::clear_progress(global);
            match totals.fired {
                0 => failure,
                _ => CliError::new(
                    failure.code,
                    format!(
                        "{}; before that, {}; repeat the command to continue",
                        failure.message(),
                        totals.summary(false)
                    ),
                ),
            }
        })?;
        totals.add(&fired);
        all.extend(fired);
        output::progress(
            global,
            &format!("{} of {}", describe::number(all.len() as u64), describe::number(count)),
        );
    }
    output::clear_progress(global);
    Ok(totals)
}

fn table(view: &ScheduleView, fired: &[ManualFireResult]) -> String {
    if fired.is_empty() {
        return format!("{} has no ticks in that range\n", view.key());
    }
    let mut table = Table::new(&["tick", "outcome"]);
    for tick in fired.iter().take(SHOWN) {
        let (word, style) = match tick.outcome {
            ManualFireOutcome::Fired { .. } => ("would fire", TextStyle::Green),
            ManualFireOutcome::AlreadyFired => ("already fired", TextStyle::Dim),
            ManualFireOutcome::InFuture => ("in the future", TextStyle::Dim),
            ManualFireOutcome::NotATick => ("not a tick", TextStyle::Yellow),
            ManualFireOutcome::Pruned => ("pruned", TextStyle::Yellow),
        };
        table.row(vec![
            (describe::format_instant(&view.definition.time_zone, tick.tick_at_ms), TextStyle::Bold),
            (word.to_owned(), style),
        ]);
    }
    let more = match fired.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => paint(&format!("… and {} more", describe::number(more as u64)), TextStyle::Dim) + "\n",
    };
    table.render() + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_ticks_by_outcome() {
        let tick = |outcome| ManualFireResult { tick_at_ms: 0, outcome };
        let mut totals = BackfillTotals::default();
        totals.add(&[
            tick(ManualFireOutcome::Fired { event_id: None, task_id: None }),
            tick(ManualFireOutcome::AlreadyFired),
        ]);
        totals.add(&[tick(ManualFireOutcome::InFuture)]);
        assert_eq!(totals.summary(false), "1 tick fired, 1 had already fired, 1 are in the future");
        assert_eq!(BackfillTotals::default().summary(true), "0 ticks would fire");
    }
}
