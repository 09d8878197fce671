//! Failed events, and the events that wait behind them.

use serde_json::{Value, json};

use super::{GROUP, ack, fail, ids, publish, publish_each, pull, put, with_topic};

#[tokio::test]
async fn a_failed_event_parks_only_its_key() {
    let app = with_topic(1).await;
    let n = publish_each(&app, &["a", "b", "a", "b", "c"]).await;
    put(&app, GROUP, json!({"max_attempts": 3})).await.of(201);
    let pulled = pull(&app, json!({"member": "m"})).await;
    assert_eq!(ids(&pulled), n);
    let session = pulled["session"].clone();
    // The first event fails; the others are pulled again, except those of its key.
    let nacked = fail(&app, &pulled, 0, json!({"retry_in_ms": 0})).await.of(200);
    assert_eq!(
        (&nacked["attempts"], &nacked["dead"], &nacked["retry_in_ms"]),
        (&json!(1), &json!(false), &json!(0))
    );
    let again = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(
        ids(&again),
        [n[0], n[1], n[3], n[4]],
        "the first is due again, and the third waits behind it"
    );
    assert_eq!((&again["events"][0]["attempt"], &again["events"][1]["attempt"]), (&json!(2), &json!(1)));
    // It fails again, reported in the acknowledgement of the others.
    let mut partitions = again["partitions"].clone();
    partitions[0]["failed"] = json!([{"event_id": n[0], "error": "still no", "retry_in_ms": 60_000}]);
    app.post(&format!("{GROUP}/ack"), json!({"session": session, "partitions": partitions})).await.of(200);
    let later = publish_each(&app, &["a", "b"]).await;
    let rest = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&rest), [later[1]], "the key is parked, and others continue");
    ack(&app, &rest).await;
    let parked = app.get(&format!("{GROUP}/parked-events")).await.of(200);
    let events = parked["events"].as_array().unwrap();
    let seen: Vec<_> = events.iter().map(|event| event["id"].as_u64().unwrap()).collect();
    assert_eq!(seen, [n[0], n[2], later[0]]);
    assert_eq!(
        (&events[0]["attempts"], &events[0]["last_error"], &events[0]["waiting_behind_count"]),
        (&json!(2), &json!("still no"), &json!(2))
    );
    let shown = app.get(&format!("{GROUP}/parked-events/{}", n[2])).await.of(200);
    assert_eq!(
        (&shown["attempts"], &shown["last_error"], &shown["retry_in_ms"]),
        (&json!(0), &json!(""), &Value::Null)
    );
    app.get(&format!("{GROUP}/parked-events/{}", n[1])).await.problem(404, "event-not-parked", Some("event"));
}

#[tokio::test]
async fn a_dead_letter_is_replayed_and_its_key_follows_in_order() {
    let app = with_topic(1).await;
    let n = publish_each(&app, &["a", "a", "b", "a"]).await;
    put(&app, GROUP, json!({"max_attempts": 1})).await.of(201);
    let pulled = pull(&app, json!({"member": "m"})).await;
    let session = pulled["session"].clone();
    let nacked = fail(&app, &pulled, 0, json!({})).await.of(200);
    assert_eq!(nacked["dead"], true);
    let rest = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&rest), [n[2]]);
    ack(&app, &rest).await;
    let dead = app.get(&format!("{GROUP}/parked-events?dead=true")).await.of(200);
    assert_eq!((dead["events"].as_array().unwrap().len(), &dead["events"][0]["id"]), (1, &json!(n[0])));
    let view = app.get(GROUP).await.of(200);
    assert_eq!((&view["dead_letter_count"], &view["parked_event_count"]), (&json!(1), &json!(2)));
    let replay = format!("{GROUP}/dead-letters/replay");
    app.post(&replay, json!({})).await.problem(422, "invalid-value", Some("event_ids"));
    let replayed = app.post(&replay, json!({"event_ids": [n[0], n[1]]})).await.of(200);
    assert_eq!(replayed["event_ids"], json!([n[0]]), "the second is not a dead letter");
    // The events follow in order.
    for expected in [n[0], n[1], n[3]] {
        let pulled = pull(&app, json!({"member": "m", "session": session})).await;
        assert_eq!(ids(&pulled), [expected]);
        ack(&app, &pulled).await;
    }
    let more = publish_each(&app, &["a", "a"]).await;
    let flows = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&flows), more, "the key continues");
    // After a drop the waiting events follow too.
    fail(&app, &flows, 0, json!({"retry": false})).await.of(200);
    assert_eq!(ids(&pull(&app, json!({"member": "m", "session": session})).await), [0; 0]);
    let dropped = app.post(&format!("{GROUP}/dead-letters/drop"), json!({"all": true})).await.of(200);
    assert_eq!((&dropped["event_ids"], &dropped["has_more"]), (&json!([more[0]]), &json!(false)));
    assert_eq!(ids(&pull(&app, json!({"member": "m", "session": session})).await), [more[1]]);
    let entries = app.store.audit_entries(None, None, 2).await.unwrap();
    let actions: Vec<_> =
        entries.iter().map(|entry| (entry.action.as_str(), entry.target.as_str())).collect();
    assert_eq!(actions, [("dead_letter.drop", "orders/mailer"), ("dead_letter.replay", "orders/mailer")]);
}

