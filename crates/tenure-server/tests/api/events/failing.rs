//! Events that fail: what becomes of them, and of those behind them.

use serde_json::{Value, json};

use super::{GROUP, ack, fail, ids, publish, publish_each, pull, put, with_topic};

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
    shares[0]["retried"] = json!([{"event": n[0], "attempt": 2}]);
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

/// The answer was lost, and the client said it again: the event had failed twice, and was dead too early.
#[tokio::test]
async fn an_attempt_that_is_told_twice_counts_once() {
    let inside = with_topic(1).await;
    put(&inside, GROUP, json!({"max_attempts": 3})).await.of(201);
    publish_each(&inside, &["a"]).await;
    let pulled = pull(&inside, json!({"member": "m"})).await;
    let session = &pulled["session"];
    for _ in 0..2 {
        let nacked = fail(&inside, &pulled, 0, json!({"after_ms": 0, "attempt": 1})).await.of(200);
        assert_eq!((&nacked["attempts"], &nacked["dead"]), (&json!(1), &json!(false)));
    }
    let again = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(again["events"][0]["attempt"], 2);
    let mut shares = again["shares"].clone();
    shares[0]["failed"] = json!([{"event": again["events"][0]["id"], "error": "no", "after_ms": 0}]);
    for _ in 0..2 {
        let said = json!({"session": session, "shares": shares});
        inside.post(&format!("{GROUP}/ack"), said).await.of(200);
    }
    let aside = inside.get(&format!("{GROUP}/aside")).await.of(200);
    assert_eq!((&aside["events"][0]["attempts"], &aside["events"][0]["dead"]), (&json!(2), &json!(false)));
    let last = pull(&inside, json!({"member": "m", "session": session})).await;
    assert_eq!(last["events"][0]["attempt"], 3);
    ack(&inside, &last).await;
    assert_eq!(inside.get(&format!("{GROUP}/aside")).await.of(200)["events"], json!([]));
}
