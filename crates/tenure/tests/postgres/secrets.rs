//! The server log contains no values that Tenure sends.

use std::time::Duration;

use tenure::store::postgres::{PostgresOptions, PostgresStore, fence, guard, publish, submit};
use tenure_core::Token;
use tenure_core::port::{
    AccessStore, BrokerEndpoint, ClaimOutcome, Credential, CredentialVerifier, ElectionStore, EventAdmin,
    EventStore, GroupSettings, NewEvent, NewTask, Payload, StartOffset, TaskStore, TopicSettings,
    WebhookSettings,
};
use tenure_testkit::rig::{PgBouncer, PgCluster};

use crate::claims::{claim_request, claimed, completed, settlement, submission};
use crate::events::{group, topic};
use crate::support::*;

/// A marker that every secret and payload contains, and no other text. The server logs binary values in hexadecimal.
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
        verifier: CredentialVerifier::AccessToken { digest: format!("{CANARY}-digest") },
        grants: Vec::new(),
        created_at_ms: 0,
        created_by: "test".into(),
        expires_at_ms: None,
        revoked_at_ms: None,
    }
}

fn secret_webhook() -> WebhookSettings {
    WebhookSettings {
        url: "https://example.org/hook".into(),
        secret: format!("{CANARY}-{CANARY}-{CANARY}"),
        timeout_ms: 1000,
    }
}

/// Sends all kinds of secrets and payloads, without errors.
async fn send_secrets(store: &PostgresStore, session: &str) {
    let broker = tenure_core::ElectionKey::new("tenure".parse().unwrap(), "broker".parse().unwrap());
    let token = leading(store, session, &broker).await;
    let endpoint = BrokerEndpoint {
        token,
        session: id(session),
        address: "127.0.0.1:1".into(),
        secret: CANARY.as_bytes().to_vec(),
    };
    assert!(store.publish_broker_endpoint(&endpoint).await.unwrap());
    assert_eq!(store.broker_endpoint().await.unwrap().unwrap().secret, endpoint.secret);
    store.submit(&submission("q", vec![secret_task(), secret_task(), secret_task()])).await.unwrap();
    let claims = claimed(store, "q", claim_request(session, 2)).await;
    let output = Some(format!("\"{CANARY}\"").parse().unwrap());
    let failure = ClaimOutcome::Fail { error: CANARY.into(), retry: false, retry_in: Duration::ZERO };
    let outcomes = [settlement(&claims[0], ClaimOutcome::Complete(output)), settlement(&claims[1], failure)];
    store.settle(&outcomes).await.unwrap();
    store.set_topic(&topic("t"), &TopicSettings::default()).await.unwrap();
    store.set_group(&group("t", "g"), &GroupSettings::default(), StartOffset::Earliest).await.unwrap();
    store.set_webhook(&group("t", "g"), Some(&secret_webhook())).await.unwrap();
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
    let rest = claimed(store, "q", claim_request(session, 5)).await;
    let rest: Vec<_> = rest.iter().map(completed).collect();
    store.settle(&rest).await.unwrap();
    store.end_session(&id(session)).await.unwrap();
}

fn lines<'a>(log: &'a str, word: &str) -> Vec<&'a str> {
    log.lines().filter(|line| line.contains(word)).collect()
}

fn assert_no_canary(cluster: &PgCluster) {
    let log = cluster.log();
    for secret in [CANARY.to_owned(), hex(CANARY)] {
        assert_eq!(lines(&log, &secret), [""; 0], "the server log contains a value");
    }
}

/// Regression test: the first statement on each connection contained its values and failed because it was not prepared yet. The
/// server logged it, with payloads, the secret of a webhook and the secret of the broker.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_errors_logs_neither_errors_nor_values() {
    let cluster = PgCluster::start().unwrap();
    let direct = migrated(&cluster.url()).await;
    let before = lines(&cluster.log(), "ERROR:").len();
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let pooled = PostgresStore::connect(PostgresOptions::new(pooler.url("postgres"))).await.unwrap();
    for (n, store) in [&direct, &pooled, &direct, &pooled].into_iter().enumerate() {
        send_secrets(store, &format!("s{n}")).await;
    }
    let log = cluster.log();
    let errors = lines(&log, "ERROR:");
    assert_eq!(errors[before..], [""; 0], "no statement failed");
    assert_eq!(before, 0, "{errors:?}");
    assert_no_canary(&cluster);
}

/// The server logs the text of statements that end by a lock timeout or are cancelled.
#[tokio::test(flavor = "multi_thread")]
async fn lock_timeouts_and_cancelled_statements_log_no_values() {
    let cluster = PgCluster::start().unwrap();
    let direct = migrated(&cluster.url()).await;
    let pooler = PgBouncer::in_front_of(&cluster).unwrap();
    let pooled = PostgresStore::connect(PostgresOptions::new(pooler.url("postgres"))).await.unwrap();
    for (n, store) in [&direct, &pooled].into_iter().enumerate() {
        send_secrets(store, &format!("s{n}")).await;
    }
    let locker = PostgresStore::connect(PostgresOptions::new(cluster.url())).await.unwrap();
    let mut lock = locker.pool().begin().await.unwrap();
    let all = "LOCK TABLE tenure.tasks, tenure.events, tenure.credentials, tenure.fences, tenure.consumer_groups, tenure.queues, \
               tenure.topics, tenure.task_requirements IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(all).execute(&mut *lock).await.unwrap();
    for store in [&direct, &pooled] {
        store.submit(&submission("q", vec![secret_task()])).await.unwrap_err();
        store.publish(&topic("t"), &[secret_event()]).await.unwrap_err();
        store.publish(&topic("t"), &[secret_event(), secret_event()]).await.unwrap_err();
        store.put_credential(&secret_credential("c")).await.unwrap_err();
        store.set_webhook(&group("t", "g"), Some(&secret_webhook())).await.unwrap_err();
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
    // Cancelled while they wait.
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
