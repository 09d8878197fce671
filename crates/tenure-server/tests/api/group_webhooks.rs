//! Webhooks of groups: signatures, order, retries and dead letters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tenure::port::{
    Backoff, DeadLetterAction, EventAdmin, GroupKey, GroupSettings, NewEvent, ParkedEvent, ParkedEventFilter,
    StartOffset, Store, TopicKey, TopicSettings, WebhookSettings,
};
use tenure::store::memory::MemoryStore;
use tenure_server::settings::ListenAddress;
use tenure_server::{Server, Settings};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Received request.
#[derive(Clone, Debug)]
struct Got {
    id: String,
    event: Value,
}

/// Response status of the receiver by event key.
type Mood = Arc<Mutex<BTreeMap<String, u16>>>;

#[derive(Clone, Default)]
struct Receiver {
    got: Arc<Mutex<Vec<Got>>>,
    mood: Mood,
    /// Whether a redirect was followed.
    followed: Arc<AtomicBool>,
}

impl Receiver {
    /// Start the receiver and return its URL.
    async fn start(&self) -> String {
        let router = axum::Router::new()
            .route("/hook", axum::routing::post(receive))
            .route("/elsewhere", axum::routing::any(followed))
            .with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        format!("http://{address}/hook?token=private")
    }

    fn answer(&self, key: &str, status: u16) {
        self.mood.lock().unwrap().insert(key.into(), status);
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }

    /// Distinct payloads received for a key, in order of first arrival.
    fn taken(&self, key: &str) -> Vec<u64> {
        let mut all = Vec::new();
        for got in self.got().iter().filter(|got| got.event["key"] == key) {
            let payload = got.event["payload"].as_u64().unwrap();
            if !all.contains(&payload) {
                all.push(payload);
            }
        }
        all
    }
}

async fn followed(State(receiver): State<Receiver>) {
    receiver.followed.store(true, Ordering::Relaxed);
}

/// Verify the request as Standard Webhooks requires and respond as configured.
async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> Response {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    let (id, at) = (header("webhook-id"), header("webhook-timestamp"));
    let key = STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
    let signature = header("webhook-signature");
    let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
    let signed = [format!("{id}.{at}.").as_bytes(), &body].concat();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
    ring::hmac::verify(&key, &signed, &signature).expect("signed with the secret");
    let now = tenure::runtime::wall_ms() / 1000;
    assert!(now.abs_diff(at.parse().unwrap()) < 300, "of now");
    assert_eq!(header("content-type"), "application/json");
    let event: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(format!("hook-{}", event["id"]), id);
    let status = receiver.mood.lock().unwrap().get(event["key"].as_str().unwrap_or_default()).copied();
    if status.is_none() {
        receiver.got.lock().unwrap().push(Got { id, event });
    }
    match status {
        None => StatusCode::NO_CONTENT.into_response(),
        Some(0) => {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            StatusCode::OK.into_response()
        }
        Some(302) => (StatusCode::FOUND, [("location", "/elsewhere")]).into_response(),
        Some(status) => StatusCode::from_u16(status).unwrap().into_response(),
    }
}

fn group() -> GroupKey {
    let name = |text: &str| text.parse().unwrap();
    GroupKey::new(TopicKey::new(name("default"), name("orders")), name("hook"))
}

/// Store with a topic and a group whose webhook is the receiver.
async fn store_with_webhook(receiver: &Receiver, settings: GroupSettings) -> Arc<dyn Store> {
    let store = MemoryStore::new();
    store
        .set_topic(&group().topic, &TopicSettings { partitions: 16, ..TopicSettings::default() })
        .await
        .unwrap();
    store.set_group(&group(), &settings, StartOffset::Earliest).await.unwrap();
    let webhook = WebhookSettings { url: receiver.start().await, secret: SECRET.into(), timeout_ms: 300 };
    store.set_webhook(&group(), Some(&webhook)).await.unwrap();
    Arc::new(store)
}

async fn server(store: &Arc<dyn Store>, name: &str) -> Server {
    serving(store, name, true).await
}

async fn serving(store: &Arc<dyn Store>, name: &str, push_private: bool) -> Server {
    let listen = vec![ListenAddress::Tcp("127.0.0.1:0".into())];
    let settings =
        Settings { listen, name: name.into(), allow_private_webhooks: push_private, ..Settings::default() };
    Server::start(settings, store.clone()).await.unwrap()
}

