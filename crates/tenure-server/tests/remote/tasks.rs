//! Tasks and pools through a server with minimal permissions.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{
    AssignmentMode, ClaimAuthority, ClaimBatchRequest, ClaimBatchResponse, ClaimOutcome, ClaimRefusal,
    ClaimRequest, ErrorKind, NewResource, NewTask, PoolKey, PoolMatchRequest, PoolRequest, PoolRequestAction,
    QueueKey, QueueSettings, SettleResult, Settlement, Store, Submission, TaskAction, TaskFilter, TaskState,
    WorkerProfile,
};
use tenure::{SessionId, TaskError, Tenure};
use tenure_server::settings::ListenAddress;
use tenure_server::{Server, Settings};

use super::access::{TestServer, denied};
use super::support::{http, memory};

fn queue(namespace: &str) -> QueueKey {
    QueueKey::new(namespace.parse().unwrap(), "mail".parse().unwrap())
}

fn submission(namespace: &str) -> Submission {
    Submission { queue: queue(namespace), tasks: vec![NewTask::new("welcome")] }
}

fn ask(namespace: &str, session: Option<&SessionId>) -> ClaimBatchRequest {
    let worker = WorkerProfile { name: "w".into(), ..WorkerProfile::default() };
    let claim_timeout_ms = session.is_none().then_some(60_000);
    let requests = vec![ClaimRequest { worker, limit: 1, session: session.cloned(), claim_timeout_ms }];
    ClaimBatchRequest { queue: queue(namespace), authority: ClaimAuthority::Direct, requests }
}

