//! Comparison of the claims that this process knows with those that the store reports for its session.
//!
//! Two tasks read the claims of the session from the store. [`reconcile_claims`] starts with the first call of
//! unknown outcome, and releases claims that no caller knows of. [`watch_cancelled`] runs while the process has
//! workers, and tells handlers whose claim has ended in the store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_core::port::TaskId;
use tenure_core::{BootInstant, Token};

use super::context::ClientContext;
use super::held_claims::ClaimLossReason;

/// Interval of the comparison for workers without a notification.
const COMPARE_INTERVAL: Duration = Duration::from_secs(5);

/// First and longest delay between searches after a call of unknown outcome.
const SEARCH_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Releases claims whose response was lost. Runs from the first call of unknown outcome until the process
/// closes.
///
/// One poll without a finding does not end it: an abandoned call may continue in the store for as long as a
/// disk or a standby delays it, and commit later. The store may also report claims whose response is still in
/// transit. So a claim is released only if it is unknown in two polls, and every call that was running at the
/// first poll has ended before the second. If its response arrives even later, the claim is rejected
/// ([`HeldClaims::reject_late`](super::held_claims::HeldClaims::reject_late)). The token protects claims that
/// were settled meanwhile.
pub(crate) async fn reconcile_claims(ctx: Arc<ClientContext>) {
    let mut uncertain_namespaces = ctx.uncertain_namespaces.subscribe();
    let settle_time = ctx.call_limit() * 2;
    // First seen at, and on which session.
    let (mut unknown, mut searched_session) = (HashMap::<(TaskId, Token), BootInstant>::new(), None);
    let mut wait = SEARCH_BACKOFF.0;
    loop {
        let now = ctx.runtime.now();
        let mut next = match unknown.values().min() {
            Some(first) => (*first + settle_time).max(now + SEARCH_BACKOFF.0),
            None => now + ctx.jittered(wait),
        };
        loop {
            tokio::select! {
                () = ctx.runtime.sleep_until(next) => break,
                _ = uncertain_namespaces.changed() => {
                    wait = SEARCH_BACKOFF.0;
                    next = next.min(ctx.runtime.now() + wait);
                }
                () = ctx.closed() => return,
            }
        }
        wait = (wait * 2).min(SEARCH_BACKOFF.1);
        let session = ctx.session();
        if searched_session != session {
            // Claims of another session end with that session.
            unknown.clear();
            searched_session = session;
        }
        let Some(session) = &searched_session else { continue };
        let held = match ctx.bounded(ctx.store.held_claims(session)).await {
            Ok(held) => held.into_iter().filter(|(task, token)| !ctx.held_claims.knows(*task, *token)),
            Err(error) => {
                tracing::debug!("reading held claims failed: {error}");
                continue;
            }
        };
        let now = ctx.runtime.now();
        let seen = std::mem::take(&mut unknown);
        let found = held.map(|claim| (claim, seen.get(&claim).copied().unwrap_or(now)));
        let (lost, rest): (HashMap<_, _>, _) = found.partition(|(_, since)| now.since(*since) >= settle_time);
        unknown = rest;
        release_unknown(&ctx, lost.into_keys());
    }
}

fn release_unknown(ctx: &Arc<ClientContext>, lost: impl ExactSizeIterator<Item = (TaskId, Token)>) {
    if lost.len() > 0 {
        tracing::info!(tasks = lost.len(), "releasing claims whose response was lost");
    }
    let namespaces = ctx.uncertain_namespaces.borrow().clone();
    for (task, token) in lost {
        if !ctx.held_claims.reject_late(task, token) {
            continue;
        }
        // The namespace of the claim is unknown, so try all. A release in the wrong namespace has no effect.
        namespaces.iter().for_each(|namespace| ctx.release_task(namespace, task, token));
    }
}

/// Tells handlers of cancelled claims, until the session closes. The caller drops this future when no workers
/// are left.
pub(crate) async fn watch_cancelled(ctx: Arc<ClientContext>) {
    let mut cancelled = ctx.shared.notifier.claims_cancelled.subscribe();
    loop {
        let next = ctx.runtime.now() + ctx.jittered(COMPARE_INTERVAL);
        tokio::select! {
            // The channel outlives its subscribers.
            _ = cancelled.changed() => {}
            () = ctx.runtime.sleep_until(next) => {}
            () = ctx.closed() => return,
        }
        let Some(session) = ctx.session() else { continue };
        // Read before the store call: the response does not include claims made meanwhile.
        let known = ctx.held_claims.with_handler(&session);
        if known.is_empty() {
            continue;
        }
        let held = match ctx.bounded(ctx.store.held_claims(&session)).await {
            Ok(held) => held.into_iter().collect::<HashSet<_>>(),
            Err(error) => {
                tracing::debug!("reading held claims failed: {error}");
                continue;
            }
        };
        for (task, token) in known.into_iter().filter(|claim| !held.contains(claim)) {
            ctx.held_claims.lose(task, token, ClaimLossReason::Cancelled);
        }
    }
}
