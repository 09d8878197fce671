//! Webhooks of schedules: firing, delivery, signatures and retries.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tenure::port::{
    ManualFire, ManualFireOutcome, NewTask, RawJson, ScheduleKey, SetScheduleRequest, Store, Submission,
    TaskId, TaskState, TaskView, TickCause, TickFilter, webhook_queue,
};
use tenure::store::memory::MemoryStore;
use tenure_core::rules::schedule::{
    MisfirePolicy, ScheduleDefinition, ScheduleExpression, ScheduleTarget, WebhookCall,
};
use tenure_server::settings::ListenAddress;
use tenure_server::{Server, Settings};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[derive(Clone, Debug)]
struct Got {
    id: String,
    signed: bool,
    body: Value,
}

/// Receiver of webhooks.
#[derive(Clone, Default)]
struct Receiver {
    got: Arc<Mutex<Vec<Got>>>,
    /// Number of requests to reject before accepting one.
    refuse: Arc<Mutex<u32>>,
}

impl Receiver {
    /// Start the receiver and return its URL.
    async fn start(&self) -> String {
        let router =
            axum::Router::new().route("/hook", axum::routing::post(receive)).with_state(self.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        format!("http://{address}/hook")
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().unwrap().clone()
    }
}

/// Verify the request as Standard Webhooks requires and respond as configured.
async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let (id, at) = (header("webhook-id").unwrap(), header("webhook-timestamp").unwrap());
    let signature = header("webhook-signature");
    if let Some(signature) = &signature {
        let key = STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
        let signature = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
        let signed = [format!("{id}.{at}.").as_bytes(), &body].concat();
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &key);
        ring::hmac::verify(&key, &signed, &signature).expect("signed with the secret");
    }
    let body = serde_json::from_slice(&body).unwrap();
    receiver.got.lock().unwrap().push(Got { id, signed: signature.is_some(), body });
    let mut refuse = receiver.refuse.lock().unwrap();
    match *refuse {
        0 => StatusCode::NO_CONTENT,
        _ => {
            *refuse -= 1;
            StatusCode::BAD_GATEWAY
        }
    }
}

fn key(name: &str) -> ScheduleKey {
    ScheduleKey::new("default".parse().unwrap(), name.parse().unwrap())
}

/// Create a schedule with a webhook.
async fn set(store: &dyn Store, name: &str, when: &str, url: &str, secret: Option<&str>) {
    let when: ScheduleExpression = when.parse().unwrap();
    let mut definition =
        ScheduleDefinition::new(name.parse().unwrap(), when, ScheduleTarget::Webhook { url: url.to_owned() });
    // Independent of how long a change of leader takes.
    definition.misfire_policy = MisfirePolicy::FireAll { cap: 10_000 };
    definition.payload = r#"{"n":7}"#.parse().unwrap();
    let set = SetScheduleRequest {
        namespace: key(name).namespace,
        definition,
        secret: secret.map(str::to_owned),
        precondition: Default::default(),
        source: None,
        updated_by: "the test".into(),
    };
    store.set_schedule(&set).await.unwrap();
}

/// Trigger the schedule and return the task of the webhook.
async fn trigger(store: &dyn Store, name: &str) -> TaskId {
    let hand =
        ManualFire { key: key(name), ticks: None, payload: None, requested_by: "ada".into(), dry_run: false };
    let fired = store.fire_manually(&hand).await.unwrap().unwrap();
    match fired[0].outcome {
        ManualFireOutcome::Fired { task_id: Some(task), .. } => task,
        other => panic!("{other:?}"),
    }
}

async fn task(store: &dyn Store, id: TaskId) -> TaskView {
    store.task(&webhook_queue().namespace, id).await.unwrap().expect("the task")
}

async fn serving(store: &Arc<dyn Store>, settings: Settings) -> Server {
    let listen = vec![ListenAddress::Tcp("127.0.0.1:0".into())];
    Server::start(Settings { listen, ..settings }, store.clone()).await.unwrap()
}

