//! What is ahead of a schedule: its next ticks one by one, and a strip of the calendar in its zone with all of them.
//!
//! The strip has a column for each of the next hours, days or months, whichever shows the pattern best; time goes down in each. A
//! mark stands where ticks are, however many: the work is bounded by the marks. Where the wall clock jumps, the column says so.

use maud::{Markup, html};
use tenure::Name;
use tenure::port::ScheduleView;
use tenure_core::schedule::{Definition, Dst, Fold, Gap, LAST_MS, Timetable, Zone};

use super::schedule_clock::{DAY_MS, Jump, Local, day_of, days_of, jump_within, midnight};
use super::words;

/// How many ticks are told one by one.
pub(super) const NEXT: usize = 10;
const HOUR_MS: i64 = 3_600_000;
/// So many in a day are too many for a column of a day.
const DENSE: u64 = 48;

/// What is ahead of a schedule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead {
    next: Vec<Next>,
    strip: Option<Strip>,
}

/// A tick to come.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Next {
    at_ms: i64,
    /// When it is due, if that is later.
    due_ms: Option<i64>,
    note: Option<Note>,
}

/// What a jump of the wall clock has to do with a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Note {
    /// Its time is jumped over, and it comes later.
    Moved,
    /// Its time is shown once more, and counts the first time.
    First,
    /// Its time was shown before, and counts again.
    Again,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Hours,
    Days,
    Months,
}

#[derive(Clone, Debug)]
struct Strip {
    scale: Scale,
    columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    from_ms: i64,
    to_ms: i64,
    /// How many ticks are in it.
    count: u64,
    /// Where they are: rows, from and until before.
    marks: Vec<(i64, i64)>,
    /// Until which row it is over.
    over: i64,
    jump: Option<Jump>,
}

impl Scale {
    fn columns(self) -> usize {
        match self {
            Scale::Hours => 24,
            Scale::Days => 14,
            Scale::Months => 12,
        }
    }

    /// Into how many rows a column is divided.
    fn rows(self) -> i64 {
        match self {
            Scale::Hours => 60,
            Scale::Days => 48,
            Scale::Months => 31,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Scale::Hours => "hours",
            Scale::Days => "days",
            Scale::Months => "months",
        }
    }

    /// Where the columns begin, and where the last one ends.
    fn edges(self, zone: &Zone, now_ms: i64) -> Vec<i64> {
        let here = Local::of(zone, now_ms);
        (0..=self.columns() as i64)
            .map(|n| match self {
                // Hours of the clock: where it jumps, one is left out, or comes twice.
                Scale::Hours => now_ms - (now_ms + zone.offset_ms(now_ms)).rem_euclid(HOUR_MS) + n * HOUR_MS,
                Scale::Days => midnight(zone, day_of(zone, now_ms) + n),
                Scale::Months => {
                    let month = here.month - 1 + n;
                    midnight(zone, days_of(here.year + month / 12, month % 12 + 1, 1))
                }
            })
            .collect()
    }
}

impl Ahead {
    /// What is ahead of a schedule, as it stands.
    pub(crate) fn of(view: &ScheduleView, now_ms: i64) -> Ahead {
        let timetable = view.definition.timetable(&view.namespace);
        let from =
            view.progress.and_then(|progress| timetable.settle(progress.next_at_ms, progress.last_at_ms));
        match from {
            Some(from) => Ahead::from(&view.definition, &timetable, from, now_ms),
            None => Ahead::default(),
        }
    }

    /// What would be ahead of a schedule that is defined like this, from a tick on.
    pub(super) fn would(
        definition: &Definition,
        namespace: &Name,
        from_ms: Option<i64>,
        now_ms: i64,
    ) -> Ahead {
        let timetable = definition.timetable(namespace);
        from_ms.map(|from| Ahead::from(definition, &timetable, from, now_ms)).unwrap_or_default()
    }

    fn from(definition: &Definition, timetable: &Timetable, from_ms: i64, now_ms: i64) -> Ahead {
        let zone = &definition.zone;
        let next = timetable.ticks_from(from_ms).take(NEXT).map(|at_ms| {
            let due_ms = Some(timetable.due_at(at_ms)).filter(|due| *due != at_ms);
            Next { at_ms, due_ms, note: note(definition, timetable, at_ms) }
        });
        let next = next.collect();
        Ahead { next, strip: strip(timetable, zone, from_ms, now_ms) }
    }

    /// Whether no tick is left.
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty()
    }
}

