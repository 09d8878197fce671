//! Operations of operators on topics, groups and events.

use async_trait::async_trait;
use tenure_core::Name;
use tenure_core::port::{
    DeadLetterAction, Event, EventAdmin, EventId, GroupKey, GroupSettings, GroupView, OffsetChange,
    ParkedEvent, ParkedEventFilter, PartitionOffsets, Pause, StartOffset, StoreError, TopicKey,
    TopicSettings, TopicView, WebhookSettings,
};
use tenure_core::rules::event::{
    has_members, no_such_partition, partitions_are_fixed, validate_group, validate_start_offset,
    validate_topic, validate_webhook,
};

use super::super::error::unexpected_response;
use super::super::message::Message;
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::work::array;
use super::super::{PostgresStore, from_json, get};
use super::groups::start_offset;
use super::{group, read, topic};

#[async_trait]
impl EventAdmin for PostgresStore {
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        let rows = self.call("topic_list", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(|row| from_json(row, "topic")).collect()
    }

    async fn topic_names(&self, namespace: Option<&Name>) -> Result<Vec<TopicKey>, StoreError> {
        let rows = self.call("topic_names", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(topic_of).collect()
    }

    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        let rows = self.call("topic_get", &topic(key)).await?;
        rows.first().map(|row| from_json(row, "topic")).transpose()
    }

    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        validate_topic(settings)?;
        let [namespace, name] = topic(key);
        let values = [
            namespace,
            name,
            settings.partitions.into(),
            int(settings.retention_ms),
            settings.unread_retention_ms.map_or(Value::Null, int),
            int(settings.max_payload_bytes),
        ];
        let rows = self.call("topic_set", &values).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("a topic", "no row"))?;
        let partitions: u32 = number(get::<i32>(row, "partitions")?, "partitions")?;
        if partitions != settings.partitions {
            return Err(partitions_are_fixed(key, partitions, settings.partitions));
        }
        get(row, "created")
    }

    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        let message = Message::fresh(&self.queries).then("topic_delete", &topic(key))?;
        let rows = self.shared.calls.run(message).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let Some(active_group) = get::<Option<&str>>(row, "active_group")? else { return Ok(true) };
        let name = active_group.parse().map_err(|error| unexpected_response("a group", error))?;
        let members = number(get::<i64>(row, "members")?, "members")?;
        Err(has_members(&GroupKey::new(key.clone(), name), members))
    }

    async fn partition_offsets(&self, key: &TopicKey) -> Result<Option<Vec<PartitionOffsets>>, StoreError> {
        let rows = self.call("topic_offsets", &topic(key)).await?;
        let offsets = |row: &PgRow| {
            Ok(PartitionOffsets {
                partition: number(get::<i32>(row, "partition")?, "a partition")?,
                start_offset: number(get::<i64>(row, "start_offset")?, "an offset")?,
                end_offset: number(get::<i64>(row, "end_offset")?, "an offset")?,
            })
        };
        // A topic has at least one partition.
        (!rows.is_empty()).then(|| rows.iter().map(offsets).collect()).transpose()
    }

    async fn event(&self, key: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        let [namespace, name] = topic(key);
        let rows = self.call("event_get", &[namespace, name, int(id.0)]).await?;
        rows.first().map(read::event).transpose()
    }

    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        let rows = self.call("group_list", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(|row| from_json(row, "group_json")).collect()
    }

    async fn group_names(&self, namespace: Option<&Name>) -> Result<Vec<GroupKey>, StoreError> {
        let rows = self.call("group_names", &[namespace.map(Name::as_str).into()]).await?;
        rows.iter().map(group_of).collect()
    }

    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        let rows = self.call("group_get", &group(key)).await?;
        rows.first().map(|row| from_json(row, "group_json")).transpose()
    }

    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<bool, StoreError> {
        validate_group(settings)?;
        validate_start_offset(&from)?;
        let [namespace, topic, name] = group(key);
        let [from, value] = start_offset(from);
        let values = [
            namespace,
            topic,
            name,
            settings.max_attempts.into(),
            int(settings.backoff.initial_ms),
            int(settings.backoff.max_ms),
            from,
            value,
        ];
        let message = Message::fresh(&self.queries).then("group_set", &values)?;
        let rows = self.shared.calls.run(message).await?;
        get(rows.first().ok_or_else(|| unexpected_response("a group", "no row"))?, "created")
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
        let id = self.group_id_of(key).await?;
        let rows = match pause {
            Some(Pause { paused_by, reason, paused_at_ms }) => {
                let values =
                    [id, paused_by.as_str().into(), reason.as_str().into(), Value::Int(*paused_at_ms)];
                self.call("group_pause", &values).await?
            }
            None => self.call("group_resume", &[id]).await?,
        };
        Ok(!rows.is_empty())
    }

    async fn reset_group(
        &self,
        key: &GroupKey,
        to: StartOffset,
        partition: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<OffsetChange>, StoreError> {
        validate_start_offset(&to)?;
        let [start, value] = start_offset(to);
        let values = [self.group_id_of(key).await?, start, value, partition.into(), dry_run.into()];
        let message = Message::fresh(&self.queries).then("group_reset", &values)?;
        let rows = self.shared.calls.run(message).await?;
        if let (Some(partition), true) = (partition, rows.is_empty()) {
            let count = self.partition_offsets(&key.topic).await?.map_or(0, |offsets| offsets.len());
            return Err(no_such_partition(&key.topic, partition, number(count, "partitions")?));
        }
        let change = |row: &PgRow| {
            Ok(OffsetChange {
                partition: number(get::<i32>(row, "partition")?, "a partition")?,
                from_offset: number(get::<i64>(row, "from_offset")?, "an offset")?,
                to_offset: number(get::<i64>(row, "to_offset")?, "an offset")?,
            })
        };
        rows.iter().map(change).collect()
    }

    async fn parked_events(&self, filter: &ParkedEventFilter) -> Result<Vec<ParkedEvent>, StoreError> {
        let values = [
            self.group_id_of(&filter.group).await?,
            filter.dead.into(),
            filter.partition.into(),
            filter.key.as_deref().into(),
            filter.after.map_or(Value::Int(-1), |after| int(after.0)),
            filter.limit.into(),
        ];
        let rows = self.call("parked_event_list", &values).await?;
        let view = |row: &PgRow| {
            let retry_in_ms: Option<i64> = get(row, "retry_in_ms")?;
            Ok(ParkedEvent {
                event: read::event(row)?,
                dead: get(row, "dead")?,
                attempts: number(get::<i32>(row, "attempts")?, "attempts")?,
                last_error: get(row, "last_error")?,
                last_failed_at_ms: get(row, "last_failed_at_ms")?,
                retry_in_ms: retry_in_ms.map(|ms| number(ms, "a time")).transpose()?,
                waiting_behind_count: number(get::<i64>(row, "waiting_behind_count")?, "events")?,
            })
        };
        rows.iter().map(view).collect()
    }

    async fn apply_dead_letter_action(
        &self,
        key: &GroupKey,
        events: &[EventId],
        action: DeadLetterAction,
    ) -> Result<Vec<EventId>, StoreError> {
        let query = match action {
            DeadLetterAction::Replay => "dead_letter_replay",
            DeadLetterAction::Drop => "dead_letter_drop",
        };
        let (id, events) = (self.group_id_of(key).await?, array(events.iter().map(|event| event.0)));
        let rows = self.call(query, &[id.clone(), events.as_str().into()]).await?;
        let changed =
            rows.iter().map(|row| Ok(EventId(number(get::<i64>(row, "event_id")?, "an event id")?)));
        let mut changed = changed.collect::<Result<Vec<_>, StoreError>>()?;
        changed.sort_unstable();
        if !changed.is_empty() {
            // After the commit, so that the notified members see the change.
            self.call("group_notify", &[id]).await?;
        }
        Ok(changed)
    }

    async fn set_webhook(&self, key: &GroupKey, webhook: Option<&WebhookSettings>) -> Result<(), StoreError> {
        webhook.map_or(Ok(()), validate_webhook)?;
        let id = self.group_id_of(key).await?;
        match webhook {
            Some(WebhookSettings { url, secret, timeout_ms }) => {
                let values = [id, url.as_str().into(), secret.as_str().into(), int(*timeout_ms)];
                self.call("group_webhook_set", &values).await.map(drop)
            }
            None => self.call("group_webhook_delete", &[id]).await.map(drop),
        }
    }

    async fn webhooks(&self) -> Result<Vec<(GroupKey, WebhookSettings)>, StoreError> {
        let rows = self.call("group_webhook_list", &[]).await?;
        let webhook = |row: &PgRow| {
            let timeout_ms = number(get::<i64>(row, "timeout_ms")?, "a time")?;
            let webhook = WebhookSettings { url: get(row, "url")?, secret: get(row, "secret")?, timeout_ms };
            Ok((group_of(row)?, webhook))
        };
        rows.iter().map(webhook).collect()
    }
}

fn name(row: &PgRow, column: &str) -> Result<Name, StoreError> {
    let name: &str = get(row, column)?;
    name.parse().map_err(|error| unexpected_response(column, error))
}

fn topic_of(row: &PgRow) -> Result<TopicKey, StoreError> {
    Ok(TopicKey::new(name(row, "namespace")?, name(row, "topic")?))
}

fn group_of(row: &PgRow) -> Result<GroupKey, StoreError> {
    Ok(GroupKey::new(topic_of(row)?, name(row, "name")?))
}

impl PostgresStore {
    /// The id of a group. Fails if it does not exist.
    async fn group_id_of(&self, key: &GroupKey) -> Result<Value<'static>, StoreError> {
        let rows = self.call("group_id", &group(key)).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("a group", "no row"))?;
        Ok(Value::Int(get::<i32>(row, "id")?.into()))
    }
}
