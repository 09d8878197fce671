//! Consumer groups: members, partition leases and administration.

use std::collections::{BTreeMap, HashMap};

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{
    EventId, GROUPS_MAX, GroupAssignment, GroupKey, GroupSettings, GroupView, JoinGroupRequest,
    LAG_COUNT_MAX, Notification, OffsetChange, Pause, StartOffset, TakePartitionsRequest, TakenPartition,
    WebhookSettings,
};
use tenure_core::rules::event::{
    has_members, no_such_group, no_such_partition, no_such_topic, session_has_ended, too_many_groups,
    validate_group, validate_join, validate_start_offset, validate_take, validate_webhook,
};
use tenure_core::{Name, SessionId, Token};

use super::super::SqliteStore;
use super::super::columns::{pause, token};
use super::super::connection::{Transaction, query};
use super::super::write_transaction::{WriteTransaction, number as token_number, of_key};
use super::topic::TopicRow;
use super::views::{
    group_key, group_settings, member, partition_lease, partition_view, u64_column, webhook, webhook_view,
};
use super::{CallError, json, ms, number};
use crate::runtime;

/// The topic and, if it exists, the id and row of a group.
pub(super) struct GroupIds {
    pub(super) topic: TopicRow,
    pub(super) group: Option<(i64, SqliteRow)>,
}

impl SqliteStore {
    /// Find a topic and a group. `None` if the topic does not exist.
    pub(super) async fn find_group(
        &self,
        transaction: &mut Transaction,
        key: &GroupKey,
    ) -> Result<Option<GroupIds>, CallError> {
        let find = of_key!(self, "group_find", key.topic).bind(key.name.as_str());
        let Some(row) = transaction.one(find).await? else { return Ok(None) };
        let topic = TopicRow { id: row.try_get("topic_id")?, partitions: row.try_get("partitions")? };
        let id: Option<i64> = row.try_get("id")?;
        Ok(Some(GroupIds { topic, group: id.map(|id| (id, row)) }))
    }

    /// The id of a group. Fails if the group does not exist.
    pub(super) async fn group_id(
        &self,
        transaction: &mut Transaction,
        key: &GroupKey,
    ) -> Result<(i64, TopicRow), CallError> {
        match self.find_group(transaction, key).await? {
            Some(GroupIds { topic, group: Some((id, _)) }) => Ok((id, topic)),
            _ => Err(no_such_group(key).into()),
        }
    }

    /// Create a group with its partition leases, or change its settings.
    async fn put_group(
        &self,
        tx: &mut WriteTransaction<'_>,
        found: &GroupIds,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<i64, CallError> {
        if found.group.is_none() {
            let count = query(self.queries.get("group_count")).bind(found.topic.id);
            let row = tx.transaction.one(count).await?.ok_or(sqlx::Error::RowNotFound)?;
            if row.try_get::<i64, _>("group_count")? >= i64::try_from(GROUPS_MAX).unwrap_or(i64::MAX) {
                return Err(too_many_groups(key).into());
            }
        }
        let set = query(self.queries.get("group_set"))
            .bind(found.topic.id)
            .bind(key.name.as_str())
            .bind(settings.max_attempts)
            .bind(ms(settings.backoff.initial_ms))
            .bind(ms(settings.backoff.max_ms))
            .bind(tx.wall_ms);
        let row = tx.transaction.one(set).await?.ok_or(sqlx::Error::RowNotFound)?;
        let id = row.try_get("id")?;
        if found.group.is_none() {
            let offsets = self.resolve_start_offset(&mut tx.transaction, &found.topic, from).await?;
            let leases: Vec<(usize, u64)> = offsets.into_iter().enumerate().collect();
            let make = query(self.queries.get("partition_lease_create")).bind(id).bind(json(&leases)?);
            tx.transaction.execute(make).await?;
        }
        Ok(id)
    }

    pub(super) async fn join_consumer_group(
        &self,
        join: &JoinGroupRequest,
    ) -> Result<GroupAssignment, CallError> {
        validate_join(join)?;
        let (mut tx, session) = (self.begin_write().await?, join.session.as_str());
        let key = &join.group;
        let found =
            self.find_group(&mut tx.transaction, key).await?.ok_or_else(|| no_such_topic(&key.topic))?;
        if tx.transaction.one(query(self.queries.get("session_is_live")).bind(session)).await?.is_none() {
            return Err(session_has_ended(&join.session, key).into());
        }
        let id = match &found.group {
            Some((id, _)) => *id,
            None => self.put_group(&mut tx, &found, key, &GroupSettings::default(), join.from).await?,
        };
        tx.transaction.execute(query(self.queries.get("member_prune")).bind(id)).await?;
        let set_active_since = query(self.queries.get("group_set_active_since")).bind(id).bind(tx.wall_ms);
        tx.transaction.execute(set_active_since).await?;
        let put = query(self.queries.get("member_put"));
        let put = put.bind(id).bind(session).bind(&join.member).bind(tx.wall_ms);
        if tx.transaction.execute(put).await?.rows_affected() > 0 {
            tx.notifications.push(Notification::GroupChanged(key.clone()));
        }
        let now = tx.wall_ms;
        let assignment =
            self.assignment_in(&mut tx.transaction, key, now).await?.ok_or_else(|| no_such_group(key))?;
        tx.commit().await?;
        Ok(assignment)
    }

    pub(super) async fn leave_consumer_group(
        &self,
        key: &GroupKey,
        session: &SessionId,
    ) -> Result<(), CallError> {
        let mut tx = self.begin_write().await?;
        let found = self.find_group(&mut tx.transaction, key).await?.and_then(|found| found.group);
        if let Some((id, _)) = found {
            let mut changed = 0;
            for name in ["member_leave", "partition_lease_release_all"] {
                let leave = query(self.queries.get(name)).bind(id).bind(session.as_str());
                changed += tx.transaction.execute(leave).await?.rows_affected();
            }
            if changed > 0 {
                tx.notifications.push(Notification::GroupChanged(key.clone()));
            }
        }
        Ok(tx.commit().await?)
    }

    pub(super) async fn get_assignment(&self, key: &GroupKey) -> Result<Option<GroupAssignment>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let assignment = self.assignment_in(&mut transaction, key, runtime::wall_ms()).await?;
        transaction.commit().await?;
        Ok(assignment)
    }

