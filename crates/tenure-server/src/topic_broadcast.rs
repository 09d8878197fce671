//! Broadcasts of topics: each streamed topic is read once for all subscribers.
//!
//! A streamed topic has one broadcast, a task that reads new events and sends them to all subscribers. It
//! starts with the first subscriber and ends with the last. A subscriber that starts further back, or falls
//! behind, reads by itself until it has caught up, and then joins the broadcast. Offsets tell which events it
//! has, so none is lost or sent twice at the transition.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use tenure::port::{ErrorKind, Event, Notification, ReadEventsRequest, StoreError, TopicKey};
use tenure_core::rules::event::TopicCursor;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast};
use tokio::task::AbortHandle;

use crate::App;
use crate::api::limit_size;
use crate::snapshot::elections::ReceivedNotification;

/// Number of events per read.
const READ: u32 = 256;
/// Maximum bytes of payloads per read, unless one commit batch is larger.
const READ_BYTES: usize = 1024 * 1024;
/// Maximum bytes of payloads per read of a subscriber that catches up.
const CATCH_UP_BYTES: usize = 128 * 1024;
/// Number of chunks buffered for a slow subscriber before it must read by itself.
const BUFFERED_CHUNKS: usize = 8;
/// Cursors longer than this are sent less often.
const LONG_CURSOR: usize = 1024;
/// Poll interval: with a session that receives notifications, and without.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(200));
/// Delay after a store error.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Number of concurrent reads of subscribers that catch up.
const CATCH_UP_CONCURRENCY: usize = 8;

/// Broadcasts of all streamed topics.
pub(crate) struct TopicBroadcasts {
    broadcasts: Mutex<HashMap<TopicKey, Weak<TopicBroadcast>>>,
    catching_up: Semaphore,
}

impl Default for TopicBroadcasts {
    fn default() -> Self {
        TopicBroadcasts { broadcasts: Mutex::default(), catching_up: Semaphore::new(CATCH_UP_CONCURRENCY) }
    }
}

/// Broadcast of one topic.
pub(crate) struct TopicBroadcast {
    /// Sender; `None` once the broadcast has ended, so that subscribers reconnect.
    sender: Mutex<Option<broadcast::Sender<Arc<EventChunk>>>>,
    /// Position of the broadcast.
    head: RwLock<TopicCursor>,
    task: Mutex<Option<AbortHandle>>,
}

/// Events read together.
pub(crate) struct EventChunk {
    /// Position before the events.
    pub(crate) before: TopicCursor,
    /// Position after the events.
    pub(crate) after: TopicCursor,
    /// Events with their server-sent event frames.
    pub(crate) events: Vec<(Event, Bytes)>,
}

/// Subscription: the broadcast, which runs while a subscription exists, its receiver, and the position from
/// which it sends.
pub(crate) type TopicSubscription = (Arc<TopicBroadcast>, broadcast::Receiver<Arc<EventChunk>>, TopicCursor);

impl TopicBroadcasts {
    /// Subscribe to a topic. A new broadcast starts at the end of the topic; `None` if the topic does not
    /// exist.
    pub(crate) async fn subscribe(
        &self,
        app: &App,
        topic: &TopicKey,
    ) -> Result<Option<TopicSubscription>, StoreError> {
        // Replace a broadcast that has ended: the topic may have been recreated.
        let known = |broadcasts: &HashMap<TopicKey, Weak<TopicBroadcast>>| {
            let broadcast = broadcasts.get(topic).and_then(Weak::upgrade)?;
            let (receiver, head) = broadcast.subscribe()?;
            Some((broadcast, receiver, head))
        };
        if let Some(subscription) = known(&self.broadcasts()) {
            return Ok(Some(subscription));
        }
        let Some(ends) = app.store.partition_offsets(topic).await? else { return Ok(None) };
        let head = TopicCursor::new(ends.into_iter().map(|ends| (ends.partition, ends.end_offset)));
        let mut broadcasts = self.broadcasts();
        // Another request may have started it meanwhile.
        if let Some(subscription) = known(&broadcasts) {
            return Ok(Some(subscription));
        }
        broadcasts.retain(|_, broadcast| broadcast.strong_count() > 0);
        let (sender, receiver) = broadcast::channel(BUFFERED_CHUNKS);
        let broadcast = Arc::new(TopicBroadcast {
            sender: Mutex::new(Some(sender)),
            head: RwLock::new(head.clone()),
            task: Mutex::default(),
        });
        let task = tokio::spawn(follow(app.clone(), topic.clone(), Arc::downgrade(&broadcast)));
        *broadcast.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        broadcasts.insert(topic.clone(), Arc::downgrade(&broadcast));
        Ok(Some((broadcast, receiver, head)))
    }

