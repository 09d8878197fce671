//! Publishing. A call is atomic: it publishes all events or none.

use std::collections::{BTreeSet, HashMap};

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tenure_core::port::{
    COMMIT_BATCH_MAX, EVENT_BYTES_MAX, EventId, NewEvent, Notification, Payload, PublishReceipt, StoreError,
    TopicKey,
};
use tenure_core::rules::event::{no_such_topic, partition_for_key, validate_events};

use super::super::SqliteStore;
use super::super::bulk::{portions, repeated};
use super::super::connection::query;
use super::super::guard::STATEMENTS;
use super::super::write_transaction::of_key;
use super::{CallError, ExplainResult, invalid_request, json, number};
use crate::runtime;
use crate::store::queries::Queries;

/// The result of publishing.
pub(in super::super) struct PublishResult {
    /// Whether a session waits for the topic.
    pub(in super::super) has_waiters: bool,
    pub(in super::super) published: Vec<PublishReceipt>,
}

/// Publish events in the transaction of the caller on `conn`. The events exist if and only if the transaction commits.
///
/// The call takes the write lock of the file. It does not notify waiters, because only the caller knows when the transaction commits;
/// waiting consumers find the events at their next poll. Fails if no transaction is open.
pub async fn publish(
    conn: &mut SqliteConnection,
    topic: &TopicKey,
    events: &[NewEvent],
) -> Result<Vec<PublishReceipt>, StoreError> {
    if !conn.is_in_transaction() {
        let message = "publishing events needs a transaction, so that the call is atomic; begin one first";
        return Err(invalid_request(message));
    }
    let put = put(&STATEMENTS, conn, topic, events, runtime::wall_ms())
        .await
        .with_user_context("publishing events")?;
    Ok(put.published)
}

