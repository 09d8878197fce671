//! Local times of a time zone, for display and for form fields; and clock changes (DST).

use tenure_core::rules::schedule::Zone;

use super::format::civil;

pub(super) const DAY_MS: i64 = 86_400_000;

const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// An instant as local time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalTime {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    /// Milliseconds since local midnight.
    of_day: i64,
    weekday: usize,
    /// Offset from UTC.
    offset_ms: i64,
}

impl LocalTime {
    pub(super) fn of(zone: &Zone, at_ms: i64) -> LocalTime {
        let offset_ms = zone.offset_ms(at_ms);
        let local = at_ms.saturating_add(offset_ms);
        let days = local.div_euclid(DAY_MS);
        let (year, month, day) = civil(days);
        let weekday = (days + 4).rem_euclid(7) as usize;
        LocalTime { year, month, day, of_day: local.rem_euclid(DAY_MS), weekday, offset_ms }
    }

    /// `Sun`.
    pub(super) fn weekday(&self) -> &'static str {
        WEEKDAYS[self.weekday]
    }

    /// `Mar`.
    pub(super) fn month(&self) -> &'static str {
        MONTHS[(self.month - 1).clamp(0, 11) as usize]
    }

    /// `Sun 29 Mar 2026`.
    pub(super) fn date(&self) -> String {
        format!("{} {} {} {}", self.weekday(), self.day, self.month(), self.year)
    }

    pub(super) fn hour(&self) -> i64 {
        self.of_day / 3_600_000
    }

    /// `03:30`, with seconds and milliseconds if there are any.
    pub(super) fn time(&self) -> String {
        let (minute, second, ms) = (self.of_day / 60_000 % 60, self.of_day / 1000 % 60, self.of_day % 1000);
        let plain = format!("{:02}:{minute:02}", self.hour());
        match (second, ms) {
            (0, 0) => plain,
            (second, 0) => format!("{plain}:{second:02}"),
            (second, ms) => format!("{plain}:{second:02}.{ms:03}"),
        }
    }

    /// `+02:00`.
    pub(super) fn offset(&self) -> String {
        let (sign, minutes) = (if self.offset_ms < 0 { '-' } else { '+' }, self.offset_ms.abs() / 60_000);
        format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
    }

    /// The value of a `datetime-local` field: `2026-03-29T03:30:00`.
    pub(super) fn field(&self) -> String {
        let (hour, minute, second) = (self.hour(), self.of_day / 60_000 % 60, self.of_day / 1000 % 60);
        let ms = match self.of_day % 1000 {
            0 => String::new(),
            ms => format!(".{ms:03}"),
        };
        format!("{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}{ms}", self.year, self.month, self.day)
    }
}

/// The instant of a local time, which is given in milliseconds since 1970 as if it were UTC. In a DST overlap
/// it is the first occurrence; in a DST gap it is shifted by the length of the gap.
pub(super) fn instant(zone: &Zone, local_ms: i64) -> i64 {
    let (before, after) = (zone.offset_ms(local_ms - DAY_MS), zone.offset_ms(local_ms + DAY_MS));
    let shows = |at: &i64| at + zone.offset_ms(*at) == local_ms;
    let first = [local_ms - before, local_ms - after].into_iter().filter(shows).min();
    first.unwrap_or(local_ms - before)
}

/// The first instant of a local day.
pub(super) fn midnight(zone: &Zone, days: i64) -> i64 {
    instant(zone, days * DAY_MS)
}

/// The local day of an instant, in days since 1970.
pub(super) fn day_of(zone: &Zone, at_ms: i64) -> i64 {
    at_ms.saturating_add(zone.offset_ms(at_ms)).div_euclid(DAY_MS)
}

/// The days since 1970 of a date.
pub(super) fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Years start in March, so that the leap day is the last day of its year. Inverse of `civil`.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Parse the value of a `datetime-local` field as local time of a zone; `None` if it is invalid.
pub(super) fn parse(zone: &Zone, text: &str) -> Option<i64> {
    let (date, time) = text.trim().split_once(['T', ' '])?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let (time, ms) = match time.split_once('.') {
        Some((time, ms)) if (1..=3).contains(&ms.len()) => {
            (time, ms.parse::<u16>().ok()? as i64 * 10i64.pow(3 - ms.len() as u32))
        }
        Some(_) => return None,
        None => (time, 0),
    };
    let mut parts = time.splitn(3, ':').map(|part| part.parse::<u8>().ok().map(i64::from));
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    let fits = (1970..=9998).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let days = fits.then(|| days_of(year, month, day))?;
    // Reject dates such as 31 April.
    (civil(days) == (year, month, day))
        .then(|| instant(zone, days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + ms))
}

/// A clock change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockChange {
    pub(super) at_ms: i64,
    /// Change of the offset: positive forward, negative back.
    pub(super) by_ms: i64,
}

impl ClockChange {
    /// `+1 h`, `−30 m`.
    pub(super) fn brief(&self) -> String {
        let (sign, minutes) = (if self.by_ms < 0 { '−' } else { '+' }, self.by_ms.abs() / 60_000);
        match minutes % 60 {
            0 => format!("{sign}{} h", minutes / 60),
            _ => format!("{sign}{minutes} m"),
        }
    }