    fn broadcasts(&self) -> MutexGuard<'_, HashMap<TopicKey, Weak<TopicBroadcast>>> {
        self.broadcasts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Read for a subscriber that catches up.
    pub(crate) async fn read(
        &self,
        app: &App,
        topic: &TopicKey,
        cursor: &TopicCursor,
        pace: &mut AdaptiveReadSize,
    ) -> Result<Vec<Event>, StoreError> {
        // The semaphore is never closed.
        let _permit = self.catching_up.acquire().await;
        read(app, topic, cursor, pace, CATCH_UP_BYTES).await
    }
}

impl TopicBroadcast {
    /// Subscribe, and return the position before the first chunk; `None` if the broadcast has ended.
    fn subscribe(&self) -> Option<(broadcast::Receiver<Arc<EventChunk>>, TopicCursor)> {
        // Subscribe before reading the position, so that no chunk is missed.
        let receiver = self.sender().as_ref()?.subscribe();
        Some((receiver, self.head()))
    }

    /// Number of subscribers.
    pub(crate) fn subscriber_count(&self) -> usize {
        self.sender().as_ref().map_or(1, |sender| sender.receiver_count().max(1))
    }

    fn sender(&self) -> MutexGuard<'_, Option<broadcast::Sender<Arc<EventChunk>>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(&self) -> TopicCursor {
        self.head.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for TopicBroadcast {
    fn drop(&mut self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        task.iter().for_each(AbortHandle::abort);
    }
}

/// Number of events per read: fewer while they are large.
pub(crate) struct AdaptiveReadSize(u32);

impl Default for AdaptiveReadSize {
    fn default() -> AdaptiveReadSize {
        AdaptiveReadSize(READ)
    }
}

async fn read(
    app: &App,
    topic: &TopicKey,
    cursor: &TopicCursor,
    pace: &mut AdaptiveReadSize,
    most: usize,
) -> Result<Vec<Event>, StoreError> {
    let request = ReadEventsRequest { topic: topic.clone(), after: cursor.after(), limit: pace.0 };
    let events = app.store.read_events(&request).await?;
    let count = events.len();
    // Buffers of slow subscribers are limited in bytes too.
    let fit = limit_size(events, most);
    pace.0 = match fit.len() < count {
        true => u32::try_from(fit.len()).unwrap_or(READ).clamp(1, READ),
        false => pace.0.saturating_mul(2).min(READ),
    };
    Ok(fit)
}

/// Guard that ends the broadcast for its subscribers, however the task ends.
struct BroadcastEndGuard(Weak<TopicBroadcast>);

impl Drop for BroadcastEndGuard {
    fn drop(&mut self) {
        if let Some(broadcast) = self.0.upgrade() {
            broadcast.sender().take();
        }
    }
}

/// Read new events while there are subscribers.
async fn follow(app: App, topic: TopicKey, broadcast: Weak<TopicBroadcast>) {
    let _end = BroadcastEndGuard(broadcast.clone());
    let mut pace = AdaptiveReadSize::default();
    let mut notifications = app.elections.notifications();
    loop {
        let Some(before) = broadcast.upgrade().map(|broadcast| broadcast.head()) else { return };
        let session = app.tenure().and_then(tenure::Tenure::session);
        let every = if session.is_some() { POLL_INTERVAL.0 } else { POLL_INTERVAL.1 };
        let polled = async {
            if let Some(session) = &session {
                // Register before reading: later publications then send a notification.
                app.store.register_topic_waiter(session, &topic).await?;
            }
            read(&app, &topic, &before, &mut pace, READ_BYTES).await
        };
        let wait = match polled.await {
            Ok(events) if events.is_empty() => every,
            Ok(events) => {
                let Some(broadcast) = broadcast.upgrade() else { return };
                let chunk = build_chunk(before, events);
                *broadcast.head.write().unwrap_or_else(PoisonError::into_inner) = chunk.after.clone();
                if let Some(sender) = broadcast.sender().as_ref() {
                    // An error means that the last subscriber has just left.
                    let _ = sender.send(Arc::new(chunk));
                }
                continue;
            }
            // The topic was deleted. Subscribers reconnect and receive the problem.
            Err(error) if error.kind == ErrorKind::Request => return,
            Err(error) => {
                tracing::warn!(%topic, %error, "reading a topic for streams failed; retrying");
                RETRY_DELAY
            }
        };
        tokio::select! {
            () = app.runtime.sleep_until(app.runtime.now() + wait) => {}
            () = wait_for_notification(&mut notifications, &topic) => {}
        }
    }
}

/// Wait for a notification that may concern this topic.
async fn wait_for_notification(
    notifications: &mut broadcast::Receiver<ReceivedNotification>,
    topic: &TopicKey,
) {
    loop {
        match notifications.recv().await {
            Ok(ReceivedNotification { notification: Notification::TopicPublished(key), .. })
                if key == *topic =>
            {
                return;
            }
            Ok(ReceivedNotification { notification: Notification::Resync, .. })
            | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Build a chunk from the events after a cursor.
pub(crate) fn build_chunk(before: TopicCursor, events: Vec<Event>) -> EventChunk {
    let mut after = before.clone();
    let ends: Vec<bool> = (0..events.len())
        .map(|n| {
            let place = |event: &Event| (event.partition, event.offset);
            events.get(n + 1).is_none_or(|next| place(next) != place(&events[n]))
        })
        .collect();
    // The cursor of many partitions takes kilobytes, so it is sent only with the last event. A client that is
    // disconnected before receives the earlier events again.
    let (last, long) = (events.len().saturating_sub(1), before.to_string().len() > LONG_CURSOR);
    let messages = events.into_iter().zip(ends).enumerate().map(|(n, (event, last_of_batch))| {
        after.pass(&event, last_of_batch);
        let frame = frame(&event, (!long || n == last).then_some(&after));
        (event, frame)
    });
    let events = messages.collect();
    EventChunk { before, after, events }
}

/// Frame of an event, with the cursor after it.
fn frame(event: &Event, cursor: Option<&TopicCursor>) -> Bytes {
    let data = serde_json::to_vec(event).unwrap_or_default();
    let id = cursor.map_or_else(String::new, |cursor| format!("id: {cursor}\n"));
    let head = format!("event: event\n{id}data: ");
    // A payload is kept as written, and JSON may span several lines.
    let data = match data.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        false => data,
        true => {
            data.into_iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }).collect()
        }
    };
    [head.as_bytes(), &data, b"\n\n"].concat().into()
}

#[cfg(test)]
mod tests {
    use tenure::port::{EventId, Payload};

    use super::*;

    fn event(id: u64) -> Event {
        Event {
            id: EventId(id),
            partition: 0,
            offset: id,
            key: None,
            event_type: "t".into(),
            payload: Payload::default(),
            headers: Default::default(),
            leader_token: None,
            published_at_ms: 0,
        }
    }

    #[test]
    fn the_cursor_is_sent_with_each_event_or_only_with_the_last_if_long() {
        let check = |partitions: u32| {
            let before = TopicCursor::new(
                (0..partitions).map(|partition| (partition, 1_000_000 + u64::from(partition) * 7_919)),
            );
            let chunk = build_chunk(before, (9_000_000..9_000_003).map(event).collect());
            let id = |frame: &Bytes| frame.windows(4).any(|four| four == b"id: ");
            assert_eq!(
                chunk.events.iter().filter(|(_, frame)| id(frame)).count(),
                if partitions > 64 { 1 } else { 3 }
            );
            let last = String::from_utf8(chunk.events[2].1.to_vec()).expect("text");
            assert!(last.contains(&format!("\nid: {}\n", chunk.after)), "{last}");
        };
        check(8);
        check(64);
        check(1024);
    }
}
