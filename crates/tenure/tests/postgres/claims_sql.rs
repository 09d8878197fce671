//! Tasks in plain SQL, poolers and roles.

use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure_core::port::{
    AssignmentMode, BrokerEndpoint, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimRefusal,
    ElectionStore, QueueSettings, TaskAdmin, TaskId, TaskState, TaskStore, broker_election,
};
use tenure_core::{Name, Token};
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::claims::{claim_request, claimed, completed, queue, submission, tasks};
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn tenure_submit_accepts_every_option() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    let id = database.psql("SELECT tenure.submit('q')").unwrap();
    let parent: u64 = id.trim().parse().unwrap();
    let all = format!(
        "SELECT tenure.submit('q', '{{\"to\": \"ada\"}}', kind => 'welcome', priority => 5, namespace => 'default', \
         required_tags => '{{b,a,b}}', preferred_tags => '{{c}}', allowed_workers => '{{x,*}}', run_at => now() + interval '1 hour', \
         max_wait => '5 minutes', max_run => '1 minute', max_attempts => 3, initial_backoff => '2 seconds', \
         max_backoff => '1 minute', parents => '{{{parent}}}', idempotency_key => 'k', concurrency_key => 'c', concurrency_limit => 2)"
    );
    let id: u64 = database.psql(&all).unwrap().trim().parse().unwrap();
    assert_eq!(database.psql(&all).unwrap().trim(), id.to_string(), "the same key, the same task");
    let task = store.task(&Name::default_namespace(), TaskId(id)).await.unwrap().unwrap();
    assert_eq!((task.kind.as_str(), task.priority, task.state), ("welcome", 5, TaskState::Waiting));
    assert_eq!((task.required_tags, task.allowed_workers), (vec!["a".to_owned(), "b".to_owned()], vec![]));
    assert_eq!((task.max_wait_ms, task.max_run_ms, task.max_attempts), (Some(300_000), Some(60_000), 3));
    assert_eq!((task.backoff.initial_ms, task.backoff.max_ms), (2_000, 60_000));
    assert_eq!((task.parents, task.idempotency_key.as_deref()), (vec![TaskId(parent)], Some("k")));
    assert_eq!((task.concurrency_key.as_deref(), task.concurrency_limit), (Some("c"), 2));
    assert_eq!(task.payload.parse::<serde_json::Value>().unwrap()["to"], "ada");
    database.psql("BEGIN; SELECT tenure.submit('q'); ROLLBACK").unwrap();
    assert_eq!(claimed(&store, "q", claim_request("s", 10)).await.len(), 1);
    assert!(database.psql("SELECT obj_description('tenure.submit'::regproc)").unwrap().contains("TN010"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tenure_submit_rejects_invalid_arguments() {
    let (database, _store) = fresh().await;
    let dead = "INSERT INTO tenure.tasks (id, queue_id, requirements_id, state, submitted_at, effective_at, payload) \
                SELECT 900, tenure.ensure_queue('default', 'q'), 1, 'dead', now(), now(), '{}'";
    database.psql(dead).unwrap();
    let long = "x".repeat(257);
    let many = vec!["a"; 65].join(",");
    let bad = [
        ("''".to_owned(), "TN010", "not a valid name"),
        ("'a b'".to_owned(), "TN010", "'a b'"),
        ("NULL".to_owned(), "TN010", "null"),
        ("'q', namespace => '-'".to_owned(), "TN010", "namespace"),
        ("'q', kind => E'a\\nb'".to_owned(), "TN010", "control character"),
        (format!("'q', kind => '{long}'"), "TN010", "257 bytes"),
        ("'q', required_tags => '{\"\"}'".to_owned(), "TN010", "is empty"),
        (format!("'q', required_tags => '{{{many}}}'"), "TN010", "at most 64"),
        ("'q', idempotency_key => ''".to_owned(), "TN010", "idempotency key"),
        ("'q', priority => 1000001".to_owned(), "TN010", "priority"),
        ("'q', max_attempts => 0".to_owned(), "TN010", "attempts"),
        ("'q', concurrency_limit => 0".to_owned(), "TN010", "concurrency limit"),
        ("'q', max_wait => '-1 s'".to_owned(), "TN010", "max_wait"),
        ("'q', run_at => 'infinity'".to_owned(), "TN010", "run_at"),
        ("'q', initial_backoff => '2 h'".to_owned(), "TN010", "backoff"),
        ("'q', jsonb_build_object('a', repeat('x', 1048576))".to_owned(), "TN010", "1048576"),
        ("'q', parents => '{77}'".to_owned(), "TN011", "parent 77 does not exist"),
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

/// Once the change of the mode has returned, no claim in the old mode can commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_mode_waits_for_claims_in_progress() {
    let (database, store) = fresh().await;
    opened(&store, "s").await;
    store.submit(&submission("q", tasks(5))).await.unwrap();
    let mut in_progress = store.pool().begin().await.unwrap();
    let claim = "SELECT * FROM tenure.claim_tasks('default', 'q', 'direct', NULL, NULL, \
                 '[{\"name\": \"w\", \"task_kinds\": [], \"tags\": [], \"wanted\": 1, \"session\": \"s\"}]', '{}', true)";
    sqlx::raw_sql(claim).execute(&mut *in_progress).await.unwrap();
    let changer = store.clone();
    let exclusive = QueueSettings { mode: AssignmentMode::Exclusive, ..QueueSettings::default() };
    let changing = tokio::spawn(async move { changer.set_queue(&queue("q"), &exclusive).await });
    until_blocked(&database, 1).await;
    // A later claim waits for the change and sees it.
    let late = store.clone();
    let batch = ClaimBatchRequest {
        queue: queue("q"),
        authority: ClaimAuthority::Direct,
        requests: vec![claim_request("s", 1)],
    };
    let claiming = tokio::spawn(async move { late.claim(&batch).await });
    until_blocked(&database, 2).await;
    in_progress.commit().await.unwrap();
    changing.await.unwrap().unwrap();
    let answer = claiming.await.unwrap().unwrap();
    assert_eq!(answer, ClaimBatchResponse::Refused(ClaimRefusal::Mode(AssignmentMode::Exclusive)));
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_work_through_a_pooler() {
    let cluster = PgCluster::start().unwrap();
    migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let options = PostgresOptions::new(pooler.url("postgres"));
    let clients = (0..4).map(|n| {
        let options = options.clone();
        async move {
            let store = PostgresStore::connect(options).await.unwrap();
            let (session, name) = (format!("s{n}"), format!("q{n}"));
            opened(&store, &session).await;
            for _ in 0..10 {
                store.submit(&submission(&name, tasks(5))).await.unwrap();
                let mut tx = store.pool().begin().await.unwrap();
                tenure::store::postgres::submit(&mut tx, &submission(&name, tasks(1))).await.unwrap();
                tx.commit().await.unwrap();
                let got = claimed(&store, &name, claim_request(&session, 10)).await;
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
async fn the_reader_cannot_read_the_secret_of_the_broker() {
    let database = tenure_testkit::rig::fresh_database().unwrap();
    database.psql(&tenure::store::roles_sql("postgres:").unwrap()).unwrap();
    migrated(&database.url_as("tenure_owner")).await;
    let store =
        PostgresStore::connect(PostgresOptions::new(database.url_as("tenure_runtime"))).await.unwrap();
    let token = leading(&store, "a", &broker_election()).await;
    let endpoint =
        BrokerEndpoint { token, session: id("a"), address: "host:1".into(), secret: vec![0, 255, 7] };
    assert!(store.publish_broker_endpoint(&endpoint).await.unwrap());
    assert!(store.broker_endpoint().await.unwrap().is_some_and(|it| it == endpoint));
    assert!(
        !store
            .publish_broker_endpoint(&BrokerEndpoint { token: Token::ZERO, ..endpoint.clone() })
            .await
            .unwrap()
    );
    assert_eq!(
        database.psql_as("tenure_reader", "SELECT address FROM tenure.broker_endpoint").unwrap(),
        "host:1"
    );
    let secret = database
        .psql_as("tenure_reader", "SELECT secret FROM tenure.broker_endpoint")
        .unwrap_err()
        .to_string();
    assert!(secret.contains("permission denied"), "{secret}");
    for change in ["SELECT tenure.submit('q')", "SELECT * FROM tenure.cancel_tasks('default', '{1}')"] {
        let refused = database.psql_as("tenure_reader", change).unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{change}: {refused}");
    }
    store.end_session(&id("a")).await.unwrap();
    assert!(store.broker_endpoint().await.unwrap().is_none());
}
