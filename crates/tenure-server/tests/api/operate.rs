//! What operators do.

use serde_json::json;
use tenure::port::{AskKind, Pulse};

use super::support::{Inside, inside, key, stand, take};

async fn asks(inside: &Inside, session: &tenure::SessionId) -> Vec<AskKind> {
    match inside.store.beat(session).await.unwrap() {
        Pulse::Alive { asks, .. } => asks.into_iter().map(|ask| ask.kind).collect(),
        Pulse::Gone => panic!("the session is gone"),
    }
}

#[tokio::test]
async fn an_operator_asks_the_leader_to_resign() {
    let inside = inside();
    let session = stand(inside.store.as_ref(), "web-1", "nightly", 0).await;
    inside.post("/v1/elections/nightly/resign", json!({})).await.problem(409, "nobody-leads", None);
    take(inside.store.as_ref(), &session, "nightly").await;
    let answer = inside.post("/v1/elections/nightly/resign", json!({})).await.of(202);
    assert_eq!((&answer["done"], &answer["election"]["leader"]), (&json!(false), &json!("web-1")));
    assert_eq!(asks(&inside, &session).await, [AskKind::Resign]);
    inside.post("/v1/elections/none/resign", json!({})).await.problem(
        404,
        "no-such-election",
        Some("election"),
    );
    inside.post("/v1/elections/nightly/resign", json!({"token": 1})).await.problem(
        422,
        "unfit",
        Some("session"),
    );
}

#[tokio::test]
async fn a_leadership_is_transferred_to_a_candidate_by_id_or_session() {
    let inside = inside();
    let first = stand(inside.store.as_ref(), "web-1", "nightly", 0).await;
    let second = stand(inside.store.as_ref(), "web-2", "nightly", 0).await;
    let path = "/v1/elections/nightly/transfer";
    inside.post(path, json!({"to": "web-2"})).await.problem(409, "nobody-leads", None);
    take(inside.store.as_ref(), &first, "nightly").await;
    inside.post(path, json!({"to": "web-9"})).await.problem(422, "not-standing", Some("to"));
    inside.post(path, json!({})).await.problem(422, "unfit", Some("to"));
    let answer = inside.post(path, json!({"to": second.as_str()})).await.of(202);
    assert_eq!(answer["done"], false);
    assert_eq!(asks(&inside, &first).await, [AskKind::Transfer(second)]);
    let already = inside.post(path, json!({"to": "web-1"})).await.of(200);
    assert_eq!(already["done"], true);
}

#[tokio::test]
async fn a_paused_election_is_led_by_nobody_until_it_is_resumed() {
    let inside = inside();
    inside.post("/v1/elections/nightly/pause", json!({})).await.problem(
        404,
        "no-such-election",
        Some("election"),
    );
    stand(inside.store.as_ref(), "web-0", "nightly", 0).await;
    let paused = inside.post("/v1/elections/nightly/pause", json!({"reason": "moving"})).await.of(200);
    assert_eq!(paused["election"]["paused"]["reason"], "moving");
    assert_eq!(paused["election"]["paused"]["by"], "local");
    let body = json!({"id": "web-1", "priority": 3});
    let answer = inside.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!((&answer["leading"], &answer["standing"]), (&json!(false), &json!("paused")));
    let resumed = inside.post("/v1/elections/nightly/resume", json!({})).await.of(200);
    assert_eq!(resumed["election"]["paused"], json!(null));
    let body = json!({"id": "web-1", "priority": 3, "session": answer["session"], "wait_ms": 3000});
    inside.campaign("nightly", body, true).await;
}

#[tokio::test]
async fn what_operators_did_is_in_the_audit() {
    let inside = inside();
    let session = stand(inside.store.as_ref(), "web-1", "nightly", 0).await;
    take(inside.store.as_ref(), &session, "nightly").await;
    inside.post("/v1/elections/nightly/pause", json!({"reason": "moving"})).await.of(202);
    inside.post("/v1/elections/nightly/pause", json!({"reason": "again"})).await.of(202);
    inside.post("/v1/elections/nightly/resume", json!({})).await.of(200);
    inside.post("/v1/elections/nightly/resign", json!({})).await.of(202);
    let deeds = inside.store.deeds(None, None, 10).await.unwrap();
    let actions: Vec<_> = deeds.iter().map(|deed| deed.action.as_str()).collect();
    assert_eq!(actions, ["resign", "resume", "pause"]);
    assert_eq!(deeds[2].detail, "moving");
    assert!(
        deeds.iter().all(|deed| deed.principal == "local" && deed.target == key("nightly").name.as_str())
    );
}
