//! What the keeper forgets: events that are old, and read.

use std::collections::BTreeMap;

use sqlx::Row;
use tenure_core::port::Tend;

use super::super::Sqlite;
use super::super::change::number as token_number;
use super::super::connection::{Transaction, query};
use super::{Failed, json, number};
use crate::runtime;

/// A slot whose first events may be forgotten.
struct Old {
    slot: u32,
    /// Up to here every group has read it.
    read_to: i64,
    /// What is read and was published before is forgotten.
    before: i64,
    /// What was published before is forgotten, read or not.
    before_unread: i64,
}

impl Old {
    fn may_go(&self, position: i64, published_at: i64) -> bool {
        (position <= self.read_to && published_at < self.before) || published_at < self.before_unread
    }
}

impl Sqlite {
    pub(super) async fn prune_topics(&self, tend: &Tend) -> Result<(u64, bool), Failed> {
        // A clock that was put forward makes nothing old before its time; without a reckoning of it, nothing goes by it.
        let Some(clock) = tend.clock_ms.map(|clock| clock.min(runtime::wall_ms())) else {
            return Ok((0, false));
        };
        // Mostly there is nothing, and for that nobody has to wait.
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let nothing = self.old_slots(&mut transaction, clock).await?.is_empty();
        let strays = transaction.all(query(self.queries.get("topic_strays"))).await?;
        transaction.commit().await?;
        if nothing && strays.is_empty() {
            return Ok((0, false));
        }
        let mut change = self.change().await?;
        let leads = query(self.queries.get("claims_leader"))
            .bind(tend.session.as_str())
            .bind(token_number(tend.token));
        let (mut forgotten, mut more) = (0, false);
        if change.transaction.one(leads).await?.is_some() {
            for row in &strays {
                let clear = query(self.queries.get("topic_clear"));
                let clear = clear.bind(row.try_get::<i64, _>("topic")?).bind(tend.limit.max(1));
                more |= change.transaction.execute(clear).await?.rows_affected() > 0;
            }
            // Looked at again: a group may have been put back since.
            for (topic, slots) in self.old_slots(&mut change.transaction, clock).await? {
                let pruned =
                    self.prune_slots(&mut change.transaction, topic, &slots, tend.limit.max(1)).await?;
                forgotten += pruned.0;
                more |= pruned.1;
            }
        }
        change.commit().await?;
        Ok((forgotten, more))
    }

    /// The slots whose first events may be forgotten, by topic.
    async fn old_slots(
        &self,
        transaction: &mut Transaction,
        clock: i64,
    ) -> Result<BTreeMap<i64, Vec<Old>>, Failed> {
        let mut topics: BTreeMap<i64, Vec<Old>> = BTreeMap::new();
        for row in transaction.all(query(self.queries.get("event_oldest"))).await? {
            let keep_unread_ms: Option<i64> = row.try_get("keep_unread_ms")?;
            let old = Old {
                slot: row.try_get("slot")?,
                read_to: row.try_get::<Option<i64>, _>("read_to")?.unwrap_or(i64::MAX),
                before: clock.saturating_sub(row.try_get("keep_ms")?),
                before_unread: keep_unread_ms.map_or(i64::MIN, |keep_ms| clock.saturating_sub(keep_ms)),
            };
            let first = (row.try_get("position")?, row.try_get("published_at")?);
            if let (Some(position), Some(published_at)) = first
                && old.may_go(position, published_at)
            {
                topics.entry(row.try_get("topic")?).or_default().push(old);
            }
        }
        Ok(topics)
    }

    /// Forgets from the front of each slot, as far as everything is old, at most so many units of them all. How many events, and
    /// whether there is more.
    async fn prune_slots(
        &self,
        transaction: &mut Transaction,
        topic: i64,
        slots: &[Old],
        limit: u32,
    ) -> Result<(u64, bool), Failed> {
        let (mut left, mut more, mut floors) = (limit, false, Vec::new());
        for old in slots {
            let first = query(self.queries.get("event_first")).bind(topic).bind(old.slot);
            // One more than goes shows whether there is more.
            let mut floor = None;
            for row in transaction.all(first.bind(i64::from(left) + 1)).await? {
                let (position, published_at): (i64, i64) =
                    (row.try_get("position")?, row.try_get("published_at")?);
                if !old.may_go(position, published_at) {
                    break;
                }
                if left == 0 {
                    more = true;
                    break;
                }
                left -= 1;
                floor = Some((old.slot, position));
            }
            floors.extend(floor);
        }
        let floors = json(&floors)?;
        let get = |name| query(self.queries.get(name)).bind(topic).bind(&floors);
        let forgotten = transaction.execute(get("event_forget")).await?.rows_affected();
        for name in ["event_floor", "done_gone"] {
            transaction.execute(get(name)).await?;
        }
        let count = query(self.queries.get("topic_count")).bind(topic).bind(-number(forgotten));
        transaction.execute(count).await?;
        Ok((forgotten, more))
    }
}