#[tokio::test]
async fn a_failure_inside_a_commit_batch_skips_no_event() {
    let app = with_topic(1).await;
    // The events are one commit batch, so the committed offset cannot move into the middle of it.
    let n = publish(&app, &["a", "b", "c", "b"]).await;
    let pulled = pull(&app, json!({"member": "m"})).await;
    assert_eq!(ids(&pulled), n);
    fail(&app, &pulled, 1, json!({"retry_in_ms": 60_000})).await.of(200);
    let session = &pulled["session"];
    let rest = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(
        ids(&rest),
        [n[0], n[2]],
        "the first and the third are unacknowledged, and the fourth waits behind the second"
    );
    ack(&app, &rest).await;
    assert_eq!(ids(&pull(&app, json!({"member": "m", "session": session})).await), [0; 0]);
    let parked = app.get(&format!("{GROUP}/parked-events")).await.of(200);
    let seen: Vec<_> = parked["events"].as_array().unwrap().iter().map(|event| event["id"].clone()).collect();
    assert_eq!(seen, [json!(n[1]), json!(n[3])]);
}

#[tokio::test]
async fn events_acknowledged_after_a_failure_of_their_key_are_delivered_again() {
    let app = with_topic(1).await;
    let n = publish_each(&app, &["a", "a", "b"]).await;
    let pulled = pull(&app, json!({"member": "m"})).await;
    fail(&app, &pulled, 0, json!({"retry_in_ms": 0})).await.of(200);
    // The client acknowledges a later event of the failed key. It counts as unprocessed; otherwise the key
    // would lose its order.
    ack(&app, &pulled).await;
    let session = &pulled["session"];
    for expected in [n[0], n[1]] {
        let pulled = pull(&app, json!({"member": "m", "session": session})).await;
        assert_eq!(ids(&pulled), [expected]);
        ack(&app, &pulled).await;
    }
    assert_eq!(ids(&pull(&app, json!({"member": "m", "session": session})).await), [0; 0]);
}

#[tokio::test]
async fn a_failure_reported_for_the_wrong_partition_is_rejected() {
    let app = with_topic(4).await;
    publish_each(&app, &["a", "b", "c", "d", "e", "f"]).await;
    let pulled = pull(&app, json!({"member": "m"})).await;
    let session = &pulled["session"];
    let partitions = pulled["partitions"].as_array().unwrap();
    assert!(partitions.len() > 1, "{partitions:?}");
    let in_last = |event: &&Value| event["partition"] == partitions[partitions.len() - 1]["partition"];
    let event = pulled["events"].as_array().unwrap().iter().find(in_last).unwrap()["id"].clone();
    let to = format!("{GROUP}/ack");
    for wrong in [event.clone(), json!(1_000_000)] {
        let mut body = json!({"session": session, "partitions": partitions});
        body["partitions"][0]["failed"] = json!([{"event_id": wrong, "error": "no"}]);
        app.post(&to, body).await.problem(422, "invalid-value", Some("failed"));
    }
    let again = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&again), ids(&pulled), "nothing was acknowledged");
    let mut body = json!({"session": session, "partitions": partitions});
    body["partitions"][partitions.len() - 1]["failed"] =
        json!([{"event_id": event, "error": "no", "retry_in_ms": 60_000}]);
    for _ in 0..2 {
        // Send the request twice, as after a lost response.
        let acked = app.post(&to, body.clone()).await.of(200);
        assert_eq!(acked["committed_partitions"].as_array().unwrap().len(), partitions.len());
    }
    let parked = app.get(&format!("{GROUP}/parked-events")).await.of(200);
    let seen: Vec<_> = parked["events"].as_array().unwrap().iter().map(|event| &event["id"]).collect();
    assert_eq!(seen, [&event]);
    assert_eq!(parked["events"][0]["attempts"], 1, "it failed once");
}

