//! Parents and children.

use super::*;
use crate::port::Trouble;

use TaskState::{Cancelled, Completed, Dead, Ready, Scheduled, Waiting};

#[test]
fn a_child_waits_for_all_its_parents_and_gets_their_outputs() {
    let mut yard = Yard::new();
    let index = |i| Parent::Index(i);
    // Two roots, and the child stands before them.
    let child = NewTask { parents: vec![index(1), index(2), index(1)], ..task() };
    let ids = yard.submit(vec![child, task(), task()]);
    assert_eq!(yard.states(&ids), [Waiting, Ready, Ready]);
    let roots = yard.claim(9);
    yard.settle(&roots[0], Outcome::Complete(Some(json("\"a\""))));
    assert_eq!(yard.state(ids[0]), Waiting);
    yard.settle(&roots[1], Outcome::Complete(None));
    let claim = yard.claim_one();
    assert_eq!(claim.id, ids[0]);
    assert_eq!(claim.inputs.into_iter().collect::<Vec<_>>(), [(ids[1], json("\"a\""))]);
    assert_eq!(yard.view(ids[1]).children, [ids[0]]);
    assert_eq!(yard.view(ids[0]).parents, [ids[1], ids[2]]);
}

#[test]
fn a_child_may_be_added_while_its_parent_runs_or_after() {
    let mut yard = Yard::new();
    let parent = yard.submit_one(task());
    let claim = yard.claim_one();
    let child = yard.submit_one(after(&[parent]));
    assert_eq!(yard.state(child), Waiting);
    yard.settle(&claim, Outcome::Complete(Some(json("1"))));
    assert_eq!(yard.state(child), Ready);
    let late = yard.submit_one(after(&[parent]));
    assert_eq!(yard.state(late), Ready);
    assert_eq!(yard.claim(2)[1].inputs[&parent], json("1"));
}

#[test]
fn a_child_whose_time_has_not_come_is_scheduled_when_its_parents_are_done() {
    let mut yard = Yard::new();
    let parent = yard.submit_one(task());
    let child = yard.submit_one(NewTask { run_at_ms: Some(START + 9), ..after(&[parent]) });
    let claim = yard.claim_one();
    yard.complete(&claim);
    assert_eq!(yard.state(child), Scheduled);
}

#[test]
fn all_descendants_share_the_fate_of_a_dead_or_cancelled_one() {
    let mut yard = Yard::new();
    for fate in [Dead, Cancelled] {
        let root = yard.submit_one(task());
        let other = yard.submit_one(task());
        let child = yard.submit_one(after(&[root, other]));
        let grandchild = yard.submit_one(after(&[child]));
        match fate {
            Dead => assert_eq!(yard.kill_next(), root),
            _ => assert_eq!(yard.order(&[root], Order::Cancel), [root, child, grandchild]),
        }
        assert_eq!(yard.states(&[root, other, child, grandchild]), [fate, Ready, fate, fate]);
        let word = fate.as_str();
        assert_eq!(yard.view(child).reason, Some(format!("its parent {root} is {word}")));
        assert_eq!(yard.view(grandchild).reason, Some(format!("its parent {child} is {word}")));
        let claim = yard.claim_one();
        yard.complete(&claim);
    }
}

#[test]
fn a_parent_that_is_not_there_or_lost_is_refused_by_name() {
    let mut yard = Yard::new();
    let lost = yard.submit_one(task());
    yard.kill_next();
    let error = yard.try_submit(vec![task(), after(&[lost])]).unwrap_err();
    assert_eq!(error.kind, Trouble::Request);
    assert!(error.message.contains(&format!("task 1: its parent {lost} is dead")), "{error}");
    assert!(error.message.contains(&format!("tenure tasks retry {lost}")), "{error}");
    // Of another namespace is as good as none.
    let queue = QueueKey::new(name("other"), name("q"));
    let there = Submission { queue, tasks: vec![after(&[lost])] };
    let error = yard.ledger.submit(&there, yard.now).unwrap_err();
    assert!(error.message.contains(&format!("no task {lost} in namespace other")), "{error}");
}

