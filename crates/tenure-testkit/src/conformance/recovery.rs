//! Maintenance: recovery of lost claims, and pruning.

use std::time::Duration;

use tenure_core::Token;
use tenure_core::port::{
    ClaimOutcome, ClaimRequest, MaintenanceRequest, NewTask, ParentRef, QueueSettings, SettleResult,
    Submission, TaskAction, TaskState, broker_election,
};

use super::settle::progress;
use super::test_queue::{
    HOUR_MS, TestMaintenance, TestQueue, claim_request, claim_request_on, failure, ids, ordinary,
};
use super::{StoreUnderTest, TestSession, election};

/// Maintenance requests of a session that does not lead change nothing.
pub async fn a_session_that_does_not_lead_runs_no_maintenance(subject: &StoreUnderTest) {
    let (test_queue, first) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let ended = lost_claim(subject, &test_queue).await;
    let second = first.after(subject).await;
    let right = second.request();
    let wrong = [
        first.request(),
        MaintenanceRequest { token: first.token, ..right.clone() },
        MaintenanceRequest { session: first.session.id.clone(), ..right.clone() },
        MaintenanceRequest { token: Token::from_u64(second.token.as_u64() + 1), ..right.clone() },
        MaintenanceRequest { session: ended.id.clone(), ..right.clone() },
    ];
    for request in wrong {
        let response = test_queue.store.maintain(&request).await.unwrap();
        assert!(!response.is_leader && response.recovered == 0, "{request:?}: {response:?}");
    }
    assert_eq!(test_queue.view().await.count(TaskState::Claimed), 1);
    assert_eq!(second.run().await.recovered, 1);
    second.session.release(&broker_election(), 0, second.token).await;
    assert!(!test_queue.store.maintain(&right).await.unwrap().is_leader);
}

/// Maintenance recovers the claim once, whether the session ended or expired. The attempt counts, and a late settlement
/// is rejected.
pub async fn a_claim_of_a_dead_session_is_recovered_once(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    for expired in [false, true] {
        let (a, b, key) = (subject.session("a").await, subject.session("b").await, election("any"));
        a.join(&key).await;
        b.join(&key).await;
        let id = test_queue.submit_one(NewTask::default()).await;
        let lost = test_queue.claim(claim_request_on(&a, 1)).await.remove(0);
        assert_eq!(maintenance.run().await.recovered, 0, "the session is live");
        if expired {
            b.expire(&a, &key).await;
        } else {
            a.store.end_session(&a.id).await.unwrap();
        }
        assert_eq!((maintenance.run().await.recovered, maintenance.run().await.recovered), (1, 0));
        let view = test_queue.task(id).await;
        assert_eq!((view.state, view.attempt, view.failures.len()), (TaskState::Ready, 1, 1));
        assert!(view.failures[0].error.starts_with("claim lost: "), "{:?}", view.failures);
        assert_eq!((view.failures[0].attempt, view.failures[0].worker.as_str()), (1, "w"));
        for outcome in [ClaimOutcome::Complete(None), ClaimOutcome::Release, failure(true, Duration::ZERO)] {
            assert_eq!(test_queue.settle(&lost, outcome).await, SettleResult::ClaimLost);
        }
        let next = test_queue.claim_one().await;
        assert!(next.id == id && next.token > lost.token && next.attempt == 2);
        assert_eq!(test_queue.settle(&lost, ClaimOutcome::Complete(None)).await, SettleResult::ClaimLost);
        assert_eq!(maintenance.run().await.recovered, 0);
        test_queue.complete(&next).await;
    }
}

/// Maintenance recovers a claim after its claim timeout, and a claim with a live session after the maximum run time.
pub async fn a_claim_past_its_timeout_is_recovered_once(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let session = subject.session("a").await;
    let ids =
        test_queue.submit(vec![NewTask { max_run_ms: Some(1), ..NewTask::default() }, NewTask::default()]);
    let ids = ids.await;
    let lasting = test_queue.claim(claim_request_on(&session, 1)).await.remove(0);
    let short =
        test_queue.claim(ClaimRequest { claim_timeout_ms: Some(1), ..claim_request("w", 1) }).await.remove(0);
    assert_eq!(maintenance.run_until(|sum| sum.recovered >= 2).await.recovered, 2);
    assert_eq!(maintenance.run().await.recovered, 0);
    assert_eq!(test_queue.states(&ids).await, [TaskState::Ready; 2]);
    // The error once named the maximum run time for a claim whose claim timeout was exceeded.
    for (lost, error) in
        [(lasting, "claim lost: max_run_ms exceeded"), (short, "claim lost: claim timeout exceeded")]
    {
        let view = test_queue.task(lost.id).await;
        assert_eq!((view.attempt, view.failures.len()), (1, 1));
        assert_eq!(view.failures[0].error, error);
        assert_eq!(test_queue.settle(&lost, ClaimOutcome::Complete(None)).await, SettleResult::ClaimLost);
    }
}

