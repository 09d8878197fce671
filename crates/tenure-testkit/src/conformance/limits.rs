//! Limits of claims: concurrency, rate, pauses, approval.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::port::{
    BrokerFallback, ClaimAuthority, ClaimBatchResponse, ClaimOutcome, ClaimRefusal, ClaimRequest,
    ClaimedTask, NewTask, QueueKey, QueueSettings, RateLimit, TaskAction, TaskState,
};

use super::StoreUnderTest;
use super::modes::exclusive;
use super::test_queue::{
    HOUR_MS, TestMaintenance, TestQueue, claim_request, claim_request_of, claim_request_on, failure, ids,
    only_request, ordinary, pause, queue, refusal, strings, tagged,
};

/// A task with a concurrency key.
fn keyed(limit: u32) -> NewTask {
    NewTask { concurrency_key: Some("cust'omer".into()), concurrency_limit: limit, ..NewTask::default() }
}

/// The limit applies, and blocked tasks do not delay other tasks.
pub async fn a_concurrency_key_limits_what_is_claimed(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue.submit(vec![keyed(2); 4]).await;
    let plain = test_queue.submit_one(NewTask::default()).await;
    let got = test_queue.claim(claim_request("w", 9)).await;
    assert_eq!(ids(&got), [numbers[0], numbers[1], plain]);
    use TaskState::{Blocked, Claimed};
    assert_eq!(test_queue.states(&numbers).await, [Claimed, Claimed, Blocked, Blocked]);
    test_queue.complete(&got[2]).await;
    assert_eq!(test_queue.claim_all().await, []);
    test_queue.complete(&got[1]).await;
    assert_eq!(test_queue.claim_all().await, [numbers[2]]);
    assert_eq!(test_queue.claim_all().await, []);
}

/// However a claim ends, the next task of its concurrency key becomes claimable.
pub async fn every_end_of_a_claim_unblocks_its_concurrency_key(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    type EndClaim = fn(&ClaimedTask) -> Option<ClaimOutcome>;
    let ends: [EndClaim; 6] = [
        |_| Some(ClaimOutcome::Complete(None)),
        |_| Some(failure(false, Duration::ZERO)),
        |_| Some(failure(true, Duration::ZERO)),
        |_| Some(failure(true, Duration::from_millis(HOUR_MS))),
        |_| Some(ClaimOutcome::Release),
        |_| None,
    ];
    for (n, end) in ends.into_iter().enumerate() {
        let test_queue =
            test_queue.other_queue(QueueKey::new(format!("n{n}").parse().unwrap(), "q".parse().unwrap()));
        let numbers = test_queue.submit(vec![keyed(1); 2]).await;
        let task = test_queue.claim_one().await;
        assert_eq!(test_queue.states(&numbers).await, [TaskState::Claimed, TaskState::Blocked]);
        match end(&task) {
            Some(outcome) => drop(test_queue.settle(&task, outcome).await),
            None => drop(test_queue.apply_action(task.id, TaskAction::Cancel).await),
        }
        assert_eq!(test_queue.claim_all().await.len(), 1, "end {n}: exactly one starts");
    }
}

/// A claim that is lost with its worker also unblocks the next task of its key.
pub async fn a_lost_claim_frees_its_key(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let session = subject.session("a").await;
    let last = NewTask { max_attempts: 1, ..keyed(1) };
    let numbers = test_queue.submit(vec![last, keyed(1)]).await;
    assert_eq!(ids(&test_queue.claim(claim_request_on(&session, 9)).await), [numbers[0]]);
    session.store.end_session(&session.id).await.unwrap();
    maintenance.run().await;
    assert_eq!(test_queue.states(&numbers).await[0], TaskState::Dead);
    assert_eq!(test_queue.claim_all().await, [numbers[1]]);
}

