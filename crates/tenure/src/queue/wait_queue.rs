//! The waiting claims of one queue and route, in order of arrival.
//!
//! One poll is one store call with the requests of all waiting claims, in order. A claim that receives tasks
//! leaves the wait queue; the others stay until their time is over. The first claim is polled for at once;
//! claims that arrive while polls are running share the next one. On the broker route only one poll runs at a
//! time: claims of other processes wait in the same queue ([`ClaimOrigin::Remote`]), strictly in order of
//! arrival.
//!
//! **Waiting.** When a poll finds nothing, the session registers as a waiter
//! ([`TaskStore::register_queue_waiter`]) and *then* polls once more: that poll sees tasks submitted before the
//! registration, and later submissions send a notification. A submission whose transaction is open during the
//! registration may be neither found nor notified. So the poller polls again after 10 ms and 100 ms, and then
//! about every second. The poll every second registers again, because a notification removes the registration
//! and may itself be lost. After a notification, the poller polls at once and registers again only if it finds
//! nothing.
//!
//! **Store failure.** All claims of the batch get the error. The failed call may still have claimed tasks;
//! reconciliation finds and releases them later ([`ClientContext::mark_uncertain`]).
//!
//! [`TaskStore::register_queue_waiter`]: tenure_core::port::TaskStore::register_queue_waiter

mod poll;
mod poller;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::BootInstant;
use tenure_core::port::{CLAIM_MAX, ClaimRefusal, ClaimRequest, ErrorKind, QueueKey, StoreError};
use tokio::sync::{Notify, oneshot};

use self::poller::ClaimPoller;
use super::broker;
use super::context::ClientContext;
use super::held_claims::ClaimedBatch;

/// The route of a claim, and the authority it uses at the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClaimRoute {
    Direct,
    Broker,
    Fallback,
}

/// Result for a waiting claim.
pub(crate) enum WaitingClaimOutcome {
    Tasks(ClaimedBatch),
    Refused(ClaimRefusal),
    Failed(StoreError),
}

/// Origin of a waiting claim.
pub(crate) enum ClaimOrigin {
    /// A caller in this process.
    Local(oneshot::Sender<WaitingClaimOutcome>),
    /// A caller at the other end of a broker connection.
    Remote(broker::RemoteClaim),
}

impl ClaimOrigin {
    fn is_abandoned(&self) -> bool {
        match self {
            ClaimOrigin::Local(sender) => sender.is_closed(),
            ClaimOrigin::Remote(remote) => remote.is_abandoned(),
        }
    }

    fn reply(self, outcome: WaitingClaimOutcome) {
        match self {
            // Tasks for a caller that has left return to their queue when dropped.
            ClaimOrigin::Local(sender) => drop(sender.send(outcome)),
            ClaimOrigin::Remote(remote) => remote.reply(outcome),
        }
    }
}

struct WaitingClaim {
    request: ClaimRequest,
    until: BootInstant,
    origin: ClaimOrigin,
    /// Whether a poll has included this claim.
    polled: bool,
    /// Refusal of the last poll, if it may pass while the claim waits.
    refused: Option<ClaimRefusal>,
}

/// The waiting claims of one queue on one route.
pub(crate) struct WaitQueue {
    key: QueueKey,
    route: ClaimRoute,
    state: Mutex<State>,
    wakeup: Notify,
    /// Signals that a poll has ended.
    polled: Notify,
}

#[derive(Default)]
struct State {
    claims: BTreeMap<u64, WaitingClaim>,
    next: u64,
    /// Running polls, and the number of the next one.
    polls: BTreeSet<u64>,
    next_poll: u64,
    /// Whether a poller task runs.
    has_poller: bool,
}

impl WaitQueue {
    pub(crate) fn new(key: QueueKey, route: ClaimRoute) -> WaitQueue {
        WaitQueue { key, route, state: Mutex::default(), wakeup: Notify::new(), polled: Notify::new() }
    }

    /// Adds a claim and waits for its result. If the future is dropped, the claim leaves the wait queue.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        ctx: &Arc<ClientContext>,
        request: ClaimRequest,
        until: BootInstant,
    ) -> WaitingClaimOutcome {
        let (sender, receiver) = oneshot::channel();
        let guard = WaitingClaimGuard(self);
        self.join(ctx, request, until, ClaimOrigin::Local(sender));
        let outcome = receiver.await;
        std::mem::forget(guard);
        outcome.unwrap_or_else(|_| {
            WaitingClaimOutcome::Failed(StoreError::new(ErrorKind::Other, "the claim was abandoned; retry"))
        })
    }

    /// Adds a claim.
    pub(crate) fn join(
        self: &Arc<Self>,
        ctx: &Arc<ClientContext>,
        request: ClaimRequest,
        until: BootInstant,
        origin: ClaimOrigin,
    ) {
        let request = ClaimRequest { limit: request.limit.min(CLAIM_MAX), ..request };
        let mut state = self.locked();
        let number = state.next;
        state.next += 1;
        state.claims.insert(number, WaitingClaim { request, until, origin, polled: false, refused: None });
        if std::mem::replace(&mut state.has_poller, true) {
            drop(state);
            self.wakeup.notify_one();
        } else {
            drop(state);
            ctx.handle.spawn(ClaimPoller::new(self.clone(), ctx.clone()).run());
        }
    }

    /// Waits until every poll that runs now has ended. The release of tasks that a poll found for callers that have
    /// left has started by then.
    pub(crate) async fn polls_finished(&self) {
        let next = self.locked().next_poll;
        loop {
            let polled = self.polled.notified();
            tokio::pin!(polled);
            polled.as_mut().enable();
            if self.locked().polls.first().is_none_or(|first| *first >= next) {
                return;
            }
            polled.await;
        }
    }

    /// Signals that a caller has left: the wait queue may be empty.
    pub(crate) fn caller_left(&self) {
        self.wakeup.notify_one();
    }

    pub(crate) fn is_idle(&self) -> bool {
        !self.locked().has_poller
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Signals the wait queue when the caller of a claim is dropped.
struct WaitingClaimGuard<'a>(&'a WaitQueue);

impl Drop for WaitingClaimGuard<'_> {
    fn drop(&mut self) {
        self.0.caller_left();
    }
}

/// Marks a poll as running until its results are delivered.
struct PollGuard {
    wait_queue: Arc<WaitQueue>,
    number: u64,
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        self.wait_queue.locked().polls.remove(&self.number);
        self.wait_queue.polled.notify_waiters();
    }
}

fn refuse(claim: WaitingClaim, refusal: ClaimRefusal) {
    claim.origin.reply(WaitingClaimOutcome::Refused(refusal));
}
