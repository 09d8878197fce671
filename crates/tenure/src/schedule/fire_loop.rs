//! The fire loop of one term: reads due schedules, plans their ticks, fires them, and sleeps until the next one
//! is due.
//!
//! The next leader needs no state of this loop. Ticks are planned from the next tick that the *store* returns,
//! and the store accepts them only under the lease of this process and only if they are still next
//! ([`ScheduleStore::fire`](tenure_core::port::ScheduleStore::fire)), all in one transaction. So the lease may
//! be lost, a response may be late or missing, or this process may die at any point; the next read, here or in
//! another process, shows what happened, and no tick is lost or fired twice. A call of unknown outcome is never
//! repeated as it was: due schedules are read again.
//!
//! The store clock decides. The local clock only measures the sleep, from the response of the store, and never
//! longer than a heartbeat interval; that bounds how late a change of the store clock is noticed.
//!
//! One schedule must not delay the others. A schedule that the store rejects by name is postponed alone. A
//! schedule that makes the store reject a whole batch is found by halving. A schedule that causes timeouts is
//! found with smaller and smaller batches, and is then postponed as well. A schedule that cannot be postponed
//! either, for example because its row is locked, is tried last from then on.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::BootInstant;
use tenure_core::port::{DueSchedule, ErrorKind, FireOutcome, FireRequest, ScheduleKey, StoreError};
use tokio::sync::watch;

use super::fire_batch::{FireBatch, FireLimits};
use crate::outage::{OutageLog, log_failure, log_recovery};
use crate::queue::context::ClientContext;
use crate::{Leadership, metrics};

/// Minimum time between two reads when nothing is known to be due: there may be very many notifications.
const POLL_INTERVAL_MIN: Duration = Duration::from_millis(5);

/// Rejected calls per round before a pause.
const REJECTIONS_MAX: usize = 64;

/// Consecutive timeouts before a pause.
const TIMEOUTS_MAX: usize = 4;

/// Maximum number of schedules remembered to be tried last.
const DEPRIORITIZED_MAX: usize = 1_000;

/// Ticks pruned per call.
const PRUNE_MAX: u32 = 1_000;

/// Heartbeat intervals between two prunings.
const PRUNE_INTERVAL: u32 = 30;

/// The fire loop of one term.
pub(super) struct FireLoop<'a> {
    ctx: &'a ClientContext,
    leadership: &'a Leadership,
    stop: watch::Receiver<bool>,
    limits: FireLimits,
    /// Schedules for which firing and postponing both failed; they are tried last.
    deprioritized: HashSet<ScheduleKey>,
}

/// Result of one round of firing.
#[derive(Debug)]
struct FireRound {
    /// When the response of the store arrived, and its clock then.
    seen_at: BootInstant,
    store_ms: i64,
    /// When the next schedule is due, by that clock.
    next_ms: Option<i64>,
    /// Whether more schedules are due now.
    more: bool,
    /// Number of accepted firings, and of firings of changed schedules.
    fired_count: usize,
    stale: usize,
    /// Number of rejected calls.
    rejections: usize,
    /// Number of consecutive timeouts.
    timeouts: usize,
}

/// A fire batch that was sent, with its duration and result.
struct SentFireBatch {
    batch: FireBatch,
    took: Duration,
    result: Result<Vec<FireOutcome>, FireError>,
}

/// Why a round ended early.
enum FireError {
    /// The store has no lease of this process.
    NotLeading,
    Store(StoreError),
}

impl From<StoreError> for FireError {
    fn from(error: StoreError) -> FireError {
        FireError::Store(error)
    }
}

