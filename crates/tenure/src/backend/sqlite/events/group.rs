//! Groups: who is in them, who has which share, and how people set and see them.

use std::collections::{BTreeMap, HashMap};

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::event::{
    check_begin, check_group, check_join, check_push, check_take, has_members, no_such_group, no_such_slot,
    no_such_topic, session_is_gone, too_many_groups,
};
use tenure_core::port::{
    Begin, EventId, GROUPS_MAX, GroupKey, GroupLook, GroupSettings, GroupView, Join, LAG_COUNTED, Moved,
    Pause, Push, TakeShares, Taken, Wake,
};
use tenure_core::{Name, SessionId, Token};

use super::super::Sqlite;
use super::super::change::{Change, number as token_number, of_key};
use super::super::connection::{Transaction, query};
use super::super::row::{pause, token};
use super::topic::Topic;
use super::views::{group_key, group_settings, member, position, push, push_view, share, slot_view};
use super::{Failed, json, ms, number};
use crate::runtime;

/// A group as a call finds it.
pub(super) struct Found {
    pub(super) topic: Topic,
    pub(super) group: Option<(i64, SqliteRow)>,
}

impl Sqlite {
    /// The topic, and the group if it is there.
    pub(super) async fn find_group(
        &self,
        transaction: &mut Transaction,
        key: &GroupKey,
    ) -> Result<Option<Found>, Failed> {
        let find = of_key!(self, "group_find", key.topic).bind(key.name.as_str());
        let Some(row) = transaction.one(find).await? else { return Ok(None) };
        let topic = Topic { id: row.try_get("topic")?, slots: row.try_get("slots")? };
        let id: Option<i64> = row.try_get("id")?;
        Ok(Some(Found { topic, group: id.map(|id| (id, row)) }))
    }

    /// The number of a group that must be there.
    pub(super) async fn group_id(
        &self,
        transaction: &mut Transaction,
        key: &GroupKey,
    ) -> Result<(i64, Topic), Failed> {
        match self.find_group(transaction, key).await? {
            Some(Found { topic, group: Some((id, _)) }) => Ok((id, topic)),
            _ => Err(no_such_group(key).into()),
        }
    }

    /// Makes a group with its shares, or sets it anew.
    async fn put_group(
        &self,
        change: &mut Change<'_>,
        found: &Found,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<i64, Failed> {
        if found.group.is_none() {
            let count = query(self.queries.get("group_count")).bind(found.topic.id);
            let row = change.transaction.one(count).await?.ok_or(sqlx::Error::RowNotFound)?;
            if row.try_get::<i64, _>("groups")? >= i64::try_from(GROUPS_MAX).unwrap_or(i64::MAX) {
                return Err(too_many_groups(key).into());
            }
        }
        let set = query(self.queries.get("group_set"))
            .bind(found.topic.id)
            .bind(key.name.as_str())
            .bind(settings.max_attempts)
            .bind(ms(settings.backoff.first_ms))
            .bind(ms(settings.backoff.most_ms))
            .bind(change.wall_ms);
        let row = change.transaction.one(set).await?.ok_or(sqlx::Error::RowNotFound)?;
        let id = row.try_get("id")?;
        if found.group.is_none() {
            let places = self.begin_at(&mut change.transaction, &found.topic, from).await?;
            let shares: Vec<(usize, u64)> = places.into_iter().enumerate().collect();
            let make = query(self.queries.get("share_make")).bind(id).bind(json(&shares)?);
            change.transaction.execute(make).await?;
        }
        Ok(id)
    }

    pub(super) async fn join_members(&self, join: &Join) -> Result<GroupLook, Failed> {
        check_join(join)?;
        let (mut change, session) = (self.change().await?, join.session.as_str());
        let key = &join.group;
        let found =
            self.find_group(&mut change.transaction, key).await?.ok_or_else(|| no_such_topic(&key.topic))?;
        if change.transaction.one(query(self.queries.get("session_live")).bind(session)).await?.is_none() {
            return Err(session_is_gone(&join.session, key).into());
        }
        let id = match &found.group {
            Some((id, _)) => *id,
            None => self.put_group(&mut change, &found, key, &GroupSettings::default(), join.from).await?,
        };
        change.transaction.execute(query(self.queries.get("member_sweep")).bind(id)).await?;
        let gather = query(self.queries.get("group_gather")).bind(id).bind(change.wall_ms);
        change.transaction.execute(gather).await?;
        let put = query(self.queries.get("member_put"));
        let put = put.bind(id).bind(session).bind(&join.member).bind(change.wall_ms);
        if change.transaction.execute(put).await?.rows_affected() > 0 {
            change.wakes.push(Wake::Group(key.clone()));
        }
        let now = change.wall_ms;
        let look =
            self.look_in(&mut change.transaction, key, now).await?.ok_or_else(|| no_such_group(key))?;
        change.commit().await?;
        Ok(look)
    }

    pub(super) async fn leave_members(&self, key: &GroupKey, session: &SessionId) -> Result<(), Failed> {
        let mut change = self.change().await?;
        let found = self.find_group(&mut change.transaction, key).await?.and_then(|found| found.group);
        if let Some((id, _)) = found {
            let mut changed = 0;
            for name in ["member_leave", "share_free_all"] {
                let leave = query(self.queries.get(name)).bind(id).bind(session.as_str());
                changed += change.transaction.execute(leave).await?.rows_affected();
            }
            if changed > 0 {
                change.wakes.push(Wake::Group(key.clone()));
            }
        }
        Ok(change.commit().await?)
    }

    pub(super) async fn group_look(&self, key: &GroupKey) -> Result<Option<GroupLook>, Failed> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let look = self.look_in(&mut transaction, key, runtime::wall_ms()).await?;
        transaction.commit().await?;
        Ok(look)
    }

