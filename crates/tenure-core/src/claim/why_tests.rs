//! One test for each reason.

use std::collections::BTreeMap;

use super::*;
use crate::port::{Backoff, Json, NewWorker, Pause, QueueKey, QueueSettings};
use crate::{Name, Token};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn task(state: TaskState) -> TaskView {
    TaskView {
        id: TaskId(1),
        namespace: Name::default_namespace(),
        queue: name("q"),
        kind: "mail".into(),
        state,
        payload: Json::default(),
        output: None,
        priority: 0,
        requires: vec![],
        prefers: vec![],
        workers: vec![],
        attempt: 0,
        max_attempts: 1,
        backoff: Backoff::default(),
        token: Token::ZERO,
        turn: None,
        worker: None,
        session: None,
        progress: None,
        failures: vec![],
        reason: None,
        parents: vec![],
        children: vec![],
        key: None,
        concurrency_key: None,
        concurrency_limit: 1,
        leader_token: None,
        max_wait_ms: None,
        max_run_ms: None,
        enqueued_at_ms: 0,
        effective_at_ms: 0,
        run_at_ms: None,
        ready_at_ms: None,
        claimed_at_ms: None,
        deadline_ms: None,
        finished_at_ms: None,
    }
}

fn queue(settings: QueueSettings) -> QueueView {
    let key = QueueKey::new(Name::default_namespace(), name("q"));
    QueueView { key, settings, paused: None, counts: BTreeMap::new(), oldest_ready_ms: None }
}

fn worker(name: &str, tags: &[&str]) -> WorkerView {
    let tags = tags.iter().map(|tag| tag.to_string()).collect();
    let (kind, location) = (String::new(), String::new());
    let (kinds, queues) = (vec!["mail".into()], vec!["q".parse().unwrap()]);
    let worker =
        NewWorker { name: name.into(), kind, tags, kinds, queues, location, capacity: 1, session: None };
    let namespace = Name::default_namespace();
    WorkerView { namespace, worker, approved_by: None, live: true, seen_at_ms: 0, claimed: 0 }
}

/// A task that could be claimed, but for what `change` does.
fn reasons(change: impl FnOnce(&mut TaskView, &mut QueueView, &mut Vec<WorkerView>)) -> Vec<Why> {
    let mut it = (task(TaskState::Ready), queue(QueueSettings::default()), vec![worker("w", &[])]);
    change(&mut it.0, &mut it.1, &mut it.2);
    why(&look(&it.0, &it.1, &it.2))
}

fn look<'a>(task: &'a TaskView, queue: &'a QueueView, workers: &'a [WorkerView]) -> Look<'a> {
    Look {
        task,
        queue,
        workers,
        open_parents: &[],
        ahead: 3,
        key_claimed: 0,
        rate_next_in_ms: None,
        led: false,
        now_ms: 1_000,
    }
}

#[test]
fn a_ready_task_with_a_worker_is_claimable() {
    assert_eq!(reasons(|_, _, _| ()), [Why::Claimable { workers: 1, ahead: 3 }]);
    assert_eq!(reasons(|t, _, _| t.kind.clear()), [Why::Claimable { workers: 1, ahead: 3 }]);
}

#[test]
fn what_is_claimed_or_finished_does_not_wait() {
    for state in [TaskState::Claimed, TaskState::Completed, TaskState::Dead, TaskState::Cancelled] {
        assert_eq!(reasons(|task, _, _| task.state = state), [Why::NotWaiting { state }]);
    }
}

#[test]
fn workers_may_be_away_unfit_or_unapproved() {
    assert_eq!(reasons(|_, _, workers| workers.clear()), [Why::NoWorkers]);
    assert_eq!(reasons(|_, _, workers| workers[0].live = false), [Why::NoWorkers]);
    assert_eq!(reasons(|_, _, workers| workers[0].worker.queues = vec![name("other")]), [Why::NoWorkers]);
    let named = reasons(|task, _, _| task.workers = vec!["v".into()]);
    assert_eq!(named, [Why::NamedWorkersAway { workers: vec!["v".into()] }]);
    let kind = reasons(|task, _, _| task.kind = "train".into());
    assert_eq!(kind, [Why::NoWorkerForKind { kind: "train".into() }]);
    let pending = reasons(|_, queue, _| queue.settings.approval = true);
    assert_eq!(pending, [Why::NoApprovedWorker { pending: vec!["w".into()] }]);
    let approved = reasons(|_, queue, workers| {
        queue.settings.approval = true;
        workers[0].approved_by = Some("ada".into());
    });
    assert_eq!(approved, [Why::Claimable { workers: 1, ahead: 3 }]);
}

#[test]
fn the_tags_that_nobody_has_are_named_or_all_if_nobody_has_them_together() {
    let wants = |tags: &[&str]| tags.iter().map(|tag| tag.to_string()).collect::<Vec<_>>();
    let none = reasons(|task, _, workers| {
        task.requires = wants(&["gpu", "ssd"]);
        *workers = vec![worker("a", &["ssd"])];
    });
    assert_eq!(none, [Why::NoWorkerWithTags { tags: wants(&["gpu"]) }]);
    let apart = reasons(|task, _, workers| {
        task.requires = wants(&["gpu", "ssd"]);
        *workers = vec![worker("a", &["ssd"]), worker("b", &["gpu"])];
    });
    assert_eq!(apart, [Why::NoWorkerWithTags { tags: wants(&["gpu", "ssd"]) }]);
}

#[test]
fn all_that_is_known_is_said_and_what_passes_by_itself_last() {
    let pause = Pause { by: "ada".into(), reason: "deploy".into(), at_ms: 0 };
    let mut task = task(TaskState::Waiting);
    task.run_at_ms = Some(2_000);
    (task.concurrency_key, task.concurrency_limit) = (Some("k".into()), 2);
    let rate_next_in_ms = Some(5);
    let mut queue =
        queue(QueueSettings { mode: Mode::Exclusive, max_claimed: Some(1), ..Default::default() });
    queue.paused = Some(pause.clone());
    queue.counts.insert(TaskState::Claimed, 1);
    let parents = [TaskId(9)];
    let look = Look { open_parents: &parents, key_claimed: 2, rate_next_in_ms, ..look(&task, &queue, &[]) };
    let expected = [
        Why::Paused { pause },
        Why::Parents { tasks: parents.to_vec() },
        Why::NotDue { run_at_ms: 2_000 },
        Why::NoLeader,
        Why::NoWorkers,
        Why::Concurrency { key: "k".into(), limit: 2 },
        Why::QueueLimit { limit: 1 },
        Why::Rate { next_in_ms: 5 },
    ];
    assert_eq!(why(&look), expected);
}

#[test]
fn an_exclusive_queue_that_may_fall_back_needs_no_leader() {
    let claimable = [Why::Claimable { workers: 1, ahead: 3 }];
    let fall_back = |queue: &mut QueueView| {
        (queue.settings.mode, queue.settings.fallback) = (Mode::Exclusive, Fallback::Distributed);
    };
    assert_eq!(reasons(|_, queue, _| fall_back(queue)), claimable);
    assert_eq!(reasons(|_, queue, _| queue.settings.mode = Mode::Exclusive), [Why::NoLeader]);
}