impl<'a> FireLoop<'a> {
    pub(super) fn new(
        ctx: &'a ClientContext,
        leadership: &'a Leadership,
        stop: watch::Receiver<bool>,
    ) -> FireLoop<'a> {
        FireLoop { ctx, leadership, stop, limits: FireLimits::new(), deprioritized: HashSet::new() }
    }

    /// Fires due ticks until the loop must end. Waits for a running call.
    pub(super) async fn fire(&mut self) {
        let mut changes = self.ctx.shared.notifier.schedules.subscribe();
        let mut outages = OutageLog::default();
        while !self.must_stop() {
            // Before the read: later notifications may concern changes that it does not see.
            changes.mark_unchanged();
            let began = self.ctx.runtime.now();
            let until = match self.round().await {
                Ok(round) => {
                    log_recovery!(outages, self.ctx.runtime.now(), "firing recovered");
                    self.until(&round)
                }
                Err(FireError::NotLeading) => {
                    tracing::debug!("firing skipped: the store has no lease of this process");
                    self.ctx.runtime.now() + self.ctx.jittered(self.ctx.timing.retry())
                }
                Err(FireError::Store(error)) => {
                    log_failure!(outages, self.ctx.runtime.now(), "firing failed: {error}");
                    metrics::store_error(&error);
                    self.ctx.runtime.now() + self.ctx.jittered(self.ctx.timing.retry())
                }
            };
            let runtime = &self.ctx.runtime;
            let notified = async {
                // A closed channel means that the process ends.
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                runtime.sleep_until(began + POLL_INTERVAL_MIN).await;
            };
            tokio::select! {
                biased;
                () = stop_requested(self.leadership, &mut self.stop) => return,
                () = runtime.sleep_until(until) => {}
                () = notified => {}
            }
        }
    }

    /// Returns when to read due schedules again.
    fn until(&self, round: &FireRound) -> BootInstant {
        let now = self.ctx.runtime.now();
        match round {
            FireRound { more: true, fired_count: 1.., .. } => now,
            // Schedules are due, but none fired: wait before retrying.
            FireRound { more: true, .. } => now + self.ctx.jittered(self.ctx.timing.retry()),
            FireRound { stale: 1.., .. } => now + POLL_INTERVAL_MIN,
            FireRound { next_ms: None, .. } => now + self.ctx.timing.heartbeat_interval(),
            FireRound { next_ms: Some(next_ms), store_ms, seen_at, .. } => {
                let wait_ms = u64::try_from(next_ms.saturating_sub(*store_ms)).unwrap_or(0);
                let wait = Duration::from_millis(wait_ms).min(self.ctx.timing.heartbeat_interval());
                if wait.is_zero() { now + POLL_INTERVAL_MIN } else { *seen_at + wait }
            }
        }
    }

    async fn round(&mut self) -> Result<FireRound, FireError> {
        let response = self.ctx.bounded(self.ctx.store.due_schedules(self.limits.read_limit())).await?;
        let seen_at = self.ctx.runtime.now();
        metrics::scheduler_polled(response.schedules.len());
        self.limits.adapt_read(&response);
        let mut round = FireRound {
            seen_at,
            store_ms: response.store_now_at_ms,
            next_ms: response.next_due_at_ms,
            more: response.has_more,
            fired_count: 0,
            stale: 0,
            rejections: 0,
            timeouts: 0,
        };
        let (last, due): (VecDeque<_>, VecDeque<_>) =
            response.schedules.into_iter().partition(|due| self.deprioritized.contains(&due.key));
        self.fire_all(due, last, &mut round).await?;
        Ok(round)
    }

    /// Fires all of these schedules, `last` one by one after the others. Several batches run concurrently, as
    /// many as suit the store, so that the next ones are planned while it works. If one fails, the running ones
    /// are still awaited, so that fired ticks are counted.
    async fn fire_all(
        &mut self,
        mut due: VecDeque<DueSchedule>,
        mut last: VecDeque<DueSchedule>,
        round: &mut FireRound,
    ) -> Result<(), FireError> {
        let concurrency = self.ctx.store.max_concurrent_fires().max(1);
        let (count, token, now_ms) = (due.len(), self.leadership.token(), round.store_ms);
        let mut under_way = FuturesUnordered::new();
        let mut result = Ok(());
        loop {
            while result.is_ok()
                && under_way.len() < concurrency
                && !self.must_stop()
                && round.rejections < REJECTIONS_MAX
            {
                let batch = match (due.is_empty(), last.is_empty()) {
                    (false, _) => self.limits.divide(count, concurrency).pack(&mut due, token, now_ms),
                    (true, false) if under_way.is_empty() => {
                        FireLimits::minimum().pack(&mut last, token, now_ms)
                    }
                    _ => break,
                };
                under_way.push(send(self.ctx, self.leadership, batch));
            }
            let Some(sent) = under_way.next().await else { break };
            let settled = self.settle(sent, round).await;
            result = result.and(settled);
        }
        // The next round is not delayed by postponed schedules.
        round.more |= round.rejections >= REJECTIONS_MAX;
        result
    }

    /// Handles the result of a batch, and sends the remaining parts of a failed one.
    async fn settle(&mut self, sent: SentFireBatch, round: &mut FireRound) -> Result<(), FireError> {
        let (mut next, mut batches) = (Some(sent), Vec::new());
        loop {
            let sent = match (next.take(), batches.pop()) {
                (Some(sent), _) => sent,
                (None, None) => return Ok(()),
                (None, Some(_)) if self.must_stop() || round.rejections >= REJECTIONS_MAX => return Ok(()),
                (None, Some(batch)) => send(self.ctx, self.leadership, batch).await,
            };
            self.adapt_limits(&sent, round);
            let SentFireBatch { batch, result, .. } = sent;
            let error = match result {
                Ok(fired) => {
                    round.timeouts = 0;
                    for due in &batch.due {
                        self.deprioritized.remove(&due.key);
                    }
                    let refused = count_results(batch, fired, round, self.store_now_ms(round));
                    if !refused.is_empty() {
                        batches.push(FireBatch::postpone(refused, round.store_ms));
                    }
                    continue;
                }
                Err(FireError::Store(error)) if is_about_the_batch(&error) || may_be_its_size(&error) => {
                    error
                }
                Err(broken) => return Err(broken),
            };
            round.timeouts += usize::from(may_be_its_size(&error));
            match batch.len() {
                2.. if batch.postpones || is_about_the_batch(&error) => {
                    let [first, second] = batch.halves();
                    batches.extend([second, first]);
                }
                1 if batch.postpones => self.deprioritize(&batch.due[0].key, &error),
                _ if may_be_its_size(&error) && batch.ticks() > 1 => {
                    self.limits.was_too_large(&batch);
                    return Err(error.into());
                }
                _ => {
                    let why = error.to_string();
                    let refused = batch.due.into_iter().map(|due| (due, why.clone())).collect();
                    batches.push(FireBatch::postpone(refused, round.store_ms));
                }
            }
            if round.timeouts >= TIMEOUTS_MAX {
                return Err(error.into());
            }
            round.rejections += 1;
        }
    }

    /// Marks a schedule to be tried last. It stays due, but does not delay the others.
    fn deprioritize(&mut self, key: &ScheduleKey, error: &StoreError) {
        tracing::error!(schedule = %key, "firing and postponing both failed: {error}");
        if self.deprioritized.len() >= DEPRIORITIZED_MAX {
            self.deprioritized.clear();
        }
        self.deprioritized.insert(key.clone());
    }

    /// Adapts the limits and the next due time to an accepted call.
    fn adapt_limits(&mut self, SentFireBatch { batch, took, result }: &SentFireBatch, round: &mut FireRound) {
        if result.is_err() {
            return;
        }
        if !batch.postpones {
            self.limits.arrived(batch, *took, self.ctx.timing.heartbeat_interval());
        }
        for due_ms in batch.firings.iter().filter_map(|firing| firing.due_at_ms) {
            round.next_ms = Some(round.next_ms.map_or(due_ms, |next| next.min(due_ms)));
            round.more |= due_ms <= round.store_ms;
        }
    }

    /// The estimated store clock now.
    fn store_now_ms(&self, round: &FireRound) -> i64 {
        let passed = self.ctx.runtime.now().since(round.seen_at).as_millis();
        round.store_ms.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
    }

    /// Whether no new call may start.
    fn must_stop(&self) -> bool {
        *self.stop.borrow() || self.leadership.has_leader_request() || !self.leadership.is_leader()
    }
}

