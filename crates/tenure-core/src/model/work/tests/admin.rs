//! Views and operator actions.

use super::*;
use crate::port::{NewWorker, TaskFilter, WaitReason};

#[test]
fn tasks_are_listed_newest_first_with_filter_and_paging() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![task(), task(), NewTask::new("other"), task()]);
    let claim = fixture.claim_one();
    let filter = TaskFilter { limit: 2, ..TaskFilter::default() };
    let list = |filter: &TaskFilter| fixture.work.tasks(filter).iter().map(|it| it.id).collect::<Vec<_>>();
    assert_eq!(list(&filter), [ids[3], ids[2]]);
    assert_eq!(list(&TaskFilter { before: Some(ids[2]), ..filter.clone() }), [ids[1], ids[0]]);
    let claimed = TaskFilter { states: vec![TaskState::Claimed], ..filter.clone() };
    assert_eq!(list(&claimed), [claim.id]);
    assert_eq!(list(&TaskFilter { kind: Some("other".into()), ..filter.clone() }), [ids[2]]);
    assert_eq!(list(&TaskFilter { worker: Some("w".into()), ..filter.clone() }), [claim.id]);
    assert_eq!(list(&TaskFilter { namespace: Some(name("none")), ..filter }), []);
}

#[test]
fn a_queue_counts_its_tasks_and_reports_the_age_of_the_oldest() {
    let mut fixture = TestQueue::new();
    fixture.submit(vec![task(), NewTask { priority: 100, ..task() }]);
    fixture.now += 30;
    fixture.submit(vec![task(), NewTask { run_at_ms: Some(START + 100), ..task() }]);
    fixture.claim_one();
    let view = fixture.work.queues(None, fixture.now).remove(0);
    let counts: Vec<_> = view.counts.iter().map(|(state, n)| (state.as_str(), *n)).collect();
    assert_eq!(counts, [("scheduled", 1), ("ready", 2), ("claimed", 1)]);
    assert_eq!(view.oldest_ready_age_ms, Some(30));
}

#[test]
fn an_action_affects_only_eligible_tasks_of_its_namespace() {
    let mut fixture = TestQueue::new();
    let ids = fixture.submit(vec![task(), task(), NewTask { run_at_ms: Some(START + 9_999), ..task() }]);
    let claim = fixture.claim_one();
    fixture.complete(&claim);
    assert_eq!(fixture.apply_action(&ids, TaskAction::Retry), [ids[2]], "a scheduled task no longer waits");
    assert_eq!(fixture.state(ids[2]), TaskState::Ready);
    assert_eq!(fixture.work.apply_task_action(&name("other"), &ids, TaskAction::Cancel, fixture.now), []);
    assert_eq!(fixture.apply_action(&ids, TaskAction::Cancel), ids[1..]);
    assert_eq!(fixture.apply_action(&ids, TaskAction::Cancel), []);
    assert_eq!(fixture.apply_action(&[ids[1], TaskId(999)], TaskAction::Retry), [ids[1]]);
}

#[test]
fn a_worker_is_online_with_its_session_or_for_a_minute_after_it_was_seen() {
    let mut fixture = TestQueue::new();
    let (space, session) = (Name::default_namespace(), fixture.session());
    let named =
        |name: &str| serde_json::from_value::<NewWorker>(serde_json::json!({ "name": name })).unwrap();
    fixture.work.register_worker(
        &space,
        &NewWorker { session: Some(session.clone()), ..named("s") },
        fixture.now,
    );
    fixture.work.register_worker(&space, &named("w"), fixture.now);
    let live = |fixture: &TestQueue| {
        let views = fixture.work.workers(None, &fixture.elections, fixture.now);
        views.iter().map(|it| (it.worker.name.clone(), it.online, it.claimed_count)).collect::<Vec<_>>()
    };
    fixture.submit_one(task());
    fixture.now += 30_000;
    fixture.claim_one();
    fixture.now += 59_999;
    assert_eq!(live(&fixture), [("s".into(), true, 0), ("w".into(), true, 1)], "its claim was seen");
    fixture.now += 1;
    fixture.elections.end_session(&session, fixture.now);
    assert_eq!(live(&fixture), [("s".into(), false, 0), ("w".into(), false, 1)]);
}

#[test]
fn an_unseen_worker_is_pruned_after_a_day_unless_approved() {
    let mut fixture = TestQueue::new();
    let (space, living, over) = (Name::default_namespace(), fixture.session(), fixture.session());
    let named =
        |name: &str| serde_json::from_value::<NewWorker>(serde_json::json!({ "name": name })).unwrap();
    for (name, session) in
        [("approved", None), ("gone", None), ("lives", Some(living)), ("over", Some(over.clone()))]
    {
        fixture.work.register_worker(&space, &NewWorker { session, ..named(name) }, fixture.now);
    }
    fixture.work.set_worker_approval(&space, "approved", Some("ada"));
    fixture.elections.end_session(&over, fixture.now);
    let known = |fixture: &TestQueue| {
        let views = fixture.work.workers(None, &fixture.elections, fixture.now);
        views.iter().map(|it| it.worker.name.clone()).collect::<Vec<_>>()
    };
    fixture.now += 86_400_000;
    fixture.maintain();
    assert_eq!(known(&fixture), ["approved", "gone", "lives", "over"]);
    fixture.now += 1;
    fixture.maintain_by(None, 1_000);
    assert_eq!(known(&fixture).len(), 4, "without an estimate of the clock");
    fixture.maintain();
    assert_eq!(known(&fixture), ["approved", "lives"]);
}

#[test]
fn wait_reasons_report_the_known_conditions() {
    let mut fixture = TestQueue::new();
    let space = Name::default_namespace();
    let ids = fixture.submit(vec![task(), keyed("t", 1), keyed("t", 1)]);
    let why = |fixture: &TestQueue, id| {
        fixture.work.wait_reasons(&space, id, &fixture.elections, fixture.now).unwrap()
    };
    assert_eq!(why(&fixture, ids[0]), [WaitReason::NoWorkers]);
    let me = serde_json::from_str::<NewWorker>(r#"{"name":"w"}"#).unwrap();
    fixture.work.register_worker(&space, &me, fixture.now);
    assert_eq!(why(&fixture, ids[2]), [WaitReason::Claimable { matching_workers: 1, tasks_ahead: 2 }]);
    fixture.claim(9);
    assert_eq!(why(&fixture, ids[0]), [WaitReason::NotPending { state: TaskState::Claimed }]);
    assert_eq!(why(&fixture, ids[2]), [WaitReason::ConcurrencyLimit { key: "t".into(), limit: 1 }]);
    let child = fixture.submit_one(after(&ids[..1]));
    assert_eq!(why(&fixture, child), [WaitReason::PendingParents { tasks: ids[..1].to_vec() }]);
    assert_eq!(fixture.work.wait_reasons(&name("other"), child, &fixture.elections, fixture.now), None);
}
