//! Handler calls and commits, and their outcomes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::port::PartitionCommit;
use tokio::task::JoinSet;

use super::{DeliveryStep, Failures, HandlerError, InFlightBatch, Membership};
use crate::event::batch::EventBatch;
use crate::event::handler::{DeliveryOutcome, commit_with_retry};
use crate::metrics;

impl Membership<'_> {
    /// Runs concurrent handler calls and applies their outcomes. Returns an error for a transient failure.
    pub(super) async fn run_handlers(
        &self,
        parts: Vec<InFlightBatch>,
        attempt: u32,
        failures: &mut Failures,
    ) -> Result<DeliveryStep, HandlerError> {
        let mut calls = JoinSet::new();
        for part in parts {
            let batch = self.batch_of(&part, attempt);
            let (handler, limit) = (self.config.handler.clone(), self.config.limit);
            calls.spawn(async move {
                let commits = part.commits.clone();
                (handler.deliver(batch, commits, limit).await, part)
            });
        }
        let (mut step, mut transient) = (DeliveryStep::Done, None);
        while let Some(joined) = calls.join_next().await {
            let Ok((delivered, part)) = joined else {
                // A panic of the consumer, not of the handler.
                step = DeliveryStep::Stop;
                continue;
            };
            match delivered {
                DeliveryOutcome::Done => self.count(&part),
                DeliveryOutcome::Failed(error) if error.is_transient() => transient = Some(error),
                DeliveryOutcome::Failed(error) => {
                    tracing::debug!(group = %self.config.group, events = part.events.len(), "handler failed: {error}");
                    if let [event] = &*part.events {
                        failures.0.insert(event.id, error);
                    }
                    step = step.and(DeliveryStep::Failed);
                }
                DeliveryOutcome::Stale(partitions) => step = step.and(self.stale(&part.commits, &partitions)),
                DeliveryOutcome::Unknown(why) => step = step.and(self.mark_uncertain(&part, &why)),
            }
        }
        match (step, transient) {
            (DeliveryStep::Done | DeliveryStep::Failed, Some(transient)) => Err(transient),
            (step, _) => Ok(step),
        }
    }

    fn batch_of(&self, part: &InFlightBatch, attempt: u32) -> EventBatch {
        EventBatch {
            group: self.config.group.clone(),
            events: part.events.clone(),
            tokens: part.commits.iter().map(|commit| (commit.partition, commit.token)).collect(),
            attempt,
        }
    }

    fn count(&self, part: &InFlightBatch) {
        self.transient.store(0, Ordering::Relaxed);
        self.assigned().committed(&part.commits);
        metrics::events_processed(&self.config.group, &part.events, self.ctx.runtime.wall_ms());
    }

    fn stale(&self, commits: &[PartitionCommit], partitions: &[u32]) -> DeliveryStep {
        let group = &self.config.group;
        tracing::info!(%group, ?partitions, "commit rejected, partitions have another holder");
        metrics::commits_rejected(group, partitions.len());
        let stale = commits.iter().filter(|commit| partitions.contains(&commit.partition));
        let mut assigned = self.assigned();
        // Other commits of the same transaction were rejected, too; they are repeated without this partition.
        stale.for_each(|commit| assigned.drop_stale(commit.partition, commit.token));
        drop(assigned);
        // The next read of the group shows whether the partition is assigned under another token.
        self.release_needed.notify_one();
        DeliveryStep::Again
    }

    fn mark_uncertain(&self, part: &InFlightBatch, why: &str) -> DeliveryStep {
        let partitions: Vec<_> = part.commits.iter().map(|commit| (commit.partition, commit.token)).collect();
        tracing::warn!(group = %self.config.group, ?partitions, "commit outcome unknown, taking the partitions again: {why}");
        self.assigned().mark_uncertain(&partitions);
        DeliveryStep::Again
    }

    /// Commits without a handler call.
    pub(super) async fn commit_offsets(&self, commits: Vec<PartitionCommit>) -> DeliveryStep {
        match commit_with_retry(self.ctx, &commits).await {
            DeliveryOutcome::Stale(partitions) => {
                // The other commits were accepted.
                let counts: Vec<_> = commits
                    .iter()
                    .filter(|commit| !partitions.contains(&commit.partition))
                    .cloned()
                    .collect();
                self.assigned().committed(&counts);
                self.stale(&commits, &partitions)
            }
            DeliveryOutcome::Unknown(why) => {
                self.mark_uncertain(&InFlightBatch { events: Arc::new([]), commits }, &why)
            }
            DeliveryOutcome::Done | DeliveryOutcome::Failed(_) => {
                self.assigned().committed(&commits);
                DeliveryStep::Done
            }
        }
    }
}
