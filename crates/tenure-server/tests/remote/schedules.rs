//! Schedules through a server with minimal permissions.

use std::sync::Arc;

use tenure::port::{
    FireRequest, ManualFire, Pause, Precondition, ScheduleFilter, ScheduleKey, SetScheduleOutcome,
    SetScheduleRequest, Store, TickFilter,
};
use tenure::{SessionId, Token};
use tenure_core::rules::schedule::{ScheduleDefinition, ScheduleExpression, ScheduleTarget};

use super::access::{TestServer, denied};

fn key(namespace: &str) -> ScheduleKey {
    ScheduleKey::new(namespace.parse().unwrap(), "nightly".parse().unwrap())
}

fn setting(namespace: &str) -> SetScheduleRequest {
    let target = ScheduleTarget::Webhook { url: "https://example.org/".into() };
    let when: ScheduleExpression = "30 2 * * *".parse().unwrap();
    SetScheduleRequest {
        namespace: namespace.parse().unwrap(),
        definition: ScheduleDefinition::new(key(namespace).name, when, target),
        secret: Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()),
        precondition: Precondition::Any,
        source: None,
        updated_by: "ada".into(),
    }
}

fn hand(namespace: &str, ticks: Option<Vec<i64>>) -> ManualFire {
    ManualFire { key: key(namespace), ticks, payload: None, requested_by: "ada".into(), dry_run: true }
}

/// Server with a schedule in each of two namespaces.
async fn test_server() -> TestServer {
    let fixture = TestServer::new().await;
    for namespace in ["a", "b"] {
        fixture.backend().set_schedule(&setting(namespace)).await.unwrap();
    }
    fixture
}

