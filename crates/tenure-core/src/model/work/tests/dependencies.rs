//! Parents and children.

use super::*;
use crate::port::ErrorKind;

use TaskState::{Cancelled, Completed, Dead, Ready, Scheduled, Waiting};

#[test]
fn a_child_waits_for_all_its_parents_and_gets_their_results() {
    let mut fixture = TestQueue::new();
    let index = |i| ParentRef::Index(i);
    // The submission has two roots, and the child comes before them.
    let child = NewTask { parents: vec![index(1), index(2), index(1)], ..task() };
    let ids = fixture.submit(vec![child, task(), task()]);
    assert_eq!(fixture.states(&ids), [Waiting, Ready, Ready]);
    let roots = fixture.claim(9);
    fixture.settle(&roots[0], ClaimOutcome::Complete(Some(json("\"a\""))));
    assert_eq!(fixture.state(ids[0]), Waiting);
    fixture.settle(&roots[1], ClaimOutcome::Complete(None));
    let claim = fixture.claim_one();
    assert_eq!(claim.id, ids[0]);
    assert_eq!(claim.parent_results.into_iter().collect::<Vec<_>>(), [(ids[1], json("\"a\""))]);
    assert_eq!(fixture.view(ids[1]).children, [ids[0]]);
    assert_eq!(fixture.view(ids[0]).parents, [ids[1], ids[2]]);
}

#[test]
fn a_child_may_be_added_while_its_parent_runs_or_after() {
    let mut fixture = TestQueue::new();
    let parent = fixture.submit_one(task());
    let claim = fixture.claim_one();
    let child = fixture.submit_one(after(&[parent]));
    assert_eq!(fixture.state(child), Waiting);
    fixture.settle(&claim, ClaimOutcome::Complete(Some(json("1"))));
    assert_eq!(fixture.state(child), Ready);
    let late = fixture.submit_one(after(&[parent]));
    assert_eq!(fixture.state(late), Ready);
    assert_eq!(fixture.claim(2)[1].parent_results[&parent], json("1"));
}

#[test]
fn a_child_with_a_future_start_is_scheduled_after_its_parents() {
    let mut fixture = TestQueue::new();
    let parent = fixture.submit_one(task());
    let child = fixture.submit_one(NewTask { run_at_ms: Some(START + 9), ..after(&[parent]) });
    let claim = fixture.claim_one();
    fixture.complete(&claim);
    assert_eq!(fixture.state(child), Scheduled);
}

#[test]
fn all_descendants_of_a_dead_or_cancelled_task_end_with_it() {
    let mut fixture = TestQueue::new();
    for cascaded_from in [Dead, Cancelled] {
        let root = fixture.submit_one(task());
        let other = fixture.submit_one(task());
        let child = fixture.submit_one(after(&[root, other]));
        let grandchild = fixture.submit_one(after(&[child]));
        match cascaded_from {
            Dead => assert_eq!(fixture.kill_next(), root),
            _ => assert_eq!(fixture.apply_action(&[root], TaskAction::Cancel), [root, child, grandchild]),
        }
        assert_eq!(
            fixture.states(&[root, other, child, grandchild]),
            [cascaded_from, Ready, cascaded_from, cascaded_from]
        );
        let word = cascaded_from.as_str();
        assert_eq!(fixture.view(child).end_reason, Some(format!("parent {root} is {word}")));
        assert_eq!(fixture.view(grandchild).end_reason, Some(format!("parent {child} is {word}")));
        let claim = fixture.claim_one();
        fixture.complete(&claim);
    }
}

#[test]
fn an_unknown_or_dead_parent_is_rejected_by_name() {
    let mut fixture = TestQueue::new();
    let lost = fixture.submit_one(task());
    fixture.kill_next();
    let error = fixture.try_submit(vec![task(), after(&[lost])]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Request);
    assert!(error.message.contains(&format!("task 1: parent {lost} is dead")), "{error}");
    assert!(error.message.contains(&format!("tenure tasks retry {lost}")), "{error}");
    // A task of another namespace does not exist here.
    let queue = QueueKey::new(name("other"), name("q"));
    let there = Submission { queue, tasks: vec![after(&[lost])] };
    let error = fixture.work.submit(&there, fixture.now).unwrap_err();
    assert!(error.message.contains(&format!("parent {lost} does not exist in namespace other")), "{error}");
}

