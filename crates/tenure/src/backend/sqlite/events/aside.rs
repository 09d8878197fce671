//! Events that are aside.

use std::collections::BTreeMap;

use sqlx::Row;
use tenure_core::event::slot_of;
use tenure_core::port::{AsideFilter, AsideKey, AsideView, DeadOrder, EventId, GroupKey, Wake};

use super::super::Sqlite;
use super::super::connection::{Transaction, query};
use super::views::{aside_key, aside_view, position};
use super::{Failed, json, number};
use crate::runtime;

impl Sqlite {
    pub(super) async fn keys_aside(
        &self,
        key: &GroupKey,
        slots: &[u32],
    ) -> Result<BTreeMap<u32, Vec<AsideKey>>, Failed> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let found = self.find_group(&mut transaction, key).await?.and_then(|found| found.group);
        let heads = match found {
            Some((id, _)) => {
                self.heads_aside(&mut transaction, id, &json(&slots)?, runtime::wall_ms()).await?
            }
            None => Vec::new(),
        };
        transaction.commit().await?;
        let mut keys = BTreeMap::<u32, Vec<AsideKey>>::new();
        heads.into_iter().for_each(|(slot, key)| keys.entry(slot).or_default().push(key));
        Ok(keys)
    }

    /// The first of each key that is aside in these slots of a group (a JSON list), by slot and number.
    pub(super) async fn heads_aside(
        &self,
        transaction: &mut Transaction,
        group: i64,
        slots: &str,
        now: i64,
    ) -> Result<Vec<(u32, AsideKey)>, Failed> {
        let select = query(self.queries.get("aside_heads")).bind(group).bind(slots);
        let mut heads = Vec::new();
        for row in transaction.all(select).await? {
            heads.push((row.try_get("slot")?, aside_key(&row, now)?));
        }
        Ok(heads)
    }

    pub(super) async fn aside_views(&self, filter: &AsideFilter) -> Result<Vec<AsideView>, Failed> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let (id, topic) = self.group_id(&mut transaction, &filter.group).await?;
        // A key lies in one slot.
        let of_key = filter.key.as_deref().map(|key| slot_of(key, topic.slots));
        if filter.slot.is_some_and(|slot| of_key.is_some_and(|of_key| slot != of_key)) {
            transaction.commit().await?;
            return Ok(Vec::new());
        }
        let select = query(self.queries.get("aside_list"))
            .bind(id)
            .bind(filter.after.map_or(0, |after| i64::try_from(after.0).unwrap_or(i64::MAX)))
            .bind(filter.dead)
            .bind(filter.slot.or(of_key))
            .bind(filter.key.as_deref())
            .bind(filter.limit);
        let (rows, now) = (transaction.all(select).await?, runtime::wall_ms());
        transaction.commit().await?;
        Ok(rows.iter().map(|row| aside_view(row, now)).collect::<sqlx::Result<_>>()?)
    }

    pub(super) async fn order_aside(
        &self,
        key: &GroupKey,
        events: &[EventId],
        order: DeadOrder,
    ) -> Result<Vec<EventId>, Failed> {
        let ids: Vec<i64> = events.iter().map(|event| number(event.0)).collect();
        let mut change = self.change().await?;
        let (id, _) = self.group_id(&mut change.transaction, key).await?;
        let name = match order {
            DeadOrder::Replay => "aside_replay",
            DeadOrder::Drop => "aside_drop",
        };
        let rows = change.transaction.all(query(self.queries.get(name)).bind(id).bind(json(&ids)?)).await?;
        let mut done = Vec::with_capacity(rows.len());
        for row in &rows {
            done.push(EventId(position(row, "event")?));
        }
        done.sort_unstable();
        if !done.is_empty() {
            change.wakes.push(Wake::Group(key.clone()));
        }
        change.commit().await?;
        Ok(done)
    }
}
