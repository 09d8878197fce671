//! Publication of events, in a transaction of the library or of the caller.

use std::fmt::Write;
use std::num::ParseIntError;
use std::str::FromStr;

use sqlx::PgConnection;
use tenure_core::port::{EVENT_BYTES_MAX, EventId, NewEvent, Payload, PublishReceipt, StoreError, TopicKey};
use tenure_core::rules::event::{PublishError, validate_events};

use super::super::error::{explain, unexpected_response};
use super::super::message::{Message, REQUIRE_SYNC_STANDBY};
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::work::texts;
use super::super::{PostgresStore, QUERIES, get};
use super::topic as key_of;

/// Publish events in the transaction on this connection. If it commits, the events exist, those of one partition are
/// delivered together, and waiting consumers are notified. Takes no lock before the commit. Works behind a pooler in
/// transaction mode.
pub async fn publish(
    conn: &mut PgConnection,
    topic: &TopicKey,
    events: &[NewEvent],
) -> Result<Vec<PublishReceipt>, StoreError> {
    let message = publish_message(Message::for_user(&QUERIES), topic, events, PublishTransaction::Caller)?;
    let mut answers = message.run_on(conn).await.map_err(|error| explain(&error, "this connection"))?;
    let rows = answers.pop().unwrap_or_default();
    receipts(&rows, events)
}

impl PostgresStore {
    pub(super) async fn publish_events(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<PublishReceipt>, StoreError> {
        let message = Message::fresh(&self.queries).plain(REQUIRE_SYNC_STANDBY, self.shared.sync_replication);
        let pool = &self.shared.events;
        match events {
            [event] if event.idempotency_key.is_none() => {
                receipts(&pool.run(publish_one_message(message, topic, event)?).await?, events)
            }
            _ if events.iter().all(|event| event.idempotency_key.is_none()) => receipts_in_one_row(
                &pool.run(publish_message(message, topic, events, PublishTransaction::Own)?).await?,
                events,
            ),
            _ => receipts(
                &pool.run(publish_message(message, topic, events, PublishTransaction::OwnWithKeys)?).await?,
                events,
            ),
        }
    }
}

/// In which transaction several events are published.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PublishTransaction {
    /// The transaction of the caller, which may do other work in it.
    Caller,
    /// A transaction of the library, for events with idempotency keys.
    OwnWithKeys,
    /// A transaction of the library, for events without idempotency keys.
    Own,
}

/// The message of a publication.
fn publish_message<'q>(
    message: Message<'q>,
    topic: &TopicKey,
    events: &[NewEvent],
    transaction: PublishTransaction,
) -> Result<Message<'q>, StoreError> {
    validate_events(events, EVENT_BYTES_MAX as u64)?;
    let columns = Columns::of(events.iter());
    let mut values = key_of(topic).to_vec();
    let [hashes, types, keys, payloads, binary_payloads, headers, idempotency_keys, tokens] =
        columns.values();
    if transaction != PublishTransaction::Caller {
        // In the transaction of a caller the database computes the hashes: it does not trust the client.
        values.push(hashes);
    }
    values.extend([types, keys, payloads, binary_payloads, headers]);
    if transaction != PublishTransaction::Own {
        values.push(idempotency_keys);
    }
    values.push(tokens);
    let query = match transaction {
        PublishTransaction::Caller => "event_publish_in_transaction",
        PublishTransaction::OwnWithKeys => "event_publish",
        PublishTransaction::Own => "event_publish_immediately",
    };
    message.then(query, &values)
}

/// Events as column arrays, in the form that `tenure.publish_events` reads. A column is `None` if no event has a value.
pub(in super::super) struct Columns {
    hashes: String,
    types: String,
    keys: Option<String>,
    payloads: Option<String>,
    binary_payloads: Option<String>,
    headers: Option<String>,
    idempotency_keys: Option<String>,
    tokens: Option<String>,
}