/// When a claim ends, the first blocked task of each distinct requirements becomes ready, so that a task without a
/// matching worker does not block the others.
pub async fn the_first_task_of_each_requirements_follows(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let picky = NewTask { required_tags: strings(&["gpu"]), ..keyed(1) };
    let numbers = test_queue.submit(vec![keyed(1), picky, keyed(1), keyed(1)]).await;
    // A worker that matches all tasks has tried them, so all but the first are blocked.
    let able = || claim_request_of(tagged("w", &["gpu"]), 9);
    let first = test_queue.claim(able()).await.remove(0);
    assert_eq!(test_queue.claim(able()).await, []);
    assert_eq!(test_queue.states(&numbers[1..]).await, [TaskState::Blocked; 3]);
    test_queue.complete(&first).await;
    assert_eq!(test_queue.claim_all().await, [numbers[2]], "for a worker without gpu");
    assert_eq!(test_queue.claim(able()).await, []);
}

/// The key applies to the namespace, across queues.
pub async fn a_concurrency_key_spans_queues(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let other = test_queue.other_queue(queue("other"));
    let foreign = test_queue.other_queue(QueueKey::new("else".parse().unwrap(), "q".parse().unwrap()));
    for test_queue in [&test_queue, &other, &foreign] {
        test_queue.submit(vec![keyed(1)]).await;
    }
    let first = test_queue.claim_one().await;
    assert_eq!(other.claim_all().await, []);
    assert_eq!(foreign.claim_all().await.len(), 1);
    test_queue.complete(&first).await;
    assert_eq!(other.claim_all().await.len(), 1);
}

/// Concurrent claims do not exceed the limit of a concurrency key.
pub async fn concurrent_claims_respect_a_concurrency_limit(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(vec![keyed(2); 24]).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(test_queue.reopen(subject).await);
    }
    let mut done = BTreeSet::new();
    while done.len() < 24 {
        let claims: Vec<_> = clients
            .iter()
            .cloned()
            .map(|test_queue| tokio::spawn(async move { test_queue.claim(claim_request("w", 5)).await }))
            .collect();
        let mut got = Vec::new();
        for claim in claims {
            got.extend(claim.await.expect("no panic"));
        }
        assert!(got.len() <= 2, "{} of one key at the same time", got.len());
        assert!(test_queue.view().await.count(TaskState::Claimed) <= 2);
        for task in got {
            assert!(done.insert(task.id), "each once");
            test_queue.complete(&task).await;
        }
    }
}

/// The limit of claimed tasks applies to all workers of the queue together.
pub async fn a_queue_limits_what_is_claimed(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.set(QueueSettings { max_claimed: Some(3), ..QueueSettings::default() }).await;
    let numbers = test_queue.submit(ordinary(6)).await;
    let got = test_queue.claim(claim_request("a", 2)).await;
    let lists = super::test_queue::served(
        test_queue
            .claim_batch(ClaimAuthority::Direct, vec![claim_request("b", 2), claim_request("c", 2)])
            .await,
    );
    assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(test_queue.claim(claim_request("a", 2)).await, []);
    test_queue.complete(&got[0]).await;
    assert_eq!(test_queue.claim(claim_request("a", 9)).await.len(), 1);
    test_queue.set(QueueSettings::default()).await;
    assert_eq!(ids(&test_queue.claim(claim_request("a", 9)).await), numbers[4..]);
}

/// Concurrent claims do not exceed the limit of claimed tasks of the queue.
pub async fn concurrent_claims_respect_a_queue_limit(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.set(QueueSettings { max_claimed: Some(3), ..QueueSettings::default() }).await;
    test_queue.submit(ordinary(40)).await;
    let mut claims = Vec::new();
    for _ in 0..5 {
        let test_queue = test_queue.reopen(subject).await;
        claims.push(tokio::spawn(async move { test_queue.claim(claim_request("w", 2)).await.len() }));
    }
    let mut got = 0;
    for claim in claims {
        got += claim.await.expect("no panic");
    }
    assert_eq!(test_queue.view().await.count(TaskState::Claimed), got as u64);
    assert!(got <= 3, "{got} at the same time");
    assert_eq!(got + test_queue.claim(claim_request("w", 9)).await.len(), 3);
}

