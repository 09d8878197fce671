//! The upcoming ticks of a schedule: a list of the next ones, and a calendar chart in its time zone.
//!
//! The chart has one column per hour, day or month, whichever shows the pattern best; time runs downwards. A
//! mark covers all ticks of its row, so the work is bounded by the number of rows. A column with a clock
//! change is labelled.

use maud::{Markup, html};
use tenure::Name;
use tenure::port::ScheduleView;
use tenure_core::rules::schedule::{
    DstGapPolicy, DstOverlapPolicy, DstPolicy, LAST_MS, ScheduleDefinition, Timetable, Zone,
};

use super::format;
use super::local_time::{ClockChange, DAY_MS, LocalTime, clock_change_within, day_of, days_of, midnight};

/// Number of ticks in the list.
pub(super) const NEXT: usize = 10;
const HOUR_MS: i64 = 3_600_000;
/// From this number of ticks per day on, columns are hours.
const DENSE: u64 = 48;

/// The upcoming ticks of a schedule and their chart.
#[derive(Clone, Debug, Default)]
pub(crate) struct UpcomingTicks {
    next: Vec<ChartTick>,
    chart: Option<CalendarChart>,
}

/// An upcoming tick.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ChartTick {
    at_ms: i64,
    /// The due time with jitter, if it differs.
    due_ms: Option<i64>,
    note: Option<DstNote>,
}

/// The effect of a clock change on a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DstNote {
    /// The local time is in a DST gap; the tick is shifted.
    Shifted,
    /// The local time is in a DST overlap; this is the first occurrence.
    FirstOccurrence,
    /// The local time is in a DST overlap; this is the second occurrence.
    SecondOccurrence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Hours,
    Days,
    Months,
}

#[derive(Clone, Debug)]
struct CalendarChart {
    scale: Scale,
    columns: Vec<Column>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    from_ms: i64,
    to_ms: i64,
    /// Number of ticks.
    count: u64,
    /// Row ranges with ticks, end exclusive.
    marks: Vec<(i64, i64)>,
    /// Number of rows that are in the past.
    past: i64,
    change: Option<ClockChange>,
}

impl Scale {
    fn columns(self) -> usize {
        match self {
            Scale::Hours => 24,
            Scale::Days => 14,
            Scale::Months => 12,
        }
    }

    /// Number of rows per column.
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

