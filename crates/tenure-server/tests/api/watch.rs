//! Server-sent events.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use http::Request;
use serde_json::{Value, json};
use tenure::port::{Pause, ReleaseLeaseRequest, StartReason, Store};
use tenure::store::memory::MemoryStore;
use tenure::{SessionId, Token};
use tower::ServiceExt;

use super::support::{TestApp, join, key, on, take, test_app};

/// Received event.
#[derive(Debug)]
struct Event {
    name: String,
    id: Option<String>,
    data: Value,
}

/// Subscriber.
struct TestSubscriber {
    body: BodyDataStream,
    text: String,
}

async fn watch(app: &TestApp, path: &str, last: Option<&str>) -> TestSubscriber {
    let mut request = Request::get(path).header("host", "localhost");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = app.app.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    TestSubscriber { body: response.into_body().into_data_stream(), text: String::new() }
}

impl TestSubscriber {
    /// Next event; `None` at the end of the stream.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let of = format!("{name}: ");
                    event.lines().find_map(|line| line.strip_prefix(&of)).map(str::to_owned)
                };
                let received = field("event").map(|name| Event {
                    name,
                    id: field("id"),
                    data: serde_json::from_str(&field("data").unwrap()).unwrap(),
                });
                self.text = rest.to_owned();
                if received.is_some() {
                    return received;
                }
                continue;
            }
            let chunk =
                tokio::time::timeout(Duration::from_secs(30), self.body.next()).await.expect("silence")?;
            self.text.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
    }

    async fn expect(&mut self, name: &str) -> Event {
        let event = self.next().await.expect("the stream has ended");
        assert_eq!(event.name, name, "{event:?}");
        event
    }
}

async fn release(store: &dyn Store, session: &SessionId, token: Token) {
    let (session, election) = (session.clone(), key("nightly"));
    let release = ReleaseLeaseRequest {
        session,
        election,
        slot: 0,
        token,
        successor: None,
        start_reason: StartReason::Release,
        leave: false,
    };
    store.release_lease(&release).await.unwrap();
}

#[tokio::test]
async fn a_watch_sends_the_state_first_and_then_changes() {
    let app = test_app();
    let session = join(app.store.as_ref(), "web-1", "nightly", 0).await;
    app.app.elections().refresh(&key("nightly")).await.unwrap();
    let mut subscriber = watch(&app, "/v1/elections/nightly/watch", None).await;
    let first = subscriber.expect("election").await;
    assert_eq!(first.data["leader"], json!(null));
    let token = take(app.store.as_ref(), &session, "nightly").await;
    let began = subscriber.expect("term").await;
    assert_eq!((&began.data["change"], &began.data["token"]), (&json!("started"), &json!(token.as_u64())));
    assert_eq!(
        (&began.data["election"], &began.data["candidate_name"]),
        (&json!("nightly"), &json!("web-1"))
    );
    let led = subscriber.expect("election").await;
    assert_eq!(led.data["leader"], "web-1");
    assert_ne!(led.id, first.id);
    release(app.store.as_ref(), &session, token).await;
    let ended = subscriber.expect("term").await;
    assert_eq!((&ended.data["change"], &ended.data["end_reason"]), (&json!("ended"), &json!("released")));
    assert_eq!(subscriber.expect("election").await.data["leader"], json!(null));
}

