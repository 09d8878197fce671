//! One call of the handler, and one word to the store: what comes of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::port::ShareCommit;
use tokio::task::JoinSet;

use super::{Failures, HandlerError, Lane, Stay, Step};
use crate::events::batch::Batch;
use crate::events::handler::{Delivered, say};
use crate::metrics;

impl Stay<'_> {
    /// Gives lanes to the handler, beside one another, and takes in what comes of it. An error passes.
    pub(super) async fn give(
        &self,
        lanes: Vec<Lane>,
        attempt: u32,
        failures: &mut Failures,
    ) -> Result<Step, HandlerError> {
        let mut under_way = JoinSet::new();
        for lane in lanes {
            let batch = self.batch_of(&lane, attempt);
            let (handler, limit) = (self.orders.handler.clone(), self.orders.limit);
            under_way.spawn(async move {
                let commits = lane.commits.clone();
                (handler.deliver(batch, commits, limit).await, lane)
            });
        }
        let (mut step, mut passing) = (Step::Done, None);
        while let Some(joined) = under_way.join_next().await {
            let Ok((delivered, lane)) = joined else {
                // A panic of our own, not of the handler's.
                step = Step::Over;
                continue;
            };
            match delivered {
                Delivered::Done => self.count(&lane),
                Delivered::Failed(error) if error.is_passing() => passing = Some(error),
                Delivered::Failed(error) => {
                    tracing::debug!(group = %self.orders.group, events = lane.events.len(), "handler failed: {error}");
                    if let [event] = &*lane.events {
                        failures.0.insert(event.id, error);
                    }
                    step = step.and(Step::Failed);
                }
                Delivered::Stale(slots) => step = step.and(self.stale(&lane.commits, &slots)),
                Delivered::Doubt(why) => step = step.and(self.doubt(&lane, &why)),
            }
        }
        match (step, passing) {
            (Step::Done | Step::Failed, Some(passing)) => Err(passing),
            (step, _) => Ok(step),
        }
    }

    fn batch_of(&self, lane: &Lane, attempt: u32) -> Batch {
        Batch {
            group: self.orders.group.clone(),
            events: lane.events.clone(),
            tokens: lane.commits.iter().map(|commit| (commit.slot, commit.token)).collect(),
            attempt,
        }
    }

    fn count(&self, lane: &Lane) {
        self.passing.store(0, Ordering::Relaxed);
        self.shares().committed(&lane.commits);
        metrics::consumed(&self.orders.group, &lane.events, self.hub.runtime.wall_ms());
    }

    fn stale(&self, commits: &[ShareCommit], slots: &[u32]) -> Step {
        let group = &self.orders.group;
        tracing::info!(%group, ?slots, "refused as stale: these slots are not ours any more");
        metrics::stale(group, slots.len());
        let stale = commits.iter().filter(|commit| slots.contains(&commit.slot));
        let mut shares = self.shares();
        // What was said in one breath with it was refused, too, and is said again without it.
        stale.for_each(|commit| shares.drop_stale(commit.slot, commit.token));
        drop(shares);
        // Whether it is ours under another token is seen by looking.
        self.leaving.notify_one();
        Step::Again
    }

    fn doubt(&self, lane: &Lane, why: &str) -> Step {
        let slots: Vec<_> = lane.commits.iter().map(|commit| (commit.slot, commit.token)).collect();
        tracing::warn!(group = %self.orders.group, ?slots, "not known whether it counts, taking the slots anew: {why}");
        self.shares().doubt(&slots);
        Step::Again
    }

    /// Says something that no handler has to do with.
    pub(super) async fn tell_store(&self, commits: Vec<ShareCommit>) -> Step {
        match say(self.hub, &commits).await {
            Delivered::Stale(slots) => {
                // The others count.
                let counts: Vec<_> =
                    commits.iter().filter(|commit| !slots.contains(&commit.slot)).cloned().collect();
                self.shares().committed(&counts);
                self.stale(&commits, &slots)
            }
            Delivered::Doubt(why) => self.doubt(&Lane { events: Arc::new([]), commits }, &why),
            Delivered::Done | Delivered::Failed(_) => {
                self.shares().committed(&commits);
                Step::Done
            }
        }
    }
}
