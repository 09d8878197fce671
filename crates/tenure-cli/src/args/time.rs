//! Times in options of `tenure schedules`: instants, local times in the time zone of the schedule, and ages.

use tenure::rules::schedule::Zone;

use super::duration;
use super::parsers::{instant, local_time, millis};

/// A time option before its time zone is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeArg {
    /// Instant in milliseconds since 1970.
    At(i64),
    /// Local time, in milliseconds since 1970 as if it were in UTC.
    Local(i64),
    /// Age in milliseconds.
    Ago(u64),
}

/// Parses `2030-01-31T09:30:00Z`, `2030-01-31T09:30`, `2030-01-31`, `2h` (an age) or `now`.
pub(crate) fn time_arg(text: &str) -> Result<TimeArg, String> {
    if text == "now" {
        return Ok(TimeArg::Ago(0));
    }
    let ago = || duration(text).ok().map(|ago| TimeArg::Ago(millis(ago)));
    let point =
        instant(text).ok().map(TimeArg::At).or_else(|| local_time(text).map(TimeArg::Local)).or_else(ago);
    point.ok_or_else(|| {
        format!(
            "invalid instant {text:?}: use 2030-01-31T09:30:00Z, a local time such as 2030-01-31T09:30 or 2030-01-31, or an age \
             such as 2h"
        )
    })
}

impl TimeArg {
    /// Converts to an instant in milliseconds since 1970.
    pub(crate) fn in_zone(self, zone: &Zone, now_ms: i64) -> i64 {
        match self {
            TimeArg::At(at) => at,
            TimeArg::Ago(ms) => now_ms.saturating_sub_unsigned(ms),
            // Use the UTC offset in force shortly before. A local time that occurs twice means its first occurrence, and one
            // that does not exist moves later by the length of the gap.
            TimeArg::Local(local) => {
                let guess = local.saturating_sub(zone.offset_ms(local));
                let before = zone.offset_ms(guess.saturating_sub(12 * 3_600_000));
                let at = local.saturating_sub(before);
                match at.saturating_add(zone.offset_ms(at)) == local {
                    true => at,
                    false => match guess.saturating_add(zone.offset_ms(guess)) == local {
                        true => guess,
                        false => at,
                    },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, zone: &str) -> String {
        let zone: Zone = zone.parse().unwrap();
        zone.format_local(time_arg(text).unwrap().in_zone(&zone, 1_000_000_000_000))
    }

    #[test]
    fn a_local_time_is_parsed_in_its_time_zone() {
        let berlin = "Europe/Berlin";
        assert_eq!(read("2026-07-01", berlin), "2026-07-01T00:00:00+02:00");
        assert_eq!(read("2026-12-01T09:30", berlin), "2026-12-01T09:30:00+01:00");
        assert_eq!(read("2026-12-01 09:30:15", "America/New_York"), "2026-12-01T09:30:15-05:00");
        assert_eq!(read("2026-12-01T09:30:00Z", berlin), "2026-12-01T10:30:00+01:00");
        // In a DST gap, in a DST overlap, and right after each.
        assert_eq!(read("2026-03-29T02:30", berlin), "2026-03-29T03:30:00+02:00");
        assert_eq!(read("2026-10-25T02:30", berlin), "2026-10-25T02:30:00+02:00");
        assert_eq!(read("2026-03-29T03:00", berlin), "2026-03-29T03:00:00+02:00");
        assert_eq!(read("2026-10-25T03:00", berlin), "2026-10-25T03:00:00+01:00");
        assert_eq!(read("1000s", "UTC"), "2001-09-09T01:30:00+00:00");
        assert_eq!(read("now", "UTC"), "2001-09-09T01:46:40+00:00");
    }

    #[test]
    fn an_invalid_time_is_named_in_the_error() {
        for text in ["", "noon", "2030-02-30", "2030-01-31T25:00", "2030-1-1", "-1h"] {
            assert!(time_arg(text).is_err_and(|error| error.contains(&format!("{text:?}"))), "{text}");
        }
    }
}