#[tokio::test]
async fn failures_are_reported_in_any_order_without_loss() {
    let app = with_topic(1).await;
    let n = publish_each(&app, &["a", "b", "c"]).await;
    let pulled = pull(&app, json!({"member": "m"})).await;
    for event in [2, 0, 0] {
        let nacked = fail(&app, &pulled, event, json!({"retry_in_ms": 60_000})).await.of(200);
        assert_eq!(nacked["attempts"], 1, "a repeated report counts once: {nacked}");
    }
    let session = &pulled["session"];
    let rest = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&rest), [n[1]], "the unreported event");
    ack(&app, &pulled).await;
    assert_eq!(ids(&pull(&app, json!({"member": "m", "session": session})).await), [0; 0]);
    let parked = app.get(&format!("{GROUP}/parked-events")).await.of(200);
    let seen: Vec<_> = parked["events"].as_array().unwrap().iter().map(|event| event["id"].clone()).collect();
    assert_eq!(seen, [json!(n[0]), json!(n[2])]);
    fail(&app, &pulled, 1, json!({})).await.problem(404, "no-such-event", Some("event_id"));
}

#[tokio::test]
async fn a_member_cannot_settle_a_dead_letter() {
    let app = with_topic(1).await;
    put(&app, GROUP, json!({"max_attempts": 1})).await.of(201);
    let n = publish_each(&app, &["a", "b"]).await;
    let pulled = pull(&app, json!({"member": "m"})).await;
    fail(&app, &pulled, 0, json!({})).await.of(200);
    let mut partitions = pulled["partitions"].clone();
    partitions[0]["retried"] = json!([{"event_id": n[0], "attempt": 2}]);
    app.post(&format!("{GROUP}/ack"), json!({"partitions": partitions})).await.of(200);
    assert_eq!(fail(&app, &pulled, 0, json!({"retry_in_ms": 0})).await.of(200)["dead"], true);
    // The internal operation does not settle it either.
    let (partition, token) = (&partitions[0]["partition"], &partitions[0]["token"]);
    let group = json!({"topic": {"namespace": "default", "name": "orders"}, "name": "mailer"});
    let settled = json!({"group": group, "partition": partition, "token": token, "parked_results": [[n[0], "processed"]]});
    app.post(&format!("/internal{GROUP}/commit-partitions"), json!({"commits": [settled]})).await.of(200);
    let dead = app.get(&format!("{GROUP}/parked-events?dead=true")).await.of(200);
    assert_eq!(dead["events"][0]["id"], n[0], "{dead}");
}

/// Regression: A response was lost and the client repeated the report: the event failed twice and became a
/// dead letter too early.
#[tokio::test]
async fn an_attempt_reported_twice_counts_once() {
    let app = with_topic(1).await;
    put(&app, GROUP, json!({"max_attempts": 3})).await.of(201);
    publish_each(&app, &["a"]).await;
    let pulled = pull(&app, json!({"member": "m"})).await;
    let session = &pulled["session"];
    for _ in 0..2 {
        let nacked = fail(&app, &pulled, 0, json!({"retry_in_ms": 0, "attempt": 1})).await.of(200);
        assert_eq!((&nacked["attempts"], &nacked["dead"]), (&json!(1), &json!(false)));
    }
    let again = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(again["events"][0]["attempt"], 2);
    let mut partitions = again["partitions"].clone();
    partitions[0]["failed"] =
        json!([{"event_id": again["events"][0]["id"], "error": "no", "retry_in_ms": 0}]);
    for _ in 0..2 {
        let body = json!({"session": session, "partitions": partitions});
        app.post(&format!("{GROUP}/ack"), body).await.of(200);
    }
    let parked = app.get(&format!("{GROUP}/parked-events")).await.of(200);
    assert_eq!((&parked["events"][0]["attempts"], &parked["events"][0]["dead"]), (&json!(2), &json!(false)));
    let last = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(last["events"][0]["attempt"], 3);
    ack(&app, &last).await;
    assert_eq!(app.get(&format!("{GROUP}/parked-events")).await.of(200)["events"], json!([]));
}
