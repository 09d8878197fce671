//! Events over plain HTTP: topics, publishing, groups, and what fails.

use std::time::Duration;

use axum::body::Body;
use http::{Method, Request};
use serde_json::{Value, json};

use super::support::{Answer, Inside, inside};

async fn send(inside: &Inside, method: Method, path: &str, body: Option<Value>) -> Answer {
    let request = Request::builder().method(method).uri(path).header("host", "localhost");
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    inside.send(request.unwrap()).await
}

async fn put(inside: &Inside, path: &str, body: Value) -> Answer {
    send(inside, Method::PUT, path, Some(body)).await
}

async fn delete(inside: &Inside, path: &str) -> Answer {
    send(inside, Method::DELETE, path, None).await
}

/// A server with a topic of so many slots.
async fn with_topic(slots: u32) -> Inside {
    let inside = inside();
    put(&inside, "/v1/topics/orders", json!({"slots": slots})).await.of(201);
    inside
}

/// Publishes events of these keys; their numbers. What they carry is their place.
async fn publish(inside: &Inside, keys: &[&str]) -> Vec<u64> {
    let events: Vec<_> =
        keys.iter().enumerate().map(|(n, key)| json!({"type": "t", "key": key, "payload": n})).collect();
    let published = inside.post("/v1/topics/orders/events", json!({"events": events})).await.of(201);
    published["events"].as_array().unwrap().iter().map(|one| one["id"].as_u64().unwrap()).collect()
}

/// Publishes events one by one, each a unit of its own.
async fn publish_each(inside: &Inside, keys: &[&str]) -> Vec<u64> {
    let mut ids = Vec::new();
    for key in keys {
        ids.extend(publish(inside, &[key]).await);
    }
    ids
}

const GROUP: &str = "/v1/topics/orders/groups/mailer";

async fn pull(inside: &Inside, body: Value) -> Value {
    inside.post(&format!("{GROUP}/pull"), body).await.of(200)
}

fn ids(pulled: &Value) -> Vec<u64> {
    pulled["events"].as_array().unwrap().iter().map(|event| event["id"].as_u64().unwrap()).collect()
}

async fn ack(inside: &Inside, pulled: &Value) -> Value {
    let body = json!({"session": pulled["session"], "shares": pulled["shares"]});
    inside.post(&format!("{GROUP}/ack"), body).await.of(200)
}

