//! One poll: a store call for all waiting claims.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use tenure_core::port::{
    CLAIM_MAX, ClaimBatchRequest, ClaimBatchResponse, ClaimRefusal, ClaimRequest, ErrorKind, QueueKey,
    StoreError,
};
use tenure_core::{BootInstant, SessionId};

use super::{ClaimRoute, WaitingClaim, refuse};
use crate::metrics;
use crate::queue::context::{BrokerTerm, ClientContext};

/// Maximum number of store calls per poll. Each repetition omits the claims that the store refused.
const ROUNDS_MAX: usize = 4;

/// Result of one poll.
pub(super) struct PollResult {
    pub(super) claims: Vec<(u64, WaitingClaim)>,
    pub(super) registered: bool,
    /// Start of the poll on the local clock.
    pub(super) began: BootInstant,
    pub(super) result: Result<ClaimBatchResponse, StoreError>,
}

/// Limits the requests of one call to the maximum of a call, with at least one task for each request.
pub(super) fn limited_requests<'a>(
    requests: impl ExactSizeIterator<Item = &'a ClaimRequest>,
) -> Vec<ClaimRequest> {
    let (mut remaining, mut others) = (CLAIM_MAX, u32::try_from(requests.len()).unwrap_or(CLAIM_MAX));
    let request = |wanted: &ClaimRequest| {
        others = others.saturating_sub(1);
        let limit = wanted.limit.min(remaining.saturating_sub(others));
        remaining -= limit;
        ClaimRequest { limit, ..wanted.clone() }
    };
    requests.map(request).collect()
}

/// Polls the store, and repeats the call at once without refused claims, so that one unapproved worker does not
/// delay the others. The broker's lease is not released while its poll runs: `broker_term` keeps the term alive.
pub(super) async fn poll(
    ctx: Arc<ClientContext>,
    mut batch: ClaimBatchRequest,
    mut claims: Vec<(u64, WaitingClaim)>,
    register: bool,
    broker_term: Option<Arc<BrokerTerm>>,
    route: ClaimRoute,
) -> PollResult {
    let registered = register && register_waiter(&ctx, &batch.queue).await;
    let mut rounds = 0;
    let (began, result) = loop {
        let began = ctx.runtime.now();
        let result = call(&ctx, &batch).await;
        metrics::polled(&batch.queue, route, &result, ctx.runtime.now().since(began));
        rounds += 1;
        let Ok(ClaimBatchResponse::Refused(refusal)) = &result else { break (began, result) };
        let Some(refused) = refused(&ctx, &batch, refusal).await else { break (began, result) };
        for (number, claim) in std::mem::take(&mut claims) {
            match refused.refusal(&claim.request) {
                Some(refusal) => refuse(claim, refusal),
                None => claims.push((number, claim)),
            }
        }
        if claims.is_empty() || rounds >= ROUNDS_MAX {
            break (began, result);
        }
        batch.requests = limited_requests(claims.iter().map(|(_, claim)| &claim.request));
    };
    drop(broker_term);
    PollResult { claims, registered, began, result }
}

async fn call(ctx: &Arc<ClientContext>, batch: &ClaimBatchRequest) -> Result<ClaimBatchResponse, StoreError> {
    let call = AssertUnwindSafe(ctx.bounded(ctx.store.claim(batch)));
    let result = call
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Err(StoreError::new(ErrorKind::Other, "a store call panicked")));
    let result = result.and_then(|response| check_response(response, batch.requests.len()));
    if result.is_err() {
        ctx.mark_uncertain(&batch.queue.namespace);
    }
    result
}

/// Workers and sessions that the store refuses.
#[derive(Default)]
struct RefusedClaims {
    workers: HashSet<String>,
    sessions: HashSet<SessionId>,
}

impl RefusedClaims {
    fn refusal(&self, request: &ClaimRequest) -> Option<ClaimRefusal> {
        let ended = request.session.as_ref().filter(|session| self.sessions.contains(session));
        match ended {
            Some(session) => Some(ClaimRefusal::SessionEnded(session.clone())),
            None if self.workers.contains(&request.worker.name) => {
                Some(ClaimRefusal::NotApproved(request.worker.name.clone()))
            }
            None => None,
        }
    }
}