    /// The starts of the columns and the end of the last one.
    fn edges(self, zone: &Zone, now_ms: i64) -> Vec<i64> {
        let here = LocalTime::of(zone, now_ms);
        (0..=self.columns() as i64)
            .map(|n| match self {
                // Hours of local time: a clock change omits or repeats one.
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

impl UpcomingTicks {
    /// The upcoming ticks of a stored schedule.
    pub(crate) fn of(view: &ScheduleView, now_ms: i64) -> UpcomingTicks {
        let timetable = view.definition.timetable(&view.namespace);
        let from = view
            .tick_state
            .and_then(|progress| timetable.revalidate(progress.next_tick_at_ms, progress.last_tick_at_ms));
        match from {
            Some(from) => UpcomingTicks::from(&view.definition, &timetable, from, now_ms),
            None => UpcomingTicks::default(),
        }
    }

    /// The upcoming ticks of a definition, from a tick on.
    pub(super) fn of_definition(
        definition: &ScheduleDefinition,
        namespace: &Name,
        from_ms: Option<i64>,
        now_ms: i64,
    ) -> UpcomingTicks {
        let timetable = definition.timetable(namespace);
        from_ms.map(|from| UpcomingTicks::from(definition, &timetable, from, now_ms)).unwrap_or_default()
    }

    fn from(
        definition: &ScheduleDefinition,
        timetable: &Timetable,
        from_ms: i64,
        now_ms: i64,
    ) -> UpcomingTicks {
        let zone = &definition.time_zone;
        let next = timetable.ticks_from(from_ms).take(NEXT).map(|at_ms| {
            let due_ms = Some(timetable.due_at(at_ms)).filter(|due| *due != at_ms);
            ChartTick { at_ms, due_ms, note: note(definition, timetable, at_ms) }
        });
        let next = next.collect();
        UpcomingTicks { next, chart: chart(timetable, zone, from_ms, now_ms) }
    }

    /// Whether there are no upcoming ticks.
    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty()
    }
}

/// The effect of a clock change on a tick.
fn note(definition: &ScheduleDefinition, timetable: &Timetable, at_ms: i64) -> Option<DstNote> {
    let zone = &definition.time_zone;
    // No clock change exceeds a day.
    if let Some(change) = clock_change_within(zone, at_ms - DAY_MS, at_ms) {
        let near = at_ms - change.at_ms < change.by_ms.abs();
        if near && change.by_ms < 0 {
            return Some(DstNote::SecondOccurrence);
        }
        let (gap, overlap) = timetable.policies();
        if near && gap == DstGapPolicy::Shift {
            // A tick that the expression names itself is not shifted: it exists without the gap policy too.
            let mut rule = definition.rule();
            rule.dst = DstPolicy { gap: Some(DstGapPolicy::Skip), overlap: Some(overlap) };
            return (!Timetable::new(&rule, "").is_tick(at_ms)).then_some(DstNote::Shifted);
        }
    }
    let change = clock_change_within(zone, at_ms, (at_ms + DAY_MS).min(LAST_MS))?;
    let twice = change.by_ms < 0 && change.at_ms - at_ms <= -change.by_ms;
    (twice && timetable.policies().1 == DstOverlapPolicy::First).then_some(DstNote::FirstOccurrence)
}

/// Build the chart with the best scale; `None` if there are no ticks within 330 days.
fn chart(timetable: &Timetable, zone: &Zone, from_ms: i64, now_ms: i64) -> Option<CalendarChart> {
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
            past: if now_ms < from { 0 } else { row_of(scale, zone, (from, to), now_ms.min(to - 1)) },
            change: clock_change_within(zone, from - 1, to - 1),
        }
    });
    Some(CalendarChart { scale, columns: columns.collect() })
}

/// The row of an instant in its column.
fn row_of(scale: Scale, zone: &Zone, (from, to): (i64, i64), at_ms: i64) -> i64 {
    match scale {
        Scale::Months => LocalTime::of(zone, at_ms).day - 1,
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
        // Continue with the next row, independent of the number of ticks in this one.
        let after = match scale {
            Scale::Months => midnight(zone, day_of(zone, at) + 1),
            _ => from + ((row + 1) * (to - from) + scale.rows() - 1) / scale.rows(),
        };
        next = timetable.first_from(after.max(at + 1));
    }
    marks
}

/// Render the chart and the list. A paused schedule is shown dimmed.
pub(super) fn upcoming(ahead: &UpcomingTicks, zone: &Zone, paused: bool, wall: i64) -> Markup {
    html! {
        @if ahead.is_empty() { p.empty { "No upcoming ticks." } }
        @else {
            @if let Some(chart) = &ahead.chart { (render_chart(chart, zone, paused)) }
            (listed(ahead, zone, wall))
        }
    }
}

fn listed(ahead: &UpcomingTicks, zone: &Zone, wall: i64) -> Markup {
    html! {
        ol.ticks aria-label="Upcoming ticks" {
            @for next in &ahead.next {
                @let shown = LocalTime::of(zone, next.at_ms);
                li {
                    span.strong.nowrap { (shown.date()) ", " (shown.time()) } " "
                    span.soft.small.nowrap { (shown.offset()) ", " (format::until(next.at_ms, wall)) }
                    @if let Some(due) = next.due_ms { " " span.soft.small { "due " (LocalTime::of(zone, due).time()) } }
                    @if let Some(note) = next.note {
                        " " span.chip.clock-change {
                            @match note {
                                DstNote::Shifted => "shifted: DST gap",
                                DstNote::FirstOccurrence => "DST overlap: first occurrence",
                                DstNote::SecondOccurrence => "DST overlap: second occurrence",
                            }
                        }
                    }
                }
            }
        }
    }
}

