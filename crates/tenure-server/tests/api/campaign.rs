//! Campaigns of plain HTTP clients.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure::port::{ReleaseLeaseRequest, StartReason, Store};
use tenure::store::memory::MemoryStore;
use tenure::{SessionId, Token};

use super::support::{candidate, join, key, on, take, test_app};

fn session(answer: &Value) -> SessionId {
    SessionId::from_stored(answer["session"].as_str().unwrap())
}

#[tokio::test]
async fn a_campaign_for_a_free_lease_leads_at_once() {
    let app = test_app();
    let answer = app.post("/v1/elections/nightly/campaign", json!({"name": "web-1"})).await.of(200);
    assert_eq!((&answer["leading"], &answer["status"]), (&json!(true), &json!("leading")));
    assert_eq!(
        (&answer["lease_remaining_ms"], &answer["heartbeat_interval_ms"]),
        (&json!(20000), &json!(2000))
    );
    let holders = app.store.election(&key("nightly")).await.unwrap().unwrap();
    assert_eq!(holders.held_by(&session(&answer)).next().unwrap().1.as_u64(), answer["token"]);
    assert_eq!(holders.candidates[0].session.owner.as_deref(), Some("local"));
}

#[tokio::test]
async fn a_client_that_sends_its_token_keeps_its_lease_on_any_replica() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (a, b) = (on(store.clone()), on(store));
    let first = a.campaign("nightly", candidate("web-1"), true).await;
    drop(a);
    let mut body = candidate("web-1");
    (body["session"], body["token"]) = (first["session"].clone(), first["token"].clone());
    let second = b.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!(second["leading"], true);
    assert_eq!(second["token"], first["token"]);
}

/// A response was lost: the session holds a lease that its client does not know, and a release of it may still be in
/// progress. The client resigns it by its token and campaigns again.
#[tokio::test]
async fn a_lease_unknown_to_its_client_is_reported_and_not_led() {
    let app = test_app();
    let first = app.campaign("nightly", candidate("web-1"), true).await;
    let mut body = candidate("web-1");
    body["session"] = first["session"].clone();
    let second = app.post("/v1/elections/nightly/campaign", body.clone()).await.of(200);
    assert_eq!((&second["leading"], &second["status"]), (&json!(false), &json!("lease_held")));
    assert_eq!(second["unreported_lease"], json!({"slot": 0, "token": first["token"]}));
    let resign = json!({"session": first["session"], "token": second["unreported_lease"]["token"], "remain_candidate": true});
    app.post("/v1/elections/nightly/resign", resign).await.of(200);
    let third = app.campaign("nightly", body, true).await;
    assert!(third["token"].as_u64() > first["token"].as_u64(), "{third}");
    // The late release has no effect.
    let late = ReleaseLeaseRequest {
        session: session(&first),
        election: key("nightly"),
        slot: 0,
        token: Token::from_u64(first["token"].as_u64().unwrap()),
        successor: None,
        start_reason: StartReason::Release,
        leave: false,
    };
    app.store.release_lease(&late).await.unwrap();
    let view = app.store.election(&key("nightly")).await.unwrap().unwrap();
    assert_eq!(view.held_by(&session(&first)).count(), 1);
}

/// A cancelled request arrives late at another replica: it must not undo the result of the second attempt.
#[tokio::test]
async fn a_late_campaign_does_not_release_the_lease() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (a, b) = (on(store.clone()), on(store.clone()));
    let opened =
        b.post("/v1/elections/nightly/campaign", json!({"name": "web-1", "observer": true})).await.of(200);
    let mut body = json!({"name": "web-1"});
    body["session"] = opened["session"].clone();
    let led = b.campaign("nightly", body.clone(), true).await;
    let late = a.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!(late["leading"], false);
    let view = store.election(&key("nightly")).await.unwrap().unwrap();
    let held = view.held_by(&session(&led)).next().map(|(_, token)| token.as_u64());
    assert_eq!(held, led["token"].as_u64());
}

