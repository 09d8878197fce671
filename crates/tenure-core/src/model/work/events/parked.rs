//! Parked events: failed events, and later events of their keys.

use std::collections::BTreeSet;

use super::{GroupRecord, Work};
use crate::port::{
    DeadLetterAction, Event, EventId, GroupKey, Offset, ParkedEvent, ParkedEventFilter, ParkedEventState,
    ParkedKey, READ_BYTES, StoreError,
};
use crate::rules::event::no_such_group;
use crate::rules::work::{bounded_ms, clip};

/// Maximum number of events counted behind a parked one.
const BEHIND_MAX: usize = 1_000;

/// A parked event.
#[derive(Clone, Debug)]
pub(super) struct ParkedEventRecord {
    event: Event,
    pub(super) dead: bool,
    attempts: u32,
    due_at: i64,
    failed_at: i64,
    error: String,
}

impl ParkedEventRecord {
    pub(super) fn new(event: Event, how: &ParkedEventState, now_ms: i64) -> ParkedEventRecord {
        let error = String::new();
        let mut row =
            ParkedEventRecord { event, dead: false, attempts: 0, due_at: now_ms, failed_at: now_ms, error };
        row.set(how, now_ms);
        row
    }

    fn set(&mut self, how: &ParkedEventState, now_ms: i64) {
        self.failed_at = now_ms;
        match how {
            ParkedEventState::Processed | ParkedEventState::Waiting => {}
            ParkedEventState::Retry { attempts, retry_in_ms: after_ms, error } => {
                let after_ms = bounded_ms(std::time::Duration::from_millis(*after_ms));
                (self.dead, self.attempts, self.error) = (false, *attempts, clip(error));
                self.due_at = now_ms.saturating_add_unsigned(after_ms);
            }
            ParkedEventState::Dead { attempts, error } => {
                (self.dead, self.attempts, self.error) = (true, *attempts, clip(error));
            }
        }
    }

    /// Delay until the event must be tried, if it is the first one of its key. An event that was never tried is due at
    /// once.
    fn due_in_ms(&self, now_ms: i64) -> Option<u64> {
        let left = u64::try_from(self.due_at.saturating_sub(now_ms)).unwrap_or(0);
        (!self.dead).then_some(if self.attempts == 0 { 0 } else { left })
    }
}

impl GroupRecord {
    /// Parked events of a partition, in order.
    fn parked_in(&self, partition: u32) -> impl DoubleEndedIterator<Item = &ParkedEventRecord> {
        let all = (partition, 0, EventId(0))..=(partition, Offset::MAX, EventId(u64::MAX));
        self.parked_events.range(all).map(|(_, row)| row)
    }

    /// Parked keys of a partition, each with its first event.
    pub(super) fn parked_keys(&self, partition: u32, now_ms: i64) -> Vec<ParkedKey> {
        let mut seen = BTreeSet::new();
        let first =
            |row: &&ParkedEventRecord| row.event.key.as_ref().is_none_or(|key| seen.insert(key.clone()));
        let key = |row: &ParkedEventRecord| ParkedKey {
            key: row.event.key.clone(),
            event_id: row.event.id,
            attempts: row.attempts,
            retry_in_ms: row.due_in_ms(now_ms),
        };
        self.parked_in(partition).filter(first).map(key).collect()
    }

    /// Sets the new state of a parked event. Ignores an event that was dropped meanwhile, and a dead letter, which only
    /// an operator can change.
    pub(super) fn settle(&mut self, partition: u32, id: EventId, how: &ParkedEventState, now_ms: i64) {
        let place =
            self.parked_events.keys().find(|(its, _, event)| *its == partition && *event == id).copied();
        let Some(place) = place.filter(|place| self.parked_events.get(place).is_some_and(|row| !row.dead))
        else {
            return;
        };
        match (how, self.parked_events.get_mut(&place)) {
            (ParkedEventState::Processed, _) => {
                self.parked_events.remove(&place);
            }
            (how, Some(row)) => row.set(how, now_ms),
            (_, None) => {}
        }
    }

    fn view(&self, row: &ParkedEventRecord, now_ms: i64) -> ParkedEvent {
        let of_key = |other: &&ParkedEventRecord| row.event.key.is_some() && other.event.key == row.event.key;
        let place = |row: &ParkedEventRecord| (row.event.offset, row.event.id);
        let others = || self.parked_in(row.event.partition).filter(of_key);
        let first = others().all(|other| place(other) >= place(row));
        ParkedEvent {
            event: row.event.clone(),
            dead: row.dead,
            attempts: row.attempts,
            last_error: row.error.clone(),
            last_failed_at_ms: row.failed_at,
            retry_in_ms: row.due_in_ms(now_ms).filter(|_| first),
            waiting_behind_count: others().filter(|other| place(other) > place(row)).take(BEHIND_MAX).count()
                as u64,
        }
    }
}

impl Work {
    /// See [`EventStore::parked_keys`](crate::port::EventStore::parked_keys).
    pub fn parked_keys(&self, key: &GroupKey, partition: u32, now_ms: i64) -> Vec<ParkedKey> {
        self.events_state
            .find_group(key)
            .map(|(_, group)| group.parked_keys(partition, now_ms))
            .unwrap_or_default()
    }

    /// See [`EventAdmin::parked_events`](crate::port::EventAdmin::parked_events).
    pub fn parked_events(
        &self,
        filter: &ParkedEventFilter,
        now_ms: i64,
    ) -> Result<Vec<ParkedEvent>, StoreError> {
        let found = self.events_state.find_group(&filter.group);
        let (_, group) = found.ok_or_else(|| no_such_group(&filter.group))?;
        let matches_filter = |row: &&ParkedEventRecord| {
            (!filter.dead || row.dead)
                && filter.partition.is_none_or(|partition| row.event.partition == partition)
                && (filter.key.is_none() || filter.key == row.event.key)
                && filter.after.is_none_or(|after| row.event.id > after)
        };
        let mut rows: Vec<&ParkedEventRecord> = group.parked_events.values().filter(matches_filter).collect();
        if filter.key.is_none() {
            rows.sort_by_key(|row| row.event.id);
        }
        rows.truncate(filter.limit as usize);
        let mut bytes = 0;
        let mut fits = |row: &&ParkedEventRecord| {
            let first = bytes == 0;
            bytes += row.event.payload.len();
            first || bytes <= READ_BYTES
        };
        let fitting = rows.iter().take_while(|row| fits(row)).count();
        rows.truncate(fitting);
        Ok(rows.into_iter().map(|row| group.view(row, now_ms)).collect())
    }

    /// See [`EventAdmin::apply_dead_letter_action`](crate::port::EventAdmin::apply_dead_letter_action).
    pub fn apply_dead_letter_action(
        &mut self,
        key: &GroupKey,
        events: &[EventId],
        order: DeadLetterAction,
    ) -> Result<Vec<EventId>, StoreError> {
        let group = self.events_state.group_mut(key)?;
        let mut done = Vec::new();
        group.parked_events.retain(|(_, _, id), row| {
            if !row.dead || !events.contains(id) {
                return true;
            }
            done.push(*id);
            (row.dead, row.attempts) = (false, 0);
            order == DeadLetterAction::Replay
        });
        done.sort_unstable();
        if !done.is_empty() {
            self.notify_group(key);
        }
        Ok(done)
    }
}
