//! Consumer groups: members and settings.

use std::collections::BTreeMap;

use super::{GroupRecord, PartitionLeaseRecord, RedactedWebhook, TopicRecord, Work};
use crate::SessionId;
use crate::model::work::LeaseObservation;
use crate::port::{
    GROUPS_MAX, GroupAssignment, GroupKey, GroupMember, GroupSettings, JoinGroupRequest, PartitionLease,
    Pause, StartOffset, StoreError, WebhookSettings,
};
use crate::rules::event::{
    session_has_ended, too_many_groups, validate_group, validate_join, validate_start_offset,
    validate_webhook,
};

impl Work {
    /// See [`EventStore::join_group`](crate::port::EventStore::join_group).
    pub fn join_group(
        &mut self,
        join: &JoinGroupRequest,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Result<GroupAssignment, StoreError> {
        validate_join(join)?;
        let topic = self.events_state.topic_mut(&join.group.topic)?;
        if !observation.is_live(&join.session) {
            return Err(session_has_ended(&join.session, &join.group));
        }
        topic.make_group(&join.group, &GroupSettings::default(), join.from)?;
        let group = self.events_state.group_mut(&join.group)?;
        if group.live(observation).is_empty() {
            group.active_since_ms = now_ms;
        }
        group.members.retain(|session, _| observation.is_live(session));
        let before = group.members.insert(join.session.clone(), join.member.clone());
        let assignment = group.assignment(observation, now_ms);
        if before.as_ref() != Some(&join.member) {
            self.notify_group(&join.group);
        }
        Ok(assignment)
    }

    /// See [`EventStore::leave_group`](crate::port::EventStore::leave_group).
    pub fn leave_group(&mut self, key: &GroupKey, session: &SessionId) {
        let Some(group) = self.events_state.find_group_mut(key) else { return };
        let was_there = group.members.remove(session).is_some();
        for lease in &mut group.partition_leases {
            lease.holder.take_if(|holder| *holder == *session);
        }
        if was_there {
            self.notify_group(key);
        }
    }

    /// See [`EventStore::group_assignment`](crate::port::EventStore::group_assignment).
    pub fn group_assignment(
        &self,
        key: &GroupKey,
        observation: &dyn LeaseObservation,
        now_ms: i64,
    ) -> Option<GroupAssignment> {
        self.events_state.find_group(key).map(|(_, group)| group.assignment(observation, now_ms))
    }

    /// See [`EventAdmin::set_group`](crate::port::EventAdmin::set_group).
    pub fn set_group(
        &mut self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<bool, StoreError> {
        validate_group(settings)?;
        validate_start_offset(&from)?;
        let topic = self.events_state.topic_mut(&key.topic)?;
        let new = topic.make_group(key, settings, from)?;
        if !new {
            self.events_state.group_mut(key)?.settings = *settings;
            self.notify_group(key);
        }
        Ok(new)
    }

    /// See [`EventAdmin::delete_group`](crate::port::EventAdmin::delete_group).
    pub fn delete_group(
        &mut self,
        key: &GroupKey,
        observation: &dyn LeaseObservation,
    ) -> Result<bool, StoreError> {
        self.require_no_members(key, observation)?;
        let topic = self.events_state.topics.get_mut(&key.topic);
        let found = topic.is_some_and(|topic| topic.groups.remove(&key.name).is_some());
        if found {
            self.notify_group(key);
        }
        Ok(found)
    }

    /// See [`EventAdmin::set_group_paused`](crate::port::EventAdmin::set_group_paused).
    pub fn set_group_paused(&mut self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let group = self.events_state.group_mut(key)?;
        let changes = group.paused.is_some() != pause.is_some();
        if changes {
            group.paused = pause.cloned();
            self.notify_group(key);
        }
        Ok(changes)
    }

    /// See [`EventAdmin::set_webhook`](crate::port::EventAdmin::set_webhook).
    pub fn set_webhook(
        &mut self,
        key: &GroupKey,
        webhook: Option<&WebhookSettings>,
    ) -> Result<(), StoreError> {
        webhook.map_or(Ok(()), validate_webhook)?;
        self.events_state.group_mut(key)?.webhook = webhook.cloned().map(RedactedWebhook);
        self.notify_group(key);
        Ok(())
    }

    /// See [`EventAdmin::webhooks`](crate::port::EventAdmin::webhooks).
    pub fn webhooks(&self) -> Vec<(GroupKey, WebhookSettings)> {
        let groups = self.events_state.topics.iter().flat_map(|(key, topic)| {
            topic.groups.iter().map(|(name, group)| (GroupKey::new(key.clone(), name.clone()), group))
        });
        groups.filter_map(|(key, group)| Some((key, group.webhook.as_ref()?.0.clone()))).collect()
    }
}

impl TopicRecord {
    /// Creates a group if it does not exist. Returns whether it was created.
    fn make_group(
        &mut self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<bool, StoreError> {
        if self.groups.contains_key(&key.name) {
            return Ok(false);
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(too_many_groups(key));
        }
        let begin = |partition: &super::PartitionRecord| PartitionLeaseRecord {
            offset: partition.resolve_offset(from),
            ..PartitionLeaseRecord::default()
        };
        let group = GroupRecord {
            settings: *settings,
            paused: None,
            webhook: None,
            members: BTreeMap::new(),
            active_since_ms: 0,
            partition_leases: self.partitions.iter().map(begin).collect(),
            parked_events: BTreeMap::new(),
            moves: 0,
        };
        self.groups.insert(key.name.clone(), group);
        Ok(true)
    }
}

impl GroupRecord {
    fn assignment(&self, observation: &dyn LeaseObservation, now_ms: i64) -> GroupAssignment {
        let members: Vec<GroupMember> = self.live(observation);
        let active_ms = match members.is_empty() {
            true => 0,
            false => u64::try_from(now_ms.saturating_sub(self.active_since_ms)).unwrap_or(0),
        };
        GroupAssignment {
            partition_leases: self.lease_views(observation),
            settings: self.settings,
            paused: self.paused.clone(),
            members,
            active_ms,
        }
    }

    /// The partition leases, ordered by partition.
    pub(super) fn lease_views(&self, observation: &dyn LeaseObservation) -> Vec<PartitionLease> {
        let lease = |(partition, row): (u32, &PartitionLeaseRecord)| PartitionLease {
            partition,
            token: row.token,
            holder: row.holder(observation).cloned(),
            last_member: row.last.clone(),
            committed_offset: row.offset,
        };
        (0..).zip(&self.partition_leases).map(lease).collect()
    }
}
