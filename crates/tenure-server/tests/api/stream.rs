//! Event streams.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use http::Request;
use serde_json::{Value, json};
use tenure::port::{EventAdmin, NewEvent, Store, TopicKey, TopicSettings};
use tenure::store::memory::MemoryStore;
use tower::ServiceExt;

use super::counting_store::CountingStore;
use super::support::{TestApp, on};

/// Subscriber.
struct TestSubscriber {
    body: BodyDataStream,
    text: String,
}

async fn stream(app: &TestApp, query: &str, last: Option<&str>) -> TestSubscriber {
    let mut request =
        Request::get(format!("/v1/topics/orders/events/stream{query}")).header("host", "localhost");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = app.app.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut subscriber =
        TestSubscriber { body: response.into_body().into_data_stream(), text: String::new() };
    subscriber.more().await;
    subscriber
}

impl TestSubscriber {
    /// Read until the stream ends.
    async fn end(mut self) {
        let end = async { while self.body.next().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(30), end).await.expect("an end");
    }

    async fn more(&mut self) {
        let chunk = tokio::time::timeout(Duration::from_secs(30), self.body.next()).await.expect("silence");
        self.text.push_str(std::str::from_utf8(&chunk.expect("the end").unwrap()).unwrap());
    }

    /// Next event and its id.
    async fn next(&mut self) -> (Value, String) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let of = format!("{name}: ");
                    event.lines().find_map(|line| line.strip_prefix(&of)).map(str::to_owned)
                };
                let received =
                    field("data").map(|data| (serde_json::from_str(&data).unwrap(), field("id").unwrap()));
                self.text = rest.to_owned();
                match received {
                    Some(received) => return received,
                    None => continue,
                }
            }
            self.more().await;
        }
    }

    /// Payloads of the next events.
    async fn payloads(&mut self, count: usize) -> Vec<u64> {
        let mut all = Vec::new();
        while all.len() < count {
            all.push(self.next().await.0["payload"].as_u64().unwrap());
        }
        all
    }
}

fn topic() -> TopicKey {
    TopicKey::new("default".parse().unwrap(), "orders".parse().unwrap())
}

async fn created(slots: u32) -> MemoryStore {
    let store = MemoryStore::new();
    store
        .set_topic(&topic(), &TopicSettings { partitions: slots, ..TopicSettings::default() })
        .await
        .unwrap();
    store
}

/// Publish events with these payloads in one batch.
async fn publish(store: &dyn Store, payloads: std::ops::Range<u64>) {
    let event = |n: u64| NewEvent {
        key: Some(format!("k{}", n % 3)),
        payload: tenure::port::Payload::Json(n.to_string().parse().unwrap()),
        ..NewEvent::new(if n.is_multiple_of(2) { "even" } else { "odd" })
    };
    let events: Vec<_> = payloads.map(event).collect();
    store.publish(&topic(), &events).await.unwrap();
}

#[tokio::test]
async fn a_stream_starts_at_the_requested_position() {
    let store: Arc<dyn Store> = Arc::new(created(1).await);
    let app = on(store.clone());
    publish(store.as_ref(), 0..3).await;
    let mut latest = stream(&app, "", None).await;
    let mut earliest = stream(&app, "?from=earliest", None).await;
    publish(store.as_ref(), 3..5).await;
    assert_eq!(earliest.payloads(5).await, [0, 1, 2, 3, 4]);
    assert_eq!(latest.payloads(2).await, [3, 4]);
    let mut odd = stream(&app, "?from=earliest&type=odd", None).await;
    assert_eq!(odd.payloads(2).await, [1, 3]);
    let mut key = stream(&app, "?from=earliest&key=k1", None).await;
    assert_eq!(key.payloads(2).await, [1, 4]);
    app.get("/v1/topics/none/events/stream").await.problem(404, "no-such-topic", Some("topic"));
    app.get("/v1/topics/orders/events/stream?from=yesterday").await.problem(
        400,
        "malformed-query",
        Some("from"),
    );
}

