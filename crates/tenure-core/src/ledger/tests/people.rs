//! What people see and order.

use super::*;
use crate::port::{NewWorker, TaskFilter, Why};

#[test]
fn tasks_are_listed_newest_first_by_page_and_filter() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![task(), task(), NewTask::new("other"), task()]);
    let claim = yard.claim_one();
    let filter = TaskFilter { limit: 2, ..TaskFilter::default() };
    let list = |filter: &TaskFilter| yard.ledger.tasks(filter).iter().map(|it| it.id).collect::<Vec<_>>();
    assert_eq!(list(&filter), [ids[3], ids[2]]);
    assert_eq!(list(&TaskFilter { before: Some(ids[2]), ..filter.clone() }), [ids[1], ids[0]]);
    let claimed = TaskFilter { states: vec![TaskState::Claimed], ..filter.clone() };
    assert_eq!(list(&claimed), [claim.id]);
    assert_eq!(list(&TaskFilter { kind: Some("other".into()), ..filter.clone() }), [ids[2]]);
    assert_eq!(list(&TaskFilter { worker: Some("w".into()), ..filter.clone() }), [claim.id]);
    assert_eq!(list(&TaskFilter { namespace: Some(name("none")), ..filter }), []);
}

#[test]
fn a_queue_counts_its_tasks_and_knows_how_long_the_oldest_is_ready() {
    let mut yard = Yard::new();
    yard.submit(vec![task(), NewTask { priority: 100, ..task() }]);
    yard.now += 30;
    yard.submit(vec![task(), NewTask { run_at_ms: Some(START + 100), ..task() }]);
    yard.claim_one();
    let view = yard.ledger.queues(None, yard.now).remove(0);
    let counts: Vec<_> = view.counts.iter().map(|(state, n)| (state.as_str(), *n)).collect();
    assert_eq!(counts, [("scheduled", 1), ("ready", 2), ("claimed", 1)]);
    assert_eq!(view.oldest_ready_ms, Some(30));
}

#[test]
fn an_order_touches_what_it_can_and_nothing_of_another_namespace() {
    let mut yard = Yard::new();
    let ids = yard.submit(vec![task(), task(), NewTask { run_at_ms: Some(START + 9_999), ..task() }]);
    let claim = yard.claim_one();
    yard.complete(&claim);
    assert_eq!(yard.order(&ids, Order::Retry), [ids[2]], "a scheduled one need not wait");
    assert_eq!(yard.state(ids[2]), TaskState::Ready);
    assert_eq!(yard.ledger.order(&name("other"), &ids, Order::Cancel, yard.now), []);
    assert_eq!(yard.order(&ids, Order::Cancel), ids[1..]);
    assert_eq!(yard.order(&ids, Order::Cancel), []);
    assert_eq!(yard.order(&[ids[1], TaskId(999)], Order::Retry), [ids[1]]);
}

#[test]
fn a_worker_lives_as_long_as_its_session_or_for_a_minute_after_it_was_seen() {
    let mut yard = Yard::new();
    let (space, session) = (Name::default_namespace(), yard.session());
    let named =
        |name: &str| serde_json::from_value::<NewWorker>(serde_json::json!({ "name": name })).unwrap();
    yard.ledger.register(&space, &NewWorker { session: Some(session.clone()), ..named("s") }, yard.now);
    yard.ledger.register(&space, &named("w"), yard.now);
    let live = |yard: &Yard| {
        let views = yard.ledger.workers(None, &yard.book, yard.now);
        views.iter().map(|it| (it.worker.name.clone(), it.live, it.claimed)).collect::<Vec<_>>()
    };
    yard.submit_one(task());
    yard.now += 30_000;
    yard.claim_one();
    yard.now += 59_999;
    assert_eq!(live(&yard), [("s".into(), true, 0), ("w".into(), true, 1)], "its claim was seen");
    yard.now += 1;
    yard.book.end(&session, yard.now);
    assert_eq!(live(&yard), [("s".into(), false, 0), ("w".into(), false, 1)]);
}

#[test]
fn a_worker_that_nobody_sees_for_a_day_is_forgotten_unless_it_is_approved() {
    let mut yard = Yard::new();
    let (space, living, over) = (Name::default_namespace(), yard.session(), yard.session());
    let named =
        |name: &str| serde_json::from_value::<NewWorker>(serde_json::json!({ "name": name })).unwrap();
    for (name, session) in
        [("approved", None), ("gone", None), ("lives", Some(living)), ("over", Some(over.clone()))]
    {
        yard.ledger.register(&space, &NewWorker { session, ..named(name) }, yard.now);
    }
    yard.ledger.approve(&space, "approved", Some("ada"));
    yard.book.end(&over, yard.now);
    let known = |yard: &Yard| {
        let views = yard.ledger.workers(None, &yard.book, yard.now);
        views.iter().map(|it| it.worker.name.clone()).collect::<Vec<_>>()
    };
    yard.now += 86_400_000;
    yard.tend();
    assert_eq!(known(&yard), ["approved", "gone", "lives", "over"]);
    yard.now += 1;
    yard.tend_by(None, 1_000);
    assert_eq!(known(&yard).len(), 4, "without a reckoning of the clock");
    yard.tend();
    assert_eq!(known(&yard), ["approved", "lives"]);
}

#[test]
fn why_says_what_is_known() {
    let mut yard = Yard::new();
    let space = Name::default_namespace();
    let ids = yard.submit(vec![task(), keyed("t", 1), keyed("t", 1)]);
    let why = |yard: &Yard, id| yard.ledger.why(&space, id, &yard.book, yard.now).unwrap();
    assert_eq!(why(&yard, ids[0]), [Why::NoWorkers]);
    let me = serde_json::from_str::<NewWorker>(r#"{"name":"w"}"#).unwrap();
    yard.ledger.register(&space, &me, yard.now);
    assert_eq!(why(&yard, ids[2]), [Why::Claimable { workers: 1, ahead: 2 }]);
    yard.claim(9);
    assert_eq!(why(&yard, ids[0]), [Why::NotWaiting { state: TaskState::Claimed }]);
    assert_eq!(why(&yard, ids[2]), [Why::Concurrency { key: "t".into(), limit: 1 }]);
    let child = yard.submit_one(after(&ids[..1]));
    assert_eq!(why(&yard, child), [Why::Parents { tasks: ids[..1].to_vec() }]);
    assert_eq!(yard.ledger.why(&name("other"), child, &yard.book, yard.now), None);
}
