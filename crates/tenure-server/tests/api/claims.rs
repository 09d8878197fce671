//! Tasks and pools over plain HTTP.

use std::time::Duration;

use axum::body::Body;
use http::Request;
use serde_json::{Value, json};
use tenure::port::PAYLOAD_MAX;

use super::support::{TestApp, TestResponse, open, test_app};

async fn put(app: &TestApp, path: &str, body: Value) -> TestResponse {
    let request = Request::put(path).header("host", "localhost").header("content-type", "application/json");
    app.send(request.body(Body::from(body.to_string())).unwrap()).await
}

/// Submit one task and return its id.
async fn submit(app: &TestApp, queue: &str, task: Value) -> u64 {
    let submitted = app.post(&format!("/v1/queues/{queue}/tasks"), task).await.of(201);
    assert_eq!(submitted["created"], true);
    submitted["id"].as_u64().unwrap()
}

async fn claim(app: &TestApp, queue: &str, body: Value) -> Vec<Value> {
    let claimed = app.post(&format!("/v1/queues/{queue}/claim"), body).await.of(200);
    claimed["tasks"].as_array().unwrap().clone()
}

async fn claim_one(app: &TestApp, queue: &str) -> (u64, u64) {
    let tasks = claim(app, queue, json!({"worker": "w"})).await;
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    (tasks[0]["id"].as_u64().unwrap(), tasks[0]["token"].as_u64().unwrap())
}

async fn task(app: &TestApp, id: u64) -> Value {
    app.get(&format!("/v1/tasks/{id}")).await.of(200)
}

/// Session opened through the server.
async fn session(app: &TestApp) -> String {
    let id = tenure_testkit::conformance::new_id();
    let session = json!({"id": id.as_str(), "name": "w", "lease_ms": 60_000});
    app.post("/internal/v1/sessions", session).await.of(200);
    id.as_str().to_owned()
}

