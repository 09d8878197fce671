//! Candidates that speak plain HTTP.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure::backend::memory::Memory;
use tenure::port::{Backend, Release, Via};
use tenure::{SessionId, Token};

use super::support::{candidate, inside, key, on, stand, take};

fn session(answer: &Value) -> SessionId {
    SessionId::from_stored(answer["session"].as_str().unwrap())
}

#[tokio::test]
async fn a_campaign_for_a_free_lease_leads_at_once() {
    let inside = inside();
    let answer = inside.post("/v1/elections/nightly/campaign", json!({"id": "web-1"})).await.of(200);
    assert_eq!((&answer["leading"], &answer["standing"]), (&json!(true), &json!("leads")));
    assert_eq!((&answer["trust_ms"], &answer["renew_every_ms"]), (&json!(20000), &json!(2000)));
    let holders = inside.store.election(&key("nightly")).await.unwrap().unwrap();
    assert_eq!(holders.held_by(&session(&answer)).next().unwrap().1.as_u64(), answer["token"]);
    assert_eq!(holders.candidates[0].session.owner.as_deref(), Some("local"));
}

#[tokio::test]
async fn who_names_its_token_keeps_it_on_any_replica() {
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let (a, b) = (on(store.clone()), on(store));
    let first = a.campaign("nightly", candidate("web-1"), true).await;
    drop(a);
    let mut body = candidate("web-1");
    (body["session"], body["token"]) = (first["session"].clone(), first["token"].clone());
    let second = b.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!(second["leading"], true);
    assert_eq!(second["token"], first["token"]);
}

/// An answer that was lost: the session holds a lease that its client never heard of, and a release of it may still be
/// under way. Its client gives it back by its token, and then takes another.
#[tokio::test]
async fn a_lease_that_its_client_never_heard_of_is_shown_and_not_led_under() {
    let inside = inside();
    let first = inside.campaign("nightly", candidate("web-1"), true).await;
    let mut body = candidate("web-1");
    body["session"] = first["session"].clone();
    let second = inside.post("/v1/elections/nightly/campaign", body.clone()).await.of(200);
    assert_eq!((&second["leading"], &second["standing"]), (&json!(false), &json!("holds")));
    assert_eq!(second["unnamed"], json!({"slot": 0, "token": first["token"]}));
    let resign = json!({"session": first["session"], "token": second["unnamed"]["token"], "stand": true});
    inside.post("/v1/elections/nightly/resign", resign).await.of(200);
    let third = inside.campaign("nightly", body, true).await;
    assert!(third["token"].as_u64() > first["token"].as_u64(), "{third}");
    // The late release finds nothing.
    let late = Release {
        session: session(&first),
        election: key("nightly"),
        slot: 0,
        token: Token::from_u64(first["token"].as_u64().unwrap()),
        successor: None,
        via: Via::Release,
        leave: false,
    };
    inside.store.release(&late).await.unwrap();
    let view = inside.store.election(&key("nightly")).await.unwrap().unwrap();
    assert_eq!(view.held_by(&session(&first)).count(), 1);
}

/// A request that its client gave up arrives late, at another replica: it must not undo what the second try brought.
#[tokio::test]
async fn a_campaign_that_arrives_late_takes_nothing_away() {
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let (a, b) = (on(store.clone()), on(store.clone()));
    let opened =
        b.post("/v1/elections/nightly/campaign", json!({"id": "web-1", "observer": true})).await.of(200);
    let mut body = json!({"id": "web-1"});
    body["session"] = opened["session"].clone();
    let led = b.campaign("nightly", body.clone(), true).await;
    let late = a.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!(late["leading"], false);
    let view = store.election(&key("nightly")).await.unwrap().unwrap();
    let held = view.held_by(&session(&led)).next().map(|(_, token)| token.as_u64());
    assert_eq!(held, led["token"].as_u64());
}