/// What a jump of the clock has to do with a tick.
fn note(definition: &Definition, timetable: &Timetable, at_ms: i64) -> Option<Note> {
    let zone = &definition.zone;
    // No clock has ever jumped by more than a day.
    if let Some(jump) = jump_within(zone, at_ms - DAY_MS, at_ms) {
        let near = at_ms - jump.at_ms < jump.by_ms.abs();
        if near && jump.by_ms < 0 {
            return Some(Note::Again);
        }
        let (gap, overlap) = timetable.policies();
        if near && gap == Gap::Shift {
            // A time that is meant itself would be a tick even if nothing moved.
            let mut rule = definition.rule();
            rule.dst = Dst { gap: Some(Gap::Skip), overlap: Some(overlap) };
            return (!Timetable::new(&rule, "").is_tick(at_ms)).then_some(Note::Moved);
        }
    }
    let jump = jump_within(zone, at_ms, (at_ms + DAY_MS).min(LAST_MS))?;
    let twice = jump.by_ms < 0 && jump.at_ms - at_ms <= -jump.by_ms;
    (twice && timetable.policies().1 == Fold::First).then_some(Note::First)
}

/// The strip that shows the pattern best; none, if nothing is ahead for a year.
fn strip(timetable: &Timetable, zone: &Zone, from_ms: i64, now_ms: i64) -> Option<Strip> {
    let within = |ms: i64| timetable.count(from_ms.max(now_ms), now_ms.saturating_add(ms));
    let scale = match () {
        () if within(DAY_MS) >= DENSE => Scale::Hours,
        () if within(13 * DAY_MS) >= 2 => Scale::Days,
        () if within(330 * DAY_MS) >= 1 => Scale::Months,
        () => return None,
    };
    let edges = scale.edges(zone, now_ms);
    let columns = edges.windows(2).map(|edge| {
        let (from, to) = (edge[0], edge[1]);
        let first = from.max(from_ms);
        Column {
            from_ms: from,
            to_ms: to,
            count: timetable.count(first, to),
            marks: marks(timetable, scale, zone, (from, to), first),
            over: if now_ms < from { 0 } else { row_of(scale, zone, (from, to), now_ms.min(to - 1)) },
            jump: jump_within(zone, from - 1, to - 1),
        }
    });
    Some(Strip { scale, columns: columns.collect() })
}

/// In which row of a column an instant is.
fn row_of(scale: Scale, zone: &Zone, (from, to): (i64, i64), at_ms: i64) -> i64 {
    match scale {
        Scale::Months => Local::of(zone, at_ms).day - 1,
        _ => (at_ms - from) * scale.rows() / (to - from),
    }
}

fn marks(
    timetable: &Timetable,
    scale: Scale,
    zone: &Zone,
    (from, to): (i64, i64),
    first_ms: i64,
) -> Vec<(i64, i64)> {
    let mut marks: Vec<(i64, i64)> = Vec::new();
    let mut next = timetable.first_from(first_ms);
    while let Some(at) = next.filter(|at| *at < to) {
        let row = row_of(scale, zone, (from, to), at);
        match marks.last_mut() {
            Some((_, until)) if *until == row => *until = row + 1,
            _ => marks.push((row, row + 1)),
        }
        // On with the first instant of the next row: however many are in this one.
        let after = match scale {
            Scale::Months => midnight(zone, day_of(zone, at) + 1),
            _ => from + ((row + 1) * (to - from) + scale.rows() - 1) / scale.rows(),
        };
        next = timetable.first_from(after.max(at + 1));
    }
    marks
}

/// The next ticks and the strip. What is paused is ahead only if somebody resumes it.
pub(super) fn ahead(ahead: &Ahead, zone: &Zone, paused: bool, wall: i64) -> Markup {
    html! {
        @if ahead.is_empty() { p.empty { "No tick is left." } }
        @else {
            @if let Some(strip) = &ahead.strip { (picture(strip, zone, paused)) }
            (listed(ahead, zone, wall))
        }
    }
}

fn listed(ahead: &Ahead, zone: &Zone, wall: i64) -> Markup {
    html! {
        ol.ticks aria-label="The next ticks" {
            @for next in &ahead.next {
                @let shown = Local::of(zone, next.at_ms);
                li {
                    span.strong.nowrap { (shown.date()) ", " (shown.time()) } " "
                    span.soft.small.nowrap { (shown.offset()) ", " (words::until(next.at_ms, wall)) }
                    @if let Some(due) = next.due_ms { " " span.soft.small { "due " (Local::of(zone, due).time()) } }
                    @if let Some(note) = next.note {
                        " " span.chip.jump {
                            @match note {
                                Note::Moved => "moved: clocks jump over its time",
                                Note::First => "shown twice: the first counts",
                                Note::Again => "shown again",
                            }
                        }
                    }
                }
            }
        }
    }
}

