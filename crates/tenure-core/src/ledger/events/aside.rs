//! What is aside: events that failed, and those of their keys that wait behind them.

use std::collections::BTreeSet;

use super::{Group, Ledger};
use crate::claim::{clip, span_ms};
use crate::event::no_such_group;
use crate::port::{
    Aside, AsideFilter, AsideKey, AsideView, DeadOrder, Event, EventId, GroupKey, Position, READ_BYTES,
    StoreError,
};

/// Up to how many are counted that wait behind one.
const BEHIND_MAX: usize = 1_000;

/// An event that is aside.
#[derive(Clone, Debug)]
pub(super) struct AsideRow {
    event: Event,
    pub(super) dead: bool,
    attempts: u32,
    due_at: i64,
    failed_at: i64,
    error: String,
}

impl AsideRow {
    pub(super) fn new(event: Event, how: &Aside, now_ms: i64) -> AsideRow {
        let error = String::new();
        let mut row = AsideRow { event, dead: false, attempts: 0, due_at: now_ms, failed_at: now_ms, error };
        row.set(how, now_ms);
        row
    }

    fn set(&mut self, how: &Aside, now_ms: i64) {
        self.failed_at = now_ms;
        match how {
            Aside::Done | Aside::Behind => {}
            Aside::Retry { attempts, after_ms, error } => {
                let after_ms = span_ms(std::time::Duration::from_millis(*after_ms));
                (self.dead, self.attempts, self.error) = (false, *attempts, clip(error));
                self.due_at = now_ms.saturating_add_unsigned(after_ms);
            }
            Aside::Dead { attempts, error } => {
                (self.dead, self.attempts, self.error) = (true, *attempts, clip(error));
            }
        }
    }

    /// In how long it is to be tried, if it is the first of its key. One that was never tried is due at once.
    fn due_in_ms(&self, now_ms: i64) -> Option<u64> {
        let left = u64::try_from(self.due_at.saturating_sub(now_ms)).unwrap_or(0);
        (!self.dead).then_some(if self.attempts == 0 { 0 } else { left })
    }
}

impl Group {
    /// The asides of a slot, in order.
    fn asides_of(&self, slot: u32) -> impl DoubleEndedIterator<Item = &AsideRow> {
        let all = (slot, 0, EventId(0))..=(slot, Position::MAX, EventId(u64::MAX));
        self.asides.range(all).map(|(_, row)| row)
    }

    /// The keys that are aside in a slot, by the first of each.
    pub(super) fn aside_keys(&self, slot: u32, now_ms: i64) -> Vec<AsideKey> {
        let mut seen = BTreeSet::new();
        let first = |row: &&AsideRow| row.event.key.as_ref().is_none_or(|key| seen.insert(key.clone()));
        let key = |row: &AsideRow| AsideKey {
            key: row.event.key.clone(),
            event: row.event.id,
            attempts: row.attempts,
            due_in_ms: row.due_in_ms(now_ms),
        };
        self.asides_of(slot).filter(first).map(key).collect()
    }

    /// What became of an event that was aside. Whoever dropped it meanwhile was faster; and the dead are for an operator to settle.
    pub(super) fn settle(&mut self, slot: u32, id: EventId, how: &Aside, now_ms: i64) {
        let place = self.asides.keys().find(|(its, _, event)| *its == slot && *event == id).copied();
        let Some(place) = place.filter(|place| self.asides.get(place).is_some_and(|row| !row.dead)) else {
            return;
        };
        match (how, self.asides.get_mut(&place)) {
            (Aside::Done, _) => {
                self.asides.remove(&place);
            }
            (how, Some(row)) => row.set(how, now_ms),
            (_, None) => {}
        }
    }

    fn view(&self, row: &AsideRow, now_ms: i64) -> AsideView {
        let of_key = |other: &&AsideRow| row.event.key.is_some() && other.event.key == row.event.key;
        let place = |row: &AsideRow| (row.event.position, row.event.id);
        let others = || self.asides_of(row.event.slot).filter(of_key);
        let first = others().all(|other| place(other) >= place(row));
        AsideView {
            event: row.event.clone(),
            dead: row.dead,
            attempts: row.attempts,
            error: row.error.clone(),
            failed_at_ms: row.failed_at,
            due_in_ms: row.due_in_ms(now_ms).filter(|_| first),
            behind: others().filter(|other| place(other) > place(row)).take(BEHIND_MAX).count() as u64,
        }
    }
}

impl Ledger {
    /// See [`Events::aside_keys`](crate::port::Events::aside_keys).
    pub fn aside_keys(&self, key: &GroupKey, slot: u32, now_ms: i64) -> Vec<AsideKey> {
        self.outbox.find_group(key).map(|(_, group)| group.aside_keys(slot, now_ms)).unwrap_or_default()
    }

    /// See [`Bureau::aside`](crate::port::Bureau::aside).
    pub fn aside(&self, filter: &AsideFilter, now_ms: i64) -> Result<Vec<AsideView>, StoreError> {
        let found = self.outbox.find_group(&filter.group);
        let (_, group) = found.ok_or_else(|| no_such_group(&filter.group))?;
        let wanted = |row: &&AsideRow| {
            (!filter.dead || row.dead)
                && filter.slot.is_none_or(|slot| row.event.slot == slot)
                && (filter.key.is_none() || filter.key == row.event.key)
                && filter.after.is_none_or(|after| row.event.id > after)
        };
        let mut rows: Vec<&AsideRow> = group.asides.values().filter(wanted).collect();
        if filter.key.is_none() {
            rows.sort_by_key(|row| row.event.id);
        }
        rows.truncate(filter.limit as usize);
        let mut bytes = 0;
        let mut fits = |row: &&AsideRow| {
            let first = bytes == 0;
            bytes += row.event.payload.len();
            first || bytes <= READ_BYTES
        };
        let fitting = rows.iter().take_while(|row| fits(row)).count();
        rows.truncate(fitting);
        Ok(rows.into_iter().map(|row| group.view(row, now_ms)).collect())
    }

    /// See [`Bureau::order_dead`](crate::port::Bureau::order_dead).
    pub fn order_dead(
        &mut self,
        key: &GroupKey,
        events: &[EventId],
        order: DeadOrder,
    ) -> Result<Vec<EventId>, StoreError> {
        let group = self.outbox.group_mut(key)?;
        let mut done = Vec::new();
        group.asides.retain(|(_, _, id), row| {
            if !row.dead || !events.contains(id) {
                return true;
            }
            done.push(*id);
            (row.dead, row.attempts) = (false, 0);
            order == DeadOrder::Replay
        });
        done.sort_unstable();
        if !done.is_empty() {
            self.wake_group(key);
        }
        Ok(done)
    }
}