#[tokio::test]
async fn a_task_is_submitted_claimed_and_completed() {
    let app = test_app();
    let body =
        r#"{"kind": "welcome", "payload": {"to":  "ada", "n": 12345678901234567890.25}, "priority": 3}"#;
    let submitted = app.post_text("/v1/queues/mail/tasks", body).await.of(201);
    let id = submitted["id"].as_u64().unwrap();
    let answer =
        app.post("/v1/queues/mail/claim", json!({"worker": "w-1", "limit": 5, "wait_ms": 100})).await;
    let text = String::from_utf8(answer.bytes.clone()).unwrap();
    assert!(text.contains(r#""payload":{"to":  "ada", "n": 12345678901234567890.25}"#), "unchanged: {text}");
    let tasks = answer.of(200)["tasks"].clone();
    assert_eq!(tasks.as_array().unwrap().len(), 1);
    let claimed = &tasks[0];
    assert_eq!(
        (&claimed["id"], &claimed["kind"], &claimed["attempt"]),
        (&json!(id), &json!("welcome"), &json!(1))
    );
    assert!(claimed["claim_expires_at_ms"].is_i64(), "a claim without a session has a timeout");
    assert!(claim(&app, "mail", json!({"worker": "w-2"})).await.is_empty());
    let path = format!("/v1/tasks/{id}/complete");
    let guessed = app.post(&path, json!({"token": 77})).await.of(409);
    let detail = format!("task {id} is not claimed under token 77: w-1 has claimed it under another token");
    assert_eq!(guessed["detail"], detail, "the token itself is not revealed");
    let done = json!({"token": claimed["token"], "result": {"sent": true}});
    let answer = app.post(&path, done.clone()).await.of(200);
    assert_eq!(answer, json!({"id": id, "state": "completed"}));
    // A repeated completion succeeds.
    assert_eq!(app.post(&path, done).await.of(200)["state"], "completed");
    app.post(&path, json!({"token": 77})).await.problem(409, "claim-lost", Some("token"));
    let seen = task(&app, id).await;
    assert_eq!((&seen["result"], &seen["worker"]), (&json!({"sent": true}), &json!("w-1")));
}

#[tokio::test]
async fn several_tasks_are_submitted_together_and_an_idempotency_key_only_once() {
    let app = test_app();
    let tasks = json!({"tasks": [
        {"kind": "a", "idempotency_key": "first"},
        {"kind": "b", "parents": [{"index": 0}]},
        {"kind": "a", "idempotency_key": "first"},
    ]});
    let submitted = app.post("/v1/queues/q/tasks", tasks.clone()).await.of(201)["tasks"].clone();
    assert_eq!(submitted.as_array().unwrap().len(), 3);
    assert_eq!((&submitted[0]["id"], &submitted[2]["created"]), (&submitted[2]["id"], &json!(false)));
    let again =
        app.post("/v1/queues/q/tasks", json!({"kind": "a", "idempotency_key": "first"})).await.of(200);
    assert_eq!(again, json!({"id": submitted[0]["id"], "created": false}));
    // The child waits for its parent and receives its result.
    let (parent, token) = claim_one(&app, "q").await;
    let child = submitted[1]["id"].as_u64().unwrap();
    assert_eq!(task(&app, child).await["state"], "waiting");
    let why = app.get(&format!("/v1/tasks/{child}/why")).await.of(200);
    assert_eq!(why["reasons"][0], json!({"reason": "pending_parents", "tasks": [parent]}));
    app.post(&format!("/v1/tasks/{parent}/complete"), json!({"token": token, "result": null})).await.of(200);
    let tasks = claim(&app, "q", json!({"worker": "w"})).await;
    assert_eq!(
        (&tasks[0]["id"], &tasks[0]["parent_results"]),
        (&json!(child), &json!({parent.to_string(): null}))
    );
}

#[tokio::test]
async fn invalid_requests_name_the_field() {
    let app = test_app();
    let q = "/v1/queues/q/tasks";
    app.post(q, json!({"tasks": []})).await.problem(422, "invalid-value", Some("tasks"));
    app.post(q, json!({"kind": "a\n"})).await.problem(422, "invalid-value", Some("kind"));
    app.post(q, json!({"kind": 7})).await.problem(422, "invalid-value", Some("kind"));
    app.post(q, json!({"colour": 7})).await.problem(422, "invalid-value", Some("colour"));
    let bad = json!({"tasks": [{}, {"max_attempts": 0}]});
    app.post(q, bad).await.problem(422, "invalid-value", Some("tasks[1].max_attempts"));
    let circle = json!({"tasks": [{"parents": [{"index": 1}]}, {"parents": [{"index": 0}]}]});
    app.post(q, circle).await.problem(422, "invalid-value", Some("tasks"));
    app.post_text(q, "{").await.problem(400, "malformed-body", None);
    let orphan = app.post(q, json!({"parents": [{"task": 99}]})).await.of(422);
    assert_eq!((&orphan["code"], &orphan["field"]), (&json!("rejected-by-store"), &json!("parents")));
    assert!(orphan["detail"].as_str().unwrap().contains("99"), "{orphan}");
    assert!(orphan["remedy"].as_str().unwrap().contains("parent"), "{orphan}");
    let c = "/v1/queues/q/claim";
    app.post(c, json!({})).await.problem(422, "invalid-value", Some("worker"));
    app.post(c, json!({"worker": ""})).await.problem(422, "invalid-value", Some("worker"));
    for (field, value) in [
        ("limit", 0),
        ("limit", 1001),
        ("claim_timeout_ms", 0),
        ("claim_timeout_ms", 86_400_001),
        ("wait_ms", 60_001),
    ] {
        app.post(c, json!({"worker": "w", field: value})).await.problem(422, "invalid-value", Some(field));
    }
    app.post("/v1/tasks/1/complete", json!({})).await.problem(422, "invalid-value", Some("token"));
    app.post("/v1/tasks/1/complete", json!({"token": 1})).await.problem(404, "no-such-task", Some("task"));
    app.post("/v1/tasks/x/complete", json!({"token": 1})).await.problem(400, "malformed-path", Some("task"));
    app.get("/v1/tasks/18446744073709551615").await.problem(404, "no-such-task", Some("task"));
    app.get("/v1/tasks?state=lost").await.problem(400, "malformed-query", Some("state"));
    app.get("/v1/queues/none").await.problem(404, "no-such-queue", Some("queue"));
    put(&app, "/v1/queues/q", json!({"max_claimed": 0})).await.problem(
        422,
        "invalid-value",
        Some("max_claimed"),
    );
    put(&app, "/v1/queues/q", json!({"mode": "odd"})).await.problem(422, "invalid-value", Some("mode"));
}

#[tokio::test]
async fn payloads_are_limited_in_size() {
    let app = test_app();
    let payload = |bytes: usize| format!(r#"{{"payload":"{}"}}"#, "x".repeat(bytes - 2));
    let accepted = app.post_text("/v1/queues/q/tasks", payload(PAYLOAD_MAX)).await.of(201);
    let refused = app.post_text("/v1/queues/q/tasks", payload(PAYLOAD_MAX + 1)).await;
    refused.problem(422, "invalid-value", Some("payload"));
    let huge = payload(17 * 1024 * 1024);
    app.post_text("/v1/queues/q/tasks", huge).await.problem(413, "body-too-large", None);
    // Bodies without payloads have a lower limit.
    let cancel = format!(r#"{{"queue":"q","state":"ready","kind":"{}"}}"#, "x".repeat(1024 * 1024));
    app.post_text("/v1/tasks/cancel", cancel).await.problem(413, "body-too-large", None);
    let (id, token) = claim_one(&app, "q").await;
    assert_eq!(json!(id), accepted["id"]);
    let output = |bytes: usize| format!(r#"{{"token":{token},"result":"{}"}}"#, "x".repeat(bytes - 2));
    let path = format!("/v1/tasks/{id}/complete");
    app.post_text(&path, output(PAYLOAD_MAX + 1)).await.problem(422, "invalid-value", Some("result"));
    app.post_text(&path, output(PAYLOAD_MAX)).await.of(200);
}

#[tokio::test]
async fn a_failed_task_is_retried_until_its_attempts_are_used_up() {
    let app = test_app();
    let id = submit(&app, "q", json!({"max_attempts": 2})).await;
    let fail = format!("/v1/tasks/{id}/fail");
    let (_, token) = claim_one(&app, "q").await;
    let failed = app.post(&fail, json!({"token": token, "error": "no route\u{0} to host"})).await.of(200);
    assert_eq!(failed["state"], "scheduled", "after its backoff");
    app.post(&fail, json!({"token": token, "error": "again"})).await.problem(
        409,
        "claim-lost",
        Some("token"),
    );
    app.post(&format!("/v1/tasks/{id}/retry"), json!({})).await.of(200);
    let (_, token) = claim_one(&app, "q").await;
    let release = app.post(&format!("/v1/tasks/{id}/release"), json!({"token": token})).await.of(200);
    assert_eq!(release["state"], "ready");
    let (_, token) = claim_one(&app, "q").await;
    let seen = task(&app, id).await;
    assert_eq!(
        (&seen["attempt"], &seen["failures"][0]["error"]),
        (&json!(1), &json!("no route\u{fffd} to host"))
    );
    let failed = app.post(&fail, json!({"token": token, "error": "permanent", "retry": false})).await.of(200);
    assert_eq!(failed["state"], "dead");
    let failed = app.post(&fail, json!({"token": token, "error": "x".repeat(20_000)})).await;
    failed.problem(409, "claim-lost", Some("token"));
}

#[tokio::test]
async fn a_heartbeat_extends_a_claim_and_stores_progress() {
    let app = test_app();
    let id = submit(&app, "q", json!({})).await;
    let (_, token) = claim_one(&app, "q").await;
    let before = task(&app, id).await["claim_expires_at_ms"].as_i64().unwrap();
    let heartbeat = format!("/v1/tasks/{id}/heartbeat");
    let hour = json!({"token": token, "progress": "3 of 7", "claim_timeout_ms": 3_600_000});
    assert_eq!(app.post(&heartbeat, hour).await.of(200)["state"], "claimed");
    let seen = task(&app, id).await;
    assert!(seen["claim_expires_at_ms"].as_i64().unwrap() >= before + 3_000_000);
    assert_eq!(seen["progress"], "3 of 7");
    // A heartbeat without a claim timeout extends the claim by one minute.
    app.post(&heartbeat, json!({"token": token})).await.of(200);
    let after = task(&app, id).await["claim_expires_at_ms"].as_i64().unwrap();
    assert!((before..before + 60_000).contains(&after), "{before} {after}");
    app.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.of(200);
    app.post(&heartbeat, json!({"token": token})).await.problem(409, "claim-lost", Some("token"));
}

#[tokio::test]
async fn a_claim_with_a_session_needs_the_clients_own_session() {
    let app = test_app();
    let id = submit(&app, "q", json!({})).await;
    let direct = open(app.store.as_ref(), Duration::from_secs(60)).await;
    let path = "/v1/queues/q/claim";
    let with = |session: &str| json!({"worker": "w", "session": session});
    app.post(path, with(direct.as_str())).await.problem(403, "session-owned-by-other", Some("session"));
    app.post(path, with(&"0".repeat(32))).await.problem(410, "session-ended", Some("session"));
    app.post(path, with("me")).await.problem(422, "invalid-value", Some("session"));
    let session = session(&app).await;
    let tasks = claim(&app, "q", with(&session)).await;
    assert_eq!((&tasks[0]["id"], &tasks[0]["claim_expires_at_ms"]), (&json!(id), &Value::Null));
    let held = app.get(&format!("/internal/v1/sessions/{session}/claims")).await.of(200);
    assert_eq!(held["claims"], json!([{"task_id": id, "token": tasks[0]["token"]}]));
    // The claim has no timeout, and a heartbeat does not add one.
    app.post(&format!("/v1/tasks/{id}/heartbeat"), json!({"token": tasks[0]["token"]})).await.of(200);
    assert_eq!(task(&app, id).await["claim_expires_at_ms"], Value::Null);
    app.send(Request::delete(format!("/v1/sessions/{session}")).body(Body::empty()).unwrap()).await.of(204);
    app.post(path, with(&session)).await.problem(410, "session-ended", Some("session"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waits_for_a_task() {
    let app = test_app();
    let waiting = {
        let app = app.clone();
        tokio::spawn(async move { claim(&app, "q", json!({"worker": "w", "wait_ms": 60_000})).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let id = submit(&app, "q", json!({})).await;
    assert_eq!(waiting.await.unwrap()[0]["id"], id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disconnected_client_leaves_no_claims() {
    let app = test_app();
    let ended = {
        let app = app.clone();
        tokio::spawn(async move { claim(&app, "q", json!({"worker": "gone", "wait_ms": 60_000})).await })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    ended.abort();
    assert!(ended.await.unwrap_err().is_cancelled());
    let id = submit(&app, "q", json!({})).await;
    let tasks = claim(&app, "q", json!({"worker": "w", "wait_ms": 60_000})).await;
    assert_eq!((&tasks[0]["id"], &tasks[0]["attempt"]), (&json!(id), &json!(1)));
}

#[tokio::test]
async fn a_paused_queue_rejects_claims() {
    let app = test_app();
    submit(&app, "q", json!({})).await;
    let pause = json!({"reason": "the mail server is down"});
    assert_eq!(app.post("/v1/queues/q/pause", pause.clone()).await.of(200)["changed"], true);
    app.post("/v1/queues/q/pause", pause).await.of(200);
    app.post("/v1/queues/q/claim", json!({"worker": "w"})).await.problem(409, "paused", Some("queue"));
    let seen = app.get("/v1/queues/q").await.of(200);
    assert_eq!((&seen["paused"]["paused_by"], &seen["counts"]["ready"]), (&json!("local"), &json!(1)));
    assert_eq!(app.post("/v1/queues/q/resume", json!({})).await.of(200)["changed"], true);
    // Pause a namespace with all its queues.
    app.post("/v1/namespaces/default/pause", json!({})).await.of(200);
    app.post("/v1/queues/q/claim", json!({"worker": "w"})).await.problem(409, "paused", Some("queue"));
    app.post("/v1/namespaces/default/resume", json!({})).await.of(200);
    claim_one(&app, "q").await;
}

#[tokio::test]
async fn an_unapproved_worker_gets_no_tasks_of_a_queue_that_requires_approval() {
    let app = test_app();
    submit(&app, "q", json!({})).await;
    put(&app, "/v1/queues/q", json!({"require_approval": true})).await.of(200);
    app.post("/v1/queues/q/claim", json!({"worker": "w"})).await.problem(
        403,
        "worker-not-approved",
        Some("worker"),
    );
    let output =
        json!({"description": "gpu", "tags": ["cuda"], "queues": ["q"], "location": "rack 7", "capacity": 4});
    put(&app, "/v1/workers/w", output).await.of(204);
    let approved = app.post("/v1/workers/w/approve", json!({})).await.of(200);
    assert_eq!(approved["changed"], true);
    assert_eq!(app.post("/v1/workers/w/approve", json!({})).await.of(200)["changed"], false);
    claim_one(&app, "q").await;
    let workers = app.get("/v1/workers").await.of(200)["workers"].clone();
    assert_eq!((&workers[0]["name"], &workers[0]["approved_by"]), (&json!("w"), &json!("local")));
    assert_eq!(workers[0]["location"], "rack 7");
    app.post("/v1/workers/w/revoke-approval", json!({})).await.of(200);
    app.post("/v1/queues/q/claim", json!({"worker": "w"})).await.problem(
        403,
        "worker-not-approved",
        Some("worker"),
    );
}

#[tokio::test]
async fn an_exclusive_queue_without_a_broker_is_unavailable() {
    let app = test_app();
    submit(&app, "q", json!({})).await;
    put(&app, "/v1/queues/q", json!({"mode": "exclusive"})).await.of(200);
    let answer = app.post("/v1/queues/q/claim", json!({"worker": "w"})).await;
    assert_eq!(answer.header("retry-after"), "1");
    answer.problem(503, "broker-unavailable", None);
    put(&app, "/v1/queues/q", json!({"mode": "exclusive", "fallback": "distributed"})).await.of(200);
    claim_one(&app, "q").await;
}

#[tokio::test]
async fn tasks_of_another_namespace_are_not_found() {
    let app = test_app();
    let id = submit(&app, "q", json!({})).await;
    let (_, token) = claim_one(&app, "q").await;
    let other = |rest: &str| format!("/v1/tasks/{id}{rest}?namespace=other");
    app.get(&other("")).await.problem(404, "no-such-task", Some("task"));
    app.get(&other("/why")).await.problem(404, "no-such-task", Some("task"));
    for word in ["complete", "release", "heartbeat"] {
        let answer = app.post(&other(&format!("/{word}")), json!({"token": token})).await;
        answer.problem(404, "no-such-task", Some("task"));
    }
    let failed = json!({"token": token, "error": "e"});
    app.post(&other("/fail"), failed).await.problem(404, "no-such-task", Some("task"));
    app.post(&other("/cancel"), json!({})).await.problem(404, "no-such-task", Some("task"));
    assert_eq!(task(&app, id).await["state"], "claimed");
}

#[tokio::test]
async fn cancel_and_retry_are_in_the_audit_log() {
    let app = test_app();
    let tasks = json!({"tasks": [{}, {"parents": [{"index": 0}]}, {"kind": "k"}]});
    let submitted = app.post("/v1/queues/q/tasks", tasks).await.of(201)["tasks"].clone();
    let first = submitted[0]["id"].as_u64().unwrap();
    let cancelled = app.post(&format!("/v1/tasks/{first}/cancel"), json!({})).await.of(200);
    assert_eq!(cancelled["tasks"].as_array().unwrap().len(), 2, "its child is cancelled too");
    let again = app.post(&format!("/v1/tasks/{first}/cancel"), json!({})).await;
    again.problem(409, "already-finished", Some("task"));
    app.post("/v1/tasks/retry", json!({"task_ids": [first, 999]})).await.of(200);
    assert_eq!(task(&app, first).await["state"], "ready");
    let bulk = json!({"queue": "q", "state": "ready,waiting", "kind": "k"});
    let cancelled = app.post("/v1/tasks/cancel", bulk).await.of(200);
    assert_eq!(cancelled, json!({"tasks": [submitted[2]["id"]], "has_more": false}));
    app.post("/v1/tasks/cancel", json!({"queue": "q"})).await.problem(422, "invalid-value", Some("state"));
    app.post("/v1/tasks/cancel", json!({})).await.problem(422, "invalid-value", Some("task_ids"));
    app.post("/v1/tasks/cancel", json!({"task_ids": []})).await.problem(
        422,
        "invalid-value",
        Some("task_ids"),
    );
    let unknown = json!({"queue": "q", "state": "lost"});
    app.post("/v1/tasks/cancel", unknown).await.problem(422, "invalid-value", Some("state"));
    let over = json!({"queue": "q", "state": "ready,completed"});
    app.post("/v1/tasks/cancel", over).await.problem(422, "invalid-value", Some("state"));
    let claimed = json!({"queue": "q", "state": "claimed"});
    app.post("/v1/tasks/retry", claimed).await.problem(422, "invalid-value", Some("state"));
    put(&app, "/v1/queues/q", json!({"max_claimed": 7})).await.of(200);
    app.post("/v1/queues/q/pause", json!({"reason": "why"})).await.of(200);
    app.post("/v1/namespaces/default/pause", json!({})).await.of(200);
    let entries = app.store.audit_entries(None, None, 20).await.unwrap();
    let entries: Vec<_> =
        entries.iter().rev().map(|entry| (entry.action.as_str(), entry.target.as_str())).collect();
    let (one, third) = (first.to_string(), submitted[2]["id"].to_string());
    let expected = [
        ("task.cancel", one.as_str()),
        ("task.retry", one.as_str()),
        ("task.cancel", third.as_str()),
        ("queue.set", "q"),
        ("queue.pause", "q"),
        ("namespace.pause", "default"),
    ];
    assert_eq!(entries, expected);
}

#[tokio::test]
async fn tasks_are_cancelled_page_by_page_and_each_page_is_in_the_audit_log() {
    let app = test_app();
    let tasks = json!({"tasks": vec![json!({}); 5100]});
    app.post("/v1/queues/q/tasks", tasks).await.of(201);
    let first = app.post("/v1/tasks/cancel", json!({"queue": "q", "state": "ready"})).await.of(200);
    assert_eq!((first["tasks"].as_array().unwrap().len(), &first["has_more"]), (5000, &json!(true)));
    assert_eq!(app.store.audit_entries(None, None, 100).await.unwrap().len(), 25);
    let rest = json!({"queue": "q", "state": "ready", "cursor": first["next_cursor"]});
    let rest = app.post("/v1/tasks/cancel", rest).await.of(200);
    assert_eq!((rest["tasks"].as_array().unwrap().len(), &rest["has_more"]), (100, &json!(false)));
    assert_eq!(app.store.audit_entries(None, None, 1).await.unwrap()[0].detail, "and 99 more");
}

#[tokio::test]
async fn tasks_are_listed_page_by_page() {
    let app = test_app();
    for n in 0..5 {
        submit(&app, if n % 2 == 0 { "even" } else { "odd" }, json!({"kind": format!("k{n}")})).await;
    }
    let first = app.get("/v1/tasks?limit=3").await.of(200);
    let kinds = |page: &Value| -> Vec<String> {
        let tasks = page["tasks"].as_array().unwrap();
        tasks.iter().map(|task| task["kind"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&first), ["k4", "k3", "k2"]);
    let rest = app.get(&format!("/v1/tasks?limit=3&cursor={}", first["next_cursor"])).await.of(200);
    assert_eq!((kinds(&rest), &rest["next_cursor"]), (vec!["k1".into(), "k0".into()], &Value::Null));
    assert_eq!(kinds(&app.get("/v1/tasks?queue=odd").await.of(200)), ["k3", "k1"]);
    assert_eq!(kinds(&app.get("/v1/tasks?kind=k3&state=ready,dead").await.of(200)), ["k3"]);
    assert!(kinds(&app.get("/v1/tasks?state=dead").await.of(200)).is_empty());
    assert!(kinds(&app.get("/v1/tasks?namespace=other").await.of(200)).is_empty());
    let queues = app.get("/v1/queues?consistent=true&limit=1").await.of(200);
    assert_eq!(
        (&queues["queues"][0]["name"], &queues["next_cursor"]),
        (&json!("even"), &json!("default/even"))
    );
    let queues = app.get("/v1/queues?consistent=true&limit=1&cursor=default/even").await.of(200);
    assert_eq!((&queues["queues"][0]["counts"]["ready"], &queues["next_cursor"]), (&json!(2), &Value::Null));
}

#[tokio::test]
async fn statistics_contain_wait_and_run_times() {
    let app = test_app();
    app.get("/v1/queues/q/stats").await.problem(404, "no-such-queue", Some("queue"));
    submit(&app, "q", json!({"kind": "a"})).await;
    let (id, token) = claim_one(&app, "q").await;
    app.post(&format!("/v1/tasks/{id}/complete"), json!({"token": token})).await.of(200);
    submit(&app, "q", json!({"kind": "b"})).await;
    let stats = app.get("/v1/queues/q/stats").await.of(200);
    assert_eq!(stats["pending_count"], 1);
    assert_eq!((&stats["kinds"][0]["kind"], &stats["kinds"][0]["completed"]), (&json!("a"), &json!(1)));
    assert!(stats["kinds"][0]["run_ms"]["p99"].is_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_is_requested_granted_extended_and_released() {
    let app = test_app();
    put(&app, "/v1/pools/hosts/resources/h1", json!({"tags": ["gpu"]})).await.of(204);
    let requests = "/v1/pools/hosts/requests";
    let ask =
        |key: &str| json!({"idempotency_key": key, "required_tags": ["gpu"], "claim_timeout_ms": 60_000});
    let granted = app.post(requests, ask("a")).await.of(200);
    assert_eq!((&granted["state"], &granted["resource"]), (&json!("granted"), &json!("h1")));
    assert_eq!(app.post(requests, ask("a")).await.of(200)["id"], granted["id"], "the same again");
    let waits = app.post(requests, ask("b")).await.of(202);
    assert_eq!(waits["state"], "waiting");
    let pool = app.get("/v1/pools/hosts").await.of(200);
    assert_eq!(pool["resources"][0]["held_by"]["idempotency_key"], "a");
    assert_eq!(pool["waiting_requests"][0]["idempotency_key"], "b");
    let at = |request: &Value, word: &str| format!("/v1/requests/{}/{word}", request["id"]);
    let extended = json!({"token": granted["token"], "claim_timeout_ms": 3_600_000});
    let extended = app.post(&at(&granted, "heartbeat"), extended).await.of(200);
    assert!(extended["expires_at_ms"].as_i64() > granted["expires_at_ms"].as_i64());
    app.post(&at(&granted, "release"), json!({"token": 99})).await.problem(409, "claim-lost", Some("token"));
    let other = json!({"token": granted["token"], "owner": "mallory"});
    app.post(&at(&granted, "release"), other).await.problem(403, "request-owned-by-other", Some("owner"));
    let waiting = {
        let (app, body) =
            (app.clone(), json!({"idempotency_key": "b", "claim_timeout_ms": 60_000, "wait_ms": 60_000}));
        tokio::spawn(async move { app.post("/v1/pools/hosts/requests", body).await.of(200) })
    };
    tokio::time::sleep(Duration::from_millis(50)).await;
    let released = app.post(&at(&granted, "release"), json!({"token": granted["token"]})).await.of(200);
    assert_eq!(released["state"], "released");
    let second = waiting.await.unwrap();
    assert_eq!((&second["id"], &second["resource"]), (&waits["id"], &json!("h1")));
    assert!(second["token"].as_u64() > granted["token"].as_u64(), "tokens increase");
    // A held resource cannot be removed.
    let remove = || Request::delete("/v1/pools/hosts/resources/h1").body(Body::empty()).unwrap();
    app.send(remove()).await.problem(409, "resource-held", Some("resource"));
    let nowhere = app.post("/v1/pools/none/requests", json!({"idempotency_key": "a"})).await;
    nowhere.problem(404, "no-such-pool", Some("pool"));
    app.post(&at(&second, "release"), json!({"token": second["token"]})).await.of(200);
    app.send(remove()).await.of(204);
    app.send(remove()).await.problem(404, "no-such-resource", Some("resource"));
    app.get("/v1/pools/none").await.problem(404, "no-such-pool", Some("pool"));
    app.get("/v1/requests/99").await.problem(404, "no-such-request", Some("request"));
    let odd = json!({"priority_formula": "base_priority +"});
    put(&app, "/v1/pools/hosts", odd).await.problem(422, "invalid-value", Some("priority_formula"));
    put(&app, "/v1/pools/hosts", json!({"cooldown_ms": 5})).await.of(200);
    let entries = app.store.audit_entries(None, None, 9).await.unwrap();
    let actions: Vec<_> = entries.iter().rev().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["resource.put", "resource.remove", "pool.set"]);
}

#[tokio::test]
async fn metrics_contain_the_number_of_tasks_by_state() {
    // Metrics are shared by all tests of the process, so this queue has a unique name.
    let app = test_app();
    submit(&app, "scraped", json!({})).await;
    let text = loop {
        let answer = app.get("/metrics").await;
        let text = String::from_utf8(answer.bytes).unwrap();
        if text.contains("queue=\"scraped\"") {
            break text;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(
        text.contains("tenure_queue_tasks{namespace=\"default\",queue=\"scraped\",state=\"ready\"} 1\n"),
        "{text}"
    );
    assert!(text.contains("tenure_queue_tasks{namespace=\"default\",queue=\"scraped\",state=\"dead\"} 0\n"));
    assert!(
        text.contains("tenure_queue_oldest_ready_age_seconds{namespace=\"default\",queue=\"scraped\"} 0.")
    );
    assert!(text.contains("tenure_queue_paused{namespace=\"default\",queue=\"scraped\"} 0\n"));
}
