//! Publishing, in a transaction of our own or the caller's.

use std::fmt::Write;
use std::num::ParseIntError;
use std::str::FromStr;

use sqlx::PgConnection;
use tenure_core::event::{EventError, check_events};
use tenure_core::port::{EVENT_BYTES_MAX, EventId, NewEvent, Payload, Published, StoreError, TopicKey};

use super::super::claims::texts;
use super::super::error::{explain, garbled};
use super::super::message::{Message, STRICT};
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::PgRow;
use super::super::{Postgres, QUERIES, get};
use super::topic as key_of;

/// Publishes events in the transaction on this connection: they are there if it commits, delivered together within a slot, and
/// whoever sleeps is woken then. No lock is taken before the commit. It works behind a pooler in transaction mode.
pub async fn publish(
    conn: &mut PgConnection,
    topic: &TopicKey,
    events: &[NewEvent],
) -> Result<Vec<Published>, StoreError> {
    let message = written(Message::for_user(&QUERIES), topic, events, How::Theirs)?;
    let mut answers = message.run_on(conn).await.map_err(|error| explain(&error, "this connection"))?;
    let rows = answers.pop().unwrap_or_default();
    read(&rows, events)
}

impl Postgres {
    pub(super) async fn publish_events(
        &self,
        topic: &TopicKey,
        events: &[NewEvent],
    ) -> Result<Vec<Published>, StoreError> {
        let message = Message::fresh(&self.queries).plain(STRICT, self.shared.strict);
        let lane = &self.shared.events;
        match events {
            [event] if event.idempotency_key.is_none() => {
                read(&lane.run(written_one(message, topic, event)?).await?, events)
            }
            _ if events.iter().all(|event| event.idempotency_key.is_none()) => {
                read_together(&lane.run(written(message, topic, events, How::Own)?).await?, events)
            }
            _ => read(&lane.run(written(message, topic, events, How::OwnByKeys)?).await?, events),
        }
    }
}

/// In which transaction several events are published.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Somebody else's, who may do other things in it.
    Theirs,
    /// One that is over at once, with idempotency keys.
    OwnByKeys,
    /// One that is over at once, without.
    Own,
}

/// The message of a publication.
fn written<'q>(
    message: Message<'q>,
    topic: &TopicKey,
    events: &[NewEvent],
    how: How,
) -> Result<Message<'q>, StoreError> {
    check_events(events, EVENT_BYTES_MAX as u64)?;
    let columns = Columns::of(events.iter());
    let mut values = key_of(topic).to_vec();
    let [hashes, kinds, keys, payloads, bodies, headers, idempotency_keys, tokens] = columns.values();
    if how != How::Theirs {
        // There the database computes the hashes: it trusts no client with them.
        values.push(hashes);
    }
    values.extend([kinds, keys, payloads, bodies, headers]);
    if how != How::Own {
        values.push(idempotency_keys);
    }
    values.push(tokens);
    let query = match how {
        How::Theirs => "event_publish_in",
        How::OwnByKeys => "event_publish_keyed",
        How::Own => "event_publish_own",
    };
    message.then(query, &values)
}

/// Events, as `tenure.publish_all` reads them: a list of each of their parts, if any of them has it.
pub(in super::super) struct Columns {
    hashes: String,
    kinds: String,
    keys: Option<String>,
    payloads: Option<String>,
    bodies: Option<String>,
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
        let bodies: Vec<Option<String>> = events.clone().map(body).collect();
        let headers: Vec<Option<String>> = events.clone().map(headers).collect();
        let token = |event: &NewEvent| event.leader_token.map(|token| whole(token.as_u64()));
        Columns {
            hashes: numbers(events.clone().map(|event| event.key.as_deref().map(|key| key_hash(key).into()))),
            kinds: texts(events.clone().map(|event| Some(event.kind.as_str()))),
            keys: some_texts(events.clone().map(|event| event.key.as_deref())),
            payloads: some_texts(events.clone().map(json)),
            bodies: some_texts(bodies.iter().map(Option::as_deref)),
            headers: some_texts(headers.iter().map(Option::as_deref)),
            idempotency_keys: some_texts(events.clone().map(|event| event.idempotency_key.as_deref())),
            tokens: some_numbers(events.map(token)),
        }
    }

    /// In the order in which the function takes them.
    pub(in super::super) fn values(&self) -> [Value<'_>; 8] {
        [
            self.hashes.as_str().into(),
            self.kinds.as_str().into(),
            self.keys.as_deref().into(),
            self.payloads.as_deref().into(),
            self.bodies.as_deref().into(),
            self.headers.as_deref().into(),
            self.idempotency_keys.as_deref().into(),
            self.tokens.as_deref().into(),
        ]
    }
}

/// The message of one event, in a transaction that is over at once.
fn written_one<'q>(
    message: Message<'q>,
    topic: &TopicKey,
    event: &NewEvent,
) -> Result<Message<'q>, StoreError> {
    check_events(std::slice::from_ref(event), EVENT_BYTES_MAX as u64)?;
    let (payload, body) = match &event.payload {
        Payload::Json(json) => (Some(json.as_str()), None),
        Payload::Bytes(_) => (None, body(event)),
    };
    let headers = headers(event);
    let [namespace, name] = key_of(topic);
    let values = [
        namespace,
        name,
        event.key.as_deref().map_or(Value::Null, |key| key_hash(key).into()),
        event.kind.as_str().into(),
        event.key.as_deref().into(),
        payload.into(),
        body.as_deref().into(),
        headers.as_deref().into(),
        event.leader_token.map_or(Value::Null, |token| int(token.as_u64())),
    ];
    message.then("event_publish_one", &values)
}

