//! Claims, as far as they are PostgreSQL's own.

use std::time::Duration;

use tenure::backend::postgres::{Postgres, submit};
use tenure_core::port::{
    Authority, ClaimAnswer, ClaimAsk, ClaimedTask, NewTask, Outcome, Profile, QueueKey, Seat, Settled,
    Settlement, Submission, TaskId, TaskState, Tasks, Trouble,
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

pub(crate) fn seat(session: &str, limit: u32) -> Seat {
    let worker = Profile { name: format!("worker of {session}"), ..Profile::default() };
    Seat { worker, limit, session: Some(id(session)), hold_ms: None }
}

pub(crate) async fn claimed(store: &Postgres, name: &str, seat: Seat) -> Vec<ClaimedTask> {
    let ask = ClaimAsk { queue: queue(name), authority: Authority::Direct, seats: vec![seat] };
    match store.claim(&ask).await.unwrap() {
        ClaimAnswer::Served { mut tasks, .. } => tasks.pop().unwrap(),
        ClaimAnswer::Refused(refusal) => panic!("{refusal:?}"),
    }
}

pub(crate) fn settlement(task: &ClaimedTask, outcome: Outcome) -> Settlement {
    Settlement { namespace: Name::default_namespace(), task: task.id, token: task.token, outcome }
}

pub(crate) fn completed(task: &ClaimedTask) -> Settlement {
    settlement(task, Outcome::Complete(None))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_through_its_life() {
    let (_database, store) = fresh().await;
    opened(&store, "s").await;
    let mut task = NewTask::new("greet");
    task.payload = r#"{"to" :"ada\u0000"}"#.parse().unwrap();
    let submitted = store.submit(&submission("q", vec![task.clone(), NewTask::default()])).await.unwrap();
    assert!(submitted.iter().all(|it| it.new));
    let first = claimed(&store, "q", seat("s", 1)).await.remove(0);
    assert_eq!((first.id, &*first.kind, first.attempt), (submitted[0].id, "greet", 1));
    assert_eq!(first.payload, task.payload, "to the letter");
    assert_eq!(store.held(&id("s")).await.unwrap(), [(first.id, first.token)]);
    let failed = Outcome::Fail { error: "no".into(), retry: true, after: Duration::ZERO };
    let settled = store.settle(&[settlement(&first, failed)]).await.unwrap();
    assert_eq!(settled, [Settled::Now(TaskState::Ready)]);
    let again = claimed(&store, "q", seat("s", 5)).await;
    assert_eq!((again.len(), again[0].id, again[0].attempt), (2, first.id, 2));
    assert!(again[0].token > first.token);
    let said = [completed(&first), completed(&again[1])];
    assert_eq!(store.settle(&said).await.unwrap(), [Settled::Lost, Settled::Now(TaskState::Completed)]);
    let output = Some(r#"[1, 2]"#.parse().unwrap());
    let done = settlement(&again[0], Outcome::Complete(output));
    for _ in 0..2 {
        let settled = store.settle(std::slice::from_ref(&done)).await.unwrap();
        assert_eq!(settled, [Settled::Now(TaskState::Completed)], "and once more, as the answer was lost");
    }
    assert_eq!(store.held(&id("s")).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn seats_of_one_worker_share_what_it_gets_in_order() {
    let (_database, store) = fresh().await;
    opened(&store, "s").await;
    let ids: Vec<TaskId> =
        store.submit(&submission("q", tasks(6))).await.unwrap().iter().map(|it| it.id).collect();
    let seats = vec![seat("s", 2), seat("s", 1), seat("t", 1), seat("s", 5)];
    let mut seats = seats;
    (seats[2].session, seats[2].hold_ms) = (None, Some(60_000));
    let ask = ClaimAsk { queue: queue("q"), authority: Authority::Direct, seats };
    let ClaimAnswer::Served { tasks, .. } = store.claim(&ask).await.unwrap() else { panic!() };
    let got: Vec<Vec<TaskId>> = tasks.iter().map(|tasks| tasks.iter().map(|it| it.id).collect()).collect();
    assert_eq!(got, [&ids[..2], &ids[2..3], &ids[3..4], &ids[4..]]);
    assert!(tasks[2][0].deadline_ms.is_some() && tasks[3][0].deadline_ms.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_submissions_with_one_key_one_makes_a_task() {
    let (database, store) = fresh().await;
    let keyed = |keys: [&str; 3]| {
        let task = |key: &str| NewTask { key: Some(key.into()), ..NewTask::new("work") };
        submission("q", keys.map(task).to_vec())
    };
    for round in 0..10 {
        let keys = ["a", "b", "c"].map(|key| format!("{key}{round}"));
        // In different orders: they wait for each other, and not in a circle.
        let one = keyed([&keys[0], &keys[1], &keys[2]]);
        let other = keyed([&keys[2], &keys[0], &keys[1]]);
        let (a, b, c, d) =
            tokio::join!(store.submit(&one), store.submit(&other), store.submit(&one), store.submit(&other));
        let [a, b, c, d] = [a, b, c, d].map(Result::unwrap);
        assert_eq!([&a, &b, &c, &d].iter().flat_map(|it| it.iter()).filter(|it| it.new).count(), 3);
        assert_eq!((a[0].id, a[1].id, a[2].id), (b[1].id, b[2].id, b[0].id));
        assert_eq!((c[0].id, d[0].id), (a[0].id, a[2].id));
    }
    assert_eq!(database.psql("SELECT count(*) FROM tenure.tasks").unwrap(), "30");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submission_in_a_transaction_is_there_if_it_commits() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let mut tx = store.pool().begin().await.unwrap();
    let first = submit(&mut tx, &submission("q", tasks(2))).await.unwrap();
    assert_eq!(first.len(), 2);
    assert!(claimed(&store, "q", seat("s", 5)).await.is_empty(), "not yet");
    tx.rollback().await.unwrap();
    assert_eq!(database.psql("SELECT count(*) FROM tenure.tasks").unwrap(), "0");
    let mut tx = store.pool().begin().await.unwrap();
    let second = submit(&mut tx, &submission("q", tasks(1))).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(claimed(&store, "q", seat("s", 5)).await[0].id, second[0].id);
    let mut orphan = NewTask::new("work");
    orphan.parents = vec![tenure_core::port::Parent::Task(TaskId(999))];
    let mut tx = store.pool().begin().await.unwrap();
    let error = submit(&mut tx, &submission("q", vec![orphan])).await.unwrap_err();
    assert_eq!(error.kind, Trouble::Request);
    assert!(error.message.contains("no task 999"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_begins_with_the_epoch() {
    let (_database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(1))).await.unwrap();
    let task = claimed(&store, "q", seat("s", 1)).await.remove(0);
    assert_eq!(task.token, Token::first(1).next(1));
}
