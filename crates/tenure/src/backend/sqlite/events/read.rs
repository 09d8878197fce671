//! Reading slots.

use std::collections::VecDeque;

use sqlx::Row;
use tenure_core::event::{check_read, no_such_topic};
use tenure_core::port::{Event, EventId, READ_BYTES, ReadAsk, TopicKey};

use super::super::Sqlite;
use super::super::change::of_key;
use super::super::connection::{Transaction, query};
use super::views::event;
use super::{Failed, json, number};

/// What is read: unit by unit from slot to slot, so that a long one does not keep the others waiting.
struct Plan {
    slots: Vec<Reading>,
    /// Whose turn it is, by place in `slots`.
    waiting: VecDeque<usize>,
    limit: u64,
    events: u64,
    bytes: u64,
}

/// What was published together, before it is read.
struct Unit {
    position: i64,
    events: u64,
    bytes: u64,
}

/// A slot that is read.
struct Reading {
    slot: u32,
    /// After which position the units that follow begin.
    after: i64,
    units: Vec<Unit>,
    /// How many of the units are read.
    taken: usize,
    /// There may be more than these units.
    more: bool,
}

impl Plan {
    fn new(read: &ReadAsk) -> Plan {
        let reading = |(slot, after): &(u32, u64)| Reading {
            slot: *slot,
            after: number(*after),
            units: Vec::new(),
            taken: 0,
            more: true,
        };
        let slots: Vec<Reading> = read.after.iter().map(reading).collect();
        let waiting = (0..slots.len()).collect();
        Plan { slots, waiting, limit: read.limit.into(), events: 0, bytes: 0 }
    }

    /// Takes units for as long as it is known what comes next. How many events of each slot to look for then; `None`: that is all.
    fn fill(&mut self) -> Option<u64> {
        while let Some(place) = self.waiting.pop_front() {
            let slot = &mut self.slots[place];
            let Some(unit) = slot.units.get(slot.taken) else {
                if !slot.more {
                    continue;
                }
                self.waiting.push_front(place);
                let open = self.slots.iter().filter(|slot| slot.more).count() as u64;
                return Some((self.limit - self.events).div_ceil(open));
            };
            if self.events > 0 && self.bytes + unit.bytes > READ_BYTES as u64 {
                return None;
            }
            slot.taken += 1;
            self.events += unit.events;
            self.bytes += unit.bytes;
            if self.events >= self.limit {
                return None;
            }
            self.waiting.push_back(place);
        }
        None
    }

    /// Each slot of which something is read: after which position, and up to which.
    fn ranges(&self) -> Vec<(u32, i64, i64)> {
        let range = |slot: &Reading| {
            let last = slot.units[..slot.taken].last()?;
            Some((slot.slot, slot.after, last.position))
        };
        self.slots.iter().filter_map(range).collect()
    }
}

impl Reading {
    /// Up to where units are known.
    fn known_to(&self) -> i64 {
        self.units.last().map_or(self.after, |unit| unit.position)
    }
}

impl Sqlite {
    pub(super) async fn read_slots(&self, read: &ReadAsk) -> Result<Vec<Event>, Failed> {
        check_read(read)?;
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let mut plan = Plan::new(read);
        // The more slots turn out to be empty, the further it looks into the others.
        while let Some(reach) = plan.fill() {
            self.look_further(&mut transaction, &read.topic, &mut plan, reach).await?;
        }
        let ranges = plan.ranges();
        let mut events = Vec::with_capacity(usize::try_from(plan.events).unwrap_or_default());
        if ranges.is_empty() {
            self.find_topic(&mut transaction, &read.topic)
                .await?
                .ok_or_else(|| no_such_topic(&read.topic))?;
        } else {
            let select = of_key!(self, "event_read", read.topic).bind(json(&ranges)?);
            for row in transaction.all(select).await? {
                events.push(event(&row)?);
            }
        }
        transaction.commit().await?;
        Ok(events)
    }

    /// Looks for more units in all slots that may have some.
    async fn look_further(
        &self,
        transaction: &mut Transaction,
        topic: &TopicKey,
        plan: &mut Plan,
        reach: u64,
    ) -> Result<(), Failed> {
        let open: Vec<usize> = (0..plan.slots.len()).filter(|place| plan.slots[*place].more).collect();
        let asked: Vec<(u32, i64)> =
            open.iter().map(|place| (plan.slots[*place].slot, plan.slots[*place].known_to())).collect();
        let select = of_key!(self, "event_units", topic).bind(json(&asked)?).bind(number(reach));
        let mut found = vec![0; open.len()];
        for row in transaction.all(select).await? {
            let place = usize::try_from(row.try_get::<i64, _>("place")?).unwrap_or(usize::MAX);
            let Some(slot) = open.get(place).and_then(|place| plan.slots.get_mut(*place)) else { continue };
            let unit = Unit {
                position: row.try_get("position")?,
                events: row.try_get::<i64, _>("events")?.cast_unsigned(),
                bytes: row.try_get::<i64, _>("bytes")?.cast_unsigned(),
            };
            found[place] += unit.events;
            slot.units.push(unit);
        }
        for (place, found) in open.into_iter().zip(found) {
            plan.slots[place].more = found >= reach;
        }
        Ok(())
    }

    pub(super) async fn event_view(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, Failed> {
        let select = of_key!(self, "event_show", topic).bind(number(id.0));
        let row = select.fetch_optional(&self.inner.pools.reads).await?;
        Ok(row.as_ref().map(event).transpose()?)
    }
}
