//! A batcher: combines single calls into batches.
//!
//! The first call is sent at once, together with other callers that are ready. Calls that arrive while a batch
//! is running wait for the next one, or run beside it as soon as [`PARALLEL_BATCH_MIN`] of them wait. So a
//! single caller never waits, and with many callers the store sees few statements. A dropped caller does not
//! cancel its item.
//!
//! When the store rejects a batch because of its content, its items are retried one by one, so that one invalid
//! item does not fail the others. When a batch fails because of one item (for example a locked row), it is
//! halved until that item is alone ([`BatchLimits::halve`]). Any other error goes to all callers, because the
//! outcome of the batch is unknown.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use tenure_core::port::{ErrorKind, StoreError};
use tokio::sync::{Notify, oneshot};

/// Number of waiting items that justify a second batch in parallel. A statement for one item costs the store
/// nearly as much as one for thirty.
pub(super) const PARALLEL_BATCH_MIN: usize = 32;

/// Function that executes a batch. Returns one result per item, in order, or one error for all.
type BatchFn<T, O> = Box<dyn Fn(Vec<T>) -> BoxFuture<'static, Result<Vec<O>, StoreError>> + Send + Sync>;

/// Callback that receives the result of one item.
pub(crate) type BatchReply<O> = Box<dyn FnOnce(Result<O, StoreError>) + Send>;

/// Size, weight and concurrency limits of a batcher.
#[derive(Clone, Copy)]
pub(crate) struct BatchLimits<T> {
    /// Maximum number of items in a batch.
    pub(crate) parts: usize,
    /// Maximum weight of a batch.
    pub(crate) weight: usize,
    /// Maximum number of concurrent batches.
    pub(crate) concurrent: usize,
    /// Weight of an item.
    pub(crate) weigh: fn(&T) -> usize,
    /// Identity of an item: items with the same identity are never in the same batch, nor in concurrent
    /// batches.
    pub(crate) identity: Option<fn(&T) -> u64>,
    /// Whether an error may concern a single item, so that the others can be retried.
    pub(crate) halve: fn(&StoreError) -> bool,
}

/// Combines single items into batches. Clones share it.
pub(crate) struct Batcher<T, O> {
    inner: Arc<Inner<T, O>>,
}

impl<T, O> Clone for Batcher<T, O> {
    fn clone(&self) -> Self {
        Batcher { inner: self.inner.clone() }
    }
}

struct Inner<T, O> {
    run: BatchFn<T, O>,
    limits: BatchLimits<T>,
    state: Mutex<State<T, O>>,
    idle: Notify,
    handle: tokio::runtime::Handle,
}

struct State<T, O> {
    waiting: VecDeque<(T, BatchReply<O>)>,
    concurrent: usize,
    /// Identities in running batches.
    busy: std::collections::HashSet<u64>,
}

impl<T, O> Batcher<T, O>
where
    T: Clone + Send + 'static,
    O: Send + 'static,
{
    pub(crate) fn new<F, Fut>(handle: tokio::runtime::Handle, limits: BatchLimits<T>, run: F) -> Self
    where
        F: Fn(Vec<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<O>, StoreError>> + Send + 'static,
    {
        let run: BatchFn<T, O> = Box::new(move |batch| run(batch).boxed());
        let state = State { waiting: VecDeque::new(), concurrent: 0, busy: Default::default() };
        let inner = Inner { run, limits, state: Mutex::new(state), idle: Notify::new(), handle };
        Batcher { inner: Arc::new(inner) }
    }

    /// Adds an item and waits for its result.
    pub(crate) async fn call(&self, part: T) -> Result<O, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.enqueue(part, Box::new(move |result| drop(sender.send(result))));
        receiver.await.unwrap_or_else(|_| Err(panicked()))
    }

    /// Adds an item to the next batch. `reply` is called with the result, on any task.
    pub(crate) fn enqueue(&self, part: T, reply: BatchReply<O>) {
        let mut state = self.inner.locked();
        state.waiting.push_back((part, reply));
        let max = if state.waiting.len() < PARALLEL_BATCH_MIN { 1 } else { self.inner.limits.concurrent };
        if state.concurrent < max {
            state.concurrent += 1;
            drop(state);
            self.inner.handle.spawn(run_batches(self.inner.clone()));
        }
    }

    /// Whether no item waits and no batch runs.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.inner.locked();
        state.concurrent == 0 && state.waiting.is_empty()
    }

    /// Waits until no item waits and no batch runs.
    pub(crate) async fn wait_idle(&self) {
        loop {
            let idle = self.inner.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }
}

