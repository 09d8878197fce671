//! Where somebody is who only looks: how far in each slot, as one short text.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::port::{Event, EventId, Position, SLOTS_MAX};

/// The longest text of a cursor, in bytes.
pub const CURSOR_MAX: usize = 15_000;

/// Before everything else in the text, so that another form may follow some day.
const FORM: u8 = 1;

/// A reader's place in each slot that it reads: what `Last-Event-ID` carries, so that a stream goes on where it broke off.
///
/// What was published together shares a position, and a stream may break off within it: so the last event that was passed of such
/// a unit is kept too. Nothing is skipped after a break, and nothing comes twice.
///
/// ```
/// use tenure_core::event::Cursor;
///
/// let cursor = Cursor::new([(0, 17), (5, 12), (63, 0)]);
/// let text = cursor.to_string();
/// assert_eq!(text.parse(), Ok(cursor));
/// assert!(text.len() < 20, "{text}");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    after: BTreeMap<u32, Position>,
    within: Option<(u32, EventId)>,
}

/// Why a text is no cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{shown:?} is not a place in a stream; take the `id` of an event from it, as it is, or begin without one"
)]
pub struct CursorError {
    shown: String,
}

impl Cursor {
    /// After these positions.
    pub fn new(after: impl IntoIterator<Item = (u32, Position)>) -> Cursor {
        Cursor { after: after.into_iter().collect(), within: None }
    }

    /// Each slot, and after which position to read: as [`ReadAsk::after`](crate::port::ReadAsk) wants it. What of it was passed
    /// already tells [`has_passed`](Self::has_passed).
    pub fn after(&self) -> Vec<(u32, Position)> {
        self.after.iter().map(|(slot, position)| (*slot, *position)).collect()
    }

    /// Whether this event, which was read again, was passed before.
    pub fn has_passed(&self, event: &Event) -> bool {
        let after = self.after.get(&event.slot).is_some_and(|position| event.position <= *position);
        after || self.within.is_some_and(|(slot, id)| slot == event.slot && event.id <= id)
    }

    /// This event was passed on; whether it was the last of what was published together ([`units`](super::units)). Units are passed
    /// one after the other.
    pub fn pass(&mut self, event: &Event, last_of_unit: bool) {
        if last_of_unit {
            self.after.insert(event.slot, event.position);
            self.within = None;
        } else {
            self.within = Some((event.slot, event.id));
        }
    }
}

/// Positions lie close to each other, so their distance from the greatest is written, slot by slot, seven bits to the byte.
impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let greatest = self.after.values().copied().max().unwrap_or(0);
        let mut bytes = vec![FORM];
        put(&mut bytes, greatest.into());
        let (within, of) = self.within.map_or((0, EventId(0)), |(slot, id)| (u128::from(slot) + 1, id));
        put(&mut bytes, within);
        if within > 0 {
            put(&mut bytes, of.0.into());
        }
        let (mut next, mut zeros) = (0, 0);
        for (slot, position) in &self.after {
            if (*slot > next || *position > 0) && zeros > 0 {
                put_run(&mut bytes, ZEROS, &mut zeros);
            }
            if *slot > next {
                put_run(&mut bytes, ABSENT, &mut (*slot - next));
            }
            if *position == 0 {
                zeros += 1;
            } else {
                put(&mut bytes, u128::from(greatest - position) + DISTANCES);
            }
            next = slot + 1;
        }
        if zeros > 0 {
            put_run(&mut bytes, ZEROS, &mut zeros);
        }
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// A run of slots that are not read follows.
const ABSENT: u128 = 0;

/// A run of slots of which nothing was passed follows.
const ZEROS: u128 = 1;

/// From here on, a distance.
const DISTANCES: u128 = 2;

fn put_run(bytes: &mut Vec<u8>, what: u128, count: &mut u32) {
    put(bytes, what);
    put(bytes, std::mem::take(count).into());
}

fn put(bytes: &mut Vec<u8>, mut number: u128) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn get(bytes: &mut &[u8]) -> Option<u128> {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u128::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Cursor, CursorError> {
        let read = || {
            let fits = text.len() <= CURSOR_MAX;
            let bytes = fits.then(|| URL_SAFE_NO_PAD.decode(text).ok()).flatten()?;
            read(&bytes)
        };
        read().ok_or_else(|| CursorError { shown: text.chars().take(40).collect() })
    }
}

fn read(bytes: &[u8]) -> Option<Cursor> {
    let (form, mut bytes) = bytes.split_first()?;
    if *form != FORM {
        return None;
    }
    let stored = |number: u128| u64::try_from(number).ok().filter(|number| *number <= i64::MAX as u64);
    let greatest = stored(get(&mut bytes)?)?;
    let within = match get(&mut bytes)? {
        0 => None,
        slot if slot <= u128::from(SLOTS_MAX) => {
            Some((u32::try_from(slot - 1).ok()?, EventId(stored(get(&mut bytes)?)?)))
        }
        _ => return None,
    };
    let (mut after, mut next) = (BTreeMap::new(), 0u32);
    while !bytes.is_empty() {
        let what = get(&mut bytes)?;
        let run = if what < DISTANCES { u32::try_from(get(&mut bytes)?).ok()? } else { 1 };
        let end = next.checked_add(run).filter(|end| *end <= SLOTS_MAX)?;
        match what {
            ABSENT => {}
            ZEROS => after.extend((next..end).map(|slot| (slot, 0))),
            distance => {
                let distance = u64::try_from(distance - DISTANCES).ok()?;
                after.insert(next, greatest.checked_sub(distance)?);
            }
        }
        next = end;
    }
    Some(Cursor { after, within })
}

#[cfg(test)]
#[path = "cursor_tests.rs"]
mod tests;