/// First claimed task.
async fn claimed(store: &dyn Store, ask: &ClaimBatchRequest) -> tenure::port::ClaimedTask {
    match store.claim(ask).await.unwrap() {
        ClaimBatchResponse::Served { mut tasks, .. } => tasks.remove(0).remove(0),
        ClaimBatchResponse::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn works(store: Arc<dyn Store>, within: &dyn Store, namespace: &str) {
    let tenure = Tenure::builder().shared_store(store).name("w").open().await.unwrap();
    let worker = tenure.worker("mail").namespace(namespace).kind("welcome", |task| async move {
        let to: String = task.payload()?;
        Ok::<_, TaskError>(format!("welcomed {to}"))
    });
    let worker = worker.start().await.unwrap();
    // Let the worker register as a waiter.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let task = NewTask { payload: r#""ada""#.parse().unwrap(), ..NewTask::new("welcome") };
    let submitted = tenure.tasks().submit(&queue(namespace), vec![task]).await.unwrap();
    let output = loop {
        let task = within.task(&namespace.parse().unwrap(), submitted[0].id).await.unwrap().unwrap();
        match task.result {
            Some(output) => break output,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert_eq!(output.as_str(), r#""welcomed ada""#);
    worker.drain().await.unwrap();
    tenure.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_needs_only_the_permission_claim() {
    let fixture = TestServer::new().await;
    let store = fixture.client("worker", &["a:claim"]).await;
    works(store, fixture.backend().as_ref(), "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exclusive_queue_works_through_the_server_that_is_the_broker() {
    let kept = memory();
    let settings = Settings { listen: vec![ListenAddress::Tcp("127.0.0.1:0".into())], ..Settings::default() };
    let server = Server::start(settings, kept.backend()).await.unwrap();
    let exclusive = QueueSettings { mode: AssignmentMode::Exclusive, ..QueueSettings::default() };
    let client = http(&server.addresses()[0].url()).await;
    client.set_queue(&queue("default"), &exclusive).await.unwrap();
    works(client.clone(), kept.backend().as_ref(), "default").await;
    // The claim sequence is strict.
    let filter = TaskFilter { limit: 9, ..TaskFilter::default() };
    assert_eq!(client.tasks(&filter).await.unwrap()[0].claim_seq, Some(1));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_another_namespace_are_protected() {
    let fixture = TestServer::new().await;
    let worker = fixture.client("worker", &["a:claim"]).await;
    let other = fixture.client("other", &["b:claim,read"]).await;
    let a = "a".parse().unwrap();
    let id = worker.submit(&submission("a")).await.unwrap()[0].id;
    denied(other.submit(&submission("a")).await);
    denied(other.claim(&ask("a", None)).await);
    denied(worker.task(&a, id).await);
    denied(worker.apply_task_action(&a, &[id], TaskAction::Cancel).await);
    denied(worker.set_queue(&queue("a"), &QueueSettings::default()).await);
    denied(worker.set_queue_paused(&a, None, None).await);
    denied(worker.set_worker_approval(&a, "w", Some("me")).await);
    let claimed = claimed(worker.as_ref(), &ask("a", None)).await;
    // The task id alone gives access in neither namespace.
    let say = |namespace: &str| {
        let (task, token) = (claimed.id, claimed.token);
        [Settlement {
            namespace: namespace.parse().unwrap(),
            task,
            token,
            outcome: ClaimOutcome::Complete(None),
        }]
    };
    denied(other.settle(&say("a")).await);
    assert_eq!(other.settle(&say("b")).await, Ok(vec![SettleResult::ClaimLost]));
    // Unreadable queues are not listed.
    assert_eq!(other.queues(None).await, Ok(Vec::new()));
    assert_eq!(other.tasks(&TaskFilter { limit: 9, ..TaskFilter::default() }).await, Ok(Vec::new()));
    assert_eq!(worker.settle(&say("a")).await, Ok(vec![SettleResult::Applied(TaskState::Completed)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_cannot_use_another_principals_session() {
    let fixture = TestServer::new().await;
    let alice = fixture.actor("alice", &["a:claim"]).await;
    let bob = fixture.client("bob", &["a:claim"]).await;
    alice.store.submit(&submission("a")).await.unwrap();
    // To the worker, a session of another principal counts as ended.
    let refused = ClaimBatchResponse::Refused(ClaimRefusal::SessionEnded(alice.id.clone()));
    assert_eq!(bob.claim(&ask("a", Some(&alice.id))).await, Ok(refused));
    denied(bob.held_claims(&alice.id).await);
    denied(bob.register_queue_waiter(&alice.id, &[queue("a")]).await);
    denied(alice.store.register_queue_waiter(&alice.id, &[queue("b")]).await);
    let task = claimed(alice.store.as_ref(), &ask("a", Some(&alice.id))).await;
    assert_eq!(alice.store.held_claims(&alice.id).await, Ok(vec![(task.id, task.token)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_is_released_only_by_its_owner() {
    let fixture = TestServer::new().await;
    let alice = fixture.client("alice", &["a:claim,read"]).await;
    let bob = fixture.client("bob", &["a:claim,read"]).await;
    let admin = fixture.client("admin", &["a:admin"]).await;
    let pool = PoolKey::new("a".parse().unwrap(), "hosts".parse().unwrap());
    let host = NewResource { name: "h1".parse().unwrap(), tags: Vec::new(), enabled: true };
    denied(alice.add_resources(&pool, std::slice::from_ref(&host)).await);
    admin.add_resources(&pool, &[host]).await.unwrap();
    let body = PoolRequest {
        idempotency_key: "job".into(),
        owner: "p-1".into(),
        required_tags: Vec::new(),
        preferred_tags: Vec::new(),
        base_priority: 100,
        session: None,
        claim_timeout_ms: Some(60_000),
        max_wait_ms: None,
    };
    let created = alice.create_pool_request(&pool, &body).await.unwrap();
    let ask =
        PoolMatchRequest { pool: pool.clone(), authority: ClaimAuthority::Direct, request: Some(created.id) };
    let granted = alice.match_pool(&ask).await.unwrap().unwrap().remove(0);
    // An idempotency key belongs to its owner, and equal owner names of two principals differ.
    assert_eq!(bob.create_pool_request(&pool, &body).await.unwrap_err().kind, ErrorKind::Request);
    let release = async |store: &Arc<dyn Store>, owner: &str| {
        store
            .update_pool_request(
                &pool.namespace,
                created.id,
                owner,
                granted.token,
                PoolRequestAction::Release,
            )
            .await
    };
    assert_eq!(release(&bob, "p-1").await, Ok(false));
    assert_eq!(release(&bob, &granted.request.owner).await, Ok(false));
    assert_eq!(release(&alice, "p-2").await, Ok(false));
    assert_eq!(release(&alice, "p-1").await, Ok(true));
}