/// Returns all workers or sessions of the batch that the store would refuse for the same reason; `None` if the
/// refusal concerns all claims. A refusal names only one of them, so this reads the state of all from the store
/// instead of repeating the call for each.
async fn refused(
    ctx: &ClientContext,
    batch: &ClaimBatchRequest,
    refusal: &ClaimRefusal,
) -> Option<RefusedClaims> {
    let mut refused = RefusedClaims::default();
    match refusal {
        ClaimRefusal::Mode(_) | ClaimRefusal::NotLeader | ClaimRefusal::Paused => return None,
        ClaimRefusal::NotApproved(named) => {
            let names: HashSet<String> =
                batch.requests.iter().map(|request| request.worker.name.clone()).collect();
            if names.len() > 1 {
                let known = ctx.bounded(ctx.store.workers(Some(&batch.queue.namespace))).await;
                refused.workers =
                    without(names, known, |view| view.approved_by.is_some().then_some(view.worker.name));
            }
            refused.workers.insert(named.clone());
        }
        ClaimRefusal::SessionEnded(named) => {
            let ids: HashSet<SessionId> =
                batch.requests.iter().filter_map(|request| request.session.clone()).collect();
            if ids.len() > 1 {
                let session_ids: Vec<SessionId> = ids.iter().cloned().collect();
                let known = ctx.bounded(ctx.store.sessions(Some(&session_ids))).await;
                refused.sessions = without(ids, known, |view| view.live.then_some(view.id));
            }
            refused.sessions.insert(named.clone());
        }
    }
    Some(refused)
}

/// Returns the entries of `all` that are not valid in the store; empty if the store call failed.
fn without<T: Eq + std::hash::Hash, V>(
    mut all: HashSet<T>,
    known: Result<Vec<V>, StoreError>,
    good: impl Fn(V) -> Option<T>,
) -> HashSet<T> {
    match known {
        Ok(known) => {
            let good: HashSet<T> = known.into_iter().filter_map(good).collect();
            all.retain(|one| !good.contains(one));
        }
        Err(error) => {
            tracing::debug!("reading workers and sessions failed: {error}");
            all.clear();
        }
    }
    all
}

async fn register_waiter(ctx: &ClientContext, queue: &QueueKey) -> bool {
    let Some(session) = ctx.session() else { return true };
    if let Err(error) =
        ctx.bounded(ctx.store.register_queue_waiter(&session, std::slice::from_ref(queue))).await
    {
        tracing::debug!(%queue, "registering as waiter failed, polling instead: {error}");
    }
    true
}

fn check_response(
    response: ClaimBatchResponse,
    request_count: usize,
) -> Result<ClaimBatchResponse, StoreError> {
    match &response {
        ClaimBatchResponse::Served { tasks, .. } if tasks.len() != request_count => Err(StoreError::new(
            ErrorKind::Other,
            format!(
                "the store returned {} results for {request_count} claim requests; this is a bug",
                tasks.len()
            ),
        )),
        _ => Ok(response),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(limits: &[u32]) -> Vec<u32> {
        let requests: Vec<ClaimRequest> = limits
            .iter()
            .map(|limit| ClaimRequest {
                worker: Default::default(),
                limit: *limit,
                session: None,
                claim_timeout_ms: None,
            })
            .collect();
        limited_requests(requests.iter()).iter().map(|request| request.limit).collect()
    }

    #[test]
    fn a_large_request_leaves_one_task_for_each_of_the_others() {
        assert_eq!(limits(&[5, 3]), [5, 3]);
        assert_eq!(limits(&[1000, 1000, 7]), [998, 1, 1]);
        assert_eq!(limits(&[500, 300, 1000]), [500, 300, 200]);
        assert_eq!(limits(&vec![1000; 1000]), vec![1; 1000]);
    }
}