impl Columns {
    pub(in super::super) fn of<'a>(events: impl Iterator<Item = &'a NewEvent> + Clone) -> Columns {
        let json = |event: &'a NewEvent| match &event.payload {
            Payload::Json(json) => Some(json.as_str()),
            Payload::Bytes(_) => None,
        };
        let binary_payloads: Vec<Option<String>> = events.clone().map(binary_payload).collect();
        let headers: Vec<Option<String>> = events.clone().map(headers).collect();
        let token = |event: &NewEvent| event.leader_token.map(|token| to_bigint(token.as_u64()));
        Columns {
            hashes: numbers(events.clone().map(|event| event.key.as_deref().map(|key| key_hash(key).into()))),
            types: texts(events.clone().map(|event| Some(event.event_type.as_str()))),
            keys: some_texts(events.clone().map(|event| event.key.as_deref())),
            payloads: some_texts(events.clone().map(json)),
            binary_payloads: some_texts(binary_payloads.iter().map(Option::as_deref)),
            headers: some_texts(headers.iter().map(Option::as_deref)),
            idempotency_keys: some_texts(events.clone().map(|event| event.idempotency_key.as_deref())),
            tokens: some_numbers(events.map(token)),
        }
    }

    /// The columns, in the order of the arguments of the function.
    pub(in super::super) fn values(&self) -> [Value<'_>; 8] {
        [
            self.hashes.as_str().into(),
            self.types.as_str().into(),
            self.keys.as_deref().into(),
            self.payloads.as_deref().into(),
            self.binary_payloads.as_deref().into(),
            self.headers.as_deref().into(),
            self.idempotency_keys.as_deref().into(),
            self.tokens.as_deref().into(),
        ]
    }
}

/// The message of one event, in a transaction of the library.
fn publish_one_message<'q>(
    message: Message<'q>,
    topic: &TopicKey,
    event: &NewEvent,
) -> Result<Message<'q>, StoreError> {
    validate_events(std::slice::from_ref(event), EVENT_BYTES_MAX as u64)?;
    let (payload, binary) = match &event.payload {
        Payload::Json(json) => (Some(json.as_str()), None),
        Payload::Bytes(_) => (None, binary_payload(event)),
    };
    let headers = headers(event);
    let [namespace, name] = key_of(topic);
    let values = [
        namespace,
        name,
        event.key.as_deref().map_or(Value::Null, |key| key_hash(key).into()),
        event.event_type.as_str().into(),
        event.key.as_deref().into(),
        payload.into(),
        binary.as_deref().into(),
        headers.as_deref().into(),
        event.leader_token.map_or(Value::Null, |token| int(token.as_u64())),
    ];
    message.then("event_publish_one", &values)
}

/// The receipts of a publication, one row for each event.
fn receipts(rows: &[PgRow], events: &[NewEvent]) -> Result<Vec<PublishReceipt>, StoreError> {
    rows.iter()
        .map(|row| {
            if let Some(max) = get::<Option<i64>>(row, "max_bytes")? {
                return Err(too_large(row, max, events)?.into());
            }
            Ok(PublishReceipt {
                id: EventId(number(get::<i64>(row, "event_id")?, "an event id")?),
                partition: number(get::<i32>(row, "partition")?, "a partition")?,
                created: get(row, "created")?,
            })
        })
        .collect()
}

/// The receipts of events that are all new, in one row.
fn receipts_in_one_row(rows: &[PgRow], events: &[NewEvent]) -> Result<Vec<PublishReceipt>, StoreError> {
    let row = rows.first().ok_or_else(|| unexpected_response("a publication", "no row"))?;
    if let Some(max) = get::<Option<i64>>(row, "max_bytes")? {
        return Err(too_large(row, max, events)?.into());
    }
    let (ids, partitions) = (get::<Option<&str>>(row, "event_ids")?, get::<Option<&str>>(row, "partitions")?);
    let (ids, partitions) = (parse_array::<u64>(ids)?, parse_array::<u32>(partitions)?);
    if ids.len() != events.len() || partitions.len() != events.len() {
        return Err(unexpected_response(
            "a publication",
            format!("{} ids, {} partitions", ids.len(), partitions.len()),
        ));
    }
    Ok(ids
        .into_iter()
        .zip(partitions)
        .map(|(id, partition)| PublishReceipt { id: EventId(id), partition, created: true })
        .collect())
}