#[test]
fn a_key_of_a_dead_task_is_no_parent() {
    let mut fixture = TestQueue::new();
    let once = NewTask { idempotency_key: Some("k".into()), ..task() };
    fixture.submit_one(once.clone());
    fixture.kill_next();
    let child = NewTask { parents: vec![ParentRef::Index(0)], ..task() };
    assert!(fixture.try_submit(vec![once, child]).is_err());
}

#[test]
fn a_graph_is_retried_from_its_dead_root() {
    let mut fixture = TestQueue::new();
    let root = fixture.submit_one(NewTask { max_attempts: 1, ..task() });
    let child = fixture.submit_one(after(&[root]));
    let grandchild = fixture.submit_one(after(&[child]));
    fixture.kill_next();
    assert_eq!(fixture.apply_action(&[child], TaskAction::Retry), [], "its parent would block it forever");
    assert_eq!(fixture.apply_action(&[root], TaskAction::Retry), [root, child, grandchild]);
    assert_eq!(fixture.states(&[root, child, grandchild]), [Ready, Waiting, Waiting]);
    let view = fixture.view(root);
    assert_eq!((view.attempt, view.failures.len(), view.end_reason), (0, 1, None));
    for id in [root, child, grandchild] {
        let claim = fixture.claim_one();
        assert_eq!(claim.id, id);
        fixture.complete(&claim);
    }
    assert_eq!(fixture.states(&[root, child, grandchild]), [Completed; 3]);
}

#[test]
fn a_child_of_two_dead_parents_is_retried_with_the_second() {
    let mut fixture = TestQueue::new();
    let parents = fixture.submit(vec![task(), task()]);
    let child = fixture.submit_one(after(&parents));
    fixture.kill_next();
    fixture.kill_next();
    assert_eq!(fixture.apply_action(&parents[..1], TaskAction::Retry), [parents[0]]);
    assert_eq!(fixture.state(child), Dead);
    assert_eq!(fixture.view(child).end_reason, Some(format!("parent {} is dead", parents[1])));
    assert_eq!(fixture.apply_action(&parents[1..], TaskAction::Retry), [parents[1], child]);
    assert_eq!(fixture.state(child), Waiting);
}

#[test]
fn a_child_that_was_cancelled_itself_is_not_retried_with_its_parent() {
    let mut fixture = TestQueue::new();
    let parent = fixture.submit_one(task());
    let children = fixture.submit(vec![after(&[parent]), after(&[parent])]);
    assert_eq!(fixture.apply_action(&children[..1], TaskAction::Cancel), children[..1]);
    assert_eq!(fixture.apply_action(&[parent], TaskAction::Cancel), [parent, children[1]]);
    assert_eq!(fixture.apply_action(&[parent], TaskAction::Retry), [parent, children[1]]);
    assert_eq!(fixture.states(&children), [Cancelled, Waiting]);
}

#[test]
fn the_order_of_a_graph_does_not_matter() {
    let mut fixture = TestQueue::new();
    let child = NewTask { parents: vec![ParentRef::Index(1)], ..task() };
    let ids = fixture.submit(vec![child, task()]);
    assert_eq!(fixture.apply_action(&[ids[0]], TaskAction::Cancel), [ids[0]]);
    assert_eq!(fixture.apply_action(&[ids[1]], TaskAction::Cancel), [ids[1]]);
    assert_eq!(fixture.apply_action(&ids, TaskAction::Retry), ids);
    assert_eq!(fixture.states(&ids), [Waiting, Ready]);
}

#[test]
fn a_parent_is_kept_while_a_child_may_need_its_result() {
    let mut fixture = TestQueue::new();
    fixture.set(QueueSettings { retention_ms: 1_000, dead_retention_ms: 5_000, ..QueueSettings::default() });
    let parent = fixture.submit_one(task());
    let child = fixture.submit_one(after(&[parent]));
    let claim = fixture.claim_one();
    fixture.complete(&claim);
    fixture.now += 2_000;
    assert_eq!(fixture.maintain().pruned, 0);
    assert_eq!(fixture.kill_next(), child);
    fixture.now += 2_000;
    assert_eq!(fixture.maintain().pruned, 0, "it may be retried");
    fixture.now += 4_000;
    assert_eq!((fixture.maintain().pruned, fixture.maintain().pruned, fixture.maintain().pruned), (1, 1, 0));
}
