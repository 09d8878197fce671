//! Delivering: what was read goes to the handler, and what comes of it to the store.
//!
//! A batch goes whole, in as many *lanes* beside one another as are wanted, each in a transaction of its own. If a lane fails,
//! what is not done goes unit by unit, and a unit that fails event by event; so in the end it is one event that fails. That is set
//! aside, those of its key that follow are set aside behind it, and the slot goes on. When it is due it is tried again, and when it is
//! done those behind it follow, in order.
//!
//! What passes (a deadlock, a server that restarts) is tried again in place. If it does not pass while others get through, it is the
//! event's after all: it goes aside as well, with its key, so that it stands in nobody's way, and is tried for as long as it takes,
//! never dead. Where nothing gets through, nothing goes aside. What is stale is dropped: the store has refused it. And where it is not
//! known what counts, the share is given up and taken anew ([`Shares::doubt`]).
//!
//! [`Shares::doubt`]: super::shares::Shares::doubt

mod call;
mod pieces;
mod retry;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::event::Sorted;
use tenure_core::port::{Aside, Event, EventId, SetAside, ShareCommit};
use tenure_core::{Moment, Token};

use super::handler::TROUBLE;
use super::lanes::split;
use super::report::HandlerError;
use super::shares::{Chunk, Job};
use super::stay::{Halt, Stay};
use crate::metrics;

/// How often what passes is tried again in place before it is seen whether others get through.
const PATIENCE: u32 = 3;

/// What is to become of a job.
enum Step {
    /// This part is through.
    Done,
    /// The handler failed on it.
    Failed,
    /// Some of it was refused, or nobody knows whether it counts: what is left of it, and ours, goes again. Nothing may be said
    /// about the rest in the meantime as if this part were through.
    Again,
    /// The job is over: slots were lost, or the consumer stops.
    Over,
}

impl Step {
    /// What weighs more: nothing hides that something is not through.
    fn and(self, other: Step) -> Step {
        match (self, other) {
            (Step::Over, _) | (_, Step::Over) => Step::Over,
            (Step::Again, _) | (_, Step::Again) => Step::Again,
            (Step::Failed, _) | (_, Step::Failed) => Step::Failed,
            (Step::Done, Step::Done) => Step::Done,
        }
    }
}

/// Events that are handled together in one transaction, and what is said about them in it.
struct Lane {
    events: Arc<[Event]>,
    commits: Vec<ShareCommit>,
}

/// What one job knows of failures: events that failed alone, which need not be tried alone once more.
#[derive(Default)]
struct Failures(HashMap<EventId, HandlerError>);