#[tokio::test]
async fn a_watcher_that_reconnects_to_another_replica_receives_missed_terms() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (a, b) = (on(store.clone()), on(store.clone()));
    let session = join(store.as_ref(), "web-1", "nightly", 0).await;
    let first = take(store.as_ref(), &session, "nightly").await;
    a.app.elections().refresh(&key("nightly")).await.unwrap();
    let mut subscriber = watch(&a, "/v1/elections/nightly/watch", None).await;
    let received = subscriber.expect("election").await.id.unwrap();
    let mut wide = watch(&a, "/v1/watch", None).await;
    let wide_received = wide.expect("election").await.id.unwrap();
    drop((subscriber, wide, a));
    release(store.as_ref(), &session, first).await;
    let second = take(store.as_ref(), &session, "nightly").await;
    b.app.elections().refresh_all().await.unwrap();
    let missed = |event: &Event| (event.data["change"].clone(), event.data["token"].clone());
    let mut subscriber = watch(&b, "/v1/elections/nightly/watch", Some(&received)).await;
    assert_eq!(missed(&subscriber.expect("term").await), (json!("ended"), json!(first.as_u64())));
    assert_eq!(missed(&subscriber.expect("term").await), (json!("started"), json!(second.as_u64())));
    let now = subscriber.expect("election").await;
    assert_eq!(now.data["leaders"][0]["token"], second.as_u64());
    // A watch of everything uses the clock and may repeat the end of a known term.
    let mut wide = watch(&b, "/v1/watch?namespace=default", Some(&wide_received)).await;
    let mut text = Vec::new();
    let state = loop {
        let event = wide.next().await.unwrap();
        if event.name == "election" {
            break event;
        }
        text.push(missed(&event));
    };
    assert!(
        text.ends_with(&[
            (json!("ended"), json!(first.as_u64())),
            (json!("started"), json!(second.as_u64()))
        ]),
        "{text:?}"
    );
    assert_eq!(state.data["leaders"][0]["token"], second.as_u64());
    // An invalid id is ignored.
    for nonsense in ["", "x", "x.1", "@", "é@1", "abc.99999999999999999999h"] {
        let mut subscriber = watch(&b, "/v1/elections/nightly/watch", Some(nonsense)).await;
        subscriber.expect("election").await;
    }
}

#[tokio::test]
async fn a_slow_watcher_receives_the_current_state() {
    let app = test_app();
    join(app.store.as_ref(), "web-1", "nightly", 0).await;
    app.app.elections().refresh(&key("nightly")).await.unwrap();
    let mut subscriber = watch(&app, "/v1/elections/nightly/watch", None).await;
    subscriber.expect("election").await;
    for n in 0..100 {
        let pause = Pause { paused_by: "op".into(), reason: n.to_string(), paused_at_ms: n };
        let pause = (n % 2 == 0 || n == 99).then_some(&pause);
        app.store.set_election_paused(&key("nightly"), pause).await.unwrap();
        app.app.elections().refresh(&key("nightly")).await.unwrap();
    }
    let pause = Pause { paused_by: "op".into(), reason: "the last".into(), paused_at_ms: 0 };
    app.store.set_election_paused(&key("nightly"), None).await.unwrap();
    app.store.set_election_paused(&key("nightly"), Some(&pause)).await.unwrap();
    app.app.elections().refresh(&key("nightly")).await.unwrap();
    let mut received = 0;
    loop {
        received += 1;
        if subscriber.expect("election").await.data["paused"]["reason"] == "the last" {
            break;
        }
    }
    assert!(received <= 16, "{received} updates were buffered for a slow watcher");
}

#[tokio::test]
async fn an_election_that_does_not_exist_yet_can_be_watched() {
    let app = test_app();
    let mut subscriber = watch(&app, "/v1/elections/nightly/watch", None).await;
    let mut wide = watch(&app, "/v1/watch", None).await;
    let mut other = watch(&app, "/v1/watch?namespace=other", None).await;
    join(app.store.as_ref(), "web-1", "nightly", 0).await;
    assert_eq!(subscriber.expect("election").await.data["candidates"][0]["name"], "web-1");
    assert_eq!(wide.expect("election").await.data["name"], "nightly");
    app.app.elections().close();
    assert!(other.next().await.is_none(), "an event of another namespace was received");
}

#[tokio::test]
async fn streams_end_with_the_server() {
    let app = test_app();
    let mut subscribers = Vec::new();
    for _ in 0..100 {
        subscribers.push(watch(&app, "/v1/elections/nightly/watch", None).await);
        subscribers.push(watch(&app, "/v1/watch", None).await);
    }
    app.app.elections().close();
    for mut subscriber in subscribers {
        assert!(subscriber.next().await.is_none());
    }
    app.get("/v1/elections/nightly/watch").await.problem(503, "shutting-down", None);
}

