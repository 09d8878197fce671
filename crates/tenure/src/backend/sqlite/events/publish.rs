//! Publishing: all of it, or nothing.

use std::collections::{BTreeSet, HashMap};

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};
use tenure_core::event::{check_events, no_such_topic, slot_of};
use tenure_core::port::{
    EVENT_BYTES_MAX, EventId, NewEvent, Payload, Published, StoreError, TopicKey, UNIT_MAX, Wake,
};

use super::super::Sqlite;
use super::super::change::of_key;
use super::super::connection::query;
use super::super::guard::PRISTINE;
use super::super::rows::{portions, repeated};
use super::{Failed, Told, json, nonsense, number};
use crate::backend::queries::Queries;
use crate::runtime;

/// What publishing came to.
pub(in super::super) struct Put {
    /// Whether somebody sleeps until there is something.
    pub(in super::super) dozing: bool,
    pub(in super::super) published: Vec<Published>,
}

/// Publishes in the caller's own transaction on `conn`: the events are there if it commits, and were never there if it does not.
///
/// It takes the file's write lock. Nobody is rung for, since only the caller knows when it has committed: a reader that sleeps
/// finds the events when it polls next.
pub async fn publish(
    conn: &mut SqliteConnection,
    topic: &TopicKey,
    events: &[NewEvent],
) -> Result<Vec<Published>, StoreError> {
    if !conn.is_in_transaction() {
        let message = "events are published in a transaction, or some might be there without the others; begin one first";
        return Err(nonsense(message));
    }
    let put = put(&PRISTINE, conn, topic, events, runtime::wall_ms()).await.told_user("publishing events")?;
    Ok(put.published)
}

