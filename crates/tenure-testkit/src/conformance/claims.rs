//! Claiming of tasks.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_core::port::{
    Backoff, CLAIM_BYTES, ClaimAuthority, ClaimBatchResponse, ClaimOutcome, ClaimRefusal, ClaimRequest,
    NewTask, ParentRef, QueueSettings, RawJson, SettleResult, TaskState, WorkerProfile,
};

use super::test_queue::{
    HOUR_MS, TestQueue, claim_request, claim_request_of, claim_request_on, failure, ids, ordinary, profile,
    served, strings, tagged,
};
use super::{StoreUnderTest, new_id};

/// A queue that does not exist behaves like an empty one.
pub async fn an_unused_queue_is_empty(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    assert_eq!(test_queue.claim_all().await, []);
    let response = test_queue
        .claim_batch(ClaimAuthority::Direct, vec![claim_request("a", 1), claim_request("b", 1)])
        .await;
    assert_eq!(served(response), [vec![], vec![]]);
}

/// A worker receives everything it needs, and the store records the claim.
pub async fn a_claimed_task_has_all_fields(subject: &StoreUnderTest) {
    let (test_queue, session) = (TestQueue::of(subject).await, subject.session("a").await);
    let task = NewTask {
        kind: "send".into(),
        payload: r#"{"to":"o'neil"}"#.parse().expect("JSON"),
        priority: 3,
        max_run_ms: Some(2 * HOUR_MS),
        max_attempts: 5,
        backoff: Backoff { initial_ms: 17, max_ms: 18 },
        leader_token: Some(tenure_core::Token::from_u64(9)),
        ..NewTask::default()
    };
    let id = test_queue.submit_one(task.clone()).await;
    let request = ClaimRequest {
        session: Some(session.id.clone()),
        claim_timeout_ms: Some(HOUR_MS),
        ..claim_request_of(profile("w'1"), 5)
    };
    let claimed = test_queue.claim(request).await.remove(0);
    assert_eq!((claimed.id, &claimed.queue, &claimed.kind), (id, &test_queue.key.name, &task.kind));
    assert_eq!(
        (&claimed.payload, claimed.parent_results.len(), claimed.backoff),
        (&task.payload, 0, task.backoff)
    );
    assert_eq!((claimed.attempt, claimed.max_attempts, claimed.priority), (1, 5, 3));
    assert_eq!((claimed.max_run_ms, claimed.leader_token), (task.max_run_ms, task.leader_token));
    assert_eq!(claimed.claim_seq, None, "a distributed queue has no claim sequence");
    let view = test_queue.task(id).await;
    assert_eq!((view.state, view.attempt, view.token), (TaskState::Claimed, 1, claimed.token));
    assert_eq!((view.worker.as_deref(), view.session), (Some("w'1"), Some(session.id.clone())));
    assert_eq!(
        (claimed.submitted_at_ms, claimed.claim_expires_at_ms),
        (view.submitted_at_ms, view.claim_expires_at_ms)
    );
    assert!(view.claimed_at_ms >= view.ready_at_ms && view.ready_at_ms.is_some());
    assert_eq!(test_queue.claim_all().await, []);
}

/// Each point of priority equals one minute of waiting; tasks of equal priority are claimed oldest first.
pub async fn tasks_are_ordered_by_priority_and_age(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let with = |priority, tag: &str| NewTask {
        priority,
        required_tags: if tag.is_empty() { vec![] } else { strings(&[tag]) },
        ..NewTask::new(format!("kind-{}", priority.rem_euclid(3)))
    };
    // The tasks have different requirements, so a store that keeps an index per requirements must merge the indexes.
    let priorities = [0, 5, -3, 5, 0, 7, -1_000_000, 1_000_000];
    let tags = ["", "x", "", "", "y", "x", "y", ""];
    let numbers = test_queue
        .submit(priorities.iter().zip(tags).map(|(priority, tag)| with(*priority, tag)).collect())
        .await;
    let mut expected: Vec<usize> = (0..numbers.len()).collect();
    expected.sort_by_key(|n| (-priorities[*n], *n));
    let expected: Vec<_> = expected.into_iter().map(|n| numbers[n]).collect();
    let reader = test_queue.reopen(subject).await;
    let first = reader.claim(claim_request_of(tagged("w", &["x", "y"]), 3)).await;
    let rest = reader.claim(claim_request_of(tagged("w", &["x", "y"]), 100)).await;
    assert_eq!([ids(&first), ids(&rest)].concat(), expected);
}

