//! Tasks in a file: what the suite that all stores share does not see.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, Executor, Row, SqliteConnection};
use tenure::backend::migrations::Migrate;
use tenure::backend::sqlite::{Sqlite, SqliteOptions, submit};
use tenure_core::port::*;
use tenure_core::{Name, SessionId, Token};
use tenure_testkit::conformance::Actor;

use super::child::{Child, open};

pub(crate) fn queue(name: &str) -> QueueKey {
    QueueKey::new(Name::default_namespace(), name.parse().unwrap())
}

pub(crate) fn seat(worker: &str, limit: u32) -> Seat {
    let worker = Profile { name: worker.into(), ..Profile::default() };
    Seat { worker, limit, session: None, hold_ms: Some(60_000) }
}

pub(crate) fn direct(name: &str, seat: Seat) -> ClaimAsk {
    ClaimAsk { queue: queue(name), authority: Authority::Direct, seats: vec![seat] }
}

/// What one seat gets.
pub(crate) async fn claim(store: &Sqlite, ask: &ClaimAsk) -> Vec<ClaimedTask> {
    match store.claim(ask).await.unwrap() {
        ClaimAnswer::Served { tasks, .. } => tasks.into_iter().flatten().collect(),
        ClaimAnswer::Refused(refusal) => panic!("refused: {refusal:?}"),
    }
}

fn some(n: usize) -> Submission {
    Submission { queue: queue("q"), tasks: vec![NewTask::new("k"); n] }
}

fn settlement(task: &ClaimedTask, outcome: Outcome) -> Settlement {
    Settlement { namespace: Name::default_namespace(), task: task.id, token: task.token, outcome }
}

async fn fresh() -> (Sqlite, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    (open(&dir.path().join("t.db")).await, dir)
}

/// A connection that knows nothing of Tenure.
async fn plain(path: &Path) -> SqliteConnection {
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await.unwrap()
}

async fn view(store: &Sqlite, id: u64) -> TaskView {
    store.task(&Name::default_namespace(), TaskId(id)).await.unwrap().expect("the task")
}

async fn count(store: &Sqlite, state: TaskState) -> u64 {
    store.queue(&queue("q")).await.unwrap().map_or(0, |view| view.count(state))
}

/// The keeper, and how it tends.
async fn keeper(store: &Sqlite) -> (Actor, Tend) {
    let actor = Actor::open(Arc::new(store.clone()), "keeper").await;
    actor.stand(&claims_election()).await;
    let token = actor.take(&claims_election(), 0).await;
    let tend = Tend { session: actor.id.clone(), token, clock_ms: Some(i64::MAX), limit: 100 };
    (actor, tend)
}

#[tokio::test]
async fn a_task_goes_from_submission_to_completion() {
    let (store, _dir) = fresh().await;
    let submitted = store.submit(&some(3)).await.unwrap();
    let submitted: Vec<_> = submitted.iter().map(|it| (it.id.0, it.new)).collect();
    assert_eq!(submitted, [(1, true), (2, true), (3, true)]);
    let claimed = claim(&store, &direct("q", seat("w", 2))).await;
    assert_eq!(claimed.iter().map(|it| it.id.0).collect::<Vec<_>>(), [1, 2]);
    assert!(claimed.iter().all(|it| it.attempt == 1 && it.kind == "k" && it.deadline_ms.is_some()));
    let done = settlement(&claimed[0], Outcome::Complete(Some("[1]".parse().unwrap())));
    let late = Settlement { token: Token::from_u64(9), ..settlement(&claimed[1], Outcome::Release) };
    let settled = store.settle(&[done.clone(), late, done]).await.unwrap();
    let completed = Settled::Now(TaskState::Completed);
    assert_eq!(settled, [completed, Settled::Lost, completed]);
    let view = view(&store, 1).await;
    assert_eq!((view.state, view.output.unwrap().to_string().as_str()), (TaskState::Completed, "[1]"));
    for (state, n) in [(TaskState::Ready, 1), (TaskState::Claimed, 1), (TaskState::Completed, 1)] {
        assert_eq!(count(&store, state).await, n, "{state:?}");
    }
}

