//! What a scrape says of topics and groups.

use std::time::Duration;

use serde_json::json;

use super::put;
use crate::support::inside;

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
