//! Tasks by plain SQL, as any language submits them; roles; and a database that was there before.

use tenure::backend::migrations::Migrate;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure_core::port::{
    Authority, ClaimAnswer, ClaimAsk, ClaimRefusal, Desk, Mode, Post, QueueSettings, Store, TaskId,
    TaskState, Tasks, claims_election,
};
use tenure_core::{Name, Token};
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::claims::{claimed, completed, queue, seat, submission, tasks};
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn any_language_submits_in_sql() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let id = database.psql("SELECT tenure.submit('q')").unwrap();
    let parent: u64 = id.trim().parse().unwrap();
    let all = format!(
        "SELECT tenure.submit('q', '{{\"to\": \"ada\"}}', kind => 'welcome', priority => 5, namespace => 'default', \
         requires => '{{b,a,b}}', prefers => '{{c}}', workers => '{{x,*}}', run_at => now() + interval '1 hour', \
         max_wait => '5 minutes', max_run => '1 minute', max_attempts => 3, backoff_first => '2 seconds', \
         backoff_most => '1 minute', parents => '{{{parent}}}', key => 'k', concurrency_key => 'c', concurrency_limit => 2)"
    );
    let id: u64 = database.psql(&all).unwrap().trim().parse().unwrap();
    assert_eq!(database.psql(&all).unwrap().trim(), id.to_string(), "the same key, the same task");
    let task = store.task(&Name::default_namespace(), TaskId(id)).await.unwrap().unwrap();
    assert_eq!((task.kind.as_str(), task.priority, task.state), ("welcome", 5, TaskState::Waiting));
    assert_eq!((task.requires, task.workers), (vec!["a".to_owned(), "b".to_owned()], vec![]));
    assert_eq!((task.max_wait_ms, task.max_run_ms, task.max_attempts), (Some(300_000), Some(60_000), 3));
    assert_eq!((task.backoff.first_ms, task.backoff.most_ms), (2_000, 60_000));
    assert_eq!((task.parents, task.key.as_deref()), (vec![TaskId(parent)], Some("k")));
    assert_eq!((task.concurrency_key.as_deref(), task.concurrency_limit), (Some("c"), 2));
    assert_eq!(task.payload.parse::<serde_json::Value>().unwrap()["to"], "ada");
    database.psql("BEGIN; SELECT tenure.submit('q'); ROLLBACK").unwrap();
    assert_eq!(claimed(&store, "q", seat("s", 10)).await.len(), 1);
    assert!(database.psql("SELECT obj_description('tenure.submit'::regproc)").unwrap().contains("TN010"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_in_sql_is_refused() {
    let (database, _store) = fresh().await;
    let dead = "INSERT INTO tenure.tasks (id, queue, demand, state, enqueued_at, effective_at, payload) \
                SELECT 900, tenure.queue_id('default', 'q'), 1, 'dead', now(), now(), '{}'";
    database.psql(dead).unwrap();
    let long = "x".repeat(257);
    let many = vec!["a"; 65].join(",");
    let bad = [
        ("''".to_owned(), "TN010", "no name"),
        ("'a b'".to_owned(), "TN010", "'a b'"),
        ("NULL".to_owned(), "TN010", "null"),
        ("'q', namespace => '-'".to_owned(), "TN010", "namespace"),
        ("'q', kind => E'a\\nb'".to_owned(), "TN010", "control character"),
        (format!("'q', kind => '{long}'"), "TN010", "257 bytes"),
        ("'q', requires => '{\"\"}'".to_owned(), "TN010", "is empty"),
        (format!("'q', requires => '{{{many}}}'"), "TN010", "at most 64"),
        ("'q', key => ''".to_owned(), "TN010", "key"),
        ("'q', priority => 1000001".to_owned(), "TN010", "priority"),
        ("'q', max_attempts => 0".to_owned(), "TN010", "attempts"),
        ("'q', concurrency_limit => 0".to_owned(), "TN010", "concurrency limit"),
        ("'q', max_wait => '-1 s'".to_owned(), "TN010", "longest wait"),
        ("'q', run_at => 'infinity'".to_owned(), "TN010", "run_at"),
        ("'q', backoff_first => '2 h'".to_owned(), "TN010", "backoff"),
        ("'q', jsonb_build_object('a', repeat('x', 1048576))".to_owned(), "TN010", "1048576"),
        ("'q', parents => '{77}'".to_owned(), "TN011", "no task 77"),
        ("'q', parents => '{900}'".to_owned(), "TN012", "900 is dead"),
    ];
    for (arguments, code, part) in bad {
        let script = format!("\\set VERBOSITY verbose\nSELECT tenure.submit({arguments})");
        let error = database.psql(&script).unwrap_err().to_string();
        assert!(error.contains(code) && error.contains(part), "{arguments}: {error}");
        assert!(error.contains("HINT"), "{arguments}: {error}");
    }
    assert_eq!(database.psql("SELECT count(*) FROM tenure.tasks").unwrap(), "1");
}

/// No claim that was made in the old mode is committed after the switch has returned.
#[tokio::test(flavor = "multi_thread")]
async fn a_switch_of_mode_waits_for_a_claim_under_way() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(5))).await.unwrap();
    let mut under_way = store.pool().begin().await.unwrap();
    let claim = "SELECT * FROM tenure.claim('default', 'q', 'direct', NULL, NULL, \
                 '[{\"name\": \"w\", \"kinds\": [], \"tags\": [], \"wanted\": 1, \"session\": \"s\"}]', '{}', true)";
    sqlx::raw_sql(claim).execute(&mut *under_way).await.unwrap();
    let switcher = store.clone();
    let exclusive = QueueSettings { mode: Mode::Exclusive, ..QueueSettings::default() };
    let switching = tokio::spawn(async move { switcher.set_queue(&queue("q"), &exclusive).await });
    until_blocked(&database, 1).await;
    // And one that comes now waits for the switch, and finds it.
    let late = store.clone();
    let ask = ClaimAsk { queue: queue("q"), authority: Authority::Direct, seats: vec![seat("s", 1)] };
    let claiming = tokio::spawn(async move { late.claim(&ask).await });
    until_blocked(&database, 2).await;
    under_way.commit().await.unwrap();
    switching.await.unwrap().unwrap();
    let answer = claiming.await.unwrap().unwrap();
    assert_eq!(answer, ClaimAnswer::Refused(ClaimRefusal::Mode(Mode::Exclusive)));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_path_of_work_goes_through_a_pooler() {
    let cluster = PgCluster::start().unwrap();
    migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let options = PostgresOptions::new(pooler.url("postgres"));
    let clients = (0..4).map(|n| {
        let options = options.clone();
        async move {
            let store = Postgres::connect(options).await.unwrap();
            let (session, name) = (format!("s{n}"), format!("q{n}"));
            opened(&store, &session).await;
            for _ in 0..10 {
                store.submit(&submission(&name, tasks(5))).await.unwrap();
                let mut tx = store.pool().begin().await.unwrap();
                tenure::backend::postgres::submit(&mut tx, &submission(&name, tasks(1))).await.unwrap();
                tx.commit().await.unwrap();
                let got = claimed(&store, &name, seat(&session, 10)).await;
                assert_eq!(got.len(), 6);
                let done: Vec<_> = got.iter().map(completed).collect();
                store.settle(&done).await.unwrap();
            }
            let view = store.queue(&queue(&name)).await.unwrap().unwrap();
            assert_eq!(view.count(TaskState::Completed), 60);
        }
    });
    futures_util::future::join_all(clients).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leaders_secret_is_not_for_those_who_only_look() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    database.psql(&tenure::backend::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store = Postgres::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    let token = leading(&store, "a", &claims_election()).await;
    let post = Post { token, session: id("a"), address: "host:1".into(), secret: vec![0, 255, 7] };
    assert!(store.put_post(&post).await.unwrap());
    assert!(store.post().await.unwrap().is_some_and(|it| it == post));
    assert!(!store.put_post(&Post { token: Token::ZERO, ..post.clone() }).await.unwrap());
    assert_eq!(database.psql_as("tenure_reader", "SELECT address FROM tenure.posts").unwrap(), "host:1");
    let secret =
        database.psql_as("tenure_reader", "SELECT secret FROM tenure.posts").unwrap_err().to_string();
    assert!(secret.contains("permission denied"), "{secret}");
    for change in ["SELECT tenure.submit('q')", "SELECT * FROM tenure.cancel('default', '{1}')"] {
        let refused = database.psql_as("tenure_reader", change).unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{change}: {refused}");
    }
    store.end(&id("a")).await.unwrap();
    assert!(store.post().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_elections_learns_of_tasks() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    let create = "CREATE SCHEMA tenure; CREATE TABLE tenure.migrations (
                      version bigint PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now(),
                      oldest_compatible bigint);";
    let rows = "INSERT INTO tenure.migrations VALUES (1, 'elections'), (2, 'server');
                INSERT INTO tenure.sessions (id, name, beat, lease_ms) VALUES ('s', 'old', 3, 1000);";
    let first = include_str!("../../src/backend/postgres/migrations/0001_elections.sql");
    let second = include_str!("../../src/backend/postgres/migrations/0002_server.sql");
    for sql in [create, first, second, rows] {
        database.psql(sql).unwrap();
    }
    let options = PostgresOptions::new(database.url());
    let applied = Postgres::connect_unchecked(options.clone()).await.unwrap().migrate().await.unwrap();
    assert_eq!(applied.first(), Some(&(3, "claims")));
    let store = Postgres::connect(options).await.unwrap();
    assert!(store.beat(&id("s")).await.is_ok());
    store.submit(&submission("q", tasks(1))).await.unwrap();
    assert_eq!(
        claimed(&store, "q", seat("s", 1)).await.len(),
        1,
        "on the beat of a session that was there before"
    );
}