/// What came of it.
fn read(rows: &[PgRow], events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
    rows.iter()
        .map(|row| {
            if let Some(most) = get::<Option<i64>>(row, "most")? {
                return Err(too_large(row, most, events)?.into());
            }
            Ok(Published {
                id: EventId(number(get::<i64>(row, "id")?, "an event's number")?),
                slot: number(get::<i32>(row, "slot")?, "a slot")?,
                new: get(row, "new")?,
            })
        })
        .collect()
}

/// The same, of events that are all new, in one row.
fn read_together(rows: &[PgRow], events: &[NewEvent]) -> Result<Vec<Published>, StoreError> {
    let row = rows.first().ok_or_else(|| garbled("what was published", "no row"))?;
    if let Some(most) = get::<Option<i64>>(row, "most")? {
        return Err(too_large(row, most, events)?.into());
    }
    let (ids, slots) = (get::<Option<&str>>(row, "ids")?, get::<Option<&str>>(row, "slots")?);
    let (ids, slots) = (unlisted::<u64>(ids)?, unlisted::<u32>(slots)?);
    if ids.len() != events.len() || slots.len() != events.len() {
        return Err(garbled("what was published", format!("{} numbers, {} slots", ids.len(), slots.len())));
    }
    Ok(ids.into_iter().zip(slots).map(|(id, slot)| Published { id: EventId(id), slot, new: true }).collect())
}

/// The event that is too long for its topic.
fn too_large(row: &PgRow, most: i64, events: &[NewEvent]) -> Result<EventError, StoreError> {
    let place: usize = number(get::<i32>(row, "n")?, "an event's place")?;
    let bytes = events.get(place).map_or(0, |event| event.payload.len());
    Ok(EventError::TooLarge { place, bytes, most: number(most, "a length")? })
}

/// Numbers, as the server writes an array of them.
fn unlisted<T: FromStr<Err = ParseIntError>>(list: Option<&str>) -> Result<Vec<T>, StoreError> {
    let list = list.unwrap_or_default().trim_start_matches('{').trim_end_matches('}');
    let numbers = list.split(',').filter(|number| !number.is_empty()).map(str::parse);
    numbers.collect::<Result<_, _>>().map_err(|error| garbled("a list of numbers", error))
}

/// What a key's slot is found by: the server takes it modulo the slots, of which we do not know how many there are.
/// [`slot_of`](tenure_core::event::slot_of) without that.
fn key_hash(key: &str) -> u32 {
    let hash =
        key.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash ^ (hash >> 16)
}

/// Bytes, as the server reads them.
fn body(event: &NewEvent) -> Option<String> {
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
    some.map(|headers| serde_json::to_string(headers).expect("texts are JSON"))
}

/// As the tables keep it.
pub(in super::super) fn whole(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Numbers, as the server reads an array of them.
pub(in super::super) fn numbers(numbers: impl Iterator<Item = Option<i64>>) -> String {
    let numbers: Vec<String> =
        numbers.map(|number| number.map_or_else(|| "NULL".into(), |number| number.to_string())).collect();
    format!("{{{}}}", numbers.join(","))
}

/// Texts, as the server reads an array of them; nothing if there is none.
pub(in super::super) fn some_texts<'a>(all: impl Iterator<Item = Option<&'a str>> + Clone) -> Option<String> {
    all.clone().any(|text| text.is_some()).then(|| texts(all))
}

/// Numbers in the same way.
pub(in super::super) fn some_numbers(all: impl Iterator<Item = Option<i64>> + Clone) -> Option<String> {
    all.clone().any(|number| number.is_some()).then(|| numbers(all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::event::slot_of;

    #[test]
    fn a_hash_is_that_of_the_slots() {
        for key in ["", "a", "order-1", "ada@example.org", "ключ", "kunde-ß"] {
            for slots in [1, 2, 7, 64, 1024] {
                assert_eq!(key_hash(key) % slots, slot_of(key, slots), "{key:?}");
            }
        }
    }

    #[test]
    fn what_is_not_there_is_not_sent() {
        assert_eq!(some_texts([None, None].into_iter()), None);
        assert_eq!(some_texts([None, Some("a")].into_iter()).as_deref(), Some(r#"{NULL,"a"}"#));
        assert_eq!(numbers([Some(-1), None].into_iter()), "{-1,NULL}");
        assert_eq!(unlisted::<u32>(Some("{1,20}")).unwrap(), [1, 20]);
        assert_eq!(unlisted::<u32>(None).unwrap(), [0; 0]);
        assert!(unlisted::<u32>(Some("{1,NULL}")).is_err());
        let event = NewEvent { payload: Payload::Bytes(vec![0, 255]), ..NewEvent::new("bytes") };
        assert_eq!(body(&event).as_deref(), Some("\\x00ff"));
    }
}