    async fn assignment_in(
        &self,
        transaction: &mut Transaction,
        key: &GroupKey,
        now: i64,
    ) -> Result<Option<GroupAssignment>, CallError> {
        let found = self.find_group(transaction, key).await?.and_then(|found| found.group);
        let Some((id, row)) = found else { return Ok(None) };
        let members = query(self.queries.get("member_list")).bind(json(&[id])?);
        let members = transaction.all(members).await?;
        let members = members.iter().map(member).collect::<sqlx::Result<Vec<_>>>()?;
        let leases = transaction.all(query(self.queries.get("partition_lease_list")).bind(id)).await?;
        let active_since: Option<i64> = row.try_get("active_since_at_ms")?;
        let active = active_since
            .filter(|_| !members.is_empty())
            .map_or(0, |active_since| now.saturating_sub(active_since));
        Ok(Some(GroupAssignment {
            partition_leases: leases.iter().map(partition_lease).collect::<sqlx::Result<_>>()?,
            members,
            settings: group_settings(&row)?,
            paused: pause(&row, "paused_by", "paused_reason", "paused_at_ms")?,
            active_ms: active.max(0).cast_unsigned(),
        }))
    }

    pub(super) async fn take_free_partitions(
        &self,
        take: &TakePartitionsRequest,
    ) -> Result<Vec<TakenPartition>, CallError> {
        validate_take(take)?;
        let mut tx = self.begin_write().await?;
        let found = self.find_group(&mut tx.transaction, &take.group).await?;
        let Some((id, _)) = found.and_then(|found| found.group) else {
            tx.commit().await?;
            return Ok(Vec::new());
        };
        let requested: Vec<(u32, i64)> =
            take.partitions.iter().map(|(partition, token)| (*partition, token_number(*token))).collect();
        let select = query(self.queries.get("partition_lease_list_free"));
        let select = select.bind(id).bind(take.session.as_str()).bind(json(&requested)?);
        let (mut partitions, mut rebalanced, mut name) = (Vec::new(), 0, String::new());
        for row in tx.transaction.all(select).await? {
            let last: &str = row.try_get("last_member")?;
            name = row.try_get("name")?;
            rebalanced += i64::from(!last.is_empty() && last != name);
            partitions.push(row.try_get::<u32, _>("partition")?);
        }
        if partitions.is_empty() {
            tx.commit().await?;
            return Ok(Vec::new());
        }
        let list = json(&partitions)?;
        let set = query(self.queries.get("partition_lease_take")).bind(id).bind(take.session.as_str());
        let rows = tx.transaction.all(set.bind(&name).bind(&list)).await?;
        if rebalanced > 0 {
            let count = query(self.queries.get("group_count_rebalanced")).bind(id).bind(rebalanced);
            tx.transaction.execute(count).await?;
        }
        let mut taken = BTreeMap::new();
        for row in &rows {
            let partition = row.try_get("partition")?;
            let (token, offset) = (token(row, "token")?, u64_column(row, "committed_offset")?);
            taken.insert(
                partition,
                TakenPartition {
                    partition,
                    token,
                    offset,
                    processed_event_ids: Vec::new(),
                    parked_keys: Vec::new(),
                },
            );
        }
        let processed = query(self.queries.get("processed_event_list")).bind(id).bind(&list);
        for row in tx.transaction.all(processed).await? {
            if let Some(taken) = taken.get_mut(&row.try_get::<u32, _>("partition")?) {
                taken.processed_event_ids.push(EventId(u64_column(&row, "event_id")?));
            }
        }
        let now = tx.wall_ms;
        for (partition, key) in self.parked_heads(&mut tx.transaction, id, &list, now).await? {
            if let Some(taken) = taken.get_mut(&partition) {
                taken.parked_keys.push(key);
            }
        }
        tx.commit().await?;
        Ok(take.partitions.iter().filter_map(|(partition, _)| taken.remove(partition)).collect())
    }