/// A heartbeat before the claim timeout extends the claim.
pub async fn a_heartbeat_keeps_a_claim(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.submit(ordinary(2)).await;
    let tasks = test_queue.claim(ClaimRequest { claim_timeout_ms: Some(20), ..claim_request("w", 2) }).await;
    let longer = progress(None, Some(Duration::from_millis(HOUR_MS)));
    // Maintenance has not run yet, so the heartbeat is accepted even if the test is slow.
    assert_eq!(test_queue.settle(&tasks[1], longer).await, SettleResult::Applied(TaskState::Claimed));
    maintenance.run_until(|sum| sum.recovered >= 1).await;
    assert_eq!(test_queue.states(&ids(&tasks)).await, [TaskState::Ready, TaskState::Claimed]);
    test_queue.complete(&tasks[1]).await;
}

/// A claim lasts until maintenance recovers it, so a settlement after the timeout is applied until then.
pub async fn a_settlement_before_recovery_is_applied(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let session = subject.session("a").await;
    test_queue.submit(ordinary(1)).await;
    let task = test_queue.claim(claim_request_on(&session, 1)).await.remove(0);
    session.store.end_session(&session.id).await.unwrap();
    assert_eq!(
        test_queue.settle(&task, ClaimOutcome::Complete(None)).await,
        SettleResult::Applied(TaskState::Completed)
    );
    assert_eq!(maintenance.run().await.recovered, 0);
}

