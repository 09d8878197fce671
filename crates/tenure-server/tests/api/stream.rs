//! Topics, streamed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use http::Request;
use serde_json::{Value, json};
use tenure::backend::memory::Memory;
use tenure::port::{Backend, Bureau, NewEvent, TopicKey, TopicSettings};
use tower::ServiceExt;

use super::support::{Inside, on};
use super::tally::Tally;

/// One who hears.
struct Hearer {
    body: BodyDataStream,
    text: String,
}

async fn stream(inside: &Inside, query: &str, last: Option<&str>) -> Hearer {
    let mut request = Request::get(format!("/v1/topics/orders/stream{query}")).header("host", "localhost");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = inside.app.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut hearer = Hearer { body: response.into_body().into_data_stream(), text: String::new() };
    hearer.more().await;
    hearer
}

impl Hearer {
    /// Hears until there is nothing more to be said.
    async fn end(mut self) {
        let end = async { while self.body.next().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(30), end).await.expect("an end");
    }

    async fn more(&mut self) {
        let chunk = tokio::time::timeout(Duration::from_secs(30), self.body.next()).await.expect("silence");
        self.text.push_str(std::str::from_utf8(&chunk.expect("the end").unwrap()).unwrap());
    }

    /// The next event, and its id.
    async fn next(&mut self) -> (Value, String) {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let of = format!("{name}: ");
                    event.lines().find_map(|line| line.strip_prefix(&of)).map(str::to_owned)
                };
                let heard =
                    field("data").map(|data| (serde_json::from_str(&data).unwrap(), field("id").unwrap()));
                self.text = rest.to_owned();
                match heard {
                    Some(heard) => return heard,
                    None => continue,
                }
            }
            self.more().await;
        }
    }

    /// The payloads of the next events.
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

async fn made(slots: u32) -> Memory {
    let store = Memory::new();
    store.set_topic(&topic(), &TopicSettings { slots, ..TopicSettings::default() }).await.unwrap();
    store
}

/// Publishes events with these payloads, all at once.
async fn publish(store: &dyn Backend, payloads: std::ops::Range<u64>) {
    let event = |n: u64| NewEvent {
        key: Some(format!("k{}", n % 3)),
        payload: tenure::port::Payload::Json(n.to_string().parse().unwrap()),
        ..NewEvent::new(if n.is_multiple_of(2) { "even" } else { "odd" })
    };
    let events: Vec<_> = payloads.map(event).collect();
    store.publish(&topic(), &events).await.unwrap();
}

#[tokio::test]
async fn a_stream_begins_where_it_is_told_to() {
    let store: Arc<dyn Backend> = Arc::new(made(1).await);
    let inside = on(store.clone());
    publish(store.as_ref(), 0..3).await;
    let mut latest = stream(&inside, "", None).await;
    let mut earliest = stream(&inside, "?from=earliest", None).await;
    publish(store.as_ref(), 3..5).await;
    assert_eq!(earliest.payloads(5).await, [0, 1, 2, 3, 4]);
    assert_eq!(latest.payloads(2).await, [3, 4]);
    let mut odd = stream(&inside, "?from=earliest&type=odd", None).await;
    assert_eq!(odd.payloads(2).await, [1, 3]);
    let mut key = stream(&inside, "?from=earliest&key=k1", None).await;
    assert_eq!(key.payloads(2).await, [1, 4]);
    inside.get("/v1/topics/none/stream").await.problem(404, "no-such-topic", Some("topic"));
    inside.get("/v1/topics/orders/stream?from=yesterday").await.problem(400, "malformed-query", Some("from"));
}