async fn fail(inside: &Inside, pulled: &Value, event: usize, more: Value) -> Answer {
    let event = &pulled["events"][event];
    let mut body = json!({
        "session": pulled["session"], "slot": event["slot"], "token": event["token"],
        "position": event["position"], "event": event["id"], "error": "no",
    });
    more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
    inside.post(&format!("{GROUP}/nack"), body).await
}

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
async fn what_is_pulled_comes_again_until_it_is_acknowledged() {
    let inside = with_topic(4).await;
    let published = publish_each(&inside, &["a", "b", "a", "c"]).await;
    let first = pull(&inside, json!({"member": "m-1"})).await;
    assert_eq!(first["slots"].as_array().unwrap().len(), 4, "alone, it has all of them");
    let mut seen = ids(&first);
    seen.sort_unstable();
    assert_eq!(seen, published);
    assert!(first["events"].as_array().unwrap().iter().all(|event| event["attempt"] == 1));
    let again = pull(&inside, json!({"member": "m-1", "session": first["session"]})).await;
    assert_eq!(ids(&again), ids(&first));
    assert_eq!(again["shares"], first["shares"]);
    let acked = ack(&inside, &first).await;
    assert_eq!(acked["acked"].as_array().unwrap().len(), first["shares"].as_array().unwrap().len());
    assert_eq!(acked["stale"], json!([]));
    // To say it again is no mistake.
    assert_eq!(ack(&inside, &first).await, acked);
    assert_eq!(ids(&pull(&inside, json!({"member": "m-1", "session": first["session"]})).await), [0; 0]);
    // What is not there yet is not acknowledged.
    let ahead = json!({"shares": [{"slot": 0, "token": first["events"][0]["token"], "position": 1_000_000}]});
    inside.post(&format!("{GROUP}/ack"), ahead).await.problem(422, "unfit", Some("position"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_waits_and_is_woken_by_what_is_published() {
    let inside = with_topic(8).await;
    let waiting = {
        let inside = inside.clone();
        tokio::spawn(async move { pull(&inside, json!({"member": "m", "wait_ms": 60_000})).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let published = publish(&inside, &["a"]).await;
    assert_eq!(ids(&waiting.await.unwrap()), published);
}

#[tokio::test]
async fn members_share_the_slots_and_who_has_lost_one_says_nothing_of_it_any_more() {
    let inside = with_topic(4).await;
    publish_each(&inside, &["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    let first = pull(&inside, json!({"member": "m-1"})).await;
    // The second waits for what is its own; the first gives it up with its next pull.
    let second = pull(&inside, json!({"member": "m-2"})).await;
    assert_eq!(second["slots"], json!([]));
    let first_again = pull(&inside, json!({"member": "m-1", "session": first["session"]})).await;
    assert_eq!(first_again["slots"].as_array().unwrap().len(), 2);
    let second = pull(&inside, json!({"member": "m-2", "session": second["session"]})).await;
    assert_eq!(second["slots"].as_array().unwrap().len(), 2);
    // What the first had pulled of them is the second's now.
    let acked = ack(&inside, &first).await;
    let moved = second["slots"].as_array().unwrap();
    assert!(acked["stale"].as_array().unwrap().iter().all(|slot| moved.contains(slot)), "{acked} {moved:?}");
    assert!(!acked["stale"].as_array().unwrap().is_empty());
    assert!(acked["acked"].as_array().unwrap().iter().all(|slot| !moved.contains(slot)));
    let lost = first["events"].as_array().unwrap().iter().position(|event| moved.contains(&event["slot"]));
    fail(&inside, &first, lost.unwrap(), json!({})).await.problem(409, "share-lost", Some("token"));
    assert!(!ids(&second).is_empty());
    // A name that comes back gets back what it had.
    delete(&inside, &format!("/v1/sessions/{}", second["session"].as_str().unwrap())).await.of(204);
    let back = pull(&inside, json!({"member": "m-2"})).await;
    assert_eq!(back["slots"], second["slots"]);
}

#[tokio::test]
async fn an_event_that_fails_holds_back_its_key_and_no_other() {
    let inside = with_topic(1).await;
    let n = publish_each(&inside, &["a", "b", "a", "b", "c"]).await;
    put(&inside, GROUP, json!({"max_attempts": 3})).await.of(201);
    let pulled = pull(&inside, json!({"member": "m"})).await;
    assert_eq!(ids(&pulled), n);
    let session = pulled["session"].clone();
    // The first fails; what was pulled after it comes again, but for its key.
    let nacked = fail(&inside, &pulled, 0, json!({"after_ms": 0})).await.of(200);
    assert_eq!(
        (&nacked["attempts"], &nacked["dead"], &nacked["retry_in_ms"]),
        (&json!(1), &json!(false), &json!(0))
    );
    let again = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(
        ids(&again),
        [n[0], n[1], n[3], n[4]],
        "the first is due again, and the third waits behind it"
    );
    assert_eq!((&again["events"][0]["attempt"], &again["events"][1]["attempt"]), (&json!(2), &json!(1)));
    // It fails again, named in the acknowledgement of all the others.
    let mut shares = again["shares"].clone();
    shares[0]["failed"] = json!([{"event": n[0], "error": "still no", "after_ms": 60_000}]);
    inside.post(&format!("{GROUP}/ack"), json!({"session": session, "shares": shares})).await.of(200);
    let later = publish_each(&inside, &["a", "b"]).await;
    let rest = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&rest), [later[1]], "the key waits, and others flow");
    ack(&inside, &rest).await;
    let aside = inside.get(&format!("{GROUP}/aside")).await.of(200);
    let events = aside["events"].as_array().unwrap();
    let seen: Vec<_> = events.iter().map(|event| event["id"].as_u64().unwrap()).collect();
    assert_eq!(seen, [n[0], n[2], later[0]]);
    assert_eq!(
        (&events[0]["attempts"], &events[0]["error"], &events[0]["behind"]),
        (&json!(2), &json!("still no"), &json!(2))
    );
    let shown = inside.get(&format!("{GROUP}/aside/{}", n[2])).await.of(200);
    assert_eq!(
        (&shown["attempts"], &shown["error"], &shown["due_in_ms"]),
        (&json!(0), &json!(""), &Value::Null)
    );
    inside.get(&format!("{GROUP}/aside/{}", n[1])).await.problem(404, "not-aside", Some("event"));
}

#[tokio::test]
async fn a_dead_event_is_replayed_and_its_key_follows_in_order() {
    let inside = with_topic(1).await;
    let n = publish_each(&inside, &["a", "a", "b", "a"]).await;
    put(&inside, GROUP, json!({"max_attempts": 1})).await.of(201);
    let pulled = pull(&inside, json!({"member": "m"})).await;
    let session = pulled["session"].clone();
    let nacked = fail(&inside, &pulled, 0, json!({})).await.of(200);
    assert_eq!(nacked["dead"], true);
    let rest = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&rest), [n[2]]);
    ack(&inside, &rest).await;
    let dead = inside.get(&format!("{GROUP}/aside?dead=true")).await.of(200);
    assert_eq!((dead["events"].as_array().unwrap().len(), &dead["events"][0]["id"]), (1, &json!(n[0])));
    let view = inside.get(GROUP).await.of(200);
    assert_eq!((&view["dead"], &view["aside"]), (&json!(1), &json!(2)));
    let replay = format!("{GROUP}/dead/replay");
    inside.post(&replay, json!({})).await.problem(422, "unfit", Some("events"));
    let replayed = inside.post(&replay, json!({"events": [n[0], n[1]]})).await.of(200);
    assert_eq!(replayed["events"], json!([n[0]]), "the second is not dead");
    // One after the other, in order.
    for expected in [n[0], n[1], n[3]] {
        let pulled = pull(&inside, json!({"member": "m", "session": session})).await;
        assert_eq!(ids(&pulled), [expected]);
        ack(&inside, &pulled).await;
    }
    let more = publish_each(&inside, &["a", "a"]).await;
    let flows = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&flows), more, "the key flows again");
    // Dropped, those behind follow too.
    fail(&inside, &flows, 0, json!({"retry": false})).await.of(200);
    assert_eq!(ids(&pull(&inside, json!({"member": "m", "session": session})).await), [0; 0]);
    let dropped = inside.post(&format!("{GROUP}/dead/drop"), json!({"all": true})).await.of(200);
    assert_eq!((&dropped["events"], &dropped["more"]), (&json!([more[0]]), &json!(false)));
    assert_eq!(ids(&pull(&inside, json!({"member": "m", "session": session})).await), [more[1]]);
    let deeds = inside.store.deeds(None, None, 2).await.unwrap();
    let actions: Vec<_> = deeds.iter().map(|deed| (deed.action.as_str(), deed.target.as_str())).collect();
    assert_eq!(actions, [("dead.drop", "orders/mailer"), ("dead.replay", "orders/mailer")]);
}

#[tokio::test]
async fn of_what_was_published_together_nothing_is_passed_over_when_one_fails() {
    let inside = with_topic(1).await;
    // One unit: its position can not move to the middle of it.
    let n = publish(&inside, &["a", "b", "c", "b"]).await;
    let pulled = pull(&inside, json!({"member": "m"})).await;
    assert_eq!(ids(&pulled), n);
    fail(&inside, &pulled, 1, json!({"after_ms": 60_000})).await.of(200);
    let session = &pulled["session"];
    let rest = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(
        ids(&rest),
        [n[0], n[2]],
        "nothing was said of the first and the third, and the fourth waits behind the second"
    );
    ack(&inside, &rest).await;
    assert_eq!(ids(&pull(&inside, json!({"member": "m", "session": session})).await), [0; 0]);
    let aside = inside.get(&format!("{GROUP}/aside")).await.of(200);
    let seen: Vec<_> = aside["events"].as_array().unwrap().iter().map(|event| event["id"].clone()).collect();
    assert_eq!(seen, [json!(n[1]), json!(n[3])]);
}

#[tokio::test]
async fn what_is_acknowledged_in_spite_of_a_failure_before_it_comes_again() {
    let inside = with_topic(1).await;
    let n = publish_each(&inside, &["a", "a", "b"]).await;
    let pulled = pull(&inside, json!({"member": "m"})).await;
    fail(&inside, &pulled, 0, json!({"after_ms": 0})).await.of(200);
    // The client went on with the key all the same: that counts as not done, or its order would be lost.
    ack(&inside, &pulled).await;
    let session = &pulled["session"];
    for expected in [n[0], n[1]] {
        let pulled = pull(&inside, json!({"member": "m", "session": session})).await;
        assert_eq!(ids(&pulled), [expected]);
        ack(&inside, &pulled).await;
    }
    assert_eq!(ids(&pull(&inside, json!({"member": "m", "session": session})).await), [0; 0]);
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

#[tokio::test]
async fn what_pull_withheld_is_not_lost_when_its_key_waits_no_more() {
    let inside = with_topic(1).await;
    put(&inside, GROUP, json!({"max_attempts": 1})).await.of(201);
    let first = publish_each(&inside, &["k"]).await;
    let pulled = pull(&inside, json!({"member": "m"})).await;
    let session = pulled["session"].clone();
    fail(&inside, &pulled, 0, json!({})).await.of(200);
    let n = publish_each(&inside, &["k", "j", "k"]).await;
    let pulled = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&pulled), [n[1]], "the key is parked");
    // Meanwhile somebody drops what it waits for; and only then what was pulled is acknowledged.
    let dropped = inside.post(&format!("{GROUP}/dead/drop"), json!({"events": first})).await.of(200);
    assert_eq!(dropped["events"], json!(first));
    ack(&inside, &pulled).await;
    for expected in [n[0], n[2]] {
        let pulled = pull(&inside, json!({"member": "m", "session": session})).await;
        assert_eq!(ids(&pulled), [expected]);
        ack(&inside, &pulled).await;
    }
    assert_eq!(ids(&pull(&inside, json!({"member": "m", "session": session})).await), [0; 0]);
}

#[tokio::test]
async fn a_failure_that_is_named_where_it_is_not_counts_for_nothing() {
    let inside = with_topic(4).await;
    publish_each(&inside, &["a", "b", "c", "d", "e", "f"]).await;
    let pulled = pull(&inside, json!({"member": "m"})).await;
    let session = &pulled["session"];
    let shares = pulled["shares"].as_array().unwrap();
    assert!(shares.len() > 1, "{shares:?}");
    let in_last = |event: &&Value| event["slot"] == shares[shares.len() - 1]["slot"];
    let event = pulled["events"].as_array().unwrap().iter().find(in_last).unwrap()["id"].clone();
    let to = format!("{GROUP}/ack");
    for wrong in [event.clone(), json!(1_000_000)] {
        let mut said = json!({"session": session, "shares": shares});
        said["shares"][0]["failed"] = json!([{"event": wrong, "error": "no"}]);
        inside.post(&to, said).await.problem(422, "unfit", Some("failed"));
    }
    let again = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&again), ids(&pulled), "nothing was acknowledged");
    let mut said = json!({"session": session, "shares": shares});
    said["shares"][shares.len() - 1]["failed"] = json!([{"event": event, "error": "no", "after_ms": 60_000}]);
    for _ in 0..2 {
        // The second time because the answer was lost.
        let acked = inside.post(&to, said.clone()).await.of(200);
        assert_eq!(acked["acked"].as_array().unwrap().len(), shares.len());
    }
    let aside = inside.get(&format!("{GROUP}/aside")).await.of(200);
    let seen: Vec<_> = aside["events"].as_array().unwrap().iter().map(|event| &event["id"]).collect();
    assert_eq!(seen, [&event]);
    assert_eq!(aside["events"][0]["attempts"], 1, "it failed once");
}

