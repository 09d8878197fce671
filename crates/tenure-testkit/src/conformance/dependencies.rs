//! Tasks that depend on others.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::port::{
    ClaimOutcome, ErrorKind, NewTask, ParentRef, QueueKey, RawJson, SettleResult, Submission, TaskAction,
    TaskId, TaskState,
};

use super::StoreUnderTest;
use super::test_queue::{HOUR_MS, TestQueue, claim_request, failure, ids, ordinary};

use TaskState::{Cancelled, Completed, Dead, Ready, Scheduled, Waiting};

/// A task that depends on stored tasks.
fn after(parents: &[TaskId]) -> NewTask {
    NewTask { parents: parents.iter().copied().map(ParentRef::Task).collect(), ..NewTask::default() }
}

/// A task that depends on others of its submission.
fn after_index(parents: &[u32]) -> NewTask {
    NewTask { parents: parents.iter().copied().map(ParentRef::Index).collect(), ..NewTask::default() }
}

/// Parents and children may be submitted together in any order, with several roots.
pub async fn children_wait_for_all_their_parents(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    // 0 depends on 1 and 3, and 2 on 0; 1 and 3 are the roots.
    let tasks = vec![after_index(&[1, 3]), NewTask::default(), after_index(&[0]), NewTask::default()];
    let numbers = test_queue.submit(tasks).await;
    assert_eq!(test_queue.states(&numbers).await, [Waiting, Ready, Waiting, Ready]);
    let view = test_queue.task(numbers[0]).await;
    assert_eq!((view.parents, view.children), (vec![numbers[1], numbers[3]], vec![numbers[2]]));
    let roots = test_queue.claim(claim_request("w", 9)).await;
    assert_eq!(ids(&roots), [numbers[1], numbers[3]]);
    test_queue.complete(&roots[0]).await;
    assert_eq!(test_queue.states(&numbers).await, [Waiting, Completed, Waiting, TaskState::Claimed]);
    test_queue.complete(&roots[1]).await;
    assert_eq!(test_queue.states(&numbers).await, [Ready, Completed, Waiting, Completed]);
    let middle = test_queue.claim_one().await;
    test_queue.complete(&middle).await;
    let last = test_queue.claim_one().await;
    assert_eq!((middle.id, last.id), (numbers[0], numbers[2]));
}

