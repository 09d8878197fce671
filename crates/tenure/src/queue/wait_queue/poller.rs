//! The task that polls for a wait queue: when it polls, when it waits, and what the waiting claims receive.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tenure_core::BootInstant;
use tenure_core::port::{
    CLAIM_MAX, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimRefusal, ClaimRequest, ErrorKind,
    StoreError,
};
use tokio::sync::watch;

use super::poll::{PollResult, limited_requests, poll};
use super::{ClaimRoute, PollGuard, WaitQueue, WaitingClaim, WaitingClaimOutcome, refuse};
use crate::queue::batcher::PARALLEL_BATCH_MIN;
use crate::queue::context::ClientContext;
use crate::queue::held_claims::ClaimedBatch;
use crate::queue::notifier::NotifyChannel;

/// Maximum number of concurrent polls of one queue where order is approximate.
const CONCURRENT_POLLS: usize = 2;

/// Maximum number of claims in one poll.
const CLAIMS_PER_POLL: usize = CLAIM_MAX as usize;

/// Delays between polls that found nothing, counted from the last poll. The last one repeats, with jitter.
const POLL_BACKOFF: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];

/// The poll back-off.
struct PollBackoff {
    /// Whether a waiter is registered in the store and a poll followed.
    registered: bool,
    /// Number of polls since.
    attempts: usize,
    /// Time of the next poll.
    next: BootInstant,
    /// A notification arrived: the next poll need not register first.
    notified: bool,
}

impl PollBackoff {
    /// No back-off: poll now.
    fn none(notified: bool) -> PollBackoff {
        PollBackoff { registered: false, attempts: 0, next: BootInstant::ZERO, notified }
    }
}

/// Polls for a wait queue as long as claims wait in it.
pub(super) struct ClaimPoller {
    wait_queue: Arc<WaitQueue>,
    ctx: Arc<ClientContext>,
    channel: watch::Receiver<()>,
    _channel: Arc<NotifyChannel>,
    backoff: PollBackoff,
    polls: FuturesUnordered<BoxFuture<'static, (PollResult, PollGuard)>>,
}

