//! Work over plain HTTP: submitted, claimed and finished.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};
use tenure::port::PAYLOAD_MAX;

use super::support::{Answer, Inside, inside, open};

async fn put(inside: &Inside, path: &str, body: Value) -> Answer {
    let request = Request::put(path).header("host", "localhost").header("content-type", "application/json");
    inside.send(request.body(Body::from(body.to_string())).unwrap()).await
}

/// Submits one task, and tells its number.
async fn submit(inside: &Inside, queue: &str, task: Value) -> u64 {
    let submitted = inside.post(&format!("/v1/queues/{queue}/tasks"), task).await.of(201);
    assert_eq!(submitted["new"], true);
    submitted["id"].as_u64().unwrap()
}

async fn claim(inside: &Inside, queue: &str, body: Value) -> Vec<Value> {
    let claimed = inside.post(&format!("/v1/queues/{queue}/claim"), body).await.of(200);
    claimed["tasks"].as_array().unwrap().clone()
}

async fn claim_one(inside: &Inside, queue: &str) -> (u64, u64) {
    let tasks = claim(inside, queue, json!({"worker": "w"})).await;
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    (tasks[0]["id"].as_u64().unwrap(), tasks[0]["token"].as_u64().unwrap())
}

async fn task(inside: &Inside, id: u64) -> Value {
    inside.get(&format!("/v1/tasks/{id}")).await.of(200)
}

/// A session that was opened through the server.
async fn session(inside: &Inside) -> String {
    let id = tenure_testkit::conformance::new_id();
    let session = json!({"id": id.as_str(), "name": "w", "lease_ms": 60_000});
    inside.post("/v1/sessions", session).await.of(200);
    id.as_str().to_owned()
}

