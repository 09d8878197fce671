//! The offsets of a reader in all partitions, as one short text.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::port::{Event, EventId, Offset, PARTITIONS_MAX};

/// Maximum length of the text, in bytes.
pub const CURSOR_MAX: usize = 15_000;

/// Format version, stored in the first byte, so that the format can change later.
const FORM: u8 = 1;

/// A reader's offset in each partition. `Last-Event-ID` carries it, so that an interrupted stream can continue.
///
/// The events of a commit batch share an offset, and a stream may break inside a batch. The cursor therefore also
/// keeps the last event that was sent of such a batch, so that no event is skipped or repeated after a break.
///
/// ```
/// use tenure_core::rules::event::TopicCursor;
///
/// let cursor = TopicCursor::new([(0, 17), (5, 12), (63, 0)]);
/// let text = cursor.to_string();
/// assert_eq!(text.parse(), Ok(cursor));
/// assert!(text.len() < 20, "{text}");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicCursor {
    after: BTreeMap<u32, Offset>,
    within: Option<(u32, EventId)>,
}

/// Why a text is not a cursor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{shown:?} is not a stream cursor; use the `id` of an event from the stream unchanged, or start without one"
)]
pub struct TopicCursorError {
    shown: String,
}

impl TopicCursor {
    /// A cursor after these offsets.
    pub fn new(after: impl IntoIterator<Item = (u32, Offset)>) -> TopicCursor {
        TopicCursor { after: after.into_iter().collect(), within: None }
    }

    /// Each partition with the offset to read after, as in
    /// [`ReadEventsRequest::after`](crate::port::ReadEventsRequest). [`has_passed`](Self::has_passed) tells which of
    /// the events read were already sent.
    pub fn after(&self) -> Vec<(u32, Offset)> {
        self.after.iter().map(|(partition, offset)| (*partition, *offset)).collect()
    }

    /// Whether this event was already sent.
    pub fn has_passed(&self, event: &Event) -> bool {
        let after = self.after.get(&event.partition).is_some_and(|offset| event.offset <= *offset);
        after || self.within.is_some_and(|(partition, id)| partition == event.partition && event.id <= id)
    }

    /// Records that this event was sent. `last_of_batch` tells whether it was the last of its commit batch
    /// ([`commit_batches`](super::commit_batches)). Batches are sent one after the other.
    pub fn pass(&mut self, event: &Event, last_of_batch: bool) {
        if last_of_batch {
            self.after.insert(event.partition, event.offset);
            self.within = None;
        } else {
            self.within = Some((event.partition, event.id));
        }
    }
}

/// Offsets are close to each other, so each partition is encoded as its distance from the greatest offset, with seven
/// bits per byte.
impl fmt::Display for TopicCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let greatest = self.after.values().copied().max().unwrap_or(0);
        let mut bytes = vec![FORM];
        put(&mut bytes, greatest.into());
        let (within, of) =
            self.within.map_or((0, EventId(0)), |(partition, id)| (u128::from(partition) + 1, id));
        put(&mut bytes, within);
        if within > 0 {
            put(&mut bytes, of.0.into());
        }
        let (mut next, mut zeros) = (0, 0);
        for (partition, offset) in &self.after {
            if (*partition > next || *offset > 0) && zeros > 0 {
                put_run(&mut bytes, ZEROS, &mut zeros);
            }
            if *partition > next {
                put_run(&mut bytes, ABSENT, &mut (*partition - next));
            }
            if *offset == 0 {
                zeros += 1;
            } else {
                put(&mut bytes, u128::from(greatest - offset) + DISTANCES);
            }
            next = partition + 1;
        }
        if zeros > 0 {
            put_run(&mut bytes, ZEROS, &mut zeros);
        }
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// A run of partitions that are not read follows.
const ABSENT: u128 = 0;

/// A run of partitions at offset 0 follows.
const ZEROS: u128 = 1;

/// This value and above encode a distance.
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

impl FromStr for TopicCursor {
    type Err = TopicCursorError;

    fn from_str(text: &str) -> Result<TopicCursor, TopicCursorError> {
        let read = || {
            let fits = text.len() <= CURSOR_MAX;
            let bytes = fits.then(|| URL_SAFE_NO_PAD.decode(text).ok()).flatten()?;
            read(&bytes)
        };
        read().ok_or_else(|| TopicCursorError { shown: text.chars().take(40).collect() })
    }
}

fn read(bytes: &[u8]) -> Option<TopicCursor> {
    let (form, mut bytes) = bytes.split_first()?;
    if *form != FORM {
        return None;
    }
    let stored = |number: u128| u64::try_from(number).ok().filter(|number| *number <= i64::MAX as u64);
    let greatest = stored(get(&mut bytes)?)?;
    let within = match get(&mut bytes)? {
        0 => None,
        partition if partition <= u128::from(PARTITIONS_MAX) => {
            Some((u32::try_from(partition - 1).ok()?, EventId(stored(get(&mut bytes)?)?)))
        }
        _ => return None,
    };
    let (mut after, mut next) = (BTreeMap::new(), 0u32);
    while !bytes.is_empty() {
        let what = get(&mut bytes)?;
        let run = if what < DISTANCES { u32::try_from(get(&mut bytes)?).ok()? } else { 1 };
        let end = next.checked_add(run).filter(|end| *end <= PARTITIONS_MAX)?;
        match what {
            ABSENT => {}
            ZEROS => after.extend((next..end).map(|partition| (partition, 0))),
            distance => {
                let distance = u64::try_from(distance - DISTANCES).ok()?;
                after.insert(next, greatest.checked_sub(distance)?);
            }
        }
        next = end;
    }
    Some(TopicCursor { after, within })
}

#[cfg(test)]
#[path = "cursor_tests.rs"]
mod tests;