impl SqliteStore {
    pub(super) async fn publish_events(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, CallError> {
        // Validate before taking the write lock.
        validate_events(events, EVENT_BYTES_MAX as u64)?;
        let mut tx = self.begin_write().await?;
        let now = tx.wall_ms;
        let put = put(&self.queries, tx.transaction.connection(), topic, events, now).await?;
        if put.has_waiters && put.published.iter().any(|it| it.created) {
            tx.transaction.execute(of_key!(self, "topic_waiter_notify", topic)).await?;
            tx.notifications.push(Notification::TopicPublished(topic.clone()));
        }
        tx.commit().await?;
        Ok(put.published)
    }
}

/// Publish on a connection with an open transaction. The caller notifies waiters.
pub(in super::super) async fn put(
    queries: &Queries,
    conn: &mut SqliteConnection,
    topic: &TopicKey,
    events: &[NewEvent],
    now: i64,
) -> Result<PublishResult, CallError> {
    validate_events(events, EVENT_BYTES_MAX as u64)?;
    let longest = events.iter().map(|event| event.payload.len()).max().unwrap_or(0);
    let enter = query(queries.get("topic_begin_publish"))
        .bind(topic.namespace.as_str())
        .bind(topic.name.as_str())
        .bind(number(events.len() as u64))
        .bind(number(longest as u64));
    let Some(row) = enter.fetch_optional(&mut *conn).await? else {
        return Err(rejection(queries, conn, topic, events).await);
    };
    let (id, partitions, has_waiters) =
        (row.try_get("id")?, row.try_get("partitions")?, row.try_get("has_waiters")?);
    let next = row.try_get::<i64, _>("next_id")?.cast_unsigned();
    let published = assign_ids(queries, conn, id, partitions, next, events).await?;
    let known = published.iter().filter(|it| !it.created).count();
    if known > 0 {
        let less = -number(known as u64);
        query(queries.get("topic_add_event_count")).bind(id).bind(less).execute(&mut *conn).await?;
    }
    let mut batches = CommitBatches::default();
    let new: Vec<(&NewEvent, &PublishReceipt, u64)> = events
        .iter()
        .zip(&published)
        .filter(|(_, it)| it.created)
        .map(|(event, it)| (event, it, batches.next_offset(it)))
        .collect();
    for rows in portions(&new) {
        insert(queries, conn, id, now, rows).await?;
    }
    Ok(PublishResult { has_waiters, published })
}

/// The reason why the topic rejected the events.
async fn rejection(
    queries: &Queries,
    conn: &mut SqliteConnection,
    topic: &TopicKey,
    events: &[NewEvent],
) -> CallError {
    let find = query(queries.get("topic_find")).bind(topic.namespace.as_str()).bind(topic.name.as_str());
    let max = match find.fetch_optional(&mut *conn).await {
        Ok(Some(row)) => row.try_get::<i64, _>("max_payload_bytes").map(i64::cast_unsigned),
        Ok(None) => return no_such_topic(topic).into(),
        Err(error) => Err(error),
    };
    match max.map(|max| validate_events(events, max)) {
        Ok(Err(error)) => error.into(),
        Ok(Ok(())) => invalid_request(format!("topic {topic} rejected a payload because of its size")).into(),
        Err(error) => error.into(),
    }
}

/// The id and partition of each event: those of the existing event with the same idempotency key, or new ones.
async fn assign_ids(
    queries: &Queries,
    conn: &mut SqliteConnection,
    topic: i64,
    partitions: u32,
    mut next: u64,
    events: &[NewEvent],
) -> Result<Vec<PublishReceipt>, CallError> {
    let mut keys: HashMap<String, PublishReceipt> = HashMap::new();
    let requested: BTreeSet<&str> =
        events.iter().filter_map(|event| event.idempotency_key.as_deref()).collect();
    if !requested.is_empty() {
        let find = query(queries.get("event_find_by_idempotency_key")).bind(topic).bind(json(&requested)?);
        for row in find.fetch_all(&mut *conn).await? {
            let id = EventId(row.try_get::<i64, _>("id")?.cast_unsigned());
            let known = PublishReceipt { id, partition: row.try_get("partition")?, created: false };
            keys.insert(row.try_get("idempotency_key")?, known);
        }
    }
    let mut published = Vec::with_capacity(events.len());
    for event in events {
        if let Some(known) = event.idempotency_key.as_deref().and_then(|key| keys.get(key)) {
            published.push(*known);
            continue;
        }
        let partition = match &event.key {
            Some(key) => partition_for_key(key, partitions),
            None => u32::try_from(next % u64::from(partitions.max(1))).unwrap_or(0),
        };
        let new = PublishReceipt { id: EventId(next), partition, created: true };
        if let Some(key) = &event.idempotency_key {
            keys.insert(key.clone(), PublishReceipt { created: false, ..new });
        }
        published.push(new);
        next += 1;
    }
    Ok(published)
}

/// The offset and size of the current commit batch, by partition.
#[derive(Default)]
struct CommitBatches(HashMap<u32, (u64, usize)>);

impl CommitBatches {
    /// The offset of the next event.
    fn next_offset(&mut self, event: &PublishReceipt) -> u64 {
        let batch = self.0.entry(event.partition).or_insert((event.id.0, 0));
        if batch.1 == COMMIT_BATCH_MAX {
            *batch = (event.id.0, 0);
        }
        batch.1 += 1;
        batch.0
    }
}

async fn insert(
    queries: &Queries,
    conn: &mut SqliteConnection,
    topic: i64,
    now: i64,
    rows: &[(&NewEvent, &PublishReceipt, u64)],
) -> Result<(), CallError> {
    let statement = repeated(queries.get("event_put"), rows.len());
    let mut put = query(&statement);
    for (event, it, offset) in rows {
        put = put
            .bind(number(it.id.0))
            .bind(topic)
            .bind(it.partition)
            .bind(number(*offset))
            .bind(number(event.payload.len() as u64))
            .bind(now)
            .bind(event.leader_token.map(|token| number(token.as_u64())))
            .bind(event.key.as_deref())
            .bind(event.idempotency_key.as_deref())
            .bind(&event.event_type)
            .bind(if event.headers.is_empty() { "{}".to_owned() } else { json(&event.headers)? });
        put = match &event.payload {
            Payload::Json(json) => put.bind(json.as_str()),
            Payload::Bytes(bytes) => put.bind(bytes.as_slice()),
        };
    }
    put.execute(&mut *conn).await?;
    Ok(())
}