#[tokio::test]
async fn failures_are_told_in_any_order_and_lose_nothing() {
    let inside = with_topic(1).await;
    let n = publish_each(&inside, &["a", "b", "c"]).await;
    let pulled = pull(&inside, json!({"member": "m"})).await;
    for event in [2, 0, 0] {
        let nacked = fail(&inside, &pulled, event, json!({"after_ms": 60_000})).await.of(200);
        assert_eq!(nacked["attempts"], 1, "said again, it counts once: {nacked}");
    }
    let session = &pulled["session"];
    let rest = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&rest), [n[1]], "of which nothing was said");
    ack(&inside, &pulled).await;
    assert_eq!(ids(&pull(&inside, json!({"member": "m", "session": session})).await), [0; 0]);
    let aside = inside.get(&format!("{GROUP}/aside")).await.of(200);
    let seen: Vec<_> = aside["events"].as_array().unwrap().iter().map(|event| event["id"].clone()).collect();
    assert_eq!(seen, [json!(n[0]), json!(n[2])]);
    fail(&inside, &pulled, 1, json!({})).await.problem(404, "no-such-event", Some("event"));
}

#[tokio::test]
async fn a_member_settles_no_dead_event() {
    let inside = with_topic(1).await;
    put(&inside, GROUP, json!({"max_attempts": 1})).await.of(201);
    let n = publish_each(&inside, &["a", "b"]).await;
    let pulled = pull(&inside, json!({"member": "m"})).await;
    fail(&inside, &pulled, 0, json!({})).await.of(200);
    let mut shares = pulled["shares"].clone();
    shares[0]["retried"] = json!([n[0]]);
    inside.post(&format!("{GROUP}/ack"), json!({"shares": shares})).await.of(200);
    assert_eq!(fail(&inside, &pulled, 0, json!({"after_ms": 0})).await.of(200)["dead"], true);
    // Nor by the way of libraries.
    let (slot, token) = (&shares[0]["slot"], &shares[0]["token"]);
    let group = json!({"topic": {"namespace": "default", "name": "orders"}, "name": "mailer"});
    let settled = json!({"group": group, "slot": slot, "token": token, "settled": [[n[0], "done"]]});
    inside.post(&format!("{GROUP}/commit"), json!({"commits": [settled]})).await.of(200);
    let dead = inside.get(&format!("{GROUP}/aside?dead=true")).await.of(200);
    assert_eq!(dead["events"][0]["id"], n[0], "{dead}");
}

