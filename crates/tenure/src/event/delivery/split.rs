//! Delivery of failed events in smaller parts: by commit batch, then event by event, until the failing events
//! are found.

use std::collections::HashSet;
use std::sync::Arc;

use tenure_core::BootInstant;
use tenure_core::port::{Event, EventId, ParkEventRequest, ParkedEventState, PartitionCommit};
use tenure_core::rules::event::{after_failure, commit_batches};

use super::{Chunk, DeliveryStep, Failures, HandlerError, InFlightBatch, Membership, due_time};
use crate::event::handler::ERROR_BACKOFF;
use crate::event::handler_error::HandlerErrorKind;
use crate::metrics;
use crate::runtime::RuntimeEntropy;

/// Number of events with a transient failure, without a success, after which the rest is not tried.
const TRANSIENT_GIVE_UP: usize = 16;

impl Membership<'_> {
    /// Delivers commit batch by commit batch. Returns an error for a transient failure.
    pub(super) async fn by_commit_batch(
        &self,
        chunks: &[&Chunk],
        failures: &mut Failures,
    ) -> Result<DeliveryStep, HandlerError> {
        for chunk in chunks {
            for commit_batch in commit_batches(&chunk.events) {
                let commit_batch =
                    Chunk { to: commit_batch[0].offset, events: commit_batch.to_vec(), ..**chunk };
                while !self.remaining([&commit_batch]).is_empty() {
                    let only_event = self.only_event(&commit_batch);
                    let known = only_event.is_some_and(|only_event| failures.0.contains_key(&only_event));
                    let step = if known {
                        DeliveryStep::Failed
                    } else {
                        self.attempt(&[&commit_batch], 1, failures).await?
                    };
                    let step = match step {
                        DeliveryStep::Failed => self.event_by_event(&commit_batch, failures).await?,
                        step => step,
                    };
                    if matches!(step, DeliveryStep::Stop) {
                        return Ok(DeliveryStep::Stop);
                    }
                }
                if self.assigned().ours(chunk.partition, chunk.token).is_none() {
                    // Lost, or about to be released: its processed events are committed.
                    break;
                }
            }
        }
        Ok(DeliveryStep::Done)
    }

    /// The only event of a chunk to be handled, if there is exactly one.
    fn only_event(&self, chunk: &Chunk) -> Option<EventId> {
        match *self.plan(chunk, &chunk.events).deliver {
            [place] => Some(chunk.events[place].id),
            _ => None,
        }
    }

    /// Delivers each event alone. Failed events, and those of their keys behind them, are parked when the whole
    /// commit batch is processed; until then any holder of the partition can read it again. Returns an error
    /// for a transient failure; then no event is parked.
    async fn event_by_event(
        &self,
        commit_batch: &Chunk,
        failures: &mut Failures,
    ) -> Result<DeliveryStep, HandlerError> {
        let mut failed: Vec<(&Event, HandlerError)> = Vec::new();
        for event in &commit_batch.events {
            loop {
                if self.plan(commit_batch, std::slice::from_ref(event)).deliver.is_empty() {
                    break;
                }
                if let Some(error) = failures.0.remove(&event.id) {
                    self.assigned().park(commit_batch.token, event);
                    failed.push((event, error));
                    break;
                }
                let step = match self.run_handlers(vec![self.alone(commit_batch, event)], 1, failures).await {
                    Ok(step) => step,
                    Err(transient) => {
                        let mut assigned = self.assigned();
                        for (event, error) in failed {
                            assigned.unpark(commit_batch.token, event);
                            failures.0.insert(event.id, error);
                        }
                        return Err(transient);
                    }
                };
                if matches!(step, DeliveryStep::Stop) || self.remaining([commit_batch]).is_empty() {
                    return Ok(step);
                }
            }
        }
        Ok(self.park_failed(commit_batch, &failed).await)
    }

    /// Delivers each event alone after a persistent transient failure, to find out whether all events meet it. If
    /// an event succeeds or fails otherwise, parks the events that failed; a transient failure does not count as an
    /// attempt. If all events meet it, parks nothing and returns `Failed`.
    pub(super) async fn one_by_one(&self, chunks: &[&Chunk], failures: &mut Failures) -> DeliveryStep {
        let (mut any_succeeded, mut transient_count) = (false, 0);
        let mut failed_chunks: Vec<(&Chunk, Vec<(&Event, HandlerError)>)> = Vec::new();
        for chunk in chunks {
            let (mut failed, mut keys): (Vec<(&Event, HandlerError)>, HashSet<&str>) = Default::default();
            for event in &chunk.events {
                if self.is_draining() {
                    return DeliveryStep::Stop;
                }
                let waits = event.key.as_deref().is_some_and(|key| keys.contains(key));
                if waits || self.plan(chunk, std::slice::from_ref(event)).deliver.is_empty() {
                    continue;
                }
                let result = match failures.0.contains_key(&event.id) {
                    true => Ok(DeliveryStep::Failed),
                    false => self.run_handlers(vec![self.alone(chunk, event)], 1, failures).await,
                };
                let error = match result {
                    Ok(DeliveryStep::Stop) => return DeliveryStep::Stop,
                    Ok(DeliveryStep::Done) => {
                        any_succeeded = true;
                        continue;
                    }
                    // The partition was lost, or the outcome is unknown.
                    Ok(DeliveryStep::Again) => break,
                    Ok(DeliveryStep::Failed) => {
                        any_succeeded = true;
                        failures
                            .0
                            .remove(&event.id)
                            .unwrap_or_else(|| HandlerError::fail("the handler failed"))
                    }
                    Err(transient) => {
                        transient_count += 1;
                        transient
                    }
                };
                if !any_succeeded && transient_count >= TRANSIENT_GIVE_UP {
                    return DeliveryStep::Failed;
                }
                keys.extend(event.key.as_deref());
                failed.push((event, error));
            }
            failed_chunks.push((chunk, failed));
        }
        if !any_succeeded {
            return DeliveryStep::Failed;
        }
        for (chunk, failed) in failed_chunks {
            if self.remaining([chunk]).is_empty() {
                continue;
            }
            failed.iter().for_each(|(event, _)| self.assigned().park(chunk.token, event));
            if matches!(self.park_failed(chunk, &failed).await, DeliveryStep::Stop) {
                return DeliveryStep::Stop;
            }
        }
        DeliveryStep::Done
    }

    /// One event in a transaction of its own.
    fn alone(&self, chunk: &Chunk, event: &Event) -> InFlightBatch {
        let done = PartitionCommit {
            processed: vec![(event.id, event.offset)],
            ..self.commit(chunk.partition, chunk.token)
        };
        InFlightBatch { events: Arc::new([event.clone()]), commits: vec![done] }
    }

    /// Commits a processed chunk and parks its failed events, whose keys are parked already.
    async fn park_failed(&self, commit_batch: &Chunk, failed: &[(&Event, HandlerError)]) -> DeliveryStep {
        let (commit, parked) = self.parking_commit(commit_batch, failed);
        let step = self.commit_offsets(vec![commit]).await;
        let mut assigned = self.assigned();
        if assigned.committed_offset(commit_batch.partition, commit_batch.token) == Some(commit_batch.to) {
            assigned.add_parked(commit_batch.token, &parked);
            assigned.forget_processed(commit_batch.partition, &commit_batch.events);
            parked.iter().for_each(|(_, due)| metrics::attempt_failed(&self.config.group, due.is_none()));
        }
        step
    }

    /// The commit of a chunk with failed events, and when each of those is due.
    fn parking_commit<'e>(
        &self,
        commit_batch: &Chunk,
        failed: &[(&'e Event, HandlerError)],
    ) -> (PartitionCommit, Vec<(&'e Event, Option<BootInstant>)>) {
        let (mut commit, mut parked) = (self.complete_commit(commit_batch), Vec::new());
        commit.parked.retain(|behind| failed.iter().all(|(event, _)| event.id != behind.event_id));
        for (event, error) in failed {
            let (group, id, partition, key) = (&self.config.group, event.id, event.partition, &event.key);
            tracing::info!(%group, event = %id, partition, key, "event parked: {error}");
            let state = self.failure_state(0, error);
            parked.push((*event, due_time(&state, self.ctx.runtime.now())));
            commit.parked.push(ParkEventRequest { event_id: event.id, offset: event.offset, state });
        }
        (commit, parked)
    }

    /// The next state of an event that failed after `attempts` earlier attempts.
    pub(super) fn failure_state(&self, attempts: u32, error: &HandlerError) -> ParkedEventState {
        if error.is_transient() {
            // The attempt does not count. At least one attempt distinguishes the event from those waiting
            // behind it.
            let after_ms = u64::try_from(self.ctx.jittered(ERROR_BACKOFF.1).as_millis()).unwrap_or(u64::MAX);
            return ParkedEventState::Retry {
                attempts: attempts.max(1),
                retry_in_ms: after_ms,
                error: error.message.clone(),
            };
        }
        let settings = self.assigned().settings;
        let state = after_failure(
            &settings,
            attempts,
            &error.message,
            &mut RuntimeEntropy(self.ctx.runtime.as_ref()),
        );
        match (state, error.kind) {
            (ParkedEventState::Retry { attempts, error, .. }, HandlerErrorKind::Permanent) => {
                ParkedEventState::Dead { attempts, error }
            }
            (ParkedEventState::Retry { attempts, error, .. }, HandlerErrorKind::RetryIn(after)) => {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                ParkedEventState::Retry { attempts, retry_in_ms: after_ms, error }
            }
            (state, _) => state,
        }
    }
}