/// A subscriber that disconnects after any event, inside a commit batch or not, and reconnects to another
/// replica receives the next event.
#[tokio::test]
async fn a_subscriber_that_reconnects_to_another_replica_receives_each_event_once() {
    let store: Arc<dyn Store> = Arc::new(created(5).await);
    let replicas = [on(store.clone()), on(store.clone())];
    for n in 0..6 {
        publish(store.as_ref(), n * 5..n * 5 + 5).await;
    }
    let (mut received, mut last) = (Vec::new(), None::<String>);
    while received.len() < 40 {
        let replica = &replicas[received.len() % 2];
        let mut subscriber = stream(replica, "?from=earliest", last.as_deref()).await;
        for _ in 0..=received.len() % 3 {
            let (event, id) = subscriber.next().await;
            received.push((event["key"].as_str().unwrap().to_owned(), event["payload"].as_u64().unwrap()));
            last = Some(id);
            if received.len() == 30 {
                // From here on the stream is live.
                publish(store.as_ref(), 30..40).await;
            }
        }
    }
    for key in ["k0", "k1", "k2"] {
        let of_key: Vec<_> = received.iter().filter(|(its, _)| its == key).map(|(_, n)| *n).collect();
        assert!(of_key.is_sorted_by(|a, b| a < b), "{key}: {of_key:?}");
    }
    let mut all: Vec<_> = received.into_iter().map(|(_, n)| n).collect();
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_streams_share_the_reads_of_one() {
    let counting_store = Arc::new(CountingStore::new(created(8).await));
    let app = on(counting_store.clone());
    let mut subscribers = Vec::new();
    for _ in 0..300 {
        subscribers.push(stream(&app, "", None).await);
    }
    // Each subscriber reads once to catch up; then all share the broadcast.
    let waiting = futures_util::future::join_all(
        subscribers
            .into_iter()
            .map(|mut subscriber| tokio::spawn(async move { (subscriber.payloads(1).await, subscriber) })),
    );
    let first = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        publish(counting_store.as_ref(), 0..1).await;
    };
    let (received, ()) = tokio::join!(waiting, first);
    let subscribers: Vec<_> = received.into_iter().map(|received| received.unwrap().1).collect();
    let before = counting_store.reads();
    publish(counting_store.as_ref(), 1..21).await;
    let received = futures_util::future::join_all(
        subscribers
            .into_iter()
            .map(|mut subscriber| tokio::spawn(async move { subscriber.payloads(20).await.len() })),
    )
    .await;
    assert!(received.into_iter().all(|received| received.unwrap() == 20));
    let reads = counting_store.reads() - before;
    assert!(reads < 100, "{reads} reads for hundreds of subscribers");
}

#[tokio::test]
async fn a_payload_on_several_lines_is_one_event() {
    let store: Arc<dyn Store> = Arc::new(created(1).await);
    let app = on(store.clone());
    let event = "{\"type\": \"a\", \"payload\": {\n  \"n\": [1,\r\n  2]\n}}";
    app.post_text("/v1/topics/orders/events", event).await.of(201);
    let mut subscriber = stream(&app, "?from=earliest", None).await;
    assert_eq!(subscriber.next().await.0["payload"], json!({"n": [1, 2]}));
}

#[tokio::test]
async fn a_deleted_topic_ends_its_streams_and_a_recreated_one_is_streamed() {
    let store: Arc<dyn Store> = Arc::new(created(1).await);
    let app = on(store.clone());
    // Two subscribers: a remaining one must not keep the ended broadcast alive.
    let (one, two) = (stream(&app, "", None).await, stream(&app, "", None).await);
    let one = tokio::spawn(one.end());
    tokio::time::sleep(Duration::from_millis(300)).await;
    store.delete_topic(&topic()).await.unwrap();
    one.await.unwrap();
    let ended = async {
        loop {
            let again = Request::get("/v1/topics/orders/events/stream").header("host", "localhost");
            if let Some(answer) = app.send_unless_stream(again.body(Body::empty()).unwrap()).await {
                return answer.problem(404, "no-such-topic", Some("topic"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended)
        .await
        .expect("new subscribers do not join an ended broadcast");
    store.set_topic(&topic(), &TopicSettings { partitions: 1, ..TopicSettings::default() }).await.unwrap();
    let mut subscriber = stream(&app, "", None).await;
    publish(store.as_ref(), 0..2).await;
    assert_eq!(subscriber.payloads(2).await, [0, 1]);
    two.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_ends_its_streams() {
    let store: Arc<dyn Store> = Arc::new(created(1).await);
    let listen = vec![tenure_server::settings::ListenAddress::Tcp("127.0.0.1:0".into())];
    let settings = tenure_server::Settings { listen, ..Default::default() };
    let server = tenure_server::Server::start(settings, store.clone()).await.unwrap();
    let subscriber = stream(&TestApp::of(server.app().clone(), store), "", None).await;
    server.shutdown().await;
    subscriber.end().await;
}

/// As after a restore: the store does not contain the events that the subscriber received.
#[tokio::test]
async fn a_subscriber_beyond_the_end_is_reset_and_receives_new_events() {
    let store: Arc<dyn Store> = Arc::new(created(1).await);
    let app = on(store.clone());
    publish(store.as_ref(), 0..1).await;
    let ahead = tenure_core::rules::event::TopicCursor::new([(0, 1_000_000)]).to_string();
    let mut subscriber = stream(&app, "", Some(&ahead)).await;
    let (reset, id) = subscriber.next().await;
    assert!(reset["reason"].is_string() && id != ahead, "{reset}");
    publish(store.as_ref(), 1..3).await;
    assert_eq!(subscriber.payloads(2).await, [1, 2]);
}
