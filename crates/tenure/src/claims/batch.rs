//! One by one in, batched out: calls that come while another is under way share the next one.
//!
//! The first call goes at once, with whoever else is about to say something. What arrives while one is under way waits, and goes
//! together when it is back, or beside it as soon as it is a [`CROWD`]; so with one caller nothing waits, and with many the
//! store sees few statements. Who stops waiting does not call back
//! what was said. When a batch is refused for what is in it, its parts are tried one by one, so that nobody is refused for
//! another's mistake. When it fails for what one of its parts met (a row that somebody else has locked), it is halved, until the
//! one is alone with its error ([`Measure::halve`]). Any other error is everybody's, because nobody knows what became of the
//! batch.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use tenure_core::port::{StoreError, Trouble};
use tokio::sync::{Notify, oneshot};

/// How many have to wait before they go beside a batch that is under way, rather than after it. A statement for one costs the store
/// nearly what a statement for thirty does.
pub(super) const CROWD: usize = 32;

/// What is done with a batch: one result for each part, in their order, or one error for all.
type Act<T, O> = Box<dyn Fn(Vec<T>) -> BoxFuture<'static, Result<Vec<O>, StoreError>> + Send + Sync>;

/// Who is told what came of one part.
pub(crate) type Reply<O> = Box<dyn FnOnce(Result<O, StoreError>) + Send>;

/// How much goes at once.
#[derive(Clone, Copy)]
pub(crate) struct Measure<T> {
    /// The most parts of one batch.
    pub(crate) parts: usize,
    /// The most weight of one batch.
    pub(crate) weight: usize,
    /// The most batches under way.
    pub(crate) under_way: usize,
    /// What a part weighs.
    pub(crate) weigh: fn(&T) -> usize,
    /// What may be in one batch only once, and is in one batch under way at most.
    pub(crate) identity: Option<fn(&T) -> u64>,
    /// Whether such an error may be that of one part, and the others may be said again.
    pub(crate) halve: fn(&StoreError) -> bool,
}

/// Collects what comes one by one. Clones share it.
pub(crate) struct Batcher<T, O> {
    inner: Arc<Inner<T, O>>,
}

impl<T, O> Clone for Batcher<T, O> {
    fn clone(&self) -> Self {
        Batcher { inner: self.inner.clone() }
    }
}

struct Inner<T, O> {
    act: Act<T, O>,
    measure: Measure<T>,
    state: Mutex<State<T, O>>,
    rest: Notify,
    handle: tokio::runtime::Handle,
}

struct State<T, O> {
    waiting: VecDeque<(T, Reply<O>)>,
    under_way: usize,
    /// The identities that are under way.
    busy: std::collections::HashSet<u64>,
}

impl<T, O> Batcher<T, O>
where
    T: Clone + Send + 'static,
    O: Send + 'static,
{
    pub(crate) fn new<F, Fut>(handle: tokio::runtime::Handle, measure: Measure<T>, act: F) -> Self
    where
        F: Fn(Vec<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<O>, StoreError>> + Send + 'static,
    {
        let act: Act<T, O> = Box::new(move |batch| act(batch).boxed());
        let state = State { waiting: VecDeque::new(), under_way: 0, busy: Default::default() };
        let inner = Inner { act, measure, state: Mutex::new(state), rest: Notify::new(), handle };
        Batcher { inner: Arc::new(inner) }
    }

    /// Says something, and waits for what comes of it.
    pub(crate) async fn call(&self, part: T) -> Result<O, StoreError> {
        let (sender, receiver) = oneshot::channel();
        self.say(part, Box::new(move |result| drop(sender.send(result))));
        receiver.await.unwrap_or_else(|_| Err(panicked()))
    }

    /// Says something. `reply` is called, on whatever task, when it is known what came of it.
    pub(crate) fn say(&self, part: T, reply: Reply<O>) {
        let mut state = self.inner.locked();
        state.waiting.push_back((part, reply));
        let most = if state.waiting.len() < CROWD { 1 } else { self.inner.measure.under_way };
        if state.under_way < most {
            state.under_way += 1;
            drop(state);
            self.inner.handle.spawn(carry(self.inner.clone()));
        }
    }

    /// Whether nothing waits and nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.inner.locked();
        state.under_way == 0 && state.waiting.is_empty()
    }

    /// Waits until nothing is under way.
    pub(crate) async fn rest(&self) {
        loop {
            let rest = self.inner.rest.notified();
            tokio::pin!(rest);
            rest.as_mut().enable();
            if self.is_idle() {
                return;
            }
            rest.await;
        }
    }
}

