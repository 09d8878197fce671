//! Tasks in SQLite: tests beyond the conformance suite.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, Row, SqliteConnection};
use tenure::store::sqlite::{SqliteStore, submit};
use tenure_core::port::*;
use tenure_core::{Name, SessionId, Token};
use tenure_testkit::conformance::TestSession;

use super::child::{Child, open};

pub(crate) fn queue(name: &str) -> QueueKey {
    QueueKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn claim_request(worker: &str, limit: u32) -> ClaimRequest {
    let worker = WorkerProfile { name: worker.into(), ..WorkerProfile::default() };
    ClaimRequest { worker, limit, session: None, claim_timeout_ms: Some(60_000) }
}

pub(crate) fn direct(name: &str, claim_request: ClaimRequest) -> ClaimBatchRequest {
    ClaimBatchRequest { queue: queue(name), authority: ClaimAuthority::Direct, requests: vec![claim_request] }
}

/// The tasks of one claim request.
pub(crate) async fn claim(store: &SqliteStore, batch: &ClaimBatchRequest) -> Vec<ClaimedTask> {
    match store.claim(batch).await.unwrap() {
        ClaimBatchResponse::Served { tasks, .. } => tasks.into_iter().flatten().collect(),
        ClaimBatchResponse::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

fn submission(n: usize) -> Submission {
    Submission { queue: queue("q"), tasks: vec![NewTask::new("k"); n] }
}

fn settlement(task: &ClaimedTask, outcome: ClaimOutcome) -> Settlement {
    Settlement { namespace: Name::default_namespace(), task: task.id, token: task.token, outcome }
}

async fn fresh() -> (SqliteStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (open(&dir.path().join("t.db")).await, dir)
}

/// A connection of another program.
async fn plain(path: &Path) -> SqliteConnection {
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await.unwrap()
}

async fn view(store: &SqliteStore, id: u64) -> TaskView {
    store.task(&Name::default_namespace(), TaskId(id)).await.unwrap().expect("the task")
}

async fn count(store: &SqliteStore, state: TaskState) -> u64 {
    store.queue(&queue("q")).await.unwrap().map_or(0, |view| view.count(state))
}

/// The broker and its maintenance request.
async fn broker(store: &SqliteStore) -> (TestSession, MaintenanceRequest) {
    let actor = TestSession::open(Arc::new(store.clone()), "broker").await;
    actor.join(&broker_election()).await;
    let token = actor.take(&broker_election(), 0).await;
    let maintenance =
        MaintenanceRequest { session: actor.id.clone(), token, clock_ms: Some(i64::MAX), limit: 100 };
    (actor, maintenance)
}

#[tokio::test]
async fn a_task_goes_from_submission_to_completion() {
    let (store, _dir) = fresh().await;
    let submitted = store.submit(&submission(3)).await.unwrap();
    let submitted: Vec<_> = submitted.iter().map(|it| (it.id.0, it.created)).collect();
    assert_eq!(submitted, [(1, true), (2, true), (3, true)]);
    let claimed = claim(&store, &direct("q", claim_request("w", 2))).await;
    assert_eq!(claimed.iter().map(|it| it.id.0).collect::<Vec<_>>(), [1, 2]);
    assert!(claimed.iter().all(|it| it.attempt == 1 && it.kind == "k" && it.claim_expires_at_ms.is_some()));
    let done = settlement(&claimed[0], ClaimOutcome::Complete(Some("[1]".parse().unwrap())));
    let late = Settlement { token: Token::from_u64(9), ..settlement(&claimed[1], ClaimOutcome::Release) };
    let settled = store.settle(&[done.clone(), late, done]).await.unwrap();
    let completed = SettleResult::Applied(TaskState::Completed);
    assert_eq!(settled, [completed, SettleResult::ClaimLost, completed]);
    let view = view(&store, 1).await;
    assert_eq!((view.state, view.result.unwrap().to_string().as_str()), (TaskState::Completed, "[1]"));
    for (state, n) in [(TaskState::Ready, 1), (TaskState::Claimed, 1), (TaskState::Completed, 1)] {
        assert_eq!(count(&store, state).await, n, "{state:?}");
    }
}

#[tokio::test]
async fn the_submit_view_creates_tasks() {
    let (store, _dir) = fresh().await;
    let mut conn = plain(store.path()).await;
    conn.execute(
        r#"INSERT INTO tenure_submit (queue, kind, payload) VALUES ('q', 'mail', '{"to":"ada"}'), ('q', 'mail', '{}')"#,
    )
    .await
    .unwrap();
    let all = r#"INSERT INTO tenure_submit (namespace, queue, kind, payload, priority, required_tags, preferred_tags, allowed_workers,
            run_at_ms, max_wait_ms, max_run_ms, max_attempts, parents, idempotency_key, concurrency_key, concurrency_limit)
        VALUES ('default', 'q', 'mail', '[1, 2]', 5, '["b", "a", "b"]', '["c"]', '["x", "*"]', 1, 2000, 3000, 4, '[1, 2, 1]',
            'k1', 'user-7', 2)"#;
    conn.execute(all).await.unwrap();
    conn.execute(all).await.unwrap();
    conn.execute("INSERT INTO tenure_submit (queue, run_at_ms) VALUES ('q', 4000000000000)").await.unwrap();
    let claimed = claim(&store, &direct("q", claim_request("w", 10))).await;
    let got: Vec<_> = claimed.iter().map(|it| (it.id.0, it.kind.as_str(), it.payload.as_str())).collect();
    assert_eq!(got, [(1, "mail", r#"{"to":"ada"}"#), (2, "mail", "{}")]);
    let third = view(&store, 3).await;
    assert_eq!((third.state, third.priority, third.max_attempts), (TaskState::Waiting, 5, 4));
    assert_eq!(
        (third.required_tags, third.preferred_tags),
        (vec!["a".into(), "b".into()], vec!["c".to_string()])
    );
    assert!(third.allowed_workers.is_empty(), "* allows every worker");
    assert_eq!(third.parents, [TaskId(1), TaskId(2)]);
    assert_eq!((third.max_wait_ms, third.max_run_ms), (Some(2_000), Some(3_000)));
    assert_eq!(
        (third.idempotency_key.as_deref(), third.concurrency_key.as_deref()),
        (Some("k1"), Some("user-7"))
    );
    assert_eq!(third.effective_at_ms, third.submitted_at_ms - 5 * PRIORITY_STEP_MS);
    assert_eq!(view(&store, 4).await.state, TaskState::Scheduled);
    assert_eq!(store.tasks(&TaskFilter { limit: 10, ..TaskFilter::default() }).await.unwrap().len(), 4);
    // The view and the Rust API create the same requirements.
    let tasks = vec![NewTask {
        required_tags: vec!["b".into(), "a".into()],
        preferred_tags: vec!["c".into()],
        allowed_workers: vec!["*".into()],
        ..NewTask::new("mail")
    }];
    store.submit(&Submission { queue: queue("q"), tasks }).await.unwrap();
    let requirements = conn
        .fetch_one("SELECT count(*), count(DISTINCT id) FROM tenure_task_requirements WHERE kind = 'mail'");
    assert_eq!(requirements.await.unwrap().get::<i64, _>(0), 2);
    let done: Vec<_> =
        claimed.iter().map(|it| settlement(it, ClaimOutcome::Complete(Some(it.payload.clone())))).collect();
    store.settle(&done).await.unwrap();
    assert_eq!(view(&store, 3).await.state, TaskState::Ready, "all parents are completed");
}

#[tokio::test]
async fn an_insert_into_the_submit_view_is_transactional() {
    let (store, _dir) = fresh().await;
    let mut conn = plain(store.path()).await;
    let mut transaction = conn.begin().await.unwrap();
    transaction
        .execute("INSERT INTO tenure_submit (queue, idempotency_key) VALUES ('q', 'once')")
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(store.queue(&queue("q")).await.unwrap(), None, "the queue was not created");
    let mut transaction = conn.begin().await.unwrap();
    transaction
        .execute("INSERT INTO tenure_submit (queue, idempotency_key) VALUES ('q', 'once')")
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(claim(&store, &direct("q", claim_request("w", 9))).await.len(), 1);
}

/// Each insert fails with a helpful message and creates nothing.
#[tokio::test]
async fn the_submit_view_rejects_invalid_values_with_a_remedy() {
    let (store, _dir) = fresh().await;
    store.submit(&submission(1)).await.unwrap();
    let claimed = claim(&store, &direct("q", claim_request("w", 1))).await;
    let failed = ClaimOutcome::Fail { error: "no".into(), retry: false, retry_in: Default::default() };
    store.settle(&[settlement(&claimed[0], failed)]).await.unwrap();
    let mut conn = plain(store.path()).await;
    let long = format!("'\"{}\"'", "x".repeat(PAYLOAD_MAX));
    let many = format!("'[{}]'", ["\"t\""; LIST_MAX + 1].join(","));
    let cases = [
        ("(kind)", "'k'", "the queue is missing"),
        ("(queue)", "''", "the queue name"),
        ("(queue)", "'a b'", "the queue name"),
        ("(queue, namespace)", "'new', '-x'", "the namespace"),
        ("(queue, payload)", "'new', '{to'", "not valid JSON"),
        ("(queue, payload)", "'new', x'7b7d'", "not valid JSON"),
        ("(queue, payload)", &format!("'new', {long}"), "1048576 bytes"),
        ("(queue, required_tags)", "'new', 'gpu'", "JSON arrays"),
        ("(queue, allowed_workers)", "'new', '{}'", "JSON arrays"),
        ("(queue, preferred_tags)", &format!("'new', {many}"), "at most 64"),
        ("(queue, required_tags)", "'new', '[1]'", "tags and worker names"),
        ("(queue, required_tags)", r#"'new', '["a\n"]'"#, "tags and worker names"),
        ("(queue, kind)", "'new', char(10)", "the kind"),
        ("(queue, idempotency_key)", "'new', ''", "idempotency_key and concurrency_key"),
        ("(queue, concurrency_key)", "'new', ''", "idempotency_key and concurrency_key"),
        ("(queue, priority)", "'new', 'high'", "the priority"),
        ("(queue, priority)", "'new', 1000001", "the priority"),
        ("(queue, max_attempts)", "'new', 0", "max_attempts"),
        ("(queue, concurrency_limit)", "'new', 0", "concurrency_limit"),
        ("(queue, run_at_ms)", "'new', '2030-01-01'", "milliseconds since 1970"),
        ("(queue, max_run_ms)", "'new', -1", "max_wait_ms and max_run_ms"),
        ("(queue, parents)", "'new', '[99]'", "a parent does not exist"),
        ("(queue, parents)", r#"'new', '["1"]'"#, "a parent does not exist"),
        ("(queue, parents)", "'new', '[1]'", "retry the parent first"),
    ];
    for (columns, values, words) in cases {
        let sql = format!("INSERT INTO tenure_submit {columns} VALUES ({values})");
        let error = sqlx::query(sqlx::AssertSqlSafe(sql.as_str())).execute(&mut conn).await.unwrap_err();
        assert!(
            error.to_string().contains(&format!("tenure: {words}")) || error.to_string().contains(words),
            "{columns}: {error}"
        );
        assert!(error.to_string().contains("tenure: "), "{columns}: {error}");
    }
    assert_eq!(store.queue(&queue("new")).await.unwrap(), None);
    let all = store.tasks(&TaskFilter { limit: 10, ..TaskFilter::default() }).await.unwrap();
    assert_eq!(all.len(), 1);
}

#[tokio::test]
async fn a_submission_commits_with_the_transaction_of_the_caller() {
    let (store, _dir) = fresh().await;
    store.pool().execute("CREATE TABLE orders (id INTEGER)").await.unwrap();
    let mut conn = store.pool().acquire().await.unwrap();
    let error = submit(&mut conn, &submission(1)).await.unwrap_err();
    assert!(error.kind == ErrorKind::Request && error.message.contains("begin one first"), "{error}");
    drop(conn);
    let mut transaction = store.pool().begin().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    assert_eq!(submit(&mut transaction, &submission(2)).await.unwrap().len(), 2);
    transaction.rollback().await.unwrap();
    assert_eq!(count(&store, TaskState::Ready).await, 0);
    let mut transaction = store.pool().begin().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    submit(&mut transaction, &submission(2)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(count(&store, TaskState::Ready).await, 2);
}

#[tokio::test]
async fn a_submission_larger_than_one_statement_is_atomic() {
    let (store, _dir) = fresh().await;
    let payload = RawJson::of(&"x".repeat(10_000)).unwrap();
    let task = |n: u32| NewTask {
        payload: payload.clone(),
        parents: if n == 0 { vec![] } else { vec![ParentRef::Index(0)] },
        ..NewTask::new("k")
    };
    let submission = Submission { queue: queue("q"), tasks: (0..2_500).map(task).collect() };
    let submitted = store.submit(&submission).await.unwrap();
    assert!(submitted.iter().zip(1..).all(|(it, id)| it.created && it.id.0 == id));
    assert_eq!(count(&store, TaskState::Waiting).await, 2_499);
    let claimed = claim(&store, &direct("q", claim_request("w", 9))).await;
    assert_eq!(claimed.len(), 1);
    store.settle(&[settlement(&claimed[0], ClaimOutcome::Complete(None))]).await.unwrap();
    assert_eq!(count(&store, TaskState::Ready).await, 2_499);
    let claimed = claim(&store, &direct("q", claim_request("w", 1_000))).await;
    assert_eq!(claimed.iter().map(|it| it.id.0).collect::<Vec<_>>(), (2..=1_001).collect::<Vec<_>>());
    assert!(claimed.iter().all(|it| it.payload == payload));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_claimed_twice_by_several_processes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = open(&path).await;
    store.submit(&submission(600)).await.unwrap();
    let mut children = [Child::spawn("claimer", &path), Child::spawn("claimer", &path)];
    for child in &mut children {
        assert_eq!(child.read_line(), "ready");
    }
    for child in &mut children {
        child.write_line("go");
    }
    let clients = [open(&path).await, open(&path).await, store.clone()];
    let ours = clients.map(|client| {
        tokio::spawn(async move {
            let mut ids = Vec::new();
            loop {
                let claimed = claim(&client, &direct("q", claim_request("w", 5))).await;
                if claimed.is_empty() {
                    return ids;
                }
                ids.extend(claimed.iter().map(|task| task.id.0));
            }
        })
    });
    let mut ids = Vec::new();
    for task in ours {
        ids.extend(task.await.unwrap());
    }
    for mut child in children {
        loop {
            match child.read_line().as_str() {
                "done" => break,
                output => ids.extend(output.split(' ').map(|id| id.parse::<u64>().unwrap())),
            }
        }
    }
    assert_eq!(ids.len(), 600, "every task was claimed once");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_of_a_killed_worker_is_recovered_and_its_settlement_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = open(&path).await;
    store.submit(&submission(1)).await.unwrap();
    let mut child = Child::spawn("worker", &path);
    let output = child.read_line();
    let [session, task, token] = output.split(' ').collect::<Vec<_>>()[..] else { panic!("{output}") };
    let session = SessionId::from_stored(session);
    let (task, token) = (TaskId(task.parse().unwrap()), token.parse::<Token>().unwrap());
    assert_eq!(store.held_claims(&session).await.unwrap(), [(task, token)]);
    let (_broker, maintenance) = broker(&store).await;
    assert_eq!(store.maintain(&maintenance).await.unwrap().recovered, 0, "the worker is alive");
    child.kill();
    store
        .expire_session(&ExpireSessionRequest { session: session.clone(), epoch: 0, heartbeat_count: None })
        .await
        .unwrap();
    let response = store.maintain(&maintenance).await.unwrap();
    assert!(response.is_leader && response.recovered == 1, "{response:?}");
    let view = view(&store, task.0).await;
    assert_eq!((view.state, view.attempt), (TaskState::Ready, 1));
    assert_eq!(view.failures[0].error, "claim lost: session ended");
    let late = Settlement {
        namespace: Name::default_namespace(),
        task,
        token,
        outcome: ClaimOutcome::Complete(None),
    };
    assert_eq!(store.settle(&[late]).await.unwrap(), [SettleResult::ClaimLost]);
    let again = claim(&store, &direct("q", claim_request("w", 1))).await;
    assert!(again[0].id == task && again[0].token > token && again[0].attempt == 2);
    assert_eq!(store.maintain(&maintenance).await.unwrap().recovered, 0, "only once");
}

#[tokio::test]
async fn maintenance_requires_the_broker_lease() {
    let (store, _dir) = fresh().await;
    let (_broker, maintenance) = broker(&store).await;
    for maintenance in [
        MaintenanceRequest { token: Token::from_u64(99), ..maintenance.clone() },
        MaintenanceRequest { session: SessionId::from_stored("other"), ..maintenance.clone() },
    ] {
        assert!(!store.maintain(&maintenance).await.unwrap().is_leader);
    }
    assert!(store.maintain(&maintenance).await.unwrap().is_leader);
}

/// The next notification about tasks or pools.
async fn next_work_notification(notifications: &mut BoxNotificationSource) -> Notification {
    loop {
        let notification = notifications.next().await.expect("notifications");
        if matches!(
            notification,
            Notification::QueueReady(_) | Notification::ClaimCancelled(_) | Notification::PoolChanged(_)
        ) {
            return notification;
        }
    }
}

#[tokio::test]
async fn only_registered_waiters_are_notified_and_only_once() {
    let (store, _dir) = fresh().await;
    let worker = TestSession::open(Arc::new(store.clone()), "worker").await;
    let mut notifications = store.notifications();
    store.submit(&submission(1)).await.unwrap();
    store.register_queue_waiter(&worker.id, &[queue("other"), queue("q")]).await.unwrap();
    store.submit(&submission(1)).await.unwrap();
    store.submit(&submission(1)).await.unwrap();
    store.submit(&Submission { queue: queue("other"), tasks: vec![NewTask::new("k")] }).await.unwrap();
    assert_eq!(next_work_notification(&mut notifications).await, Notification::QueueReady(queue("q")));
    assert_eq!(next_work_notification(&mut notifications).await, Notification::QueueReady(queue("other")));
    // A waiting task notifies only when it becomes ready.
    let tasks =
        vec![NewTask { run_at_ms: Some(1), parents: vec![ParentRef::Task(TaskId(1))], ..NewTask::new("k") }];
    store.register_queue_waiter(&worker.id, &[queue("q")]).await.unwrap();
    store.submit(&Submission { queue: queue("q"), tasks }).await.unwrap();
    let claim_request = ClaimRequest { session: Some(worker.id.clone()), ..claim_request("w", 2) };
    let claimed = claim(&store, &direct("q", claim_request)).await;
    store.apply_task_action(&Name::default_namespace(), &[claimed[1].id], TaskAction::Cancel).await.unwrap();
    assert_eq!(
        next_work_notification(&mut notifications).await,
        Notification::ClaimCancelled(worker.id.clone())
    );
    store.settle(&[settlement(&claimed[0], ClaimOutcome::Complete(None))]).await.unwrap();
    assert_eq!(next_work_notification(&mut notifications).await, Notification::QueueReady(queue("q")));
}

/// Two claims with the same concurrency key end together and unblock two tasks.
#[tokio::test]
async fn as_many_tasks_are_unblocked_as_claims_end() {
    let (store, _dir) = fresh().await;
    let task = NewTask { concurrency_key: Some("c".into()), concurrency_limit: 2, ..NewTask::new("k") };
    store.submit(&Submission { queue: queue("q"), tasks: vec![task; 5] }).await.unwrap();
    let first = claim(&store, &direct("q", claim_request("w", 9))).await;
    assert_eq!(first.len(), 2);
    assert_eq!(count(&store, TaskState::Blocked).await, 3);
    let done: Vec<_> = first.iter().map(|it| settlement(it, ClaimOutcome::Complete(None))).collect();
    store.settle(&done).await.unwrap();
    let second = claim(&store, &direct("q", claim_request("w", 9))).await;
    assert_eq!(second.iter().map(|it| it.id.0).collect::<Vec<_>>(), [3, 4]);
}

/// Maintenance unblocks tasks of a concurrency key if the process that ended its last claim crashed before it could.
#[tokio::test]
async fn maintenance_unblocks_tasks_that_a_crash_left_blocked() {
    let (store, _dir) = fresh().await;
    let task = NewTask { concurrency_key: Some("c".into()), ..NewTask::new("k") };
    store.submit(&Submission { queue: queue("q"), tasks: vec![task; 3] }).await.unwrap();
    store.pool().execute("UPDATE tenure_tasks SET state = 'blocked'").await.unwrap();
    assert!(claim(&store, &direct("q", claim_request("w", 9))).await.is_empty());
    let (_broker, maintenance) = broker(&store).await;
    store.maintain(&maintenance).await.unwrap();
    assert_eq!(claim(&store, &direct("q", claim_request("w", 9))).await.len(), 1);
}

/// No statement scans all tasks, regardless of table statistics, so tasks for other workers cost nothing.
#[tokio::test]
async fn no_statement_scans_all_tasks() {
    let (store, _dir) = fresh().await;
    let mut conn = plain(store.path()).await;
    let files = [
        include_str!("../../src/store/sqlite/queries/claims.sql"),
        include_str!("../../src/store/sqlite/queries/tasks.sql"),
        include_str!("../../src/store/sqlite/queries/maintenance.sql"),
        include_str!("../../src/store/sqlite/queries/queues.sql"),
        include_str!("../../src/store/sqlite/queries/workers.sql"),
        include_str!("../../src/store/sqlite/queries/pools.sql"),
    ];
    let mut steps = 0;
    for statement in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
        let (name, sql) = statement.split_once('\n').unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        for row in sqlx::query(sqlx::AssertSqlSafe(explain.as_str())).fetch_all(&mut conn).await.unwrap() {
            let step: String = row.get("detail");
            // Only tasks, dependencies and pool requests grow without limit.
            let all = ["t", "tenure_tasks", "e", "tenure_task_dependencies", "r", "tenure_pool_requests"];
            assert!(!all.iter().any(|table| step == format!("SCAN {table}")), "{name}: {step}");
            steps += 1;
        }
    }
    assert!(steps > 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unseen_worker_is_pruned_after_a_day_unless_it_is_approved() {
    let (store, dir) = fresh().await;
    let ((_broker, maintenance), space) = (broker(&store).await, Name::default_namespace());
    let living = TestSession::open(Arc::new(store.clone()), "living").await;
    let over = TestSession::open(Arc::new(store.clone()), "over").await;
    let sessions = [None, None, Some(living.id.clone()), Some(over.id.clone())];
    for (name, session) in ["approved", "gone", "lives", "over"].into_iter().zip(sessions) {
        let worker = serde_json::from_value(serde_json::json!({ "name": name, "session": session })).unwrap();
        store.register_worker(&space, &worker).await.unwrap();
    }
    over.store.end_session(&over.id).await.unwrap();
    assert!(store.set_worker_approval(&space, "approved", Some("ada")).await.unwrap());
    let known = async || {
        let workers = store.workers(None).await.unwrap();
        workers.into_iter().map(|it| it.worker.name).collect::<Vec<_>>()
    };
    store.maintain(&maintenance).await.unwrap();
    assert_eq!(known().await, ["approved", "gone", "lives", "over"]);
    let mut conn = plain(&dir.path().join("t.db")).await;
    conn.execute("UPDATE tenure_workers SET last_seen_at_ms = last_seen_at_ms - 90000000").await.unwrap();
    conn.execute("UPDATE tenure_sessions SET heartbeat_at_ms = heartbeat_at_ms - 90000000").await.unwrap();
    store.maintain(&MaintenanceRequest { clock_ms: None, ..maintenance.clone() }).await.unwrap();
    assert_eq!(known().await.len(), 4, "without a trusted clock");
    store.maintain(&maintenance).await.unwrap();
    assert_eq!(known().await, ["approved", "lives"]);
}

/// Print how fast a queue drains: `cargo test --release --test sqlite drain_rate -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures only"]
async fn drain_rate() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("TENURE_TEST_DIRECTORY").unwrap_or("/var/tmp".into())).unwrap();
    let store = open(&dir.path().join("t.db")).await;
    let (mut claims, mut settles) = (Duration::ZERO, Duration::ZERO);
    let before = tenure::runtime::now();
    for _ in 0..20 {
        store.submit(&submission(1_000)).await.unwrap();
    }
    let submits = tenure::runtime::now().since(before);
    let mut n = 0;
    loop {
        let before = tenure::runtime::now();
        let claimed = claim(&store, &direct("q", claim_request("w", 100))).await;
        let between = tenure::runtime::now();
        let done: Vec<_> = claimed.iter().map(|it| settlement(it, ClaimOutcome::Complete(None))).collect();
        store.settle(&done).await.unwrap();
        claims += between.since(before);
        settles += tenure::runtime::now().since(between);
        n += done.len();
        if done.is_empty() {
            break;
        }
    }
    let rate = |n: usize, span: Duration| (n as f64 / span.as_secs_f64()) as u64;
    println!(
        "{n} tasks: {}/s submitted by 1000; {}/s claimed, {}/s completed, {}/s both, by 100",
        rate(n, submits),
        rate(n, claims),
        rate(n, settles),
        rate(n, claims + settles)
    );
}