#[tokio::test]
async fn a_watch_of_a_queue_sends_its_counts() {
    let app = test_app();
    let mut subscriber = watch(&app, "/v1/queues/mail/watch", None).await;
    for n in 1..=2 {
        app.post("/v1/queues/mail/tasks", json!({"kind": "welcome"})).await.of(201);
        let event = subscriber.expect("queue_changed").await;
        assert_eq!((&event.data["name"], &event.data["counts"]["ready"]), (&json!("mail"), &json!(n)));
    }
    // Tasks of other queues are not sent.
    app.post("/v1/queues/other/tasks", json!({})).await.of(201);
    app.post("/v1/queues/mail/claim", json!({"worker": "w"})).await.of(200);
    let event = subscriber.expect("queue_changed").await;
    assert_eq!(event.data["counts"]["claimed"], 1);
    app.post("/v1/queues/mail/pause", json!({})).await.of(200);
    assert_eq!(subscriber.expect("queue_changed").await.data["paused"]["paused_by"], "local");
}

/// Number of elections that `many` creates: more than fit into one piece of a stream.
const MANY: usize = 400;

async fn many(app: &TestApp) {
    for n in 0..MANY {
        join(app.store.as_ref(), "web-1", &format!("e{n:03}"), 0).await;
    }
    app.app.elections().refresh_all().await.unwrap();
}

/// Regression: All elections were queued for each watcher at once: megabytes per watcher, read or not.
#[tokio::test]
async fn an_unread_watch_buffers_one_piece() {
    let app = test_app();
    many(&app).await;
    let mut subscribers = Vec::new();
    for _ in 0..20 {
        let mut subscriber = watch(&app, "/v1/watch", None).await;
        // The first chunk and the first piece.
        for _ in 0..2 {
            subscriber.body.next().await.expect("a piece").expect("sound");
        }
        subscribers.push(subscriber);
    }
    let unread = app.app.unread_bytes("local");
    assert!(
        unread <= subscribers.len() * 32 * 1024,
        "{unread} bytes are buffered for {} watchers",
        subscribers.len()
    );
    drop(subscribers);
    assert_eq!(app.app.unread_bytes("local"), 0, "nothing is buffered for disconnected watchers");
    let mut subscriber = watch(&app, "/v1/watch", None).await;
    let mut received = Vec::new();
    for _ in 0..MANY {
        received.push(subscriber.expect("election").await.data["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(received, (0..MANY).map(|n| format!("e{n:03}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn changes_during_the_initial_state_are_sent_once_and_in_order() {
    let app = test_app();
    many(&app).await;
    let mut subscriber = watch(&app, "/v1/watch", None).await;
    assert_eq!(subscriber.expect("election").await.data["name"], "e000");
    // One election was sent already, the other follows later.
    let last = format!("e{:03}", MANY - 1);
    let mut tokens = Vec::new();
    for name in ["e000", last.as_str()] {
        let session = join(app.store.as_ref(), "web-2", name, 1).await;
        tokens.push(take(app.store.as_ref(), &session, name).await.as_u64());
        app.app.elections().refresh(&key(name)).await.unwrap();
    }
    let (mut leaders, mut terms) = (Vec::new(), Vec::new());
    while leaders.len() < 2 || terms.len() < 2 {
        let event = subscriber.next().await.expect("the stream continues");
        let name = event.data[if event.name == "term" { "election" } else { "name" }].as_str().unwrap();
        match (event.name.as_str(), name) {
            ("term", _) => terms.push((name.to_owned(), event.data["token"].as_u64().unwrap())),
            (_, "e000") => leaders.push(event.data["leader"].clone()),
            (_, name) if name == last => leaders.push(event.data["leader"].clone()),
            _ => {}
        }
    }
    assert_eq!(leaders, [json!("web-2"), json!("web-2")], "no older state follows");
    assert_eq!(terms, [("e000".to_owned(), tokens[0]), (last, tokens[1])]);
}
