//! Pulling and acknowledging.

use std::time::Duration;

use serde_json::json;

use super::{GROUP, ack, delete, fail, ids, publish, publish_each, pull, put, with_topic};

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
async fn a_pull_that_is_refused_leaves_nobody_behind() {
    let inside = with_topic(1).await;
    put(&inside, GROUP, json!({})).await.of(201);
    inside.post(&format!("{GROUP}/pause"), json!({})).await.of(200);
    let to = format!("{GROUP}/pull");
    inside.post(&to, json!({"member": "m"})).await.problem(409, "paused", Some("group"));
    inside.post("/v1/topics/none/groups/g/pull", json!({"member": "m"})).await.of(404);
    let reserved = "/v1/topics/orders/groups/g/pull?namespace=tenure";
    inside.post(reserved, json!({"member": "m"})).await.problem(403, "reserved-namespace", Some("namespace"));
    inside.post(&format!("{GROUP}/resume"), json!({})).await.of(200);
    inside.post(&to, json!({"member": ""})).await.problem(422, "unfit", Some("member"));
    let left = inside.store.sessions(None).await.unwrap();
    assert!(left.iter().all(|session| !session.live), "{left:?}");
    assert_eq!(inside.get(GROUP).await.of(200)["members"], json!([]));
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
