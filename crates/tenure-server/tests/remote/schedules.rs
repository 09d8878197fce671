//! Schedules through a server, with no more rights than it takes.

use std::sync::Arc;

use tenure::port::{
    Backend, Expect, Fire, Hand, Pause, ScheduleFilter, ScheduleKey, ScheduleSet, SetSchedule, TickFilter,
};
use tenure::{SessionId, Token};
use tenure_core::schedule::{Definition, Target, When};

use super::access::{House, denied};

fn key(namespace: &str) -> ScheduleKey {
    ScheduleKey::new(namespace.parse().unwrap(), "nightly".parse().unwrap())
}

fn setting(namespace: &str) -> SetSchedule {
    let target = Target::Call { url: "https://example.org/".into() };
    let when: When = "30 2 * * *".parse().unwrap();
    SetSchedule {
        namespace: namespace.parse().unwrap(),
        definition: Definition::new(key(namespace).name, when, target),
        secret: Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into()),
        expect: Expect::Any,
        source: None,
        by: "somebody".into(),
    }
}

fn hand(namespace: &str, ticks: Option<Vec<i64>>) -> Hand {
    Hand { key: key(namespace), ticks, payload: None, by: "somebody".into(), dry_run: true }
}

/// A house with a schedule in each of two namespaces.
async fn house() -> House {
    let house = House::new().await;
    for namespace in ["a", "b"] {
        house.backend().set_schedule(&setting(namespace)).await.unwrap();
    }
    house
}