    async fn look_in(
        &self,
        transaction: &mut Transaction,
        key: &GroupKey,
        now: i64,
    ) -> Result<Option<GroupLook>, Failed> {
        let found = self.find_group(transaction, key).await?.and_then(|found| found.group);
        let Some((id, row)) = found else { return Ok(None) };
        let members = query(self.queries.get("member_list")).bind(json(&[id])?);
        let members = transaction.all(members).await?;
        let members = members.iter().map(member).collect::<sqlx::Result<Vec<_>>>()?;
        let shares = transaction.all(query(self.queries.get("share_list")).bind(id)).await?;
        let since: Option<i64> = row.try_get("gathered_at")?;
        let gathered = since.filter(|_| !members.is_empty()).map_or(0, |since| now.saturating_sub(since));
        Ok(Some(GroupLook {
            shares: shares.iter().map(share).collect::<sqlx::Result<_>>()?,
            members,
            settings: group_settings(&row)?,
            paused: pause(&row, "paused_by", "paused_reason", "paused_at")?,
            gathered_ms: gathered.max(0).cast_unsigned(),
        }))
    }

    pub(super) async fn take_free(&self, take: &TakeShares) -> Result<Vec<Taken>, Failed> {
        check_take(take)?;
        let mut change = self.change().await?;
        let found = self.find_group(&mut change.transaction, &take.group).await?;
        let Some((id, _)) = found.and_then(|found| found.group) else {
            change.commit().await?;
            return Ok(Vec::new());
        };
        let wanted: Vec<(u32, i64)> =
            take.slots.iter().map(|(slot, token)| (*slot, token_number(*token))).collect();
        let free = query(self.queries.get("share_free_list"));
        let free = free.bind(id).bind(take.session.as_str()).bind(json(&wanted)?);
        let (mut slots, mut moves, mut name) = (Vec::new(), 0, String::new());
        for row in change.transaction.all(free).await? {
            let last: &str = row.try_get("last")?;
            name = row.try_get("name")?;
            moves += i64::from(!last.is_empty() && last != name);
            slots.push(row.try_get::<u32, _>("slot")?);
        }
        if slots.is_empty() {
            change.commit().await?;
            return Ok(Vec::new());
        }
        let list = json(&slots)?;
        let set = query(self.queries.get("share_take")).bind(id).bind(take.session.as_str());
        let rows = change.transaction.all(set.bind(&name).bind(&list)).await?;
        if moves > 0 {
            let count = query(self.queries.get("share_moves")).bind(id).bind(moves);
            change.transaction.execute(count).await?;
        }
        let mut taken = BTreeMap::new();
        for row in &rows {
            let slot = row.try_get("slot")?;
            let (token, position) = (token(row, "token")?, position(row, "position")?);
            taken.insert(slot, Taken { slot, token, position, done: Vec::new(), aside: Vec::new() });
        }
        let done = query(self.queries.get("done_list")).bind(id).bind(&list);
        for row in change.transaction.all(done).await? {
            if let Some(taken) = taken.get_mut(&row.try_get::<u32, _>("slot")?) {
                taken.done.push(EventId(position(&row, "event")?));
            }
        }
        let now = change.wall_ms;
        for (slot, key) in self.heads_aside(&mut change.transaction, id, &list, now).await? {
            if let Some(taken) = taken.get_mut(&slot) {
                taken.aside.push(key);
            }
        }
        change.commit().await?;
        Ok(take.slots.iter().filter_map(|(slot, _)| taken.remove(slot)).collect())
    }

