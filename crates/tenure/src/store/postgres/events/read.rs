//! Reading events, and waiting for them.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{
    Event, EventId, MaintenanceRequest, Payload, ReadEventsRequest, StoreError, TopicKey,
};
use tenure_core::rules::event::validate_read;

use super::super::error::unexpected_response;
use super::super::message::Message;
use super::super::store::{int, number};
use super::super::value::Value;
use super::super::wire::{Column, PgRow};
use super::super::work::{array, unhex};
use super::super::{PostgresStore, get};
use super::topic;

/// How often, and at which interval, a new waiter checks for commits in progress that may not have seen it.
const COMMIT_CHECKS: (u32, Duration) = (20, Duration::from_millis(5));

impl PostgresStore {
    pub(super) async fn read_partitions(&self, read: &ReadEventsRequest) -> Result<Vec<Event>, StoreError> {
        validate_read(read)?;
        let partitions = array(read.after.iter().map(|(partition, _)| u64::from(*partition)));
        let afters = array(read.after.iter().map(|(_, after)| *after));
        let [namespace, name] = topic(&read.topic);
        let values = [namespace, name, partitions.as_str().into(), afters.as_str().into(), read.limit.into()];
        let message = Message::new(&self.queries).then("event_read", &values)?;
        let rows = self.shared.events.run(message).await?;
        let mut events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
        // Sort here too, so that the order does not depend on the query plan of the server.
        let index: BTreeMap<u32, usize> =
            read.after.iter().map(|(partition, _)| *partition).zip(0..).collect();
        events.sort_by_key(|event| (index.get(&event.partition).copied(), event.offset, event.id));
        Ok(events)
    }

    /// Register a waiter. A publisher checks for waiters a little before it commits and would not notify a waiter that
    /// registers in between. So this call waits, for a short time, for the commits in progress: the read that follows sees
    /// their events.
    pub(super) async fn register_waiter(&self, key: &TopicKey) -> Result<(), StoreError> {
        self.call("topic_waiter_register", &topic(key)).await?;
        for _ in 0..COMMIT_CHECKS.0 {
            let rows = self.call("topic_is_publishing", &topic(key)).await?;
            let publishing = rows.first().map(|row| get(row, "is_publishing")).transpose()?;
            if publishing != Some(true) {
                break;
            }
            tokio::time::sleep(COMMIT_CHECKS.1).await;
        }
        Ok(())
    }

    pub(super) async fn prune_old_events(
        &self,
        request: &MaintenanceRequest,
    ) -> Result<(u64, bool), StoreError> {
        let values = [
            request.session.as_str().into(),
            int(request.token.as_u64()),
            request.clock_ms.map_or(Value::Null, Value::Int),
            request.limit.into(),
        ];
        let message = Message::fresh(&self.queries).then("event_prune", &values)?;
        let rows = self.shared.calls.run(message).await?;
        let row = rows.first().ok_or_else(|| unexpected_response("a pruning result", "no row"))?;
        Ok((number(get::<i64>(row, "pruned")?, "events")?, get(row, "has_more")?))
    }
}

/// An event from the columns of `event_read`.
///
/// A row that another program inserted without [`publish`](super::publish) must not block the partition: an invalid JSON
/// payload is delivered as bytes, so that a handler that expects JSON fails and the event becomes a dead letter; invalid
/// headers and tokens are omitted. SQLite does the same.
pub(super) fn event(row: &PgRow) -> Result<Event, StoreError> {
    // By position and not by name: this runs for every event.
    let payload = match (at::<Option<&str>>(row, 5)?, at::<Option<&str>>(row, 6)?) {
        (Some(text), _) => {
            text.parse().map_or_else(|_| Payload::Bytes(text.as_bytes().to_owned()), Payload::Json)
        }
        (None, hex) => Payload::Bytes(unhex(hex.unwrap_or(""))?),
    };
    let headers = at::<Option<&str>>(row, 7)?;
    let headers = headers.and_then(|headers| serde_json::from_str(headers).ok()).unwrap_or_default();
    let token = at::<Option<i64>>(row, 8)?.and_then(|token| u64::try_from(token).ok());
    Ok(Event {
        partition: number(at::<i32>(row, 0)?, "a partition")?,
        offset: number(at::<i64>(row, 1)?, "an offset")?,
        id: EventId(number(at::<i64>(row, 2)?, "an event id")?),
        key: at(row, 3)?,
        event_type: at(row, 4)?,
        payload,
        headers,
        leader_token: token.map(Token::from_u64),
        published_at_ms: at(row, 9)?,
    })
}

/// A column of a row, by its position.
fn at<'r, T>(row: &'r PgRow, column: usize) -> Result<T, StoreError>
where
    T: Column<'r>,
{
    row.try_get(column).map_err(|error| unexpected_response("an event", error))
}
