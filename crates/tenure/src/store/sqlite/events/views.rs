//! Conversion of rows to events, topics and groups.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, TypeInfo, ValueRef};
use tenure_core::SessionId;
use tenure_core::port::{
    Event, EventId, GroupKey, GroupMember, GroupSettings, LAG_COUNT_MAX, Offset, ParkedEvent, ParkedKey,
    PartitionLease, PartitionView, Payload, TopicKey, TopicSettings, TopicView, Webhook, WebhookSettings,
};

use super::super::columns::{backoff, leader_token, token, unsigned};
use super::super::connection::parsed;
use super::super::election_admin::json;

/// An event. Invalid values do not fail, because an unreadable event would block all later ones, and other programs may write rows.
/// Invalid UTF-8 is replaced, and a payload that is not JSON becomes bytes.
pub(super) fn event(row: &SqliteRow) -> sqlx::Result<Event> {
    let headers: BTreeMap<String, String> =
        serde_json::from_str(&text(row, "headers")?.unwrap_or_default()).unwrap_or_default();
    Ok(Event {
        id: EventId(u64_column(row, "id")?),
        partition: row.try_get("partition")?,
        offset: u64_column(row, "event_offset")?,
        key: text(row, "key")?.map(Cow::into_owned),
        event_type: text(row, "type")?.unwrap_or_default().into_owned(),
        payload: payload(row)?,
        headers,
        leader_token: leader_token(row)?,
        published_at_ms: row.try_get("published_at_ms")?,
    })
}

fn payload(row: &SqliteRow) -> sqlx::Result<Payload> {
    let bytes: &[u8] = row.try_get_unchecked("payload")?;
    let is_text = row.try_get_raw("payload")?.type_info().name() == "TEXT";
    let json = std::str::from_utf8(bytes).ok().filter(|_| is_text).and_then(|text| text.parse().ok());
    Ok(json.map_or_else(|| Payload::Bytes(bytes.to_owned()), Payload::Json))
}

fn text<'r>(row: &'r SqliteRow, column: &str) -> sqlx::Result<Option<Cow<'r, str>>> {
    let bytes: Option<&[u8]> = row.try_get_unchecked(column)?;
    Ok(bytes.map(String::from_utf8_lossy))
}

/// An event id, an offset or a count.
pub(super) fn u64_column(row: &SqliteRow, column: &str) -> sqlx::Result<Offset> {
    row.try_get::<i64, _>(column).map(i64::cast_unsigned)
}

/// The age of an instant; 0 if the clock was set back.
fn since(at: i64, now: i64) -> u64 {
    now.saturating_sub(at).max(0).cast_unsigned()
}

pub(super) fn topic_key(row: &SqliteRow) -> sqlx::Result<TopicKey> {
    Ok(TopicKey::new(parsed(row, "namespace")?, parsed(row, "name")?))
}

pub(super) fn topic_view(row: &SqliteRow) -> sqlx::Result<TopicView> {
    Ok(TopicView {
        key: topic_key(row)?,
        settings: TopicSettings {
            partitions: row.try_get("partitions")?,
            retention_ms: u64_column(row, "retention_ms")?,
            unread_retention_ms: unsigned(row, "unread_retention_ms")?,
            max_payload_bytes: u64_column(row, "max_payload_bytes")?,
        },
        event_count: row.try_get::<i64, _>("event_count")?.max(0).cast_unsigned(),
        oldest_published_at_ms: row.try_get("oldest_published_at_ms")?,
        newest_published_at_ms: row.try_get("newest_published_at_ms")?,
        groups: json(row, "groups")?,
        // Writers wait for the write lock of the file, not for a partition.
        lock_holders: Vec::new(),
    })
}

pub(super) fn group_settings(row: &SqliteRow) -> sqlx::Result<GroupSettings> {
    Ok(GroupSettings { max_attempts: row.try_get("max_attempts")?, backoff: backoff(row)? })
}

/// The group in the columns `namespace`, `topic_name` and `name`.
pub(super) fn group_key(row: &SqliteRow) -> sqlx::Result<GroupKey> {
    let topic = TopicKey::new(parsed(row, "namespace")?, parsed(row, "topic_name")?);
    Ok(GroupKey::new(topic, parsed(row, "name")?))
}

pub(super) fn member(row: &SqliteRow) -> sqlx::Result<GroupMember> {
    Ok(GroupMember { session: SessionId::from_stored(row.try_get("session")?), name: row.try_get("name")? })
}

pub(super) fn partition_lease(row: &SqliteRow) -> sqlx::Result<PartitionLease> {
    let holder: Option<String> = row.try_get("session")?;
    Ok(PartitionLease {
        partition: row.try_get("partition")?,
        token: token(row, "token")?,
        holder: holder.map(SessionId::from),
        last_member: row.try_get("last_member")?,
        committed_offset: u64_column(row, "committed_offset")?,
    })
}

pub(super) fn partition_view(row: &SqliteRow, now: i64) -> sqlx::Result<PartitionView> {
    let lag = u64_column(row, "lag_events")?;
    let oldest_unread_at_ms: Option<i64> = row.try_get("oldest_unread_at_ms")?;
    Ok(PartitionView {
        partition_lease: partition_lease(row)?,
        end_offset: u64_column(row, "end_offset")?,
        lag_events: lag.min(LAG_COUNT_MAX),
        lag_exact: lag <= LAG_COUNT_MAX,
        lag_ms: oldest_unread_at_ms.map_or(0, |at| since(at, now)),
    })
}

pub(super) fn webhook(row: &SqliteRow) -> sqlx::Result<Option<WebhookSettings>> {
    let Some(url) = row.try_get("webhook_url")? else { return Ok(None) };
    let secret = row.try_get::<Option<String>, _>("webhook_secret")?.unwrap_or_default();
    Ok(Some(WebhookSettings {
        url,
        secret,
        timeout_ms: unsigned(row, "webhook_timeout_ms")?.unwrap_or_default(),
    }))
}

pub(super) fn webhook_view(row: &SqliteRow) -> sqlx::Result<Option<Webhook>> {
    Ok(webhook(row)?.map(|webhook| Webhook { url: webhook.url, timeout_ms: webhook.timeout_ms }))
}

/// The time until the retry of a parked event; `None` for a dead letter.
fn retry_in(row: &SqliteRow, now: i64) -> sqlx::Result<Option<u64>> {
    let (dead, retry_at_ms): (bool, Option<i64>) = (row.try_get("dead")?, row.try_get("retry_at_ms")?);
    Ok((!dead).then(|| retry_at_ms.map_or(0, |at| at.saturating_sub(now).max(0).cast_unsigned())))
}

pub(super) fn parked_key(row: &SqliteRow, now: i64) -> sqlx::Result<ParkedKey> {
    Ok(ParkedKey {
        key: text(row, "key")?.map(Cow::into_owned),
        event_id: EventId(u64_column(row, "event_id")?),
        attempts: row.try_get("attempts")?,
        retry_in_ms: retry_in(row, now)?,
    })
}

pub(super) fn parked_event(row: &SqliteRow, now: i64) -> sqlx::Result<ParkedEvent> {
    let first: bool = row.try_get("is_first")?;
    Ok(ParkedEvent {
        event: event(row)?,
        dead: row.try_get("dead")?,
        attempts: row.try_get("attempts")?,
        last_error: row.try_get("last_error")?,
        last_failed_at_ms: row.try_get("last_failed_at_ms")?,
        retry_in_ms: retry_in(row, now)?.filter(|_| first),
        waiting_behind_count: row.try_get::<i64, _>("waiting_behind_count")?.cast_unsigned(),
    })
}