fn open_to_all(name: &str) -> Settings {
    Settings { name: name.into(), allow_private_webhooks: true, ..Settings::default() }
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

/// End to end: a server fires due ticks, and a server sends the webhooks.
#[tokio::test(flavor = "multi_thread")]
async fn servers_fire_due_ticks_and_send_one_webhook_per_tick() {
    let receiver = Receiver::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let url = receiver.start().await;
    set(store.as_ref(), "often", "every 200ms", &url, Some(SECRET)).await;
    let servers = [serving(&store, open_to_all("one")).await, serving(&store, open_to_all("two")).await];
    until("six have arrived", async || receiver.got().len() >= 6).await;
    // When the scheduler stops, another server continues.
    let leader = async || {
        let election = store.election(&tenure::port::scheduler_election()).await.unwrap().unwrap();
        election.holders().next().map(|(_, session)| session.name.clone())
    };
    until("a scheduler leads", async || leader().await.is_some()).await;
    let first = leader().await.unwrap();
    let (stays, leaves) = if first == "one" { ("two", &servers[0]) } else { ("one", &servers[1]) };
    leaves.shutdown().await;
    until("the other server leads", async || leader().await.as_deref() == Some(stays)).await;
    let before = receiver.got().len();
    until("ticks continue", async || receiver.got().len() >= before + 4).await;
    store.set_schedule_paused(&key("often"), Some(&pause())).await.unwrap();
    let filter = TickFilter { key: key("often"), before_ms: None, limit: 100_000 };
    until("every fired tick was delivered", async || {
        let fired = store.ticks(&filter).await.unwrap().len();
        receiver.got().iter().map(|got| got.id.clone()).collect::<BTreeSet<_>>().len() == fired
    })
    .await;
    let ticks = store.ticks(&filter).await.unwrap();
    let at: BTreeSet<i64> = ticks.iter().map(|tick| tick.tick_at_ms).collect();
    let (oldest, newest) = (*at.first().unwrap(), *at.last().unwrap());
    assert_eq!(at.len() as i64, (newest - oldest) / 200 + 1, "no tick is missing between them");
    let got = receiver.got();
    let one = &got[0];
    assert!(got.iter().all(|got| got.signed));
    assert_eq!((&one.body["namespace"], &one.body["schedule"]), (&json!("default"), &json!("often")));
    assert_eq!((&one.body["cause"], &one.body["payload"]), (&json!("schedule"), &json!({"n": 7})));
    let tick = ticks.iter().find(|tick| json!(tick.tick_at_ms) == one.body["tick_at_ms"]).expect("its tick");
    assert_eq!(one.body["token"], json!(tick.token.unwrap()), "the token of the scheduler");
    assert_eq!(one.id, format!("tick-{}", tick.task_id.unwrap()));
    let shown = one.body["tick"].as_str().unwrap();
    assert!(shown.ends_with('Z') && shown.starts_with("20"), "{shown}");
    // Servers that send webhooks are not listed as workers.
    assert_eq!(store.workers(None).await.unwrap(), vec![]);
    let stayed = if stays == "one" { &servers[0] } else { &servers[1] };
    stayed.shutdown().await;
}

fn pause() -> tenure::port::Pause {
    tenure::port::Pause { paused_by: "the test".into(), reason: String::new(), paused_at_ms: 0 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_scheduler_fires_nothing() {
    let receiver = Receiver::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let url = receiver.start().await;
    set(store.as_ref(), "often", "every 50ms", &url, None).await;
    let idle = serving(&store, Settings { scheduler: false, ..open_to_all("idle") }).await;
    // It still sends webhooks of manual ticks.
    let id = trigger(store.as_ref(), "often").await;
    until("the webhook is delivered", async || task(store.as_ref(), id).await.state == TaskState::Completed)
        .await;
    let got = receiver.got();
    assert_eq!((got.len(), got[0].signed, &got[0].body["cause"]), (1, false, &json!("trigger")));
    assert_eq!(got[0].body["token"], Value::Null);
    assert_eq!(store.election(&tenure::port::scheduler_election()).await.unwrap(), None);
    let view = store.schedule(&key("often")).await.unwrap().unwrap();
    assert_eq!(
        (view.fired_count, view.tick_state.unwrap().last_tick_at_ms),
        (1, None),
        "no scheduled tick fired"
    );
    let busy = serving(&store, open_to_all("busy")).await;
    until("the scheduler fires", async || receiver.got().len() > 4).await;
    busy.shutdown().await;
    idle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_webhook_is_retried_under_the_same_id() {
    let receiver = Receiver::default();
    *receiver.refuse.lock().unwrap() = 1;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let url = receiver.start().await;
    set(store.as_ref(), "yearly", "@yearly", &url, Some(SECRET)).await;
    let server = serving(&store, open_to_all("one")).await;
    let id = trigger(store.as_ref(), "yearly").await;
    until("the webhook is delivered", async || task(store.as_ref(), id).await.state == TaskState::Completed)
        .await;
    let got = receiver.got();
    assert_eq!(got.len(), 2);
    assert_eq!((&got[0].id, &got[0].body["attempt"]), (&got[1].id, &json!(1)));
    assert_eq!(got[1].body["attempt"], 2);
    let text = task(store.as_ref(), id).await;
    assert!(text.failures[0].error.contains("responded with 502"), "{text:?}");
    server.shutdown().await;
}

/// A client could submit a forged task to the queue: it is neither signed nor sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_without_a_tick_is_not_sent() {
    let receiver = Receiver::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let url = receiver.start().await;
    set(store.as_ref(), "yearly", "@yearly", &url, Some(SECRET)).await;
    let real = trigger(store.as_ref(), "yearly").await;
    let tick = store.ticks(&TickFilter { key: key("yearly"), before_ms: None, limit: 1 }).await.unwrap();
    let forged = WebhookCall {
        key: key("yearly"),
        tick_at_ms: tick[0].tick_at_ms,
        cause: TickCause::Schedule,
        token: None,
        url: url.clone(),
        payload: r#"{"pay":"mallory"}"#.parse().unwrap(),
    };
    let submit = async |call: &WebhookCall| {
        let task = NewTask { payload: RawJson::of(call).unwrap(), ..NewTask::new("webhook") };
        let submission = Submission { queue: webhook_queue(), tasks: vec![task] };
        store.submit(&submission).await.unwrap()[0].id
    };
    let unknown = WebhookCall { key: key("unknown"), ..forged.clone() };
    let ids = [submit(&forged).await, submit(&unknown).await];
    // The webhook of a schedule that was deleted before delivery.
    set(store.as_ref(), "gone", "@yearly", &url, Some(SECRET)).await;
    let ended = trigger(store.as_ref(), "gone").await;
    store.delete_schedule(&key("gone"), None).await.unwrap();
    let server = serving(&store, open_to_all("one")).await;
    until("the real webhook is delivered", async || {
        task(store.as_ref(), real).await.state == TaskState::Completed
    })
    .await;
    for id in ids.into_iter().chain([ended]) {
        until("it is dead", async || task(store.as_ref(), id).await.state == TaskState::Dead).await;
        let text = task(store.as_ref(), id).await;
        assert!(text.failures[0].error.contains("has no record of this webhook"), "{text:?}");
    }
    let got = receiver.got();
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].body["payload"], json!({"n": 7}));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_are_rejected_unless_allowed() {
    let receiver = Receiver::default();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    set(store.as_ref(), "yearly", "@yearly", &receiver.start().await, Some(SECRET)).await;
    let id = trigger(store.as_ref(), "yearly").await;
    let server = serving(&store, Settings { allow_private_webhooks: false, ..open_to_all("one") }).await;
    until("it has failed", async || !task(store.as_ref(), id).await.failures.is_empty()).await;
    let text = task(store.as_ref(), id).await;
    assert!(text.failures[0].error.contains("--allow-private-webhooks"), "{text:?}");
    assert_eq!(receiver.got().len(), 0);
    server.shutdown().await;
}