async fn listed(client: &Arc<dyn Store>) -> Vec<String> {
    let all = client.schedules(&ScheduleFilter::default()).await.unwrap();
    all.iter().map(|view| view.namespace.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_cannot_change_schedules() {
    let fixture = test_server().await;
    for verbs in ["read", "read,lead,claim,publish"] {
        let user = fixture.client("user", &[&format!("a:{verbs}")]).await;
        assert_eq!(user.schedule(&key("a")).await.unwrap().unwrap().version, 1);
        let filter = TickFilter { key: key("a"), before_ms: None, limit: 9 };
        assert_eq!(user.ticks(&filter).await, Ok(Vec::new()));
        denied(user.set_schedule(&setting("a")).await);
        denied(user.delete_schedule(&key("a"), None).await);
        denied(user.set_schedule_paused(&key("a"), None).await);
        denied(user.fire_manually(&hand("a", None)).await);
        denied(user.fire_manually(&hand("a", Some(vec![1]))).await);
    }
    assert_eq!(fixture.backend().schedule(&key("a")).await.unwrap().unwrap().version, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn schedules_of_another_namespace_are_protected() {
    let fixture = test_server().await;
    let other = fixture.client("other", &["b:admin"]).await;
    denied(other.schedule(&key("a")).await);
    denied(other.ticks(&TickFilter { key: key("a"), before_ms: None, limit: 9 }).await);
    denied(other.set_schedule(&setting("a")).await);
    denied(other.delete_schedule(&key("a"), None).await);
    denied(other.set_schedule_paused(&key("a"), None).await);
    denied(other.fire_manually(&hand("a", None)).await);
    let only = ScheduleFilter { namespace: Some(key("a").namespace), ..ScheduleFilter::default() };
    denied(other.schedules(&only).await);
    assert_eq!(listed(&other).await, ["b"]);
    let stats = other.schedule_stats().await.unwrap();
    assert_eq!(stats.iter().map(|one| one.namespace.as_str()).collect::<Vec<_>>(), ["b"]);
    let both = fixture.client("both", &["b:read", "a:read"]).await;
    assert_eq!(listed(&both).await, ["a", "b"]);
    // Page by page across namespaces.
    let first = both.schedules(&ScheduleFilter { limit: 1, ..ScheduleFilter::default() }).await.unwrap();
    let after = first.first().map(|view| view.key());
    let rest =
        both.schedules(&ScheduleFilter { after, limit: 1, ..ScheduleFilter::default() }).await.unwrap();
    assert_eq!((first[0].namespace.as_str(), rest[0].namespace.as_str()), ("a", "b"));
    let worker = fixture.client("worker", &["a:claim"]).await;
    assert_eq!(listed(&worker).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_actions_carry_the_principals_name() {
    let fixture = test_server().await;
    let admin = fixture.client("ops", &["a:admin"]).await;
    let mut set = setting("a");
    set.definition.jitter_ms = 7;
    assert_eq!(admin.set_schedule(&set).await, Ok(SetScheduleOutcome::Updated(2)));
    let view = admin.schedule(&key("a")).await.unwrap().unwrap();
    assert_eq!(view.updated_by, "ada (ops)");
    let pause = Pause { paused_by: "ada".into(), reason: "why not".into(), paused_at_ms: 5 };
    assert_eq!(admin.set_schedule_paused(&key("a"), Some(&pause)).await, Ok(Some(true)));
    let view = admin.schedule(&key("a")).await.unwrap().unwrap();
    assert_eq!(view.paused.unwrap().paused_by, "ada (ops)");
    let fired =
        admin.fire_manually(&ManualFire { dry_run: false, ..hand("a", None) }).await.unwrap().unwrap();
    assert_eq!(fired.len(), 1);
    let filter = TickFilter { key: key("a"), before_ms: None, limit: 9 };
    assert_eq!(admin.ticks(&filter).await.unwrap()[0].decided_by, "ada (ops)");
    assert_eq!(admin.delete_schedule(&key("a"), Some(1)).await, Ok(Some(false)));
    assert_eq!(admin.delete_schedule(&key("a"), Some(2)).await, Ok(Some(true)));
    assert_eq!(admin.delete_schedule(&key("a"), None).await, Ok(None));
}

/// Only servers fire ticks: a client that could fire them could publish and submit in every namespace.
#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_server_cannot_fire_or_read_secrets() {
    let fixture = test_server().await;
    let admin = fixture.actor("admin", &["*:admin"]).await;
    assert_eq!(admin.store.webhook_secret(&key("a")).await, Ok(None));
    let text = format!("{:?}", admin.store.schedules(&ScheduleFilter::default()).await.unwrap());
    assert!(!text.contains("whsec_"), "{text}");
    let election = tenure::port::scheduler_election();
    denied(admin.store.join_election(&tenure_testkit::conformance::candidacy(&admin.id, &election)).await);
    let fire = FireRequest { session: admin.id.clone(), token: Token::from_u64(1), firings: Vec::new() };
    assert_eq!(admin.store.fire(&fire).await, Ok(None));
    let session = SessionId::from_stored("0123456789abcdef0123456789abcdef");
    assert_eq!(admin.store.prune_ticks(&session, Token::from_u64(1), 9).await, Ok((0, false)));
}

/// The servers fire the ticks, and the client runs the handlers over HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_run_in_the_client_and_ticks_fire_in_the_servers() {
    let store: Arc<dyn Store> = Arc::new(tenure::store::memory::MemoryStore::new());
    let listen = vec![tenure_server::settings::ListenAddress::Tcp("127.0.0.1:0".into())];
    let settings = tenure_server::Settings { listen, ..tenure_server::Settings::default() };
    let server = tenure_server::Server::start(settings, store.clone()).await.unwrap();
    let client = super::support::http(&server.addresses()[0].url()).await;
    let tenure = tenure::Tenure::builder().shared_store(client).name("program").open().await.unwrap();
    let nothing = tenure.scheduler().start().await.err().expect("a client has nothing to fire");
    assert!(nothing.to_string().contains("the servers fire"), "{nothing}");
    let (text, mut received) = tokio::sync::mpsc::unbounded_channel();
    let scheduler = tenure.scheduler().run("often", "every 100ms", move |tick| {
        let text = text.clone();
        async move {
            let _ = text.send(tick.at_ms());
        }
    });
    let scheduler = scheduler.start().await.unwrap();
    assert!(!scheduler.is_leader());
    for _ in 0..3 {
        let next = tokio::time::timeout(std::time::Duration::from_secs(60), received.recv());
        assert_eq!(next.await.expect("silence").unwrap() % 100, 0);
    }
    scheduler.stop().await.unwrap();
    let ticks = TickFilter {
        key: ScheduleKey::new("default".parse().unwrap(), "often".parse().unwrap()),
        before_ms: None,
        limit: 1,
    };
    let tick = store.ticks(&ticks).await.unwrap().remove(0);
    assert_eq!((tick.decided_by.as_str(), tick.token.is_some()), (server.tenure().name(), true));
    tenure.close().await.unwrap();
    server.shutdown().await;
}
