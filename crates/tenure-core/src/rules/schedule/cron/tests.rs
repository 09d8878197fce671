//! The meaning of each feature of an expression.

use super::super::civil::{DAY, Month, month_of};
use super::*;

/// `2026-01-31 12:00:00` as local milliseconds.
fn local(text: &str) -> i64 {
    let numbers: Vec<i64> = text.split(|c: char| !c.is_ascii_digit()).map(|it| it.parse().unwrap()).collect();
    let day = Month { year: numbers[0], month: numbers[1] as u32 }.first_day() + numbers[2] - 1;
    (day * DAY + numbers[3] * 3_600 + numbers[4] * 60 + numbers[5]) * 1_000
}

fn shown(at: i64) -> String {
    let (day, time) = ((at / 1_000).div_euclid(DAY), (at / 1_000).rem_euclid(DAY));
    let (month, of_month) = month_of(day);
    let date = format!("{:04}-{:02}-{of_month:02}", month.year, month.month);
    format!("{date} {:02}:{:02}:{:02}", time / 3_600, time / 60 % 60, time % 60)
}

const END: i64 = 250_000_000_000_000;

/// The first times from the start of 2026.
fn times(text: &str, count: usize) -> Vec<String> {
    let cron: Cron = text.parse().unwrap();
    let mut from = local("2026-01-01 00:00:00");
    let mut times = Vec::new();
    while times.len() < count {
        let next = cron.next_in(from, END).unwrap();
        times.push(next);
        from = next + 1;
    }
    // The backward search finds the same times.
    let back: Vec<i64> =
        std::iter::successors(Some(times[count - 1]), |at| cron.last_in(0, *at)).take(count).collect();
    assert!(back.iter().rev().eq(&times), "{text}");
    assert_eq!(cron.count_in(times[0], from), count as u64, "{text}");
    times.into_iter().map(shown).collect()
}

/// The days of the first times, each at midnight.
fn days(text: &str, count: usize) -> Vec<String> {
    let at_midnight = |time: String| time.strip_suffix(" 00:00:00").map(str::to_owned);
    times(text, count).into_iter().map(|time| at_midnight(time).unwrap()).collect()
}

#[test]
fn times_of_the_day() {
    assert_eq!(times("30 2 * * *", 2), ["2026-01-01 02:30:00", "2026-01-02 02:30:00"]);
    assert_eq!(
        times("*/20 * * * *", 4)[1..],
        ["2026-01-01 00:20:00", "2026-01-01 00:40:00", "2026-01-01 01:00:00"]
    );
    assert_eq!(
        times("5/25 8 * * *", 4)[..3],
        ["2026-01-01 08:05:00", "2026-01-01 08:30:00", "2026-01-01 08:55:00"]
    );
    assert_eq!(times("0 9-17/4 * * *", 4)[2..], ["2026-01-01 17:00:00", "2026-01-02 09:00:00"]);
    assert_eq!(times("1,3-5 0 * * *", 5)[3..], ["2026-01-01 00:05:00", "2026-01-02 00:01:00"]);
    assert_eq!(times("59 23 31 12 *", 2), ["2026-12-31 23:59:00", "2027-12-31 23:59:00"]);
}

#[test]
fn a_sixth_field_is_the_second_and_comes_first() {
    assert_eq!(
        times("*/30 * * * * *", 3),
        ["2026-01-01 00:00:00", "2026-01-01 00:00:30", "2026-01-01 00:01:00"]
    );
    assert_eq!(times("15 30 2 * * *", 1), ["2026-01-01 02:30:15"]);
}

#[test]
fn value_names_are_case_insensitive() {
    for (names, numbers) in [
        ("0 0 * JAN,mar-May *", "0 0 * 1,3-5 *"),
        ("0 0 * * mon-Fri", "0 0 * * 1-5"),
        ("0 0 * * SUN", "0 0 * * 7"),
        ("0 0 * * 0", "0 0 * * 7"),
        ("0 0 * * SAT-SUN", "0 0 * * 0,6"),
        ("0 0 * * FRI#2", "0 0 * * 5#2"),
        ("0 0 * * sunL", "0 0 * * 7L"),
        ("0 0 L * ?", "0 0 l * *"),
        ("0  0\t* * *", "0 0 * * *"),
    ] {
        assert_eq!(times(names, 20), times(numbers, 20), "{names}");
    }
}

#[test]
fn shortcuts_have_their_documented_meaning() {
    for (nickname, expression) in [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 JAN ?"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * SUN"),
        ("@daily", "0 0 * * *"),
        ("@Midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ] {
        assert_eq!(times(nickname, 20), times(expression, 20));
        assert_eq!(nickname.parse::<Cron>().unwrap().to_string(), nickname);
    }
}

#[test]
fn last_days_of_the_month() {
    assert_eq!(days("0 0 L * *", 3), ["2026-01-31", "2026-02-28", "2026-03-31"]);
    assert_eq!(days("0 0 L-3 2,3 *", 2), ["2026-02-25", "2026-03-28"]);
    assert_eq!(days("0 0 L 2 *", 3)[2], "2028-02-29");
    assert_eq!(days("0 0 L-30 * *", 3), ["2026-01-01", "2026-03-01", "2026-05-01"]);
    assert_eq!(days("0 0 1,15,L * *", 4)[1..], ["2026-01-15", "2026-01-31", "2026-02-01"]);
}

