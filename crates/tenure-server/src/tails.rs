//! What is published to a topic, read once for all who stream it.
//!
//! A topic that somebody streams has one *tail*: a task that reads what is new, and tells all of its hearers. It begins with the first
//! of them and ends with the last. Whoever comes from further back reads for itself until it has caught up, and from then on hears
//! what all hear; so does one that did not keep up. Positions say what was heard already, so that nothing is missed or told twice
//! where the two meet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use tenure::port::{Event, ReadAsk, StoreError, TopicKey, Trouble, Wake};
use tenure_core::event::Cursor;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast};
use tokio::task::AbortHandle;

use crate::App;
use crate::api::fitting;
use crate::board::Hint;

/// How many events are read at once.
const READ: u32 = 256;
/// How much of that is kept at once, in bytes of payloads, unless what was published together is more.
const READ_BYTES: usize = 1024 * 1024;
/// How much one that reads for itself keeps at once.
const CATCH_UP_BYTES: usize = 128 * 1024;
/// How many batches wait for a slow hearer before it has to read for itself.
const KEPT: usize = 8;
/// Where one is, told in more bytes than this, is told less often.
const PLACE_LONG: usize = 1024;
/// How often it is looked while nothing is heard: with a session under which the store rings, and without.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(200));
/// How long to wait after trouble.
const TROUBLE: Duration = Duration::from_secs(1);
/// How many of those who catch up read at once.
const CATCHING_UP: usize = 8;

/// The tails of all topics that are streamed.
pub(crate) struct Tails {
    tails: Mutex<HashMap<TopicKey, Weak<Tail>>>,
    catching_up: Semaphore,
}

impl Default for Tails {
    fn default() -> Self {
        Tails { tails: Mutex::default(), catching_up: Semaphore::new(CATCHING_UP) }
    }
}

/// What is read of one topic, for all who stream it.
pub(crate) struct Tail {
    /// Gone when nothing more is read: so hearers are told, and come back.
    said: Mutex<Option<broadcast::Sender<Arc<Said>>>>,
    /// Up to where it has read.
    head: RwLock<Cursor>,
    task: Mutex<Option<AbortHandle>>,
}

/// Events that were read together.
pub(crate) struct Said {
    /// Up to where it had read before.
    pub(crate) before: Cursor,
    /// Up to where it has read with these.
    pub(crate) after: Cursor,
    /// The events, and how they are told.
    pub(crate) events: Vec<(Event, Bytes)>,
}

/// What one hears: the tail, which reads for as long as somebody has it, what it says from now on, and up to where it has read before.
pub(crate) type Ear = (Arc<Tail>, broadcast::Receiver<Arc<Said>>, Cursor);

impl Tails {
    /// An ear for a topic. Its tail begins at the end of the topic; `None` if there is no such topic.
    pub(crate) async fn of(&self, app: &App, topic: &TopicKey) -> Result<Option<Ear>, StoreError> {
        // One that has ended is followed by another: the topic may be a new one.
        let known = |tails: &HashMap<TopicKey, Weak<Tail>>| {
            let tail = tails.get(topic).and_then(Weak::upgrade)?;
            let (ear, head) = tail.listen()?;
            Some((tail, ear, head))
        };
        if let Some(ear) = known(&self.tails()) {
            return Ok(Some(ear));
        }
        let Some(ends) = app.store.slot_ends(topic).await? else { return Ok(None) };
        let head = Cursor::new(ends.into_iter().map(|ends| (ends.slot, ends.latest)));
        let mut tails = self.tails();
        // Somebody else may have begun meanwhile.
        if let Some(ear) = known(&tails) {
            return Ok(Some(ear));
        }
        tails.retain(|_, tail| tail.strong_count() > 0);
        let (said, ear) = broadcast::channel(KEPT);
        let tail = Arc::new(Tail {
            said: Mutex::new(Some(said)),
            head: RwLock::new(head.clone()),
            task: Mutex::default(),
        });
        let task = tokio::spawn(follow(app.clone(), topic.clone(), Arc::downgrade(&tail)));
        *tail.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        tails.insert(topic.clone(), Arc::downgrade(&tail));
        Ok(Some((tail, ear, head)))
    }

    fn tails(&self) -> MutexGuard<'_, HashMap<TopicKey, Weak<Tail>>> {
        self.tails.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads for one who is not where the tail is.
    pub(crate) async fn read(
        &self,
        app: &App,
        topic: &TopicKey,
        cursor: &Cursor,
        pace: &mut Pace,
    ) -> Result<Vec<Event>, StoreError> {
        // Never closed.
        let _turn = self.catching_up.acquire().await;
        read(app, topic, cursor, pace, CATCH_UP_BYTES).await
    }
}

impl Tail {
    /// Hears what is read from now on, and up to where it was read before; `None` if nothing is read any more.
    fn listen(&self) -> Option<(broadcast::Receiver<Arc<Said>>, Cursor)> {
        // First an ear, then a look: nothing falls between the two.
        let ear = self.said().as_ref()?.subscribe();
        Some((ear, self.head()))
    }

    /// How many hear what is read.
    pub(crate) fn hearers(&self) -> usize {
        self.said().as_ref().map_or(1, |hearers| hearers.receiver_count().max(1))
    }

    fn said(&self) -> MutexGuard<'_, Option<broadcast::Sender<Arc<Said>>>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn head(&self) -> Cursor {
        self.head.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        task.iter().for_each(AbortHandle::abort);
    }
}