#[tokio::test]
async fn a_heartbeat_with_a_token_verifies_the_lease() {
    let app = test_app();
    let first = app.campaign("nightly", candidate("web-1"), true).await;
    let path = format!("/v1/sessions/{}/heartbeat", first["session"].as_str().unwrap());
    let term = |token: &Value| json!({"election": "nightly", "token": token});
    assert_eq!(app.post(&path, term(&first["token"])).await.of(200)["state"], "live");
    app.post(&path, term(&json!(7))).await.problem(409, "lease-not-held", Some("token"));
    let resign = json!({"session": first["session"], "token": first["token"], "remain_candidate": true});
    app.post("/v1/elections/nightly/resign", resign).await.of(200);
    app.post(&path, term(&first["token"])).await.problem(409, "lease-not-held", Some("token"));
    // The session itself stays live.
    assert_eq!(app.post(&path, json!({})).await.of(200)["state"], "live");
}

#[tokio::test]
async fn a_second_candidate_waits_and_sees_the_leader() {
    let app = test_app();
    let first = app.campaign("nightly", candidate("web-1"), true).await;
    let body = json!({"name": "web-2", "wait_ms": 0, "metadata": {"zone": "b"}});
    let second = app.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!((&second["leading"], &second["status"]), (&json!(false), &json!("waiting")));
    assert_eq!(second["leader"]["name"], "web-1");
    assert_eq!(second["leader"]["token"], first["token"]);
    assert_eq!(second["token"], json!(null));
}

#[tokio::test]
async fn a_waiting_candidate_leads_as_soon_as_the_leader_resigns() {
    let app = test_app();
    let first = app.campaign("nightly", candidate("web-1"), true).await;
    let waiting = tokio::spawn({
        let app = app.clone();
        async move {
            app.campaign("nightly", json!({"name": "web-2", "lease_ms": 60_000, "wait_ms": 20_000}), true)
                .await
        }
    });
    // The candidate joins before the leader resigns.
    let mut changes = app.app.elections().changes();
    while app.app.elections().snapshot().elections[&key("nightly")].candidates.len() < 2 {
        changes.changed().await.unwrap();
    }
    let resign = json!({"session": first["session"], "token": first["token"]});
    let resigned = app.post("/v1/elections/nightly/resign", resign).await.of(200);
    assert_eq!(resigned["completed"], true);
    let second = waiting.await.unwrap();
    assert!(second["token"].as_u64() > first["token"].as_u64());
    // The former leader is no candidate any more and has no lease to release.
    let again = json!({"session": first["session"], "token": first["token"]});
    app.post("/v1/elections/nightly/resign", again).await.problem(409, "lease-not-held", Some("token"));
}

/// The server takes over a lease only after it has observed the silence of the holder itself.
#[tokio::test]
async fn the_lease_of_a_silent_holder_is_taken_over_with_a_greater_token() {
    let app = test_app();
    let first =
        app.post("/v1/elections/nightly/campaign", json!({"name": "web-1", "lease_ms": 300})).await.of(200);
    assert_eq!(first["leading"], true);
    let second =
        app.campaign("nightly", json!({"name": "web-2", "lease_ms": 60_000, "wait_ms": 10_000}), true).await;
    assert!(second["token"].as_u64() > first["token"].as_u64());
    let mut body = json!({"name": "web-1", "session": first["session"], "token": first["token"]});
    app.post("/v1/elections/nightly/campaign", body.clone()).await.problem(
        410,
        "session-ended",
        Some("session"),
    );
    body["session"] = json!("00000000000000000000000000000000");
    app.post("/v1/elections/nightly/campaign", body).await.problem(410, "session-ended", Some("session"));
}

#[tokio::test]
async fn a_candidate_with_a_higher_priority_preempts_the_leader() {
    let app = test_app();
    let first = app.campaign("nightly", candidate("low"), true).await;
    let body = json!({"name": "high", "priority": 9, "lease_ms": 60_000});
    let high = app.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!(high["leading"], false);
    let heartbeat = app
        .post(&format!("/v1/sessions/{}/heartbeat", first["session"].as_str().unwrap()), json!({}))
        .await
        .of(200);
    assert_eq!(heartbeat["leader_requests"][0]["kind"]["kind"], "preempt", "{heartbeat}");
    let resign = json!({"session": first["session"], "token": first["token"], "remain_candidate": true});
    app.post("/v1/elections/nightly/resign", resign).await.of(200);
    let body = json!({"name": "high", "priority": 9, "session": high["session"], "wait_ms": 10_000});
    let high = app.campaign("nightly", body, true).await;
    let history = app.get("/v1/elections/nightly/terms?consistent=true").await.of(200);
    assert_eq!(history["terms"][0]["start_reason"], "preempt");
    assert_eq!(history["terms"][0]["token"], high["token"]);
}