/// Publish one event per payload.
async fn publish(store: &dyn Store, key: &str, payloads: std::ops::Range<u64>) {
    for n in payloads {
        let payload = tenure::port::Payload::Json(n.to_string().parse().unwrap());
        let event = NewEvent { key: Some(key.into()), payload, ..NewEvent::new("t") };
        store.publish(&group().topic, &[event]).await.unwrap();
    }
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..6000 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

async fn dead(store: &dyn Store) -> Vec<ParkedEvent> {
    let filter =
        ParkedEventFilter { group: group(), dead: true, partition: None, key: None, after: None, limit: 99 };
    store.parked_events(&filter).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_divide_the_partitions_and_send_signed_events_in_order() {
    let receiver = Receiver::default();
    let store = store_with_webhook(&receiver, GroupSettings::default()).await;
    let servers = [server(&store, "one").await, server(&store, "two").await];
    until("both are members", async || {
        let view = store.group(&group()).await.unwrap().unwrap();
        let held = |name: &str| {
            let member = view.members.iter().find(|member| member.name == name);
            member.map_or(0, |member| {
                view.partitions
                    .iter()
                    .filter(|partition| partition.partition_lease.holder.as_ref() == Some(&member.session))
                    .count()
            })
        };
        held("one") == 8 && held("two") == 8
    })
    .await;
    let keys: Vec<_> = (0..10).map(|n| format!("k{n}")).collect();
    for round in 0..5 {
        for key in &keys {
            publish(store.as_ref(), key, round * 3..round * 3 + 3).await;
        }
    }
    until("all have arrived", async || keys.iter().all(|key| receiver.taken(key).len() == 15)).await;
    for key in &keys {
        assert_eq!(receiver.taken(key), (0..15).collect::<Vec<_>>(), "{key}");
    }
    let first = &receiver.got()[0];
    assert_eq!((&first.event["topic"], &first.event["group"]), (&json!("orders"), &json!("hook")));
    assert_eq!(first.event["type"], "t");
    assert_eq!(first.id, format!("hook-{}", first.event["id"]));
    // A stopping server leaves the group, and the other continues with all partitions.
    servers[0].shutdown().await;
    publish(store.as_ref(), "k0", 15..16).await;
    until("the other server sends it", async || receiver.taken("k0").len() == 16).await;
    let view = store.group(&group()).await.unwrap().unwrap();
    assert_eq!(view.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["two"]);
    // Without a webhook the servers leave the group.
    store.set_webhook(&group(), None).await.unwrap();
    until("the group has no members", async || {
        store.group(&group()).await.unwrap().unwrap().members.is_empty()
    })
    .await;
    servers[1].shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_events_are_retried_then_dead_and_other_keys_continue() {
    let receiver = Receiver::default();
    for (key, status) in [("broken", 500), ("moved", 302), ("slow", 0)] {
        receiver.answer(key, status);
    }
    let backoff = Backoff { initial_ms: 1, max_ms: 5 };
    let store = store_with_webhook(&receiver, GroupSettings { max_attempts: 2, backoff }).await;
    let server = server(&store, "one").await;
    for key in ["broken", "moved", "slow", "good"] {
        publish(store.as_ref(), key, 0..3).await;
    }
    until("the good ones have arrived", async || receiver.taken("good") == [0, 1, 2]).await;
    until("the first of each bad key is dead", async || dead(store.as_ref()).await.len() == 3).await;
    let text: BTreeMap<_, _> = dead(store.as_ref())
        .await
        .into_iter()
        .map(|parked| (parked.event.key.unwrap(), (parked.attempts, parked.last_error)))
        .collect();
    let (attempts, error) = &text["broken"];
    assert_eq!(*attempts, 2);
    assert!(error.ends_with("/hook responded with 500 Internal Server Error"), "{error}");
    assert!(text["moved"].1.contains("redirects are not followed"), "{text:?}");
    assert!(text["slow"].1.contains("within 300ms"), "{text:?}");
    assert!(text.values().all(|(_, error)| !error.contains("private")), "{text:?}");
    assert!(!receiver.followed.load(Ordering::Relaxed));
    // After a replay the events follow in order.
    receiver.mood.lock().unwrap().clear();
    let ids: Vec<_> = dead(store.as_ref()).await.iter().map(|parked| parked.event.id).collect();
    assert_eq!(
        store.apply_dead_letter_action(&group(), &ids, DeadLetterAction::Replay).await.unwrap().len(),
        3
    );
    for key in ["broken", "moved", "slow"] {
        until("all events have arrived", async || receiver.taken(key).len() == 3).await;
        assert_eq!(receiver.taken(key), [0, 1, 2], "{key}");
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_are_rejected_unless_allowed() {
    let receiver = Receiver::default();
    let backoff = Backoff { initial_ms: 1, max_ms: 5 };
    let store = store_with_webhook(&receiver, GroupSettings { max_attempts: 1, backoff }).await;
    let server = serving(&store, "one", false).await;
    publish(store.as_ref(), "k", 0..1).await;
    until("it is dead", async || dead(store.as_ref()).await.len() == 1).await;
    let error = dead(store.as_ref()).await[0].last_error.clone();
    assert!(error.contains("--allow-private-webhooks"), "{error}");
    assert_eq!(receiver.got().len(), 0);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_410_response_pauses_the_group_without_dead_letters() {
    let receiver = Receiver::default();
    receiver.answer("k", 410);
    let backoff = Backoff { initial_ms: 1, max_ms: 5 };
    let store = store_with_webhook(&receiver, GroupSettings { max_attempts: 1, backoff }).await;
    let server = server(&store, "one").await;
    publish(store.as_ref(), "k", 0..3).await;
    let paused = async || store.group(&group()).await.unwrap().unwrap().paused;
    until("it is paused", async || paused().await.is_some()).await;
    let pause = paused().await.unwrap();
    assert_eq!(pause.paused_by, "webhook");
    assert!(pause.reason.ends_with("/hook responded with 410 Gone"), "{}", pause.reason);
    // The receiver works again.
    receiver.mood.lock().unwrap().clear();
    store.set_group_paused(&group(), None).await.unwrap();
    until("all have arrived", async || receiver.taken("k") == [0, 1, 2]).await;
    assert_eq!(dead(store.as_ref()).await, []);
    server.shutdown().await;
}