/// Sends one batch.
async fn send(ctx: &ClientContext, leadership: &Leadership, mut batch: FireBatch) -> SentFireBatch {
    if !leadership.is_leader() {
        return SentFireBatch { batch, took: Duration::ZERO, result: Err(FireError::NotLeading) };
    }
    // Moved instead of copied, because firings may be large.
    let firings = std::mem::take(&mut batch.firings);
    let (session, token) = (leadership.session().clone(), leadership.token());
    let fire = FireRequest { session, token, firings };
    let began = ctx.runtime.now();
    let fired = ctx.bounded(ctx.store.fire(&fire)).await;
    let took = ctx.runtime.now().since(began);
    metrics::scheduler_called(took);
    batch.firings = fire.firings;
    let result = match fired {
        Ok(Some(fired)) if fired.len() == batch.len() => Ok(fired),
        Ok(Some(fired)) => {
            let (returned, sent_count) = (fired.len(), batch.len());
            let message = format!("the store returned {returned} results for {sent_count} firings");
            Err(StoreError::new(ErrorKind::Unavailable, message).into())
        }
        Ok(None) => Err(FireError::NotLeading),
        Err(error) => Err(error.into()),
    };
    SentFireBatch { batch, took, result }
}

/// Counts the results of a batch. Returns the rejected schedules with the reason.
fn count_results(
    batch: FireBatch,
    fired: Vec<FireOutcome>,
    round: &mut FireRound,
    now_ms: i64,
) -> Vec<(DueSchedule, String)> {
    let mut refused = Vec::new();
    for ((due, firing), fired) in batch.due.into_iter().zip(&batch.firings).zip(fired) {
        match fired {
            FireOutcome::Fired => {
                round.fired_count += 1;
                if !batch.postpones {
                    metrics::schedule_fired(firing, now_ms);
                }
            }
            FireOutcome::Stale => {
                round.stale += 1;
                metrics::firing_finished("stale");
            }
            FireOutcome::Rejected(why) if batch.postpones => {
                tracing::error!(schedule = %due.key, "postponing rejected: {why}");
            }
            FireOutcome::Rejected(why) => {
                tracing::warn!(schedule = %due.key, "firing rejected: {why}");
                metrics::firing_finished("rejected");
                refused.push((due, why));
            }
        }
    }
    refused
}

