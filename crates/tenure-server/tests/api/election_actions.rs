//! Operator actions on elections.

use serde_json::json;
use tenure::port::{HeartbeatResponse, LeaderRequestKind};

use super::support::{TestApp, join, key, take, test_app};

async fn leader_requests(app: &TestApp, session: &tenure::SessionId) -> Vec<LeaderRequestKind> {
    match app.store.heartbeat(session).await.unwrap() {
        HeartbeatResponse::Live { leader_requests, .. } => {
            leader_requests.into_iter().map(|request| request.kind).collect()
        }
        HeartbeatResponse::SessionEnded => panic!("the session has ended"),
    }
}

#[tokio::test]
async fn an_operator_asks_the_leader_to_resign() {
    let app = test_app();
    let session = join(app.store.as_ref(), "web-1", "nightly", 0).await;
    app.post("/v1/elections/nightly/resign", json!({})).await.problem(409, "no-leader", None);
    take(app.store.as_ref(), &session, "nightly").await;
    let answer = app.post("/v1/elections/nightly/resign", json!({})).await.of(202);
    assert_eq!((&answer["completed"], &answer["election"]["leader"]), (&json!(false), &json!("web-1")));
    assert_eq!(leader_requests(&app, &session).await, [LeaderRequestKind::Resign]);
    app.post("/v1/elections/none/resign", json!({})).await.problem(404, "no-such-election", Some("election"));
    app.post("/v1/elections/nightly/resign", json!({"token": 1})).await.problem(
        422,
        "invalid-value",
        Some("session"),
    );
}

#[tokio::test]
async fn the_leadership_is_transferred_to_a_candidate_by_name_or_session() {
    let app = test_app();
    let first = join(app.store.as_ref(), "web-1", "nightly", 0).await;
    let second = join(app.store.as_ref(), "web-2", "nightly", 0).await;
    let path = "/v1/elections/nightly/transfer";
    app.post(path, json!({"to": "web-2"})).await.problem(409, "no-leader", None);
    take(app.store.as_ref(), &first, "nightly").await;
    app.post(path, json!({"to": "web-9"})).await.problem(422, "no-such-candidate", Some("to"));
    app.post(path, json!({})).await.problem(422, "invalid-value", Some("to"));
    let answer = app.post(path, json!({"to": second.as_str()})).await.of(202);
    assert_eq!(answer["completed"], false);
    assert_eq!(leader_requests(&app, &first).await, [LeaderRequestKind::Transfer(second)]);
    let already = app.post(path, json!({"to": "web-1"})).await.of(200);
    assert_eq!(already["completed"], true);
}

#[tokio::test]
async fn a_paused_election_has_no_leader_until_it_is_resumed() {
    let app = test_app();
    app.post("/v1/elections/nightly/pause", json!({})).await.problem(
        404,
        "no-such-election",
        Some("election"),
    );
    join(app.store.as_ref(), "web-0", "nightly", 0).await;
    let paused = app.post("/v1/elections/nightly/pause", json!({"reason": "moving"})).await.of(200);
    assert_eq!(paused["election"]["paused"]["reason"], "moving");
    assert_eq!(paused["election"]["paused"]["paused_by"], "local");
    let body = json!({"name": "web-1", "priority": 3});
    let answer = app.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!((&answer["leading"], &answer["status"]), (&json!(false), &json!("paused")));
    let resumed = app.post("/v1/elections/nightly/resume", json!({})).await.of(200);
    assert_eq!(resumed["election"]["paused"], json!(null));
    let body = json!({"name": "web-1", "priority": 3, "session": answer["session"], "wait_ms": 3000});
    app.campaign("nightly", body, true).await;
}

#[tokio::test]
async fn operator_actions_are_in_the_audit_log() {
    let app = test_app();
    let session = join(app.store.as_ref(), "web-1", "nightly", 0).await;
    take(app.store.as_ref(), &session, "nightly").await;
    app.post("/v1/elections/nightly/pause", json!({"reason": "moving"})).await.of(202);
    app.post("/v1/elections/nightly/pause", json!({"reason": "again"})).await.of(202);
    app.post("/v1/elections/nightly/resume", json!({})).await.of(200);
    app.post("/v1/elections/nightly/resign", json!({})).await.of(202);
    let entries = app.store.audit_entries(None, None, 10).await.unwrap();
    let actions: Vec<_> = entries.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["election.resign", "election.resume", "election.pause"]);
    assert_eq!(entries[2].detail, "moving");
    assert!(
        entries
            .iter()
            .all(|entry| entry.principal == "local" && entry.target == key("nightly").name.as_str())
    );
}