/// The error for an event that is too large for its topic.
fn too_large(row: &PgRow, max: i64, events: &[NewEvent]) -> Result<PublishError, StoreError> {
    let place: usize = number(get::<i32>(row, "index")?, "an index")?;
    let bytes = events.get(place).map_or(0, |event| event.payload.len());
    Ok(PublishError::TooLarge { place, bytes, most: number(max, "a length")? })
}

/// Parse a PostgreSQL array literal of numbers.
fn parse_array<T: FromStr<Err = ParseIntError>>(list: Option<&str>) -> Result<Vec<T>, StoreError> {
    let list = list.unwrap_or_default().trim_start_matches('{').trim_end_matches('}');
    let numbers = list.split(',').filter(|number| !number.is_empty()).map(str::parse);
    numbers.collect::<Result<_, _>>().map_err(|error| unexpected_response("a list of numbers", error))
}

/// The hash of a key. The server takes it modulo the number of partitions, which is not known here.
/// [`partition_for_key`](tenure_core::rules::event::partition_for_key) without the modulo.
fn key_hash(key: &str) -> u32 {
    let hash =
        key.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash ^ (hash >> 16)
}

/// A binary payload as a `bytea` literal.
fn binary_payload(event: &NewEvent) -> Option<String> {
    let Payload::Bytes(bytes) = &event.payload else { return None };
    let mut text = String::with_capacity(2 + 2 * bytes.len());
    text.push_str("\\x");
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
}

fn headers(event: &NewEvent) -> Option<String> {
    let some = Some(&event.headers).filter(|headers| !headers.is_empty());
    some.map(|headers| serde_json::to_string(headers).expect("a map of strings serializes"))
}

/// A number as a `bigint`; greater numbers become the maximum.
pub(in super::super) fn to_bigint(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Numbers as a PostgreSQL array literal.
pub(in super::super) fn numbers(numbers: impl Iterator<Item = Option<i64>>) -> String {
    let numbers: Vec<String> =
        numbers.map(|number| number.map_or_else(|| "NULL".into(), |number| number.to_string())).collect();
    format!("{{{}}}", numbers.join(","))
}

/// Texts as a PostgreSQL array literal; `None` if all are `None`.
pub(in super::super) fn some_texts<'a>(all: impl Iterator<Item = Option<&'a str>> + Clone) -> Option<String> {
    all.clone().any(|text| text.is_some()).then(|| texts(all))
}

/// Numbers as a PostgreSQL array literal; `None` if all are `None`.
pub(in super::super) fn some_numbers(all: impl Iterator<Item = Option<i64>> + Clone) -> Option<String> {
    all.clone().any(|number| number.is_some()).then(|| numbers(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::rules::event::partition_for_key;

    #[test]
    fn a_key_hash_agrees_with_partition_for_key() {
        for key in ["", "a", "order-1", "ada@example.org", "ключ", "kunde-ß"] {
            for partitions in [1, 2, 7, 64, 1024] {
                assert_eq!(key_hash(key) % partitions, partition_for_key(key, partitions), "{key:?}");
            }
        }
    }

    #[test]
    fn missing_values_are_not_sent() {
        assert_eq!(some_texts([None, None].into_iter()), None);
        assert_eq!(some_texts([None, Some("a")].into_iter()).as_deref(), Some(r#"{NULL,"a"}"#));
        assert_eq!(numbers([Some(-1), None].into_iter()), "{-1,NULL}");
        assert_eq!(parse_array::<u32>(Some("{1,20}")).unwrap(), [1, 20]);
        assert_eq!(parse_array::<u32>(None).unwrap(), [0; 0]);
        assert!(parse_array::<u32>(Some("{1,NULL}")).is_err());
        let event = NewEvent { payload: Payload::Bytes(vec![0, 255]), ..NewEvent::new("bytes") };
        assert_eq!(binary_payload(&event).as_deref(), Some("\\x00ff"));
    }
}
