//! Administrative operations on topics and groups through a server.

use async_trait::async_trait;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tenure_core::Name;
use tenure_core::port::{
    DeadLetterAction, Event, EventAdmin, EventId, GroupKey, GroupSettings, GroupView, OffsetChange,
    ParkedEvent, ParkedEventFilter, PartitionOffsets, Pause, StartOffset, StoreError, TopicKey,
    TopicSettings, TopicView, WebhookSettings,
};

use super::super::HttpStore;
use super::super::client::{bare, get, send};
use super::super::response::HttpResponse;
use super::super::task_admin::{ChangeResponse, pause_request, query_param};
use super::{group_path, internal_group_path, is_missing, of};

/// Page size of topics.
const TOPICS_PAGE: u32 = 1000;
/// Page size of groups.
const GROUPS_PAGE: u32 = 200;
/// Page size of parked events.
const PARKED_EVENTS_PAGE: u32 = 1000;
/// Maximum number of event ids in one request.
const IDS_MAX: usize = 1000;

#[derive(Deserialize)]
struct TopicList {
    topics: Vec<TopicView>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct TopicOffsets {
    partitions: Vec<PartitionOffsets>,
}

#[derive(Deserialize)]
struct GroupList {
    groups: Vec<GroupView>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct ResetOffsetsResponse {
    partitions: Vec<OffsetChange>,
}

#[derive(Deserialize)]
struct ParkedEventList {
    events: Vec<ParkedEvent>,
    next_cursor: Option<EventId>,
}

#[derive(Deserialize)]
struct BulkEventResponse {
    event_ids: Vec<EventId>,
}

#[async_trait]
impl EventAdmin for HttpStore {
    async fn topics(&self, namespace: Option<&Name>) -> Result<Vec<TopicView>, StoreError> {
        let (mut all, mut after) = (Vec::new(), String::new());
        let only = query_param("namespace", namespace.map(Name::as_str));
        loop {
            let path = format!("/v1/topics?limit={TOPICS_PAGE}{only}{after}");
            let page: TopicList = self.client.call(&get(path)).await?.read()?;
            all.extend(page.topics);
            match page.next_cursor {
                Some(next) => after = query_param("cursor", Some(&next)),
                None => return Ok(all),
            }
        }
    }

    async fn topic(&self, key: &TopicKey) -> Result<Option<TopicView>, StoreError> {
        let response = self.client.call(&get(of(key, ""))).await?;
        if is_missing(&response) { Ok(None) } else { response.read().map(Some) }
    }

    async fn set_topic(&self, key: &TopicKey, settings: &TopicSettings) -> Result<bool, StoreError> {
        was_created(self.client.call(&send(Method::PUT, of(key, ""), settings)).await?)
    }

    async fn delete_topic(&self, key: &TopicKey) -> Result<bool, StoreError> {
        was_deleted(self.client.call(&bare(Method::DELETE, of(key, ""))).await?)
    }

    async fn partition_offsets(&self, key: &TopicKey) -> Result<Option<Vec<PartitionOffsets>>, StoreError> {
        let response = self.client.call(&get(of(key, "/offsets"))).await?;
        if is_missing(&response) {
            return Ok(None);
        }
        response.read().map(|offsets: TopicOffsets| Some(offsets.partitions))
    }

    async fn event(&self, topic: &TopicKey, id: EventId) -> Result<Option<Event>, StoreError> {
        let response = self.client.call(&get(of(topic, &format!("/events/{id}")))).await?;
        if is_missing(&response) || response.says("no-such-event") {
            return Ok(None);
        }
        response.read().map(Some)
    }

    async fn groups(&self, namespace: Option<&Name>) -> Result<Vec<GroupView>, StoreError> {
        let (mut all, mut after) = (Vec::new(), String::new());
        let only = query_param("namespace", namespace.map(Name::as_str));
        loop {
            let path = format!("/v1/groups?limit={GROUPS_PAGE}{only}{after}");
            let page: GroupList = self.client.call(&get(path)).await?.read()?;
            all.extend(page.groups);
            match page.next_cursor {
                Some(next) => after = query_param("cursor", Some(&next)),
                None => return Ok(all),
            }
        }
    }

    async fn group(&self, key: &GroupKey) -> Result<Option<GroupView>, StoreError> {
        let response = self.client.call(&get(group_path(key, ""))).await?;
        if is_missing(&response) { Ok(None) } else { response.read().map(Some) }
    }

    async fn set_group(
        &self,
        key: &GroupKey,
        settings: &GroupSettings,
        from: StartOffset,
    ) -> Result<bool, StoreError> {
        let GroupSettings { max_attempts, backoff } = settings;
        let body = json!({ "max_attempts": max_attempts, "backoff": backoff, "from": from });
        was_created(self.client.call(&send(Method::PUT, group_path(key, ""), &body)).await?)
    }

