//! What the server's log tells of the values that Tenure sends: nothing.

use std::time::Duration;

use tenure::backend::postgres::{Postgres, PostgresOptions, fence, guard, publish, submit};
use tenure_core::Token;
use tenure_core::port::{
    Begin, Bureau, Credential, Events, GroupSettings, NewEvent, NewTask, Office, Outcome, Payload, Post,
    Proof, Push, Store, Tasks, TopicSettings,
};
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::claims::{claimed, completed, seat, settlement, submission};
use crate::events::{group, topic};
use crate::support::*;

/// In every secret and payload, and nowhere else. Also as the bytes of a key, which travel in hexadecimal.
const CANARY: &str = "kanarienvogel";

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn secret_task() -> NewTask {
    let mut task = NewTask::new("work");
    task.payload = format!("{{\"secret\":\"{CANARY}\"}}").parse().unwrap();
    task
}

fn secret_event() -> NewEvent {
    let payload = Payload::Json(format!("{{\"secret\":\"{CANARY}\"}}").parse().unwrap());
    NewEvent { payload, key: Some(CANARY.into()), ..NewEvent::new("test") }
}

fn secret_credential(id: &str) -> Credential {
    Credential {
        id: id.into(),
        name: "ada".into(),
        proof: Proof::Token { digest: format!("{CANARY}-digest") },
        grants: Vec::new(),
        created_at_ms: 0,
        created_by: "test".into(),
        expires_at_ms: None,
        revoked_at_ms: None,
    }
}

fn secret_push() -> Push {
    Push {
        url: "https://example.org/hook".into(),
        secret: format!("{CANARY}-{CANARY}-{CANARY}"),
        timeout_ms: 1000,
    }
}

/// Everything that has a secret in it, in good order.
async fn healthy(store: &Postgres, session: &str) {
    let broker = tenure_core::ElectionKey::new("tenure".parse().unwrap(), "claims".parse().unwrap());
    let token = leading(store, session, &broker).await;
    let post = Post {
        token,
        session: id(session),
        address: "127.0.0.1:1".into(),
        secret: CANARY.as_bytes().to_vec(),
    };
    assert!(store.put_post(&post).await.unwrap());
    assert_eq!(store.post().await.unwrap().unwrap().secret, post.secret);
    store.submit(&submission("q", vec![secret_task(), secret_task(), secret_task()])).await.unwrap();
    let mine = claimed(store, "q", seat(session, 2)).await;
    let output = Some(format!("\"{CANARY}\"").parse().unwrap());
    let failure = Outcome::Fail { error: CANARY.into(), retry: false, after: Duration::ZERO };
    let said = [settlement(&mine[0], Outcome::Complete(output)), settlement(&mine[1], failure)];
    store.settle(&said).await.unwrap();
    store.set_topic(&topic("t"), &TopicSettings::default()).await.unwrap();
    store.set_group(&group("t", "g"), &GroupSettings::default(), Begin::Earliest).await.unwrap();
    store.set_push(&group("t", "g"), Some(&secret_push())).await.unwrap();
    store.publish(&topic("t"), &[secret_event()]).await.unwrap();
    store.publish(&topic("t"), &[secret_event(), secret_event()]).await.unwrap();
    store.put_credential(&secret_credential(session)).await.unwrap();
    assert!(!store.credentials().await.unwrap().is_empty());
    let mut tx = store.pool().begin().await.unwrap();
    guard(&mut tx, &broker, 0, token, &id(session), LEASE).await.unwrap();
    fence(&mut tx, CANARY, Token::from_u64(7)).await.unwrap();
    submit(&mut tx, &submission("q", vec![secret_task()])).await.unwrap();
    publish(&mut tx, &topic("t"), &[secret_event(), secret_event()]).await.unwrap();
    tx.commit().await.unwrap();
    let rest = claimed(store, "q", seat(session, 5)).await;
    let rest: Vec<_> = rest.iter().map(completed).collect();
    store.settle(&rest).await.unwrap();
    store.end(&id(session)).await.unwrap();
}