/// Whether the store rejected the batch because of its content, so that a smaller one may succeed.
fn is_about_the_batch(error: &StoreError) -> bool {
    matches!(error.kind, ErrorKind::Request | ErrorKind::Other)
}

/// Whether a smaller batch may succeed, although the outcome of this one is unknown.
fn may_be_its_size(error: &StoreError) -> bool {
    matches!(error.kind, ErrorKind::Timeout | ErrorKind::Unavailable)
}

/// Completes when the loop must end.
pub(super) async fn stop_requested(leadership: &Leadership, stop: &mut watch::Receiver<bool>) {
    tokio::select! {
        _ = leadership.leader_request() => {}
        // A closed channel means that the stop was sent before.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Prunes old ticks in small steps.
pub(super) async fn prune(ctx: &ClientContext, leadership: &Leadership) {
    loop {
        ctx.pause(ctx.timing.heartbeat_interval() * PRUNE_INTERVAL).await;
        loop {
            let (session, token) = (leadership.session(), leadership.token());
            match ctx.bounded(ctx.store.prune_ticks(session, token, PRUNE_MAX)).await {
                Ok((count, more)) => {
                    metrics::ticks_pruned(count);
                    if !more {
                        break;
                    }
                }
                Err(error) => {
                    tracing::debug!("pruning ticks failed: {error}");
                    break;
                }
            }
            ctx.pause(POLL_INTERVAL_MIN).await;
        }
    }
}
