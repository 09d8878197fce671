//! Reads events ahead, and waits when there are none.
//!
//! While a batch is handled, the next one is read. If one read cannot return all waiting events, the reader reads
//! a few partitions at a time, and all partitions once per cycle, so that each partition is read in every cycle.
//!
//! When a read finds nothing, the session registers as a waiter of the topic and *then* reads once more: that
//! read finds events committed before the registration, and later commits send a notification. A transaction
//! that commits during the registration may be neither found nor notified. So the reader reads again after 10 ms
//! and 100 ms, and then about every second. The read every second registers again, because a notification removes
//! the registration and may itself be lost.

use std::time::Duration;

use tenure_core::port::{READ_BYTES, ReadEventsRequest, StoreError};

use super::assigned_partitions::ReadOffsets;
use super::handler::ERROR_BACKOFF;
use super::membership::Membership;
use crate::outage::{OutageLog, log_failure, log_recovery};

/// Delays between reads that found nothing, counted from the last read. The last one repeats, with jitter.
const POLL_BACKOFF: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// The poll back-off of the reader.
#[derive(Default)]
struct ReadBackoff {
    /// The last read found all events: the next one must register a waiter first.
    emptied: bool,
    /// Whether a waiter is registered in the store and a read followed.
    registered: bool,
    /// Number of reads since.
    attempts: usize,
}

impl Membership<'_> {
    /// Reads events until dropped.
    pub(super) async fn read(&self) {
        let channel = self.ctx.shared.notifier.topic(&self.config.group.topic);
        let mut notifications = channel.subscribe();
        let (mut backoff, mut error_delay, mut outages) =
            (ReadBackoff::default(), ERROR_BACKOFF.0, OutageLog::default());
        loop {
            let (events, bytes) = self.assigned().buffered();
            let room = if bytes < READ_BYTES { self.config.batch.saturating_sub(events) } else { 0 };
            if room == 0 || self.assigned().paused {
                self.room.notified().await;
                continue;
            }
            notifications.mark_unchanged();
            let next = match self.read_once(room, &mut backoff).await {
                Ok(delay) => {
                    error_delay = ERROR_BACKOFF.0;
                    let topic = &self.config.group.topic;
                    log_recovery!(outages, self.ctx.runtime.now(), %topic, "reading events recovered");
                    let Some(delay) = delay else { continue };
                    self.ctx.runtime.now() + delay
                }
                Err(error) => {
                    let (now, topic) = (self.ctx.runtime.now(), &self.config.group.topic);
                    log_failure!(outages, now, %topic, "reading events failed: {error}");
                    let next = self.ctx.runtime.now() + self.ctx.jittered(error_delay);
                    (backoff, error_delay) = (ReadBackoff::default(), (error_delay * 2).min(ERROR_BACKOFF.1));
                    next
                }
            };
            tokio::select! {
                // The channel outlives its subscribers. A notification removes the registration.
                _ = notifications.changed() => backoff = ReadBackoff::default(),
                // The new partitions have not been read yet.
                () = self.new_partitions.notified() => backoff = ReadBackoff::default(),
                () = self.ctx.runtime.sleep_until(next) => {}
            }
        }
    }

    /// Reads as much as there is room for. If there is nothing, returns the delay before the next read.
    async fn read_once(
        &self,
        room: usize,
        backoff: &mut ReadBackoff,
    ) -> Result<Option<Duration>, StoreError> {
        let cursors = self.assigned().cursors(partitions_per_read(self.config.concurrency));
        if cursors.after.is_empty() {
            return Ok(Some(POLL_BACKOFF[2]));
        }
        if !cursors.all {
            // The next read of all partitions tells whether there is more.
            self.found(&cursors, room, backoff).await?;
            return Ok(None);
        }
        if !backoff.registered && !backoff.emptied && self.found(&cursors, room, backoff).await? {
            return Ok(None);
        }
        // The last delay registers again.
        if !backoff.registered || backoff.attempts >= POLL_BACKOFF.len() - 1 {
            let topic = &self.config.group.topic;
            self.ctx.bounded(self.ctx.store.register_topic_waiter(&self.session, topic)).await?;
            backoff.registered = true;
        }
        if self.found(&cursors, room, backoff).await? {
            return Ok(None);
        }
        let delay = POLL_BACKOFF[backoff.attempts.min(POLL_BACKOFF.len() - 1)];
        backoff.attempts += 1;
        Ok(Some(if backoff.attempts >= POLL_BACKOFF.len() { self.ctx.jittered(delay) } else { delay }))
    }

    /// Reads once. Returns whether there were events; if so, resets the back-off.
    async fn found(
        &self,
        cursors: &ReadOffsets,
        room: usize,
        backoff: &mut ReadBackoff,
    ) -> Result<bool, StoreError> {
        let limit = u32::try_from(room).unwrap_or(u32::MAX);
        let request =
            ReadEventsRequest { topic: self.config.group.topic.clone(), after: cursors.after.clone(), limit };
        let events = self.ctx.bounded(self.ctx.store.read_events(&request)).await?;
        if events.is_empty() {
            return Ok(false);
        }
        let full = events.len() >= room;
        *backoff = ReadBackoff { emptied: cursors.all && !full, ..ReadBackoff::default() };
        let mut assigned = self.assigned();
        if cursors.all && full {
            assigned.have_more(&events);
        }
        assigned.store(&cursors.after, events);
        drop(assigned);
        self.work.notify_one();
        Ok(true)
    }
}

/// Number of partitions per read while all have a backlog: enough for each concurrent handler call to have its
/// own.
fn partitions_per_read(concurrency: usize) -> usize {
    concurrency.saturating_mul(2).max(4)
}
