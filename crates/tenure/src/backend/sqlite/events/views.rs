//! How rows become events, topics and groups.

use std::borrow::Cow;
use std::collections::BTreeMap;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, TypeInfo, ValueRef};
use tenure_core::SessionId;
use tenure_core::port::{
    AsideKey, AsideView, Event, EventId, GroupKey, GroupSettings, LAG_COUNTED, Member, Payload, Position,
    Push, PushView, Share, SlotView, TopicKey, TopicSettings, TopicView,
};

use super::super::connection::parsed;
use super::super::directory::json;
use super::super::row::{backoff, leader_token, token, unsigned};

/// An event. Whatever is in its row, it is read, or it would be in the way of all that follow: another program may have put there
/// what Tenure would not. Text that is not UTF-8 is mended, and a payload that is not JSON is bytes.
pub(super) fn event(row: &SqliteRow) -> sqlx::Result<Event> {
    let headers: BTreeMap<String, String> =
        serde_json::from_str(&text(row, "headers")?.unwrap_or_default()).unwrap_or_default();
    Ok(Event {
        id: EventId(position(row, "id")?),
        slot: row.try_get("slot")?,
        position: position(row, "position")?,
        key: text(row, "key")?.map(Cow::into_owned),
        kind: text(row, "kind")?.unwrap_or_default().into_owned(),
        payload: payload(row)?,
        headers,
        leader_token: leader_token(row)?,
        at_ms: row.try_get("published_at")?,
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

/// A number of an event, or a position.
pub(super) fn position(row: &SqliteRow, column: &str) -> sqlx::Result<Position> {
    row.try_get::<i64, _>(column).map(i64::cast_unsigned)
}

/// How long ago something was, by clocks that may be set back.
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
            slots: row.try_get("slots")?,
            keep_ms: position(row, "keep_ms")?,
            keep_unread_ms: unsigned(row, "keep_unread_ms")?,
            max_bytes: position(row, "max_bytes")?,
        },
        events: row.try_get::<i64, _>("events")?.max(0).cast_unsigned(),
        oldest_at_ms: row.try_get("oldest_at")?,
        newest_at_ms: row.try_get("newest_at")?,
        groups: json(row, "groups")?,
        // A commit that waits for the write lock waits for no slot.
        blockers: Vec::new(),
    })
}

pub(super) fn group_settings(row: &SqliteRow) -> sqlx::Result<GroupSettings> {
    Ok(GroupSettings { max_attempts: row.try_get("max_attempts")?, backoff: backoff(row)? })
}

/// The group that the columns `namespace`, `topic_name` and `name` name.
pub(super) fn group_key(row: &SqliteRow) -> sqlx::Result<GroupKey> {
    let topic = TopicKey::new(parsed(row, "namespace")?, parsed(row, "topic_name")?);
    Ok(GroupKey::new(topic, parsed(row, "name")?))
}

pub(super) fn member(row: &SqliteRow) -> sqlx::Result<Member> {
    Ok(Member { session: SessionId::from_stored(row.try_get("session")?), name: row.try_get("name")? })
}

pub(super) fn share(row: &SqliteRow) -> sqlx::Result<Share> {
    let holder: Option<String> = row.try_get("session")?;
    Ok(Share {
        slot: row.try_get("slot")?,
        token: token(row, "token")?,
        holder: holder.map(SessionId::from),
        last: row.try_get("last")?,
        position: position(row, "position")?,
    })
}

pub(super) fn slot_view(row: &SqliteRow, now: i64) -> sqlx::Result<SlotView> {
    let lag = position(row, "lag")?;
    let waits_since: Option<i64> = row.try_get("waits_since")?;
    Ok(SlotView {
        share: share(row)?,
        end: position(row, "latest")?,
        lag: lag.min(LAG_COUNTED),
        lag_exact: lag <= LAG_COUNTED,
        lag_ms: waits_since.map_or(0, |at| since(at, now)),
    })
}

pub(super) fn push(row: &SqliteRow) -> sqlx::Result<Option<Push>> {
    let Some(url) = row.try_get("push_url")? else { return Ok(None) };
    let secret = row.try_get::<Option<String>, _>("push_secret")?.unwrap_or_default();
    Ok(Some(Push { url, secret, timeout_ms: unsigned(row, "push_timeout_ms")?.unwrap_or_default() }))
}

pub(super) fn push_view(row: &SqliteRow) -> sqlx::Result<Option<PushView>> {
    Ok(push(row)?.map(|push| PushView { url: push.url, timeout_ms: push.timeout_ms }))
}

/// In how long an event that is aside is due, if it is the first of its key.
fn due_in(row: &SqliteRow, now: i64) -> sqlx::Result<Option<u64>> {
    let (dead, due_at): (bool, Option<i64>) = (row.try_get("dead")?, row.try_get("due_at")?);
    Ok((!dead).then(|| due_at.map_or(0, |at| at.saturating_sub(now).max(0).cast_unsigned())))
}

pub(super) fn aside_key(row: &SqliteRow, now: i64) -> sqlx::Result<AsideKey> {
    Ok(AsideKey {
        key: text(row, "key")?.map(Cow::into_owned),
        event: EventId(position(row, "event")?),
        attempts: row.try_get("attempts")?,
        due_in_ms: due_in(row, now)?,
    })
}

pub(super) fn aside_view(row: &SqliteRow, now: i64) -> sqlx::Result<AsideView> {
    let first: bool = row.try_get("first")?;
    Ok(AsideView {
        event: event(row)?,
        dead: row.try_get("dead")?,
        attempts: row.try_get("attempts")?,
        error: row.try_get("error")?,
        failed_at_ms: row.try_get("failed_at")?,
        due_in_ms: due_in(row, now)?.filter(|_| first),
        behind: row.try_get::<i64, _>("behind")?.cast_unsigned(),
    })
}
