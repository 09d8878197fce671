//! Topics, as people set and see them.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::event::{check_topic, slots_are_fixed};
use tenure_core::port::{Begin, GroupKey, Position, SlotEnds, TopicKey, TopicSettings, TopicView};
use tenure_core::{Name, SessionId};

use super::super::Sqlite;
use super::super::change::of_key;
use super::super::connection::{Transaction, parsed, query};
use super::views::{position, topic_view};
use super::{Failed, ms, number};

/// How many events of a deleted topic are deleted at once.
const CLEARED: u32 = 10_000;

/// A topic, as far as its groups and readers need to know it.
pub(super) struct Topic {
    pub(super) id: i64,
    pub(super) slots: u32,
}

impl Sqlite {
    pub(super) async fn find_topic(
        &self,
        transaction: &mut Transaction,
        key: &TopicKey,
    ) -> Result<Option<Topic>, Failed> {
        let row = transaction.one(of_key!(self, "topic_find", key)).await?;
        let topic = |row: SqliteRow| Ok(Topic { id: row.try_get("id")?, slots: row.try_get("slots")? });
        Ok(row.map(topic).transpose().map_err(|error: sqlx::Error| error)?)
    }

    pub(super) async fn keep_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, Failed> {
        check_topic(settings)?;
        let mut change = self.change().await?;
        let found = self.find_topic(&mut change.transaction, key).await?;
        if let Some(topic) = &found
            && topic.slots != settings.slots
        {
            return Err(slots_are_fixed(key, topic.slots, settings.slots).into());
        }
        let set = of_key!(self, "topic_set", key)
            .bind(settings.slots)
            .bind(ms(settings.keep_ms))
            .bind(settings.keep_unread_ms.map(ms))
            .bind(number(settings.max_bytes))
            .bind(change.wall_ms);
        change.transaction.execute(set).await?;
        change.commit().await?;
        Ok(found.is_none())
    }

    pub(super) async fn drop_topic(&self, key: &TopicKey) -> Result<bool, Failed> {
        let mut change = self.change().await?;
        let Some(topic) = self.find_topic(&mut change.transaction, key).await? else {
            change.commit().await?;
            return Ok(false);
        };
        let groups = change.transaction.all(query(self.queries.get("topic_groups")).bind(topic.id)).await?;
        for row in &groups {
            let group = GroupKey::new(key.clone(), parsed(row, "name")?);
            self.delete_group_in(&mut change, row.try_get("id")?, group).await?;
        }
        for name in ["topic_delete_floors", "topic_delete"] {
            change.transaction.execute(query(self.queries.get(name)).bind(topic.id)).await?;
        }
        change.commit().await?;
        // What is long keeps nobody waiting. Should this process end before it is through, the keeper goes on.
        while self.clear_topic(topic.id, CLEARED).await? > 0 {}
        Ok(true)
    }

    /// Deletes events of a topic that is not there any more, at most so many; how many.
    pub(super) async fn clear_topic(&self, topic: i64, limit: u32) -> Result<u64, Failed> {
        let mut change = self.change().await?;
        let clear = query(self.queries.get("topic_clear")).bind(topic).bind(limit);
        let cleared = change.transaction.execute(clear).await?.rows_affected();
        change.commit().await?;
        Ok(cleared)
    }

    pub(super) async fn topic_views(
        &self,
        namespace: Option<&Name>,
        name: Option<&Name>,
    ) -> Result<Vec<TopicView>, Failed> {
        let select = query(self.queries.get("topic_list"));
        let select = select.bind(namespace.map(Name::as_str)).bind(name.map(Name::as_str));
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(topic_view).collect::<sqlx::Result<_>>()?)
    }

    /// Names of a namespace, or of all.
    pub(super) async fn names<K>(
        &self,
        which: &str,
        namespace: Option<&Name>,
        key: fn(&SqliteRow) -> sqlx::Result<K>,
    ) -> Result<Vec<K>, Failed> {
        let select = query(self.queries.get(which)).bind(namespace.map(Name::as_str));
        let rows = select.fetch_all(&self.inner.pools.reads).await?;
        Ok(rows.iter().map(key).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn ends_of(&self, key: &TopicKey) -> Result<Option<Vec<SlotEnds>>, Failed> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let ends = match self.find_topic(&mut transaction, key).await? {
            Some(topic) => Some(self.slot_ends_in(&mut transaction, &topic).await?),
            None => None,
        };
        transaction.commit().await?;
        Ok(ends)
    }

    async fn slot_ends_in(
        &self,
        transaction: &mut Transaction,
        topic: &Topic,
    ) -> Result<Vec<SlotEnds>, Failed> {
        let select = query(self.queries.get("slot_ends")).bind(topic.id).bind(topic.slots);
        let ends = |row: &SqliteRow| {
            let (earliest, latest) = (position(row, "earliest")?, position(row, "latest")?);
            Ok(SlotEnds { slot: row.try_get("slot")?, earliest, latest })
        };
        Ok(transaction.all(select).await?.iter().map(ends).collect::<sqlx::Result<_>>()?)
    }

    /// The position of each slot, by number, after which a group begins.
    pub(super) async fn begin_at(
        &self,
        transaction: &mut Transaction,
        topic: &Topic,
        begin: Begin,
    ) -> Result<Vec<Position>, Failed> {
        let ends = self.slot_ends_in(transaction, topic).await?;
        let Begin::Time(at_ms) = begin else {
            let place = |ends: SlotEnds| match begin {
                Begin::Earliest => ends.earliest,
                Begin::Position(position) => position.clamp(ends.earliest, ends.latest),
                Begin::Latest | Begin::Time(_) => ends.latest,
            };
            return Ok(ends.into_iter().map(place).collect());
        };
        let select = query(self.queries.get("slot_before")).bind(topic.id).bind(topic.slots).bind(at_ms);
        let rows = transaction.all(select).await?;
        let mut places = Vec::with_capacity(rows.len());
        for (row, ends) in rows.iter().zip(ends) {
            let before: Option<i64> = row.try_get("position")?;
            places.push(before.map_or(ends.latest, |before| before.cast_unsigned().max(ends.earliest)));
        }
        Ok(places)
    }

    pub(super) async fn put_topic_dozer(&self, session: &SessionId, key: &TopicKey) -> Result<(), Failed> {
        let mut change = self.change().await?;
        let put = of_key!(self, "topic_doze", key).bind(session.as_str()).bind(change.wall_ms);
        change.transaction.execute(put).await?;
        Ok(change.commit().await?)
    }
}