fn render_chart(chart: &CalendarChart, zone: &Zone, paused: bool) -> Markup {
    let rows = chart.scale.rows();
    let class = format!("calendar {}{}", chart.scale.word(), if paused { " off" } else { "" });
    html! {
        ol class=(class) aria-label={ "Next " (chart.scale.columns()) " " (chart.scale.word()) " in time zone " (zone) } {
            @for (n, column) in chart.columns.iter().enumerate() {
                @let shown = LocalTime::of(zone, column.from_ms);
                @let (top, name) = named(chart.scale, &shown, n);
                li.clock-change[column.change.is_some()].none[column.count == 0] title=(column_text(chart.scale, zone, column)) {
                    span.top aria-hidden="true" { (top) }
                    span.name aria-hidden="true" { (name) }
                    svg viewBox={ "0 0 10 " (rows) } preserveAspectRatio="none" aria-hidden="true" {
                        rect.ground width="10" height=(rows) {}
                        @for quarter in 1..4 { line.grid x1="0" x2="10" y1=(format!("{}", rows as f64 * f64::from(quarter) / 4.0)) y2=(format!("{}", rows as f64 * f64::from(quarter) / 4.0)) {} }
                        @if column.past > 0 { rect.past width="10" height=(column.past) {} }
                        @for (from, until) in &column.marks { rect.mark y=(from) width="10" height=(until - from) {} }
                        @if let Some(change) = &column.change {
                            @let at = row_of(chart.scale, zone, (column.from_ms, column.to_ms), change.at_ms);
                            line.change-mark x1="0" x2="10" y1=(at) y2=(at) {}
                        }
                    }
                    span.count aria-hidden="true" { @if column.count > 0 { (format::brief(column.count)) } @else { "·" } }
                    @if let Some(change) = &column.change { span.change-mark aria-hidden="true" { (change.brief()) } }
                    span.hidden { (column_text(chart.scale, zone, column)) }
                }
            }
        }
        p.soft.small {
            @match chart.scale {
                Scale::Hours => "Columns: hours, first minute on top",
                Scale::Days => "Columns: days, midnight on top",
                Scale::Months => "Columns: months, first day on top",
            }
            "; the number of ticks is below. Time zone " (zone) "."
            @if let Some(change) = chart.columns.iter().find_map(|column| column.change) {
                " " span.chip.clock-change { (LocalTime::of(zone, change.at_ms).date()) ": " (change.describe(zone)) }
            }
            @if paused { " " span.strong { "Paused: no tick fires until it is resumed." } }
        }
    }
}