/// A worker receives the results of the parents by their ids.
pub async fn a_child_receives_the_results_of_its_parents(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let elsewhere = test_queue.other_queue(super::test_queue::queue("other"));
    let far = elsewhere.submit_one(NewTask::default()).await;
    let mut parents = test_queue.submit(ordinary(2)).await;
    parents.push(far);
    let child = test_queue.submit_one(after(&parents)).await;
    let mut expected = BTreeMap::new();
    let mut tasks = test_queue.claim(claim_request("w", 9)).await;
    tasks.extend(elsewhere.claim(claim_request("w", 9)).await);
    for (task, output) in tasks.iter().zip([r#"{"a":"o'ne"}"#, "", "3"]) {
        let output: Option<RawJson> = output.parse().ok();
        expected.extend(output.clone().map(|output| (task.id, output)));
        assert_eq!(
            test_queue.settle(task, ClaimOutcome::Complete(output)).await,
            SettleResult::Applied(Completed)
        );
    }
    let claimed = test_queue.claim_one().await;
    assert_eq!((claimed.id, claimed.parent_results.clone()), (child, expected.clone()));
    test_queue.settle(&claimed, ClaimOutcome::Release).await;
    assert_eq!(test_queue.claim_one().await.parent_results, expected, "in every attempt");
}

/// All descendants of a dead task are dead too, with a reason.
pub async fn descendants_of_a_dead_parent_are_dead(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let tasks = vec![
        NewTask::default(),
        after_index(&[0, 4]),
        after_index(&[1]),
        NewTask::default(),
        NewTask::default(),
    ];
    let numbers = test_queue.submit(tasks).await;
    let roots = test_queue.claim(claim_request("w", 9)).await;
    test_queue.settle(&roots[0], failure(false, Duration::ZERO)).await;
    test_queue.complete(&roots[2]).await;
    assert_eq!(test_queue.states(&numbers).await, [Dead, Dead, Dead, TaskState::Claimed, Completed]);
    for n in [1, 2] {
        let view = test_queue.task(numbers[n]).await;
        let reason = view.end_reason.expect("it has a reason");
        assert!(reason.contains(&numbers[n - 1].to_string()) || reason.contains(&numbers[0].to_string()));
        assert!(view.finished_at_ms.is_some() && view.attempt == 0);
    }
    assert_eq!(test_queue.claim_all().await, []);
}

/// Cancelling a task cancels all its dependents and no other task.
pub async fn cancelling_a_task_cancels_its_dependents(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let tasks = vec![NewTask::default(), after_index(&[0]), after_index(&[1, 3]), NewTask::default()];
    let numbers = test_queue.submit(tasks).await;
    let claimed = test_queue.claim(claim_request("w", 1)).await.remove(0);
    assert_eq!(claimed.id, numbers[0]);
    assert_eq!(test_queue.apply_action(numbers[0], TaskAction::Cancel).await, numbers[..3]);
    assert_eq!(test_queue.states(&numbers).await, [Cancelled, Cancelled, Cancelled, Ready]);
    assert_eq!(test_queue.settle(&claimed, ClaimOutcome::Complete(None)).await, SettleResult::ClaimLost);
    assert_eq!(test_queue.apply_action(numbers[0], TaskAction::Cancel).await, []);
    let view = test_queue.task(numbers[2]).await;
    assert!(view.end_reason.is_some() && view.finished_at_ms.is_some());
}

/// Retrying the root retries the dependents that ended because of it.
pub async fn retrying_a_task_retries_its_dependents(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue.submit(vec![NewTask::default(), after_index(&[0]), after_index(&[1])]).await;
    for cancel in [false, true] {
        let root = test_queue.claim_one().await;
        if cancel {
            test_queue.apply_action(numbers[0], TaskAction::Cancel).await;
        } else {
            test_queue.kill(&root).await;
        }
        let outcome = if cancel { Cancelled } else { Dead };
        assert_eq!(test_queue.states(&numbers).await, [outcome; 3]);
        assert_eq!(test_queue.apply_action(numbers[0], TaskAction::Retry).await, numbers);
        assert_eq!(test_queue.states(&numbers).await, [Ready, Waiting, Waiting]);
        let child = test_queue.task(numbers[1]).await;
        assert_eq!((child.end_reason, child.finished_at_ms), (None, None));
    }
    for id in &numbers {
        let task = test_queue.claim_one().await;
        assert_eq!(task.id, *id);
        test_queue.complete(&task).await;
    }
}

/// A child with another dead parent stays dead until that parent is retried too.
pub async fn a_child_is_retried_only_after_all_its_parents(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let numbers = test_queue.submit(vec![NewTask::default(), NewTask::default(), after_index(&[0, 1])]).await;
    for task in test_queue.claim(claim_request("w", 9)).await {
        test_queue.kill(&task).await;
    }
    test_queue.apply_action(numbers[0], TaskAction::Retry).await;
    let child = test_queue.state(numbers[2]).await;
    assert!(child == Dead || child == Waiting, "{child:?}");
    let task = test_queue.claim_one().await;
    test_queue.complete(&task).await;
    assert_ne!(test_queue.state(numbers[2]).await, Ready, "its other parent is dead");
    test_queue.apply_action(numbers[1], TaskAction::Retry).await;
    let task = test_queue.claim_one().await;
    assert_eq!(task.id, numbers[1]);
    test_queue.complete(&task).await;
    assert_eq!(test_queue.claim_all().await, [numbers[2]]);
}

/// A running task can submit tasks that depend on itself.
pub async fn children_may_be_added_while_a_task_runs(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let parent = test_queue.submit_one(NewTask::default()).await;
    let claimed = test_queue.claim_one().await;
    let children = test_queue.submit(vec![after(&[parent]), after(&[parent])]).await;
    assert_eq!(test_queue.states(&children).await, [Waiting; 2]);
    assert_eq!(test_queue.task(parent).await.children, children);
    test_queue.settle(&claimed, failure(true, Duration::ZERO)).await;
    assert_eq!(test_queue.states(&children).await, [Waiting; 2]);
    let again = test_queue.claim_one().await;
    test_queue.complete(&again).await;
    assert_eq!(test_queue.claim_all().await, children);
}

/// Completed parents do not make a scheduled child start earlier.
pub async fn a_scheduled_child_waits_for_its_time(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let parent = test_queue.submit_one(NewTask::default()).await;
    let run_at_ms = Some(test_queue.task(parent).await.submitted_at_ms + HOUR_MS.cast_signed());
    let child = test_queue.submit_one(NewTask { run_at_ms, ..after(&[parent]) }).await;
    assert_eq!(test_queue.state(child).await, Waiting);
    let claimed = test_queue.claim_one().await;
    test_queue.complete(&claimed).await;
    assert_eq!(test_queue.state(child).await, Scheduled);
    assert_eq!(test_queue.claim_all().await, []);
}

/// A parent that is named twice counts once.
pub async fn a_parent_that_is_named_twice_counts_once(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let keyed = NewTask { idempotency_key: Some("k".into()), ..NewTask::default() };
    let numbers = test_queue.submit(vec![keyed.clone(), keyed, after_index(&[0, 1])]).await;
    assert_eq!(numbers[0], numbers[1]);
    assert_eq!(test_queue.task(numbers[2]).await.parents, [numbers[0]]);
    let root = test_queue.claim_one().await;
    test_queue.complete(&root).await;
    assert_eq!(test_queue.claim_all().await, [numbers[2]]);
}

/// Two workers complete the last two parents at the same time; the child becomes ready.
pub async fn parents_that_complete_concurrently_release_their_child(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let others = [test_queue.reopen(subject).await, test_queue.reopen(subject).await];
    for _ in 0..10 {
        let numbers =
            test_queue.submit(vec![NewTask::default(), NewTask::default(), after_index(&[0, 1])]).await;
        let roots = test_queue.claim(claim_request("w", 9)).await;
        let ends: Vec<_> = others
            .iter()
            .cloned()
            .zip(roots)
            .map(|(test_queue, task)| tokio::spawn(async move { test_queue.complete(&task).await }))
            .collect();
        for end in ends {
            end.await.expect("no panic");
        }
        let child = test_queue.claim_one().await;
        assert_eq!(child.id, numbers[2]);
        test_queue.complete(&child).await;
    }
}

/// A child submitted while its parent ends becomes ready, is rejected, or ends with it; it is never lost.
pub async fn a_child_is_not_lost_while_its_parent_ends(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let other = test_queue.reopen(subject).await;
    for round in 0..12 {
        let parent = test_queue.submit_one(NewTask::default()).await;
        let claimed = test_queue.claim_one().await;
        let submission = Submission { queue: test_queue.key.clone(), tasks: vec![after(&[parent])] };
        let ender = other.clone();
        let ending = tokio::spawn(async move {
            match round % 3 {
                0 => ender.complete(&claimed).await,
                1 => ender.kill(&claimed).await,
                _ => drop(ender.apply_action(claimed.id, TaskAction::Cancel).await),
            }
        });
        let submitted = test_queue.store.submit(&submission).await;
        ending.await.expect("no panic");
        let expected = [Ready, Dead, Cancelled][round % 3];
        match submitted {
            Ok(child) => assert_eq!(test_queue.state(child[0].id).await, expected, "round {round}"),
            Err(error) => {
                assert!(error.kind == ErrorKind::Request && round % 3 > 0, "round {round}: {error}")
            }
        }
        for task in test_queue.claim(claim_request("w", 9)).await {
            test_queue.complete(&task).await;
        }
    }
}

/// The tasks of a graph may be in several queues of one namespace.
pub async fn a_graph_spans_queues(subject: &StoreUnderTest) {
    let test_queue = TestQueue::of(subject).await;
    let next =
        test_queue.other_queue(QueueKey::new(test_queue.key.namespace.clone(), "next".parse().unwrap()));
    let parent = test_queue.submit_one(NewTask::default()).await;
    let child = next.submit_one(after(&[parent])).await;
    assert_eq!(next.claim_all().await, []);
    let claimed = test_queue.claim_one().await;
    test_queue.complete(&claimed).await;
    assert_eq!(next.claim_all().await, [child]);
}