/// Each request gets at most its limit, also in a batch and when too few tasks are left.
pub async fn a_claim_never_exceeds_its_limit(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.submit(ordinary(30)).await;
    for limit in [1, 3, 0, 7] {
        assert_eq!(test_queue.claim(claim_request("w", limit)).await.len(), limit as usize);
    }
    let claim_requests =
        vec![claim_request("a", 2), claim_request("b", 0), claim_request("c", 5), claim_request("a", 1)];
    let lists = served(test_queue.claim_batch(ClaimAuthority::Direct, claim_requests).await);
    assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [2, 0, 5, 1]);
    assert_eq!(test_queue.view().await.count(TaskState::Claimed), 19);
    assert_eq!(test_queue.claim(claim_request("w", 1000)).await.len(), 11);
    assert_eq!(test_queue.claim(claim_request("w", 1000)).await.len(), 0);
}

/// The first request is served first; each list is in queue order and belongs to its request.
pub async fn claim_requests_are_served_in_order(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let picky = NewTask { required_tags: strings(&["gpu"]), ..NewTask::default() };
    let numbers = test_queue.submit([ordinary(2), vec![picky], ordinary(3)].concat()).await;
    let claim_requests =
        vec![claim_request("a", 3), claim_request_of(tagged("b", &["gpu"]), 2), claim_request("c", 9)];
    let lists = served(test_queue.claim_batch(ClaimAuthority::Direct, claim_requests).await);
    assert_eq!(ids(&lists[0]), [numbers[0], numbers[1], numbers[3]]);
    assert_eq!(ids(&lists[1]), [numbers[2], numbers[4]]);
    assert_eq!(ids(&lists[2]), [numbers[5]]);
    for (name, list) in ["a", "b", "c"].iter().zip(&lists) {
        for task in list {
            assert_eq!(test_queue.task(task.id).await.worker.as_deref(), Some(*name));
        }
    }
}

/// Several clients claim at the same time, each as many tasks as possible.
pub async fn concurrent_claims_never_share_a_task(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue.submit(ordinary(160)).await;
    let mut claimers = Vec::new();
    for worker in 0..4 {
        let test_queue = test_queue.reopen(subject).await;
        claimers.push(tokio::spawn(async move {
            let mut got = Vec::new();
            loop {
                let name = format!("w{worker}");
                let lists = served(
                    test_queue
                        .claim_batch(
                            ClaimAuthority::Direct,
                            vec![claim_request(&name, 3), claim_request(&name, 2)],
                        )
                        .await,
                );
                assert!(lists[0].len() <= 3 && lists[1].len() <= 2, "no more than requested");
                if lists.iter().all(Vec::is_empty) {
                    return got;
                }
                got.extend(lists.into_iter().flatten().map(|task| task.id));
            }
        }));
    }
    let mut all = Vec::new();
    for claimer in claimers {
        all.extend(claimer.await.expect("no panic"));
    }
    // A claim may have returned nothing because other claims had locked the remaining tasks. This claim collects them.
    all.extend(test_queue.claim(claim_request("last", 1000)).await.iter().map(|task| task.id));
    let distinct: BTreeSet<_> = all.iter().copied().collect();
    assert_eq!((distinct.len(), all.len()), (160, 160), "each task once");
    assert_eq!(distinct, numbers.into_iter().collect());
}