impl Sqlite {
    pub(super) async fn publish_events(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<Published>, Failed> {
        // Before anybody has to wait for it.
        check_events(events, EVENT_BYTES_MAX as u64)?;
        let mut change = self.change().await?;
        let now = change.wall_ms;
        let put = put(&self.queries, change.transaction.connection(), topic, events, now).await?;
        if put.dozing && put.published.iter().any(|it| it.new) {
            change.transaction.execute(of_key!(self, "topic_wake", topic)).await?;
            change.wakes.push(Wake::Events(topic.clone()));
        }
        change.commit().await?;
        Ok(put.published)
    }
}

/// Publishes on a connection whose transaction has begun; whoever calls this rings.
pub(in super::super) async fn put(
    queries: &Queries,
    conn: &mut SqliteConnection,
    topic: &TopicKey,
    events: &[NewEvent],
    now: i64,
) -> Result<Put, Failed> {
    check_events(events, EVENT_BYTES_MAX as u64)?;
    let longest = events.iter().map(|event| event.payload.len()).max().unwrap_or(0);
    let enter = query(queries.get("topic_enter"))
        .bind(topic.namespace.as_str())
        .bind(topic.name.as_str())
        .bind(number(events.len() as u64))
        .bind(number(longest as u64));
    let Some(row) = enter.fetch_optional(&mut *conn).await? else {
        return Err(refused(queries, conn, topic, events).await);
    };
    let (id, slots, dozing) = (row.try_get("id")?, row.try_get("slots")?, row.try_get("dozing")?);
    let next = row.try_get::<i64, _>("next")?.cast_unsigned();
    let published = numbers(queries, conn, id, slots, next, events).await?;
    let known = published.iter().filter(|it| !it.new).count();
    if known > 0 {
        let less = -number(known as u64);
        query(queries.get("topic_count")).bind(id).bind(less).execute(&mut *conn).await?;
    }
    let mut units = Units::default();
    let new: Vec<(&NewEvent, &Published, u64)> = events
        .iter()
        .zip(&published)
        .filter(|(_, it)| it.new)
        .map(|(event, it)| (event, it, units.position(it)))
        .collect();
    for rows in portions(&new) {
        insert(queries, conn, id, now, rows).await?;
    }
    Ok(Put { dozing, published })
}

/// Why the topic did not take them.
async fn refused(
    queries: &Queries,
    conn: &mut SqliteConnection,
    topic: &TopicKey,
    events: &[NewEvent],
) -> Failed {
    let find = query(queries.get("topic_find")).bind(topic.namespace.as_str()).bind(topic.name.as_str());
    let most = match find.fetch_optional(&mut *conn).await {
        Ok(Some(row)) => row.try_get::<i64, _>("max_bytes").map(i64::cast_unsigned),
        Ok(None) => return no_such_topic(topic).into(),
        Err(error) => Err(error),
    };
    match most.map(|most| check_events(events, most)) {
        Ok(Err(error)) => error.into(),
        Ok(Ok(())) => nonsense(format!("the topic {topic} takes no payload of that length")).into(),
        Err(error) => error.into(),
    }
}

/// Each event's number and slot: those of the one that is there under the same idempotency key, or new ones.
async fn numbers(
    queries: &Queries,
    conn: &mut SqliteConnection,
    topic: i64,
    slots: u32,
    mut next: u64,
    events: &[NewEvent],
) -> Result<Vec<Published>, Failed> {
    let mut keys: HashMap<String, Published> = HashMap::new();
    let asked: BTreeSet<&str> = events.iter().filter_map(|event| event.idempotency_key.as_deref()).collect();
    if !asked.is_empty() {
        let find = query(queries.get("event_known")).bind(topic).bind(json(&asked)?);
        for row in find.fetch_all(&mut *conn).await? {
            let id = EventId(row.try_get::<i64, _>("id")?.cast_unsigned());
            let known = Published { id, slot: row.try_get("slot")?, new: false };
            keys.insert(row.try_get("idempotency_key")?, known);
        }
    }
    let mut published = Vec::with_capacity(events.len());
    for event in events {
        if let Some(known) = event.idempotency_key.as_deref().and_then(|key| keys.get(key)) {
            published.push(*known);
            continue;
        }
        let slot = match &event.key {
            Some(key) => slot_of(key, slots),
            None => u32::try_from(next % u64::from(slots.max(1))).unwrap_or(0),
        };
        let new = Published { id: EventId(next), slot, new: true };
        if let Some(key) = &event.idempotency_key {
            keys.insert(key.clone(), Published { new: false, ..new });
        }
        published.push(new);
        next += 1;
    }
    Ok(published)
}

/// What goes together, by slot: its position, and how many it has.
#[derive(Default)]
struct Units(HashMap<u32, (u64, usize)>);

impl Units {
    /// Where the next event lies.
    fn position(&mut self, event: &Published) -> u64 {
        let unit = self.0.entry(event.slot).or_insert((event.id.0, 0));
        if unit.1 == UNIT_MAX {
            *unit = (event.id.0, 0);
        }
        unit.1 += 1;
        unit.0
    }
}

async fn insert(
    queries: &Queries,
    conn: &mut SqliteConnection,
    topic: i64,
    now: i64,
    rows: &[(&NewEvent, &Published, u64)],
) -> Result<(), Failed> {
    let statement = repeated(queries.get("event_put"), rows.len());
    let mut put = query(&statement);
    for (event, it, position) in rows {
        put = put
            .bind(number(it.id.0))
            .bind(topic)
            .bind(it.slot)
            .bind(number(*position))
            .bind(number(event.payload.len() as u64))
            .bind(now)
            .bind(event.leader_token.map(|token| number(token.as_u64())))
            .bind(event.key.as_deref())
            .bind(event.idempotency_key.as_deref())
            .bind(&event.kind)
            .bind(if event.headers.is_empty() { "{}".to_owned() } else { json(&event.headers)? });
        put = match &event.payload {
            Payload::Json(json) => put.bind(json.as_str()),
            Payload::Bytes(bytes) => put.bind(bytes.as_slice()),
        };
    }
    put.execute(&mut *conn).await?;
    Ok(())
}
