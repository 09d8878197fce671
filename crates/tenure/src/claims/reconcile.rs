//! Comparing what we know that we hold with what the store says.
//!
//! Two tasks, each of which asks the store what our session holds. [`dispel`] runs from the first call whose outcome nobody knows
//! on, and gives back what the store holds for us and nobody here knows of. [`recall`] runs while there are workers, and tells
//! those whose claim the store has no longer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::TaskId;
use tenure_core::{Moment, Token};

use super::holdings::Stop;
use super::hub::Hub;

/// How often workers compare, without a hint that there is something to be found.
const RECALL_EVERY: Duration = Duration::from_secs(5);

/// How soon after a call whose outcome nobody knows we look for what came of it; then less and less often, down to the second.
const DOUBT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Finds claims whose answer was lost, from the first doubt on until the process closes.
///
/// It does not end with a look that finds nothing: a call that we gave up may go on in the store for as long as its disk or its
/// standby keeps it waiting, and be committed then. What the store says may contain what another call is just bringing home, so a
/// claim is given back only if it is unknown here in two looks between which every call that was under way at the first is
/// over. Should it come home even later, it is not taken ([`Holdings::forswear`](super::holdings::Holdings::forswear)). What was
/// settled meanwhile is not ours to give back any more: the token says so.
pub(crate) async fn dispel(hub: Arc<Hub>) {
    let mut doubts = hub.doubts.subscribe();
    let patience = hub.call_limit() * 2;
    // Since when, on which session.
    let (mut unknown, mut of) = (HashMap::<(TaskId, Token), Moment>::new(), None);
    let mut wait = DOUBT.0;
    loop {
        let now = hub.runtime.now();
        let mut next = match unknown.values().min() {
            Some(first) => (*first + patience).max(now + DOUBT.0),
            None => now + hub.jittered(wait),
        };
        loop {
            tokio::select! {
                () = hub.runtime.sleep_until(next) => break,
                _ = doubts.changed() => {
                    wait = DOUBT.0;
                    next = next.min(hub.runtime.now() + wait);
                }
                () = hub.closed() => return,
            }
        }
        wait = (wait * 2).min(DOUBT.1);
        let session = hub.session();
        if of != session {
            // What hung on another session goes back with it.
            unknown.clear();
            of = session;
        }
        let Some(session) = &of else { continue };
        let held = match hub.bounded(hub.store.held(session)).await {
            Ok(held) => held.into_iter().filter(|(task, token)| !hub.holdings.knows(*task, *token)),
            Err(error) => {
                tracing::debug!("can not see what we hold: {error}");
                continue;
            }
        };
        let now = hub.runtime.now();
        let seen = std::mem::take(&mut unknown);
        let found = held.map(|claim| (claim, seen.get(&claim).copied().unwrap_or(now)));
        let (lost, rest): (HashMap<_, _>, _) = found.partition(|(_, since)| now.since(*since) >= patience);
        unknown = rest;
        give_back(&hub, lost.into_keys());
    }
}

fn give_back(hub: &Arc<Hub>, lost: impl ExactSizeIterator<Item = (TaskId, Token)>) {
    if lost.len() > 0 {
        tracing::info!(tasks = lost.len(), "giving back claims whose answers were lost");
    }
    let namespaces = hub.doubts.borrow().clone();
    for (task, token) in lost {
        if !hub.holdings.forswear(task, token) {
            continue;
        }
        // A task of another namespace is not found there, and nothing happens.
        namespaces.iter().for_each(|namespace| hub.give_back(namespace, task, token));
    }
}

/// Tells workers of claims that were called off, until `hub` closes. The caller drops it when there are no more workers.
pub(crate) async fn recall(hub: Arc<Hub>) {
    let mut recalled = hub.shared.bells.recalled.subscribe();
    loop {
        let next = hub.runtime.now() + hub.jittered(RECALL_EVERY);
        tokio::select! {
            // The bell outlives its listeners.
            _ = recalled.changed() => {}
            () = hub.runtime.sleep_until(next) => {}
            () = hub.closed() => return,
        }
        let Some(session) = hub.session() else { continue };
        // Before asking: what is claimed meanwhile is not expected in the answer.
        let attended = hub.holdings.attended(&session);
        if attended.is_empty() {
            continue;
        }
        let held = match hub.bounded(hub.store.held(&session)).await {
            Ok(held) => held.into_iter().collect::<HashSet<_>>(),
            Err(error) => {
                tracing::debug!("can not see what we hold: {error}");
                continue;
            }
        };
        for (task, token) in attended.into_iter().filter(|claim| !held.contains(claim)) {
            hub.holdings.lose(task, token, Stop::CalledOff);
        }
    }
}
