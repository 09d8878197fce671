//! Delivery: passes events to the handler and commits the outcome.
//!
//! A batch is delivered as a whole, split into as many concurrent handler calls as configured, each in its own
//! transaction. If a call fails, the unprocessed events are delivered commit batch by commit batch, and a
//! failing commit batch event by event, until the failing events are isolated. A failed event is parked, later
//! events of its key are parked behind it, and the partition continues. When a parked event is due, it is
//! retried, and once it is processed, the events behind it follow in order.
//!
//! A transient failure (a deadlock, a restarting server) is retried in place. If it persists while other events
//! succeed, its event is parked with its key, so that it blocks no other keys; it is retried without limit and
//! never becomes a dead letter. If no event succeeds, no event is parked. Rejected commits are dropped: the
//! partition has another holder. If the outcome is unknown, the partition is released and taken again
//! ([`AssignedPartitions::mark_uncertain`]).
//!
//! [`AssignedPartitions::mark_uncertain`]: super::assigned_partitions::AssignedPartitions::mark_uncertain

mod invoke;
mod retry;
mod split;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::port::{Event, EventId, ParkEventRequest, ParkedEventState, PartitionCommit};
use tenure_core::rules::event::DeliveryPlan;
use tenure_core::{BootInstant, Token};

use super::assigned_partitions::{Chunk, DeliveryJob};
use super::handler::ERROR_BACKOFF;
use super::handler_error::HandlerError;
use super::in_flight::split;
use super::membership::{Membership, StopMode};
use crate::metrics;

/// Retries in place of a transient failure before the events are tried one by one.
const TRANSIENT_RETRIES: u32 = 3;

/// Result of delivering a part of a job.
enum DeliveryStep {
    /// This part is complete.
    Done,
    /// The handler failed.
    Failed,
    /// Some commits were rejected, or their outcome is unknown: the rest that is still assigned is delivered
    /// again. Until then, no commit may cover this part.
    Again,
    /// The job ends: partitions were lost, or the consumer stops.
    Stop,
}

impl DeliveryStep {
    /// Combines two results: the worse one wins.
    fn and(self, other: DeliveryStep) -> DeliveryStep {
        match (self, other) {
            (DeliveryStep::Stop, _) | (_, DeliveryStep::Stop) => DeliveryStep::Stop,
            (DeliveryStep::Again, _) | (_, DeliveryStep::Again) => DeliveryStep::Again,
            (DeliveryStep::Failed, _) | (_, DeliveryStep::Failed) => DeliveryStep::Failed,
            (DeliveryStep::Done, DeliveryStep::Done) => DeliveryStep::Done,
        }
    }
}

/// Events handled in one transaction, and its commits.
struct InFlightBatch {
    events: Arc<[Event]>,
    commits: Vec<PartitionCommit>,
}

/// Events that failed when they were delivered alone in this job. The job does not try them alone again.
#[derive(Default)]
struct Failures(HashMap<EventId, HandlerError>);