impl<T, O> Inner<T, O> {
    fn locked(&self) -> MutexGuard<'_, State<T, O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch; or this carrier is done.
    fn next(&self) -> Option<Vec<(T, Reply<O>)>> {
        let mut state = self.locked();
        let mut batch = Vec::new();
        if state.under_way > 1 && state.waiting.len() < CROWD {
            // The other carrier takes them along.
            state.under_way -= 1;
            return None;
        }
        let (mut weight, mut left) = (0, VecDeque::new());
        while batch.len() < self.measure.parts
            && let Some((part, reply)) = state.waiting.pop_front()
        {
            let heavier = weight + (self.measure.weigh)(&part);
            if !batch.is_empty() && heavier > self.measure.weight {
                state.waiting.push_front((part, reply));
                break;
            }
            if let Some(identity) = self.measure.identity
                && !state.busy.insert(identity(&part))
            {
                left.push_back((part, reply));
                continue;
            }
            weight = heavier;
            batch.push((part, reply));
        }
        // What has to wait for an earlier word about the same keeps its place before what came later.
        while let Some(part) = left.pop_back() {
            state.waiting.push_front(part);
        }
        if batch.is_empty() {
            state.under_way -= 1;
            drop(state);
            self.rest.notify_waiters();
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

async fn carry<T: Clone + Send + 'static, O: Send + 'static>(inner: Arc<Inner<T, O>>) {
    loop {
        // Those who were woken together speak together: let them.
        tokio::task::yield_now().await;
        let Some(batch) = inner.next() else { return };
        let identities: Vec<u64> = inner
            .measure
            .identity
            .map(|of| batch.iter().map(|(part, _)| of(part)).collect())
            .unwrap_or_default();
        let (parts, replies): (Vec<T>, Vec<Reply<O>>) = batch.into_iter().unzip();
        // What is in it is kept only if it may have to be said again.
        let again = (parts.len() > 1).then(|| parts.clone());
        let count = parts.len();
        let result = perform(&inner, parts, count).await;
        match (result, again) {
            (Err(error), Some(parts)) if error.kind == Trouble::Request => {
                for (part, reply) in parts.into_iter().zip(replies) {
                    let result = perform(&inner, vec![part], 1).await;
                    reply(result.and_then(|mut one| one.pop().ok_or_else(panicked)));
                }
            }
            (Err(error), Some(parts)) if (inner.measure.halve)(&error) => {
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

/// Says the halves apart, then the halves of that which fails, until what fails is alone. If both fail, the trouble is everybody's.
async fn halve<T: Clone, O>(inner: &Inner<T, O>, mut parts: Vec<(T, Reply<O>)>, mut error: StoreError) {
    while parts.len() > 1 {
        let second = parts.split_off(parts.len() / 2);
        let first = said(inner, parts).await;
        let second = said(inner, second).await;
        (parts, error) = match (first, second) {
            (None, None) => return,
            (Some(failed), None) | (None, Some(failed)) => failed,
            (Some((mut first, trouble)), Some((second, _))) => {
                first.extend(second);
                parts = first;
                error = trouble;
                break;
            }
        };
    }
    parts.into_iter().for_each(|(_, reply)| reply(Err(error.clone())));
}

/// Says them and tells who said them; or they come back with the error.
async fn said<T: Clone, O>(
    inner: &Inner<T, O>,
    parts: Vec<(T, Reply<O>)>,
) -> Option<(Vec<(T, Reply<O>)>, StoreError)> {
    let words: Vec<T> = parts.iter().map(|(part, _)| part.clone()).collect();
    match perform(inner, words, parts.len()).await {
        Ok(results) => {
            results.into_iter().zip(parts).for_each(|(result, (_, reply))| reply(Ok(result)));
            None
        }
        Err(error) => Some((parts, error)),
    }
}

async fn perform<T, O>(inner: &Inner<T, O>, parts: Vec<T>, count: usize) -> Result<Vec<O>, StoreError> {
    let call = AssertUnwindSafe(async { (inner.act)(parts).await });
    match call.catch_unwind().await {
        Ok(Ok(results)) if results.len() == count => Ok(results),
        Ok(Ok(results)) => Err(StoreError::new(
            Trouble::Other,
            format!("the store gave {} answers to {count} questions; this is a bug", results.len()),
        )),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(panicked()),
    }
}

fn panicked() -> StoreError {
    StoreError::new(Trouble::Other, "a call to the store panicked")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn measure(parts: usize) -> Measure<u64> {
        Measure { parts, weight: usize::MAX, under_way: 1, weigh: |_| 1, identity: None, halve: |_| false }
    }

    type Calls = Arc<Mutex<Vec<Vec<u64>>>>;

    fn counting(measure: Measure<u64>, refused: u64) -> (Batcher<u64, u64>, Calls) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let batcher = Batcher::new(tokio::runtime::Handle::current(), measure, move |batch: Vec<u64>| {
            seen.lock().unwrap().push(batch.clone());
            async move {
                tokio::task::yield_now().await;
                match batch.contains(&refused) {
                    true => Err(StoreError::new(Trouble::Request, "no")),
                    false => Ok(batch.into_iter().map(|part| part * 2).collect()),
                }
            }
        });
        (batcher, calls)
    }

    #[tokio::test]
    async fn calls_at_the_same_time_share_one_and_each_gets_its_own_answer() {
        let (batcher, calls) = counting(measure(1000), 0);
        let all = (1..=100).map(|part| {
            let batcher = batcher.clone();
            async move { assert_eq!(batcher.call(part).await.unwrap(), part * 2) }
        });
        futures_util::future::join_all(all).await;
        assert!(calls.lock().unwrap().len() <= 2, "{:?}", calls.lock().unwrap());
        batcher.rest().await;
        assert!(batcher.is_idle());
    }

    #[tokio::test]
    async fn a_part_that_is_refused_refuses_nobody_else() {
        let (batcher, _) = counting(measure(1000), 7);
        let all = (1..=20).map(|part| {
            let batcher = batcher.clone();
            async move { batcher.call(part).await.is_ok() }
        });
        let good: Vec<bool> = futures_util::future::join_all(all).await;
        assert_eq!(good.iter().filter(|good| !**good).count(), 1);
        assert!(!good[6]);
    }

    #[tokio::test]
    async fn a_part_that_meets_a_lock_fails_alone_and_a_store_that_is_away_is_not_asked_for_each() {
        let locked = Measure { halve: |error| error.kind == Trouble::Timeout, ..measure(1000) };
        for (stuck, failed, most) in [(7..8, 1, 20), (0..101, 100, 4)] {
            let calls = Arc::new(AtomicUsize::new(0));
            let count = calls.clone();
            let batcher = Batcher::new(tokio::runtime::Handle::current(), locked, move |batch: Vec<u64>| {
                count.fetch_add(1, Ordering::SeqCst);
                let stuck = batch.iter().any(|part| stuck.contains(part));
                async move { if stuck { Err(StoreError::new(Trouble::Timeout, "locked")) } else { Ok(batch) } }
            });
            let said = futures_util::future::join_all((1..=100).map(|part| batcher.call(part))).await;
            assert_eq!(said.iter().filter(|one| one.is_err()).count(), failed);
            let calls = calls.load(Ordering::SeqCst);
            assert!(calls <= most, "{calls} calls");
        }
    }

    #[tokio::test]
    async fn what_is_said_about_the_same_keeps_its_order_and_is_never_together() {
        let one = Measure { under_way: 2, identity: Some(|part: &u64| part % 10), ..measure(1000) };
        let (batcher, calls) = counting(one, 0);
        let order = Arc::new(Mutex::new(Vec::new()));
        for part in [1, 11, 21, 2, 31] {
            let order = order.clone();
            batcher.say(part, Box::new(move |_| order.lock().unwrap().push(part)));
        }
        batcher.rest().await;
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
    async fn a_call_that_panics_is_an_error_and_the_next_one_goes() {
        let count = Arc::new(AtomicUsize::new(0));
        let batcher: Batcher<u64, u64> =
            Batcher::new(tokio::runtime::Handle::current(), measure(10), move |batch: Vec<u64>| {
                let first = count.fetch_add(1, Ordering::SeqCst) == 0;
                async move {
                    assert!(!first, "the test wants this");
                    Ok(batch)
                }
            });
        assert!(batcher.call(1).await.is_err());
        assert_eq!(batcher.call(2).await.unwrap(), 2);
    }
}