/// Every claim of a task has a greater token than its previous claim, however that one ended.
pub async fn tokens_grow_over_claims(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let id = test_queue.submit_one(NewTask::default()).await;
    let mut last = test_queue.task(id).await.token;
    for n in 0..6 {
        let claimed = test_queue.claim_one().await;
        assert!(claimed.token > last, "{} after {last}", claimed.token);
        last = claimed.token;
        assert_eq!(test_queue.task(id).await.token, last);
        let outcome = if n % 2 == 0 { ClaimOutcome::Release } else { failure(true, Duration::ZERO) };
        assert_eq!(test_queue.settle(&claimed, outcome).await, SettleResult::Applied(TaskState::Ready));
    }
}

/// A worker gets tasks of its kinds, and tasks without a kind.
pub async fn a_worker_claims_only_its_kinds(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue.submit(["a", "b", "", "c"].map(NewTask::new).into()).await;
    let knows = |kinds: &[&str]| WorkerProfile { task_kinds: strings(kinds), ..profile("w") };
    assert_eq!(ids(&test_queue.claim(claim_request_of(knows(&["x"]), 9)).await), [numbers[2]]);
    assert_eq!(
        ids(&test_queue.claim(claim_request_of(knows(&["c", "b", "x"]), 9)).await),
        [numbers[1], numbers[3]]
    );
    assert_eq!(ids(&test_queue.claim(claim_request_of(knows(&[]), 9)).await), [numbers[0]]);
}

/// A worker needs all required tags.
pub async fn a_worker_claims_only_tasks_whose_tags_it_has(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let requires = |tags: &[&str]| NewTask { required_tags: strings(tags), ..NewTask::default() };
    let tasks = vec![requires(&["a"]), requires(&["a", "b"]), requires(&["b"]), requires(&["o'c"])];
    let numbers = test_queue.submit(tasks).await;
    let with = |tags: &[&str]| claim_request_of(tagged("w", tags), 9);
    assert_eq!(test_queue.claim(with(&[])).await, []);
    assert_eq!(test_queue.claim(with(&["x", "A"])).await, []);
    assert_eq!(ids(&test_queue.claim(with(&["b", "z"])).await), [numbers[2]]);
    assert_eq!(ids(&test_queue.claim(with(&["b", "a"])).await), [numbers[0], numbers[1]]);
    assert_eq!(ids(&test_queue.claim(with(&["o'c"])).await), [numbers[3]]);
}

/// A task with allowed workers is claimed only by a worker with one of these names; `*` allows all workers.
pub async fn a_task_waits_for_its_allowed_workers(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let meant = |workers: &[&str]| NewTask { allowed_workers: strings(workers), ..NewTask::default() };
    let numbers = test_queue.submit(vec![meant(&["ada", "bob"]), meant(&["*"]), meant(&["cy"])]).await;
    assert_eq!(ids(&test_queue.claim(claim_request("eve", 9)).await), [numbers[1]]);
    assert_eq!(ids(&test_queue.claim(claim_request("bob", 9)).await), [numbers[0]]);
    assert_eq!(test_queue.claim(claim_request("ada", 9)).await, []);
    assert_eq!(ids(&test_queue.claim(claim_request("cy", 9)).await), [numbers[2]]);
}

/// A worker without a preferred tag gets the task only after the preference window, and its response says when.
pub async fn preferred_workers_claim_first(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let prefers = || NewTask { preferred_tags: strings(&["near", "big"]), ..NewTask::default() };
    test_queue.set(QueueSettings { preference_window_ms: HOUR_MS, ..QueueSettings::default() }).await;
    let id = test_queue.submit_one(prefers()).await;
    let ClaimBatchResponse::Served { tasks, next_in } =
        test_queue.claim_batch(ClaimAuthority::Direct, vec![claim_request("far", 9)]).await
    else {
        panic!("the claim is served")
    };
    assert_eq!(tasks, [vec![]]);
    let next_in = next_in.expect("the end of the preference window is known");
    assert!(next_in > Duration::ZERO && next_in <= Duration::from_millis(HOUR_MS), "{next_in:?}");
    assert_eq!(ids(&test_queue.claim(claim_request_of(tagged("w", &["big", "x"]), 9)).await), [id]);
    test_queue.set(QueueSettings { preference_window_ms: 0, ..QueueSettings::default() }).await;
    let id = test_queue.submit_one(prefers()).await;
    assert_eq!(ids(&test_queue.claim(claim_request("far", 9)).await), [id]);
}

