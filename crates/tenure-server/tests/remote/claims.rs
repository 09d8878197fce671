//! Work through a server, with no more rights than it takes.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{
    Authority, Backend, ClaimAnswer, ClaimAsk, ClaimRefusal, Handle, Mode, NewRequest, NewResource, NewTask,
    Order, Outcome, PoolKey, PoolMatch, Profile, QueueKey, QueueSettings, Seat, Settled, Settlement,
    Submission, TaskFilter, TaskState, Trouble,
};
use tenure::{SessionId, TaskError, Tenure};
use tenure_server::settings::Address;
use tenure_server::{Server, Settings};

use super::access::{House, denied};
use super::support::{http, memory};

fn queue(namespace: &str) -> QueueKey {
    QueueKey::new(namespace.parse().unwrap(), "mail".parse().unwrap())
}

fn submission(namespace: &str) -> Submission {
    Submission { queue: queue(namespace), tasks: vec![NewTask::new("welcome")] }
}

fn ask(namespace: &str, session: Option<&SessionId>) -> ClaimAsk {
    let worker = Profile { name: "w".into(), ..Profile::default() };
    let hold_ms = session.is_none().then_some(60_000);
    let seats = vec![Seat { worker, limit: 1, session: session.cloned(), hold_ms }];
    ClaimAsk { queue: queue(namespace), authority: Authority::Direct, seats }
}