/// Whoever breaks off after any event, in the middle of what was published together or not, and comes back to another replica, hears
/// the next one next.
#[tokio::test]
async fn who_comes_back_to_another_replica_misses_nothing_and_hears_nothing_twice() {
    let store: Arc<dyn Backend> = Arc::new(made(5).await);
    let replicas = [on(store.clone()), on(store.clone())];
    for n in 0..6 {
        publish(store.as_ref(), n * 5..n * 5 + 5).await;
    }
    let (mut heard, mut last) = (Vec::new(), None::<String>);
    while heard.len() < 40 {
        let replica = &replicas[heard.len() % 2];
        let mut hearer = stream(replica, "?from=earliest", last.as_deref()).await;
        for _ in 0..=heard.len() % 3 {
            let (event, id) = hearer.next().await;
            heard.push((event["key"].as_str().unwrap().to_owned(), event["payload"].as_u64().unwrap()));
            last = Some(id);
            if heard.len() == 30 {
                // From here on it is live.
                publish(store.as_ref(), 30..40).await;
            }
        }
    }
    for key in ["k0", "k1", "k2"] {
        let of_key: Vec<_> = heard.iter().filter(|(its, _)| its == key).map(|(_, n)| *n).collect();
        assert!(of_key.is_sorted_by(|a, b| a < b), "{key}: {of_key:?}");
    }
    let mut all: Vec<_> = heard.into_iter().map(|(_, n)| n).collect();
    all.sort_unstable();
    assert_eq!(all, (0..40).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_streams_cost_the_store_what_one_does() {
    let tally = Arc::new(Tally::new(made(8).await));
    let inside = on(tally.clone());
    let mut hearers = Vec::new();
    for _ in 0..300 {
        hearers.push(stream(&inside, "", None).await);
    }
    // Each looks once whether there is something between where it begins and where all are; then they only hear.
    let waiting = futures_util::future::join_all(
        hearers.into_iter().map(|mut hearer| tokio::spawn(async move { (hearer.payloads(1).await, hearer) })),
    );
    let first = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        publish(tally.as_ref(), 0..1).await;
    };
    let (heard, ()) = tokio::join!(waiting, first);
    let hearers: Vec<_> = heard.into_iter().map(|heard| heard.unwrap().1).collect();
    let before = tally.reads();
    publish(tally.as_ref(), 1..21).await;
    let heard = futures_util::future::join_all(
        hearers.into_iter().map(|mut hearer| tokio::spawn(async move { hearer.payloads(20).await.len() })),
    )
    .await;
    assert!(heard.into_iter().all(|heard| heard.unwrap() == 20));
    let reads = tally.reads() - before;
    assert!(reads < 100, "{reads} reads for hundreds who hear the same");
}

#[tokio::test]
async fn a_payload_on_several_lines_is_one_event() {
    let store: Arc<dyn Backend> = Arc::new(made(1).await);
    let inside = on(store.clone());
    let event = "{\"type\": \"a\", \"payload\": {\n  \"n\": [1,\r\n  2]\n}}";
    inside.post_text("/v1/topics/orders/events", event).await.of(201);
    let mut hearer = stream(&inside, "?from=earliest", None).await;
    assert_eq!(hearer.next().await.0["payload"], json!({"n": [1, 2]}));
}

#[tokio::test]
async fn a_topic_that_is_gone_ends_its_streams_and_its_successor_is_heard() {
    let store: Arc<dyn Backend> = Arc::new(made(1).await);
    let inside = on(store.clone());
    // Two: one that is left must not keep the tail alive that reads nothing.
    let (one, two) = (stream(&inside, "", None).await, stream(&inside, "", None).await);
    let one = tokio::spawn(one.end());
    tokio::time::sleep(Duration::from_millis(300)).await;
    store.delete_topic(&topic()).await.unwrap();
    one.await.unwrap();
    let gone = async {
        loop {
            let again = Request::get("/v1/topics/orders/stream").header("host", "localhost");
            if let Some(answer) = inside.send_unless_stream(again.body(Body::empty()).unwrap()).await {
                return answer.problem(404, "no-such-topic", Some("topic"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("nobody is given what is over");
    store.set_topic(&topic(), &TopicSettings { slots: 1, ..TopicSettings::default() }).await.unwrap();
    let mut hearer = stream(&inside, "", None).await;
    publish(store.as_ref(), 0..2).await;
    assert_eq!(hearer.payloads(2).await, [0, 1]);
    two.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_ends_its_streams() {
    let store: Arc<dyn Backend> = Arc::new(made(1).await);
    let listen = vec![tenure_server::settings::Address::Tcp("127.0.0.1:0".into())];
    let settings = tenure_server::Settings { listen, ..Default::default() };
    let server = tenure_server::Server::start(settings, store.clone()).await.unwrap();
    let hearer = stream(&Inside::of(server.app().clone(), store), "", None).await;
    server.shutdown().await;
    hearer.end().await;
}

/// As after a backup was restored: what was heard is not there.
#[tokio::test]
async fn who_is_ahead_of_what_there_is_is_told_and_hears_what_comes() {
    let store: Arc<dyn Backend> = Arc::new(made(1).await);
    let inside = on(store.clone());
    publish(store.as_ref(), 0..1).await;
    let ahead = tenure_core::event::Cursor::new([(0, 1_000_000)]).to_string();
    let mut hearer = stream(&inside, "", Some(&ahead)).await;
    let (reset, id) = hearer.next().await;
    assert!(reset["reason"].is_string() && id != ahead, "{reset}");
    publish(store.as_ref(), 1..3).await;
    assert_eq!(hearer.payloads(2).await, [1, 2]);
}