impl<T, O> Inner<T, O> {
    fn locked(&self) -> MutexGuard<'_, State<T, O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next batch, or `None` if this task must end.
    fn next(&self) -> Option<Vec<(T, BatchReply<O>)>> {
        let mut state = self.locked();
        let mut batch = Vec::new();
        if state.concurrent > 1 && state.waiting.len() < PARALLEL_BATCH_MIN {
            // The other running task takes the remaining items.
            state.concurrent -= 1;
            return None;
        }
        let (mut weight, mut deferred) = (0, VecDeque::new());
        while batch.len() < self.limits.parts
            && let Some((part, reply)) = state.waiting.pop_front()
        {
            let heavier = weight + (self.limits.weigh)(&part);
            if !batch.is_empty() && heavier > self.limits.weight {
                state.waiting.push_front((part, reply));
                break;
            }
            if let Some(identity) = self.limits.identity
                && !state.busy.insert(identity(&part))
            {
                deferred.push_back((part, reply));
                continue;
            }
            weight = heavier;
            batch.push((part, reply));
        }
        // Items that wait for an earlier item of the same identity keep their place before later items.
        while let Some(part) = deferred.pop_back() {
            state.waiting.push_front(part);
        }
        if batch.is_empty() {
            state.concurrent -= 1;
            drop(state);
            self.idle.notify_waiters();
            return None;
        }
        Some(batch)
    }

    fn done(&self, identities: &[u64]) {
        let mut state = self.locked();
        for identity in identities {
            state.busy.remove(identity);
        }
    }
}

async fn run_batches<T: Clone + Send + 'static, O: Send + 'static>(inner: Arc<Inner<T, O>>) {
    loop {
        // Let callers that were woken together add their items first.
        tokio::task::yield_now().await;
        let Some(batch) = inner.next() else { return };
        let identities: Vec<u64> = inner
            .limits
            .identity
            .map(|of| batch.iter().map(|(part, _)| of(part)).collect())
            .unwrap_or_default();
        let (parts, replies): (Vec<T>, Vec<BatchReply<O>>) = batch.into_iter().unzip();
        // Copy the items only if a retry may need them.
        let retry_items = (parts.len() > 1).then(|| parts.clone());
        let count = parts.len();
        let result = perform(&inner, parts, count).await;
        match (result, retry_items) {
            (Err(error), Some(parts)) if error.kind == ErrorKind::Request => {
                for (part, reply) in parts.into_iter().zip(replies) {
                    let result = perform(&inner, vec![part], 1).await;
                    reply(result.and_then(|mut one| one.pop().ok_or_else(panicked)));
                }
            }
            (Err(error), Some(parts)) if (inner.limits.halve)(&error) => {
                halve(&inner, parts.into_iter().zip(replies).collect(), error).await;
            }
            (Err(error), _) => replies.into_iter().for_each(|reply| reply(Err(error.clone()))),
            (Ok(results), _) => {
                results.into_iter().zip(replies).for_each(|(result, reply)| reply(Ok(result)));
            }
        }
        inner.done(&identities);
    }
}

/// Runs the halves separately, then the halves of the failing half, until the failing item is alone. If both
/// halves fail, all get the error.
async fn halve<T: Clone, O>(inner: &Inner<T, O>, mut parts: Vec<(T, BatchReply<O>)>, mut error: StoreError) {
    while parts.len() > 1 {
        let second = parts.split_off(parts.len() / 2);
        let first = run_part(inner, parts).await;
        let second = run_part(inner, second).await;
        (parts, error) = match (first, second) {
            (None, None) => return,
            (Some(failed), None) | (None, Some(failed)) => failed,
            (Some((mut first, failure)), Some((second, _))) => {
                first.extend(second);
                parts = first;
                error = failure;
                break;
            }
        };
    }
    parts.into_iter().for_each(|(_, reply)| reply(Err(error.clone())));
}

/// Runs the items and replies to their callers, or returns the items with the error.
async fn run_part<T: Clone, O>(
    inner: &Inner<T, O>,
    parts: Vec<(T, BatchReply<O>)>,
) -> Option<(Vec<(T, BatchReply<O>)>, StoreError)> {
    let items: Vec<T> = parts.iter().map(|(part, _)| part.clone()).collect();
    match perform(inner, items, parts.len()).await {
        Ok(results) => {
            results.into_iter().zip(parts).for_each(|(result, (_, reply))| reply(Ok(result)));
            None
        }
        Err(error) => Some((parts, error)),
    }
}

async fn perform<T, O>(inner: &Inner<T, O>, parts: Vec<T>, count: usize) -> Result<Vec<O>, StoreError> {
    let call = AssertUnwindSafe(async { (inner.run)(parts).await });
    match call.catch_unwind().await {
        Ok(Ok(results)) if results.len() == count => Ok(results),
        Ok(Ok(results)) => Err(StoreError::new(
            ErrorKind::Other,
            format!("the store returned {} results for {count} items; this is a bug", results.len()),
        )),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(panicked()),
    }
}

