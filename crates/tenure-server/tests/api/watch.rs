//! Server-sent events.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures_util::StreamExt;
use http::Request;
use serde_json::{Value, json};
use tenure::backend::memory::Memory;
use tenure::port::{Backend, Pause, Release, Via};
use tenure::{SessionId, Token};
use tower::ServiceExt;

use super::support::{Inside, inside, key, on, stand, take};

/// An event as it was heard.
#[derive(Debug)]
struct Event {
    name: String,
    id: Option<String>,
    data: Value,
}

/// One who hears.
struct Hearer {
    body: BodyDataStream,
    text: String,
}

async fn watch(inside: &Inside, path: &str, last: Option<&str>) -> Hearer {
    let mut request = Request::get(path).header("host", "localhost");
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    let response = inside.app.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    Hearer { body: response.into_body().into_data_stream(), text: String::new() }
}

impl Hearer {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let of = format!("{name}: ");
                    event.lines().find_map(|line| line.strip_prefix(&of)).map(str::to_owned)
                };
                let heard = field("event").map(|name| Event {
                    name,
                    id: field("id"),
                    data: serde_json::from_str(&field("data").unwrap()).unwrap(),
                });
                self.text = rest.to_owned();
                if heard.is_some() {
                    return heard;
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

async fn release(store: &dyn Backend, session: &SessionId, token: Token) {
    let (session, election) = (session.clone(), key("nightly"));
    let release =
        Release { session, election, slot: 0, token, successor: None, via: Via::Release, leave: false };
    store.release(&release).await.unwrap();
}

#[tokio::test]
async fn the_state_comes_first_and_then_what_changes() {
    let inside = inside();
    let session = stand(inside.store.as_ref(), "web-1", "nightly", 0).await;
    inside.app.board().look(&key("nightly")).await.unwrap();
    let mut hearer = watch(&inside, "/v1/elections/nightly/watch", None).await;
    let first = hearer.expect("election").await;
    assert_eq!(first.data["leader"], json!(null));
    let token = take(inside.store.as_ref(), &session, "nightly").await;
    let began = hearer.expect("term").await;
    assert_eq!((&began.data["change"], &began.data["token"]), (&json!("began"), &json!(token.as_u64())));
    assert_eq!((&began.data["election"], &began.data["id"]), (&json!("nightly"), &json!("web-1")));
    let led = hearer.expect("election").await;
    assert_eq!(led.data["leader"], "web-1");
    assert_ne!(led.id, first.id);
    release(inside.store.as_ref(), &session, token).await;
    let ended = hearer.expect("term").await;
    assert_eq!((&ended.data["change"], &ended.data["end"]), (&json!("ended"), &json!("released")));
    assert_eq!(hearer.expect("election").await.data["leader"], json!(null));
}

#[tokio::test]
async fn who_comes_back_to_another_replica_is_told_what_was_missed() {
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let (a, b) = (on(store.clone()), on(store.clone()));
    let session = stand(store.as_ref(), "web-1", "nightly", 0).await;
    let first = take(store.as_ref(), &session, "nightly").await;
    a.app.board().look(&key("nightly")).await.unwrap();
    let mut hearer = watch(&a, "/v1/elections/nightly/watch", None).await;
    let heard = hearer.expect("election").await.id.unwrap();
    let mut wide = watch(&a, "/v1/watch", None).await;
    let wide_heard = wide.expect("election").await.id.unwrap();
    drop((hearer, wide, a));
    release(store.as_ref(), &session, first).await;
    let second = take(store.as_ref(), &session, "nightly").await;
    b.app.board().look_at_all().await.unwrap();
    let missed = |event: &Event| (event.data["change"].clone(), event.data["token"].clone());
    let mut hearer = watch(&b, "/v1/elections/nightly/watch", Some(&heard)).await;
    assert_eq!(missed(&hearer.expect("term").await), (json!("ended"), json!(first.as_u64())));
    assert_eq!(missed(&hearer.expect("term").await), (json!("began"), json!(second.as_u64())));
    let now = hearer.expect("election").await;
    assert_eq!(now.data["leaders"][0]["token"], second.as_u64());
    // Who watches everything goes by the clock, and may hear the end of what it knows twice.
    let mut wide = watch(&b, "/v1/watch?namespace=default", Some(&wide_heard)).await;
    let mut told = Vec::new();
    let stands = loop {
        let event = wide.next().await.unwrap();
        if event.name == "election" {
            break event;
        }
        told.push(missed(&event));
    };
    assert!(
        told.ends_with(&[(json!("ended"), json!(first.as_u64())), (json!("began"), json!(second.as_u64()))]),
        "{told:?}"
    );
    assert_eq!(stands.data["leaders"][0]["token"], second.as_u64());
    // What makes no sense counts as nothing.
    for nonsense in ["", "x", "x.1", "@", "é@1", "abc.99999999999999999999h"] {
        let mut hearer = watch(&b, "/v1/elections/nightly/watch", Some(nonsense)).await;
        hearer.expect("election").await;
    }
}

#[tokio::test]
async fn who_does_not_keep_up_is_told_how_things_stand() {
    let inside = inside();
    stand(inside.store.as_ref(), "web-1", "nightly", 0).await;
    inside.app.board().look(&key("nightly")).await.unwrap();
    let mut hearer = watch(&inside, "/v1/elections/nightly/watch", None).await;
    hearer.expect("election").await;
    for n in 0..100 {
        let pause = Pause { by: "op".into(), reason: n.to_string(), at_ms: n };
        let pause = (n % 2 == 0 || n == 99).then_some(&pause);
        inside.store.set_paused(&key("nightly"), pause).await.unwrap();
        inside.app.board().look(&key("nightly")).await.unwrap();
    }
    let pause = Pause { by: "op".into(), reason: "the last".into(), at_ms: 0 };
    inside.store.set_paused(&key("nightly"), None).await.unwrap();
    inside.store.set_paused(&key("nightly"), Some(&pause)).await.unwrap();
    inside.app.board().look(&key("nightly")).await.unwrap();
    let mut heard = 0;
    loop {
        heard += 1;
        if hearer.expect("election").await.data["paused"]["reason"] == "the last" {
            break;
        }
    }
    assert!(heard <= 16, "{heard} updates were kept for a slow hearer");
}

#[tokio::test]
async fn an_election_that_is_yet_to_come_may_be_watched() {
    let inside = inside();
    let mut hearer = watch(&inside, "/v1/elections/nightly/watch", None).await;
    let mut wide = watch(&inside, "/v1/watch", None).await;
    let mut other = watch(&inside, "/v1/watch?namespace=other", None).await;
    stand(inside.store.as_ref(), "web-1", "nightly", 0).await;
    assert_eq!(hearer.expect("election").await.data["candidates"][0]["id"], "web-1");
    assert_eq!(wide.expect("election").await.data["name"], "nightly");
    inside.app.board().close();
    assert!(other.next().await.is_none(), "another namespace was heard");
}

#[tokio::test]
async fn streams_end_with_the_server() {
    let inside = inside();
    let mut hearers = Vec::new();
    for _ in 0..100 {
        hearers.push(watch(&inside, "/v1/elections/nightly/watch", None).await);
        hearers.push(watch(&inside, "/v1/watch", None).await);
    }
    inside.app.board().close();
    for mut hearer in hearers {
        assert!(hearer.next().await.is_none());
    }
    inside.get("/v1/elections/nightly/watch").await.problem(503, "closing", None);
}

#[tokio::test]
async fn whoever_watches_a_queue_is_told_what_stands_in_it() {
    let inside = inside();
    let mut hearer = watch(&inside, "/v1/queues/mail/watch", None).await;
    for n in 1..=2 {
        inside.post("/v1/queues/mail/tasks", json!({"kind": "welcome"})).await.of(201);
        let event = hearer.expect("queue").await;
        assert_eq!((&event.data["name"], &event.data["counts"]["ready"]), (&json!("mail"), &json!(n)));
    }
    // Others' tasks are no news here.
    inside.post("/v1/queues/other/tasks", json!({})).await.of(201);
    inside.post("/v1/queues/mail/claim", json!({"worker": "w"})).await.of(200);
    let event = hearer.expect("queue").await;
    assert_eq!(event.data["counts"]["claimed"], 1);
    inside.post("/v1/queues/mail/pause", json!({})).await.of(200);
    assert_eq!(hearer.expect("queue").await.data["paused"]["by"], "local");
}

/// How many elections `many` makes: more than fit into one piece of a stream.
const MANY: usize = 400;

async fn many(inside: &Inside) {
    for n in 0..MANY {
        stand(inside.store.as_ref(), "web-1", &format!("e{n:03}"), 0).await;
    }
    inside.app.board().look_at_all().await.unwrap();
}

/// All elections were queued for each watcher at once: megabytes for each, whether it read them or not.
#[tokio::test]
async fn an_unread_watch_costs_one_piece_however_many_elections_there_are() {
    let inside = inside();
    many(&inside).await;
    let mut hearers = Vec::new();
    for _ in 0..20 {
        let mut hearer = watch(&inside, "/v1/watch", None).await;
        // The greeting, and the first piece.
        for _ in 0..2 {
            hearer.body.next().await.expect("a piece").expect("sound");
        }
        hearers.push(hearer);
    }
    let unread = inside.app.unread_bytes("local");
    assert!(unread <= hearers.len() * 32 * 1024, "{unread} bytes are kept for {} watchers", hearers.len());
    drop(hearers);
    assert_eq!(inside.app.unread_bytes("local"), 0, "nothing is kept for those who left");
    let mut hearer = watch(&inside, "/v1/watch", None).await;
    let mut heard = Vec::new();
    for _ in 0..MANY {
        heard.push(hearer.expect("election").await.data["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(heard, (0..MANY).map(|n| format!("e{n:03}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_changes_while_a_watch_is_told_how_things_stand_is_told_once_and_in_order() {
    let inside = inside();
    many(&inside).await;
    let mut hearer = watch(&inside, "/v1/watch", None).await;
    assert_eq!(hearer.expect("election").await.data["name"], "e000");
    // One that was told already, and one that is told later.
    let last = format!("e{:03}", MANY - 1);
    let mut tokens = Vec::new();
    for name in ["e000", last.as_str()] {
        let session = stand(inside.store.as_ref(), "web-2", name, 1).await;
        tokens.push(take(inside.store.as_ref(), &session, name).await.as_u64());
        inside.app.board().look(&key(name)).await.unwrap();
    }
    let (mut leaders, mut terms) = (Vec::new(), Vec::new());
    while leaders.len() < 2 || terms.len() < 2 {
        let event = hearer.next().await.expect("the stream goes on");
        let name = event.data[if event.name == "term" { "election" } else { "name" }].as_str().unwrap();
        match (event.name.as_str(), name) {
            ("term", _) => terms.push((name.to_owned(), event.data["token"].as_u64().unwrap())),
            (_, "e000") => leaders.push(event.data["leader"].clone()),
            (_, name) if name == last => leaders.push(event.data["leader"].clone()),
            _ => {}
        }
    }
    assert_eq!(leaders, [json!("web-2"), json!("web-2")], "nothing older was told after it");
    assert_eq!(terms, [("e000".to_owned(), tokens[0]), (last, tokens[1])]);
}
