//! Parsers of argument values: modes, states, tokens, rates, sizes, start offsets and instants.

use std::time::Duration;

use tenure::Token;
use tenure::port::{AssignmentMode, BrokerFallback, RateLimit, StartOffset, TaskState};
use tenure::runtime::wall_ms;

use super::duration;

/// A concurrency key and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConcurrencyArg {
    pub(crate) key: String,
    pub(crate) limit: u32,
}

pub(crate) fn mode(text: &str) -> Result<AssignmentMode, String> {
    let known = [AssignmentMode::Distributed, AssignmentMode::Exclusive]
        .into_iter()
        .find(|mode| mode.as_str() == text);
    known.ok_or_else(|| format!("invalid mode {text:?}: use distributed or exclusive"))
}

pub(crate) fn fallback(text: &str) -> Result<BrokerFallback, String> {
    let known =
        [BrokerFallback::None, BrokerFallback::Distributed].into_iter().find(|it| it.as_str() == text);
    known.ok_or_else(|| format!("invalid fallback {text:?}: use none or distributed"))
}

pub(crate) fn state(text: &str) -> Result<TaskState, String> {
    TaskState::from_name(text).ok_or_else(|| {
        let words: Vec<_> = TaskState::ALL.iter().map(|state| state.as_str()).collect();
        format!("invalid task state {text:?}: use one of {}", words.join(", "))
    })
}

pub(crate) fn priority(text: &str) -> Result<i32, String> {
    text.parse().map_err(|_| format!("invalid priority {text:?}: use a whole number such as 100 or -5"))
}

/// Parses a fencing token: `epoch.grant`, or a number.
pub(crate) fn token(text: &str) -> Result<Token, String> {
    text.parse()
        .map_err(|_| format!("invalid token {text:?}: use the token printed by the claim, such as 7 or 1.7"))
}

/// Parses `KEY` or `KEY:LIMIT`; the default limit is 1.
pub(crate) fn concurrency(text: &str) -> Result<ConcurrencyArg, String> {
    let (key, limit) = match text.rsplit_once(':') {
        Some((key, number)) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
            (key, number.parse().ok().filter(|&limit| limit > 0))
        }
        _ => (text, Some(1)),
    };
    match limit {
        Some(limit) if !key.is_empty() => Ok(ConcurrencyArg { key: key.to_owned(), limit }),
        _ => Err(format!("invalid concurrency key {text:?}: use KEY or KEY:LIMIT with a limit from 1")),
    }
}

/// Parses a rate: `100/s`, `5/10s`, `1000/1h`.
pub(crate) fn rate(text: &str) -> Result<RateLimit, String> {
    let hint = || format!("invalid rate {text:?}: use for example 100/s, 5/10s or 1000/1h");
    let (count, per) = text.split_once('/').ok_or_else(hint)?;
    let count = count.trim().parse().ok().filter(|&count| count > 0).ok_or_else(hint)?;
    let per = per.trim();
    // `100/s` is `100/1s`.
    let per = if per.starts_with(|c: char| c.is_ascii_digit()) {
        duration(per)
    } else {
        duration(&format!("1{per}"))
    };
    let per_ms = per.map(millis).map_err(|_| hint())?;
    if per_ms == 0 { Err(hint()) } else { Ok(RateLimit { count, per_ms }) }
}

/// Parses a start offset: `earliest`, `latest`, an offset, an instant, or an age.
pub(crate) fn start_offset(text: &str) -> Result<StartOffset, String> {
    match text {
        "earliest" => return Ok(StartOffset::Earliest),
        "latest" => return Ok(StartOffset::Latest),
        _ => {}
    }
    let ago = || duration(text).ok().map(|ago| wall_ms().saturating_sub_unsigned(millis(ago)).max(0));
    let position = text.parse().ok().map(StartOffset::Offset);
    position.or_else(|| rfc3339_millis(text).or_else(ago).map(StartOffset::PublishedAtMs)).ok_or_else(|| {
        format!(
            "invalid start {text:?}: use earliest, latest, an offset such as 4711, an instant such as 2030-01-31T09:30:00Z, or an \
             age such as 2h"
        )
    })
}

/// Parses a size in bytes: `4096`, `64KiB`, `1MiB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        _ => None,
    };
    let size = number.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    size.ok_or_else(|| format!("invalid size {text:?}: use for example 4096, 64KiB or 1MiB"))
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Parses an RFC 3339 instant. Returns milliseconds since 1970.
pub(crate) fn instant(text: &str) -> Result<i64, String> {
    rfc3339_millis(text).ok_or_else(|| {
        format!(
            "invalid instant {text:?}: use RFC 3339, for example 2030-01-31T09:30:00Z or 2030-01-31T09:30:00+02:00"
        )
    })
}

/// Parses a local time: `2030-01-31T09:30:00`, `2030-01-31T09:30` or `2030-01-31`. Returns milliseconds since 1970, as if
/// the time were in UTC.
pub(crate) fn local_time(text: &str) -> Option<i64> {
    let zero = match text.len() {
        10 => "T00:00:00Z",
        16 => ":00Z",
        _ => "Z",
    };
    // A text with a UTC offset is an instant, not a local time.
    text.ends_with(|c: char| c.is_ascii_digit()).then(|| rfc3339_millis(&format!("{text}{zero}")))?
}