#[tokio::test]
async fn a_renewal_that_names_its_term_is_told_whether_it_is_held() {
    let inside = inside();
    let first = inside.campaign("nightly", candidate("web-1"), true).await;
    let path = format!("/v1/sessions/{}/renew", first["session"].as_str().unwrap());
    let term = |token: &Value| json!({"election": "nightly", "token": token});
    assert_eq!(inside.post(&path, term(&first["token"])).await.of(200)["state"], "alive");
    inside.post(&path, term(&json!(7))).await.problem(409, "not-held", Some("token"));
    let resign = json!({"session": first["session"], "token": first["token"], "stand": true});
    inside.post("/v1/elections/nightly/resign", resign).await.of(200);
    inside.post(&path, term(&first["token"])).await.problem(409, "not-held", Some("token"));
    // The session itself lives on.
    assert_eq!(inside.post(&path, json!({})).await.of(200)["state"], "alive");
}

#[tokio::test]
async fn a_second_candidate_waits_and_is_told_who_leads() {
    let inside = inside();
    let first = inside.campaign("nightly", candidate("web-1"), true).await;
    let body = json!({"id": "web-2", "wait_ms": 0, "metadata": {"zone": "b"}});
    let second = inside.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!((&second["leading"], &second["standing"]), (&json!(false), &json!("waits")));
    assert_eq!(second["leader"]["id"], "web-1");
    assert_eq!(second["leader"]["token"], first["token"]);
    assert_eq!(second["token"], json!(null));
}

#[tokio::test]
async fn a_waiting_candidate_leads_as_soon_as_the_leader_resigns() {
    let inside = inside();
    let first = inside.campaign("nightly", candidate("web-1"), true).await;
    let waiting = tokio::spawn({
        let inside = inside.clone();
        async move {
            inside
                .campaign("nightly", json!({"id": "web-2", "lease_ms": 60_000, "wait_ms": 20_000}), true)
                .await
        }
    });
    // It stands before the leader leaves.
    let mut changes = inside.app.board().changes();
    while inside.app.board().seen().elections[&key("nightly")].candidates.len() < 2 {
        changes.changed().await.unwrap();
    }
    let resign = json!({"session": first["session"], "token": first["token"]});
    let resigned = inside.post("/v1/elections/nightly/resign", resign).await.of(200);
    assert_eq!(resigned["done"], true);
    let second = waiting.await.unwrap();
    assert!(second["token"].as_u64() > first["token"].as_u64());
    // Whoever resigned does not stand any more, and has nothing to give back.
    let again = json!({"session": first["session"], "token": first["token"]});
    inside.post("/v1/elections/nightly/resign", again).await.problem(409, "not-held", Some("token"));
}

/// Nothing is taken from a holder that the server has not itself seen silent.
#[tokio::test]
async fn the_lease_of_a_silent_holder_is_taken_over_with_a_greater_token() {
    let inside = inside();
    let first =
        inside.post("/v1/elections/nightly/campaign", json!({"id": "web-1", "lease_ms": 300})).await.of(200);
    assert_eq!(first["leading"], true);
    let second =
        inside.campaign("nightly", json!({"id": "web-2", "lease_ms": 60_000, "wait_ms": 10_000}), true).await;
    assert!(second["token"].as_u64() > first["token"].as_u64());
    let mut body = json!({"id": "web-1", "session": first["session"], "token": first["token"]});
    inside.post("/v1/elections/nightly/campaign", body.clone()).await.problem(
        410,
        "session-gone",
        Some("session"),
    );
    body["session"] = json!("00000000000000000000000000000000");
    inside.post("/v1/elections/nightly/campaign", body).await.problem(410, "session-gone", Some("session"));
}

#[tokio::test]
async fn a_higher_priority_asks_the_leader_to_make_way() {
    let inside = inside();
    let first = inside.campaign("nightly", candidate("low"), true).await;
    let body = json!({"id": "high", "priority": 9, "lease_ms": 60_000});
    let high = inside.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!(high["leading"], false);
    let renewed = inside
        .post(&format!("/v1/sessions/{}/renew", first["session"].as_str().unwrap()), json!({}))
        .await
        .of(200);
    assert_eq!(renewed["asks"][0]["kind"]["kind"], "preempt", "{renewed}");
    let resign = json!({"session": first["session"], "token": first["token"], "stand": true});
    inside.post("/v1/elections/nightly/resign", resign).await.of(200);
    let body = json!({"id": "high", "priority": 9, "session": high["session"], "wait_ms": 10_000});
    let high = inside.campaign("nightly", body, true).await;
    let history = inside.get("/v1/elections/nightly/history?consistent=true").await.of(200);
    assert_eq!(history["terms"][0]["via"], "preempt");
    assert_eq!(history["terms"][0]["token"], high["token"]);
}