/// An idle queue allows a burst and then claims at the rate; the response to an early claim says when to retry.
pub async fn a_rate_limit_is_respected(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let rate =
        |count, per_ms| QueueSettings { rate: Some(RateLimit { count, per_ms }), ..Default::default() };
    test_queue.set(rate(3, HOUR_MS)).await;
    test_queue.submit(ordinary(9)).await;
    assert_eq!(test_queue.claim(claim_request("a", 2)).await.len(), 2);
    let ClaimBatchResponse::Served { tasks, next_in } =
        test_queue.claim_batch(ClaimAuthority::Direct, vec![claim_request("b", 2)]).await
    else {
        panic!("the claim is served")
    };
    assert_eq!(tasks[0].len(), 1);
    let next_in = next_in.expect("the next time is known");
    assert!(next_in > Duration::ZERO && next_in <= Duration::from_millis(HOUR_MS / 3 + 1), "{next_in:?}");
    assert_eq!(test_queue.claim(claim_request("b", 1)).await, []);
    test_queue.set(rate(1, 5)).await;
    while test_queue.claim(claim_request("b", 9)).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    test_queue.set(QueueSettings::default()).await;
    assert_eq!(test_queue.view().await.count(TaskState::Ready), 5);
    assert_eq!(test_queue.claim(claim_request("b", 9)).await.len(), 5);
}

/// While the queue is paused no task is claimed; workers can still settle claims, and clients can submit tasks.
pub async fn nothing_is_claimed_from_a_paused_queue(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let (namespace, name) = (test_queue.key.namespace.clone(), test_queue.key.name.clone());
    let other = test_queue.other_queue(queue("other"));
    test_queue.submit(ordinary(2)).await;
    other.submit(ordinary(1)).await;
    let task = test_queue.claim(claim_request("w", 1)).await.remove(0);
    let set = |on: bool| {
        let (test_queue, namespace, name) = (&test_queue, &namespace, &name);
        async move {
            let pause = on.then(pause);
            test_queue.store.set_queue_paused(namespace, Some(name), pause.as_ref()).await.unwrap()
        }
    };
    assert!(!set(false).await, "it was not paused");
    assert!(set(true).await);
    assert!(!set(true).await, "unchanged");
    let message = test_queue.view().await.paused.expect("paused");
    assert_eq!((message.paused_by.as_str(), message.reason.as_str()), ("o'ps", "to \"see\""));
    assert_eq!(test_queue.claim_refused(claim_request("w", 9)).await, ClaimRefusal::Paused);
    test_queue.submit(ordinary(1)).await;
    test_queue.complete(&task).await;
    assert_eq!(other.claim_all().await.len(), 1);
    assert!(set(false).await);
    assert_eq!(test_queue.view().await.paused, None);
    assert_eq!(test_queue.claim_all().await.len(), 2);
}

/// A queue can be paused before it exists.
pub async fn a_queue_can_be_paused_before_its_first_task(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let (namespace, name) = (&test_queue.key.namespace, &test_queue.key.name);
    assert_eq!(test_queue.store.set_queue_paused(namespace, Some(name), Some(&pause())).await, Ok(true));
    test_queue.submit(ordinary(1)).await;
    assert_eq!(test_queue.claim_refused(claim_request("w", 1)).await, ClaimRefusal::Paused);
}

