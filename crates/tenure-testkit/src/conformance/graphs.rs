//! Claims about tasks that depend on others.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::port::{
    Json, NewTask, Order, Outcome, Parent, QueueKey, Settled, Submission, TaskId, TaskState, Trouble,
};

use super::Subject;
use super::floor::{Floor, HOUR_MS, failure, ids, ordinary, seat};

use TaskState::{Cancelled, Completed, Dead, Ready, Scheduled, Waiting};

/// A task that waits for tasks that are there.
fn after(parents: &[TaskId]) -> NewTask {
    NewTask { parents: parents.iter().copied().map(Parent::Task).collect(), ..NewTask::default() }
}

/// A task that waits for others of its submission.
fn after_index(parents: &[u32]) -> NewTask {
    NewTask { parents: parents.iter().copied().map(Parent::Index).collect(), ..NewTask::default() }
}

/// Submitted together, in any order, with several roots.
pub async fn children_wait_for_all_their_parents(subject: &Subject) {
    let floor = Floor::of(subject).await;
    // 0 waits for 1 and 3, 2 waits for 0; 1 and 3 are the roots.
    let tasks = vec![after_index(&[1, 3]), NewTask::default(), after_index(&[0]), NewTask::default()];
    let numbers = floor.submit(tasks).await;
    assert_eq!(floor.states(&numbers).await, [Waiting, Ready, Waiting, Ready]);
    let view = floor.task(numbers[0]).await;
    assert_eq!((view.parents, view.children), (vec![numbers[1], numbers[3]], vec![numbers[2]]));
    let roots = floor.claim(seat("w", 9)).await;
    assert_eq!(ids(&roots), [numbers[1], numbers[3]]);
    floor.complete(&roots[0]).await;
    assert_eq!(floor.states(&numbers).await, [Waiting, Completed, Waiting, TaskState::Claimed]);
    floor.complete(&roots[1]).await;
    assert_eq!(floor.states(&numbers).await, [Ready, Completed, Waiting, Completed]);
    let middle = floor.claim_one().await;
    floor.complete(&middle).await;
    let last = floor.claim_one().await;
    assert_eq!((middle.id, last.id), (numbers[0], numbers[2]));
}