fn picture(strip: &Strip, zone: &Zone, paused: bool) -> Markup {
    let rows = strip.scale.rows();
    let class = format!("strip {}{}", strip.scale.word(), if paused { " off" } else { "" });
    html! {
        ol class=(class) aria-label={ "The next " (strip.scale.columns()) " " (strip.scale.word()) " in " (zone) } {
            @for (n, column) in strip.columns.iter().enumerate() {
                @let shown = Local::of(zone, column.from_ms);
                @let (top, name) = named(strip.scale, &shown, n);
                li.jump[column.jump.is_some()].none[column.count == 0] title=(told(strip.scale, zone, column)) {
                    span.top aria-hidden="true" { (top) }
                    span.name aria-hidden="true" { (name) }
                    svg viewBox={ "0 0 10 " (rows) } preserveAspectRatio="none" aria-hidden="true" {
                        rect.ground width="10" height=(rows) {}
                        @for quarter in 1..4 { line.grid x1="0" x2="10" y1=(format!("{}", rows as f64 * f64::from(quarter) / 4.0)) y2=(format!("{}", rows as f64 * f64::from(quarter) / 4.0)) {} }
                        @if column.over > 0 { rect.over width="10" height=(column.over) {} }
                        @for (from, until) in &column.marks { rect.mark y=(from) width="10" height=(until - from) {} }
                        @if let Some(jump) = &column.jump {
                            @let at = row_of(strip.scale, zone, (column.from_ms, column.to_ms), jump.at_ms);
                            line.leap x1="0" x2="10" y1=(at) y2=(at) {}
                        }
                    }
                    span.count aria-hidden="true" { @if column.count > 0 { (words::brief(column.count)) } @else { "·" } }
                    @if let Some(jump) = &column.jump { span.leap aria-hidden="true" { (jump.brief()) } }
                    span.hidden { (told(strip.scale, zone, column)) }
                }
            }
        }
        p.soft.small {
            @match strip.scale {
                Scale::Hours => "A column is an hour, its first minute at the top",
                Scale::Days => "A column is a day, midnight at the top",
                Scale::Months => "A column is a month, its first day at the top",
            }
            "; below it stands how often it fires. On the clocks of " (zone) "."
            @if let Some(jump) = strip.columns.iter().find_map(|column| column.jump) {
                " " span.chip.jump { (Local::of(zone, jump.at_ms).date()) ": " (jump.said(zone)) }
            }
            @if paused { " " span.strong { "It is paused: none of these fires until it is resumed." } }
        }
    }
}

/// What stands above a column, in two lines.
fn named(scale: Scale, shown: &Local, n: usize) -> (String, String) {
    match scale {
        Scale::Hours if n == 0 || shown.hour() == 0 => {
            (shown.weekday().into(), format!("{:02}", shown.hour()))
        }
        Scale::Hours => (String::new(), format!("{:02}", shown.hour())),
        Scale::Days if n == 0 || shown.day == 1 => {
            (format!("{} {}", shown.weekday(), shown.month()), shown.day.to_string())
        }
        Scale::Days => (shown.weekday().into(), shown.day.to_string()),
        Scale::Months if n == 0 || shown.month == 1 => (shown.year.to_string(), shown.month().into()),
        Scale::Months => (String::new(), shown.month().into()),
    }
}

/// A column in words.
fn told(scale: Scale, zone: &Zone, column: &Column) -> String {
    let shown = Local::of(zone, column.from_ms);
    let when = match scale {
        Scale::Hours => format!("{} from {}", shown.date(), shown.time()),
        Scale::Days => shown.date(),
        Scale::Months => format!("{} {}", shown.month(), shown.year),
    };
    let count = match column.count {
        0 => "no tick".into(),
        1 => "1 tick".into(),
        many => format!("{} ticks", words::number(many)),
    };
    let jump = column.jump.map(|jump| format!("; {}", jump.said(zone))).unwrap_or_default();
    format!("{when}: {count}{jump}")
}

#[cfg(test)]
mod tests {
    use tenure_core::schedule::{Overlap, Target, When};

    use super::*;