#[tokio::test]
async fn an_ack_reads_what_was_pulled_and_not_a_whole_topic() {
    let inside = with_topic(1).await;
    for _ in 0..3 {
        publish(&inside, &["k"; 900]).await;
    }
    let pulled = pull(&inside, json!({"member": "m", "max": 1})).await;
    let end = inside.get("/v1/topics/orders/ends").await.of(200)["slots"][0]["latest"].clone();
    let token = pulled["shares"][0]["token"].as_u64().unwrap();
    let failed = json!([{"event": pulled["events"][0]["id"], "error": "no"}]);
    let share = |token: u64| json!({"slot": 0, "token": token, "position": end, "failed": failed});
    let to = format!("{GROUP}/ack");
    let stale = inside.post(&to, json!({"shares": [share(token + 1)]})).await.of(200);
    assert_eq!((&stale["acked"], &stale["stale"]), (&json!([]), &json!([0])));
    inside.post(&to, json!({"shares": [share(token)]})).await.problem(422, "unfit", Some("position"));
    let again = pull(&inside, json!({"member": "m", "session": pulled["session"], "max": 1})).await;
    assert_eq!(again["shares"], pulled["shares"], "nothing was acknowledged");
}

#[tokio::test]
async fn a_pull_that_is_refused_leaves_nobody_behind() {
    let inside = with_topic(1).await;
    put(&inside, GROUP, json!({})).await.of(201);
    inside.post(&format!("{GROUP}/pause"), json!({})).await.of(200);
    let to = format!("{GROUP}/pull");
    inside.post(&to, json!({"member": "m"})).await.problem(409, "paused", Some("group"));
    inside.post("/v1/topics/none/groups/g/pull", json!({"member": "m"})).await.of(404);
    inside.post(&format!("{GROUP}/resume"), json!({})).await.of(200);
    inside.post(&to, json!({"member": ""})).await.problem(422, "unfit", Some("member"));
    let left = inside.store.sessions(None).await.unwrap();
    assert!(left.iter().all(|session| !session.live), "{left:?}");
    assert_eq!(inside.get(GROUP).await.of(200)["members"], json!([]));
}

