//! Groups: who is in them, and how they are set.

use std::collections::BTreeMap;

use super::{Group, Ledger, Secretly, ShareRow, Topic};
use crate::SessionId;
use crate::event::{check_begin, check_group, check_join, check_push, session_is_gone, too_many_groups};
use crate::ledger::Witness;
use crate::port::{
    Begin, GROUPS_MAX, GroupKey, GroupLook, GroupSettings, Join, Member, Pause, Push, Share, StoreError,
};

impl Ledger {
    /// See [`Events::join_group`](crate::port::Events::join_group).
    pub fn join_group(
        &mut self,
        join: &Join,
        witness: &dyn Witness,
        now_ms: i64,
    ) -> Result<GroupLook, StoreError> {
        check_join(join)?;
        let topic = self.outbox.topic_mut(&join.group.topic)?;
        if !witness.is_live(&join.session) {
            return Err(session_is_gone(&join.session, &join.group));
        }
        topic.make_group(&join.group, &GroupSettings::default(), join.from)?;
        let group = self.outbox.group_mut(&join.group)?;
        if group.live(witness).is_empty() {
            group.gathered_at = now_ms;
        }
        group.members.retain(|session, _| witness.is_live(session));
        let before = group.members.insert(join.session.clone(), join.member.clone());
        let look = group.look(witness, now_ms);
        if before.as_ref() != Some(&join.member) {
            self.wake_group(&join.group);
        }
        Ok(look)
    }

    /// See [`Events::leave_group`](crate::port::Events::leave_group).
    pub fn leave_group(&mut self, key: &GroupKey, session: &SessionId) {
        let Some(group) = self.outbox.find_group_mut(key) else { return };
        let was_there = group.members.remove(session).is_some();
        for share in &mut group.shares {
            share.holder.take_if(|holder| *holder == *session);
        }
        if was_there {
            self.wake_group(key);
        }
    }

    /// See [`Events::look_group`](crate::port::Events::look_group).
    pub fn look_group(&self, key: &GroupKey, witness: &dyn Witness, now_ms: i64) -> Option<GroupLook> {
        self.outbox.find_group(key).map(|(_, group)| group.look(witness, now_ms))
    }

    /// See [`Bureau::set_group`](crate::port::Bureau::set_group).
    pub fn set_group(
        &mut self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<bool, StoreError> {
        check_group(settings)?;
        check_begin(&from)?;
        let topic = self.outbox.topic_mut(&key.topic)?;
        let new = topic.make_group(key, settings, from)?;
        if !new {
            self.outbox.group_mut(key)?.settings = *settings;
            self.wake_group(key);
        }
        Ok(new)
    }

    /// See [`Bureau::delete_group`](crate::port::Bureau::delete_group).
    pub fn delete_group(&mut self, key: &GroupKey, witness: &dyn Witness) -> Result<bool, StoreError> {
        self.check_deserted(key, witness)?;
        let topic = self.outbox.topics.get_mut(&key.topic);
        let found = topic.is_some_and(|topic| topic.groups.remove(&key.name).is_some());
        if found {
            self.wake_group(key);
        }
        Ok(found)
    }

    /// See [`Bureau::set_group_paused`](crate::port::Bureau::set_group_paused).
    pub fn set_group_paused(&mut self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let group = self.outbox.group_mut(key)?;
        let changes = group.paused.is_some() != pause.is_some();
        if changes {
            group.paused = pause.cloned();
            self.wake_group(key);
        }
        Ok(changes)
    }

    /// See [`Bureau::set_push`](crate::port::Bureau::set_push).
    pub fn set_push(&mut self, key: &GroupKey, push: Option<&Push>) -> Result<(), StoreError> {
        push.map_or(Ok(()), check_push)?;
        self.outbox.group_mut(key)?.push = push.cloned().map(Secretly);
        self.wake_group(key);
        Ok(())
    }

    /// See [`Bureau::pushes`](crate::port::Bureau::pushes).
    pub fn pushes(&self) -> Vec<(GroupKey, Push)> {
        let groups = self.outbox.topics.iter().flat_map(|(key, topic)| {
            topic.groups.iter().map(|(name, group)| (GroupKey::new(key.clone(), name.clone()), group))
        });
        groups.filter_map(|(key, group)| Some((key, group.push.as_ref()?.0.clone()))).collect()
    }
}

impl Topic {
    /// Makes a group, if it is not there; whether it is new.
    fn make_group(
        &mut self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<bool, StoreError> {
        if self.groups.contains_key(&key.name) {
            return Ok(false);
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(too_many_groups(key));
        }
        let begin = |slot: &super::Slot| ShareRow { position: slot.place_of(from), ..ShareRow::default() };
        let group = Group {
            settings: *settings,
            paused: None,
            push: None,
            members: BTreeMap::new(),
            gathered_at: 0,
            shares: self.slots.iter().map(begin).collect(),
            asides: BTreeMap::new(),
            moves: 0,
        };
        self.groups.insert(key.name.clone(), group);
        Ok(true)
    }
}

impl Group {
    fn look(&self, witness: &dyn Witness, now_ms: i64) -> GroupLook {
        let members: Vec<Member> = self.live(witness);
        let gathered_ms = match members.is_empty() {
            true => 0,
            false => u64::try_from(now_ms.saturating_sub(self.gathered_at)).unwrap_or(0),
        };
        GroupLook {
            shares: self.look_shares(witness),
            settings: self.settings,
            paused: self.paused.clone(),
            members,
            gathered_ms,
        }
    }

    /// The shares, by slot.
    pub(super) fn look_shares(&self, witness: &dyn Witness) -> Vec<Share> {
        let share = |(slot, row): (u32, &ShareRow)| Share {
            slot,
            token: row.token,
            holder: row.holder(witness).cloned(),
            last: row.last.clone(),
            position: row.position,
        };
        (0..).zip(&self.shares).map(share).collect()
    }
}