#[test]
fn a_key_that_stands_for_a_lost_task_is_no_parent() {
    let mut yard = Yard::new();
    let once = NewTask { key: Some("k".into()), ..task() };
    yard.submit_one(once.clone());
    yard.kill_next();
    let child = NewTask { parents: vec![Parent::Index(0)], ..task() };
    assert!(yard.try_submit(vec![once, child]).is_err());
}

#[test]
fn a_graph_is_retried_from_where_it_fell() {
    let mut yard = Yard::new();
    let root = yard.submit_one(NewTask { max_attempts: 1, ..task() });
    let child = yard.submit_one(after(&[root]));
    let grandchild = yard.submit_one(after(&[child]));
    yard.kill_next();
    assert_eq!(yard.order(&[child], Order::Retry), [], "its parent would keep it for ever");
    assert_eq!(yard.order(&[root], Order::Retry), [root, child, grandchild]);
    assert_eq!(yard.states(&[root, child, grandchild]), [Ready, Waiting, Waiting]);
    let view = yard.view(root);
    assert_eq!((view.attempt, view.failures.len(), view.reason), (0, 1, None));
    for id in [root, child, grandchild] {
        let claim = yard.claim_one();
        assert_eq!(claim.id, id);
        yard.complete(&claim);
    }
    assert_eq!(yard.states(&[root, child, grandchild]), [Completed; 3]);
}

#[test]
fn a_child_of_two_lost_parents_comes_back_with_the_second() {
    let mut yard = Yard::new();
    let parents = yard.submit(vec![task(), task()]);
    let child = yard.submit_one(after(&parents));
    yard.kill_next();
    yard.kill_next();
    assert_eq!(yard.order(&parents[..1], Order::Retry), [parents[0]]);
    assert_eq!(yard.state(child), Dead);
    assert_eq!(yard.view(child).reason, Some(format!("its parent {} is dead", parents[1])));
    assert_eq!(yard.order(&parents[1..], Order::Retry), [parents[1], child]);
    assert_eq!(yard.state(child), Waiting);
}

#[test]
fn a_child_that_fell_by_itself_does_not_come_back_with_its_parent() {
    let mut yard = Yard::new();
    let parent = yard.submit_one(task());
    let children = yard.submit(vec![after(&[parent]), after(&[parent])]);
    assert_eq!(yard.order(&children[..1], Order::Cancel), children[..1]);
    assert_eq!(yard.order(&[parent], Order::Cancel), [parent, children[1]]);
    assert_eq!(yard.order(&[parent], Order::Retry), [parent, children[1]]);
    assert_eq!(yard.states(&children), [Cancelled, Waiting]);
}

#[test]
fn the_order_in_which_a_graph_is_named_is_no_matter() {
    let mut yard = Yard::new();
    let child = NewTask { parents: vec![Parent::Index(1)], ..task() };
    let ids = yard.submit(vec![child, task()]);
    assert_eq!(yard.order(&[ids[0]], Order::Cancel), [ids[0]]);
    assert_eq!(yard.order(&[ids[1]], Order::Cancel), [ids[1]]);
    assert_eq!(yard.order(&ids, Order::Retry), ids);
    assert_eq!(yard.states(&ids), [Waiting, Ready]);
}

#[test]
fn a_parent_is_remembered_while_a_child_may_want_its_output() {
    let mut yard = Yard::new();
    yard.set(QueueSettings { keep_ms: 1_000, keep_dead_ms: 5_000, ..QueueSettings::default() });
    let parent = yard.submit_one(task());
    let child = yard.submit_one(after(&[parent]));
    let claim = yard.claim_one();
    yard.complete(&claim);
    yard.now += 2_000;
    assert_eq!(yard.tend().forgotten, 0);
    assert_eq!(yard.kill_next(), child);
    yard.now += 2_000;
    assert_eq!(yard.tend().forgotten, 0, "it may be retried");
    yard.now += 4_000;
    assert_eq!((yard.tend().forgotten, yard.tend().forgotten, yard.tend().forgotten), (1, 1, 0));
}