impl Membership<'_> {
    /// Delivers until the consumer stops.
    pub(super) async fn deliver(&self) {
        let mut stop = self.config.stop.subscribe();
        while !self.is_draining() {
            let (job, due) = {
                let mut assigned = self.assigned();
                (assigned.next(self.ctx.runtime.now()), assigned.next_due())
            };
            match job {
                Some(job) => self.perform(job).await,
                // A notification before the wait is not lost.
                None => tokio::select! {
                    () = self.work.notified() => {}
                    () = self.until(due) => {}
                    _ = stop.wait_for(|stop| *stop != StopMode::No) => {}
                },
            }
        }
    }

    async fn until(&self, due: Option<BootInstant>) {
        match due {
            Some(due) => self.ctx.runtime.sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    async fn perform(&self, job: DeliveryJob) {
        // There is room for the next batch.
        self.room.notify_one();
        let began = self.ctx.runtime.now();
        let work = async {
            match job {
                DeliveryJob::Batch(chunks) => self.batch(chunks).await,
                DeliveryJob::Parked { partition, token, retry } => {
                    self.retry_parked(partition, token, retry).await
                }
            }
        };
        tokio::select! {
            biased;
            () = self.cancelled() => {
                // The job was dropped, perhaps during a commit: take its partitions again.
                let mut assigned = self.assigned();
                let busy = assigned.busy();
                assigned.mark_uncertain(&busy);
            }
            () = work => {}
        }
        metrics::batch_delivered(&self.config.group, self.ctx.runtime.now().since(began));
        let mut assigned = self.assigned();
        if assigned.finish_job() {
            self.new_partitions.notify_one();
        }
        if !assigned.to_release().is_empty() {
            self.release_needed.notify_one();
        }
        drop(assigned);
        self.room.notify_one();
    }

    /// Completes when a partition of the job was lost.
    async fn cancelled(&self) {
        while !self.assigned().is_cancelled() {
            self.work.notified().await;
        }
    }

    async fn batch(&self, chunks: Vec<Chunk>) {
        let mut failures = Failures::default();
        let mut rounds = 0;
        loop {
            let remaining = self.remaining(&chunks);
            if remaining.is_empty() {
                return;
            }
            let step = match self.attempt(&remaining, self.config.concurrency, &mut failures).await {
                Ok(DeliveryStep::Failed) => self.by_commit_batch(&remaining, &mut failures).await,
                step => step,
            };
            match step {
                Ok(DeliveryStep::Stop) => return,
                Ok(_) => {}
                Err(transient) => {
                    rounds += 1;
                    if matches!(self.wait_transient(&transient).await, DeliveryStep::Stop) {
                        return;
                    }
                    // If no event succeeds, end the job and read again, with newer events: they may succeed.
                    if rounds >= TRANSIENT_RETRIES
                        && !matches!(self.one_by_one(&remaining, &mut failures).await, DeliveryStep::Done)
                    {
                        return;
                    }
                }
            }
        }
    }

    /// Passes events to the handler, in concurrent calls.
    async fn attempt(
        &self,
        chunks: &[&Chunk],
        most: usize,
        failures: &mut Failures,
    ) -> Result<DeliveryStep, HandlerError> {
        let mut events = Vec::new();
        for chunk in chunks {
            let plan = self.plan(chunk, &chunk.events);
            events.extend(plan.deliver.into_iter().map(|place| chunk.events[place].clone()));
        }
        let mut pending: BTreeMap<u32, PartitionCommit> =
            chunks.iter().map(|chunk| (chunk.partition, self.complete_commit(chunk))).collect();
        let mut parts = Vec::new();
        for part in split(events, most) {
            let mut commits = Vec::new();
            for (partition, events, complete) in part.partitions() {
                let Some(commit) = pending.get(&partition) else { continue };
                commits.push(if complete {
                    commit.clone()
                } else {
                    PartitionCommit { processed: events, ..self.commit(partition, commit.token) }
                });
            }
            let completed = part
                .partitions()
                .into_iter()
                .filter(|(_, _, complete)| *complete)
                .map(|(partition, ..)| partition);
            completed.for_each(|partition| drop(pending.remove(&partition)));
            parts.push(InFlightBatch { events: part.events.into(), commits });
        }
        if let [part] = parts.as_mut_slice() {
            // A single call also commits the partitions that have no events to handle.
            part.commits.extend(std::mem::take(&mut pending).into_values());
        }
        // All members lock partition leases in the same order.
        parts.iter_mut().for_each(|part| part.commits.sort_by_key(|commit| commit.partition));
        if !parts.is_empty() {
            match self.run_handlers(parts, 1, failures).await? {
                DeliveryStep::Done => {}
                step => return Ok(step),
            }
        }
        if !pending.is_empty() {
            match self.commit_offsets(pending.into_values().collect()).await {
                DeliveryStep::Done => {}
                step => return Ok(step),
            }
        }
        let mut assigned = self.assigned();
        chunks.iter().for_each(|chunk| assigned.forget_processed(chunk.partition, &chunk.events));
        Ok(DeliveryStep::Done)
    }

    /// The commit of a fully processed chunk, which parks events behind parked ones.
    fn complete_commit(&self, chunk: &Chunk) -> PartitionCommit {
        let behind = self.plan(chunk, &chunk.events).park;
        let park = |place: usize| {
            let event = &chunk.events[place];
            ParkEventRequest { event_id: event.id, offset: event.offset, state: ParkedEventState::Waiting }
        };
        let parked = behind.into_iter().map(park).collect();
        PartitionCommit { offset: Some(chunk.to), parked, ..self.commit(chunk.partition, chunk.token) }
    }

    /// Plans the delivery of events of a chunk.
    fn plan(&self, chunk: &Chunk, events: &[Event]) -> DeliveryPlan {
        self.assigned().plan_delivery(chunk.partition, chunk.token, events)
    }

    /// The chunks that are still assigned and not fully committed.
    fn remaining<'c>(&self, chunks: impl IntoIterator<Item = &'c Chunk>) -> Vec<&'c Chunk> {
        let assigned = self.assigned();
        let remaining = |chunk: &&Chunk| {
            assigned.ours(chunk.partition, chunk.token).is_some_and(|held| held.offset < chunk.to)
        };
        chunks.into_iter().filter(remaining).collect()
    }

    fn commit(&self, partition: u32, token: Token) -> PartitionCommit {
        PartitionCommit {
            group: (*self.config.group).clone(),
            partition,
            token,
            offset: None,
            processed: Vec::new(),
            parked: Vec::new(),
            parked_results: Vec::new(),
        }
    }

    /// Waits before a transient failure is retried, longer each time until an event succeeds.
    async fn wait_transient(&self, transient: &HandlerError) -> DeliveryStep {
        tracing::warn!(group = %self.config.group, "handler failed transiently, retrying: {transient}");
        let rounds = self.transient.fetch_add(1, Ordering::Relaxed);
        let wait = ERROR_BACKOFF.0.saturating_mul(1 << rounds.min(10)).min(ERROR_BACKOFF.1);
        let mut stop = self.config.stop.subscribe();
        tokio::select! {
            () = self.ctx.pause(wait) => DeliveryStep::Done,
            _ = stop.wait_for(|stop| *stop != StopMode::No) => DeliveryStep::Stop,
        }
    }
}

/// When a parked event is due on the local clock; `None` for a dead letter.
fn due_time(state: &ParkedEventState, now: BootInstant) -> Option<BootInstant> {
    match state {
        ParkedEventState::Retry { retry_in_ms: after_ms, .. } => Some(now + Duration::from_millis(*after_ms)),
        ParkedEventState::Processed | ParkedEventState::Waiting | ParkedEventState::Dead { .. } => None,
    }
}
