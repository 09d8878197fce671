//! Metrics of topics and groups.

use std::time::Duration;

use serde_json::json;

use super::put;
use crate::support::test_app;

#[tokio::test]
async fn metrics_contain_lag_parked_events_and_dead_letters() {
    // Metrics are shared by all tests of the process, so this topic has a unique name.
    let app = test_app();
    put(&app, "/v1/topics/scraped", json!({"partitions": 2})).await.of(201);
    put(&app, "/v1/topics/scraped/groups/g", json!({"max_attempts": 1})).await.of(201);
    let events = json!({"events": [{"type": "a", "key": "k"}, {"type": "b", "key": "k"}]});
    app.post("/v1/topics/scraped/events", events).await.of(201);
    let group = "/v1/topics/scraped/groups/g";
    let pulled = app.post(&format!("{group}/pull"), json!({"member": "m"})).await.of(200);
    let event = &pulled["events"][0];
    let nack = json!({
        "partition": event["partition"], "token": event["token"], "offset": event["offset"], "event_id": event["id"], "error": "no",
    });
    app.post(&format!("{group}/nack"), nack).await.of(200);
    // The next pull parks the event behind it.
    let again = json!({"member": "m", "session": pulled["session"]});
    assert_eq!(app.post(&format!("{group}/pull"), again).await.of(200)["events"], json!([]));
    app.post("/v1/topics/scraped/events", json!({"type": "c", "key": "k"})).await.of(201);
    let of = "{namespace=\"default\",topic=\"scraped\",group=\"g\"}";
    let text = loop {
        let answer = app.get("/metrics").await;
        let text = String::from_utf8(answer.bytes).unwrap();
        if text.contains(&format!("tenure_group_lag_events{of} 1\n")) {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    for line in [
        format!("tenure_group_lag_exact{of} 1\n"),
        format!("tenure_group_dead_letters{of} 1\n"),
        format!("tenure_group_parked_events{of} 1\n"),
        format!("tenure_group_members{of} 1\n"),
        format!("tenure_group_paused{of} 0\n"),
        "tenure_topic_events{namespace=\"default\",topic=\"scraped\"} 3\n".into(),
        "tenure_topic_lock_held_seconds{namespace=\"default\",topic=\"scraped\"} 0\n".into(),
        "tenure_events_published_total{namespace=\"default\",topic=\"scraped\"} 3\n".into(),
    ] {
        assert!(text.contains(&line), "{line}{text}");
    }
    assert!(text.contains(&format!("tenure_group_lag_seconds{of} 0")), "{text}");
}

/// Regression: Pulled events appeared in no metric except the lag.
#[tokio::test]
async fn metrics_count_pulled_events_by_outcome() {
    let app = test_app();
    let group = "/v1/topics/counted/groups/g";
    put(&app, "/v1/topics/counted", json!({"partitions": 1})).await.of(201);
    put(&app, group, json!({"max_attempts": 2})).await.of(201);
    for key in ["a", "b", "c", "d"] {
        app.post("/v1/topics/counted/events", json!({"type": "t", "key": key})).await.of(201);
    }
    let pulled = app.post(&format!("{group}/pull"), json!({"member": "m"})).await.of(200);
    let (session, events) = (&pulled["session"], &pulled["events"]);
    let mut ack = json!({"session": session, "partitions": pulled["partitions"]});
    ack["partitions"][0]["failed"] = json!([
        {"event_id": events[1]["id"], "error": "no", "retry_in_ms": 0},
        {"event_id": events[2]["id"], "error": "never", "retry": false},
    ]);
    app.post(&format!("{group}/ack"), ack.clone()).await.of(200);
    // A repeated acknowledgement is not counted.
    app.post(&format!("{group}/ack"), ack.clone()).await.of(200);
    let again = json!({"member": "m", "session": session});
    let again = app.post(&format!("{group}/pull"), again).await.of(200);
    assert_eq!(again["events"][0]["id"], events[1]["id"], "{again}");
    let done = json!({"session": session, "partitions": again["partitions"]});
    app.post(&format!("{group}/ack"), done).await.of(200);
    ack["partitions"][0]["token"] = json!(1_u64 << 50);
    let stale = app.post(&format!("{group}/ack"), ack).await.of(200);
    assert_eq!(stale["lost_partitions"], json!([0]));
    let text = String::from_utf8(app.get("/metrics").await.bytes).unwrap();
    let of = "{namespace=\"default\",topic=\"counted\",group=\"g\"}";
    for (name, count) in [
        ("tenure_events_processed_total", 3),
        ("tenure_event_attempts_failed_total", 2),
        ("tenure_dead_letters_total", 1),
        ("tenure_partition_commits_rejected_total", 1),
    ] {
        assert!(text.contains(&format!("{name}{of} {count}\n")), "{name} {count}\n{text}");
    }
}