#[test]
fn weekdays_nearest_to_a_day_stay_in_their_month() {
    // 15 August 2026 is a Saturday, 15 February a Sunday.
    assert_eq!(days("0 0 15W 8 *", 1), ["2026-08-14"]);
    assert_eq!(days("0 0 15W 2 *", 1), ["2026-02-16"]);
    // 1 August is a Saturday and 1 February a Sunday; the nearest weekday within the month is the Monday after.
    assert_eq!(days("0 0 1W 8 *", 1), ["2026-08-03"]);
    assert_eq!(days("0 0 1W 2 *", 1), ["2026-02-02"]);
    // 31 May is a Sunday and 31 October a Saturday; the nearest weekday within the month is the Friday before.
    assert_eq!(days("0 0 31W 5,10 *", 2), ["2026-05-29", "2026-10-30"]);
    assert_eq!(days("0 0 LW 1,2,5,10 *", 4), ["2026-01-30", "2026-02-27", "2026-05-29", "2026-10-30"]);
    assert_eq!(days("0 0 1W,15W 8 *", 2), ["2026-08-03", "2026-08-14"]);
}

#[test]
fn numbered_and_last_weekdays() {
    assert_eq!(days("0 0 * * FRI#2", 3), ["2026-01-09", "2026-02-13", "2026-03-13"]);
    assert_eq!(days("0 0 * * MON#5", 3), ["2026-03-30", "2026-06-29", "2026-08-31"]);
    assert_eq!(days("0 0 * * FRIL", 3), ["2026-01-30", "2026-02-27", "2026-03-27"]);
    assert_eq!(days("0 0 * * MON#1,THU#3", 3), ["2026-01-05", "2026-01-15", "2026-02-02"]);
}

#[test]
fn two_day_fields_select_either() {
    assert_eq!(days("0 0 13 * FRI", 4), ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]);
    assert_eq!(days("0 0 ? * FRI", 2), ["2026-01-02", "2026-01-09"]);
    assert_eq!(days("0 0 13 * ?", 2), ["2026-01-13", "2026-02-13"]);
    assert_eq!(days("0 0 L * SUN#1", 3), ["2026-01-04", "2026-01-31", "2026-02-01"]);
}

#[test]
fn rare_days_are_found_however_far_they_are() {
    assert_eq!(days("0 0 29 2 *", 2), ["2028-02-29", "2032-02-29"]);
    let cron: Cron = "0 0 29 2 ?".parse().unwrap();
    let after_2096 = local("2096-03-01 00:00:00");
    assert_eq!(cron.next_in(after_2096, END).map(shown).unwrap(), "2104-02-29 00:00:00");
    assert_eq!(days("0 0 ? 2 MON#5", 3), ["2044-02-29", "2072-02-29", "2112-02-29"]);
}

#[test]
fn a_search_ends_at_its_limit() {
    let cron: Cron = "0 12 * * *".parse().unwrap();
    let noon = local("2026-01-01 12:00:00");
    assert_eq!(cron.next_in(noon, noon), None);
    assert_eq!(cron.next_in(noon - 10, noon), None);
    assert_eq!(cron.next_in(noon, noon + 1), Some(noon));
    assert_eq!(cron.next_in(noon + 1, noon + 1_000), None);
    assert_eq!(cron.last_in(noon, noon + 1), Some(noon));
    assert_eq!(cron.last_in(noon + 1, noon + DAY * 1_000), None);
    assert_eq!(cron.last_in(noon, noon), None);
    assert_eq!((cron.count_in(noon, noon), cron.count_in(noon, noon + 1)), (0, 1));
    assert_eq!(cron.count_in(noon + 1, noon), 0);
}

#[test]
fn counting_agrees_with_iterating() {
    use proptest::prelude::*;
    let crons: Vec<Cron> =
        ["*/7 3-9 * * * *", "0 */5 * * *", "13 1 L,3W * 2#2", "0 0 29 2 *", "59 23 * * *", "0 0 1 * 1"]
            .map(|text| text.parse().unwrap())
            .into();
    proptest!(|(which in 0..6_usize, from in 0..4_000_000_000_i64, length in 0..2_000_000_i64, ms in 0..1_000_i64)| {
        let cron = &crons[which];
        let (from, to) = (from * 1_000 + ms, (from + length) * 1_000);
        let forwards: Vec<i64> =
            std::iter::successors(cron.next_in(from, to), |at| cron.next_in(at + 1, to)).collect();
        let mut backwards: Vec<i64> =
            std::iter::successors(cron.last_in(from, to), |at| cron.last_in(from, *at)).collect();
        backwards.reverse();
        prop_assert_eq!(cron.count_in(from, to), forwards.len() as u64);
        prop_assert_eq!(forwards, backwards);
    });
}