/// After the preference window, any matching worker claims the task without further action.
pub async fn a_preference_window_ends(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    test_queue.set(QueueSettings { preference_window_ms: 5, ..QueueSettings::default() }).await;
    test_queue.submit_one(NewTask { preferred_tags: strings(&["near"]), ..NewTask::default() }).await;
    while test_queue.claim(claim_request("far", 1)).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// If the session of one request has ended, the whole batch is rejected.
pub async fn an_ended_session_claims_nothing(subject: &StoreUnderTest) {
    let (test_queue, ended) = (TestQueue::of(subject).await, subject.session("gone").await);
    test_queue.submit(ordinary(2)).await;
    ended.store.end_session(&ended.id).await.unwrap();
    let stranger = new_id();
    for id in [ended.id.clone(), stranger] {
        let request = ClaimRequest { session: Some(id.clone()), ..claim_request("w", 1) };
        assert_eq!(test_queue.claim_refused(request).await, ClaimRefusal::SessionEnded(id));
    }
    assert_eq!(test_queue.view().await.count(TaskState::Ready), 2);
}

/// A task that is not due is not claimed, and the response says when it becomes due.
pub async fn a_task_that_is_not_due_is_not_claimed(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let now = test_queue.task(test_queue.submit_one(NewTask::default()).await).await.submitted_at_ms;
    let at = |run_at_ms| NewTask { run_at_ms: Some(run_at_ms), ..NewTask::default() };
    test_queue.submit(vec![at(now + HOUR_MS.cast_signed()), at(now + 2 * HOUR_MS.cast_signed())]).await;
    let ClaimBatchResponse::Served { tasks, next_in } =
        test_queue.claim_batch(ClaimAuthority::Direct, vec![claim_request("w", 9)]).await
    else {
        panic!("the claim is served")
    };
    assert_eq!(tasks[0].len(), 1);
    let next_in = next_in.expect("the next `run_at` is known");
    assert!(next_in > Duration::ZERO && next_in <= Duration::from_millis(HOUR_MS), "{next_in:?}");
}

/// A claim makes due tasks ready; no maintenance is needed.
pub async fn a_due_task_is_claimed(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let now = test_queue.task(test_queue.submit_one(NewTask::default()).await).await.submitted_at_ms;
    test_queue.claim_one().await;
    let id = test_queue.submit_one(NewTask { run_at_ms: Some(now + 20), ..NewTask::default() }).await;
    loop {
        let got = test_queue.claim(claim_request("w", 1)).await;
        if !got.is_empty() {
            assert_eq!(ids(&got), [id]);
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A claim ends at the earlier of the requested claim timeout and the maximum run time.
pub async fn a_claim_ends_at_its_timeout_or_maximum_run_time(subject: &StoreUnderTest) {
    let (test_queue, session) = (TestQueue::of(subject).await, subject.session("a").await);
    let runs = |max_run_ms| NewTask { max_run_ms, ..NewTask::default() };
    let (hour, day) = (HOUR_MS, 24 * HOUR_MS);
    let cases = [
        (None, None, None),
        (None, Some(hour), Some(hour)),
        (Some(day), None, Some(day)),
        (Some(day), Some(hour), Some(hour)),
        (Some(hour), Some(day), Some(hour)),
    ];
    for (max_run, hold_ms, expected) in cases {
        test_queue.submit_one(runs(max_run)).await;
        let request = ClaimRequest { claim_timeout_ms: hold_ms, ..claim_request_on(&session, 9) };
        let claimed = test_queue.claim(request).await.remove(0);
        let view = test_queue.task(claimed.id).await;
        let lasts = view.claim_expires_at_ms.map(|at| at - view.claimed_at_ms.expect("claimed"));
        let expected = expected.map(u64::cast_signed);
        assert!(
            lasts.zip(expected).map_or(lasts == expected, |(lasts, target)| (lasts - target).abs() <= 1),
            "max_run {max_run:?}, claim timeout {hold_ms:?}: {lasts:?}, not {expected:?}"
        );
    }
}

/// A worker can list its claims.
pub async fn a_session_can_list_its_claims(subject: &StoreUnderTest) {
    let (test_queue, a, b) =
        (TestQueue::of(subject).await, subject.session("a").await, subject.session("b").await);
    let other = test_queue.other_queue(super::test_queue::queue("other"));
    test_queue.submit(ordinary(3)).await;
    other.submit(ordinary(1)).await;
    let mut mine = test_queue.claim(claim_request_on(&a, 2)).await;
    mine.extend(other.claim(claim_request_on(&a, 2)).await);
    test_queue.claim(claim_request_on(&b, 1)).await;
    let expected: BTreeSet<_> = mine.iter().map(|task| (task.id, task.token)).collect();
    let held = |held: Vec<_>| held.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(held(a.store.held_claims(&a.id).await.unwrap()), expected);
    test_queue.complete(&mine[0]).await;
    let expected: BTreeSet<_> = mine[1..].iter().map(|task| (task.id, task.token)).collect();
    assert_eq!(held(a.store.held_claims(&a.id).await.unwrap()), expected);
    assert_eq!(a.store.held_claims(&new_id()).await, Ok(vec![]));
}

/// A call returns fewer large tasks; the next calls return the rest, in order and each once.
pub async fn the_size_of_a_claim_response_is_limited(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let large = || NewTask { payload: heavy(), ..NewTask::default() };
    let mut numbers = Vec::new();
    for _ in 0..6 {
        numbers.extend(test_queue.submit(vec![large(); 5]).await);
    }
    let mut got = Vec::new();
    while got.len() < numbers.len() {
        let lists = served(
            test_queue
                .claim_batch(ClaimAuthority::Direct, vec![claim_request("a", 7), claim_request("b", 90)])
                .await,
        );
        let tasks: Vec<_> = lists.into_iter().flatten().collect();
        let bytes: usize = tasks.iter().map(|task| task.payload.as_str().len()).sum();
        assert!(!tasks.is_empty() && bytes <= CLAIM_BYTES, "{} tasks, {bytes} bytes", tasks.len());
        got.extend(ids(&tasks));
    }
    assert_eq!(got, numbers);
}

/// A task with large parent results is returned alone if necessary.
pub async fn parent_results_count_towards_the_size_limit(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let parents = test_queue.submit(ordinary(12)).await;
    for task in test_queue.claim(claim_request("w", 12)).await {
        let settled = test_queue.settle(&task, ClaimOutcome::Complete(Some(heavy()))).await;
        assert_eq!(settled, SettleResult::Applied(TaskState::Completed));
    }
    let parents: Vec<_> = parents.into_iter().map(ParentRef::Task).collect();
    let child = NewTask { parents, ..NewTask::default() };
    let children = test_queue.submit(vec![child; 3]).await;
    for child in children {
        let ClaimBatchResponse::Served { tasks, .. } =
            test_queue.claim_batch(ClaimAuthority::Direct, vec![claim_request("w", 9)]).await
        else {
            panic!("the claim is served")
        };
        assert_eq!(ids(&tasks[0]), [child]);
        assert_eq!(tasks[0][0].parent_results.len(), 12);
    }
}

/// A payload of nearly the maximum size that cannot be compressed.
fn heavy() -> RawJson {
    RawJson::of(&"x".repeat(1_000_000)).expect("JSON")
}
