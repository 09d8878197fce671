//! Topics, publishing, and settings of groups.

use serde_json::{Value, json};

use super::{GROUP, delete, publish_each, pull, put, with_topic};
use crate::support::{TestApp, test_app};

#[tokio::test]
async fn a_topic_is_created_updated_read_and_deleted() {
    let app = test_app();
    let created =
        put(&app, "/v1/topics/orders", json!({"partitions": 4, "retention_ms": 1000})).await.of(201);
    assert_eq!((&created["name"], &created["settings"]["partitions"]), (&json!("orders"), &json!(4)));
    let again = put(&app, "/v1/topics/orders", json!({"partitions": 4, "retention_ms": 2000})).await.of(200);
    assert_eq!(again["settings"]["retention_ms"], 2000);
    let again = put(&app, "/v1/topics/orders", json!({"retention_ms": 3000})).await.of(200);
    assert_eq!(
        (&again["settings"]["retention_ms"], &again["settings"]["partitions"]),
        (&json!(3000), &json!(4))
    );
    let other = put(&app, "/v1/topics/orders", json!({"partitions": 5})).await;
    other.problem(409, "partitions-fixed", Some("partitions"));
    put(&app, "/v1/topics/a", json!({"partitions": 0})).await.problem(
        422,
        "invalid-value",
        Some("partitions"),
    );
    put(&app, "/v1/topics/a", json!({"retention_ms": 5, "unread_retention_ms": 4})).await.problem(
        422,
        "invalid-value",
        Some("unread_retention_ms"),
    );
    put(&app, "/v1/topics/a", json!({"colour": 0})).await.problem(422, "invalid-value", Some("colour"));
    put(&app, "/v1/topics/b?namespace=other", json!({})).await.of(201);
    let list = app.get("/v1/topics?limit=1").await.of(200);
    assert_eq!(
        (&list["topics"][0]["name"], &list["next_cursor"]),
        (&json!("orders"), &json!("default/orders"))
    );
    let list = app.get("/v1/topics?limit=1&cursor=default/orders").await.of(200);
    assert_eq!((&list["topics"][0]["name"], &list["next_cursor"]), (&json!("b"), &Value::Null));
    let offsets = app.get("/v1/topics/orders/offsets").await.of(200);
    assert_eq!(offsets["partitions"].as_array().unwrap().len(), 4);
    delete(&app, "/v1/topics/orders").await.of(204);
    delete(&app, "/v1/topics/orders").await.problem(404, "no-such-topic", Some("topic"));
    app.get("/v1/topics/orders").await.problem(404, "no-such-topic", Some("topic"));
    app.get("/v1/topics/orders/offsets").await.problem(404, "no-such-topic", Some("topic"));
    let entries = app.store.audit_entries(None, None, 9).await.unwrap();
    let actions: Vec<_> = entries.iter().rev().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["topic.set", "topic.set", "topic.set", "topic.set", "topic.delete"]);
}