/// A forward step of the store's wall clock, beyond the leader's estimate, times out no claim.
pub async fn a_clock_step_of_the_store_expires_nothing(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.submit(ordinary(1)).await;
    let task =
        test_queue.claim(ClaimRequest { claim_timeout_ms: Some(1), ..claim_request("w", 1) }).await.remove(0);
    let deadline = test_queue.task(task.id).await.claim_expires_at_ms.expect("it has one");
    let careful = MaintenanceRequest { clock_ms: Some(deadline - 1), ..maintenance.request() };
    loop {
        let response = maintenance.session.store.maintain(&careful).await.unwrap();
        assert_eq!((response.is_leader, response.recovered), (true, 0));
        if response.store_now_at_ms > deadline + 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // An estimate ahead of the store's clock expires nothing early either.
    let late =
        MaintenanceRequest { clock_ms: Some(deadline + 10 * HOUR_MS.cast_signed()), ..maintenance.request() };
    test_queue.submit(ordinary(1)).await;
    let lasting = test_queue.claim_one().await;
    assert_eq!(maintenance.session.store.maintain(&late).await.unwrap().recovered, 1);
    assert_eq!(test_queue.states(&[task.id, lasting.id]).await, [TaskState::Ready, TaskState::Claimed]);
}

/// A new leader has no clock estimate and cannot know whether the clock stepped, so it recovers only claims of ended
/// sessions.
pub async fn without_a_clock_estimate_nothing_times_out(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.set(QueueSettings { retention_ms: 0, ..QueueSettings::default() }).await;
    test_queue.submit(ordinary(2)).await;
    let done = test_queue.claim(claim_request("w", 1)).await.remove(0);
    test_queue.complete(&done).await;
    let short =
        test_queue.claim(ClaimRequest { claim_timeout_ms: Some(1), ..claim_request("w", 1) }).await.remove(0);
    let waits = test_queue.submit_one(NewTask { max_wait_ms: Some(1), ..NewTask::default() }).await;
    let deadline = test_queue.task(short.id).await.claim_expires_at_ms.expect("it has one");
    lost_claim(subject, &test_queue.other_queue(super::test_queue::queue("other"))).await;
    let unsure = MaintenanceRequest { clock_ms: None, ..maintenance.request() };
    let (mut returned, mut late) = (0, false);
    while !late {
        let response = maintenance.session.store.maintain(&unsure).await.unwrap();
        assert_eq!((response.is_leader, response.dead, response.pruned), (true, 0, 0));
        returned += response.recovered;
        late = response.store_now_at_ms > deadline + 5;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(returned, 1, "the claim of the ended session is lost, independent of the clock");
    let ids = [done.id, short.id, waits];
    assert_eq!(test_queue.states(&ids).await, [TaskState::Completed, TaskState::Claimed, TaskState::Ready]);
    let response = maintenance.run_until(|sum| sum.recovered + sum.dead + sum.pruned >= 3).await;
    assert_eq!((response.recovered, response.dead, response.pruned), (1, 1, 1));
}

/// A task whose worker always dies is dead after its maximum number of attempts.
pub async fn a_task_whose_last_claim_is_lost_is_dead(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let parent = test_queue.submit_one(NewTask { max_attempts: 2, ..NewTask::default() }).await;
    let child = NewTask { parents: vec![ParentRef::Task(parent)], ..NewTask::default() };
    let child = test_queue.submit_one(child).await;
    for state in [TaskState::Ready, TaskState::Dead] {
        let session = subject.session("a").await;
        assert_eq!(ids(&test_queue.claim(claim_request_on(&session, 9)).await), [parent]);
        session.store.end_session(&session.id).await.unwrap();
        assert_eq!(maintenance.run().await.recovered, 1);
        assert_eq!(test_queue.state(parent).await, state);
    }
    let view = test_queue.task(parent).await;
    assert_eq!((view.attempt, view.failures.len(), view.finished_at_ms.is_some()), (2, 2, true));
    assert!(view.end_reason.is_some());
    assert_eq!(test_queue.state(child).await, TaskState::Dead, "it ends with its parent");
}

/// A task that no worker claims within its maximum wait is dead.
pub async fn a_task_past_its_maximum_wait_is_dead(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let patient = |max_wait_ms| NewTask { max_wait_ms, ..NewTask::default() };
    let numbers = test_queue.submit(vec![patient(Some(1)), patient(Some(HOUR_MS)), patient(None)]).await;
    let child = NewTask { parents: vec![ParentRef::Task(numbers[0])], ..NewTask::default() };
    let child = test_queue.submit_one(child).await;
    maintenance.run_until(|sum| sum.dead >= 1).await;
    use TaskState::{Dead, Ready};
    assert_eq!(test_queue.states(&numbers).await, [Dead, Ready, Ready]);
    let view = test_queue.task(numbers[0]).await;
    assert!(view.end_reason.is_some() && view.finished_at_ms.is_some() && view.attempt == 0);
    assert_eq!(test_queue.state(child).await, Dead);
    assert_eq!(test_queue.claim_all().await, numbers[1..]);
}

/// A claim ends the wait, and the next attempt starts a new one.
pub async fn a_claim_ends_the_maximum_wait(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let id = test_queue.submit_one(NewTask { max_wait_ms: Some(30), ..NewTask::default() }).await;
    let task = test_queue.claim_one().await;
    let ready_at = test_queue.task(id).await.ready_at_ms.expect("it was ready");
    while maintenance.run().await.store_now_at_ms < ready_at + 35 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(test_queue.state(id).await, TaskState::Claimed);
    test_queue.complete(&task).await;
}

/// Maintenance makes due tasks ready, even if no worker claims.
pub async fn maintenance_makes_due_tasks_ready(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let now = test_queue.task(test_queue.submit_one(NewTask::default()).await).await.submitted_at_ms;
    let at = |ms: i64| NewTask { run_at_ms: Some(now + ms), ..NewTask::default() };
    let numbers = test_queue.submit(vec![at(30), at(HOUR_MS.cast_signed())]).await;
    let mut due = 0;
    // On a slow machine the task may have been due at its submission and ready at once.
    while test_queue.state(numbers[0]).await == TaskState::Scheduled {
        let response = maintenance.run().await;
        due += response.promoted;
        if response.promoted == 0 {
            assert!(response.next_in.is_some_and(|next| next <= Duration::from_millis(HOUR_MS)));
        }
    }
    assert!(due <= 1);
    assert_eq!(test_queue.states(&numbers).await, [TaskState::Ready, TaskState::Scheduled]);
}

/// Finished tasks are pruned after the retention of the queue.
pub async fn finished_tasks_are_pruned_after_their_retention(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let numbers = test_queue.submit(ordinary(4)).await;
    let tasks = test_queue.claim(claim_request("w", 3)).await;
    test_queue.complete(&tasks[0]).await;
    test_queue.kill(&tasks[1]).await;
    test_queue.apply_action(tasks[2].id, TaskAction::Cancel).await;
    assert_eq!(maintenance.run().await.pruned, 0);
    test_queue.set(QueueSettings { retention_ms: 0, ..QueueSettings::default() }).await;
    assert_eq!(maintenance.run_until(|sum| sum.pruned >= 2).await.pruned, 2);
    let left = |n: usize| test_queue.store.task(&test_queue.key.namespace, numbers[n]);
    assert_eq!((left(0).await, left(2).await), (Ok(None), Ok(None)));
    assert_eq!(test_queue.states(&[numbers[1], numbers[3]]).await, [TaskState::Dead, TaskState::Ready]);
    test_queue.set(QueueSettings { dead_retention_ms: 0, ..QueueSettings::default() }).await;
    assert_eq!(maintenance.run_until(|sum| sum.pruned >= 1).await.pruned, 1);
    assert_eq!(left(1).await, Ok(None));
    assert_eq!(test_queue.settle(&tasks[0], ClaimOutcome::Complete(None)).await, SettleResult::ClaimLost);
    assert_eq!(test_queue.claim_all().await, [numbers[3]]);
}

/// A finished parent is kept while unfinished children need its result.
pub async fn a_parent_is_kept_for_its_children(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.set(QueueSettings { retention_ms: 0, ..QueueSettings::default() }).await;
    let child = NewTask { parents: vec![ParentRef::Index(1)], ..NewTask::default() };
    let numbers = test_queue.submit(vec![child, NewTask::default(), NewTask::default()]).await;
    for task in test_queue.claim(claim_request("w", 9)).await {
        let output = tenure_core::port::RawJson::of(&task.id.0).unwrap();
        test_queue.settle(&task, ClaimOutcome::Complete(Some(output))).await;
    }
    assert_eq!(maintenance.run_until(|sum| sum.pruned >= 1).await.pruned, 1);
    assert_eq!(test_queue.state(numbers[1]).await, TaskState::Completed);
    let child = test_queue.claim_one().await;
    assert_eq!(child.parent_results.keys().copied().collect::<Vec<_>>(), [numbers[1]]);
    test_queue.complete(&child).await;
    maintenance.run_until(|sum| sum.pruned >= 2).await;
    assert_eq!(test_queue.view().await.counts.values().sum::<u64>(), 0);
}

/// An idempotency key can be used again once its task is pruned.
pub async fn an_idempotency_key_is_free_after_its_task_is_pruned(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    test_queue.set(QueueSettings { retention_ms: 0, ..QueueSettings::default() }).await;
    let task = NewTask { idempotency_key: Some("k".into()), ..NewTask::default() };
    let submission = Submission { queue: test_queue.key.clone(), tasks: vec![task] };
    let first = test_queue.store.submit(&submission).await.unwrap()[0];
    let claimed = test_queue.claim_one().await;
    test_queue.complete(&claimed).await;
    maintenance.run_until(|sum| sum.pruned >= 1).await;
    let second = test_queue.store.submit(&submission).await.unwrap()[0];
    assert!(second.created && second.id != first.id, "{second:?} after {first:?}");
}

/// Each call handles at most `limit` objects, and the response says whether more remain.
pub async fn maintenance_works_in_limited_steps(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    let session = subject.session("a").await;
    test_queue.submit(ordinary(5)).await;
    test_queue.claim(claim_request_on(&session, 5)).await;
    session.store.end_session(&session.id).await.unwrap();
    let little = MaintenanceRequest { limit: 2, ..maintenance.request() };
    let mut returned = 0;
    for _ in 0..20 {
        let response = maintenance.session.store.maintain(&little).await.unwrap();
        assert!(response.recovered <= 2);
        returned += response.recovered;
        if returned < 5 {
            assert!(response.has_more, "{returned} of 5 returned: {response:?}");
        }
        if !response.has_more {
            break;
        }
    }
    assert_eq!(returned, 5);
    assert_eq!(test_queue.view().await.count(TaskState::Ready), 5);
}

/// Concurrent or repeated maintenance requests of the leader recover each claim once.
pub async fn concurrent_maintenance_recovers_each_claim_once(subject: &StoreUnderTest) {
    let (test_queue, maintenance) = (TestQueue::of(subject).await, TestMaintenance::of(subject).await);
    for _ in 0..4 {
        let session = subject.session("a").await;
        test_queue.submit(ordinary(20)).await;
        let lost = test_queue.claim(claim_request_on(&session, 100)).await;
        session.store.end_session(&session.id).await.unwrap();
        let mut calls = Vec::new();
        for _ in 0..3 {
            let (store, request) = (subject.client().await, maintenance.request());
            calls.push(tokio::spawn(
                async move { store.maintain(&request).await.expect("maintain").recovered },
            ));
        }
        let mut returned = 0;
        for tending in calls {
            returned += tending.await.expect("no panic");
        }
        assert_eq!(returned + maintenance.run().await.recovered, lost.len() as u64);
        for task in &lost {
            let view = test_queue.task(task.id).await;
            assert_eq!(view.failures.len() as u32, view.attempt, "each loss is counted once: {view:?}");
        }
    }
}

/// A session that ended with one claim.
async fn lost_claim(subject: &StoreUnderTest, test_queue: &TestQueue) -> TestSession {
    let session = subject.session("gone").await;
    test_queue.submit(ordinary(1)).await;
    test_queue.claim(claim_request_on(&session, 1)).await;
    session.store.end_session(&session.id).await.unwrap();
    session
}
