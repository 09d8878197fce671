//! What the wall clock of a zone shows, as people read it and as forms give it; and where it jumps.

use tenure_core::schedule::Zone;

use super::words::civil;

pub(super) const DAY_MS: i64 = 86_400_000;

const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// An instant, as a wall clock shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Local {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    /// Milliseconds since its midnight, by the hands of the clock.
    of_day: i64,
    weekday: usize,
    /// By how much the clock is ahead of UTC.
    offset_ms: i64,
}

impl Local {
    pub(super) fn of(zone: &Zone, at_ms: i64) -> Local {
        let offset_ms = zone.offset_ms(at_ms);
        let local = at_ms.saturating_add(offset_ms);
        let days = local.div_euclid(DAY_MS);
        let (year, month, day) = civil(days);
        let weekday = (days + 4).rem_euclid(7) as usize;
        Local { year, month, day, of_day: local.rem_euclid(DAY_MS), weekday, offset_ms }
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

    /// As a form's field for a date and a time has it: `2026-03-29T03:30:00`.
    pub(super) fn field(&self) -> String {
        let (hour, minute, second) = (self.hour(), self.of_day / 60_000 % 60, self.of_day / 1000 % 60);
        let ms = match self.of_day % 1000 {
            0 => String::new(),
            ms => format!(".{ms:03}"),
        };
        format!("{:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}{ms}", self.year, self.month, self.day)
    }
}

/// The instant at which a wall clock shows this, in milliseconds since 1970 as if it were UTC: the first one, if it shows it
/// twice; later by as much as it jumps, if it never does.
pub(super) fn instant(zone: &Zone, local_ms: i64) -> i64 {
    let (before, after) = (zone.offset_ms(local_ms - DAY_MS), zone.offset_ms(local_ms + DAY_MS));
    let shows = |at: &i64| at + zone.offset_ms(*at) == local_ms;
    let first = [local_ms - before, local_ms - after].into_iter().filter(shows).min();
    first.unwrap_or(local_ms - before)
}

/// The first instant of a day.
pub(super) fn midnight(zone: &Zone, days: i64) -> i64 {
    instant(zone, days * DAY_MS)
}

/// The day, counted from 1970, that a wall clock shows.
pub(super) fn day_of(zone: &Zone, at_ms: i64) -> i64 {
    at_ms.saturating_add(zone.offset_ms(at_ms)).div_euclid(DAY_MS)
}

/// The days since 1970 of a date.
pub(super) fn days_of(year: i64, month: i64, day: i64) -> i64 {
    // Years from March on, so that the leap day is the last one of its year: the other way round than `civil`.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// What a form's field for a date and a time gave, on the clock of a zone. `None`: it is none.
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
    // There is no 31 April.
    (civil(days) == (year, month, day))
        .then(|| instant(zone, days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + ms))
}

/// A jump of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Jump {
    pub(super) at_ms: i64,
    /// By how much it goes ahead; back, if negative.
    pub(super) by_ms: i64,
}

impl Jump {
    /// `+1 h`, `−30 min`.
    pub(super) fn brief(&self) -> String {
        let (sign, minutes) = (if self.by_ms < 0 { '−' } else { '+' }, self.by_ms.abs() / 60_000);
        match minutes % 60 {
            0 => format!("{sign}{} h", minutes / 60),
            _ => format!("{sign}{minutes} min"),
        }
    }

    /// `clocks go from 02:00 ahead to 03:00`.
    pub(super) fn said(&self, zone: &Zone) -> String {
        let to = Local::of(zone, self.at_ms);
        let from = Local { of_day: (to.of_day - self.by_ms).rem_euclid(DAY_MS), ..to };
        let way = if self.by_ms < 0 { "back" } else { "ahead" };
        format!("clocks go from {} {way} to {}", from.time(), to.time())
    }
}

/// The first jump after an instant, and not after another. Two that are closer together than half a day are one.
pub(super) fn jump_within(zone: &Zone, after_ms: i64, to_ms: i64) -> Option<Jump> {
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
            return Some(Jump { at_ms: high, by_ms: new - old });
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
    const AHEAD: i64 = 1_774_746_000_000;
    /// 25 October 2026, 01:00 UTC: Berlin goes from 03:00 back to 02:00.
    const BACK: i64 = 1_792_890_000_000;

    #[test]
    fn a_wall_clock_is_read_in_its_zone() {
        let berlin = zone("Europe/Berlin");
        let shown = Local::of(&berlin, AHEAD + 1_800_000);
        assert_eq!((shown.date().as_str(), shown.time().as_str()), ("Sun 29 Mar 2026", "03:30"));
        assert_eq!((shown.offset().as_str(), shown.field().as_str()), ("+02:00", "2026-03-29T03:30:00"));
        assert_eq!(Local::of(&zone("America/St_Johns"), 1_250).offset(), "-03:30");
        assert_eq!(Local::of(&Zone::utc(), 1_250).time(), "00:00:01.250");
    }

    #[test]
    fn what_a_field_shows_is_read_back_as_the_same_instant() {
        for name in
            ["UTC", "Europe/Berlin", "America/Havana", "Asia/Beirut", "Australia/Lord_Howe", "Asia/Kathmandu"]
        {
            let zone = zone(name);
            for n in 0..4000 {
                let at = 1_700_000_000_000 + n * 7_213_456;
                let read = parse(&zone, &Local::of(&zone, at).field()).expect("a time");
                // The second time that a clock shows something is read as the first.
                let again = jump_within(&zone, at - DAY_MS / 4, at).filter(|jump| jump.by_ms < 0);
                assert!(read == at || again.is_some_and(|jump| read == at + jump.by_ms), "{name} {at}");
            }
        }
    }

    #[test]
    fn times_that_a_clock_never_shows_or_shows_twice_are_one_instant() {
        let berlin = zone("Europe/Berlin");
        assert_eq!(parse(&berlin, "2026-03-29T02:30"), Some(AHEAD + 1_800_000));
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
    fn jumps_are_found_and_told() {
        let berlin = zone("Europe/Berlin");
        let ahead = jump_within(&berlin, AHEAD - 20 * DAY_MS, AHEAD + DAY_MS).expect("a jump");
        assert_eq!(ahead, Jump { at_ms: AHEAD, by_ms: 3_600_000 });
        assert_eq!(
            (ahead.brief().as_str(), ahead.said(&berlin).as_str()),
            ("+1 h", "clocks go from 02:00 ahead to 03:00")
        );
        let back = jump_within(&berlin, BACK - 1, BACK).expect("a jump");
        assert_eq!(back.said(&berlin), "clocks go from 03:00 back to 02:00");
        assert_eq!(jump_within(&berlin, BACK, BACK + 30 * DAY_MS), None);
        assert_eq!(jump_within(&Zone::utc(), 0, 400 * DAY_MS), None);
        // Where midnight is jumped over, a day begins later.
        let beirut = zone("Asia/Beirut");
        let days = days_of(2026, 3, 29);
        assert_eq!(Local::of(&beirut, midnight(&beirut, days)).time(), "01:00");
        assert_eq!(day_of(&beirut, midnight(&beirut, days)), days);
        assert_eq!(day_of(&beirut, midnight(&beirut, days) - 1), days - 1);
    }
}
