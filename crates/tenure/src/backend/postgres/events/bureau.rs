//! The path of people.

use async_trait::async_trait;
use tenure_core::Name;
use tenure_core::event::{
    check_begin, check_group, check_push, check_topic, has_members, no_such_slot, slots_are_fixed,
};
use tenure_core::port::{
    AsideFilter, AsideView, Begin, Bureau, DeadOrder, Event, EventId, GroupKey, GroupSettings, GroupView,
    Moved, Pause, Push, SlotEnds, StoreError, TopicKey, TopicSettings, TopicView,
};

use super::super::claims::array;
use super::super::error::garbled;
use super::super::message::Message;
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{Postgres, from_json, get};
use super::groups::begin;
use super::{group, read, topic};

#[async_trait]
impl Bureau for Postgres {
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        let rows = self.call("topic_list", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(|row| from_json(row, "topic")).collect()
    }

    async fn topic_names(&self, namespace: Option<&Name>) -> Result<Vec<TopicKey>, StoreError> {
        let rows = self.call("topic_names", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(topic_of).collect()
    }

    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        let rows = self.call("topic_show", &topic(key)).await?;
        rows.first().map(|row| from_json(row, "topic")).transpose()
    }

    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        check_topic(settings)?;
        let [namespace, name] = topic(key);
        let values = [
            namespace,
            name,
            settings.slots.into(),
            int(settings.keep_ms),
            settings.keep_unread_ms.map_or(Value::Null, int),
            int(settings.max_bytes),
        ];
        let rows = self.call("topic_set", &values).await?;
        let row = rows.first().ok_or_else(|| garbled("a topic", "no row"))?;
        let slots: u32 = number(get::<i32>(row, "slots")?, "slots")?;
        if slots != settings.slots {
            return Err(slots_are_fixed(key, slots, settings.slots));
        }
        get(row, "new")
    }

    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        let message = Message::fresh(&self.queries).then("topic_delete", &topic(key))?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let Some(busy) = get::<Option<&str>>(row, "busy")? else { return Ok(true) };
        let name = busy.parse().map_err(|error| garbled("a group", error))?;
        let members = number(get::<i64>(row, "members")?, "members")?;
        Err(has_members(&GroupKey::new(key.clone(), name), members))
    }

    async fn slot_ends(&self, key: &TopicKey) -> Result<Option<Vec<SlotEnds>>, StoreError> {
        let rows = self.call("topic_ends", &topic(key)).await?;
        let ends = |row: &PgRow| {
            Ok(SlotEnds {
                slot: number(get::<i32>(row, "slot")?, "a slot")?,
                earliest: number(get::<i64>(row, "earliest")?, "a position")?,
                latest: number(get::<i64>(row, "latest")?, "a position")?,
            })
        };
        // A topic has a slot at least.
        (!rows.is_empty()).then(|| rows.iter().map(ends).collect()).transpose()
    }

    async fn event(&self, key: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        let [namespace, name] = topic(key);
        let rows = self.call("event_show", &[namespace, name, int(id.0)]).await?;
        rows.first().map(read::event).transpose()
    }

    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        let rows = self.call("group_list", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(|row| from_json(row, "found")).collect()
    }

    async fn group_names(&self, namespace: Option<&Name>) -> Result<Vec<GroupKey>, StoreError> {
        let rows = self.call("group_names", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(group_of).collect()
    }

    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        let rows = self.call("group_show", &group(key)).await?;
        rows.first().map(|row| from_json(row, "found")).transpose()
    }

    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: Begin,
    ) -> Result<bool, StoreError> {
        check_group(settings)?;
        check_begin(&from)?;
        let [namespace, topic, name] = group(key);
        let [from, value] = begin(from);
        let values = [
            namespace,
            topic,
            name,
            settings.max_attempts.into(),
            int(settings.backoff.first_ms),
            int(settings.backoff.most_ms),
            from,
            value,
        ];
        let message = Message::fresh(&self.queries).then("group_set", &values)?;
        let rows = self.shared.calls.run(message).await?;
        get(rows.first().ok_or_else(|| garbled("a group", "no row"))?, "new")
    }

    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        let message = Message::fresh(&self.queries).then("group_delete", &group(key))?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        match number(get::<i64>(row, "members")?, "members")? {
            0 => Ok(true),
            members => Err(has_members(key, members)),
        }
    }

    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let id = self.number_of(key).await?;
        let rows = match pause {
            Some(Pause { by, reason, at_ms }) => {
                let values = [id, by.as_str().into(), reason.as_str().into(), Value::Int(*at_ms)];
                self.call("group_pause", &values).await?
            }
            None => self.call("group_resume", &[id]).await?,
        };
        Ok(!rows.is_empty())
    }

    async fn reset_group(
        &self,
        key: &GroupKey,
        to: Begin,
        slot: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<Moved>, StoreError> {
        check_begin(&to)?;
        let [word, value] = begin(to);
        let values = [self.number_of(key).await?, word, value, slot.into(), dry_run.into()];
        let message = Message::fresh(&self.queries).then("group_reset", &values)?;
        let rows = self.shared.calls.run(message).await?;
        if let (Some(slot), true) = (slot, rows.is_empty()) {
            let slots = self.slot_ends(&key.topic).await?.map_or(0, |ends| ends.len());
            return Err(no_such_slot(&key.topic, slot, number(slots, "slots")?));
        }
        let moved = |row: &PgRow| {
            Ok(Moved {
                slot: number(get::<i32>(row, "slot")?, "a slot")?,
                from: number(get::<i64>(row, "before_")?, "a position")?,
                to: number(get::<i64>(row, "after_")?, "a position")?,
            })
        };
        rows.iter().map(moved).collect()
    }

    async fn aside(&self, filter: &AsideFilter) -> Result<Vec<AsideView>, StoreError> {
        let values = [
            self.number_of(&filter.group).await?,
            filter.dead.into(),
            filter.slot.into(),
            filter.key.as_deref().into(),
            filter.after.map_or(Value::Int(-1), |after| int(after.0)),
            filter.limit.into(),
        ];
        let rows = self.call("aside_list", &values).await?;
        let view = |row: &PgRow| {
            let due: Option<i64> = get(row, "due_in_ms")?;
            Ok(AsideView {
                event: read::event(row)?,
                dead: get(row, "dead")?,
                attempts: number(get::<i32>(row, "attempts")?, "attempts")?,
                error: get(row, "error")?,
                failed_at_ms: get(row, "failed_at_ms")?,
                due_in_ms: due.map(|ms| number(ms, "a time")).transpose()?,
                behind: number(get::<i64>(row, "behind")?, "events")?,
            })
        };
        rows.iter().map(view).collect()
    }

    async fn order_dead(
        &self,
        key: &GroupKey,
        events: &[EventId],
        order: DeadOrder,
    ) -> Result<Vec<EventId>, StoreError> {
        let query = match order {
            DeadOrder::Replay => "dead_replay",
            DeadOrder::Drop => "dead_drop",
        };
        let (id, events) = (self.number_of(key).await?, array(events.iter().map(|event| event.0)));
        let rows = self.call(query, &[id.clone(), events.as_str().into()]).await?;
        let done = rows.iter().map(|row| Ok(EventId(number(get::<i64>(row, "id")?, "an event's number")?)));
        let mut done = done.collect::<Result<Vec<_>, StoreError>>()?;
        done.sort_unstable();
        if !done.is_empty() {
            // After it is done: what is waked for is there.
            self.call("group_wake", &[id]).await?;
        }
        Ok(done)
    }

    async fn set_push(&self, key: &GroupKey, push: Option<&Push>) -> Result<(), StoreError> {
        push.map_or(Ok(()), check_push)?;
        let id = self.number_of(key).await?;
        match push {
            Some(Push { url, secret, timeout_ms }) => {
                let values = [id, url.as_str().into(), secret.as_str().into(), int(*timeout_ms)];
                self.call("push_set", &values).await.map(drop)
            }
            None => self.call("push_end", &[id]).await.map(drop),
        }
    }

    async fn pushes(&self) -> Result<Vec<(GroupKey, Push)>, StoreError> {
        let rows = self.call("push_list", &[]).await?;
        let push = |row: &PgRow| {
            let timeout_ms = number(get::<i64>(row, "timeout_ms")?, "a time")?;
            let push = Push { url: get(row, "url")?, secret: get(row, "secret")?, timeout_ms };
            Ok((group_of(row)?, push))
        };
        rows.iter().map(push).collect()
    }
}

fn name(row: &PgRow, column: &str) -> Result<Name, StoreError> {
    let name: &str = get(row, column)?;
    name.parse().map_err(|error| garbled(column, error))
}

fn topic_of(row: &PgRow) -> Result<TopicKey, StoreError> {
    Ok(TopicKey::new(name(row, "namespace")?, name(row, "topic")?))
}

fn group_of(row: &PgRow) -> Result<GroupKey, StoreError> {
    Ok(GroupKey::new(topic_of(row)?, name(row, "name")?))
}

impl Postgres {
    /// The number of a group that is there.
    async fn number_of(&self, key: &GroupKey) -> Result<Value<'static>, StoreError> {
        let rows = self.call("group_number", &group(key)).await?;
        let row = rows.first().ok_or_else(|| garbled("a group", "no row"))?;
        Ok(Value::Int(get::<i32>(row, "id")?.into()))
    }
}
