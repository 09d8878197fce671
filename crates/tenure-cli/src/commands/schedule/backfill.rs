//! `tenure schedule backfill`: fire ticks of the past that did not.
//!
//! The ticks are reckoned here, portion by portion, and each portion fires in a transaction of its own. A tick is a primary key, so what
//! is begun anew after an interruption fires what is left and nothing twice.

use serde_json::json;
use tenure::port::{Backend, Hand, HandFired, HandOutcome, ScheduleView};
use tenure::runtime::wall_ms;
use tenure::schedule::Timetable;

use super::{existing, no_such, words};
use crate::args::schedules::BackfillArgs;
use crate::args::{Format, Global};
use crate::commands::input;
use crate::commands::leader::whoami;
use crate::exit::Failure;
use crate::output::{self, Ink, Table, paint};
use crate::store;

/// How many ticks fire at once.
const PORTION: usize = 1_000;

/// How many ticks a dry run shows to people.
const SHOWN: usize = 20;

/// What came of the ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    fired: u64,
    already: u64,
    ahead: u64,
    moved: u64,
    forgotten: u64,
}

impl Sum {
    fn add(&mut self, fired: &[HandFired]) {
        for tick in fired {
            match tick.outcome {
                HandOutcome::Fired { .. } => self.fired += 1,
                HandOutcome::Already => self.already += 1,
                HandOutcome::Ahead => self.ahead += 1,
                HandOutcome::NoTick => self.moved += 1,
                HandOutcome::Forgotten => self.forgotten += 1,
            }
        }
    }

    fn words(self, dry_run: bool) -> String {
        let verb = if dry_run { "would fire" } else { "fired" };
        let mut text = format!("{} {verb}", words::numbered(self.fired, "tick"));
        for (count, why) in [
            (self.already, "had fired before"),
            (self.ahead, "are yet to come"),
            (self.moved, "are none of its ticks any more: it was changed meanwhile"),
            (
                self.forgotten,
                "lie so far back that it is not known any more whether they fired, and do not fire",
            ),
        ] {
            if count > 0 {
                text += &format!(", {} {why}", words::number(count));
            }
        }
        text
    }
}

pub(super) async fn run(global: &Global, args: BackfillArgs) -> Result<u8, Failure> {
    let key = store::schedule(global, &args.name)?;
    let payload = args.payload.as_deref().map(|payload| input::json("--payload", payload)).transpose()?;
    let store = store::open(global).await?;
    let view = existing(store.as_ref(), &key).await?;
    let zone = &view.definition.zone;
    let now_ms = wall_ms();
    let [from, to] = [args.from, args.to].map(|point| point.in_zone(zone, now_ms));
    if to <= from {
        return Err(Failure::usage(format!(
            "--to ({}) is not after --from ({}); exchange them",
            zone.shown(to),
            zone.shown(from)
        )));
    }
    let timetable = view.definition.timetable(&view.namespace);
    let count = timetable.count(from, to);
    if count > args.most {
        return Err(Failure::usage(format!(
            "{key} has {} in that time; if so many are meant: --most {count}",
            words::numbered(count, "tick")
        )));
    }
    let hand = Hand { key, ticks: None, payload, by: whoami(), dry_run: args.dry_run };
    let mut fired = Vec::new();
    let sum = fire_all(global, store.as_ref(), &timetable, &hand, (from, to, count), &mut fired).await?;
    match global.output {
        Format::Json => output::print_json(&json!({
            "dry_run": args.dry_run, "fired": sum.fired, "already": sum.already, "ahead": sum.ahead, "forgotten": sum.forgotten,
            "ticks": fired,
        })),
        Format::Table if args.dry_run => output::print_text(&table(&view, &fired)),
        Format::Table => {}
    }
    let ink = if sum.fired == 0 { Ink::Yellow } else { Ink::Green };
    output::note(global, ink, &format!("{}: {}", hand.key, sum.words(args.dry_run)));
    Ok(0)
}

/// Portion by portion. What goes wrong says how far it came.
async fn fire_all(
    global: &Global,
    store: &dyn Backend,
    timetable: &Timetable,
    hand: &Hand,
    (from, to, count): (i64, i64, u64),
    all: &mut Vec<HandFired>,
) -> Result<Sum, Failure> {
    let mut sum = Sum::default();
    let mut ticks = timetable.ticks_between(from, to).peekable();
    while ticks.peek().is_some() {
        let portion: Vec<i64> = ticks.by_ref().take(PORTION).collect();
        let hand = Hand { ticks: Some(portion), ..hand.clone() };
        let fired = store.fire_by_hand(&hand).await.map_err(Failure::from);
        let fired = fired.and_then(|fired| fired.ok_or_else(|| no_such(&hand.key)));
        let fired = fired.map_err(|failure| {
            output::progress_ends(global);
            match sum.fired {
                0 => failure,
                _ => Failure::new(
                    failure.code,
                    format!("{}. Before that, {}; begin anew to go on", failure.message(), sum.words(false)),
                ),
            }
        })?;
        sum.add(&fired);
        all.extend(fired);
        output::progress(global, &format!("{} of {}", words::number(all.len() as u64), words::number(count)));
    }
    output::progress_ends(global);
    Ok(sum)
}

fn table(view: &ScheduleView, fired: &[HandFired]) -> String {
    if fired.is_empty() {
        return format!("{} has no tick in that time\n", view.key());
    }
    let mut table = Table::new(&["tick", ""]);
    for tick in fired.iter().take(SHOWN) {
        let (word, ink) = match tick.outcome {
            HandOutcome::Fired { .. } => ("would fire", Ink::Green),
            HandOutcome::Already => ("has fired", Ink::Dim),
            HandOutcome::Ahead => ("is yet to come", Ink::Dim),
            HandOutcome::NoTick => ("is no tick", Ink::Yellow),
            HandOutcome::Forgotten => ("is forgotten", Ink::Yellow),
        };
        table.row(vec![
            (words::on_clock(&view.definition.zone, tick.at_ms), Ink::Bold),
            (word.to_owned(), ink),
        ]);
    }
    let more = match fired.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => paint(&format!("… and {} more", words::number(more as u64)), Ink::Dim) + "\n",
    };
    table.render() + &more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_of_it_is_told_in_one_line() {
        let tick = |outcome| HandFired { at_ms: 0, outcome };
        let mut sum = Sum::default();
        sum.add(&[tick(HandOutcome::Fired { event: None, task: None }), tick(HandOutcome::Already)]);
        sum.add(&[tick(HandOutcome::Ahead)]);
        assert_eq!(sum.words(false), "1 tick fired, 1 had fired before, 1 are yet to come");
        assert_eq!(Sum::default().words(true), "0 ticks would fire");
    }
}