    async fn delete_group(&self, key: &GroupKey) -> Result<bool, StoreError> {
        was_deleted(self.client.call(&bare(Method::DELETE, group_path(key, ""))).await?)
    }

    async fn set_group_paused(&self, key: &GroupKey, pause: Option<&Pause>) -> Result<bool, StoreError> {
        let mut call = match pause {
            Some(pause) => send(Method::POST, group_path(key, "/pause"), &pause_request(pause)),
            None => bare(Method::POST, group_path(key, "/resume")),
        };
        // No retry: after a lost response the second attempt would report `changed: false`.
        call.again = false;
        self.client.call(&call).await?.read().map(|response: ChangeResponse| response.changed)
    }

    async fn reset_group(
        &self,
        key: &GroupKey,
        to: StartOffset,
        partition: Option<u32>,
        dry_run: bool,
    ) -> Result<Vec<OffsetChange>, StoreError> {
        let body = json!({ "to": to, "partition": partition, "dry_run": dry_run });
        let mut call = send(Method::POST, group_path(key, "/reset"), &body);
        // No retry: the second reset would find the offsets moved, and revoke the partition leases again.
        call.again = dry_run;
        self.client.call(&call).await?.read().map(|reset: ResetOffsetsResponse| reset.partitions)
    }

    async fn parked_events(&self, filter: &ParkedEventFilter) -> Result<Vec<ParkedEvent>, StoreError> {
        let only = [
            if filter.dead { "&dead=true".into() } else { String::new() },
            filter.partition.map(|partition| format!("&partition={partition}")).unwrap_or_default(),
            query_param("key", filter.key.as_deref()),
        ];
        let only = only.concat();
        let (mut all, mut after) = (Vec::new(), filter.after);
        let wanted = filter.limit as usize;
        while all.len() < wanted {
            let limit =
                u32::try_from(wanted - all.len()).unwrap_or(PARKED_EVENTS_PAGE).min(PARKED_EVENTS_PAGE);
            let from = after.map(|id| format!("&cursor={id}")).unwrap_or_default();
            let path = format!("{}&limit={limit}{only}{from}", group_path(&filter.group, "/parked-events"));
            let page: ParkedEventList = self.client.call(&get(path)).await?.read()?;
            all.extend(page.events);
            after = page.next_cursor;
            if after.is_none() {
                break;
            }
        }
        if filter.key.is_some() {
            // Pages are sorted by id.
            all.sort_by_key(|parked| (parked.event.offset, parked.event.id));
        }
        Ok(all)
    }

    async fn apply_dead_letter_action(
        &self,
        group: &GroupKey,
        events: &[EventId],
        action: DeadLetterAction,
    ) -> Result<Vec<EventId>, StoreError> {
        let word = match action {
            DeadLetterAction::Replay => "replay",
            DeadLetterAction::Drop => "drop",
        };
        if events.is_empty() {
            // Nothing to do, except to report a missing group.
            let response = self.client.call(&get(internal_group_path(group, "/assignment"))).await?;
            return response.read().map(|_: IgnoredAny| Vec::new());
        }
        let mut all = Vec::new();
        for ids in events.chunks(IDS_MAX) {
            let path = group_path(group, &format!("/dead-letters/{word}"));
            let mut call = send(Method::POST, path, &json!({ "event_ids": ids }));
            // No retry: the response must list what this call changed.
            call.again = false;
            let bulk: BulkEventResponse = self.client.call(&call).await?.read()?;
            all.extend(bulk.event_ids);
        }
        Ok(all)
    }

    async fn set_webhook(&self, key: &GroupKey, webhook: Option<&WebhookSettings>) -> Result<(), StoreError> {
        let path = group_path(key, "/webhook");
        match webhook {
            Some(webhook) => {
                // Without a secret, the server keeps the current one.
                let secret = (!webhook.secret.is_empty()).then_some(&webhook.secret);
                let body = json!({"url": webhook.url, "secret": secret, "timeout_ms": webhook.timeout_ms});
                let response = self.client.call(&send(Method::PUT, path, &body)).await?;
                response.read().map(|_: IgnoredAny| ())
            }
            None => self.client.call(&bare(Method::DELETE, path)).await?.done(),
        }
    }

    /// Empty: the servers send webhooks themselves and never reveal secrets.
    async fn webhooks(&self) -> Result<Vec<(GroupKey, WebhookSettings)>, StoreError> {
        Ok(Vec::new())
    }
}

/// Whether the object was created.
fn was_created(response: HttpResponse) -> Result<bool, StoreError> {
    let new = response.status == StatusCode::CREATED;
    response.read().map(|_: IgnoredAny| new)
}

/// Whether the object existed.
fn was_deleted(response: HttpResponse) -> Result<bool, StoreError> {
    // After a retry, an earlier attempt may have deleted it.
    if is_missing(&response) { Ok(response.tries > 1) } else { response.done().map(|()| true) }
}