impl Stay<'_> {
    /// Delivers until the consumer stops.
    pub(super) async fn deliver(&self) {
        let mut halt = self.orders.halt.subscribe();
        while !self.is_draining() {
            let (job, due) = {
                let mut shares = self.shares();
                (shares.next(self.hub.runtime.now()), shares.next_due())
            };
            match job {
                Some(job) => self.perform(job).await,
                // What is notified before somebody waits is not forgotten.
                None => tokio::select! {
                    () = self.work.notified() => {}
                    () = self.until(due) => {}
                    _ = halt.wait_for(|halt| *halt != Halt::No) => {}
                },
            }
        }
    }

    async fn until(&self, due: Option<Moment>) {
        match due {
            Some(due) => self.hub.runtime.sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    async fn perform(&self, job: Job) {
        // There is room for the next batch.
        self.room.notify_one();
        let began = self.hub.runtime.now();
        let work = async {
            match job {
                Job::Batch(chunks) => self.batch(chunks).await,
                Job::Aside { slot, token, waiting } => self.retry(slot, token, waiting).await,
            }
        };
        tokio::select! {
            biased;
            () = self.cancelled() => {
                // Dropped in the middle: perhaps of a commit. What is left of it is taken anew.
                let mut shares = self.shares();
                let busy = shares.busy();
                shares.doubt(&busy);
            }
            () = work => {}
        }
        metrics::delivered(&self.orders.group, self.hub.runtime.now().since(began));
        let mut shares = self.shares();
        if shares.over() {
            self.new_slots.notify_one();
        }
        if !shares.to_free().is_empty() {
            self.leaving.notify_one();
        }
        drop(shares);
        self.room.notify_one();
    }

    /// Completes when something of the job was lost.
    async fn cancelled(&self) {
        while !self.shares().is_cancelled() {
            self.work.notified().await;
        }
    }

    async fn batch(&self, chunks: Vec<Chunk>) {
        let mut failures = Failures::default();
        let mut rounds = 0;
        loop {
            let left = self.left(&chunks);
            if left.is_empty() {
                return;
            }
            let step = match self.attempt(&left, self.orders.concurrency, &mut failures).await {
                Ok(Step::Failed) => self.unit_by_unit(&left, &mut failures).await,
                step => step,
            };
            match step {
                Ok(Step::Over) => return,
                Ok(_) => {}
                Err(passing) => {
                    rounds += 1;
                    if matches!(self.wait_out(&passing).await, Step::Over) {
                        return;
                    }
                    // If nothing gets through, it is read again, with what has come meanwhile: perhaps that does.
                    if rounds >= PATIENCE && !matches!(self.apart(&left, &mut failures).await, Step::Done) {
                        return;
                    }
                }
            }
        }
    }

    /// Gives chunks to the handler, in lanes.
    async fn attempt(
        &self,
        chunks: &[&Chunk],
        most: usize,
        failures: &mut Failures,
    ) -> Result<Step, HandlerError> {
        let mut events = Vec::new();
        for chunk in chunks {
            let sorted = self.sorted(chunk, &chunk.events);
            events.extend(sorted.go.into_iter().map(|place| chunk.events[place].clone()));
        }
        let mut through: BTreeMap<u32, ShareCommit> =
            chunks.iter().map(|chunk| (chunk.slot, self.through(chunk))).collect();
        let mut lanes = Vec::new();
        for lane in split(events, most) {
            let mut commits = Vec::new();
            for (slot, events, whole) in lane.slots() {
                let Some(commit) = through.get(&slot) else { continue };
                commits.push(if whole {
                    commit.clone()
                } else {
                    ShareCommit { done: events, ..self.commit(slot, commit.token) }
                });
            }
            let wholes = lane.slots().into_iter().filter(|(_, _, whole)| *whole).map(|(slot, ..)| slot);
            wholes.for_each(|slot| drop(through.remove(&slot)));
            lanes.push(Lane { events: lane.events.into(), commits });
        }
        if let [lane] = lanes.as_mut_slice() {
            // Nothing is beside it: slots of which there is nothing to handle go with it.
            lane.commits.extend(std::mem::take(&mut through).into_values());
        }
        // Shares are locked in one order, by everybody.
        lanes.iter_mut().for_each(|lane| lane.commits.sort_by_key(|commit| commit.slot));
        if !lanes.is_empty() {
            match self.give(lanes, 1, failures).await? {
                Step::Done => {}
                step => return Ok(step),
            }
        }
        if !through.is_empty() {
            match self.tell_store(through.into_values().collect()).await {
                Step::Done => {}
                step => return Ok(step),
            }
        }
        let mut shares = self.shares();
        chunks.iter().for_each(|chunk| shares.passed(chunk.slot, &chunk.events));
        Ok(Step::Done)
    }

    /// What is said when everything of a chunk is done, except what is set aside behind others.
    fn through(&self, chunk: &Chunk) -> ShareCommit {
        let behind = self.sorted(chunk, &chunk.events).behind;
        let aside = |place: usize| {
            let event = &chunk.events[place];
            SetAside { event: event.id, position: event.position, how: Aside::Behind }
        };
        let set_aside = behind.into_iter().map(aside).collect();
        ShareCommit { position: Some(chunk.to), set_aside, ..self.commit(chunk.slot, chunk.token) }
    }

    /// What is to be done with events of a chunk.
    fn sorted(&self, chunk: &Chunk, events: &[Event]) -> Sorted {
        self.shares().sort_out(chunk.slot, chunk.token, events)
    }

    /// Those chunks, or what of them, that are ours and not yet through.
    fn left<'c>(&self, chunks: impl IntoIterator<Item = &'c Chunk>) -> Vec<&'c Chunk> {
        let shares = self.shares();
        let left = |chunk: &&Chunk| {
            shares.ours(chunk.slot, chunk.token).is_some_and(|held| held.position < chunk.to)
        };
        chunks.into_iter().filter(left).collect()
    }

    fn commit(&self, slot: u32, token: Token) -> ShareCommit {
        ShareCommit {
            group: (*self.orders.group).clone(),
            slot,
            token,
            position: None,
            done: Vec::new(),
            set_aside: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Waits before something that passes is tried again, for longer each time until something gets through.
    async fn wait_out(&self, passing: &HandlerError) -> Step {
        tracing::warn!(group = %self.orders.group, "tried again, since it passes: {passing}");
        let rounds = self.passing.fetch_add(1, Ordering::Relaxed);
        let wait = TROUBLE.0.saturating_mul(1 << rounds.min(10)).min(TROUBLE.1);
        let mut halt = self.orders.halt.subscribe();
        tokio::select! {
            () = self.hub.pause(wait) => Step::Done,
            _ = halt.wait_for(|halt| *halt != Halt::No) => Step::Over,
        }
    }
}

/// When an event that was set aside so is due, on our own clock; `None`: it is dead.
fn due_of(how: &Aside, now: Moment) -> Option<Moment> {
    match how {
        Aside::Retry { after_ms, .. } => Some(now + Duration::from_millis(*after_ms)),
        Aside::Done | Aside::Behind | Aside::Dead { .. } => None,
    }
}
