//! Reading, and being woken.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::Token;
use tenure_core::event::check_read;
use tenure_core::port::{Event, EventId, Payload, ReadAsk, StoreError, Tend, TopicKey};

use super::super::claims::{array, unhex};
use super::super::error::garbled;
use super::super::message::Message;
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::{Column, PgRow};
use super::super::{Postgres, get};
use super::topic;

/// How often, and how long apart, somebody who goes to sleep looks whether a commit is under way that may not know of it.
const COMMITS_WAIT: (u32, Duration) = (20, Duration::from_millis(5));

impl Postgres {
    pub(super) async fn read_slots(&self, read: &ReadAsk) -> Result<Vec<Event>, StoreError> {
        check_read(read)?;
        let slots = array(read.after.iter().map(|(slot, _)| u64::from(*slot)));
        let afters = array(read.after.iter().map(|(_, after)| *after));
        let [namespace, name] = topic(&read.topic);
        let values = [namespace, name, slots.as_str().into(), afters.as_str().into(), read.limit.into()];
        let message = Message::new(&self.queries).then("event_read", &values)?;
        let rows = self.shared.events.run(message).await?;
        let mut events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        // They come in order. This costs a look, and no plan of the server's can change it.
        let place: BTreeMap<u32, usize> = read.after.iter().map(|(slot, _)| *slot).zip(0..).collect();
        events.sort_by_key(|event| (place.get(&event.slot).copied(), event.position, event.id));
        Ok(events)
    }

    /// Whoever publishes looks for sleepers and commits a little later: one who went to sleep in between is rung for by nobody. So
    /// those who commit at this moment are waited for, a little, and what they publish is there at the last look.
    pub(super) async fn doze_until_events(&self, key: &TopicKey) -> Result<(), StoreError> {
        self.call("event_doze", &topic(key)).await?;
        for _ in 0..COMMITS_WAIT.0 {
            let rows = self.call("event_publishing", &topic(key)).await?;
            let publishing = rows.first().map(|row| get(row, "publishing")).transpose()?;
            if publishing != Some(true) {
                break;
            }
            tokio::time::sleep(COMMITS_WAIT.1).await;
        }
        Ok(())
    }

    pub(super) async fn forget_events(&self, tend: &Tend) -> Result<(u64, bool), StoreError> {
        let values = [
            tend.session.as_str().into(),
            int(tend.token.as_u64()),
            tend.clock_ms.map_or(Value::Null, Value::Int),
            tend.limit.into(),
        ];
        let message = Message::fresh(&self.queries).then("event_prune", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| garbled("what was forgotten", "no row"))?;
        Ok((number(get::<i64>(row, "forgotten")?, "events")?, get(row, "more")?))
    }
}

/// An event, in the columns of `event_read`.
///
/// A row that another program wrote past [`publish`](super::publish) must not block the partition: a payload that is not JSON is
/// delivered as its bytes, so that a handler that expects JSON fails and the event goes to the dead letters; headers that are not an
/// object of texts and a token that no store granted are left out. As on SQLite.
pub(super) fn event(row: &PgRow) -> Result<Event, StoreError> {
    // By number, not by name: this is done for every event that there is.
    let payload = match (at::<Option<&str>>(row, 5)?, at::<Option<&str>>(row, 6)?) {
        (Some(text), _) => {
            text.parse().map_or_else(|_| Payload::Bytes(text.as_bytes().to_owned()), Payload::Json)
        }
        (None, body) => Payload::Bytes(unhex(body.unwrap_or(""))?),
    };
    let headers = at::<Option<&str>>(row, 7)?;
    let headers = headers.and_then(|headers| serde_json::from_str(headers).ok()).unwrap_or_default();
    let token = at::<Option<i64>>(row, 8)?.and_then(|token| u64::try_from(token).ok());
    Ok(Event {
        slot: number(at::<i32>(row, 0)?, "a slot")?,
        position: number(at::<i64>(row, 1)?, "a position")?,
        id: EventId(number(at::<i64>(row, 2)?, "an event's number")?),
        key: at(row, 3)?,
        kind: at(row, 4)?,
        payload,
        headers,
        leader_token: token.map(Token::from_u64),
        at_ms: at(row, 9)?,
    })
}

/// A column of a row, by its number.
fn at<'r, T>(row: &'r PgRow, column: usize) -> Result<T, StoreError>
where
    T: Column<'r>,
{
    row.try_get(column).map_err(|error| garbled("an event", error))
}