    pub(super) async fn give_back(&self, key: &GroupKey, shares: &[(u32, Token)]) -> Result<(), Failed> {
        let shares: Vec<(u32, i64)> =
            shares.iter().map(|(slot, token)| (*slot, token_number(*token))).collect();
        let mut change = self.change().await?;
        let found = self.find_group(&mut change.transaction, key).await?.and_then(|found| found.group);
        if let Some((id, _)) = found {
            let free = query(self.queries.get("share_free")).bind(id).bind(json(&shares)?);
            if change.transaction.execute(free).await?.rows_affected() > 0 {
                change.wakes.push(Wake::Group(key.clone()));
            }
        }
        Ok(change.commit().await?)
    }

    /// Groups of a namespace, or of all; or one of a topic.
    pub(super) async fn group_views(
        &self,
        namespace: Option<&Name>,
        one: Option<(&Name, &Name)>,
    ) -> Result<Vec<GroupView>, Failed> {
        let mut transaction = Transaction::read(&self.inner.pools.reads).await?;
        let select = query(self.queries.get("group_list"))
            .bind(namespace.map(Name::as_str))
            .bind(one.map(|(topic, _)| topic.as_str()))
            .bind(one.map(|(_, group)| group.as_str()));
        let (rows, now) = (transaction.all(select).await?, runtime::wall_ms());
        let ids = rows.iter().map(|row| row.try_get("id")).collect::<sqlx::Result<Vec<i64>>>()?;
        let list = json(&ids)?;
        let members = transaction.all(query(self.queries.get("member_list")).bind(&list)).await?;
        let slots = query(self.queries.get("group_slots")).bind(&list).bind(number(LAG_COUNTED + 1));
        let slots = transaction.all(slots).await?;
        transaction.commit().await?;
        let places: HashMap<i64, usize> = ids.iter().copied().zip(0..).collect();
        let mut views = rows.iter().map(group_view).collect::<sqlx::Result<Vec<_>>>()?;
        for row in &members {
            if let Some(place) = places.get(&row.try_get("of_group")?) {
                views[*place].members.push(member(row)?);
            }
        }
        for row in &slots {
            if let Some(place) = places.get(&row.try_get("of_group")?) {
                views[*place].slots.push(slot_view(row, now)?);
            }
        }
        Ok(views)
    }

    pub(super) async fn keep_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<bool, Failed> {
        check_group(settings)?;
        check_begin(&from)?;
        let mut change = self.change().await?;
        let found =
            self.find_group(&mut change.transaction, key).await?.ok_or_else(|| no_such_topic(&key.topic))?;
        self.put_group(&mut change, &found, key, settings, from).await?;
        if found.group.is_some() {
            change.wakes.push(Wake::Group(key.clone()));
        }
        change.commit().await?;
        Ok(found.group.is_none())
    }

    pub(super) async fn drop_group(&self, key: &GroupKey) -> Result<bool, Failed> {
        let mut change = self.change().await?;
        let found = self.find_group(&mut change.transaction, key).await?.and_then(|found| found.group);
        let Some((id, _)) = found else {
            change.commit().await?;
            return Ok(false);
        };
        self.delete_group_in(&mut change, id, key.clone()).await?;
        change.commit().await?;
        Ok(true)
    }