async fn listed(client: &Arc<dyn Backend>) -> Vec<String> {
    let all = client.schedules(&ScheduleFilter::default()).await.unwrap();
    all.iter().map(|view| view.namespace.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_look_changes_nothing() {
    let house = house().await;
    for verbs in ["read", "read,lead,claim,publish"] {
        let user = house.client("user", &[&format!("a:{verbs}")]).await;
        assert_eq!(user.schedule(&key("a")).await.unwrap().unwrap().version, 1);
        let filter = TickFilter { key: key("a"), before_ms: None, limit: 9 };
        assert_eq!(user.ticks(&filter).await, Ok(Vec::new()));
        denied(user.set_schedule(&setting("a")).await);
        denied(user.delete_schedule(&key("a"), None).await);
        denied(user.set_schedule_paused(&key("a"), None).await);
        denied(user.fire_by_hand(&hand("a", None)).await);
        denied(user.fire_by_hand(&hand("a", Some(vec![1]))).await);
    }
    assert_eq!(house.backend().schedule(&key("a")).await.unwrap().unwrap().version, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_or_touches_the_schedules_of_another_namespace() {
    let house = house().await;
    let other = house.client("other", &["b:admin"]).await;
    denied(other.schedule(&key("a")).await);
    denied(other.ticks(&TickFilter { key: key("a"), before_ms: None, limit: 9 }).await);
    denied(other.set_schedule(&setting("a")).await);
    denied(other.delete_schedule(&key("a"), None).await);
    denied(other.set_schedule_paused(&key("a"), None).await);
    denied(other.fire_by_hand(&hand("a", None)).await);
    let only = ScheduleFilter { namespace: Some(key("a").namespace), ..ScheduleFilter::default() };
    denied(other.schedules(&only).await);
    assert_eq!(listed(&other).await, ["b"]);
    let stats = other.schedule_stats().await.unwrap();
    assert_eq!(stats.iter().map(|one| one.namespace.as_str()).collect::<Vec<_>>(), ["b"]);
    let both = house.client("both", &["b:read", "a:read"]).await;
    assert_eq!(listed(&both).await, ["a", "b"]);
    // One at a time, over the border between them.
    let first = both.schedules(&ScheduleFilter { limit: 1, ..ScheduleFilter::default() }).await.unwrap();
    let after = first.first().map(|view| view.key());
    let rest =
        both.schedules(&ScheduleFilter { after, limit: 1, ..ScheduleFilter::default() }).await.unwrap();
    assert_eq!((first[0].namespace.as_str(), rest[0].namespace.as_str()), ("a", "b"));
    let worker = house.client("worker", &["a:claim"]).await;
    assert_eq!(listed(&worker).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_does_is_signed_with_its_own_name() {
    let house = house().await;
    let admin = house.client("ops", &["a:admin"]).await;
    let mut set = setting("a");
    set.definition.jitter_ms = 7;
    assert_eq!(admin.set_schedule(&set).await, Ok(ScheduleSet::Changed(2)));
    let view = admin.schedule(&key("a")).await.unwrap().unwrap();
    assert_eq!(view.updated_by, "somebody (ops)");
    let pause = Pause { by: "somebody".into(), reason: "why not".into(), at_ms: 5 };
    assert_eq!(admin.set_schedule_paused(&key("a"), Some(&pause)).await, Ok(Some(true)));
    let view = admin.schedule(&key("a")).await.unwrap().unwrap();
    assert_eq!(view.paused.unwrap().by, "somebody (ops)");
    let fired = admin.fire_by_hand(&Hand { dry_run: false, ..hand("a", None) }).await.unwrap().unwrap();
    assert_eq!(fired.len(), 1);
    let filter = TickFilter { key: key("a"), before_ms: None, limit: 9 };
    assert_eq!(admin.ticks(&filter).await.unwrap()[0].by, "somebody (ops)");
    assert_eq!(admin.delete_schedule(&key("a"), Some(1)).await, Ok(Some(false)));
    assert_eq!(admin.delete_schedule(&key("a"), Some(2)).await, Ok(Some(true)));
    assert_eq!(admin.delete_schedule(&key("a"), None).await, Ok(None));
}

/// Whoever could fire could publish and submit anything, anywhere.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_fires_through_a_server_nor_learns_its_secrets() {
    let house = house().await;
    let admin = house.actor("admin", &["*:admin"]).await;
    assert_eq!(admin.store.call_secret(&key("a")).await, Ok(None));
    let told = format!("{:?}", admin.store.schedules(&ScheduleFilter::default()).await.unwrap());
    assert!(!told.contains("whsec_"), "{told}");
    let election = tenure::port::scheduler_election();
    denied(admin.store.join(&tenure_testkit::conformance::candidacy(&admin.id, &election)).await);
    let fire = Fire { session: admin.id.clone(), token: Token::from_u64(1), firings: Vec::new() };
    assert_eq!(admin.store.fire(&fire).await, Ok(None));
    let nobody = SessionId::from_stored("0123456789abcdef0123456789abcdef");
    assert_eq!(admin.store.prune_ticks(&nobody, Token::from_u64(1), 9).await, Ok((0, false)));
}

/// The servers fire, and who has the closures runs them: with nothing but HTTP, and no more rights than it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_closure_runs_where_the_program_is_and_fires_where_the_servers_are() {
    let store: Arc<dyn Backend> = Arc::new(tenure::backend::memory::Memory::new());
    let listen = vec![tenure_server::settings::Address::Tcp("127.0.0.1:0".into())];
    let settings = tenure_server::Settings { listen, ..tenure_server::Settings::default() };
    let server = tenure_server::Server::start(settings, store.clone()).await.unwrap();
    let client = super::support::http(&server.addresses()[0].url()).await;
    let tenure = tenure::Tenure::builder().shared_store(client).name("program").open().await.unwrap();
    let nothing = tenure.scheduler().start().await.err().expect("there is nothing for it to do");
    assert!(nothing.to_string().contains("the servers fire"), "{nothing}");
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let scheduler = tenure.scheduler().run("often", "every 100ms", move |tick| {
        let told = told.clone();
        async move {
            let _ = told.send(tick.at_ms());
        }
    });
    let scheduler = scheduler.start().await.unwrap();
    assert!(!scheduler.fires());
    for _ in 0..3 {
        let next = tokio::time::timeout(std::time::Duration::from_secs(60), heard.recv());
        assert_eq!(next.await.expect("silence").unwrap() % 100, 0);
    }
    scheduler.stop().await.unwrap();
    let ticks = TickFilter {
        key: ScheduleKey::new("default".parse().unwrap(), "often".parse().unwrap()),
        before_ms: None,
        limit: 1,
    };
    let tick = store.ticks(&ticks).await.unwrap().remove(0);
    assert_eq!((tick.by.as_str(), tick.token.is_some()), (server.tenure().name(), true));
    tenure.close().await.unwrap();
    server.shutdown().await;
}