fn rfc3339_millis(text: &str) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let rest = rest.strip_prefix(['T', 't', ' '])?;
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = rest.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').map_or((clock, "0"), |(clock, fraction)| (clock, fraction));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let good = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !good || fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let millis: i64 = format!("{fraction:0<3}")[..3].parse().ok()?;
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset(zone)?;
    Some(seconds * 1000 + millis)
}

/// Parses a UTC offset: `Z` or `+02:00`. Returns seconds east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    if zone.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, digits) = zone.split_at_checked(1)?;
    let [hours, minutes] = numbers(digits, ':', [2, 2])?;
    let seconds = hours * 3600 + minutes * 60;
    (hours < 24 && minutes < 60).then_some(if sign == "-" { -seconds } else { seconds })
}

/// Parses numbers with exactly these many digits, separated by `between`.
fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(between);
    let mut numbers = [0; N];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a Gregorian date. Years are counted from March, so that a leap day is the last day of a year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Formats an instant: `2030-01-31 09:30:00Z`.
pub(crate) fn format_instant(at_ms: i64) -> String {
    let (days, ms) = (at_ms.div_euclid(86_400_000), at_ms.rem_euclid(86_400_000));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let seconds = ms / 1000;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_parsed() {
        assert_eq!(instant("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(instant("2030-01-31T09:30:00Z"), Ok(1_896_082_200_000));
        assert_eq!(instant("2030-01-31T09:30:00.25+02:00"), Ok(1_896_075_000_250));
        assert_eq!(instant("2024-02-29t12:00:00.123456-05:30"), Ok(1_709_227_800_123));
        assert_eq!(format_instant(1_896_082_200_000), "2030-01-31 09:30:00Z");
    }

    #[test]
    fn an_invalid_instant_is_named_in_the_error() {
        for text in [
            "",
            "tomorrow",
            "2030-01-31",
            "2030-01-31T09:30:00",
            "2030-13-01T00:00:00Z",
            "2030-02-29T00:00:00Z",
            "2030-01-01T24:00:00Z",
            "2030-1-1T0:0:0Z",
            "2030-01-31T09:30:00.Z",
            "2030-01-31T09:30:00+2",
            "２０３０-01-31T09:30:00Z",
        ] {
            let error = instant(text).expect_err(text);
            assert!(error.contains(text) && error.contains("09:30"), "{error}");
        }
    }

    #[test]
    fn rates_keys_and_tokens_are_parsed_or_named_in_the_error() {
        assert_eq!(rate("100/s"), Ok(RateLimit { count: 100, per_ms: 1000 }));
        assert_eq!(rate("5/10s"), Ok(RateLimit { count: 5, per_ms: 10_000 }));
        assert_eq!(concurrency("tenant-7"), Ok(ConcurrencyArg { key: "tenant-7".into(), limit: 1 }));
        assert_eq!(concurrency("tenant:7:2"), Ok(ConcurrencyArg { key: "tenant:7".into(), limit: 2 }));
        assert_eq!(concurrency("a:b"), Ok(ConcurrencyArg { key: "a:b".into(), limit: 1 }));
        assert_eq!(token("1.7"), Ok(Token::from_u64((1 << 40) + 7)));
        for (text, error) in [
            ("100", rate("100").map(drop)),
            ("0/s", rate("0/s").map(drop)),
            ("1/0s", rate("1/0s").map(drop)),
            ("key:0", concurrency("key:0").map(drop)),
            (":3", concurrency(":3").map(drop)),
            ("seven", token("seven").map(drop)),
            ("strict", mode("strict").map(drop)),
            ("direct", fallback("direct").map(drop)),
            ("redy", state("redy").map(drop)),
        ] {
            assert!(error.is_err_and(|error| error.contains(text)), "{text}");
        }
    }

    #[test]
    fn start_offsets_and_sizes_are_parsed_or_named_in_the_error() {
        assert_eq!(start_offset("earliest"), Ok(StartOffset::Earliest));
        assert_eq!(start_offset("latest"), Ok(StartOffset::Latest));
        assert_eq!(start_offset("4711"), Ok(StartOffset::Offset(4711)));
        assert_eq!(start_offset("1970-01-01T00:00:01Z"), Ok(StartOffset::PublishedAtMs(1000)));
        let hour = wall_ms() - 3_600_000;
        assert!(
            matches!(start_offset("1h"), Ok(StartOffset::PublishedAtMs(at)) if (hour - 60_000..=hour + 60_000).contains(&at))
        );
        assert_eq!(
            start_offset("100000000d"),
            Ok(StartOffset::PublishedAtMs(0)),
            "before all time is the beginning"
        );
        assert_eq!((bytes("4096"), bytes("64KiB"), bytes("1MiB")), (Ok(4096), Ok(65_536), Ok(1_048_576)));
        for text in ["", "soon", "-1", "18446744073709551616", "1.5"] {
            assert!(
                start_offset(text).is_err_and(|error| error.contains(text) && error.contains("earliest")),
                "{text}"
            );
        }
        for text in ["", "KiB", "64KB", "99999999999999MiB", "-1"] {
            assert!(
                bytes(text).is_err_and(|error| error.contains(text) && error.contains("64KiB")),
                "{text}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn no_instant_text_panics(text in r"[0-9]{0,5}-?[0-9]{0,3}-?[0-9]{0,3}.?[0-9:.]{0,14}.{0,6}") {
            let _ = instant(&text);
        }

        #[test]
        fn a_formatted_instant_is_parsed(seconds in 0i64..253_402_300_800) {
            proptest::prop_assert_eq!(instant(&format_instant(seconds * 1000)), Ok(seconds * 1000));
        }
    }
}