    /// Deletes a group with all that it has, unless it has live members.
    pub(super) async fn delete_group_in(
        &self,
        change: &mut Change<'_>,
        id: i64,
        key: GroupKey,
    ) -> Result<(), Failed> {
        let members = query(self.queries.get("member_list")).bind(json(&[id])?);
        let members = change.transaction.all(members).await?.len();
        if members > 0 {
            return Err(has_members(&key, members).into());
        }
        let names =
            ["group_delete_shares", "group_delete_members", "group_delete_done", "group_delete_asides"];
        for name in names.into_iter().chain(["group_delete"]) {
            change.transaction.execute(query(self.queries.get(name)).bind(id)).await?;
        }
        change.wakes.push(Wake::Group(key));
        Ok(())
    }

    pub(super) async fn pause_group(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, Failed> {
        let mut change = self.change().await?;
        let (id, _) = self.group_id(&mut change.transaction, key).await?;
        let set = match pause {
            Some(pause) => query(self.queries.get("group_pause"))
                .bind(id)
                .bind(&pause.by)
                .bind(&pause.reason)
                .bind(pause.at_ms),
            None => query(self.queries.get("group_resume")).bind(id),
        };
        let changed = change.transaction.execute(set).await?.rows_affected() > 0;
        if changed {
            change.wakes.push(Wake::Group(key.clone()));
        }
        change.commit().await?;
        Ok(changed)
    }

    pub(super) async fn move_group(
        &self,
        key: &GroupKey,
        to: Begin,
        slot: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<Moved>, Failed> {
        check_begin(&to)?;
        let mut change = self.change().await?;
        let (id, topic) = self.group_id(&mut change.transaction, key).await?;
        if let Some(slot) = slot.filter(|slot| *slot >= topic.slots) {
            return Err(no_such_slot(&key.topic, slot, topic.slots).into());
        }
        let places = self.begin_at(&mut change.transaction, &topic, to).await?;
        let shares = change.transaction.all(query(self.queries.get("share_list")).bind(id)).await?;
        let mut moved = Vec::with_capacity(shares.len());
        for share in shares.iter().map(share) {
            let share = share?;
            let to = places.get(share.slot as usize).copied().unwrap_or(share.position);
            if slot.is_none_or(|slot| slot == share.slot) {
                moved.push(Moved { slot: share.slot, from: share.position, to });
            }
        }
        if !dry_run {
            let list: Vec<(i64, u32, i64)> = moved.iter().map(|it| (id, it.slot, number(it.to))).collect();
            let list = json(&list)?;
            for name in ["share_reset", "done_forget", "aside_forget"] {
                change.transaction.execute(query(self.queries.get(name)).bind(&list)).await?;
            }
            change.wakes.push(Wake::Group(key.clone()));
        }
        change.commit().await?;
        Ok(moved)
    }

    pub(super) async fn keep_push(&self, key: &GroupKey, push: Option<&Push>) -> Result<(), Failed> {
        push.map_or(Ok(()), check_push)?;
        let mut change = self.change().await?;
        let (id, _) = self.group_id(&mut change.transaction, key).await?;
        let set = query(self.queries.get("group_push"))
            .bind(id)
            .bind(push.map(|push| push.url.as_str()))
            .bind(push.map(|push| push.secret.as_str()))
            .bind(push.map(|push| ms(push.timeout_ms)));
        change.transaction.execute(set).await?;
        change.wakes.push(Wake::Group(key.clone()));
        Ok(change.commit().await?)
    }

    pub(super) async fn push_list(&self) -> Result<Vec<(GroupKey, Push)>, Failed> {
        let rows = query(self.queries.get("group_pushes")).fetch_all(&self.inner.pools.reads).await?;
        let pair = |row: &SqliteRow| Ok(push(row)?.map(|push| Ok((group_key(row)?, push))));
        rows.iter().filter_map(|row| pair(row).transpose().map(|it| it.and_then(|it| it))).collect()
    }
}

/// A group without its members and slots.
fn group_view(row: &SqliteRow) -> sqlx::Result<GroupView> {
    let (dead, all) = (position(row, "dead")?, position(row, "aside_and_dead")?);
    Ok(GroupView {
        key: group_key(row)?,
        settings: group_settings(row)?,
        paused: pause(row, "paused_by", "paused_reason", "paused_at")?,
        members: Vec::new(),
        slots: Vec::new(),
        aside: all - dead,
        dead,
        moves: position(row, "moves")?,
        push: push_view(row)?,
    })
}
