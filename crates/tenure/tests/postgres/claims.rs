//! Tasks: behaviour specific to PostgreSQL.

use std::time::Duration;

use tenure::store::postgres::{PostgresStore, submit};
use tenure_core::port::{
    ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRequest, ClaimedTask,
    ErrorKind, NewTask, QueueKey, SettleResult, Settlement, Submission, TaskId, TaskState, TaskStore,
    WorkerProfile,
};
use tenure_core::{Name, Token};

use crate::support::*;

pub(crate) fn queue(name: &str) -> QueueKey {
    QueueKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn submission(name: &str, tasks: Vec<NewTask>) -> Submission {
    Submission { queue: queue(name), tasks }
}

pub(crate) fn tasks(count: usize) -> Vec<NewTask> {
    vec![NewTask::new("work"); count]
}

pub(crate) fn claim_request(session: &str, limit: u32) -> ClaimRequest {
    let worker = WorkerProfile { name: format!("worker of {session}"), ..WorkerProfile::default() };
    ClaimRequest { worker, limit, session: Some(id(session)), claim_timeout_ms: None }
}

pub(crate) async fn claimed(store: &PostgresStore, name: &str, request: ClaimRequest) -> Vec<ClaimedTask> {
    let batch =
        ClaimBatchRequest { queue: queue(name), authority: ClaimAuthority::Direct, requests: vec![request] };
    match store.claim(&batch).await.unwrap() {
        ClaimBatchResponse::Served { mut tasks, .. } => tasks.pop().unwrap(),
        ClaimBatchResponse::Refused(refusal) => panic!("{refusal:?}"),
    }
}

pub(crate) fn settlement(task: &ClaimedTask, outcome: ClaimOutcome) -> Settlement {
    Settlement { namespace: Name::default_namespace(), task: task.id, token: task.token, outcome }
}

pub(crate) fn completed(task: &ClaimedTask) -> Settlement {
    settlement(task, ClaimOutcome::Complete(None))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_claimed_failed_retried_and_completed() {
    let (_database, store) = fresh().await;
    opened(&store, "s").await;
    let mut task = NewTask::new("greet");
    task.payload = r#"{"to" :"ada\u0000"}"#.parse().unwrap();
    let submitted = store.submit(&submission("q", vec![task.clone(), NewTask::default()])).await.unwrap();
    assert!(submitted.iter().all(|it| it.created));
    let first = claimed(&store, "q", claim_request("s", 1)).await.remove(0);
    assert_eq!((first.id, &*first.kind, first.attempt), (submitted[0].id, "greet", 1));
    assert_eq!(first.payload, task.payload, "the exact text");
    assert_eq!(store.held_claims(&id("s")).await.unwrap(), [(first.id, first.token)]);
    let failed = ClaimOutcome::Fail { error: "no".into(), retry: true, retry_in: Duration::ZERO };
    let settled = store.settle(&[settlement(&first, failed)]).await.unwrap();
    assert_eq!(settled, [SettleResult::Applied(TaskState::Ready)]);
    let again = claimed(&store, "q", claim_request("s", 5)).await;
    assert_eq!((again.len(), again[0].id, again[0].attempt), (2, first.id, 2));
    assert!(again[0].token > first.token);
    let settlements = [completed(&first), completed(&again[1])];
    assert_eq!(
        store.settle(&settlements).await.unwrap(),
        [SettleResult::ClaimLost, SettleResult::Applied(TaskState::Completed)]
    );
    let result = Some(r#"[1, 2]"#.parse().unwrap());
    let done = settlement(&again[0], ClaimOutcome::Complete(result));
    for _ in 0..2 {
        let settled = store.settle(std::slice::from_ref(&done)).await.unwrap();
        assert_eq!(
            settled,
            [SettleResult::Applied(TaskState::Completed)],
            "also if the client repeats the call"
        );
    }
    assert_eq!(store.held_claims(&id("s")).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_worker_get_tasks_in_order() {
    let (_database, store) = fresh().await;
    opened(&store, "s").await;
    let ids: Vec<TaskId> =
        store.submit(&submission("q", tasks(6))).await.unwrap().iter().map(|it| it.id).collect();
    let mut requests =
        vec![claim_request("s", 2), claim_request("s", 1), claim_request("t", 1), claim_request("s", 5)];
    (requests[2].session, requests[2].claim_timeout_ms) = (None, Some(60_000));
    let batch = ClaimBatchRequest { queue: queue("q"), authority: ClaimAuthority::Direct, requests };
    let ClaimBatchResponse::Served { tasks, .. } = store.claim(&batch).await.unwrap() else { panic!() };
    let got: Vec<Vec<TaskId>> = tasks.iter().map(|tasks| tasks.iter().map(|it| it.id).collect()).collect();
    assert_eq!(got, [&ids[..2], &ids[2..3], &ids[3..4], &ids[4..]]);
    assert!(tasks[2][0].claim_expires_at_ms.is_some() && tasks[3][0].claim_expires_at_ms.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_submissions_with_one_key_creates_the_task() {
    let (database, store) = fresh().await;
    let keyed = |keys: [&str; 3]| {
        let task = |key: &str| NewTask { idempotency_key: Some(key.into()), ..NewTask::new("work") };
        submission("q", keys.map(task).to_vec())
    };
    for round in 0..10 {
        let keys = ["a", "b", "c"].map(|key| format!("{key}{round}"));
        // The submissions list the keys in different orders. They wait for each other and do not deadlock.
        let one = keyed([&keys[0], &keys[1], &keys[2]]);
        let other = keyed([&keys[2], &keys[0], &keys[1]]);
        let (a, b, c, d) =
            tokio::join!(store.submit(&one), store.submit(&other), store.submit(&one), store.submit(&other));
        let [a, b, c, d] = [a, b, c, d].map(Result::unwrap);
        assert_eq!([&a, &b, &c, &d].iter().flat_map(|it| it.iter()).filter(|it| it.created).count(), 3);
        assert_eq!((a[0].id, a[1].id, a[2].id), (b[1].id, b[2].id, b[0].id));
        assert_eq!((c[0].id, d[0].id), (a[0].id, a[2].id));
    }
    assert_eq!(database.psql("SELECT count(*) FROM tenure.tasks").unwrap(), "30");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_in_a_transaction_exists_only_after_the_commit() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let mut tx = store.pool().begin().await.unwrap();
    let first = submit(&mut tx, &submission("q", tasks(2))).await.unwrap();
    assert_eq!(first.len(), 2);
    assert!(claimed(&store, "q", claim_request("s", 5)).await.is_empty(), "not yet");
    tx.rollback().await.unwrap();
    assert_eq!(database.psql("SELECT count(*) FROM tenure.tasks").unwrap(), "0");
    let mut tx = store.pool().begin().await.unwrap();
    let second = submit(&mut tx, &submission("q", tasks(1))).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(claimed(&store, "q", claim_request("s", 5)).await[0].id, second[0].id);
    let mut orphan = NewTask::new("work");
    orphan.parents = vec![tenure_core::port::ParentRef::Task(TaskId(999))];
    let mut tx = store.pool().begin().await.unwrap();
    let error = submit(&mut tx, &submission("q", vec![orphan])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Request);
    assert!(error.message.contains("parent 999 does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_starts_with_the_epoch() {
    let (_database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(1))).await.unwrap();
    let task = claimed(&store, "q", claim_request("s", 1)).await.remove(0);
    assert_eq!(task.token, Token::first(1).next(1));
}