    pub(super) async fn release_held_partitions(
        &self,
        key: &GroupKey,
        leases: &[(u32, Token)],
    ) -> Result<(), CallError> {
        let leases: Vec<(u32, i64)> =
            leases.iter().map(|(partition, token)| (*partition, token_number(*token))).collect();
        let mut tx = self.begin_write().await?;
        let found = self.find_group(&mut tx.transaction, key).await?.and_then(|found| found.group);
        if let Some((id, _)) = found {
            let select = query(self.queries.get("partition_lease_release")).bind(id).bind(json(&leases)?);
            if tx.transaction.execute(select).await?.rows_affected() > 0 {
                tx.notifications.push(Notification::GroupChanged(key.clone()));
            }
        }
        Ok(tx.commit().await?)
    }

    /// Groups of a namespace (`None`: all namespaces), or one group of a topic.
    pub(super) async fn group_views(
        &self,
        namespace: Option<&Name>,
        group: Option<(&Name, &Name)>,
    ) -> Result<Vec<GroupView>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("group_list"))
            .bind(namespace.map(Name::as_str))
            .bind(group.map(|(topic, _)| topic.as_str()))
            .bind(group.map(|(_, group)| group.as_str()));
        let (rows, now) = (transaction.all(select).await?, runtime::wall_ms());
        let ids = rows.iter().map(|row| row.try_get("id")).collect::<sqlx::Result<Vec<i64>>>()?;
        let list = json(&ids)?;
        let members = transaction.all(query(self.queries.get("member_list")).bind(&list)).await?;
        let partitions =
            query(self.queries.get("group_partitions")).bind(&list).bind(number(LAG_COUNT_MAX + 1));
        let partitions = transaction.all(partitions).await?;
        transaction.commit().await?;
        let index_by_group: HashMap<i64, usize> = ids.iter().copied().zip(0..).collect();
        let mut views = rows.iter().map(group_view).collect::<sqlx::Result<Vec<_>>>()?;
        for row in &members {
            if let Some(index) = index_by_group.get(&row.try_get("group_id")?) {
                views[*index].members.push(member(row)?);
            }
        }
        for row in &partitions {
            if let Some(index) = index_by_group.get(&row.try_get("group_id")?) {
                views[*index].partitions.push(partition_view(row, now)?);
            }
        }
        Ok(views)
    }

    pub(super) async fn set_group_settings(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<bool, CallError> {
        validate_group(settings)?;
        validate_start_offset(&from)?;
        let mut tx = self.begin_write().await?;
        let found =
            self.find_group(&mut tx.transaction, key).await?.ok_or_else(|| no_such_topic(&key.topic))?;
        self.put_group(&mut tx, &found, key, settings, from).await?;
        if found.group.is_some() {
            tx.notifications.push(Notification::GroupChanged(key.clone()));
        }
        tx.commit().await?;
        Ok(found.group.is_none())
    }

    pub(super) async fn remove_group(&self, key: &GroupKey) -> Result<bool, CallError> {
        let mut tx = self.begin_write().await?;
        let found = self.find_group(&mut tx.transaction, key).await?.and_then(|found| found.group);
        let Some((id, _)) = found else {
            tx.commit().await?;
            return Ok(false);
        };
        self.delete_group_in(&mut tx, id, key.clone()).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Delete a group and all of its rows. Fails if the group has live members.
    pub(super) async fn delete_group_in(
        &self,
        tx: &mut WriteTransaction<'_>,
        id: i64,
        key: GroupKey,
    ) -> Result<(), CallError> {
        let members = query(self.queries.get("member_list")).bind(json(&[id])?);
        let members = tx.transaction.all(members).await?.len();
        if members > 0 {
            return Err(has_members(&key, members).into());
        }
        let names = [
            "group_delete_partition_leases",
            "group_delete_members",
            "group_delete_processed_events",
            "group_delete_parked_events",
        ];
        for name in names.into_iter().chain(["group_webhook_delete", "group_delete"]) {
            tx.transaction.execute(query(self.queries.get(name)).bind(id)).await?;
        }
        tx.notifications.push(Notification::GroupChanged(key));
        Ok(())
    }

    pub(super) async fn pause_group(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, CallError> {
        let mut tx = self.begin_write().await?;
        let (id, _) = self.group_id(&mut tx.transaction, key).await?;
        let set = match pause {
            Some(pause) => query(self.queries.get("group_pause"))
                .bind(id)
                .bind(&pause.paused_by)
                .bind(&pause.reason)
                .bind(pause.paused_at_ms),
            None => query(self.queries.get("group_resume")).bind(id),
        };
        let changed = tx.transaction.execute(set).await?.rows_affected() > 0;
        if changed {
            tx.notifications.push(Notification::GroupChanged(key.clone()));
        }
        tx.commit().await?;
        Ok(changed)
    }

    pub(super) async fn reset_offsets(
        &self,
        key: &GroupKey,
        to: StartOffset,
        partition: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<OffsetChange>, CallError> {
        validate_start_offset(&to)?;
        let mut tx = self.begin_write().await?;
        let (id, topic) = self.group_id(&mut tx.transaction, key).await?;
        if let Some(partition) = partition.filter(|partition| *partition >= topic.partitions) {
            return Err(no_such_partition(&key.topic, partition, topic.partitions).into());
        }
        let offsets = self.resolve_start_offset(&mut tx.transaction, &topic, to).await?;
        let leases = tx.transaction.all(query(self.queries.get("partition_lease_list")).bind(id)).await?;
        let mut changes = Vec::with_capacity(leases.len());
        for partition_lease in leases.iter().map(partition_lease) {
            let partition_lease = partition_lease?;
            let to = offsets
                .get(partition_lease.partition as usize)
                .copied()
                .unwrap_or(partition_lease.committed_offset);
            if partition.is_none_or(|partition| partition == partition_lease.partition) {
                changes.push(OffsetChange {
                    partition: partition_lease.partition,
                    from_offset: partition_lease.committed_offset,
                    to_offset: to,
                });
            }
        }
        if !dry_run {
            let list: Vec<(i64, u32, i64)> =
                changes.iter().map(|it| (id, it.partition, number(it.to_offset))).collect();
            let list = json(&list)?;
            for name in ["partition_reset_offset", "processed_event_delete_partition", "parked_event_prune"] {
                tx.transaction.execute(query(self.queries.get(name)).bind(&list)).await?;
            }
            tx.notifications.push(Notification::GroupChanged(key.clone()));
        }
        tx.commit().await?;
        Ok(changes)
    }

    pub(super) async fn put_webhook(
        &self,
        key: &GroupKey,
        webhook: Option<&WebhookSettings>,
    ) -> Result<(), CallError> {
        webhook.map_or(Ok(()), validate_webhook)?;
        let mut tx = self.begin_write().await?;
        let (id, _) = self.group_id(&mut tx.transaction, key).await?;
        let set = match webhook {
            Some(webhook) => query(self.queries.get("group_webhook_set"))
                .bind(id)
                .bind(webhook.url.as_str())
                .bind(webhook.secret.as_str())
                .bind(ms(webhook.timeout_ms)),
            None => query(self.queries.get("group_webhook_delete")).bind(id),
        };
        tx.transaction.execute(set).await?;
        tx.notifications.push(Notification::GroupChanged(key.clone()));
        Ok(tx.commit().await?)
    }

    pub(super) async fn list_webhooks(&self) -> Result<Vec<(GroupKey, WebhookSettings)>, CallError> {
        let rows = query(self.queries.get("group_webhook_list")).fetch_all(&self.inner.pools.reads).await?;
        let pair = |row: &SqliteRow| Ok(webhook(row)?.map(|webhook| Ok((group_key(row)?, webhook))));
        rows.iter().filter_map(|row| pair(row).transpose().map(|it| it.and_then(|it| it))).collect()
    }
}

/// A group without its members and partitions.
fn group_view(row: &SqliteRow) -> sqlx::Result<GroupView> {
    let (dead, all) = (u64_column(row, "dead_letter_count")?, u64_column(row, "parked_and_dead_count")?);
    Ok(GroupView {
        key: group_key(row)?,
        settings: group_settings(row)?,
        paused: pause(row, "paused_by", "paused_reason", "paused_at_ms")?,
        members: Vec::new(),
        partitions: Vec::new(),
        parked_event_count: all - dead,
        dead_letter_count: dead,
        rebalanced_partition_count: u64_column(row, "rebalanced_partition_count")?,
        webhook: webhook_view(row)?,
    })
}
