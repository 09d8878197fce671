//! Topics, what is published to them, groups and how they are set.

use serde_json::{Value, json};

use super::{GROUP, delete, publish_each, pull, put, with_topic};
use crate::support::{Inside, inside};

#[tokio::test]
async fn a_topic_is_made_set_shown_and_deleted() {
    let inside = inside();
    let made = put(&inside, "/v1/topics/orders", json!({"slots": 4, "keep_ms": 1000})).await.of(201);
    assert_eq!((&made["name"], &made["settings"]["slots"]), (&json!("orders"), &json!(4)));
    let again = put(&inside, "/v1/topics/orders", json!({"slots": 4, "keep_ms": 2000})).await.of(200);
    assert_eq!(again["settings"]["keep_ms"], 2000);
    let again = put(&inside, "/v1/topics/orders", json!({"keep_ms": 3000})).await.of(200);
    assert_eq!((&again["settings"]["keep_ms"], &again["settings"]["slots"]), (&json!(3000), &json!(4)));
    let other = put(&inside, "/v1/topics/orders", json!({"slots": 5})).await;
    other.problem(409, "slots-fixed", Some("slots"));
    put(&inside, "/v1/topics/a", json!({"slots": 0})).await.problem(422, "unfit", Some("slots"));
    put(&inside, "/v1/topics/a", json!({"keep_ms": 5, "keep_unread_ms": 4})).await.problem(
        422,
        "unfit",
        Some("keep_unread_ms"),
    );
    put(&inside, "/v1/topics/a", json!({"colour": 0})).await.problem(422, "unfit", Some("colour"));
    put(&inside, "/v1/topics/b?namespace=other", json!({})).await.of(201);
    let list = inside.get("/v1/topics?limit=1").await.of(200);
    assert_eq!((&list["topics"][0]["name"], &list["next"]), (&json!("orders"), &json!("default/orders")));
    let list = inside.get("/v1/topics?limit=1&after=default/orders").await.of(200);
    assert_eq!((&list["topics"][0]["name"], &list["next"]), (&json!("b"), &Value::Null));
    let ends = inside.get("/v1/topics/orders/ends").await.of(200);
    assert_eq!(ends["slots"].as_array().unwrap().len(), 4);
    delete(&inside, "/v1/topics/orders").await.of(204);
    delete(&inside, "/v1/topics/orders").await.problem(404, "no-such-topic", Some("topic"));
    inside.get("/v1/topics/orders").await.problem(404, "no-such-topic", Some("topic"));
    inside.get("/v1/topics/orders/ends").await.problem(404, "no-such-topic", Some("topic"));
    let deeds = inside.store.deeds(None, None, 9).await.unwrap();
    let actions: Vec<_> = deeds.iter().rev().map(|deed| deed.action.as_str()).collect();
    assert_eq!(actions, ["topic.set", "topic.set", "topic.set", "topic.set", "topic.delete"]);
}

