//! Administration of topics.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{
    GroupKey, Offset, PartitionOffsets, StartOffset, TopicKey, TopicSettings, TopicView,
};
use tenure_core::rules::event::{partitions_are_fixed, validate_topic};
use tenure_core::{Name, SessionId};

use super::super::SqliteStore;
use super::super::connection::{Transaction, parsed, query};
use super::super::write_transaction::of_key;
use super::views::{topic_view, u64_column};
use super::{CallError, ms, number};

/// How many events of a deleted topic one transaction deletes.
const DELETE_BATCH: u32 = 10_000;

/// The id and partition count of a topic.
pub(super) struct TopicRow {
    pub(super) id: i64,
    pub(super) partitions: u32,
}

impl SqliteStore {
    pub(super) async fn find_topic(
        &self,
        transaction: &mut Transaction,
        key: &TopicKey,
    ) -> Result<Option<TopicRow>, CallError> {
        let row = transaction.one(of_key!(self, "topic_find", key)).await?;
        let topic =
            |row: SqliteRow| Ok(TopicRow { id: row.try_get("id")?, partitions: row.try_get("partitions")? });
        Ok(row.map(topic).transpose().map_err(|error: sqlx::Error| error)?)
    }

    pub(super) async fn put_topic(
        &self,
        key: &TopicKey,
        settings: &TopicSettings,
    ) -> Result<bool, CallError> {
        validate_topic(settings)?;
        let mut tx = self.begin_write().await?;
        let found = self.find_topic(&mut tx.transaction, key).await?;
        if let Some(topic) = &found
            && topic.partitions != settings.partitions
        {
            return Err(partitions_are_fixed(key, topic.partitions, settings.partitions).into());
        }
        let set = of_key!(self, "topic_set", key)
            .bind(settings.partitions)
            .bind(ms(settings.retention_ms))
            .bind(settings.unread_retention_ms.map(ms))
            .bind(number(settings.max_payload_bytes))
            .bind(tx.wall_ms);
        tx.transaction.execute(set).await?;
        tx.commit().await?;
        Ok(found.is_none())
    }

    pub(super) async fn remove_topic(&self, key: &TopicKey) -> Result<bool, CallError> {
        let mut tx = self.begin_write().await?;
        let Some(topic) = self.find_topic(&mut tx.transaction, key).await? else {
            tx.commit().await?;
            return Ok(false);
        };
        let groups = tx.transaction.all(query(self.queries.get("topic_groups")).bind(topic.id)).await?;
        for row in &groups {
            let group = GroupKey::new(key.clone(), parsed(row, "name")?);
            self.delete_group_in(&mut tx, row.try_get("id")?, group).await?;
        }
        for name in ["partition_start_offset_delete", "topic_delete"] {
            tx.transaction.execute(query(self.queries.get(name)).bind(topic.id)).await?;
        }
        tx.commit().await?;
        // Delete the events in small transactions. Maintenance continues if this process ends.
        while self.delete_events(topic.id, DELETE_BATCH).await? > 0 {}
        Ok(true)
    }

    /// Delete at most `limit` events of a deleted topic. Returns the number.
    pub(super) async fn delete_events(&self, topic: i64, limit: u32) -> Result<u64, CallError> {
        let mut tx = self.begin_write().await?;
        let delete = query(self.queries.get("topic_delete_events")).bind(topic).bind(limit);
        let deleted = tx.transaction.execute(delete).await?.rows_affected();
        tx.commit().await?;
        Ok(deleted)
    }

    pub(super) async fn topic_views(
        &self,
        namespace: Option<&Name>,
        name: Option<&Name>,
    ) -> Result<Vec<TopicView>, CallError> {
        let select = query(self.queries.get("topic_list"));
        let select = select.bind(namespace.map(Name::as_str)).bind(name.map(Name::as_str));
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(topic_view).collect::<sqlx::Result<_>>()?)
    }

    /// Keys in a namespace (`None`: all namespaces).
    pub(super) async fn names<K>(
        &self,
        name: &str,
        namespace: Option<&Name>,
        key: fn(&SqliteRow) -> sqlx::Result<K>,
    ) -> Result<Vec<K>, CallError> {
        let select = query(self.queries.get(name)).bind(namespace.map(Name::as_str));
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(key).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn get_partition_offsets(
        &self,
        key: &TopicKey,
    ) -> Result<Option<Vec<PartitionOffsets>>, CallError> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let offsets = match self.find_topic(&mut transaction, key).await? {
            Some(topic) => Some(self.partition_offsets_in(&mut transaction, &topic).await?),
            None => None,
        };
        transaction.commit().await?;
        Ok(offsets)
    }

    async fn partition_offsets_in(
        &self,
        transaction: &mut Transaction,
        topic: &TopicRow,
    ) -> Result<Vec<PartitionOffsets>, CallError> {
        let select = query(self.queries.get("partition_offsets")).bind(topic.id).bind(topic.partitions);
        let offsets = |row: &SqliteRow| {
            let (start_offset, end_offset) =
                (u64_column(row, "start_offset")?, u64_column(row, "end_offset")?);
            Ok(PartitionOffsets { partition: row.try_get("partition")?, start_offset, end_offset })
        };
        Ok(transaction.all(select).await?.iter().map(offsets).collect::<sqlx::Result<_>>()?)
    }

    /// The offset after which a group starts, for each partition.
    pub(super) async fn resolve_start_offset(
        &self,
        transaction: &mut Transaction,
        topic: &TopicRow,
        start: StartOffset,
    ) -> Result<Vec<Offset>, CallError> {
        let offsets = self.partition_offsets_in(transaction, topic).await?;
        let StartOffset::PublishedAtMs(at_ms) = start else {
            let resolve = |offsets: PartitionOffsets| match start {
                StartOffset::Earliest => offsets.start_offset,
                StartOffset::Offset(offset) => offset.clamp(offsets.start_offset, offsets.end_offset),
                StartOffset::Latest | StartOffset::PublishedAtMs(_) => offsets.end_offset,
            };
            return Ok(offsets.into_iter().map(resolve).collect());
        };
        let select = query(self.queries.get("partition_offset_before"))
            .bind(topic.id)
            .bind(topic.partitions)
            .bind(at_ms);
        let rows = transaction.all(select).await?;
        let mut start_offsets = Vec::with_capacity(rows.len());
        for (row, offsets) in rows.iter().zip(offsets) {
            let before: Option<i64> = row.try_get("event_offset")?;
            start_offsets.push(
                before.map_or(offsets.end_offset, |before| before.cast_unsigned().max(offsets.start_offset)),
            );
        }
        Ok(start_offsets)
    }

    pub(super) async fn put_topic_waiter(
        &self,
        session: &SessionId,
        key: &TopicKey,
    ) -> Result<(), CallError> {
        let mut tx = self.begin_write().await?;
        let put = of_key!(self, "topic_waiter_register", key).bind(session.as_str()).bind(tx.wall_ms);
        tx.transaction.execute(put).await?;
        Ok(tx.commit().await?)
    }
}
