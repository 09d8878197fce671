//! One test per reason.

use std::collections::BTreeMap;

use super::*;
use crate::port::{Backoff, NewWorker, Pause, QueueKey, QueueSettings, RawJson};
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
        payload: RawJson::default(),
        result: None,
        priority: 0,
        required_tags: vec![],
        preferred_tags: vec![],
        allowed_workers: vec![],
        attempt: 0,
        max_attempts: 1,
        backoff: Backoff::default(),
        token: Token::ZERO,
        claim_seq: None,
        worker: None,
        session: None,
        progress: None,
        failures: vec![],
        end_reason: None,
        parents: vec![],
        children: vec![],
        idempotency_key: None,
        concurrency_key: None,
        concurrency_limit: 1,
        leader_token: None,
        max_wait_ms: None,
        max_run_ms: None,
        submitted_at_ms: 0,
        effective_at_ms: 0,
        run_at_ms: None,
        ready_at_ms: None,
        claimed_at_ms: None,
        claim_expires_at_ms: None,
        finished_at_ms: None,
    }
}

fn queue(settings: QueueSettings) -> QueueView {
    let key = QueueKey::new(Name::default_namespace(), name("q"));
    QueueView { key, settings, paused: None, counts: BTreeMap::new(), oldest_ready_age_ms: None }
}

fn worker(name: &str, tags: &[&str]) -> WorkerView {
    let tags = tags.iter().map(|tag| tag.to_string()).collect();
    let (kind, location) = (String::new(), String::new());
    let (kinds, queues) = (vec!["mail".into()], vec!["q".parse().unwrap()]);
    let worker = NewWorker {
        name: name.into(),
        description: kind,
        tags,
        task_kinds: kinds,
        queues,
        location,
        capacity: 1,
        session: None,
    };
    let namespace = Name::default_namespace();
    WorkerView { namespace, worker, approved_by: None, online: true, last_seen_at_ms: 0, claimed_count: 0 }
}

/// Reasons for a claimable task after `change` was applied.
fn reasons(change: impl FnOnce(&mut TaskView, &mut QueueView, &mut Vec<WorkerView>)) -> Vec<WaitReason> {
    let mut it = (task(TaskState::Ready), queue(QueueSettings::default()), vec![worker("w", &[])]);
    change(&mut it.0, &mut it.1, &mut it.2);
    wait_reasons(&context(&it.0, &it.1, &it.2))
}

fn context<'a>(task: &'a TaskView, queue: &'a QueueView, workers: &'a [WorkerView]) -> WaitContext<'a> {
    WaitContext {
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
    assert_eq!(reasons(|_, _, _| ()), [WaitReason::Claimable { matching_workers: 1, tasks_ahead: 3 }]);
    assert_eq!(
        reasons(|t, _, _| t.kind.clear()),
        [WaitReason::Claimable { matching_workers: 1, tasks_ahead: 3 }]
    );
}

#[test]
fn a_claimed_or_finished_task_does_not_wait() {
    for state in [TaskState::Claimed, TaskState::Completed, TaskState::Dead, TaskState::Cancelled] {
        assert_eq!(reasons(|task, _, _| task.state = state), [WaitReason::NotPending { state }]);
    }
}

#[test]
fn workers_may_be_offline_unsuitable_or_unapproved() {
    assert_eq!(reasons(|_, _, workers| workers.clear()), [WaitReason::NoWorkers]);
    assert_eq!(reasons(|_, _, workers| workers[0].online = false), [WaitReason::NoWorkers]);
    assert_eq!(
        reasons(|_, _, workers| workers[0].worker.queues = vec![name("other")]),
        [WaitReason::NoWorkers]
    );
    let named = reasons(|task, _, _| task.allowed_workers = vec!["v".into()]);
    assert_eq!(named, [WaitReason::AllowedWorkersOffline { matching_workers: vec!["v".into()] }]);
    let kind = reasons(|task, _, _| task.kind = "train".into());
    assert_eq!(kind, [WaitReason::NoWorkerForKind { kind: "train".into() }]);
    let pending = reasons(|_, queue, _| queue.settings.require_approval = true);
    assert_eq!(pending, [WaitReason::NoApprovedWorker { unapproved_workers: vec!["w".into()] }]);
    let approved = reasons(|_, queue, workers| {
        queue.settings.require_approval = true;
        workers[0].approved_by = Some("ada".into());
    });
    assert_eq!(approved, [WaitReason::Claimable { matching_workers: 1, tasks_ahead: 3 }]);
}

#[test]
fn missing_tags_are_reported() {
    let wants = |tags: &[&str]| tags.iter().map(|tag| tag.to_string()).collect::<Vec<_>>();
    let none = reasons(|task, _, workers| {
        task.required_tags = wants(&["gpu", "ssd"]);
        *workers = vec![worker("a", &["ssd"])];
    });
    assert_eq!(none, [WaitReason::NoWorkerWithTags { tags: wants(&["gpu"]) }]);
    let apart = reasons(|task, _, workers| {
        task.required_tags = wants(&["gpu", "ssd"]);
        *workers = vec![worker("a", &["ssd"]), worker("b", &["gpu"])];
    });
    assert_eq!(apart, [WaitReason::NoWorkerWithTags { tags: wants(&["gpu", "ssd"]) }]);
}

#[test]
fn all_reasons_are_reported_and_transient_ones_last() {
    let pause = Pause { paused_by: "ada".into(), reason: "deploy".into(), paused_at_ms: 0 };
    let mut task = task(TaskState::Waiting);
    task.run_at_ms = Some(2_000);
    (task.concurrency_key, task.concurrency_limit) = (Some("k".into()), 2);
    let rate_next_in_ms = Some(5);
    let mut queue =
        queue(QueueSettings { mode: AssignmentMode::Exclusive, max_claimed: Some(1), ..Default::default() });
    queue.paused = Some(pause.clone());
    queue.counts.insert(TaskState::Claimed, 1);
    let parents = [TaskId(9)];
    let context = WaitContext {
        open_parents: &parents,
        key_claimed: 2,
        rate_next_in_ms,
        ..context(&task, &queue, &[])
    };
    let expected = [
        WaitReason::Paused { pause },
        WaitReason::PendingParents { tasks: parents.to_vec() },
        WaitReason::NotDue { run_at_ms: 2_000 },
        WaitReason::NoBroker,
        WaitReason::NoWorkers,
        WaitReason::ConcurrencyLimit { key: "k".into(), limit: 2 },
        WaitReason::QueueLimit { limit: 1 },
        WaitReason::RateLimit { next_in_ms: 5 },
    ];
    assert_eq!(wait_reasons(&context), expected);
}

#[test]
fn an_exclusive_queue_with_a_fallback_needs_no_broker() {
    let claimable = [WaitReason::Claimable { matching_workers: 1, tasks_ahead: 3 }];
    let fall_back = |queue: &mut QueueView| {
        (queue.settings.mode, queue.settings.fallback) =
            (AssignmentMode::Exclusive, BrokerFallback::Distributed);
    };
    assert_eq!(reasons(|_, queue, _| fall_back(queue)), claimable);
    assert_eq!(
        reasons(|_, queue, _| queue.settings.mode = AssignmentMode::Exclusive),
        [WaitReason::NoBroker]
    );
}