#[tokio::test]
async fn events_are_published_as_they_are_and_under_a_key_only_once() {
    let inside = with_topic(1).await;
    let text = r#"{"type": "paid", "key": "k", "payload": {"n":  12345678901234567890.25}, "headers": {"trace": "1"}, "idempotency_key": "i-1"}"#;
    let first = inside.post_text("/v1/topics/orders/events", text).await.of(201);
    assert_eq!(first["new"], true);
    let again = inside.post_text("/v1/topics/orders/events", text).await.of(200);
    assert_eq!(again, json!({"id": first["id"], "slot": 0, "new": false}));
    let answer = inside.get(&format!("/v1/topics/orders/events/{}", first["id"])).await;
    let shown = String::from_utf8(answer.bytes.clone()).unwrap();
    assert!(shown.contains(r#""payload":{"n":  12345678901234567890.25}"#), "as it was: {shown}");
    let many = json!({"events": [{"type": "a", "payload_base64": "AP8="}, {"type": "b"}]});
    let many = inside.post("/v1/topics/orders/events", many).await.of(201);
    assert_eq!(many["events"].as_array().unwrap().len(), 2);
    let read = inside.post("/v1/topics/orders/read", json!({"after": [[0, 0]]})).await.of(200);
    let kinds: Vec<_> =
        read["events"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds, ["paid", "a", "b"]);
    assert_eq!(read["events"][1]["payload_base64"], "AP8=");
    let after = read["events"][0]["position"].as_u64().unwrap();
    let read =
        inside.post("/v1/topics/orders/read", json!({"after": [[0, after]], "limit": 1})).await.of(200);
    // What was published together is never cut.
    assert_eq!(read["events"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_makes_no_sense_names_the_field() {
    let inside = with_topic(1).await;
    let p = "/v1/topics/orders/events";
    inside.post(p, json!({"events": []})).await.problem(422, "unfit", Some("events"));
    inside.post(p, json!({"payload": 1})).await.problem(422, "unfit", Some("type"));
    inside.post(p, json!({"type": "a", "key": ""})).await.problem(422, "unfit", Some("key"));
    inside
        .post(p, json!({"type": "a", "payload": 1, "payload_base64": ""}))
        .await
        .problem(422, "unfit", None);
    let bad = json!({"events": [{"type": "a"}, {"type": "a", "idempotency_key": "\n"}]});
    inside.post(p, bad).await.problem(422, "unfit", Some("events[1].idempotency_key"));
    let unknown = inside.post("/v1/topics/none/events", json!({"type": "a"})).await;
    assert!(String::from_utf8_lossy(&unknown.bytes).contains("tenure events topics create none"));
    unknown.problem(404, "no-such-topic", Some("topic"));
    put(&inside, "/v1/topics/orders", json!({"slots": 1, "max_bytes": 4})).await.of(200);
    inside.post(p, json!({"type": "a", "payload": "12345"})).await.problem(
        422,
        "refused-by-store",
        Some("payload"),
    );
    inside.get("/v1/topics/orders/events/7").await.problem(404, "no-such-event", Some("event"));
    inside.get("/v1/topics/none/events/7").await.problem(404, "no-such-topic", Some("topic"));
    let r = "/v1/topics/orders/read";
    inside.post(r, json!({"after": [[0, 0]], "limit": 0})).await.problem(422, "unfit", Some("limit"));
    inside.post(r, json!({"after": [[0, u64::MAX]]})).await.problem(422, "unfit", Some("after"));
    inside.post("/v1/topics/none/read", json!({"after": [[0, 0]]})).await.problem(
        404,
        "no-such-topic",
        Some("topic"),
    );
    inside.get(GROUP).await.problem(404, "no-such-group", Some("group"));
    put(&inside, GROUP, json!({"max_attempts": 0})).await.problem(422, "unfit", Some("max_attempts"));
    put(&inside, GROUP, json!({"from": {"time": -1}})).await.problem(422, "unfit", Some("from"));
    put(&inside, "/v1/topics/none/groups/g", json!({})).await.problem(404, "no-such-topic", Some("topic"));
    for (word, body) in [("pause", json!({})), ("reset", json!({"to": "earliest"})), ("resume", json!({}))] {
        inside.post(&format!("{GROUP}/{word}"), body).await.problem(404, "no-such-group", Some("group"));
    }
    inside.get(&format!("{GROUP}/aside")).await.problem(404, "no-such-group", Some("group"));
    let pull = format!("{GROUP}/pull");
    inside.post(&pull, json!({"member": ""})).await.problem(422, "unfit", Some("member"));
    inside.post(&pull, json!({"member": "m", "max": 0})).await.problem(422, "unfit", Some("max"));
    inside.post(&pull, json!({"member": "m", "lease_ms": 1})).await.problem(422, "unfit", Some("lease_ms"));
    let nobody = json!({"member": "m", "session": "0123456789abcdef0123456789abcdef"});
    inside.post(&pull, nobody).await.problem(410, "session-gone", Some("session"));
    inside.post("/v1/topics/none/groups/g/pull", json!({"member": "m"})).await.problem(
        404,
        "no-such-topic",
        Some("topic"),
    );
}

#[tokio::test]
async fn a_group_is_set_shown_paused_moved_and_deleted() {
    let inside = with_topic(2).await;
    publish_each(&inside, &["a", "b", "c", "d"]).await;
    let made = put(&inside, GROUP, json!({"max_attempts": 3, "from": "latest"})).await.of(201);
    assert_eq!(made["settings"]["max_attempts"], 3);
    assert!(made["slots"].as_array().unwrap().iter().all(|slot| slot["lag"] == 0));
    put(&inside, GROUP, json!({"max_attempts": 4, "from": "earliest"})).await.of(200);
    let dry =
        inside.post(&format!("{GROUP}/reset"), json!({"to": "earliest", "dry_run": true})).await.of(200);
    assert_eq!(dry["slots"].as_array().unwrap().len(), 2);
    let lag = |view: &Value| -> u64 {
        view["slots"].as_array().unwrap().iter().map(|slot| slot["lag"].as_u64().unwrap()).sum()
    };
    assert_eq!(lag(&inside.get(GROUP).await.of(200)), 0, "nothing was changed");
    inside.post(&format!("{GROUP}/reset"), json!({"to": "earliest"})).await.of(200);
    let shown = inside.get(GROUP).await.of(200);
    assert_eq!(lag(&shown), 4);
    let slot = &shown["slots"][0];
    assert!(slot["end"].is_u64() && slot["position"] == 0 && slot["holder"].is_null(), "{slot}");
    inside.post(&format!("{GROUP}/reset"), json!({"to": "earliest", "slot": 9})).await.problem(
        422,
        "refused-by-store",
        Some("slot"),
    );
    let pause = format!("{GROUP}/pause");
    assert_eq!(inside.post(&pause, json!({"reason": "moving"})).await.of(200)["changed"], true);
    assert_eq!(inside.post(&pause, json!({})).await.of(200)["changed"], false);
    let refused = inside.post(&format!("{GROUP}/pull"), json!({"member": "m"})).await;
    assert!(String::from_utf8_lossy(&refused.bytes).contains("local has paused orders/mailer: moving"));
    refused.problem(409, "paused", Some("group"));
    assert_eq!(inside.post(&format!("{GROUP}/resume"), json!({})).await.of(200)["changed"], true);
    let groups = inside.get("/v1/groups?topic=orders").await.of(200);
    assert_eq!((&groups["groups"][0]["name"], &groups["next"]), (&json!("mailer"), &Value::Null));
    let none = json!([]);
    assert_eq!(groups["groups"][0]["members"], none, "who was refused has not joined");
    pull(&inside, json!({"member": "m"})).await;
    let groups = inside.get("/v1/groups?topic=orders").await.of(200);
    // Somebody joined to pull, and lives.
    delete(&inside, GROUP).await.problem(409, "group-in-use", Some("group"));
    delete(&inside, "/v1/topics/orders").await.problem(409, "topic-in-use", Some("topic"));
    let session = groups["groups"][0]["members"][0]["session"].as_str().unwrap();
    delete(&inside, &format!("/v1/sessions/{session}")).await.of(204);
    delete(&inside, GROUP).await.of(204);
    delete(&inside, GROUP).await.problem(404, "no-such-group", Some("group"));
    let deeds = inside.store.deeds(None, None, 99).await.unwrap();
    let actions: Vec<_> = deeds.iter().rev().map(|deed| deed.action.as_str()).collect();
    let expected =
        ["topic.set", "group.set", "group.set", "group.reset", "group.pause", "group.resume", "group.delete"];
    assert_eq!(actions, expected);
}

#[tokio::test]
async fn a_push_shows_the_secret_that_it_made_once() {
    let inside = with_topic(1).await;
    let push = format!("{GROUP}/push");
    let there = json!({"url": "https://example.org/hooks?token=secret", "timeout_ms": 500});
    put(&inside, &push, there.clone()).await.problem(404, "no-such-group", Some("group"));
    put(&inside, GROUP, json!({})).await.of(201);
    let set = put(&inside, &push, there).await.of(200);
    let secret = set["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() == 6 + 44, "{secret}");
    let shown = inside.get(GROUP).await;
    assert!(!String::from_utf8_lossy(&shown.bytes).contains(&secret));
    assert_eq!(shown.of(200)["push"], json!({"url": "https://example.org/hooks?…", "timeout_ms": 500}));
    let listed = inside.get("/v1/groups").await.of(200);
    assert_eq!(
        listed["groups"][0]["push"]["url"], "https://example.org/hooks?…",
        "the query may be a secret"
    );
    let secret_of = async |inside: &Inside| inside.store.pushes().await.unwrap()[0].1.secret.clone();
    // Whoever changes something else does not break the receiver.
    let slower = json!({"url": "https://example.org/hooks?token=secret", "timeout_ms": 900});
    assert_eq!(put(&inside, &push, slower).await.of(200)["secret"], Value::Null);
    assert_eq!(secret_of(&inside).await, secret, "it stays as it is");
    let rotate = json!({"url": "https://example.org/", "rotate": true});
    let rotated = put(&inside, &push, rotate).await.of(200)["secret"].as_str().unwrap().to_owned();
    assert_ne!(rotated, secret);
    assert_eq!(secret_of(&inside).await, rotated);
    let given = json!({"url": "https://example.org/", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"});
    assert_eq!(put(&inside, &push, given).await.of(200)["secret"], Value::Null);
    let both = json!({"url": "https://example.org/", "secret": "0123456789abcdef", "rotate": true});
    put(&inside, &push, both).await.problem(422, "unfit", Some("rotate"));
    for (field, value) in [
        ("url", json!("ftp://example.org/")),
        ("url", json!("https:///x")),
        ("url", json!("http://127.0.0.1:8368/v1/topics")),
        ("url", json!("http://169.254.169.254/latest")),
        ("url", json!("http://[::ffff:10.0.0.5]/")),
        ("url", json!("https://user:pass@example.org/")),
        ("secret", json!("short")),
        ("secret", json!("whsec_%%%%%%%%%%%%")),
        ("timeout_ms", json!(0)),
    ] {
        let mut bad = json!({"url": "https://example.org/"});
        bad[field] = value;
        put(&inside, &push, bad).await.problem(422, "unfit", Some(field));
    }
    // Whoever read with them would get a part of the events, and the address the others.
    inside.post(&format!("{GROUP}/pull"), json!({"member": "m"})).await.problem(409, "pushed", Some("group"));
    delete(&inside, &push).await.of(204);
    inside.post(&format!("{GROUP}/pull"), json!({"member": "m"})).await.of(200);
    assert_eq!(inside.get(GROUP).await.of(200)["push"], Value::Null);
    let deeds = inside.store.deeds(None, None, 9).await.unwrap();
    assert!(
        deeds.iter().all(|deed| !deed.detail.contains("secret") && !deed.detail.contains("whsec_")),
        "{deeds:?}"
    );
    assert_eq!(deeds[0].action, "push.unset");
}