/// Pausing a namespace pauses all its queues, including new ones, and no queue of another namespace.
pub async fn nothing_is_claimed_in_a_paused_namespace(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let (later, namespace) = (test_queue.other_queue(queue("later")), test_queue.key.namespace.clone());
    let foreign = test_queue.other_queue(QueueKey::new("else".parse().unwrap(), "q".parse().unwrap()));
    test_queue.submit(ordinary(1)).await;
    foreign.submit(ordinary(1)).await;
    assert_eq!(test_queue.store.set_queue_paused(&namespace, None, Some(&pause())).await, Ok(true));
    assert_eq!(test_queue.store.set_queue_paused(&namespace, None, Some(&pause())).await, Ok(false));
    later.submit(ordinary(1)).await;
    for test_queue in [&test_queue, &later] {
        assert_eq!(test_queue.claim_refused(claim_request("w", 9)).await, ClaimRefusal::Paused);
        assert!(test_queue.view().await.paused.is_some());
    }
    assert_eq!(foreign.claim_all().await.len(), 1);
    assert_eq!(foreign.view().await.paused, None);
    assert_eq!(test_queue.store.set_queue_paused(&namespace, None, None).await, Ok(true));
    assert_eq!(test_queue.claim_all().await.len() + later.claim_all().await.len(), 2);
}

/// While an exclusive queue is paused, neither the broker nor the fallback assigns tasks.
pub async fn a_paused_exclusive_queue_assigns_nothing(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.set(exclusive(BrokerFallback::Distributed)).await;
    test_queue.submit(ordinary(1)).await;
    let (namespace, name) = (&test_queue.key.namespace, &test_queue.key.name);
    test_queue.store.set_queue_paused(namespace, Some(name), Some(&pause())).await.unwrap();
    for authority in [maintenance.authority(), ClaimAuthority::Fallback] {
        let response = test_queue.claim_batch(authority.clone(), vec![claim_request("w", 9)]).await;
        assert_eq!(refusal(response), ClaimRefusal::Paused, "{authority:?}");
    }
    test_queue.store.set_queue_paused(namespace, Some(name), None).await.unwrap();
    assert_eq!(
        only_request(test_queue.claim_batch(maintenance.authority(), vec![claim_request("w", 9)]).await)
            .len(),
        1
    );
}

/// If the queue requires approval, a worker must be approved first.
pub async fn an_unapproved_worker_claims_nothing(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let namespace = test_queue.key.namespace.clone();
    test_queue.submit(ordinary(4)).await;
    assert_eq!(test_queue.claim(claim_request("new", 1)).await.len(), 1, "approval is not required yet");
    test_queue.set(QueueSettings { require_approval: true, ..QueueSettings::default() }).await;
    let refused = ClaimRefusal::NotApproved("new".into());
    assert_eq!(test_queue.claim_refused(claim_request("new", 1)).await, refused);
    assert_eq!(test_queue.store.set_worker_approval(&namespace, "new", Some("o'ps")).await, Ok(true));
    assert_eq!(test_queue.store.set_worker_approval(&namespace, "new", Some("ops")).await, Ok(false));
    assert_eq!(test_queue.claim(claim_request("new", 1)).await.len(), 1);
    assert_eq!(
        test_queue.claim_refused(claim_request("newer", 1)).await,
        ClaimRefusal::NotApproved("newer".into())
    );
    assert_eq!(test_queue.store.set_worker_approval(&namespace, "new", None).await, Ok(true));
    assert_eq!(test_queue.store.set_worker_approval(&namespace, "new", None).await, Ok(false));
    assert_eq!(test_queue.claim_refused(claim_request("new", 1)).await, refused);
    let elsewhere = "else".parse().unwrap();
    test_queue.store.set_worker_approval(&elsewhere, "new", Some("ops")).await.unwrap();
    assert_eq!(test_queue.claim_refused(claim_request("new", 1)).await, refused, "approval is per namespace");
}

/// A task that was blocked by a limit keeps its position in the queue.
pub async fn a_blocked_task_keeps_its_position(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue.submit(vec![keyed(1), keyed(1), keyed(1)]).await;
    for id in numbers {
        let request = ClaimRequest { limit: 9, ..claim_request("w", 9) };
        let task = test_queue.claim(request).await;
        assert_eq!(ids(&task), [id]);
        test_queue.complete(&task[0]).await;
    }
}