fn panicked() -> StoreError {
    StoreError::new(ErrorKind::Other, "a store call panicked")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn limits(parts: usize) -> BatchLimits<u64> {
        BatchLimits {
            parts,
            weight: usize::MAX,
            concurrent: 1,
            weigh: |_| 1,
            identity: None,
            halve: |_| false,
        }
    }

    type Calls = Arc<Mutex<Vec<Vec<u64>>>>;

    fn counting(limits: BatchLimits<u64>, refused: u64) -> (Batcher<u64, u64>, Calls) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let batcher = Batcher::new(tokio::runtime::Handle::current(), limits, move |batch: Vec<u64>| {
            seen.lock().unwrap().push(batch.clone());
            async move {
                tokio::task::yield_now().await;
                match batch.contains(&refused) {
                    true => Err(StoreError::new(ErrorKind::Request, "no")),
                    false => Ok(batch.into_iter().map(|part| part * 2).collect()),
                }
            }
        });
        (batcher, calls)
    }

    #[tokio::test]
    async fn concurrent_calls_share_a_batch_and_each_gets_its_own_result() {
        let (batcher, calls) = counting(limits(1000), 0);
        let all = (1..=100).map(|part| {
            let batcher = batcher.clone();
            async move { assert_eq!(batcher.call(part).await.unwrap(), part * 2) }
        });
        futures_util::future::join_all(all).await;
        assert!(calls.lock().unwrap().len() <= 2, "{:?}", calls.lock().unwrap());
        batcher.wait_idle().await;
        assert!(batcher.is_idle());
    }

    #[tokio::test]
    async fn a_rejected_item_does_not_fail_the_others() {
        let (batcher, _) = counting(limits(1000), 7);
        let all = (1..=20).map(|part| {
            let batcher = batcher.clone();
            async move { batcher.call(part).await.is_ok() }
        });
        let good: Vec<bool> = futures_util::future::join_all(all).await;
        assert_eq!(good.iter().filter(|good| !**good).count(), 1);
        assert!(!good[6]);
    }

    #[tokio::test]
    async fn a_locked_item_fails_alone_and_an_unavailable_store_gets_few_calls() {
        let locked = BatchLimits { halve: |error| error.kind == ErrorKind::Timeout, ..limits(1000) };
        for (stuck, failed, max) in [(7..8, 1, 20), (0..101, 100, 4)] {
            let calls = Arc::new(AtomicUsize::new(0));
            let count = calls.clone();
            let batcher = Batcher::new(tokio::runtime::Handle::current(), locked, move |batch: Vec<u64>| {
                count.fetch_add(1, Ordering::SeqCst);
                let stuck = batch.iter().any(|part| stuck.contains(part));
                async move { if stuck { Err(StoreError::new(ErrorKind::Timeout, "locked")) } else { Ok(batch) } }
            });
            let results = futures_util::future::join_all((1..=100).map(|part| batcher.call(part))).await;
            assert_eq!(results.iter().filter(|one| one.is_err()).count(), failed);
            let calls = calls.load(Ordering::SeqCst);
            assert!(calls <= max, "{calls} calls");
        }
    }

    #[tokio::test]
    async fn items_of_one_identity_keep_their_order_and_are_never_batched_together() {
        let one = BatchLimits { concurrent: 2, identity: Some(|part: &u64| part % 10), ..limits(1000) };
        let (batcher, calls) = counting(one, 0);
        let order = Arc::new(Mutex::new(Vec::new()));
        for part in [1, 11, 21, 2, 31] {
            let order = order.clone();
            batcher.enqueue(part, Box::new(move |_| order.lock().unwrap().push(part)));
        }
        batcher.wait_idle().await;
        let ones: Vec<u64> = order.lock().unwrap().iter().copied().filter(|part| part % 10 == 1).collect();
        assert_eq!(ones, [1, 11, 21, 31]);
        assert!(
            calls
                .lock()
                .unwrap()
                .iter()
                .all(|batch| batch.iter().filter(|part| *part % 10 == 1).count() <= 1)
        );
    }

    #[tokio::test]
    async fn a_call_that_panics_returns_an_error_and_the_next_call_works() {
        let count = Arc::new(AtomicUsize::new(0));
        let batcher: Batcher<u64, u64> =
            Batcher::new(tokio::runtime::Handle::current(), limits(10), move |batch: Vec<u64>| {
                let first = count.fetch_add(1, Ordering::SeqCst) == 0;
                async move {
                    assert!(!first, "deliberate panic");
                    Ok(batch)
                }
            });
        assert!(batcher.call(1).await.is_err());
        assert_eq!(batcher.call(2).await.unwrap(), 2);
    }
}
