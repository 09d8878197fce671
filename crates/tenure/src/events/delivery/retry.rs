//! What is aside, when it is due: tried again, and when it is done those of its key behind it, in order.

use std::sync::Arc;

use tenure_core::Token;
use tenure_core::port::{Aside, AsideFilter, AsideView, EventId, ShareCommit, StoreError};

use super::{Failures, Lane, Stay, Step, due_of};
use crate::events::handler::TROUBLE;
use crate::events::waits::Waiting;
use crate::metrics;

/// The most events of a key that follow one another in one job.
const CHAIN_MAX: usize = 500;

/// What became of a key that was aside.
enum Followed {
    /// All of it is done.
    Through,
    /// This one is its first now, and waits.
    Waits(Waiting),
    /// It is to be looked at.
    Unknown,
}

impl Stay<'_> {
    /// Tries the first of a key again, and when it is done those behind it, in order.
    pub(super) async fn retry(&self, slot: u32, token: Token, waiting: Waiting) {
        let next = match self.follow(slot, token, &waiting).await {
            // Nobody else sets anything aside in this slot, so what we know is all that there is to know.
            Ok(Followed::Through) => return self.shares().follows(slot, token, &waiting, None),
            Ok(Followed::Waits(next)) => return self.shares().follows(slot, token, &waiting, Some(next)),
            Ok(Followed::Unknown) => Ok(()),
            Err(error) => Err(error),
        };
        let version = self.shares().version(slot);
        let look = async {
            next?;
            self.hub.bounded(self.hub.store.aside_keys(&self.orders.group, slot)).await
        };
        let aside = look.await;
        let now = self.hub.runtime.now();
        match aside {
            Ok(aside) => self.shares().set_aside(slot, token, version, &aside, now),
            Err(error) => {
                tracing::warn!(group = %self.orders.group, slot, "can not see what is aside: {error}");
                self.shares().put_off(slot, waiting.event, now + self.hub.jittered(TROUBLE.1));
            }
        }
    }

    async fn follow(&self, slot: u32, token: Token, waiting: &Waiting) -> Result<Followed, StoreError> {
        let (chain, whole) = self.chain(slot, waiting).await?;
        for view in chain {
            if view.dead || self.is_draining() || self.shares().ours(slot, token).is_none() {
                return Ok(Followed::Unknown);
            }
            let mut failures = Failures::default();
            let settled =
                |how| ShareCommit { settled: vec![(view.event.id, how)], ..self.commit(slot, token) };
            let lane = Lane { events: Arc::new([view.event.clone()]), commits: vec![settled(Aside::Done)] };
            let error = match self.give(vec![lane], view.attempts.saturating_add(1), &mut failures).await {
                Ok(Step::Done) => continue,
                Ok(_) => failures.0.remove(&view.event.id),
                // Others do not wait for it.
                Err(passing) => Some(passing),
            };
            let Some(error) = error else { return Ok(Followed::Unknown) };
            let how = self.verdict(view.attempts, &error);
            let (group, event) = (&self.orders.group, view.event.id);
            let dead = matches!(how, Aside::Dead { .. });
            tracing::info!(%group, %event, dead, "event failed again: {error}");
            metrics::failed(group, dead);
            let due = due_of(&how, self.hub.runtime.now());
            return Ok(match self.tell_store(vec![settled(how)]).await {
                Step::Done => Followed::Waits(Waiting { key: waiting.key.clone(), event, due }),
                _ => Followed::Unknown,
            });
        }
        Ok(if whole { Followed::Through } else { Followed::Unknown })
    }

    /// The event that waits, and those of its key behind it, in order; at most a batch. Whether that is all there is of the key.
    async fn chain(&self, slot: u32, waiting: &Waiting) -> Result<(Vec<AsideView>, bool), StoreError> {
        let most = if waiting.key.is_some() { self.orders.batch.min(CHAIN_MAX) } else { 1 };
        let filter = AsideFilter {
            group: (*self.orders.group).clone(),
            dead: false,
            slot: Some(slot),
            // Those of one key come in the order of their positions, all others in that of their numbers.
            key: waiting.key.clone(),
            after: if waiting.key.is_some() {
                None
            } else {
                Some(EventId(waiting.event.0.saturating_sub(1)))
            },
            limit: u32::try_from(most).unwrap_or(1),
        };
        let mut views = self.hub.bounded(self.hub.store.aside(&filter)).await?;
        // A list may end before its limit, where it grows too long: what is behind those is seen by looking.
        let behind = views.last().map_or(0, |last| last.behind);
        let whole = waiting.key.is_none() || views.len() < most && behind == 0;
        // Dropped meanwhile, it is not there, or another one is.
        views.retain(|view| waiting.key.is_some() || view.event.id == waiting.event);
        Ok((views, whole))
    }
}