#[tokio::test]
async fn a_task_is_submitted_claimed_and_completed() {
    let inside = inside();
    let body =
        r#"{"kind": "welcome", "payload": {"to":  "ada", "n": 12345678901234567890.25}, "priority": 3}"#;
    let submitted = inside.post_text("/v1/queues/mail/tasks", body).await.of(201);
    let id = submitted["id"].as_u64().unwrap();
    let answer =
        inside.post("/v1/queues/mail/claim", json!({"worker": "w-1", "limit": 5, "wait_ms": 100})).await;
    let text = String::from_utf8(answer.bytes.clone()).unwrap();
    assert!(text.contains(r#""payload":{"to":  "ada", "n": 12345678901234567890.25}"#), "as it was: {text}");
    let tasks = answer.of(200)["tasks"].clone();
    assert_eq!(tasks.as_array().unwrap().len(), 1);
    let claimed = &tasks[0];
    assert_eq!(
        (&claimed["id"], &claimed["kind"], &claimed["attempt"]),
        (&json!(id), &json!("welcome"), &json!(1))
    );
    assert!(claimed["deadline_ms"].is_i64(), "without a session, a claim ends by itself");
    assert!(claim(&inside, "mail", json!({"worker": "w-2"})).await.is_empty());
    let path = format!("/v1/tasks/{id}/complete");
    let guessed = inside.post(&path, json!({"token": 77})).await.of(409);
    let whose = format!("task {id} is not claimed under token 77: it is claimed by w-1 under another");
    assert_eq!(guessed["detail"], whose, "the token itself is not told");
    let done = json!({"token": claimed["token"], "output": {"sent": true}});
    let answer = inside.post(&path, done.clone()).await.of(200);
    assert_eq!(answer, json!({"id": id, "state": "completed"}));
    // A lost answer may be asked for again.
    assert_eq!(inside.post(&path, done).await.of(200)["state"], "completed");
    inside.post(&path, json!({"token": 77})).await.problem(409, "claim-lost", Some("token"));
    let seen = task(&inside, id).await;
    assert_eq!((&seen["output"], &seen["worker"]), (&json!({"sent": true}), &json!("w-1")));
}

#[tokio::test]
async fn many_are_submitted_together_and_a_key_only_once() {
    let inside = inside();
    let tasks = json!({"tasks": [
        {"kind": "a", "key": "first"},
        {"kind": "b", "parents": [{"index": 0}]},
        {"kind": "a", "key": "first"},
    ]});
    let submitted = inside.post("/v1/queues/q/tasks", tasks.clone()).await.of(201)["tasks"].clone();
    assert_eq!(submitted.as_array().unwrap().len(), 3);
    assert_eq!((&submitted[0]["id"], &submitted[2]["new"]), (&submitted[2]["id"], &json!(false)));
    let again = inside.post("/v1/queues/q/tasks", json!({"kind": "a", "key": "first"})).await.of(200);
    assert_eq!(again, json!({"id": submitted[0]["id"], "new": false}));
    // The child waits for its parent, and gets what came of it.
    let (parent, token) = claim_one(&inside, "q").await;
    let child = submitted[1]["id"].as_u64().unwrap();
    assert_eq!(task(&inside, child).await["state"], "waiting");
    let why = inside.get(&format!("/v1/tasks/{child}/why")).await.of(200);
    assert_eq!(why["why"][0], json!({"because": "parents", "tasks": [parent]}));
    inside
        .post(&format!("/v1/tasks/{parent}/complete"), json!({"token": token, "output": null}))
        .await
        .of(200);
    let tasks = claim(&inside, "q", json!({"worker": "w"})).await;
    assert_eq!((&tasks[0]["id"], &tasks[0]["inputs"]), (&json!(child), &json!({parent.to_string(): null})));
}

#[tokio::test]
async fn what_makes_no_sense_names_the_field() {
    let inside = inside();
    let q = "/v1/queues/q/tasks";
    inside.post(q, json!({"tasks": []})).await.problem(422, "unfit", Some("tasks"));
    inside.post(q, json!({"kind": "a\n"})).await.problem(422, "unfit", Some("kind"));
    inside.post(q, json!({"kind": 7})).await.problem(422, "unfit", Some("kind"));
    inside.post(q, json!({"colour": 7})).await.problem(422, "unfit", Some("colour"));
    let bad = json!({"tasks": [{}, {"max_attempts": 0}]});
    inside.post(q, bad).await.problem(422, "unfit", Some("tasks[1].max_attempts"));
    let circle = json!({"tasks": [{"parents": [{"index": 1}]}, {"parents": [{"index": 0}]}]});
    inside.post(q, circle).await.problem(422, "unfit", Some("tasks"));
    inside.post_text(q, "{").await.problem(400, "malformed-body", None);
    let orphan = inside.post(q, json!({"parents": [{"task": 99}]})).await.of(422);
    assert_eq!((&orphan["code"], &orphan["field"]), (&json!("refused-by-store"), &json!("parents")));
    assert!(orphan["detail"].as_str().unwrap().contains("99"), "{orphan}");
    assert!(orphan["remedy"].as_str().unwrap().contains("leave this parent out"), "{orphan}");
    let c = "/v1/queues/q/claim";
    inside.post(c, json!({})).await.problem(422, "unfit", Some("worker"));
    inside.post(c, json!({"worker": ""})).await.problem(422, "unfit", Some("worker"));
    for (field, value) in
        [("limit", 0), ("limit", 1001), ("hold_ms", 0), ("hold_ms", 86_400_001), ("wait_ms", 60_001)]
    {
        inside.post(c, json!({"worker": "w", field: value})).await.problem(422, "unfit", Some(field));
    }
    inside.post("/v1/tasks/1/complete", json!({})).await.problem(422, "unfit", Some("token"));
    inside.post("/v1/tasks/1/complete", json!({"token": 1})).await.problem(404, "no-such-task", Some("task"));
    inside.post("/v1/tasks/x/complete", json!({"token": 1})).await.problem(
        400,
        "malformed-path",
        Some("task"),
    );
    inside.get("/v1/tasks/18446744073709551615").await.problem(404, "no-such-task", Some("task"));
    inside.get("/v1/tasks?state=lost").await.problem(400, "malformed-query", Some("state"));
    inside.get("/v1/queues/none").await.problem(404, "no-such-queue", Some("queue"));
    put(&inside, "/v1/queues/q", json!({"max_claimed": 0})).await.problem(422, "unfit", Some("max_claimed"));
    put(&inside, "/v1/queues/q", json!({"mode": "odd"})).await.problem(422, "unfit", Some("mode"));
}

#[tokio::test]
async fn payloads_are_as_large_as_they_may_be_and_no_larger() {
    let inside = inside();
    let payload = |bytes: usize| format!(r#"{{"payload":"{}"}}"#, "x".repeat(bytes - 2));
    let accepted = inside.post_text("/v1/queues/q/tasks", payload(PAYLOAD_MAX)).await.of(201);
    let refused = inside.post_text("/v1/queues/q/tasks", payload(PAYLOAD_MAX + 1)).await;
    refused.problem(422, "unfit", Some("payload"));
    let huge = payload(17 * 1024 * 1024);
    inside.post_text("/v1/queues/q/tasks", huge).await.problem(413, "body-too-large", None);
    // Where no payload is carried, bodies are small.
    let cancel = format!(r#"{{"queue":"q","state":"ready","kind":"{}"}}"#, "x".repeat(1024 * 1024));
    inside.post_text("/v1/tasks/cancel", cancel).await.problem(413, "body-too-large", None);
    let (id, token) = claim_one(&inside, "q").await;
    assert_eq!(json!(id), accepted["id"]);
    let output = |bytes: usize| format!(r#"{{"token":{token},"output":"{}"}}"#, "x".repeat(bytes - 2));
    let path = format!("/v1/tasks/{id}/complete");
    inside.post_text(&path, output(PAYLOAD_MAX + 1)).await.problem(422, "unfit", Some("output"));
    inside.post_text(&path, output(PAYLOAD_MAX)).await.of(200);
}

#[tokio::test]
async fn an_attempt_that_fails_is_followed_by_another_until_there_is_none() {
    let inside = inside();
    let id = submit(&inside, "q", json!({"max_attempts": 2})).await;
    let fail = format!("/v1/tasks/{id}/fail");
    let (_, token) = claim_one(&inside, "q").await;
    let failed = inside.post(&fail, json!({"token": token, "error": "no route\u{0} to host"})).await.of(200);
    assert_eq!(failed["state"], "scheduled", "after its backoff");
    inside.post(&fail, json!({"token": token, "error": "again"})).await.problem(
        409,
        "claim-lost",
        Some("token"),
    );
    inside.post(&format!("/v1/tasks/{id}/retry"), json!({})).await.of(200);
    let (_, token) = claim_one(&inside, "q").await;
    let release = inside.post(&format!("/v1/tasks/{id}/release"), json!({"token": token})).await.of(200);
    assert_eq!(release["state"], "ready");
    let (_, token) = claim_one(&inside, "q").await;
    let seen = task(&inside, id).await;
    assert_eq!(
        (&seen["attempt"], &seen["failures"][0]["error"]),
        (&json!(1), &json!("no route\u{fffd} to host"))
    );
    let failed =
        inside.post(&fail, json!({"token": token, "error": "for good", "retry": false})).await.of(200);
    assert_eq!(failed["state"], "dead");
    let failed = inside.post(&fail, json!({"token": token, "error": "x".repeat(20_000)})).await;
    failed.problem(409, "claim-lost", Some("token"));
}

#[tokio::test]
async fn a_heartbeat_extends_a_claim_and_says_how_far_it_is() {
    let inside = inside();
    let id = submit(&inside, "q", json!({})).await;
    let (_, token) = claim_one(&inside, "q").await;
    let before = task(&inside, id).await["deadline_ms"].as_i64().unwrap();
    let beat = format!("/v1/tasks/{id}/heartbeat");
    let hour = json!({"token": token, "progress": "3 of 7", "hold_ms": 3_600_000});
    assert_eq!(inside.post(&beat, hour).await.of(200)["state"], "claimed");
    let seen = task(&inside, id).await;
    assert!(seen["deadline_ms"].as_i64().unwrap() >= before + 3_000_000);
    assert_eq!(seen["progress"], "3 of 7");
    // Left out, a minute more.
    inside.post(&beat, json!({"token": token})).await.of(200);
    let after = task(&inside, id).await["deadline_ms"].as_i64().unwrap();
    assert!((before..before + 60_000).contains(&after), "{before} {after}");
    inside.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.of(200);
    inside.post(&beat, json!({"token": token})).await.problem(409, "claim-lost", Some("token"));
}

#[tokio::test]
async fn a_claim_lives_on_a_session_that_is_its_own() {
    let inside = inside();
    let id = submit(&inside, "q", json!({})).await;
    let by_hand = open(inside.store.as_ref(), Duration::from_secs(60)).await;
    let path = "/v1/queues/q/claim";
    let with = |session: &str| json!({"worker": "w", "session": session});
    inside.post(path, with(by_hand.as_str())).await.problem(403, "not-your-session", Some("session"));
    inside.post(path, with(&"0".repeat(32))).await.problem(410, "session-gone", Some("session"));
    inside.post(path, with("me")).await.problem(422, "unfit", Some("session"));
    let session = session(&inside).await;
    let tasks = claim(&inside, "q", with(&session)).await;
    assert_eq!((&tasks[0]["id"], &tasks[0]["deadline_ms"]), (&json!(id), &Value::Null));
    let held = inside.get(&format!("/v1/sessions/{session}/claims")).await.of(200);
    assert_eq!(held["held"], json!([[id, tasks[0]["token"]]]));
    // It has no deadline, and a heartbeat gives it none.
    inside.post(&format!("/v1/tasks/{id}/heartbeat"), json!({"token": tasks[0]["token"]})).await.of(200);
    assert_eq!(task(&inside, id).await["deadline_ms"], Value::Null);
    inside
        .send(Request::delete(format!("/v1/sessions/{session}")).body(Body::empty()).unwrap())
        .await
        .of(204);
    inside.post(path, with(&session)).await.problem(410, "session-gone", Some("session"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waits_for_a_task() {
    let inside = inside();
    let waiting = {
        let inside = inside.clone();
        tokio::spawn(async move { claim(&inside, "q", json!({"worker": "w", "wait_ms": 60_000})).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let id = submit(&inside, "q", json!({})).await;
    assert_eq!(waiting.await.unwrap()[0]["id"], id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_leaves_nothing_claimed() {
    let inside = inside();
    let gone = {
        let inside = inside.clone();
        tokio::spawn(async move { claim(&inside, "q", json!({"worker": "gone", "wait_ms": 60_000})).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    let id = submit(&inside, "q", json!({})).await;
    let tasks = claim(&inside, "q", json!({"worker": "w", "wait_ms": 60_000})).await;
    assert_eq!((&tasks[0]["id"], &tasks[0]["attempt"]), (&json!(id), &json!(1)));
}

#[tokio::test]
async fn a_paused_queue_hands_out_nothing() {
    let inside = inside();
    submit(&inside, "q", json!({})).await;
    let pause = json!({"reason": "the mail server is down"});
    assert_eq!(inside.post("/v1/queues/q/pause", pause.clone()).await.of(200)["changed"], true);
    inside.post("/v1/queues/q/pause", pause).await.of(200);
    inside.post("/v1/queues/q/claim", json!({"worker": "w"})).await.problem(409, "paused", Some("queue"));
    let seen = inside.get("/v1/queues/q").await.of(200);
    assert_eq!((&seen["paused"]["by"], &seen["counts"]["ready"]), (&json!("local"), &json!(1)));
    assert_eq!(inside.post("/v1/queues/q/resume", json!({})).await.of(200)["changed"], true);
    // A whole namespace, and its queues with it.
    inside.post("/v1/namespace/pause", json!({})).await.of(200);
    inside.post("/v1/queues/q/claim", json!({"worker": "w"})).await.problem(409, "paused", Some("queue"));
    inside.post("/v1/namespace/resume", json!({})).await.of(200);
    claim_one(&inside, "q").await;
}

#[tokio::test]
async fn a_worker_that_is_not_approved_gets_nothing_where_that_is_asked_for() {
    let inside = inside();
    submit(&inside, "q", json!({})).await;
    put(&inside, "/v1/queues/q", json!({"approval": true})).await.of(200);
    inside.post("/v1/queues/q/claim", json!({"worker": "w"})).await.problem(
        403,
        "not-approved",
        Some("worker"),
    );
    let said = json!({"kind": "gpu", "tags": ["cuda"], "queues": ["q"], "location": "rack 7", "capacity": 4});
    put(&inside, "/v1/workers/w", said).await.of(204);
    let approved = inside.post("/v1/workers/w/approve", json!({})).await.of(200);
    assert_eq!(approved["changed"], true);
    assert_eq!(inside.post("/v1/workers/w/approve", json!({})).await.of(200)["changed"], false);
    claim_one(&inside, "q").await;
    let workers = inside.get("/v1/workers").await.of(200)["workers"].clone();
    assert_eq!((&workers[0]["name"], &workers[0]["approved_by"]), (&json!("w"), &json!("local")));
    assert_eq!(workers[0]["location"], "rack 7");
    inside.post("/v1/workers/w/disapprove", json!({})).await.of(200);
    inside.post("/v1/queues/q/claim", json!({"worker": "w"})).await.problem(
        403,
        "not-approved",
        Some("worker"),
    );
}

#[tokio::test]
async fn strict_order_without_a_leader_is_not_now() {
    let inside = inside();
    submit(&inside, "q", json!({})).await;
    put(&inside, "/v1/queues/q", json!({"mode": "exclusive"})).await.of(200);
    let answer = inside.post("/v1/queues/q/claim", json!({"worker": "w"})).await;
    assert_eq!(answer.header("retry-after"), "1");
    answer.problem(503, "not-now", None);
    put(&inside, "/v1/queues/q", json!({"mode": "exclusive", "fallback": "distributed"})).await.of(200);
    claim_one(&inside, "q").await;
}

#[tokio::test]
async fn a_task_of_another_namespace_is_none_of_theirs() {
    let inside = inside();
    let id = submit(&inside, "q", json!({})).await;
    let (_, token) = claim_one(&inside, "q").await;
    let other = |rest: &str| format!("/v1/tasks/{id}{rest}?namespace=other");
    inside.get(&other("")).await.problem(404, "no-such-task", Some("task"));
    inside.get(&other("/why")).await.problem(404, "no-such-task", Some("task"));
    for word in ["complete", "release", "heartbeat"] {
        let answer = inside.post(&other(&format!("/{word}")), json!({"token": token})).await;
        answer.problem(404, "no-such-task", Some("task"));
    }
    let failed = json!({"token": token, "error": "e"});
    inside.post(&other("/fail"), failed).await.problem(404, "no-such-task", Some("task"));
    inside.post(&other("/cancel"), json!({})).await.problem(404, "no-such-task", Some("task"));
    assert_eq!(task(&inside, id).await["state"], "claimed");
}

#[tokio::test]
async fn operators_cancel_and_retry_one_or_many_and_the_audit_has_it() {
    let inside = inside();
    let tasks = json!({"tasks": [{}, {"parents": [{"index": 0}]}, {"kind": "k"}]});
    let submitted = inside.post("/v1/queues/q/tasks", tasks).await.of(201)["tasks"].clone();
    let first = submitted[0]["id"].as_u64().unwrap();
    let cancelled = inside.post(&format!("/v1/tasks/{first}/cancel"), json!({})).await.of(200);
    assert_eq!(cancelled["tasks"].as_array().unwrap().len(), 2, "its child shares its fate");
    let again = inside.post(&format!("/v1/tasks/{first}/cancel"), json!({})).await;
    again.problem(409, "finished-already", Some("task"));
    inside.post("/v1/tasks/retry", json!({"ids": [first, 999]})).await.of(200);
    assert_eq!(task(&inside, first).await["state"], "ready");
    let bulk = json!({"queue": "q", "state": "ready,waiting", "kind": "k"});
    let cancelled = inside.post("/v1/tasks/cancel", bulk).await.of(200);
    assert_eq!(cancelled, json!({"tasks": [submitted[2]["id"]], "more": false}));
    inside.post("/v1/tasks/cancel", json!({"queue": "q"})).await.problem(422, "unfit", Some("state"));
    inside.post("/v1/tasks/cancel", json!({})).await.problem(422, "unfit", Some("ids"));
    inside.post("/v1/tasks/cancel", json!({"ids": []})).await.problem(422, "unfit", Some("ids"));
    let unknown = json!({"queue": "q", "state": "lost"});
    inside.post("/v1/tasks/cancel", unknown).await.problem(422, "unfit", Some("state"));
    let over = json!({"queue": "q", "state": "ready,completed"});
    inside.post("/v1/tasks/cancel", over).await.problem(422, "unfit", Some("state"));
    let under_way = json!({"queue": "q", "state": "claimed"});
    inside.post("/v1/tasks/retry", under_way).await.problem(422, "unfit", Some("state"));
    put(&inside, "/v1/queues/q", json!({"max_claimed": 7})).await.of(200);
    inside.post("/v1/queues/q/pause", json!({"reason": "why"})).await.of(200);
    inside.post("/v1/namespace/pause", json!({})).await.of(200);
    let deeds = inside.store.deeds(None, None, 20).await.unwrap();
    let deeds: Vec<_> = deeds.iter().rev().map(|deed| (deed.action.as_str(), deed.target.as_str())).collect();
    let (one, third) = (first.to_string(), submitted[2]["id"].to_string());
    let expected = [
        ("task.cancel", one.as_str()),
        ("task.retry", one.as_str()),
        ("task.cancel", third.as_str()),
        ("queue.set", "q"),
        ("queue.pause", "q"),
        ("namespace.pause", "default"),
    ];
    assert_eq!(deeds, expected);
}

#[tokio::test]
async fn many_tasks_are_cancelled_page_by_page_and_each_page_is_in_the_audit() {
    let inside = inside();
    let tasks = json!({"tasks": vec![json!({}); 5100]});
    inside.post("/v1/queues/q/tasks", tasks).await.of(201);
    let first = inside.post("/v1/tasks/cancel", json!({"queue": "q", "state": "ready"})).await.of(200);
    assert_eq!((first["tasks"].as_array().unwrap().len(), &first["more"]), (5000, &json!(true)));
    assert_eq!(inside.store.deeds(None, None, 100).await.unwrap().len(), 25);
    let rest = json!({"queue": "q", "state": "ready", "before": first["next"]});
    let rest = inside.post("/v1/tasks/cancel", rest).await.of(200);
    assert_eq!((rest["tasks"].as_array().unwrap().len(), &rest["more"]), (100, &json!(false)));
    assert_eq!(inside.store.deeds(None, None, 1).await.unwrap()[0].detail, "and 99 more");
}

#[tokio::test]
async fn tasks_are_listed_page_by_page() {
    let inside = inside();
    for n in 0..5 {
        submit(&inside, if n % 2 == 0 { "even" } else { "odd" }, json!({"kind": format!("k{n}")})).await;
    }
    let first = inside.get("/v1/tasks?limit=3").await.of(200);
    let kinds = |page: &Value| -> Vec<String> {
        let tasks = page["tasks"].as_array().unwrap();
        tasks.iter().map(|task| task["kind"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&first), ["k4", "k3", "k2"]);
    let rest = inside.get(&format!("/v1/tasks?limit=3&before={}", first["next"])).await.of(200);
    assert_eq!((kinds(&rest), &rest["next"]), (vec!["k1".into(), "k0".into()], &Value::Null));
    assert_eq!(kinds(&inside.get("/v1/tasks?queue=odd").await.of(200)), ["k3", "k1"]);
    assert_eq!(kinds(&inside.get("/v1/tasks?kind=k3&state=ready,dead").await.of(200)), ["k3"]);
    assert!(kinds(&inside.get("/v1/tasks?state=dead").await.of(200)).is_empty());
    assert!(kinds(&inside.get("/v1/tasks?namespace=other").await.of(200)).is_empty());
    let queues = inside.get("/v1/queues?consistent=true&limit=1").await.of(200);
    assert_eq!((&queues["queues"][0]["name"], &queues["next"]), (&json!("even"), &json!("default/even")));
    let queues = inside.get("/v1/queues?consistent=true&limit=1&after=default/even").await.of(200);
    assert_eq!((&queues["queues"][0]["counts"]["ready"], &queues["next"]), (&json!(2), &Value::Null));
}

#[tokio::test]
async fn statistics_tell_how_long_tasks_wait_and_run() {
    let inside = inside();
    inside.get("/v1/queues/q/stats").await.problem(404, "no-such-queue", Some("queue"));
    submit(&inside, "q", json!({"kind": "a"})).await;
    let (id, token) = claim_one(&inside, "q").await;
    inside.post(&format!("/v1/tasks/{id}/complete"), json!({"token": token})).await.of(200);
    submit(&inside, "q", json!({"kind": "b"})).await;
    let stats = inside.get("/v1/queues/q/stats").await.of(200);
    assert_eq!(stats["waiting"], 1);
    assert_eq!((&stats["kinds"][0]["kind"], &stats["kinds"][0]["completed"]), (&json!("a"), &json!(1)));
    assert!(stats["kinds"][0]["run_ms"]["p99"].is_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_is_asked_for_held_extended_and_given_back() {
    let inside = inside();
    put(&inside, "/v1/pools/hosts/resources/h1", json!({"tags": ["gpu"]})).await.of(204);
    let requests = "/v1/pools/hosts/requests";
    let ask = |key: &str| json!({"key": key, "requires": ["gpu"], "hold_ms": 60_000});
    let granted = inside.post(requests, ask("a")).await.of(200);
    assert_eq!((&granted["state"], &granted["resource"]), (&json!("granted"), &json!("h1")));
    assert_eq!(inside.post(requests, ask("a")).await.of(200)["id"], granted["id"], "the same again");
    let waits = inside.post(requests, ask("b")).await.of(202);
    assert_eq!(waits["state"], "waiting");
    let pool = inside.get("/v1/pools/hosts").await.of(200);
    assert_eq!(pool["resources"][0]["holder"]["key"], "a");
    assert_eq!(pool["waiting"][0]["key"], "b");
    let at = |request: &Value, word: &str| format!("/v1/requests/{}/{word}", request["id"]);
    let extended = json!({"token": granted["token"], "hold_ms": 3_600_000});
    let extended = inside.post(&at(&granted, "extend"), extended).await.of(200);
    assert!(extended["deadline_ms"].as_i64() > granted["deadline_ms"].as_i64());
    inside.post(&at(&granted, "release"), json!({"token": 99})).await.problem(
        409,
        "claim-lost",
        Some("token"),
    );
    let stranger = json!({"token": granted["token"], "owner": "mallory"});
    inside.post(&at(&granted, "release"), stranger).await.problem(403, "not-your-request", Some("owner"));
    let waiting = {
        let (inside, body) = (inside.clone(), json!({"key": "b", "hold_ms": 60_000, "wait_ms": 60_000}));
        tokio::spawn(async move { inside.post("/v1/pools/hosts/requests", body).await.of(200) })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let released = inside.post(&at(&granted, "release"), json!({"token": granted["token"]})).await.of(200);
    assert_eq!(released["state"], "released");
    let second = waiting.await.unwrap();
    assert_eq!((&second["id"], &second["resource"]), (&waits["id"], &json!("h1")));
    assert!(second["token"].as_u64() > granted["token"].as_u64(), "tokens only grow");
    // Not while somebody has it.
    let remove = || Request::delete("/v1/pools/hosts/resources/h1").body(Body::empty()).unwrap();
    inside.send(remove()).await.problem(409, "resource-held", Some("resource"));
    let nowhere = inside.post("/v1/pools/none/requests", json!({"key": "a"})).await;
    nowhere.problem(404, "no-such-pool", Some("pool"));
    inside.post(&at(&second, "release"), json!({"token": second["token"]})).await.of(200);
    inside.send(remove()).await.of(204);
    inside.send(remove()).await.problem(404, "no-such-resource", Some("resource"));
    inside.get("/v1/pools/none").await.problem(404, "no-such-pool", Some("pool"));
    inside.get("/v1/requests/99").await.problem(404, "no-such-request", Some("request"));
    let odd = json!({"priority": "base +"});
    put(&inside, "/v1/pools/hosts", odd).await.problem(422, "unfit", Some("priority"));
    put(&inside, "/v1/pools/hosts", json!({"cool_down_ms": 5})).await.of(200);
    let deeds = inside.store.deeds(None, None, 9).await.unwrap();
    let actions: Vec<_> = deeds.iter().rev().map(|deed| deed.action.as_str()).collect();
    assert_eq!(actions, ["resource.put", "resource.remove", "pool.set"]);
}

#[tokio::test]
async fn the_scrape_shows_how_deep_queues_are() {
    // What a process counts is counted for all tests together: nobody else has such a queue.
    let inside = inside();
    submit(&inside, "scraped", json!({})).await;
    let text = loop {
        let answer = inside.get("/metrics").await;
        let text = String::from_utf8(answer.bytes).unwrap();
        if text.contains("queue=\"scraped\"") {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(
        text.contains("tenure_queue_depth{namespace=\"default\",queue=\"scraped\",state=\"ready\"} 1\n"),
        "{text}"
    );
    assert!(text.contains("tenure_queue_depth{namespace=\"default\",queue=\"scraped\",state=\"dead\"} 0\n"));
    assert!(text.contains("tenure_queue_oldest_ready_seconds{namespace=\"default\",queue=\"scraped\"} 0."));
    assert!(text.contains("tenure_queue_paused{namespace=\"default\",queue=\"scraped\"} 0\n"));
}