#[tokio::test]
async fn a_session_of_somebody_else_is_not_used() {
    let inside = inside();
    let hands = stand(inside.store.as_ref(), "by-hand", "nightly", 0).await;
    let token = take(inside.store.as_ref(), &hands, "nightly").await;
    let body = json!({"id": "web-1", "session": hands.as_str(), "token": token.as_u64()});
    inside.post("/v1/elections/nightly/campaign", body).await.problem(
        403,
        "not-your-session",
        Some("session"),
    );
    let body = json!({"session": hands.as_str(), "token": token.as_u64()});
    inside.post("/v1/elections/nightly/resign", body).await.problem(403, "not-your-session", Some("session"));
}

#[tokio::test]
async fn observers_and_the_incapable_do_not_wait() {
    let inside = inside();
    let body = json!({"id": "eye", "observer": true, "wait_ms": 60_000, "lease_ms": 600_000});
    let answer = inside.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!((&answer["leading"], &answer["standing"]), (&json!(false), &json!("observes")));
    let body = json!({"id": "weak", "requires": ["gpu"], "wait_ms": 60_000, "lease_ms": 600_000});
    let answer = inside.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!(answer["standing"], "incapable");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_the_field() {
    let inside = inside();
    let path = "/v1/elections/nightly/campaign";
    let refused = |body: Value, status, code: &'static str, field| {
        let inside = inside.clone();
        async move { inside.post(path, body).await.problem(status, code, field) }
    };
    refused(json!({}), 422, "unfit", Some("id")).await;
    refused(json!({"id": 7}), 422, "unfit", Some("id")).await;
    refused(json!({"id": "a", "colour": "red"}), 422, "unfit", Some("colour")).await;
    refused(json!({"id": "a", "metadata": {"zone": 1}}), 422, "unfit", Some("metadata.zone")).await;
    refused(json!({"id": "a", "capabilities": ["x", 1]}), 422, "unfit", Some("capabilities[1]")).await;
    refused(json!({"id": "a", "lease_ms": 199}), 422, "unfit", Some("lease_ms")).await;
    refused(json!({"id": "a", "lease_ms": -1}), 422, "unfit", Some("lease_ms")).await;
    refused(json!({"id": "a", "slots": 0}), 422, "unfit", Some("slots")).await;
    let large: serde_json::Map<_, _> = (0..20).map(|n| (n.to_string(), "x".repeat(1000).into())).collect();
    refused(json!({"id": "a", "metadata": large}), 422, "unfit", Some("metadata")).await;
    refused(
        json!({"id": "a", "capabilities": vec!["x".repeat(1000); 17]}),
        422,
        "unfit",
        Some("capabilities"),
    )
    .await;
    refused(json!({"id": "a", "slots": 101}), 422, "unfit", Some("slots")).await;
    refused(json!({"id": "a", "token": 1}), 422, "unfit", Some("token")).await;
    refused(json!({"id": "a", "token": u64::MAX}), 422, "unfit", Some("token")).await;
    refused(json!({"id": "a", "session": "x'; --"}), 422, "unfit", Some("session")).await;
    refused(json!({"id": "a\u{0}b"}), 422, "unfit", Some("id")).await;
    refused(json!({"id": ""}), 422, "unfit", Some("id")).await;
    refused(json!([]), 422, "unfit", None).await;
    inside.post_text(path, "{").await.problem(400, "malformed-body", None);
    inside.post_text(path, "{\"id\":\"a\"} x").await.problem(400, "malformed-body", None);
    let first = inside.campaign("nightly", candidate("web-1"), true).await;
    let other = json!({"id": "web-1", "session": first["session"], "lease_ms": 5000});
    refused(other, 422, "unfit", Some("lease_ms")).await;
    refused(json!({"id": "b", "slots": 2}), 409, "slots-differ", Some("slots")).await;
}
