//! Retries of parked events: the first event of a key, and once it is processed, those behind it, in order.

use std::sync::Arc;

use tenure_core::Token;
use tenure_core::port::{
    EventId, ParkedEvent, ParkedEventFilter, ParkedEventState, PartitionCommit, StoreError,
};

use super::{DeliveryStep, Failures, InFlightBatch, Membership, due_time};
use crate::event::handler::ERROR_BACKOFF;
use crate::event::parked_keys::ParkedKeyRetry;
use crate::metrics;

/// Maximum number of events of a key per job.
const CHAIN_MAX: usize = 500;

/// Result of retrying a parked key.
enum ParkedKeyResult {
    /// All its events are processed.
    Processed,
    /// This event is now the first of the key, and waits.
    Waits(ParkedKeyRetry),
    /// The parked events must be read again.
    Unknown,
}

impl Membership<'_> {
    /// Retries the first event of a key, and once it is processed, those behind it, in order.
    pub(super) async fn retry_parked(&self, partition: u32, token: Token, retry: ParkedKeyRetry) {
        let next = match self.retry_key(partition, token, &retry).await {
            // No other member parks events in this partition, so the local state is complete.
            Ok(ParkedKeyResult::Processed) => {
                return self.assigned().advance_key(partition, token, &retry, None);
            }
            Ok(ParkedKeyResult::Waits(next)) => {
                return self.assigned().advance_key(partition, token, &retry, Some(next));
            }
            Ok(ParkedKeyResult::Unknown) => Ok(()),
            Err(error) => Err(error),
        };
        let version = self.assigned().version(partition);
        let read = async {
            next?;
            self.ctx.bounded(self.ctx.store.parked_keys(&self.config.group, partition)).await
        };
        let parked = read.await;
        let now = self.ctx.runtime.now();
        match parked {
            Ok(parked) => self.assigned().replace_parked(partition, token, version, &parked, now),
            Err(error) => {
                tracing::warn!(group = %self.config.group, partition, "reading parked events failed: {error}");
                self.assigned().postpone(partition, retry.event, now + self.ctx.jittered(ERROR_BACKOFF.1));
            }
        }
    }

    async fn retry_key(
        &self,
        partition: u32,
        token: Token,
        retry: &ParkedKeyRetry,
    ) -> Result<ParkedKeyResult, StoreError> {
        let (chain, complete) = self.chain(partition, retry).await?;
        for view in chain {
            if view.dead || self.is_draining() || self.assigned().ours(partition, token).is_none() {
                return Ok(ParkedKeyResult::Unknown);
            }
            let mut failures = Failures::default();
            let result_commit = |state| PartitionCommit {
                parked_results: vec![(view.event.id, state)],
                ..self.commit(partition, token)
            };
            let part = InFlightBatch {
                events: Arc::new([view.event.clone()]),
                commits: vec![result_commit(ParkedEventState::Processed)],
            };
            let error =
                match self.run_handlers(vec![part], view.attempts.saturating_add(1), &mut failures).await {
                    Ok(DeliveryStep::Done) => continue,
                    Ok(_) => failures.0.remove(&view.event.id),
                    // Other keys do not wait for it.
                    Err(transient) => Some(transient),
                };
            let Some(error) = error else { return Ok(ParkedKeyResult::Unknown) };
            let state = self.failure_state(view.attempts, &error);
            let (group, event) = (&self.config.group, view.event.id);
            let dead = matches!(state, ParkedEventState::Dead { .. });
            tracing::info!(%group, %event, dead, "event failed again: {error}");
            metrics::attempt_failed(group, dead);
            let due = due_time(&state, self.ctx.runtime.now());
            return Ok(match self.commit_offsets(vec![result_commit(state)]).await {
                DeliveryStep::Done => {
                    ParkedKeyResult::Waits(ParkedKeyRetry { key: retry.key.clone(), event, due })
                }
                _ => ParkedKeyResult::Unknown,
            });
        }
        Ok(if complete { ParkedKeyResult::Processed } else { ParkedKeyResult::Unknown })
    }

    /// Reads the parked event and those of its key behind it, in order, up to a batch. Also returns whether
    /// these are all events of the key.
    async fn chain(
        &self,
        partition: u32,
        retry: &ParkedKeyRetry,
    ) -> Result<(Vec<ParkedEvent>, bool), StoreError> {
        let most = if retry.key.is_some() { self.config.batch.min(CHAIN_MAX) } else { 1 };
        let filter = ParkedEventFilter {
            group: (*self.config.group).clone(),
            dead: false,
            partition: Some(partition),
            // Events of one key come in the order of their offsets, others in the order of their identifiers.
            key: retry.key.clone(),
            after: if retry.key.is_some() { None } else { Some(EventId(retry.event.0.saturating_sub(1))) },
            limit: u32::try_from(most).unwrap_or(1),
        };
        let mut views = self.ctx.bounded(self.ctx.store.parked_events(&filter)).await?;
        // The store may end a large list before its limit, so also check the count of waiting events.
        let behind = views.last().map_or(0, |last| last.waiting_behind_count);
        let complete = retry.key.is_none() || views.len() < most && behind == 0;
        // If the event was dropped meanwhile, the list is empty or contains another event.
        views.retain(|view| retry.key.is_some() || view.event.id == retry.event);
        Ok((views, complete))
    }
}
