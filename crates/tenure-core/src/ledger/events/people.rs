//! Groups, as people see them.

use super::{Group, Ledger, Topic};
use crate::Name;
use crate::ledger::Witness;
use crate::port::{GroupKey, GroupView, LAG_COUNTED, PushView, Share, SlotView};

impl Ledger {
    /// See [`Bureau::groups`](crate::port::Bureau::groups).
    pub fn groups(&self, namespace: Option<&Name>, witness: &dyn Witness, now_ms: i64) -> Vec<GroupView> {
        let topics = self.outbox.topics.iter();
        let wanted = topics.filter(|(key, _)| namespace.is_none_or(|namespace| key.namespace == *namespace));
        let keys = wanted.flat_map(|(key, topic)| {
            topic.groups.keys().map(|name| GroupKey::new(key.clone(), name.clone())).collect::<Vec<_>>()
        });
        keys.filter_map(|key| self.group(&key, witness, now_ms)).collect()
    }

    /// See [`Bureau::group`](crate::port::Bureau::group).
    pub fn group(&self, key: &GroupKey, witness: &dyn Witness, now_ms: i64) -> Option<GroupView> {
        let (topic, group) = self.outbox.find_group(key)?;
        let dead = group.asides.values().filter(|row| row.dead).count();
        Some(GroupView {
            key: key.clone(),
            settings: group.settings,
            paused: group.paused.clone(),
            members: group.live(witness),
            slots: group.slot_views(topic, witness, now_ms),
            aside: (group.asides.len() - dead) as u64,
            dead: dead as u64,
            moves: group.moves,
            push: group
                .push
                .as_ref()
                .map(|push| PushView { url: push.0.url.clone(), timeout_ms: push.0.timeout_ms }),
        })
    }
}

impl Group {
    fn slot_views(&self, topic: &Topic, witness: &dyn Witness, now_ms: i64) -> Vec<SlotView> {
        let view = |(share, slot): (Share, &super::Slot)| {
            let unread = slot.after(share.position).map(|unit| unit.len() as u64).sum::<u64>();
            let oldest = slot.after(share.position).flatten().map(|stored| stored.event.at_ms).next();
            let waits = oldest.map_or(0, |at| now_ms.saturating_sub(at));
            SlotView {
                end: slot.latest(),
                lag: unread.min(LAG_COUNTED),
                lag_exact: unread <= LAG_COUNTED,
                lag_ms: u64::try_from(waits).unwrap_or(0),
                share,
            }
        };
        self.look_shares(witness).into_iter().zip(&topic.slots).map(view).collect()
    }
}
