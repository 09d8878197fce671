//! Parked events.

use std::collections::BTreeMap;

use sqlx::Row;
use tenure_core::port::{
    DeadLetterAction, EventId, GroupKey, Notification, ParkedEvent, ParkedEventFilter, ParkedKey,
};
use tenure_core::rules::event::partition_for_key;

use super::super::SqliteStore;
use super::super::connection::{Transaction, query};
use super::views::{parked_event, parked_key, u64_column};
use super::{CallError, json, number};
use crate::runtime;

impl SqliteStore {
    pub(super) async fn list_parked_keys(
        &self,
        key: &GroupKey,
        partitions: &[u32],
    ) -> Result<BTreeMap<u32, Vec<ParkedKey>>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let found = self.find_group(&mut transaction, key).await?.and_then(|found| found.group);
        let heads = match found {
            Some((id, _)) => {
                self.parked_heads(&mut transaction, id, &json(&partitions)?, runtime::wall_ms()).await?
            }
            None => Vec::new(),
        };
        transaction.commit().await?;
        let mut keys = BTreeMap::<u32, Vec<ParkedKey>>::new();
        heads.into_iter().for_each(|(partition, key)| keys.entry(partition).or_default().push(key));
        Ok(keys)
    }

    /// The first parked event of each key in these partitions of a group (a JSON array), by partition and id.
    pub(super) async fn parked_heads(
        &self,
        transaction: &mut Transaction,
        group: i64,
        partitions: &str,
        now: i64,
    ) -> Result<Vec<(u32, ParkedKey)>, CallError> {
        let select = query(self.queries.get("parked_key_list")).bind(group).bind(partitions);
        let mut heads = Vec::new();
        for row in transaction.all(select).await? {
            heads.push((row.try_get("partition")?, parked_key(&row, now)?));
        }
        Ok(heads)
    }

    pub(super) async fn list_parked_events(
        &self,
        filter: &ParkedEventFilter,
    ) -> Result<Vec<ParkedEvent>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let (id, topic) = self.group_id(&mut transaction, &filter.group).await?;
        // Each key belongs to one partition.
        let key_partition = filter.key.as_deref().map(|key| partition_for_key(key, topic.partitions));
        if filter
            .partition
            .is_some_and(|partition| key_partition.is_some_and(|key_partition| partition != key_partition))
        {
            transaction.commit().await?;
            return Ok(Vec::new());
        }
        let select = query(self.queries.get("parked_event_list"))
            .bind(id)
            .bind(filter.after.map_or(0, |after| i64::try_from(after.0).unwrap_or(i64::MAX)))
            .bind(filter.dead)
            .bind(filter.partition.or(key_partition))
            .bind(filter.key.as_deref())
            .bind(filter.limit);
        let (rows, now) = (transaction.all(select).await?, runtime::wall_ms());
        transaction.commit().await?;
        Ok(rows.iter().map(|row| parked_event(row, now)).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn apply_to_dead_letters(
        &self,
        key: &GroupKey,
        events: &[EventId],
        action: DeadLetterAction,
    ) -> Result<Vec<EventId>, CallError> {
        let ids: Vec<i64> = events.iter().map(|event| number(event.0)).collect();
        let mut tx = self.begin_write().await?;
        let (id, _) = self.group_id(&mut tx.transaction, key).await?;
        let name = match action {
            DeadLetterAction::Replay => "dead_letter_replay",
            DeadLetterAction::Drop => "dead_letter_drop",
        };
        let rows = tx.transaction.all(query(self.queries.get(name)).bind(id).bind(json(&ids)?)).await?;
        let mut changed = Vec::with_capacity(rows.len());
        for row in &rows {
            changed.push(EventId(u64_column(row, "event_id")?));
        }
        changed.sort_unstable();
        if !changed.is_empty() {
            tx.notifications.push(Notification::GroupChanged(key.clone()));
        }
        tx.commit().await?;
        Ok(changed)
    }
}