/// What the parents said, by their numbers.
pub async fn outputs_are_inputs(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let elsewhere = floor.beside(super::floor::queue("other"));
    let far = elsewhere.submit_one(NewTask::default()).await;
    let mut parents = floor.submit(ordinary(2)).await;
    parents.push(far);
    let child = floor.submit_one(after(&parents)).await;
    let mut expected = BTreeMap::new();
    let mut tasks = floor.claim(seat("w", 9)).await;
    tasks.extend(elsewhere.claim(seat("w", 9)).await);
    for (task, output) in tasks.iter().zip([r#"{"a":"o'ne"}"#, "", "3"]) {
        let output: Option<Json> = output.parse().ok();
        expected.extend(output.clone().map(|output| (task.id, output)));
        assert_eq!(floor.settle(task, Outcome::Complete(output)).await, Settled::Now(Completed));
    }
    let claimed = floor.claim_one().await;
    assert_eq!((claimed.id, claimed.inputs.clone()), (child, expected.clone()));
    floor.settle(&claimed, Outcome::Release).await;
    assert_eq!(floor.claim_one().await.inputs, expected, "each time anew");
}

/// Whatever the reason, all that wait for it share its fate, and say so.
pub async fn a_dead_parent_takes_its_descendants_with_it(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let tasks = vec![
        NewTask::default(),
        after_index(&[0, 4]),
        after_index(&[1]),
        NewTask::default(),
        NewTask::default(),
    ];
    let numbers = floor.submit(tasks).await;
    let roots = floor.claim(seat("w", 9)).await;
    floor.settle(&roots[0], failure(false, Duration::ZERO)).await;
    floor.complete(&roots[2]).await;
    assert_eq!(floor.states(&numbers).await, [Dead, Dead, Dead, TaskState::Claimed, Completed]);
    for n in [1, 2] {
        let view = floor.task(numbers[n]).await;
        let reason = view.reason.expect("it says why");
        assert!(reason.contains(&numbers[n - 1].to_string()) || reason.contains(&numbers[0].to_string()));
        assert!(view.finished_at_ms.is_some() && view.attempt == 0);
    }
    assert_eq!(floor.claim_all().await, []);
}

/// One order calls the whole graph off, and nothing beside it.
pub async fn cancelling_a_task_cancels_what_waits_for_it(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let tasks = vec![NewTask::default(), after_index(&[0]), after_index(&[1, 3]), NewTask::default()];
    let numbers = floor.submit(tasks).await;
    let claimed = floor.claim(seat("w", 1)).await.remove(0);
    assert_eq!(claimed.id, numbers[0]);
    assert_eq!(floor.order(numbers[0], Order::Cancel).await, numbers[..3]);
    assert_eq!(floor.states(&numbers).await, [Cancelled, Cancelled, Cancelled, Ready]);
    assert_eq!(floor.settle(&claimed, Outcome::Complete(None)).await, Settled::Lost);
    assert_eq!(floor.order(numbers[0], Order::Cancel).await, []);
    let view = floor.task(numbers[2]).await;
    assert!(view.reason.is_some() && view.finished_at_ms.is_some());
}

/// A graph that died of its root comes back with it.
pub async fn retrying_a_task_brings_back_what_waits_for_it(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor.submit(vec![NewTask::default(), after_index(&[0]), after_index(&[1])]).await;
    for cancel in [false, true] {
        let root = floor.claim_one().await;
        if cancel {
            floor.order(numbers[0], Order::Cancel).await;
        } else {
            floor.kill(&root).await;
        }
        let fate = if cancel { Cancelled } else { Dead };
        assert_eq!(floor.states(&numbers).await, [fate; 3]);
        assert_eq!(floor.order(numbers[0], Order::Retry).await, numbers);
        assert_eq!(floor.states(&numbers).await, [Ready, Waiting, Waiting]);
        let child = floor.task(numbers[1]).await;
        assert_eq!((child.reason, child.finished_at_ms), (None, None));
    }
    for id in &numbers {
        let task = floor.claim_one().await;
        assert_eq!(task.id, *id);
        floor.complete(&task).await;
    }
}

/// A child whose other parent is dead stays as it is, until that one is retried too.
pub async fn a_child_comes_back_only_when_all_parents_do(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let numbers = floor.submit(vec![NewTask::default(), NewTask::default(), after_index(&[0, 1])]).await;
    for task in floor.claim(seat("w", 9)).await {
        floor.kill(&task).await;
    }
    floor.order(numbers[0], Order::Retry).await;
    let child = floor.state(numbers[2]).await;
    assert!(child == Dead || child == Waiting, "{child:?}");
    let task = floor.claim_one().await;
    floor.complete(&task).await;
    assert_ne!(floor.state(numbers[2]).await, Ready, "its other parent is dead");
    floor.order(numbers[1], Order::Retry).await;
    let task = floor.claim_one().await;
    assert_eq!(task.id, numbers[1]);
    floor.complete(&task).await;
    assert_eq!(floor.claim_all().await, [numbers[2]]);
}

/// A task that finds more to do while it runs submits it for after itself.
pub async fn children_may_be_added_while_a_task_runs(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let parent = floor.submit_one(NewTask::default()).await;
    let claimed = floor.claim_one().await;
    let children = floor.submit(vec![after(&[parent]), after(&[parent])]).await;
    assert_eq!(floor.states(&children).await, [Waiting; 2]);
    assert_eq!(floor.task(parent).await.children, children);
    floor.settle(&claimed, failure(true, Duration::ZERO)).await;
    assert_eq!(floor.states(&children).await, [Waiting; 2]);
    let again = floor.claim_one().await;
    floor.complete(&again).await;
    assert_eq!(floor.claim_all().await, children);
}

/// The parents' end does not bring its time nearer.
pub async fn a_child_waits_for_its_time_too(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let parent = floor.submit_one(NewTask::default()).await;
    let run_at_ms = Some(floor.task(parent).await.enqueued_at_ms + HOUR_MS.cast_signed());
    let child = floor.submit_one(NewTask { run_at_ms, ..after(&[parent]) }).await;
    assert_eq!(floor.state(child).await, Waiting);
    let claimed = floor.claim_one().await;
    floor.complete(&claimed).await;
    assert_eq!(floor.state(child).await, Scheduled);
    assert_eq!(floor.claim_all().await, []);
}

/// The same parent twice is one parent.
pub async fn a_parent_that_is_named_twice_counts_once(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let keyed = NewTask { key: Some("k".into()), ..NewTask::default() };
    let numbers = floor.submit(vec![keyed.clone(), keyed, after_index(&[0, 1])]).await;
    assert_eq!(numbers[0], numbers[1]);
    assert_eq!(floor.task(numbers[2]).await.parents, [numbers[0]]);
    let root = floor.claim_one().await;
    floor.complete(&root).await;
    assert_eq!(floor.claim_all().await, [numbers[2]]);
}

/// The last two parents end at the same moment.
pub async fn parents_that_end_together_free_their_child(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let others = [floor.again(subject).await, floor.again(subject).await];
    for _ in 0..10 {
        let numbers = floor.submit(vec![NewTask::default(), NewTask::default(), after_index(&[0, 1])]).await;
        let roots = floor.claim(seat("w", 9)).await;
        let ends: Vec<_> = others
            .iter()
            .cloned()
            .zip(roots)
            .map(|(floor, task)| tokio::spawn(async move { floor.complete(&task).await }))
            .collect();
        for end in ends {
            end.await.expect("no panic");
        }
        let child = floor.claim_one().await;
        assert_eq!(child.id, numbers[2]);
        floor.complete(&child).await;
    }
}

/// A child that is submitted while its parent ends is never forgotten: it gets ready, or is refused, or shares the fate.
pub async fn a_child_is_not_lost_while_its_parent_ends(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let other = floor.again(subject).await;
    for round in 0..12 {
        let parent = floor.submit_one(NewTask::default()).await;
        let claimed = floor.claim_one().await;
        let submission = Submission { queue: floor.key.clone(), tasks: vec![after(&[parent])] };
        let ender = other.clone();
        let ending = tokio::spawn(async move {
            match round % 3 {
                0 => ender.complete(&claimed).await,
                1 => ender.kill(&claimed).await,
                _ => drop(ender.order(claimed.id, Order::Cancel).await),
            }
        });
        let submitted = floor.store.submit(&submission).await;
        ending.await.expect("no panic");
        let expected = [Ready, Dead, Cancelled][round % 3];
        match submitted {
            Ok(child) => assert_eq!(floor.state(child[0].id).await, expected, "round {round}"),
            Err(error) => assert!(error.kind == Trouble::Request && round % 3 > 0, "round {round}: {error}"),
        }
        for task in floor.claim(seat("w", 9)).await {
            floor.complete(&task).await;
        }
    }
}

/// Parents of a graph may stand in several queues of a namespace, and only there.
pub async fn a_graph_spans_queues(subject: &Subject) {
    let floor = Floor::of(subject).await;
    let next = floor.beside(QueueKey::new(floor.key.namespace.clone(), "next".parse().unwrap()));
    let parent = floor.submit_one(NewTask::default()).await;
    let child = next.submit_one(after(&[parent])).await;
    assert_eq!(next.claim_all().await, []);
    let claimed = floor.claim_one().await;
    floor.complete(&claimed).await;
    assert_eq!(next.claim_all().await, [child]);
}
