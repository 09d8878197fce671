//! Numbers and times as people read them.

use maud::{Markup, html};

/// A time that has passed, in one or two units.
pub(super) fn lasted(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {:02} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// What is left of something short, to a tenth of a second; the script counts on in the same form.
pub(super) fn left(ms: u64) -> String {
    if ms == 0 { "silent".into() } else { format!("{}.{} s", ms / 1000, ms % 1000 / 100) }
}

/// How long ago something was, and when exactly.
pub(super) fn ago(then_ms: i64, now_ms: i64) -> Markup {
    let exact = utc(then_ms);
    html! { time datetime=(exact.replace(' ', "T").replace("TUTC", "Z")) title=(exact) { (lasted(now_ms - then_ms)) " ago" } }
}

/// A moment by the wall clock: `2026-11-15 12:03:04 UTC`.
pub(super) fn utc(ms: i64) -> String {
    let (days, seconds) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000) / 1000);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds % 3600 / 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Year, month and day of a number of days since 1970, after Howard Hinnant's `civil_from_days`.
fn civil(days: i64) -> (i64, i64, i64) {
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

/// `1 candidate`, `2 candidates`.
pub(super) fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_utc() {
        // As `date -u -d @SECONDS` has them.
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_399_999), "2000-02-28 23:59:59 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_700_000_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(utc(4_102_444_800_000), "2100-01-01 00:00:00 UTC");
        assert_eq!(utc(-1000), "1969-12-31 23:59:59 UTC");
    }

    #[test]
    fn time_that_passed_has_at_most_two_units() {
        assert_eq!(lasted(-5), "0 s");
        assert_eq!(lasted(59_999), "59 s");
        assert_eq!(lasted(61_000), "1 min 01 s");
        assert_eq!(lasted(3_660_000), "1 h 01 min");
        assert_eq!(lasted(90_000_000), "1 d 01 h");
    }
}
