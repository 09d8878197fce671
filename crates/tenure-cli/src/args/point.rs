//! Moments as people write them about schedules: with an offset, or as a wall clock of the schedule's zone shows them.

use tenure::schedule::Zone;

use super::duration;
use super::values::{clock, millis, time};

/// A moment, as far as it is known without its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// In milliseconds since 1970.
    At(i64),
    /// What a wall clock shows, as if it were in UTC.
    Local(i64),
    /// So many milliseconds ago.
    Ago(u64),
}

/// `2030-01-31T09:30:00Z`, `2030-01-31T09:30`, `2030-01-31`, `2h` (ago), `now`.
pub(crate) fn point(text: &str) -> Result<Point, String> {
    if text == "now" {
        return Ok(Point::Ago(0));
    }
    let ago = || duration(text).ok().map(|ago| Point::Ago(millis(ago)));
    let point = time(text).ok().map(Point::At).or_else(|| clock(text).map(Point::Local)).or_else(ago);
    point.ok_or_else(|| {
        format!(
            "{text:?} is not a moment; write for example 2030-01-31T09:30:00Z, or in the schedule's zone 2030-01-31T09:30 or \
             2030-01-31, or how long ago, such as 2h"
        )
    })
}

impl Point {
    /// In milliseconds since 1970.
    pub(crate) fn in_zone(self, zone: &Zone, now_ms: i64) -> i64 {
        match self {
            Point::At(at) => at,
            Point::Ago(ms) => now_ms.saturating_sub_unsigned(ms),
            // By the clock as it is set a little before: so of a time that is shown twice it is the first, and one that is left
            // out comes later by as much as the clock jumped.
            Point::Local(local) => {
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
        zone.shown(point(text).unwrap().in_zone(&zone, 1_000_000_000_000))
    }

    #[test]
    fn a_wall_clock_is_read_in_its_zone() {
        let berlin = "Europe/Berlin";
        assert_eq!(read("2026-07-01", berlin), "2026-07-01T00:00:00+02:00");
        assert_eq!(read("2026-12-01T09:30", berlin), "2026-12-01T09:30:00+01:00");
        assert_eq!(read("2026-12-01 09:30:15", "America/New_York"), "2026-12-01T09:30:15-05:00");
        assert_eq!(read("2026-12-01T09:30:00Z", berlin), "2026-12-01T10:30:00+01:00");
        // Left out, shown twice, and right after either.
        assert_eq!(read("2026-03-29T02:30", berlin), "2026-03-29T03:30:00+02:00");
        assert_eq!(read("2026-10-25T02:30", berlin), "2026-10-25T02:30:00+02:00");
        assert_eq!(read("2026-03-29T03:00", berlin), "2026-03-29T03:00:00+02:00");
        assert_eq!(read("2026-10-25T03:00", berlin), "2026-10-25T03:00:00+01:00");
        assert_eq!(read("1000s", "UTC"), "2001-09-09T01:30:00+00:00");
        assert_eq!(read("now", "UTC"), "2001-09-09T01:46:40+00:00");
    }

    #[test]
    fn what_is_no_moment_names_itself() {
        for text in ["", "noon", "2030-02-30", "2030-01-31T25:00", "2030-1-1", "-1h"] {
            assert!(point(text).is_err_and(|error| error.contains(&format!("{text:?}"))), "{text}");
        }
    }
}
