//! Reading ahead, and sleeping when there is nothing to read.
//!
//! While a batch is handled the next one is read. As long as there is more than a batch, slots are read a few at a time, in turn, and
//! all of them together once a turn, so that none waits for longer than that.
//!
//! When a read finds nothing, the session says that it dozes on the topic, and *then* reads once more: what was committed before is found
//! by that read, what is committed later rings. A transaction that was committing meanwhile does neither, so there are reads after 10
//! ms and 100 ms; then every second or so, saying again that it dozes, since a ring takes that word back and may itself be lost.

use std::time::Duration;

use tenure_core::port::{READ_BYTES, ReadAsk, StoreError};

use super::handler::TROUBLE;
use super::shares::Cursors;
use super::stay::Stay;
use crate::outage::{OutageLog, log_failure, log_recovery};

/// When to read again after a read that found nothing, counted from that read; then the last, for ever, give or take a fifth.
const NAPS: [Duration; 3] = [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// How it sleeps.
#[derive(Default)]
struct Sleep {
    /// The last read found all that there was: it is not worth another before it is said that we doze.
    emptied: bool,
    /// The store knows that we sleep, as far as we know, and a read came after.
    dozes: bool,
    /// How many reads there were since.
    naps: usize,
}

impl Stay<'_> {
    /// Reads, for ever.
    pub(super) async fn read(&self) {
        let bell = self.hub.shared.bells.topic(&self.orders.group.topic);
        let mut rung = bell.subscribe();
        let (mut sleep, mut trouble, mut outages) = (Sleep::default(), TROUBLE.0, OutageLog::default());
        loop {
            let (events, bytes) = self.shares().buffered();
            let room = if bytes < READ_BYTES { self.orders.batch.saturating_sub(events) } else { 0 };
            if room == 0 || self.shares().paused {
                self.room.notified().await;
                continue;
            }
            rung.mark_unchanged();
            let next = match self.read_once(room, &mut sleep).await {
                Ok(nap) => {
                    trouble = TROUBLE.0;
                    let topic = &self.orders.group.topic;
                    log_recovery!(outages, self.hub.runtime.now(), %topic, "reading events works again");
                    let Some(nap) = nap else { continue };
                    self.hub.runtime.now() + nap
                }
                Err(error) => {
                    let (now, topic) = (self.hub.runtime.now(), &self.orders.group.topic);
                    log_failure!(outages, now, %topic, "reading events failed: {error}");
                    let next = self.hub.runtime.now() + self.hub.jittered(trouble);
                    (sleep, trouble) = (Sleep::default(), (trouble * 2).min(TROUBLE.1));
                    next
                }
            };
            tokio::select! {
                // The bell outlives its listeners; a ring takes back that we doze.
                _ = rung.changed() => sleep = Sleep::default(),
                // They were not read yet.
                () = self.new_slots.notified() => sleep = Sleep::default(),
                () = self.hub.runtime.sleep_until(next) => {}
            }
        }
    }

    /// Reads as much as there is room for; if there is nothing, for how long to nap.
    async fn read_once(&self, room: usize, sleep: &mut Sleep) -> Result<Option<Duration>, StoreError> {
        let cursors = self.shares().cursors(few(self.orders.concurrency));
        if cursors.after.is_empty() {
            return Ok(Some(NAPS[2]));
        }
        if !cursors.all {
            // Whether there is more, the next read of all slots tells.
            self.found(&cursors, room, sleep).await?;
            return Ok(None);
        }
        if !sleep.dozes && !sleep.emptied && self.found(&cursors, room, sleep).await? {
            return Ok(None);
        }
        // The last nap says it again.
        if !sleep.dozes || sleep.naps >= NAPS.len() - 1 {
            let topic = &self.orders.group.topic;
            self.hub.bounded(self.hub.store.doze_topic(&self.session, topic)).await?;
            sleep.dozes = true;
        }
        if self.found(&cursors, room, sleep).await? {
            return Ok(None);
        }
        let nap = NAPS[sleep.naps.min(NAPS.len() - 1)];
        sleep.naps += 1;
        Ok(Some(if sleep.naps >= NAPS.len() { self.hub.jittered(nap) } else { nap }))
    }

    /// Whether there was something; then it does not sleep.
    async fn found(&self, cursors: &Cursors, room: usize, sleep: &mut Sleep) -> Result<bool, StoreError> {
        let limit = u32::try_from(room).unwrap_or(u32::MAX);
        let ask = ReadAsk { topic: self.orders.group.topic.clone(), after: cursors.after.clone(), limit };
        let events = self.hub.bounded(self.hub.store.read_events(&ask)).await?;
        if events.is_empty() {
            return Ok(false);
        }
        let full = events.len() >= room;
        *sleep = Sleep { emptied: cursors.all && !full, ..Sleep::default() };
        let mut shares = self.shares();
        if cursors.all && full {
            shares.have_more(&events);
        }
        shares.store(&cursors.after, events);
        drop(shares);
        self.work.notify_one();
        Ok(true)
    }
}

/// Of how many slots a batch is when all of them have plenty: enough for every lane to have slots of its own.
fn few(concurrency: usize) -> usize {
    concurrency.saturating_mul(2).max(4)
}