impl ClaimPoller {
    pub(super) fn new(wait_queue: Arc<WaitQueue>, ctx: Arc<ClientContext>) -> ClaimPoller {
        let channel = ctx.shared.notifier.queue(&wait_queue.key);
        let backoff = PollBackoff::none(false);
        ClaimPoller {
            channel: channel.subscribe(),
            _channel: channel,
            wait_queue,
            ctx,
            backoff,
            polls: FuturesUnordered::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut broker_term = self.ctx.broker_term.subscribe();
        loop {
            if self.wait_queue.route == ClaimRoute::Broker && self.ctx.broker_term().is_none() {
                self.refuse_all(&ClaimRefusal::NotLeader);
            }
            // Let callers that were woken together add their claims first.
            tokio::task::yield_now().await;
            self.remove_expired();
            self.poll_if_due();
            if self.polls.is_empty() && self.leave_if_empty() {
                return;
            }
            let due = self.due();
            let (ctx, wait_queue) = (self.ctx.clone(), self.wait_queue.clone());
            tokio::select! {
                biased;
                Some((polled, _poll_guard)) = self.polls.next() => self.finish_poll(polled),
                () = wait_queue.wakeup.notified() => {}
                // The channel outlives its subscribers.
                _ = self.channel.changed() => self.notified(),
                _ = broker_term.changed() => {}
                () = ctx.runtime.sleep_until(due) => {}
                () = ctx.closed() => return self.close(),
            }
        }
    }

    fn max_polls(&self) -> usize {
        if self.wait_queue.route == ClaimRoute::Broker { 1 } else { CONCURRENT_POLLS }
    }

    /// Removes claims whose caller left and claims whose time is over.
    fn remove_expired(&self) {
        let now = self.ctx.runtime.now();
        let expired: Vec<WaitingClaim> = {
            let claims = &mut self.wait_queue.locked().claims;
            claims.retain(|_, claim| !claim.origin.is_abandoned());
            // A claim gets one poll even without waiting time, but not with unlimited delay if the wait queue
            // is long.
            let extra_time = self.ctx.call_limit();
            let expired = |claim: &WaitingClaim| {
                now >= if claim.polled { claim.until } else { claim.until + extra_time }
            };
            let expired = claims.iter().filter(|(_, claim)| expired(claim));
            let expired: Vec<u64> = expired.map(|(number, _)| *number).collect();
            expired.iter().filter_map(|number| claims.remove(number)).collect()
        };
        expired.into_iter().for_each(|claim| self.expire(claim));
    }

    fn poll_if_due(&mut self) {
        let now = self.ctx.runtime.now();
        let (fresh, is_large) = {
            let state = self.wait_queue.locked();
            let fresh = state.claims.values().take(CLAIMS_PER_POLL).filter(|claim| !claim.polled);
            let (mut any, mut task_count) = (false, 0);
            for claim in fresh {
                any = true;
                task_count += claim.request.limit as usize;
            }
            (any, task_count >= PARALLEL_BATCH_MIN)
        };
        let at_once = if is_large { self.max_polls() } else { 1 };
        if (fresh && self.polls.len() < at_once) || (self.polls.is_empty() && self.backoff.next <= now) {
            // The last delay registers again: a notification removes the registration and may itself be lost.
            let notified = std::mem::take(&mut self.backoff.notified);
            let register = !fresh
                && !notified
                && (!self.backoff.registered || self.backoff.attempts >= POLL_BACKOFF.len() - 1);
            self.start_poll(register);
        }
    }

    fn start_poll(&mut self, register: bool) {
        let Some((claims, poll_guard)) = self.take_batch() else { return };
        let (ctx, key) = (self.ctx.clone(), self.wait_queue.key.clone());
        let broker_term = self.ctx.broker_term();
        let authority = match (self.wait_queue.route, &broker_term) {
            (ClaimRoute::Direct, _) => ClaimAuthority::Direct,
            (ClaimRoute::Fallback, _) => ClaimAuthority::Fallback,
            (ClaimRoute::Broker, Some(broker_term)) => {
                ClaimAuthority::Leader { session: broker_term.session.clone(), token: broker_term.token }
            }
            (ClaimRoute::Broker, None) => {
                claims.into_iter().for_each(|(_, claim)| refuse(claim, ClaimRefusal::NotLeader));
                return;
            }
        };
        let requests = limited_requests(claims.iter().map(|(_, claim)| &claim.request));
        let batch = ClaimBatchRequest { queue: key, authority, requests };
        let polled = poll(ctx, batch, claims, register, broker_term, self.wait_queue.route);
        self.polls.push(polled.map(|polled| (polled, poll_guard)).boxed());
    }

    /// Takes as many claims as fit into one call, in order. A large request leaves room for one task for each
    /// of the others: a poll serves as many claims as it can.
    ///
    /// Claims whose caller left are not included. So a caller that leaves and then lists the running polls
    /// knows every poll that may find tasks for it.
    fn take_batch(&self) -> Option<(Vec<(u64, WaitingClaim)>, PollGuard)> {
        let mut state = self.wait_queue.locked();
        let count = state.claims.len().min(CLAIMS_PER_POLL);
        let claims = (0..count).filter_map(|_| state.claims.pop_first());
        let claims: Vec<_> = claims.filter(|(_, claim)| !claim.origin.is_abandoned()).collect();
        if claims.is_empty() {
            return None;
        }
        let number = state.next_poll;
        state.next_poll += 1;
        state.polls.insert(number);
        Some((claims, PollGuard { wait_queue: self.wait_queue.clone(), number }))
    }

    /// Handles the result of a poll.
    fn finish_poll(&mut self, polled: PollResult) {
        let PollResult { claims, registered, began, result } = polled;
        let now = self.ctx.runtime.now();
        let mut next_in = None;
        let (mut waiting, namespace) = (Vec::new(), &self.wait_queue.key.namespace);
        match result {
            Ok(ClaimBatchResponse::Served { tasks, next_in: soon }) => {
                next_in = soon;
                let mut tasks = tasks.into_iter();
                for (number, mut claim) in claims {
                    let tasks =
                        ClaimedBatch::new(&self.ctx, namespace, tasks.next().unwrap_or_default(), began);
                    claim.refused = None;
                    if tasks.tasks().is_empty() {
                        waiting.push((number, claim));
                    } else {
                        claim.origin.reply(WaitingClaimOutcome::Tasks(tasks));
                    }
                }
            }
            Ok(ClaimBatchResponse::Refused(refusal)) => {
                for (number, mut claim) in claims {
                    match refusal_scope(&refusal, &claim.request) {
                        RefusalScope::Now => refuse(claim, refusal.clone()),
                        RefusalScope::Later => {
                            claim.refused = Some(refusal.clone());
                            waiting.push((number, claim));
                        }
                        // Refused because of another claim: this one was not considered.
                        RefusalScope::No => drop(self.wait_queue.locked().claims.insert(number, claim)),
                    }
                }
            }
            Err(error) => {
                claims
                    .into_iter()
                    .for_each(|(_, claim)| claim.origin.reply(WaitingClaimOutcome::Failed(error.clone())));
            }
        }
        self.keep_waiting(waiting, now);
        self.schedule_next(registered, next_in, now);
    }

    /// Keeps claims without tasks waiting if they have time left.
    fn keep_waiting(&self, waiting: Vec<(u64, WaitingClaim)>, now: BootInstant) {
        for (number, mut claim) in waiting {
            if claim.until > now {
                claim.polled = true;
                self.wait_queue.locked().claims.insert(number, claim);
            } else {
                self.expire(claim);
            }
        }
    }

    fn expire(&self, claim: WaitingClaim) {
        let nothing =
            ClaimedBatch::new(&self.ctx, &self.wait_queue.key.namespace, Vec::new(), BootInstant::ZERO);
        claim.origin.reply(match claim.refused {
            Some(refusal) => WaitingClaimOutcome::Refused(refusal),
            None => WaitingClaimOutcome::Tasks(nothing),
        });
    }

    /// Sets the time of the next poll.
    fn schedule_next(&mut self, registered: bool, next_in: Option<Duration>, now: BootInstant) {
        if registered && !self.channel.has_changed().unwrap_or(false) {
            self.backoff.attempts = if self.backoff.registered { self.backoff.attempts } else { 0 };
            self.backoff.registered = true;
        } else if !self.backoff.registered {
            // The store has no registration yet: poll again at once.
            self.backoff.next = now;
            return;
        }
        let delay = POLL_BACKOFF[self.backoff.attempts.min(POLL_BACKOFF.len() - 1)];
        let delay =
            if self.backoff.attempts + 1 < POLL_BACKOFF.len() { delay } else { self.ctx.jittered(delay) };
        self.backoff.attempts += 1;
        let soon = next_in.map(|soon| soon.max(Duration::from_millis(1)));
        self.backoff.next = now + soon.map_or(delay, |soon| soon.min(delay));
    }

    fn notified(&mut self) {
        self.backoff = PollBackoff::none(true);
    }

    fn refuse_all(&self, refusal: &ClaimRefusal) {
        let claims = std::mem::take(&mut self.wait_queue.locked().claims);
        claims.into_values().for_each(|claim| refuse(claim, refusal.clone()));
    }

    fn close(&self) {
        let claims = {
            let mut state = self.wait_queue.locked();
            state.has_poller = false;
            std::mem::take(&mut state.claims)
        };
        let closed = StoreError::new(ErrorKind::Unavailable, "the session is closed");
        claims
            .into_values()
            .for_each(|claim| claim.origin.reply(WaitingClaimOutcome::Failed(closed.clone())));
    }

    /// Marks the poller as ended if no claim waits, and returns whether it ended. Check and mark happen under one
    /// lock, so that the next claim either finds a running poller or starts one.
    fn leave_if_empty(&self) -> bool {
        let mut state = self.wait_queue.locked();
        let empty = state.claims.is_empty();
        state.has_poller = !empty;
        empty
    }

    /// The next time at which the poller must act without an event.
    fn due(&self) -> BootInstant {
        let state = self.wait_queue.locked();
        let first = state.claims.values().filter(|claim| claim.polled).map(|claim| claim.until).min();
        let poll = (self.polls.is_empty() && !state.claims.is_empty()).then_some(self.backoff.next);
        let far = self.ctx.runtime.now() + Duration::from_secs(3600);
        first.into_iter().chain(poll).chain([far]).min().unwrap_or(far)
    }
}

/// Which claims a refusal of a batch concerns.
enum RefusalScope {
    Now,
    /// The refusal may pass while the claim waits.
    Later,
    No,
}

fn refusal_scope(refusal: &ClaimRefusal, request: &ClaimRequest) -> RefusalScope {
    match refusal {
        ClaimRefusal::Mode(_) | ClaimRefusal::NotLeader => RefusalScope::Now,
        ClaimRefusal::Paused => RefusalScope::Later,
        ClaimRefusal::NotApproved(worker) if *worker == request.worker.name => RefusalScope::Now,
        ClaimRefusal::SessionEnded(session) if Some(session) == request.session.as_ref() => RefusalScope::Now,
        ClaimRefusal::NotApproved(_) | ClaimRefusal::SessionEnded(_) => RefusalScope::No,
    }
}