/// The two-line heading of a column.
fn named(scale: Scale, shown: &LocalTime, n: usize) -> (String, String) {
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

/// A column as text, for tooltips and screen readers.
fn column_text(scale: Scale, zone: &Zone, column: &Column) -> String {
    let shown = LocalTime::of(zone, column.from_ms);
    let when = match scale {
        Scale::Hours => format!("{} from {}", shown.date(), shown.time()),
        Scale::Days => shown.date(),
        Scale::Months => format!("{} {}", shown.month(), shown.year),
    };
    let count = match column.count {
        0 => "no ticks".into(),
        1 => "1 tick".into(),
        many => format!("{} ticks", format::number(many)),
    };
    let change = column.change.map(|change| format!("; {}", change.describe(zone))).unwrap_or_default();
    format!("{when}: {count}{change}")
}

#[cfg(test)]
mod tests {
    use tenure_core::rules::schedule::{OverlapPolicy, ScheduleExpression, ScheduleTarget};

    use super::*;

    /// 25 March 2026, 12:00 UTC: four days before clocks in Berlin go forward.
    const SPRING: i64 = 1_774_440_000_000;
    /// 23 October 2026, 12:00 UTC: two days before they go back.
    const AUTUMN: i64 = 1_792_756_800_000;

    fn ahead_of(
        when: &str,
        zone: &str,
        now: i64,
        change: impl FnOnce(&mut ScheduleDefinition),
    ) -> UpcomingTicks {
        let target = ScheduleTarget::Webhook { url: "https://example.org".into() };
        let mut definition = ScheduleDefinition::new(
            "a".parse().expect("a name"),
            when.parse::<ScheduleExpression>().expect("a time"),
            target,
        );
        definition.time_zone = zone.parse().expect("a zone");
        definition.overlap_policy = OverlapPolicy::Allow;
        change(&mut definition);
        let timetable = definition.timetable(&Name::default_namespace());
        let from = timetable.first_from(now).expect("a tick");
        UpcomingTicks::from(&definition, &timetable, from, now)
    }

    fn notes(ahead: &UpcomingTicks) -> Vec<Option<DstNote>> {
        ahead.next.iter().map(|next| next.note).collect()
    }

    #[test]
    fn a_nightly_tick_is_in_the_row_of_its_time_and_is_shifted_by_a_dst_gap() {
        let nightly = ahead_of("30 2 * * *", "Europe/Berlin", SPRING, |_| {});
        let chart = nightly.chart.as_ref().expect("a chart");
        assert_eq!((chart.scale, chart.columns.len()), (Scale::Days, 14));
        // Today 02:30 has passed; on later days it is in the sixth half hour.
        assert_eq!((chart.columns[0].count, chart.columns[0].past), (0, 26));
        assert_eq!(chart.columns[1].marks, [(5, 6)]);
        let changes: Vec<_> =
            chart.columns.iter().map(|column| column.change.map(|change| change.by_ms)).collect();
        assert_eq!(changes.iter().flatten().collect::<Vec<_>>(), [&3_600_000]);
        assert!(changes[4].is_some());
        assert_eq!(&notes(&nightly)[..5], [None, None, None, Some(DstNote::Shifted), None]);
        let skipped =
            ahead_of("30 2 * * *", "Europe/Berlin", SPRING, |it| it.dst.gap = Some(DstGapPolicy::Skip));
        assert_eq!(skipped.chart.as_ref().expect("a chart").columns[4].count, 0);
        assert!(notes(&skipped).iter().all(Option::is_none));
    }

    #[test]
    fn a_tick_in_a_dst_overlap_is_marked() {
        let first = ahead_of("30 2 * * *", "Europe/Berlin", AUTUMN, |_| {});
        assert_eq!(&notes(&first)[..3], [None, Some(DstNote::FirstOccurrence), None]);
        let both = ahead_of("30 2 * * *", "Europe/Berlin", AUTUMN, |it| {
            it.dst.overlap = Some(DstOverlapPolicy::Both)
        });
        assert_eq!(&notes(&both)[..4], [None, None, Some(DstNote::SecondOccurrence), None]);
        assert_eq!(both.chart.as_ref().expect("a chart").columns[2].count, 2);
        let drawn = upcoming(&first, &"Europe/Berlin".parse().expect("a zone"), false, AUTUMN).into_string();
        assert!(drawn.contains("clock change from 03:00 back to 02:00") && drawn.contains("−1 h"), "{drawn}");
        assert!(!drawn.contains("style="), "{drawn}");
    }

    #[test]
    fn the_scale_follows_the_density_of_ticks_and_the_work_is_bounded() {
        for (when, scale, marks) in [
            ("every 1ms", Scale::Hours, 1),
            ("*/5 * * * *", Scale::Hours, 12),
            ("0 */2 * * *", Scale::Days, 12),
            ("0 9 1 * *", Scale::Months, 1),
        ] {
            let ahead = ahead_of(when, "UTC", SPRING, |_| {});
            let chart = ahead.chart.expect("a chart");
            let last = chart.columns.last().expect("a column");
            assert_eq!((chart.scale, last.marks.len()), (scale, marks), "{when}");
            let sum = |column: &Column| column.marks.iter().map(|(from, until)| until - from).sum::<i64>();
            assert!(chart.columns.iter().all(|column| sum(column) <= scale.rows()), "{when}");
            // Columns have no gaps between them.
            assert!(chart.columns.windows(2).all(|two| two[0].to_ms == two[1].from_ms), "{when}");
        }
        assert!(ahead_of("0 0 29 2 *", "UTC", SPRING, |_| {}).chart.is_none());
        let counted = ahead_of("every 1ms", "UTC", SPRING, |_| {}).chart.expect("a chart");
        assert_eq!(counted.columns[1].count, 3_600_000);
    }
}