    /// 25 March 2026, 12:00 UTC: four days before clocks go ahead in Berlin.
    const SPRING: i64 = 1_774_440_000_000;
    /// 23 October 2026, 12:00 UTC: two days before they go back.
    const AUTUMN: i64 = 1_792_756_800_000;

    fn ahead_of(when: &str, zone: &str, now: i64, change: impl FnOnce(&mut Definition)) -> Ahead {
        let target = Target::Call { url: "https://example.org".into() };
        let mut definition =
            Definition::new("a".parse().expect("a name"), when.parse::<When>().expect("a time"), target);
        definition.zone = zone.parse().expect("a zone");
        definition.overlap = Overlap::Allow;
        change(&mut definition);
        let timetable = definition.timetable(&Name::default_namespace());
        let from = timetable.first_from(now).expect("a tick");
        Ahead::from(&definition, &timetable, from, now)
    }

    fn notes(ahead: &Ahead) -> Vec<Option<Note>> {
        ahead.next.iter().map(|next| next.note).collect()
    }

    #[test]
    fn a_nightly_tick_stands_in_the_row_of_its_time_and_moves_with_the_clocks() {
        let nightly = ahead_of("30 2 * * *", "Europe/Berlin", SPRING, |_| {});
        let strip = nightly.strip.as_ref().expect("a strip");
        assert_eq!((strip.scale, strip.columns.len()), (Scale::Days, 14));
        // Today it is over; then 02:30 of each day, which is in the sixth half hour.
        assert_eq!((strip.columns[0].count, strip.columns[0].over), (0, 26));
        assert_eq!(strip.columns[1].marks, [(5, 6)]);
        let jumps: Vec<_> = strip.columns.iter().map(|column| column.jump.map(|jump| jump.by_ms)).collect();
        assert_eq!(jumps.iter().flatten().collect::<Vec<_>>(), [&3_600_000]);
        assert!(jumps[4].is_some());
        assert_eq!(&notes(&nightly)[..5], [None, None, None, Some(Note::Moved), None]);
        let skipped = ahead_of("30 2 * * *", "Europe/Berlin", SPRING, |it| it.dst.gap = Some(Gap::Skip));
        assert_eq!(skipped.strip.as_ref().expect("a strip").columns[4].count, 0);
        assert!(notes(&skipped).iter().all(Option::is_none));
    }

    #[test]
    fn what_a_clock_shows_twice_is_told() {
        let first = ahead_of("30 2 * * *", "Europe/Berlin", AUTUMN, |_| {});
        assert_eq!(&notes(&first)[..3], [None, Some(Note::First), None]);
        let both = ahead_of("30 2 * * *", "Europe/Berlin", AUTUMN, |it| it.dst.overlap = Some(Fold::Both));
        assert_eq!(&notes(&both)[..4], [None, None, Some(Note::Again), None]);
        assert_eq!(both.strip.as_ref().expect("a strip").columns[2].count, 2);
        let drawn = ahead(&first, &"Europe/Berlin".parse().expect("a zone"), false, AUTUMN).into_string();
        assert!(drawn.contains("clocks go from 03:00 back to 02:00") && drawn.contains("−1 h"), "{drawn}");
        assert!(!drawn.contains("style="), "{drawn}");
    }

    #[test]
    fn the_scale_follows_the_pattern_and_the_work_is_bounded() {
        for (when, scale, marks) in [
            ("every 1ms", Scale::Hours, 1),
            ("*/5 * * * *", Scale::Hours, 12),
            ("0 */2 * * *", Scale::Days, 12),
            ("0 9 1 * *", Scale::Months, 1),
        ] {
            let ahead = ahead_of(when, "UTC", SPRING, |_| {});
            let strip = ahead.strip.expect("a strip");
            let last = strip.columns.last().expect("a column");
            assert_eq!((strip.scale, last.marks.len()), (scale, marks), "{when}");
            let sum = |column: &Column| column.marks.iter().map(|(from, until)| until - from).sum::<i64>();
            assert!(strip.columns.iter().all(|column| sum(column) <= scale.rows()), "{when}");
            // Columns follow one another without a hole.
            assert!(strip.columns.windows(2).all(|two| two[0].to_ms == two[1].from_ms), "{when}");
        }
        assert!(ahead_of("0 0 29 2 *", "UTC", SPRING, |_| {}).strip.is_none());
        let counted = ahead_of("every 1ms", "UTC", SPRING, |_| {}).strip.expect("a strip");
        assert_eq!(counted.columns[1].count, 3_600_000);
    }
}