#[tokio::test]
async fn the_scrape_shows_how_far_groups_lag_and_what_failed() {
    // What a process counts is counted for all tests together: nobody else has such a topic.
    let inside = inside();
    put(&inside, "/v1/topics/scraped", json!({"slots": 2})).await.of(201);
    put(&inside, "/v1/topics/scraped/groups/g", json!({"max_attempts": 1})).await.of(201);
    let events = json!({"events": [{"type": "a", "key": "k"}, {"type": "b", "key": "k"}]});
    inside.post("/v1/topics/scraped/events", events).await.of(201);
    let group = "/v1/topics/scraped/groups/g";
    let pulled = inside.post(&format!("{group}/pull"), json!({"member": "m"})).await.of(200);
    let event = &pulled["events"][0];
    let nack = json!({
        "slot": event["slot"], "token": event["token"], "position": event["position"], "event": event["id"], "error": "no",
    });
    inside.post(&format!("{group}/nack"), nack).await.of(200);
    // What waits behind it is set aside by the next pull.
    let again = json!({"member": "m", "session": pulled["session"]});
    assert_eq!(inside.post(&format!("{group}/pull"), again).await.of(200)["events"], json!([]));
    inside.post("/v1/topics/scraped/events", json!({"type": "c", "key": "k"})).await.of(201);
    let of = "{namespace=\"default\",topic=\"scraped\",group=\"g\"}";
    let text = loop {
        let answer = inside.get("/metrics").await;
        let text = String::from_utf8(answer.bytes).unwrap();
        if text.contains(&format!("tenure_group_lag_events{of} 1\n")) {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    for line in [
        format!("tenure_group_lag_exact{of} 1\n"),
        format!("tenure_group_dead{of} 1\n"),
        format!("tenure_group_aside{of} 1\n"),
        format!("tenure_group_members{of} 1\n"),
        format!("tenure_group_paused{of} 0\n"),
        "tenure_topic_events{namespace=\"default\",topic=\"scraped\"} 3\n".into(),
        "tenure_topic_blocked_seconds{namespace=\"default\",topic=\"scraped\"} 0\n".into(),
        "tenure_events_published_total{namespace=\"default\",topic=\"scraped\"} 3\n".into(),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
    assert!(text.contains(&format!("tenure_group_lag_seconds{of} 0")), "{text}");
}

/// Whoever pulls was in no figure but the lag.
#[tokio::test]
async fn the_scrape_counts_what_was_pulled_and_is_done_failed_or_refused() {
    let inside = inside();
    let group = "/v1/topics/counted/groups/g";
    put(&inside, "/v1/topics/counted", json!({"slots": 1})).await.of(201);
    put(&inside, group, json!({"max_attempts": 2})).await.of(201);
    for key in ["a", "b", "c", "d"] {
        inside.post("/v1/topics/counted/events", json!({"type": "t", "key": key})).await.of(201);
    }
    let pulled = inside.post(&format!("{group}/pull"), json!({"member": "m"})).await.of(200);
    let (session, events) = (&pulled["session"], &pulled["events"]);
    let mut ack = json!({"session": session, "shares": pulled["shares"]});
    ack["shares"][0]["failed"] = json!([
        {"event": events[1]["id"], "error": "no", "after_ms": 0},
        {"event": events[2]["id"], "error": "never", "retry": false},
    ]);
    inside.post(&format!("{group}/ack"), ack.clone()).await.of(200);
    // To say it again is no mistake, and counts for nothing.
    inside.post(&format!("{group}/ack"), ack.clone()).await.of(200);
    let again = json!({"member": "m", "session": session});
    let again = inside.post(&format!("{group}/pull"), again).await.of(200);
    assert_eq!(again["events"][0]["id"], events[1]["id"], "{again}");
    let done = json!({"session": session, "shares": again["shares"]});
    inside.post(&format!("{group}/ack"), done).await.of(200);
    ack["shares"][0]["token"] = json!(1_u64 << 50);
    let stale = inside.post(&format!("{group}/ack"), ack).await.of(200);
    assert_eq!(stale["stale"], json!([0]));
    let text = String::from_utf8(inside.get("/metrics").await.bytes).unwrap();
    let of = "{namespace=\"default\",topic=\"counted\",group=\"g\"}";
    for (name, count) in [
        ("tenure_events_consumed_total", 3),
        ("tenure_events_failed_total", 2),
        ("tenure_events_dead_total", 1),
        ("tenure_event_commits_stale_total", 1),
    ] {
        assert!(text.contains(&format!("{name}{of} {count}\n")), "{name} {count}\n{text}");
    }
}
