//! Topics, as people set and see them.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::event::check_topic;
use tenure_core::port::{Begin, Position, SlotEnds, StoreError, TopicKey, TopicSettings, TopicView};
use tenure_core::{Name, SessionId};

use super::super::Sqlite;
use super::super::change::of_key;
use super::super::connection::{Transaction, query};
use super::views::{position, topic_view};
use super::{Failed, ms, nonsense, number};

/// A topic, as far as its groups and readers need to know it.
pub(super) struct Topic {
    pub(super) id: i64,
    pub(super) slots: u32,
}

/// What is said of a topic that was never made.
pub(super) fn no_such_topic(key: &TopicKey) -> StoreError {
    let name = &key.name;
    nonsense(format!(
        "there is no topic {key}; make it first, with `tenure events topics create {name}` or `PUT /v1/topics/{name}`"
    ))
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
            return Err(other_slots(key, topic.slots, settings.slots).into());
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
        let groups = groups.iter().map(|row| row.try_get(0)).collect::<sqlx::Result<Vec<i64>>>()?;
        self.delete_groups(&mut change, &groups, &format!("the topic {key} has groups with live members"))
            .await?;
        for name in ["topic_delete_events", "topic_delete_floors", "topic_delete_dozers", "topic_delete"] {
            change.transaction.execute(query(self.queries.get(name)).bind(topic.id)).await?;
        }
        change.commit().await?;
        Ok(true)
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
        let topic = self.find_topic(&mut change.transaction, key).await?.ok_or_else(|| no_such_topic(key))?;
        let put = query(self.queries.get("topic_doze"));
        let put = put.bind(topic.id).bind(session.as_str()).bind(change.wall_ms);
        change.transaction.execute(put).await?;
        Ok(change.commit().await?)
    }
}

fn other_slots(key: &TopicKey, has: u32, wanted: u32) -> StoreError {
    nonsense(format!(
        "the topic {key} has {has} slots, and {wanted} would move its keys to other slots, past what is in them; keep {has}, or \
         make another topic"
    ))
}