/// How many events are read at once: fewer while they are large.
pub(crate) struct Pace(u32);

impl Default for Pace {
    fn default() -> Pace {
        Pace(READ)
    }
}

async fn read(
    app: &App,
    topic: &TopicKey,
    cursor: &Cursor,
    pace: &mut Pace,
    most: usize,
) -> Result<Vec<Event>, StoreError> {
    let ask = ReadAsk { topic: topic.clone(), after: cursor.after(), limit: pace.0 };
    let events = app.store.read_events(&ask).await?;
    let count = events.len();
    // What is kept for slow hearers is bounded in bytes, too.
    let fit = fitting(events, most);
    pace.0 = match fit.len() < count {
        true => u32::try_from(fit.len()).unwrap_or(READ).clamp(1, READ),
        false => pace.0.saturating_mul(2).min(READ),
    };
    Ok(fit)
}

/// Tells hearers that nothing more is read, however that came to be.
struct End(Weak<Tail>);

impl Drop for End {
    fn drop(&mut self) {
        if let Some(tail) = self.0.upgrade() {
            tail.said().take();
        }
    }
}

/// Reads what is new, for as long as somebody hears it.
async fn follow(app: App, topic: TopicKey, tail: Weak<Tail>) {
    let _end = End(tail.clone());
    let mut pace = Pace::default();
    let mut hints = app.board.hints();
    loop {
        let Some(before) = tail.upgrade().map(|tail| tail.head()) else { return };
        let session = app.tenure().and_then(tenure::Tenure::session);
        let every = if session.is_some() { LOOK_EVERY.0 } else { LOOK_EVERY.1 };
        let look = async {
            if let Some(session) = &session {
                // Before the look: what is published after it rings.
                app.store.doze_topic(session, &topic).await?;
            }
            read(&app, &topic, &before, &mut pace, READ_BYTES).await
        };
        let wait = match look.await {
            Ok(events) if events.is_empty() => every,
            Ok(events) => {
                let Some(tail) = tail.upgrade() else { return };
                let said = said(before, events);
                *tail.head.write().unwrap_or_else(PoisonError::into_inner) = said.after.clone();
                if let Some(hearers) = tail.said().as_ref() {
                    // Nobody hears it if all have left just now.
                    let _ = hearers.send(Arc::new(said));
                }
                continue;
            }
            // It was deleted. Whoever hears is told that this is the end, comes back, and is told why.
            Err(error) if error.kind == Trouble::Request => return,
            Err(error) => {
                tracing::warn!(%topic, "a stream waits: {error}");
                TROUBLE
            }
        };
        tokio::select! {
            () = app.runtime.sleep_until(app.runtime.now() + wait) => {}
            () = heard(&mut hints, &topic) => {}
        }
    }
}

/// Waits for a hint that there may be something new.
async fn heard(hints: &mut broadcast::Receiver<Hint>, topic: &TopicKey) {
    loop {
        match hints.recv().await {
            Ok(Hint { wake: Wake::Events(key), .. }) if key == *topic => return,
            Ok(Hint { wake: Wake::Resync, .. }) | Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Events that were read after a cursor, as they are told.
pub(crate) fn said(before: Cursor, events: Vec<Event>) -> Said {
    let mut after = before.clone();
    let ends: Vec<bool> = (0..events.len())
        .map(|n| {
            let place = |event: &Event| (event.slot, event.position);
            events.get(n + 1).is_none_or(|next| place(next) != place(&events[n]))
        })
        .collect();
    // Where one is takes kilobytes if there are many slots: then it is told with the last of them only. Whoever is cut off before hears
    // those before it again.
    let (last, long) = (events.len().saturating_sub(1), before.to_string().len() > PLACE_LONG);
    let told = events.into_iter().zip(ends).enumerate().map(|(n, (event, last_of_unit))| {
        after.pass(&event, last_of_unit);
        let frame = frame(&event, (!long || n == last).then_some(&after));
        (event, frame)
    });
    let events = told.collect();
    Said { before, after, events }
}

/// An event as those who stream are told it, and how far they have heard with it.
fn frame(event: &Event, cursor: Option<&Cursor>) -> Bytes {
    let data = serde_json::to_vec(event).unwrap_or_default();
    let id = cursor.map_or_else(String::new, |cursor| format!("id: {cursor}\n"));
    let head = format!("event: event\n{id}data: ");
    // A payload is kept as it was written, and JSON may be written on several lines.
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
            slot: 0,
            position: id,
            key: None,
            kind: "t".into(),
            payload: Payload::default(),
            headers: Default::default(),
            leader_token: None,
            at_ms: 0,
        }
    }

    #[test]
    fn where_one_is_is_told_with_each_event_or_with_the_last_where_it_is_long() {
        let told = |slots: u32| {
            let before = Cursor::new((0..slots).map(|slot| (slot, 1_000_000 + u64::from(slot) * 7_919)));
            let said = said(before, (9_000_000..9_000_003).map(event).collect());
            let id = |frame: &Bytes| frame.windows(4).any(|four| four == b"id: ");
            assert_eq!(
                said.events.iter().filter(|(_, frame)| id(frame)).count(),
                if slots > 64 { 1 } else { 3 }
            );
            let last = String::from_utf8(said.events[2].1.to_vec()).expect("text");
            assert!(last.contains(&format!("\nid: {}\n", said.after)), "{last}");
        };
        told(8);
        told(64);
        told(1024);
    }
}
