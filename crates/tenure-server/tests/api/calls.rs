//! Schedules that call: fired by a server, called by a server, signed, and what becomes of calls that are not taken.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tenure::backend::memory::Memory;
use tenure::port::{
    Backend, Cause, Hand, HandOutcome, Json, NewTask, ScheduleKey, SetSchedule, Submission, TaskId,
    TaskState, TaskView, TickFilter, calls_queue,
};
use tenure_core::schedule::{Call, Definition, Misfire, Target, When};
use tenure_server::settings::Address;
use tenure_server::{Server, Settings};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[derive(Clone, Debug)]
struct Got {
    id: String,
    signed: bool,
    body: Value,
}

/// What is called.
#[derive(Clone, Default)]
struct Receiver {
    got: Arc<Mutex<Vec<Got>>>,
    /// How many calls are refused before one is taken.
    refuse: Arc<Mutex<u32>>,
}

impl Receiver {
    /// Starts one; its address.
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

/// Checks what the standard says is to be checked, and answers as it is told to.
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

/// A schedule that calls.
async fn set(store: &dyn Backend, name: &str, when: &str, url: &str, secret: Option<&str>) {
    let when: When = when.parse().unwrap();
    let mut definition = Definition::new(name.parse().unwrap(), when, Target::Call { url: url.to_owned() });
    // However long another leader takes.
    definition.misfire = Misfire::FireAll { cap: 10_000 };
    definition.payload = r#"{"n":7}"#.parse().unwrap();
    let set = SetSchedule {
        namespace: key(name).namespace,
        definition,
        secret: secret.map(str::to_owned),
        expect: Default::default(),
        source: None,
        by: "the test".into(),
    };
    store.set_schedule(&set).await.unwrap();
}

/// Fires by hand; the task of the call.
async fn trigger(store: &dyn Backend, name: &str) -> TaskId {
    let hand = Hand { key: key(name), ticks: None, payload: None, by: "ada".into(), dry_run: false };
    let fired = store.fire_by_hand(&hand).await.unwrap().unwrap();
    match fired[0].outcome {
        HandOutcome::Fired { task: Some(task), .. } => task,
        other => panic!("{other:?}"),
    }
}

async fn task(store: &dyn Backend, id: TaskId) -> TaskView {
    store.task(&calls_queue().namespace, id).await.unwrap().expect("the task")
}

async fn serving(store: &Arc<dyn Backend>, settings: Settings) -> Server {
    let listen = vec![Address::Tcp("127.0.0.1:0".into())];
    Server::start(Settings { listen, ..settings }, store.clone()).await.unwrap()
}

fn open_to_all(name: &str) -> Settings {
    Settings { name: name.into(), push_private: true, ..Settings::default() }
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

/// The whole way: a server fires what is due, and a server calls.
#[tokio::test(flavor = "multi_thread")]
async fn servers_fire_what_is_due_and_call_once_for_each_tick() {
    let receiver = Receiver::default();
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let url = receiver.start().await;
    set(store.as_ref(), "often", "every 200ms", &url, Some(SECRET)).await;
    let servers = [serving(&store, open_to_all("one")).await, serving(&store, open_to_all("two")).await];
    until("six have arrived", async || receiver.got().len() >= 6).await;
    // Whoever fired, another goes on.
    let leader = async || {
        let election = store.election(&tenure::port::scheduler_election()).await.unwrap().unwrap();
        election.holders().next().map(|(_, session)| session.name.clone())
    };
    until("somebody leads", async || leader().await.is_some()).await;
    let first = leader().await.unwrap();
    let (stays, leaves) = if first == "one" { ("two", &servers[0]) } else { ("one", &servers[1]) };
    leaves.shutdown().await;
    until("the other one fires", async || leader().await.as_deref() == Some(stays)).await;
    let before = receiver.got().len();
    until("it goes on", async || receiver.got().len() >= before + 4).await;
    store.set_schedule_paused(&key("often"), Some(&pause())).await.unwrap();
    let filter = TickFilter { key: key("often"), before_ms: None, limit: 100_000 };
    until("all that fired was called", async || {
        let fired = store.ticks(&filter).await.unwrap().len();
        receiver.got().iter().map(|got| got.id.clone()).collect::<BTreeSet<_>>().len() == fired
    })
    .await;
    let ticks = store.ticks(&filter).await.unwrap();
    let at: BTreeSet<i64> = ticks.iter().map(|tick| tick.at_ms).collect();
    let (oldest, newest) = (*at.first().unwrap(), *at.last().unwrap());
    assert_eq!(at.len() as i64, (newest - oldest) / 200 + 1, "no tick is missing between them");
    let got = receiver.got();
    let one = &got[0];
    assert!(got.iter().all(|got| got.signed));
    assert_eq!((&one.body["namespace"], &one.body["schedule"]), (&json!("default"), &json!("often")));
    assert_eq!((&one.body["cause"], &one.body["payload"]), (&json!("clock"), &json!({"n": 7})));
    let tick = ticks.iter().find(|tick| json!(tick.at_ms) == one.body["tick_ms"]).expect("its tick");
    assert_eq!(one.body["token"], json!(tick.token.unwrap()), "the token of who fired it");
    assert_eq!(one.id, format!("call-{}", tick.task.unwrap()));
    let shown = one.body["tick"].as_str().unwrap();
    assert!(shown.ends_with('Z') && shown.starts_with("20"), "{shown}");
    // Who makes calls is a server, and no worker besides.
    assert_eq!(store.workers(None).await.unwrap(), vec![]);
    let stayed = if stays == "one" { &servers[0] } else { &servers[1] };
    stayed.shutdown().await;
}

fn pause() -> tenure::port::Pause {
    tenure::port::Pause { by: "the test".into(), reason: String::new(), at_ms: 0 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_may_not_fire_leaves_it_to_others() {
    let receiver = Receiver::default();
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let url = receiver.start().await;
    set(store.as_ref(), "often", "every 50ms", &url, None).await;
    let idle = serving(&store, Settings { scheduler: false, ..open_to_all("idle") }).await;
    // What is fired by hand it calls all the same.
    let id = trigger(store.as_ref(), "often").await;
    until("it is called", async || task(store.as_ref(), id).await.state == TaskState::Completed).await;
    let got = receiver.got();
    assert_eq!((got.len(), got[0].signed, &got[0].body["cause"]), (1, false, &json!("trigger")));
    assert_eq!(got[0].body["token"], Value::Null);
    assert_eq!(store.election(&tenure::port::scheduler_election()).await.unwrap(), None);
    let view = store.schedule(&key("often")).await.unwrap().unwrap();
    assert_eq!((view.fired, view.progress.unwrap().last_at_ms), (1, None), "nobody else fired it");
    let busy = serving(&store, open_to_all("busy")).await;
    until("now somebody does", async || receiver.got().len() > 4).await;
    busy.shutdown().await;
    idle.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_refused_is_made_again_under_the_same_id() {
    let receiver = Receiver::default();
    *receiver.refuse.lock().unwrap() = 1;
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let url = receiver.start().await;
    set(store.as_ref(), "yearly", "@yearly", &url, Some(SECRET)).await;
    let server = serving(&store, open_to_all("one")).await;
    let id = trigger(store.as_ref(), "yearly").await;
    until("it is done", async || task(store.as_ref(), id).await.state == TaskState::Completed).await;
    let got = receiver.got();
    assert_eq!(got.len(), 2);
    assert_eq!((&got[0].id, &got[0].body["attempt"]), (&got[1].id, &json!(1)));
    assert_eq!(got[1].body["attempt"], 2);
    let told = task(store.as_ref(), id).await;
    assert!(told.failures[0].error.contains("answered 502"), "{told:?}");
    server.shutdown().await;
}

/// Whoever may submit could write anything into the queue: it is neither signed nor sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_no_tick_has_made_is_not_made() {
    let receiver = Receiver::default();
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let url = receiver.start().await;
    set(store.as_ref(), "yearly", "@yearly", &url, Some(SECRET)).await;
    let real = trigger(store.as_ref(), "yearly").await;
    let tick = store.ticks(&TickFilter { key: key("yearly"), before_ms: None, limit: 1 }).await.unwrap();
    let forged = Call {
        key: key("yearly"),
        tick_ms: tick[0].at_ms,
        cause: Cause::Clock,
        token: None,
        url: url.clone(),
        payload: r#"{"pay":"mallory"}"#.parse().unwrap(),
    };
    let submit = async |call: &Call| {
        let task = NewTask { payload: Json::of(call).unwrap(), ..NewTask::new("call") };
        let submission = Submission { queue: calls_queue(), tasks: vec![task] };
        store.submit(&submission).await.unwrap()[0].id
    };
    let unknown = Call { key: key("unknown"), ..forged.clone() };
    let ids = [submit(&forged).await, submit(&unknown).await];
    // One of a schedule that is gone by the time that it is made.
    set(store.as_ref(), "gone", "@yearly", &url, Some(SECRET)).await;
    let gone = trigger(store.as_ref(), "gone").await;
    store.delete_schedule(&key("gone"), None).await.unwrap();
    let server = serving(&store, open_to_all("one")).await;
    until("the real one is made", async || task(store.as_ref(), real).await.state == TaskState::Completed)
        .await;
    for id in ids.into_iter().chain([gone]) {
        until("it is dead", async || task(store.as_ref(), id).await.state == TaskState::Dead).await;
        let told = task(store.as_ref(), id).await;
        assert!(told.failures[0].error.contains("does not know of this call"), "{told:?}");
    }
    let got = receiver.got();
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].body["payload"], json!({"n": 7}));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_own_network_is_not_called_unless_it_may_be() {
    let receiver = Receiver::default();
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    set(store.as_ref(), "yearly", "@yearly", &receiver.start().await, Some(SECRET)).await;
    let id = trigger(store.as_ref(), "yearly").await;
    let server = serving(&store, Settings { push_private: false, ..open_to_all("one") }).await;
    until("it has failed", async || !task(store.as_ref(), id).await.failures.is_empty()).await;
    let told = task(store.as_ref(), id).await;
    assert!(told.failures[0].error.contains("--push-private"), "{told:?}");
    assert_eq!(receiver.got().len(), 0);
    server.shutdown().await;
}
