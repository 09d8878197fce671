//! Formats numbers, durations and instants.

use maud::{Markup, html};

/// A duration in one or two units: `2 m 05 s`.
pub(super) fn elapsed(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Seconds with one decimal, `expired` at zero. The countdown of the script uses the same format.
pub(super) fn seconds(ms: u64) -> String {
    if ms == 0 { "expired".into() } else { format!("{}.{} s", ms / 1000, ms % 1000 / 100) }
}

/// A past instant as its age, with the exact time as a tooltip.
pub(super) fn ago(then_ms: i64, now_ms: i64) -> Markup {
    let exact = utc(then_ms);
    html! { time datetime=(exact.replace(' ', "T").replace("TUTC", "Z")) title=(exact) { (elapsed(now_ms.saturating_sub(then_ms))) " ago" } }
}

/// An instant in UTC: `2026-11-15 12:03:04 UTC`.
pub(super) fn utc(ms: i64) -> String {
    let (days, seconds) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000) / 1000);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds % 3600 / 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a number of days since 1970, after Howard Hinnant's `civil_from_days`.
pub(super) fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Maximum number of characters of a text in a table row.
const LINE: usize = 160;

/// The first line of a text, truncated to a table row; `…` marks omitted text.
pub(super) fn first_line(text: &str) -> String {
    let text = text.trim();
    let line = text.lines().next().unwrap_or_default().trim_end();
    let mut shown: String = line.chars().take(LINE).collect();
    if shown.len() < text.len() {
        shown.push_str(" …");
    }
    shown
}

/// `1 candidate`, `2 candidates`.
pub(super) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// A number with thousands separators: `12,345`.
pub(super) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with a unit prefix: `980`, `1.2k`, `34k`, `5.6M`.
pub(super) fn brief(n: u64) -> String {
    let scaled = |unit: u64, sign: &str| match n / unit {
        whole if whole < 10 && n % unit * 10 / unit > 0 => format!("{whole}.{}{sign}", n % unit * 10 / unit),
        whole => format!("{whole}{sign}"),
    };
    match n {
        0..1000 => n.to_string(),
        1000..1_000_000 => scaled(1000, "k"),
        1_000_000..1_000_000_000 => scaled(1_000_000, "M"),
        _ => scaled(1_000_000_000, "G"),
    }
}

/// A rate per second.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        rate if rate <= 0.0 => "0/s".into(),
        rate if rate < 0.1 => "<0.1/s".into(),
        rate if rate < 10.0 => format!("{rate:.1}/s"),
        rate => format!("{}/s", number(rate.round() as u64)),
    }
}

/// A duration from milliseconds to days.
pub(super) fn span(ms: u64) -> String {
    match ms {
        0..1000 => format!("{ms} ms"),
        1000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        _ => elapsed(i64::try_from(ms).unwrap_or(i64::MAX)),
    }
}

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A duration as forms take it, in the largest unit without a fraction: `90s`, `24h`, `30d`.
pub(super) fn duration(ms: u64) -> String {
    let exact = UNITS.into_iter().find(|(_, unit)| ms > 0 && ms.is_multiple_of(*unit));
    exact.map_or_else(|| "0s".into(), |(word, unit)| format!("{}{word}", ms / unit))
}

/// Parse a duration of a form into milliseconds. Accepts `min` for `m`.
pub(super) fn milliseconds(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (count, unit) = text.split_at(digits);
    let unit = unit.trim();
    let unit = if unit == "min" { "m" } else { unit };
    let count: u64 = count.parse().ok()?;
    let (_, ms) = UNITS.into_iter().find(|(word, _)| *word == unit)?;
    count.checked_mul(ms).filter(|ms| *ms <= i64::MAX as u64)
}

/// An instant relative to now, with the exact time as a tooltip.
pub(super) fn until(then_ms: i64, now_ms: i64) -> Markup {
    let exact = utc(then_ms);
    let stamp = exact.replace(' ', "T").replace("TUTC", "Z");
    html! {
        time datetime=(stamp) title=(exact) {
            @if then_ms > now_ms { "in " (elapsed(then_ms - now_ms)) } @else { (elapsed(now_ms.saturating_sub(then_ms))) " ago" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_with_separators_and_prefixes() {
        assert_eq!([number(7), number(1234), number(12_345_678)], ["7", "1,234", "12,345,678"]);
        let shown: Vec<_> = [0, 999, 1000, 1234, 34_900, 999_999, 5_600_000].map(brief).into();
        assert_eq!(shown, ["0", "999", "1k", "1.2k", "34k", "999k", "5.6M"]);
        assert_eq!([rate(0.0), rate(0.04), rate(3.25), rate(4321.4)], ["0/s", "<0.1/s", "3.2/s", "4,321/s"]);
        assert_eq!([span(12), span(1340), span(125_000)], ["12 ms", "1.3 s", "2 m 05 s"]);
    }

    #[test]
    fn a_row_shows_the_first_line_of_a_trace() {
        assert_eq!(first_line("it failed"), "it failed");
        assert_eq!(first_line("\npanicked at a.rs:1\n  0: main\n  1: start"), "panicked at a.rs:1 …");
        assert_eq!(first_line(&"é".repeat(500)), format!("{} …", "é".repeat(160)));
    }

    #[test]
    fn a_formatted_duration_parses_to_the_same_value() {
        for ms in [0, 1, 999, 1000, 1500, 90_000, 5_400_000, 86_400_000, 2_592_000_000] {
            assert_eq!(milliseconds(&duration(ms)), Some(ms), "{}", duration(ms));
        }
        assert_eq!([duration(5000), duration(90_000), duration(86_400_000)], ["5s", "90s", "1d"]);
        assert_eq!([milliseconds(" 5 m "), milliseconds("5min")], [Some(300_000); 2]);
        for wrong in ["", "5", "s", "-5s", "5 weeks", "1.5h", "99999999999999999999s", "9999999999999999d"] {
            assert_eq!(milliseconds(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn instants_are_formatted_in_utc() {
        // Expected values are from `date -u -d @SECONDS`.
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399_999), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_700_000_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(utc(4_102_444_800_000), "2100-01-01 00:00:00 UTC");
        assert_eq!(utc(-1000), "1969-12-31 23:59:59 UTC");
    }

    #[test]
    fn an_elapsed_time_has_at_most_two_units() {
        assert_eq!(elapsed(-5), "0 s");
        assert_eq!(elapsed(59_999), "59 s");
        assert_eq!(elapsed(61_000), "1 m 01 s");
        assert_eq!(elapsed(3_660_000), "1 h 01 m");
        assert_eq!(elapsed(90_000_000), "1 d 01 h");
    }
}