    /// `clock change from 02:00 forward to 03:00`.
    pub(super) fn describe(&self, zone: &Zone) -> String {
        let to = LocalTime::of(zone, self.at_ms);
        let from = LocalTime { of_day: (to.of_day - self.by_ms).rem_euclid(DAY_MS), ..to };
        let way = if self.by_ms < 0 { "back" } else { "forward" };
        format!("clock change from {} {way} to {}", from.time(), to.time())
    }
}

/// The first clock change after `after_ms` and not after `to_ms`. Changes less than half a day apart may be merged.
pub(super) fn clock_change_within(zone: &Zone, after_ms: i64, to_ms: i64) -> Option<ClockChange> {
    const STEP: i64 = DAY_MS / 2;
    let mut from = after_ms;
    while from < to_ms {
        let to = from.saturating_add(STEP).min(to_ms);
        let (old, new) = (zone.offset_ms(from), zone.offset_ms(to));
        if old != new {
            let (mut low, mut high) = (from, to);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if zone.offset_ms(middle) == old { low = middle } else { high = middle }
            }
            return Some(ClockChange { at_ms: high, by_ms: new - old });
        }
        from = to;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> Zone {
        name.parse().expect("a zone")
    }

    /// 29 March 2026, 01:00 UTC: Berlin goes from 02:00 to 03:00.
    const FORWARD: i64 = 1_774_746_000_000;
    /// 25 October 2026, 01:00 UTC: Berlin goes from 03:00 back to 02:00.
    const BACK: i64 = 1_792_890_000_000;

    #[test]
    fn a_local_time_is_formatted_in_its_zone() {
        let berlin = zone("Europe/Berlin");
        let shown = LocalTime::of(&berlin, FORWARD + 1_800_000);
        assert_eq!((shown.date().as_str(), shown.time().as_str()), ("Sun 29 Mar 2026", "03:30"));
        assert_eq!((shown.offset().as_str(), shown.field().as_str()), ("+02:00", "2026-03-29T03:30:00"));
        assert_eq!(LocalTime::of(&zone("America/St_Johns"), 1_250).offset(), "-03:30");
        assert_eq!(LocalTime::of(&Zone::utc(), 1_250).time(), "00:00:01.250");
    }

    #[test]
    fn a_formatted_field_parses_to_the_same_instant() {
        for name in
            ["UTC", "Europe/Berlin", "America/Havana", "Asia/Beirut", "Australia/Lord_Howe", "Asia/Kathmandu"]
        {
            let zone = zone(name);
            for n in 0..4000 {
                let at = 1_700_000_000_000 + n * 7_213_456;
                let read = parse(&zone, &LocalTime::of(&zone, at).field()).expect("a time");
                // A second occurrence is parsed as the first.
                let again = clock_change_within(&zone, at - DAY_MS / 4, at).filter(|change| change.by_ms < 0);
                assert!(read == at || again.is_some_and(|change| read == at + change.by_ms), "{name} {at}");
            }
        }
    }

    #[test]
    fn local_times_in_dst_gaps_and_overlaps_map_to_one_instant() {
        let berlin = zone("Europe/Berlin");
        assert_eq!(parse(&berlin, "2026-03-29T02:30"), Some(FORWARD + 1_800_000));
        assert_eq!(parse(&berlin, "2026-10-25 02:30:00"), Some(BACK - 1_800_000));
        for wrong in [
            "",
            "tomorrow",
            "2026-02-30T00:00",
            "2026-13-01T00:00",
            "2026-01-01",
            "2026-01-01T24:00",
            "9999-01-01T00:00",
            "2026-01-01T00:00:00.1234",
            "-1-1-1T0:0",
        ] {
            assert_eq!(parse(&berlin, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn clock_changes_are_found_and_described() {
        let berlin = zone("Europe/Berlin");
        let forward = clock_change_within(&berlin, FORWARD - 20 * DAY_MS, FORWARD + DAY_MS).expect("a jump");
        assert_eq!(forward, ClockChange { at_ms: FORWARD, by_ms: 3_600_000 });
        assert_eq!(
            (forward.brief().as_str(), forward.describe(&berlin).as_str()),
            ("+1 h", "clock change from 02:00 forward to 03:00")
        );
        let back = clock_change_within(&berlin, BACK - 1, BACK).expect("a jump");
        assert_eq!(back.describe(&berlin), "clock change from 03:00 back to 02:00");
        assert_eq!(clock_change_within(&berlin, BACK, BACK + 30 * DAY_MS), None);
        assert_eq!(clock_change_within(&Zone::utc(), 0, 400 * DAY_MS), None);
        // If midnight is in a DST gap, the day starts later.
        let beirut = zone("Asia/Beirut");
        let days = days_of(2026, 3, 29);
        assert_eq!(LocalTime::of(&beirut, midnight(&beirut, days)).time(), "01:00");
        assert_eq!(day_of(&beirut, midnight(&beirut, days)), days);
        assert_eq!(day_of(&beirut, midnight(&beirut, days) - 1), days - 1);
    }
}