/// The first task that somebody gets.
async fn claimed(store: &dyn Backend, ask: &ClaimAsk) -> tenure::port::ClaimedTask {
    match store.claim(ask).await.unwrap() {
        ClaimAnswer::Served { mut tasks, .. } => tasks.remove(0).remove(0),
        ClaimAnswer::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn works(store: Arc<dyn Backend>, within: &dyn Backend, namespace: &str) {
    let tenure = Tenure::builder().shared_store(store).name("w").open().await.unwrap();
    let worker = tenure.worker("mail").namespace(namespace).kind("welcome", |task| async move {
        let to: String = task.payload()?;
        Ok::<_, TaskError>(format!("welcomed {to}"))
    });
    let worker = worker.start().await.unwrap();
    // So that it sleeps, and has to be woken.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let task = NewTask { payload: r#""ada""#.parse().unwrap(), ..NewTask::new("welcome") };
    let submitted = tenure.claims().submit(&queue(namespace), vec![task]).await.unwrap();
    let output = loop {
        let task = within.task(&namespace.parse().unwrap(), submitted[0].id).await.unwrap().unwrap();
        match task.output {
            Some(output) => break output,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert_eq!(output.as_str(), r#""welcomed ada""#);
    worker.drain().await.unwrap();
    tenure.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_needs_nothing_but_claim() {
    let house = House::new().await;
    let store = house.client("worker", &["a:claim"]).await;
    works(store, house.backend().as_ref(), "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exclusive_queue_is_worked_on_through_a_server_that_leads() {
    let kept = memory();
    let settings = Settings { listen: vec![Address::Tcp("127.0.0.1:0".into())], ..Settings::default() };
    let server = Server::start(settings, kept.backend()).await.unwrap();
    let exclusive = QueueSettings { mode: Mode::Exclusive, ..QueueSettings::default() };
    let client = http(&server.addresses()[0].url()).await;
    client.set_queue(&queue("default"), &exclusive).await.unwrap();
    works(client.clone(), kept.backend().as_ref(), "default").await;
    // Strictly in turn.
    let filter = TaskFilter { limit: 9, ..TaskFilter::default() };
    assert_eq!(client.tasks(&filter).await.unwrap()[0].turn, Some(1));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_touches_the_work_of_another_namespace() {
    let house = House::new().await;
    let worker = house.client("worker", &["a:claim"]).await;
    let other = house.client("other", &["b:claim,read"]).await;
    let a = "a".parse().unwrap();
    let id = worker.submit(&submission("a")).await.unwrap()[0].id;
    denied(other.submit(&submission("a")).await);
    denied(other.claim(&ask("a", None)).await);
    denied(worker.task(&a, id).await);
    denied(worker.order(&a, &[id], Order::Cancel).await);
    denied(worker.set_queue(&queue("a"), &QueueSettings::default()).await);
    denied(worker.set_queue_paused(&a, None, None).await);
    denied(worker.approve(&a, "w", Some("me")).await);
    let claimed = claimed(worker.as_ref(), &ask("a", None)).await;
    // By its number alone, it is not to be had: neither there nor here.
    let say = |namespace: &str| {
        let (task, token) = (claimed.id, claimed.token);
        [Settlement { namespace: namespace.parse().unwrap(), task, token, outcome: Outcome::Complete(None) }]
    };
    denied(other.settle(&say("a")).await);
    assert_eq!(other.settle(&say("b")).await, Ok(vec![Settled::Lost]));
    // What one may not read is not there.
    assert_eq!(other.queues(None).await, Ok(Vec::new()));
    assert_eq!(other.tasks(&TaskFilter { limit: 9, ..TaskFilter::default() }).await, Ok(Vec::new()));
    assert_eq!(worker.settle(&say("a")).await, Ok(vec![Settled::Now(TaskState::Completed)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_lives_on_no_session_of_somebody_else() {
    let house = House::new().await;
    let alice = house.actor("alice", &["a:claim"]).await;
    let bob = house.client("bob", &["a:claim"]).await;
    alice.store.submit(&submission("a")).await.unwrap();
    // To a worker, a session that is another's is none of its own.
    let refused = ClaimAnswer::Refused(ClaimRefusal::Gone(alice.id.clone()));
    assert_eq!(bob.claim(&ask("a", Some(&alice.id))).await, Ok(refused));
    denied(bob.held(&alice.id).await);
    denied(bob.doze(&alice.id, &[queue("a")]).await);
    denied(alice.store.doze(&alice.id, &[queue("b")]).await);
    let task = claimed(alice.store.as_ref(), &ask("a", Some(&alice.id))).await;
    assert_eq!(alice.store.held(&alice.id).await, Ok(vec![(task.id, task.token)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_is_let_go_by_whom_it_belongs_to() {
    let house = House::new().await;
    let alice = house.client("alice", &["a:claim,read"]).await;
    let bob = house.client("bob", &["a:claim,read"]).await;
    let admin = house.client("admin", &["a:admin"]).await;
    let pool = PoolKey::new("a".parse().unwrap(), "hosts".parse().unwrap());
    let host = NewResource { name: "h1".parse().unwrap(), tags: Vec::new(), enabled: true };
    denied(alice.add_resources(&pool, std::slice::from_ref(&host)).await);
    admin.add_resources(&pool, &[host]).await.unwrap();
    let wish = NewRequest {
        key: "job".into(),
        owner: "p-1".into(),
        requires: Vec::new(),
        prefers: Vec::new(),
        base: 100,
        session: None,
        hold_ms: Some(60_000),
        max_wait_ms: None,
    };
    let made = alice.request(&pool, &wish).await.unwrap();
    let ask = PoolMatch { pool: pool.clone(), authority: Authority::Direct, request: Some(made.id) };
    let granted = alice.match_pool(&ask).await.unwrap().unwrap().remove(0);
    // A key is its owner's, and the same name is somebody else behind another principal.
    assert_eq!(bob.request(&pool, &wish).await.unwrap_err().kind, Trouble::Request);
    let release = async |store: &Arc<dyn Backend>, owner: &str| {
        store.handle_request(&pool.namespace, made.id, owner, granted.token, Handle::Release).await
    };
    assert_eq!(release(&bob, "p-1").await, Ok(false));
    assert_eq!(release(&bob, &granted.request.owner).await, Ok(false));
    assert_eq!(release(&alice, "p-2").await, Ok(false));
    assert_eq!(release(&alice, "p-1").await, Ok(true));
}