#[tokio::test]
async fn a_session_of_another_owner_is_rejected() {
    let app = test_app();
    let hands = join(app.store.as_ref(), "by-hand", "nightly", 0).await;
    let token = take(app.store.as_ref(), &hands, "nightly").await;
    let body = json!({"name": "web-1", "session": hands.as_str(), "token": token.as_u64()});
    app.post("/v1/elections/nightly/campaign", body).await.problem(
        403,
        "session-owned-by-other",
        Some("session"),
    );
    let body = json!({"session": hands.as_str(), "token": token.as_u64()});
    app.post("/v1/elections/nightly/resign", body).await.problem(
        403,
        "session-owned-by-other",
        Some("session"),
    );
}

#[tokio::test]
async fn observers_and_candidates_without_capabilities_do_not_wait() {
    let app = test_app();
    let body = json!({"name": "eye", "observer": true, "wait_ms": 60_000, "lease_ms": 600_000});
    let answer = app.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!((&answer["leading"], &answer["status"]), (&json!(false), &json!("observing")));
    let body =
        json!({"name": "weak", "required_capabilities": ["gpu"], "wait_ms": 60_000, "lease_ms": 600_000});
    let answer = app.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!(answer["status"], "not_capable");
}

#[tokio::test]
async fn invalid_campaigns_are_rejected_with_the_field() {
    let app = test_app();
    let path = "/v1/elections/nightly/campaign";
    let rejected = |body: Value, status, code: &'static str, field| {
        let app = app.clone();
        async move { app.post(path, body).await.problem(status, code, field) }
    };
    rejected(json!({}), 422, "invalid-value", Some("name")).await;
    rejected(json!({"name": 7}), 422, "invalid-value", Some("name")).await;
    rejected(json!({"name": "a", "colour": "red"}), 422, "invalid-value", Some("colour")).await;
    rejected(json!({"name": "a", "metadata": {"zone": 1}}), 422, "invalid-value", Some("metadata.zone"))
        .await;
    rejected(json!({"name": "a", "capabilities": ["x", 1]}), 422, "invalid-value", Some("capabilities[1]"))
        .await;
    rejected(json!({"name": "a", "lease_ms": 199}), 422, "invalid-value", Some("lease_ms")).await;
    rejected(json!({"name": "a", "lease_ms": -1}), 422, "invalid-value", Some("lease_ms")).await;
    rejected(json!({"name": "a", "slots": 0}), 422, "invalid-value", Some("slots")).await;
    let large: serde_json::Map<_, _> = (0..20).map(|n| (n.to_string(), "x".repeat(1000).into())).collect();
    rejected(json!({"name": "a", "metadata": large}), 422, "invalid-value", Some("metadata")).await;
    rejected(
        json!({"name": "a", "capabilities": vec!["x".repeat(1000); 17]}),
        422,
        "invalid-value",
        Some("capabilities"),
    )
    .await;
    rejected(json!({"name": "a", "slots": 101}), 422, "invalid-value", Some("slots")).await;
    rejected(json!({"name": "a", "token": 1}), 422, "invalid-value", Some("token")).await;
    rejected(json!({"name": "a", "token": u64::MAX}), 422, "invalid-value", Some("token")).await;
    rejected(json!({"name": "a", "session": "x'; --"}), 422, "invalid-value", Some("session")).await;
    rejected(json!({"name": "a\u{0}b"}), 422, "invalid-value", Some("name")).await;
    rejected(json!({"name": ""}), 422, "invalid-value", Some("name")).await;
    rejected(json!([]), 422, "invalid-value", None).await;
    app.post_text(path, "{").await.problem(400, "malformed-body", None);
    app.post_text(path, "{\"name\":\"a\"} x").await.problem(400, "malformed-body", None);
    let first = app.campaign("nightly", candidate("web-1"), true).await;
    let other = json!({"name": "web-1", "session": first["session"], "lease_ms": 5000});
    rejected(other, 422, "invalid-value", Some("lease_ms")).await;
    rejected(json!({"name": "b", "slots": 2}), 409, "slots-differ", Some("slots")).await;
}
