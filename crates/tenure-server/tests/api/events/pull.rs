//! Pulling and acknowledging.

use std::time::Duration;

use serde_json::json;

use super::{GROUP, ack, delete, fail, ids, publish, publish_each, pull, put, with_topic};

#[tokio::test]
async fn events_are_pulled_again_until_they_are_acknowledged() {
    let app = with_topic(4).await;
    let published = publish_each(&app, &["a", "b", "a", "c"]).await;
    let first = pull(&app, json!({"member": "m-1"})).await;
    assert_eq!(
        first["assigned_partitions"].as_array().unwrap().len(),
        4,
        "a single member holds all partitions"
    );
    let mut seen = ids(&first);
    seen.sort_unstable();
    assert_eq!(seen, published);
    assert!(first["events"].as_array().unwrap().iter().all(|event| event["attempt"] == 1));
    let again = pull(&app, json!({"member": "m-1", "session": first["session"]})).await;
    assert_eq!(ids(&again), ids(&first));
    assert_eq!(again["partitions"], first["partitions"]);
    let acked = ack(&app, &first).await;
    assert_eq!(
        acked["committed_partitions"].as_array().unwrap().len(),
        first["partitions"].as_array().unwrap().len()
    );
    assert_eq!(acked["lost_partitions"], json!([]));
    // A repeated acknowledgement is harmless.
    assert_eq!(ack(&app, &first).await, acked);
    assert_eq!(ids(&pull(&app, json!({"member": "m-1", "session": first["session"]})).await), [0; 0]);
    // Unpublished events cannot be acknowledged.
    let ahead =
        json!({"partitions": [{"partition": 0, "token": first["events"][0]["token"], "offset": 1_000_000}]});
    app.post(&format!("{GROUP}/ack"), ahead).await.problem(422, "invalid-value", Some("offset"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pull_returns_published_events() {
    let app = with_topic(8).await;
    let waiting = {
        let app = app.clone();
        tokio::spawn(async move { pull(&app, json!({"member": "m", "wait_ms": 60_000})).await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    let published = publish(&app, &["a"]).await;
    assert_eq!(ids(&waiting.await.unwrap()), published);
}

#[tokio::test]
async fn members_divide_the_partitions_and_commits_on_lost_ones_are_rejected() {
    let app = with_topic(4).await;
    publish_each(&app, &["a", "b", "c", "d", "e", "f", "g", "h"]).await;
    let first = pull(&app, json!({"member": "m-1"})).await;
    // The first member releases the second one's partitions with its next pull.
    let second = pull(&app, json!({"member": "m-2"})).await;
    assert_eq!(second["assigned_partitions"], json!([]));
    let first_again = pull(&app, json!({"member": "m-1", "session": first["session"]})).await;
    assert_eq!(first_again["assigned_partitions"].as_array().unwrap().len(), 2);
    let second = pull(&app, json!({"member": "m-2", "session": second["session"]})).await;
    assert_eq!(second["assigned_partitions"].as_array().unwrap().len(), 2);
    // The second member now holds partitions of which the first had pulled events.
    let acked = ack(&app, &first).await;
    let moved = second["assigned_partitions"].as_array().unwrap();
    assert!(
        acked["lost_partitions"].as_array().unwrap().iter().all(|partition| moved.contains(partition)),
        "{acked} {moved:?}"
    );
    assert!(!acked["lost_partitions"].as_array().unwrap().is_empty());
    assert!(
        acked["committed_partitions"].as_array().unwrap().iter().all(|partition| !moved.contains(partition))
    );
    let lost =
        first["events"].as_array().unwrap().iter().position(|event| moved.contains(&event["partition"]));
    fail(&app, &first, lost.unwrap(), json!({})).await.problem(409, "partition-lost", Some("token"));
    assert!(!ids(&second).is_empty());
    // A returning member name gets its partitions back.
    delete(&app, &format!("/v1/sessions/{}", second["session"].as_str().unwrap())).await.of(204);
    let back = pull(&app, json!({"member": "m-2"})).await;
    assert_eq!(back["assigned_partitions"], second["assigned_partitions"]);
}

#[tokio::test]
async fn a_rejected_pull_leaves_no_session_and_no_member() {
    let app = with_topic(1).await;
    put(&app, GROUP, json!({})).await.of(201);
    app.post(&format!("{GROUP}/pause"), json!({})).await.of(200);
    let to = format!("{GROUP}/pull");
    app.post(&to, json!({"member": "m"})).await.problem(409, "paused", Some("group"));
    app.post("/v1/topics/none/groups/g/pull", json!({"member": "m"})).await.of(404);
    let reserved = "/v1/topics/orders/groups/g/pull?namespace=tenure";
    app.post(reserved, json!({"member": "m"})).await.problem(403, "reserved-namespace", Some("namespace"));
    app.post(&format!("{GROUP}/resume"), json!({})).await.of(200);
    app.post(&to, json!({"member": ""})).await.problem(422, "invalid-value", Some("member"));
    let left = app.store.sessions(None).await.unwrap();
    assert!(left.iter().all(|session| !session.live), "{left:?}");
    assert_eq!(app.get(GROUP).await.of(200)["members"], json!([]));
}

#[tokio::test]
async fn an_acknowledgement_reads_only_the_pulled_events() {
    let app = with_topic(1).await;
    for _ in 0..3 {
        publish(&app, &["k"; 900]).await;
    }
    let pulled = pull(&app, json!({"member": "m", "limit": 1})).await;
    let end = app.get("/v1/topics/orders/offsets").await.of(200)["partitions"][0]["end_offset"].clone();
    let token = pulled["partitions"][0]["token"].as_u64().unwrap();
    let failed = json!([{"event_id": pulled["events"][0]["id"], "error": "no"}]);
    let ack_partition = |token: u64| json!({"partition": 0, "token": token, "offset": end, "failed": failed});
    let to = format!("{GROUP}/ack");
    let stale = app.post(&to, json!({"partitions": [ack_partition(token + 1)]})).await.of(200);
    assert_eq!((&stale["committed_partitions"], &stale["lost_partitions"]), (&json!([]), &json!([0])));
    app.post(&to, json!({"partitions": [ack_partition(token)]})).await.problem(
        422,
        "invalid-value",
        Some("offset"),
    );
    let again = pull(&app, json!({"member": "m", "session": pulled["session"], "limit": 1})).await;
    assert_eq!(again["partitions"], pulled["partitions"], "nothing was acknowledged");
}

#[tokio::test]
async fn events_withheld_from_a_pull_are_not_lost_when_their_key_is_released() {
    let app = with_topic(1).await;
    put(&app, GROUP, json!({"max_attempts": 1})).await.of(201);
    let first = publish_each(&app, &["k"]).await;
    let pulled = pull(&app, json!({"member": "m"})).await;
    let session = pulled["session"].clone();
    fail(&app, &pulled, 0, json!({})).await.of(200);
    let n = publish_each(&app, &["k", "j", "k"]).await;
    let pulled = pull(&app, json!({"member": "m", "session": session})).await;
    assert_eq!(ids(&pulled), [n[1]], "the key is parked");
    // The dead letter is dropped before the pulled events are acknowledged.
    let dropped = app.post(&format!("{GROUP}/dead-letters/drop"), json!({"event_ids": first})).await.of(200);
    assert_eq!(dropped["event_ids"], json!(first));
    ack(&app, &pulled).await;
    for expected in [n[0], n[2]] {
        let pulled = pull(&app, json!({"member": "m", "session": session})).await;
        assert_eq!(ids(&pulled), [expected]);
        ack(&app, &pulled).await;
    }
    assert_eq!(ids(&pull(&app, json!({"member": "m", "session": session})).await), [0; 0]);
}
