//! Comparing what we know that we hold with what the store says.
//!
//! Two tasks, each of which asks the store what our session holds. [`dispel`] runs once after a call whose outcome nobody knows,
//! and gives back what the store holds for us and nobody here knows of. [`recall`] runs while there are workers, and tells those
//! whose claim the store has no longer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::TaskId;
use tenure_core::{Name, Token};

use super::holdings::Stop;
use super::hub::Hub;

/// How often workers compare, without a hint that there is something to be found.
const RECALL_EVERY: Duration = Duration::from_secs(5);

/// Finds claims whose answer was lost.
///
/// What the store says first may contain what another call is just bringing home, so it is compared only when every call that
/// was under way then is over. What was settled meanwhile is not ours to give back any more: the token says so.
pub(crate) async fn dispel(hub: Arc<Hub>) {
    let limit = hub.call_limit();
    let mut wait = Duration::from_secs(1);
    let (held, namespaces) = loop {
        tokio::select! {
            () = hub.pause(wait) => {}
            () = hub.closed() => return,
        }
        // Doubt that comes up from here on is another's.
        let namespaces = hub.take_doubts();
        let Some(session) = hub.session() else { return };
        match hub.bounded(hub.store.held(&session)).await {
            Ok(held) => break (held, namespaces),
            Err(error) => {
                tracing::debug!("can not see what we hold: {error}");
                if hub.doubt_again(namespaces) {
                    // Another one looks after it.
                    return;
                }
            }
        }
        wait = (wait * 2).min(limit);
    };
    give_back_strays(&hub, held, &namespaces).await;
    // What was given up may be carried out late, by a server that stood still: once more.
    let Some(session) = hub.session() else { return };
    match hub.bounded(hub.store.held(&session)).await {
        Ok(held) if held.is_empty() => {}
        Ok(held) => give_back_strays(&hub, held, &namespaces).await,
        Err(error) => {
            tracing::debug!("can not see what we hold: {error}");
            namespaces.iter().for_each(|namespace| hub.doubt(namespace));
        }
    }
}

/// Gives back what of this nobody here knows of, once every call that was under way is over.
async fn give_back_strays(hub: &Arc<Hub>, held: Vec<(TaskId, Token)>, namespaces: &BTreeSet<Name>) {
    tokio::select! {
        () = hub.pause(hub.call_limit() * 2) => {}
        () = hub.closed() => return,
    }
    let lost: Vec<_> = held.into_iter().filter(|(task, token)| !hub.holdings.knows(*task, *token)).collect();
    if !lost.is_empty() {
        tracing::info!(tasks = lost.len(), "giving back claims whose answers were lost");
    }
    for (task, token) in lost {
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
            Ok(held) => held.into_iter().collect::<std::collections::HashSet<_>>(),
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