#[tokio::test]
async fn events_keep_their_payload_text_and_an_idempotency_key_publishes_once() {
    let app = with_topic(1).await;
    let text = r#"{"type": "paid", "key": "k", "payload": {"n":  12345678901234567890.25}, "headers": {"trace": "1"}, "idempotency_key": "i-1"}"#;
    let first = app.post_text("/v1/topics/orders/events", text).await.of(201);
    assert_eq!(first["created"], true);
    let again = app.post_text("/v1/topics/orders/events", text).await.of(200);
    assert_eq!(again, json!({"id": first["id"], "partition": 0, "created": false}));
    let answer = app.get(&format!("/v1/topics/orders/events/{}", first["id"])).await;
    let shown = String::from_utf8(answer.bytes.clone()).unwrap();
    assert!(shown.contains(r#""payload":{"n":  12345678901234567890.25}"#), "unchanged: {shown}");
    let many = json!({"events": [{"type": "a", "payload_base64": "AP8="}, {"type": "b"}]});
    let many = app.post("/v1/topics/orders/events", many).await.of(201);
    assert_eq!(many["events"].as_array().unwrap().len(), 2);
    let read = app
        .post("/v1/topics/orders/events/read", json!({"after": [{"partition": 0, "offset": 0}]}))
        .await
        .of(200);
    let kinds: Vec<_> =
        read["events"].as_array().unwrap().iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds, ["paid", "a", "b"]);
    assert_eq!(read["events"][1]["payload_base64"], "AP8=");
    let after = read["events"][0]["offset"].as_u64().unwrap();
    let read = app
        .post(
            "/v1/topics/orders/events/read",
            json!({"after": [{"partition": 0, "offset": after}], "limit": 1}),
        )
        .await
        .of(200);
    // A commit batch is never split.
    assert_eq!(read["events"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn invalid_requests_name_the_field() {
    let app = with_topic(1).await;
    let p = "/v1/topics/orders/events";
    app.post(p, json!({"events": []})).await.problem(422, "invalid-value", Some("events"));
    app.post(p, json!({"payload": 1})).await.problem(422, "invalid-value", Some("type"));
    app.post(p, json!({"type": "a", "key": ""})).await.problem(422, "invalid-value", Some("key"));
    app.post(p, json!({"type": "a", "payload": 1, "payload_base64": ""})).await.problem(
        422,
        "invalid-value",
        None,
    );
    let bad = json!({"events": [{"type": "a"}, {"type": "a", "idempotency_key": "\n"}]});
    app.post(p, bad).await.problem(422, "invalid-value", Some("events[1].idempotency_key"));
    let unknown = app.post("/v1/topics/none/events", json!({"type": "a"})).await;
    assert!(String::from_utf8_lossy(&unknown.bytes).contains("tenure events topics create none"));
    unknown.problem(404, "no-such-topic", Some("topic"));
    put(&app, "/v1/topics/orders", json!({"partitions": 1, "max_payload_bytes": 4})).await.of(200);
    app.post(p, json!({"type": "a", "payload": "12345"})).await.problem(
        422,
        "rejected-by-store",
        Some("payload"),
    );
    app.get("/v1/topics/orders/events/7").await.problem(404, "no-such-event", Some("event"));
    app.get("/v1/topics/none/events/7").await.problem(404, "no-such-topic", Some("topic"));
    let r = "/v1/topics/orders/events/read";
    app.post(r, json!({"after": [{"partition": 0, "offset": 0}], "limit": 0})).await.problem(
        422,
        "invalid-value",
        Some("limit"),
    );
    app.post(r, json!({"after": [{"partition": 0, "offset": u64::MAX}]})).await.problem(
        422,
        "invalid-value",
        Some("after"),
    );
    app.post("/v1/topics/none/events/read", json!({"after": [{"partition": 0, "offset": 0}]})).await.problem(
        404,
        "no-such-topic",
        Some("topic"),
    );
    app.get(GROUP).await.problem(404, "no-such-group", Some("group"));
    put(&app, GROUP, json!({"max_attempts": 0})).await.problem(422, "invalid-value", Some("max_attempts"));
    put(&app, GROUP, json!({"from": {"published_at_ms": -1}})).await.problem(
        422,
        "invalid-value",
        Some("from"),
    );
    put(&app, "/v1/topics/none/groups/g", json!({})).await.problem(404, "no-such-topic", Some("topic"));
    for (word, body) in [("pause", json!({})), ("reset", json!({"to": "earliest"})), ("resume", json!({}))] {
        app.post(&format!("{GROUP}/{word}"), body).await.problem(404, "no-such-group", Some("group"));
    }
    app.get(&format!("{GROUP}/parked-events")).await.problem(404, "no-such-group", Some("group"));
    let pull = format!("{GROUP}/pull");
    app.post(&pull, json!({"member": ""})).await.problem(422, "invalid-value", Some("member"));
    app.post(&pull, json!({"member": "m", "limit": 0})).await.problem(422, "invalid-value", Some("limit"));
    app.post(&pull, json!({"member": "m", "lease_ms": 1})).await.problem(
        422,
        "invalid-value",
        Some("lease_ms"),
    );
    let unknown = json!({"member": "m", "session": "0123456789abcdef0123456789abcdef"});
    app.post(&pull, unknown).await.problem(410, "session-ended", Some("session"));
    app.post("/v1/topics/none/groups/g/pull", json!({"member": "m"})).await.problem(
        404,
        "no-such-topic",
        Some("topic"),
    );
}

#[tokio::test]
async fn a_group_is_created_paused_reset_and_deleted() {
    let app = with_topic(2).await;
    publish_each(&app, &["a", "b", "c", "d"]).await;
    let created = put(&app, GROUP, json!({"max_attempts": 3, "from": "latest"})).await.of(201);
    assert_eq!(created["settings"]["max_attempts"], 3);
    assert!(created["partitions"].as_array().unwrap().iter().all(|partition| partition["lag_events"] == 0));
    put(&app, GROUP, json!({"max_attempts": 4, "from": "earliest"})).await.of(200);
    let dry = app.post(&format!("{GROUP}/reset"), json!({"to": "earliest", "dry_run": true})).await.of(200);
    assert_eq!(dry["partitions"].as_array().unwrap().len(), 2);
    let lag = |view: &Value| -> u64 {
        view["partitions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|partition| partition["lag_events"].as_u64().unwrap())
            .sum()
    };
    assert_eq!(lag(&app.get(GROUP).await.of(200)), 0, "nothing was changed");
    app.post(&format!("{GROUP}/reset"), json!({"to": "earliest"})).await.of(200);
    let shown = app.get(GROUP).await.of(200);
    assert_eq!(lag(&shown), 4);
    let partition = &shown["partitions"][0];
    assert!(
        partition["end_offset"].is_u64()
            && partition["committed_offset"] == 0
            && partition["holder"].is_null(),
        "{partition}"
    );
    app.post(&format!("{GROUP}/reset"), json!({"to": "earliest", "partition": 9})).await.problem(
        422,
        "rejected-by-store",
        Some("partition"),
    );
    let pause = format!("{GROUP}/pause");
    assert_eq!(app.post(&pause, json!({"reason": "moving"})).await.of(200)["changed"], true);
    assert_eq!(app.post(&pause, json!({})).await.of(200)["changed"], false);
    let refused = app.post(&format!("{GROUP}/pull"), json!({"member": "m"})).await;
    assert!(String::from_utf8_lossy(&refused.bytes).contains("local paused orders/mailer: moving"));
    refused.problem(409, "paused", Some("group"));
    assert_eq!(app.post(&format!("{GROUP}/resume"), json!({})).await.of(200)["changed"], true);
    let groups = app.get("/v1/groups?topic=orders").await.of(200);
    assert_eq!((&groups["groups"][0]["name"], &groups["next_cursor"]), (&json!("mailer"), &Value::Null));
    let none = json!([]);
    assert_eq!(groups["groups"][0]["members"], none, "the rejected client has not joined");
    pull(&app, json!({"member": "m"})).await;
    let groups = app.get("/v1/groups?topic=orders").await.of(200);
    // The pulling member is live.
    delete(&app, GROUP).await.problem(409, "group-in-use", Some("group"));
    delete(&app, "/v1/topics/orders").await.problem(409, "topic-in-use", Some("topic"));
    let session = groups["groups"][0]["members"][0]["session"].as_str().unwrap();
    delete(&app, &format!("/v1/sessions/{session}")).await.of(204);
    delete(&app, GROUP).await.of(204);
    delete(&app, GROUP).await.problem(404, "no-such-group", Some("group"));
    let entries = app.store.audit_entries(None, None, 99).await.unwrap();
    let actions: Vec<_> = entries.iter().rev().map(|entry| entry.action.as_str()).collect();
    let expected =
        ["topic.set", "group.set", "group.set", "group.reset", "group.pause", "group.resume", "group.delete"];
    assert_eq!(actions, expected);
}

#[tokio::test]
async fn a_webhook_secret_is_shown_once() {
    let app = with_topic(1).await;
    let webhook = format!("{GROUP}/webhook");
    let there = json!({"url": "https://example.org/hooks?token=secret", "timeout_ms": 500});
    put(&app, &webhook, there.clone()).await.problem(404, "no-such-group", Some("group"));
    put(&app, GROUP, json!({})).await.of(201);
    let set = put(&app, &webhook, there).await.of(200);
    let secret = set["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() == 6 + 44, "{secret}");
    let shown = app.get(GROUP).await;
    assert!(!String::from_utf8_lossy(&shown.bytes).contains(&secret));
    assert_eq!(shown.of(200)["webhook"], json!({"url": "https://example.org/hooks?…", "timeout_ms": 500}));
    let listed = app.get("/v1/groups").await.of(200);
    assert_eq!(
        listed["groups"][0]["webhook"]["url"], "https://example.org/hooks?…",
        "the query may be a secret"
    );
    let secret_of = async |app: &TestApp| app.store.webhooks().await.unwrap()[0].1.secret.clone();
    // Changing another setting keeps the secret.
    let slower = json!({"url": "https://example.org/hooks?token=secret", "timeout_ms": 900});
    assert_eq!(put(&app, &webhook, slower).await.of(200)["secret"], Value::Null);
    assert_eq!(secret_of(&app).await, secret, "the secret stays");
    let rotate = json!({"url": "https://example.org/", "rotate_secret": true});
    let rotated = put(&app, &webhook, rotate).await.of(200)["secret"].as_str().unwrap().to_owned();
    assert_ne!(rotated, secret);
    assert_eq!(secret_of(&app).await, rotated);
    let given = json!({"url": "https://example.org/", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"});
    assert_eq!(put(&app, &webhook, given).await.of(200)["secret"], Value::Null);
    let both = json!({"url": "https://example.org/", "secret": "0123456789abcdef", "rotate_secret": true});
    put(&app, &webhook, both).await.problem(422, "invalid-value", Some("rotate_secret"));
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
        put(&app, &webhook, bad).await.problem(422, "invalid-value", Some(field));
    }
    // A member would get some events, and the webhook the others.
    app.post(&format!("{GROUP}/pull"), json!({"member": "m"})).await.problem(
        409,
        "group-has-webhook",
        Some("group"),
    );
    delete(&app, &webhook).await.of(204);
    app.post(&format!("{GROUP}/pull"), json!({"member": "m"})).await.of(200);
    assert_eq!(app.get(GROUP).await.of(200)["webhook"], Value::Null);
    let entries = app.store.audit_entries(None, None, 9).await.unwrap();
    assert!(
        entries.iter().all(|entry| !entry.detail.contains("secret") && !entry.detail.contains("whsec_")),
        "{entries:?}"
    );
    assert_eq!(entries[0].action, "webhook.delete");
}