#[tokio::test]
async fn any_language_submits_by_inserting_into_a_view() {
    let (store, _dir) = fresh().await;
    let mut conn = plain(store.path()).await;
    conn.execute(
        r#"INSERT INTO tenure_submit (queue, kind, payload) VALUES ('q', 'mail', '{"to":"ada"}'), ('q', 'mail', '{}')"#,
    )
    .await
    .unwrap();
    let all = r#"INSERT INTO tenure_submit (namespace, queue, kind, payload, priority, requires, prefers, workers, run_at_ms,
            max_wait_ms, max_run_ms, max_attempts, parents, key, concurrency_key, concurrency_limit)
        VALUES ('default', 'q', 'mail', '[1, 2]', 5, '["b", "a", "b"]', '["c"]', '["x", "*"]', 1, 2000, 3000, 4, '[1, 2, 1]',
            'k1', 'user-7', 2)"#;
    conn.execute(all).await.unwrap();
    conn.execute(all).await.unwrap();
    conn.execute("INSERT INTO tenure_submit (queue, run_at_ms) VALUES ('q', 4000000000000)").await.unwrap();
    let claimed = claim(&store, &direct("q", seat("w", 10))).await;
    let got: Vec<_> = claimed.iter().map(|it| (it.id.0, it.kind.as_str(), it.payload.as_str())).collect();
    assert_eq!(got, [(1, "mail", r#"{"to":"ada"}"#), (2, "mail", "{}")]);
    let third = view(&store, 3).await;
    assert_eq!((third.state, third.priority, third.max_attempts), (TaskState::Waiting, 5, 4));
    assert_eq!((third.requires, third.prefers), (vec!["a".into(), "b".into()], vec!["c".to_string()]));
    assert!(third.workers.is_empty(), "* is anybody");
    assert_eq!(third.parents, [TaskId(1), TaskId(2)]);
    assert_eq!((third.max_wait_ms, third.max_run_ms), (Some(2_000), Some(3_000)));
    assert_eq!((third.key.as_deref(), third.concurrency_key.as_deref()), (Some("k1"), Some("user-7")));
    assert_eq!(third.effective_at_ms, third.enqueued_at_ms - 5 * PRIORITY_STEP_MS);
    assert_eq!(view(&store, 4).await.state, TaskState::Scheduled);
    assert_eq!(store.tasks(&TaskFilter { limit: 10, ..TaskFilter::default() }).await.unwrap().len(), 4);
    // Both ways in agree on what a demand is.
    let tasks = vec![NewTask {
        requires: vec!["b".into(), "a".into()],
        prefers: vec!["c".into()],
        workers: vec!["*".into()],
        ..NewTask::new("mail")
    }];
    store.submit(&Submission { queue: queue("q"), tasks }).await.unwrap();
    let demands =
        conn.fetch_one("SELECT count(*), count(DISTINCT id) FROM tenure_demands WHERE kind = 'mail'");
    assert_eq!(demands.await.unwrap().get::<i64, _>(0), 2);
    let done: Vec<_> =
        claimed.iter().map(|it| settlement(it, Outcome::Complete(Some(it.payload.clone())))).collect();
    store.settle(&done).await.unwrap();
    assert_eq!(view(&store, 3).await.state, TaskState::Ready, "its parents are completed");
}

#[tokio::test]
async fn what_is_inserted_is_there_if_the_transaction_commits() {
    let (store, _dir) = fresh().await;
    let mut conn = plain(store.path()).await;
    let mut transaction = conn.begin().await.unwrap();
    transaction.execute("INSERT INTO tenure_submit (queue, key) VALUES ('q', 'once')").await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(store.queue(&queue("q")).await.unwrap(), None, "not even the queue");
    let mut transaction = conn.begin().await.unwrap();
    transaction.execute("INSERT INTO tenure_submit (queue, key) VALUES ('q', 'once')").await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(claim(&store, &direct("q", seat("w", 9))).await.len(), 1);
}

/// Each is refused with the words that help, and leaves nothing behind.
#[tokio::test]
async fn nonsense_that_is_inserted_is_refused_with_the_remedy() {
    let (store, _dir) = fresh().await;
    store.submit(&some(1)).await.unwrap();
    let claimed = claim(&store, &direct("q", seat("w", 1))).await;
    let failed = Outcome::Fail { error: "no".into(), retry: false, after: Default::default() };
    store.settle(&[settlement(&claimed[0], failed)]).await.unwrap();
    let mut conn = plain(store.path()).await;
    let long = format!("'\"{}\"'", "x".repeat(PAYLOAD_MAX));
    let many = format!("'[{}]'", ["\"t\""; LIST_MAX + 1].join(","));
    let cases = [
        ("(kind)", "'k'", "name a queue"),
        ("(queue)", "''", "the queue's name"),
        ("(queue)", "'a b'", "the queue's name"),
        ("(queue, namespace)", "'new', '-x'", "the namespace"),
        ("(queue, payload)", "'new', '{to'", "not JSON"),
        ("(queue, payload)", "'new', x'7b7d'", "not JSON"),
        ("(queue, payload)", &format!("'new', {long}"), "1048576 bytes"),
        ("(queue, requires)", "'new', 'gpu'", "JSON arrays"),
        ("(queue, workers)", "'new', '{}'", "JSON arrays"),
        ("(queue, prefers)", &format!("'new', {many}"), "at most 64"),
        ("(queue, requires)", "'new', '[1]'", "tags and workers"),
        ("(queue, requires)", r#"'new', '["a\n"]'"#, "tags and workers"),
        ("(queue, kind)", "'new', char(10)", "the kind"),
        ("(queue, key)", "'new', ''", "a key has"),
        ("(queue, concurrency_key)", "'new', ''", "a key has"),
        ("(queue, priority)", "'new', 'high'", "the priority"),
        ("(queue, priority)", "'new', 1000001", "the priority"),
        ("(queue, max_attempts)", "'new', 0", "max_attempts"),
        ("(queue, concurrency_limit)", "'new', 0", "concurrency_limit"),
        ("(queue, run_at_ms)", "'new', '2030-01-01'", "milliseconds since 1970"),
        ("(queue, max_run_ms)", "'new', -1", "max_wait_ms and max_run_ms"),
        ("(queue, parents)", "'new', '[99]'", "a parent is not there"),
        ("(queue, parents)", r#"'new', '["1"]'"#, "a parent is not there"),
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
async fn a_submission_in_the_callers_transaction_shares_its_fate() {
    let (store, _dir) = fresh().await;
    store.pool().execute("CREATE TABLE orders (id INTEGER)").await.unwrap();
    let mut conn = store.pool().acquire().await.unwrap();
    let error = submit(&mut conn, &some(1)).await.unwrap_err();
    assert!(error.kind == Trouble::Request && error.message.contains("begin one first"), "{error}");
    drop(conn);
    let mut transaction = store.pool().begin().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    assert_eq!(submit(&mut transaction, &some(2)).await.unwrap().len(), 2);
    transaction.rollback().await.unwrap();
    assert_eq!(count(&store, TaskState::Ready).await, 0);
    let mut transaction = store.pool().begin().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (1)").await.unwrap();
    submit(&mut transaction, &some(2)).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(count(&store, TaskState::Ready).await, 2);
}

#[tokio::test]
async fn a_submission_larger_than_one_statement_goes_in_whole() {
    let (store, _dir) = fresh().await;
    let payload = Json::of(&"x".repeat(10_000)).unwrap();
    let task = |n: u32| NewTask {
        payload: payload.clone(),
        parents: if n == 0 { vec![] } else { vec![Parent::Index(0)] },
        ..NewTask::new("k")
    };
    let submission = Submission { queue: queue("q"), tasks: (0..2_500).map(task).collect() };
    let submitted = store.submit(&submission).await.unwrap();
    assert!(submitted.iter().zip(1..).all(|(it, id)| it.new && it.id.0 == id));
    assert_eq!(count(&store, TaskState::Waiting).await, 2_499);
    let claimed = claim(&store, &direct("q", seat("w", 9))).await;
    assert_eq!(claimed.len(), 1);
    store.settle(&[settlement(&claimed[0], Outcome::Complete(None))]).await.unwrap();
    assert_eq!(count(&store, TaskState::Ready).await, 2_499);
    let claimed = claim(&store, &direct("q", seat("w", 1_000))).await;
    assert_eq!(claimed.iter().map(|it| it.id.0).collect::<Vec<_>>(), (2..=1_001).collect::<Vec<_>>());
    assert!(claimed.iter().all(|it| it.payload == payload));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_claimed_twice_by_several_processes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = open(&path).await;
    store.submit(&some(600)).await.unwrap();
    let mut children = [Child::play("claimer", &path), Child::play("claimer", &path)];
    for child in &mut children {
        assert_eq!(child.says(), "ready");
    }
    for child in &mut children {
        child.tell("go");
    }
    let clients = [open(&path).await, open(&path).await, store.clone()];
    let ours = clients.map(|client| {
        tokio::spawn(async move {
            let mut ids = Vec::new();
            loop {
                let claimed = claim(&client, &direct("q", seat("w", 5))).await;
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
            match child.says().as_str() {
                "done" => break,
                said => ids.extend(said.split(' ').map(|id| id.parse::<u64>().unwrap())),
            }
        }
    }
    assert_eq!(ids.len(), 600, "none was claimed twice, none was left");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_worker_had_is_ready_again_and_its_word_counts_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let store = open(&path).await;
    store.submit(&some(1)).await.unwrap();
    let mut child = Child::play("worker", &path);
    let said = child.says();
    let [session, task, token] = said.split(' ').collect::<Vec<_>>()[..] else { panic!("{said}") };
    let session = SessionId::from_stored(session);
    let (task, token) = (TaskId(task.parse().unwrap()), token.parse::<Token>().unwrap());
    assert_eq!(store.held(&session).await.unwrap(), [(task, token)]);
    let (_keeper, tend) = keeper(&store).await;
    assert_eq!(store.tend(&tend).await.unwrap().returned, 0, "it lives");
    child.kill();
    store.expire(&Expire { session: session.clone(), epoch: 0, beat: None }).await.unwrap();
    let tended = store.tend(&tend).await.unwrap();
    assert!(tended.leads && tended.returned == 1, "{tended:?}");
    let view = view(&store, task.0).await;
    assert_eq!((view.state, view.attempt), (TaskState::Ready, 1));
    assert_eq!(view.failures[0].error, "lost: its session ended");
    let late =
        Settlement { namespace: Name::default_namespace(), task, token, outcome: Outcome::Complete(None) };
    assert_eq!(store.settle(&[late]).await.unwrap(), [Settled::Lost]);
    let again = claim(&store, &direct("q", seat("w", 1))).await;
    assert!(again[0].id == task && again[0].token > token && again[0].attempt == 2);
    assert_eq!(store.tend(&tend).await.unwrap().returned, 0, "once");
}

#[tokio::test]
async fn who_does_not_lead_tends_nothing() {
    let (store, _dir) = fresh().await;
    let (_keeper, tend) = keeper(&store).await;
    for tend in [
        Tend { token: Token::from_u64(99), ..tend.clone() },
        Tend { session: SessionId::from_stored("somebody"), ..tend.clone() },
    ] {
        assert!(!store.tend(&tend).await.unwrap().leads);
    }
    assert!(store.tend(&tend).await.unwrap().leads);
}

/// The next hint that is about work.
async fn hint(hints: &mut Wakes) -> Wake {
    loop {
        let wake = hints.next().await.expect("hints");
        if matches!(wake, Wake::Work(_) | Wake::Recalled(_) | Wake::Pool(_)) {
            return wake;
        }
    }
}

#[tokio::test]
async fn a_bell_is_rung_once_for_who_sleeps_and_not_at_all_for_nobody() {
    let (store, _dir) = fresh().await;
    let worker = Actor::open(Arc::new(store.clone()), "worker").await;
    let mut hints = store.wakes();
    store.submit(&some(1)).await.unwrap();
    store.doze(&worker.id, &[queue("other"), queue("q")]).await.unwrap();
    store.submit(&some(1)).await.unwrap();
    store.submit(&some(1)).await.unwrap();
    store.submit(&Submission { queue: queue("other"), tasks: vec![NewTask::new("k")] }).await.unwrap();
    assert_eq!(hint(&mut hints).await, Wake::Work(queue("q")));
    assert_eq!(hint(&mut hints).await, Wake::Work(queue("other")));
    // One that is not due rings nobody; being due does.
    let tasks =
        vec![NewTask { run_at_ms: Some(1), parents: vec![Parent::Task(TaskId(1))], ..NewTask::new("k") }];
    store.doze(&worker.id, &[queue("q")]).await.unwrap();
    store.submit(&Submission { queue: queue("q"), tasks }).await.unwrap();
    let seat = Seat { session: Some(worker.id.clone()), ..seat("w", 2) };
    let claimed = claim(&store, &direct("q", seat)).await;
    store.order(&Name::default_namespace(), &[claimed[1].id], Order::Cancel).await.unwrap();
    assert_eq!(hint(&mut hints).await, Wake::Recalled(worker.id.clone()));
    store.settle(&[settlement(&claimed[0], Outcome::Complete(None))]).await.unwrap();
    assert_eq!(hint(&mut hints).await, Wake::Work(queue("q")));
}

/// Two claims with one key that end together let in two.
#[tokio::test]
async fn as_many_are_let_in_as_made_way() {
    let (store, _dir) = fresh().await;
    let task = NewTask { concurrency_key: Some("c".into()), concurrency_limit: 2, ..NewTask::new("k") };
    store.submit(&Submission { queue: queue("q"), tasks: vec![task; 5] }).await.unwrap();
    let first = claim(&store, &direct("q", seat("w", 9))).await;
    assert_eq!(first.len(), 2);
    assert_eq!(count(&store, TaskState::Held).await, 3);
    let done: Vec<_> = first.iter().map(|it| settlement(it, Outcome::Complete(None))).collect();
    store.settle(&done).await.unwrap();
    let second = claim(&store, &direct("q", seat("w", 9))).await;
    assert_eq!(second.iter().map(|it| it.id.0).collect::<Vec<_>>(), [3, 4]);
}

/// What holds a key was lost with the process that should have let others in: the keeper finds them.
#[tokio::test]
async fn nobody_is_held_for_ever() {
    let (store, _dir) = fresh().await;
    let task = NewTask { concurrency_key: Some("c".into()), ..NewTask::new("k") };
    store.submit(&Submission { queue: queue("q"), tasks: vec![task; 3] }).await.unwrap();
    store.pool().execute("UPDATE tenure_tasks SET state = 'held'").await.unwrap();
    assert!(claim(&store, &direct("q", seat("w", 9))).await.is_empty());
    let (_keeper, tend) = keeper(&store).await;
    store.tend(&tend).await.unwrap();
    assert_eq!(claim(&store, &direct("q", seat("w", 9))).await.len(), 1);
}

/// A file that an older Tenure made, with somebody's lease in it.
#[tokio::test]
async fn a_file_from_before_there_were_tasks_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let mut conn = SqliteConnection::connect_with(&options).await.unwrap();
    conn.execute(include_str!("../../src/backend/sqlite/migrations/0001_elections.sql")).await.unwrap();
    conn.execute(include_str!("../../src/backend/sqlite/migrations/0002_server.sql")).await.unwrap();
    conn.execute(
        "INSERT INTO tenure_migrations VALUES (1, 'elections', 1, 0), (2, 'server', 2, 0);
         INSERT INTO tenure_elections (namespace, name, slots, created_at) VALUES ('default', 'e', 1, 0);
         INSERT INTO tenure_leases (namespace, name, slot, token) VALUES ('default', 'e', 0, 41)",
    )
    .await
    .unwrap();
    conn.close().await.unwrap();
    // Such old programs could not run on what comes of it, so it is migrated only if asked for.
    let old = Sqlite::open(SqliteOptions::new(&path).migrate(false)).await.unwrap();
    assert!(!old.migrate().await.unwrap().is_empty());
    drop(old);
    let store = open(&path).await;
    let status = store.schema_status().await.unwrap();
    assert!(status.pending.is_empty() && status.found >= Some(3), "{status:?}");
    let actor = Actor::open(Arc::new(store.clone()), "a").await;
    let key = tenure_testkit::conformance::election("e");
    actor.stand(&key).await;
    assert_eq!(actor.take(&key, 0).await, Token::from_u64(42));
    store.submit(&some(1)).await.unwrap();
    assert_eq!(claim(&store, &direct("q", seat("w", 1))).await.len(), 1);
}

/// Nothing is ever looked for by reading all tasks, whatever is known about the tables' sizes: a million for others cost nothing.
#[tokio::test]
async fn no_statement_reads_through_all_tasks() {
    let (store, _dir) = fresh().await;
    let mut conn = plain(store.path()).await;
    let files = [
        include_str!("../../src/backend/sqlite/queries/tasks.sql"),
        include_str!("../../src/backend/sqlite/queries/queues.sql"),
        include_str!("../../src/backend/sqlite/queries/workers.sql"),
        include_str!("../../src/backend/sqlite/queries/pools.sql"),
    ];
    let mut looked_at = 0;
    for statement in files.iter().flat_map(|file| file.split("-- name:").skip(1)) {
        let (name, sql) = statement.split_once('\n').unwrap();
        let explain = format!("EXPLAIN QUERY PLAN {sql}");
        for row in sqlx::query(sqlx::AssertSqlSafe(explain.as_str())).fetch_all(&mut conn).await.unwrap() {
            let step: String = row.get("detail");
            // The tables that grow are tasks, their parents and requests; the others are as long as people make them.
            let all = ["t", "tenure_tasks", "e", "tenure_task_parents", "r", "tenure_pool_requests"];
            assert!(!all.iter().any(|table| step == format!("SCAN {table}")), "{name}: {step}");
            looked_at += 1;
        }
    }
    assert!(looked_at > 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_nobody_sees_for_a_day_is_forgotten_unless_it_is_approved() {
    let (store, dir) = fresh().await;
    let ((_keeper, tend), space) = (keeper(&store).await, Name::default_namespace());
    let living = Actor::open(Arc::new(store.clone()), "living").await;
    let over = Actor::open(Arc::new(store.clone()), "over").await;
    let sessions = [None, None, Some(living.id.clone()), Some(over.id.clone())];
    for (name, session) in ["approved", "gone", "lives", "over"].into_iter().zip(sessions) {
        let worker = serde_json::from_value(serde_json::json!({ "name": name, "session": session })).unwrap();
        store.register(&space, &worker).await.unwrap();
    }
    over.store.end(&over.id).await.unwrap();
    assert!(store.approve(&space, "approved", Some("ada")).await.unwrap());
    let known = async || {
        let workers = store.workers(None).await.unwrap();
        workers.into_iter().map(|it| it.worker.name).collect::<Vec<_>>()
    };
    store.tend(&tend).await.unwrap();
    assert_eq!(known().await, ["approved", "gone", "lives", "over"]);
    let mut conn = plain(&dir.path().join("t.db")).await;
    conn.execute("UPDATE tenure_workers SET seen_at = seen_at - 90000000").await.unwrap();
    conn.execute("UPDATE tenure_sessions SET beat_at = beat_at - 90000000").await.unwrap();
    store.tend(&Tend { clock_ms: None, ..tend.clone() }).await.unwrap();
    assert_eq!(known().await.len(), 4, "without a reckoning of the clock");
    store.tend(&tend).await.unwrap();
    assert_eq!(known().await, ["approved", "lives"]);
}

/// Prints how fast a queue drains: `cargo test --release --test sqlite drain -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures, and asserts nothing"]
async fn drain() {
    let dir =
        tempfile::tempdir_in(std::env::var_os("TENURE_TEST_FOLDER").unwrap_or("/var/tmp".into())).unwrap();
    let store = open(&dir.path().join("t.db")).await;
    let (mut claims, mut settles) = (Duration::ZERO, Duration::ZERO);
    let before = tenure::runtime::now();
    for _ in 0..20 {
        store.submit(&some(1_000)).await.unwrap();
    }
    let submits = tenure::runtime::now().since(before);
    let mut n = 0;
    loop {
        let before = tenure::runtime::now();
        let claimed = claim(&store, &direct("q", seat("w", 100))).await;
        let between = tenure::runtime::now();
        let done: Vec<_> = claimed.iter().map(|it| settlement(it, Outcome::Complete(None))).collect();
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