fn lines<'a>(log: &'a str, word: &str) -> Vec<&'a str> {
    log.lines().filter(|line| line.contains(word)).collect()
}

fn assert_no_canary(cluster: &PgCluster) {
    let log = cluster.log();
    for secret in [CANARY.to_owned(), hex(CANARY)] {
        assert_eq!(lines(&log, &secret), [""; 0], "a value is in the server's log");
    }
}

/// Each new connection sent its first statement with the values written into it, it failed because the connection did not know
/// the statement, and the server logged it: payloads, a webhook's secret and the broker's key were in the log of a healthy run.
#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_run_leaves_no_error_and_no_value_in_the_servers_log() {
    let cluster = PgCluster::start().unwrap();
    let direct = migrated(&cluster.url()).await;
    let before = lines(&cluster.log(), "ERROR:").len();
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let pooled = Postgres::connect(PostgresOptions::new(pooler.url("postgres"))).await.unwrap();
    for (n, store) in [&direct, &pooled, &direct, &pooled].into_iter().enumerate() {
        healthy(store, &format!("s{n}")).await;
    }
    let log = cluster.log();
    let errors = lines(&log, "ERROR:");
    assert_eq!(errors[before..], [""; 0], "a healthy run has no errors");
    assert_eq!(before, 0, "{errors:?}");
    assert_no_canary(&cluster);
}

/// A statement that waits for a lock in vain, or that an administrator cancels, is logged with its text.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_timeout_and_a_cancelled_statement_leave_no_value_in_the_servers_log() {
    let cluster = PgCluster::start().unwrap();
    let direct = migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let pooled = Postgres::connect(PostgresOptions::new(pooler.url("postgres"))).await.unwrap();
    for (n, store) in [&direct, &pooled].into_iter().enumerate() {
        healthy(store, &format!("s{n}")).await;
    }
    let locker = Postgres::connect(PostgresOptions::new(cluster.url())).await.unwrap();
    let mut lock = locker.pool().begin().await.unwrap();
    let all = "LOCK TABLE tenure.tasks, tenure.events, tenure.credentials, tenure.fences, tenure.event_groups, tenure.queues, \
               tenure.topics, tenure.demands IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(all).execute(&mut *lock).await.unwrap();
    for store in [&direct, &pooled] {
        store.submit(&submission("q", vec![secret_task()])).await.unwrap_err();
        store.publish(&topic("t"), &[secret_event()]).await.unwrap_err();
        store.publish(&topic("t"), &[secret_event(), secret_event()]).await.unwrap_err();
        store.put_credential(&secret_credential("c")).await.unwrap_err();
        store.set_push(&group("t", "g"), Some(&secret_push())).await.unwrap_err();
        for what in 0..3 {
            let mut tx = store.pool().begin().await.unwrap();
            sqlx::raw_sql("SET LOCAL lock_timeout = 100").execute(&mut *tx).await.unwrap();
            match what {
                0 => submit(&mut tx, &submission("q", vec![secret_task()])).await.map(drop).unwrap_err(),
                1 => publish(&mut tx, &topic("t"), &[secret_event()]).await.map(drop).unwrap_err(),
                _ => {
                    fence(&mut tx, CANARY, Token::from_u64(9)).await.unwrap_err();
                    continue;
                }
            };
        }
    }
    let timeouts = lines(&cluster.log(), "lock timeout").len();
    assert!(timeouts >= 12, "{timeouts}: {}", cluster.log());
    assert_no_canary(&cluster);
    // And cancelled, while they wait.
    let cancel = async {
        let all = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        while cluster.psql("postgres", all).unwrap() == "0" {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let secret = submission("q", vec![secret_task()]);
    let (submitted, ()) = tokio::join!(direct.submit(&secret), cancel);
    submitted.unwrap_err();
    assert!(!lines(&cluster.log(), "due to user request").is_empty(), "{}", cluster.log());
    assert_no_canary(&cluster);
}
