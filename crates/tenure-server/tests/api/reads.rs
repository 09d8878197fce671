//! What is shown, from memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use serde_json::json;
use tenure::backend::memory::Memory;
use tenure::port::{Backend, Candidacy, Release, Store as _, Via};
use tenure::{ElectionKey, Name};

use super::support::{candidate, inside, key, on, open, stand, take};

#[tokio::test]
async fn an_unknown_election_is_a_problem_that_says_what_to_do() {
    let inside = inside();
    let answer = inside.get("/v1/elections/nightly").await;
    assert!(answer.json()["remedy"].as_str().unwrap().contains("/v1/elections"));
    answer.problem(404, "no-such-election", Some("election"));
    inside.get("/v1/elections/nightly/leader").await.problem(404, "no-such-election", Some("election"));
    inside.get("/v1/elections/nightly/history").await.problem(404, "no-such-election", Some("election"));
}

#[tokio::test]
async fn bad_names_and_numbers_are_refused_with_the_field() {
    let inside = inside();
    inside.get("/v1/elections/%20night").await.problem(400, "malformed-path", Some("election"));
    inside.get("/v1/elections/a?namespace=a/b").await.problem(400, "malformed-query", Some("namespace"));
    inside.get("/v1/elections/a?consistent=maybe").await.problem(400, "malformed-query", Some("consistent"));
    inside.get("/v1/elections/a?colour=red").await.problem(400, "malformed-query", Some("colour"));
    // A namespace that is written wrongly is not the default one.
    for path in ["campaign", "pause", "resign", "ask"] {
        let path = format!("/v1/elections/a/{path}?Namespace=prod");
        inside.post(&path, json!({"id": "x"})).await.problem(400, "malformed-query", Some("Namespace"));
    }
    for path in
        ["/elections/a?Namespace=prod", "/?Namespace=prod", "/audit?After=3", "/elections/a/pause?ns=b"]
    {
        assert_eq!(inside.get(path).await.status, 400, "{path}");
    }
    inside.get("/v1/elections?limit=0").await.problem(400, "malformed-query", Some("limit"));
    inside.get("/v1/elections?limit=-1").await.problem(400, "malformed-query", Some("limit"));
    inside.get("/v1/elections?limit=1001").await.problem(400, "malformed-query", Some("limit"));
    inside.get("/v1/elections?after=nightly").await.problem(400, "malformed-query", Some("after"));
    inside.get("/v1/elections/a/history?limit=101").await.problem(400, "malformed-query", Some("limit"));
}

#[tokio::test]
async fn a_leader_is_shown_with_its_token_and_a_tag() {
    let inside = inside();
    inside.get("/v1/elections").await.of(200);
    let session = stand(inside.store.as_ref(), "web-1", "nightly", 5).await;
    let path = "/v1/elections/nightly/leader";
    assert_eq!(inside.get(&format!("{path}?consistent=true")).await.status, 204);
    let token = take(inside.store.as_ref(), &session, "nightly").await;
    let leader = inside.get(&format!("{path}?consistent=true")).await;
    let tag = leader.header("etag").to_owned();
    assert!(leader.header("tenure-age-ms").parse::<u64>().is_ok());
    let body = leader.of(200);
    assert_eq!(body["id"], "web-1");
    assert_eq!(body["token"], token.as_u64());
    assert_eq!(body["session"], session.as_str());
    // Those who have it already get nothing.
    let again = Request::get(path).header("host", "localhost").header("if-none-match", &tag);
    let again = inside.send(again.body(Body::empty()).unwrap()).await;
    assert_eq!((again.status.as_u16(), again.bytes.len()), (304, 0));
    let show = inside.get("/v1/elections/nightly").await;
    assert_eq!(show.header("etag"), tag);
    let show = show.of(200);
    assert_eq!((&show["leader"], &show["name"]), (&json!("web-1"), &json!("nightly")));
    assert_eq!(inside.get(&format!("{path}?slot=1")).await.status, 204);
    let candidates = inside.get("/v1/elections/nightly/candidates").await.of(200);
    assert_eq!(candidates["candidates"][0]["slot"], 0);
    assert!(candidates["candidates"][0]["trust_ms"].as_u64().is_none_or(|ms| ms <= 6666));
    let history = inside.get("/v1/elections/nightly/history?limit=1").await.of(200);
    assert_eq!(history["terms"][0]["token"], token.as_u64());
}

#[tokio::test]
async fn the_version_is_the_same_on_every_replica_and_does_not_change_with_beats() {
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let (a, b) = (on(store.clone()), on(store.clone()));
    let session = stand(store.as_ref(), "web-1", "nightly", 0).await;
    let path = "/v1/elections/nightly?consistent=true";
    let first = a.get(path).await.of(200);
    store.beat(&session).await.unwrap();
    let second = b.get(path).await.of(200);
    assert_ne!(first["candidates"][0]["session"]["beat"], second["candidates"][0]["session"]["beat"]);
    assert_eq!(first["version"], second["version"]);
    take(store.as_ref(), &session, "nightly").await;
    assert_ne!(a.get(path).await.of(200)["version"], second["version"]);
}

#[tokio::test]
async fn a_hint_is_enough_for_the_board_to_look() {
    let inside = inside();
    let mut changes = inside.app.board().changes();
    inside.app.board().known().await.unwrap();
    let session = stand(inside.store.as_ref(), "web-1", "nightly", 0).await;
    let token = take(inside.store.as_ref(), &session, "nightly").await;
    let led = || {
        inside
            .app
            .board()
            .seen()
            .elections
            .get(&key("nightly"))
            .is_some_and(|entry| entry.holders().count() == 1)
    };
    while !led() {
        changes.changed().await.unwrap();
    }
    let release = Release {
        session,
        election: key("nightly"),
        slot: 0,
        token,
        successor: None,
        via: Via::Release,
        leave: true,
    };
    inside.store.release(&release).await.unwrap();
    while led() {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn a_thousand_elections_come_in_pages() {
    let inside = inside();
    let session = open(inside.store.as_ref(), Duration::from_secs(60)).await;
    for n in 0..250 {
        let namespace: Name = if n % 2 == 0 { "even" } else { "odd" }.parse().unwrap();
        let election = ElectionKey::new(namespace, format!("e{n:03}").parse().unwrap());
        inside.store.join(&Candidacy::new(session.clone(), election)).await.unwrap();
    }
    let (mut path, mut names) = ("/v1/elections?limit=100&consistent=true".to_owned(), Vec::new());
    loop {
        let page = inside.get(&path).await.of(200);
        let elections = page["elections"].as_array().unwrap();
        assert!(elections.len() <= 100);
        names.extend(elections.iter().map(|e| format!("{}/{}", e["namespace"], e["name"])));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/elections?limit=100&after={next}");
    }
    assert_eq!(names.len(), 250);
    assert!(names.is_sorted());
    let odd = inside.get("/v1/elections?namespace=odd&limit=1000").await.of(200);
    assert_eq!(odd["elections"].as_array().unwrap().len(), 125);
    assert_eq!(odd["next"], json!(null));
}

#[tokio::test]
async fn the_store_is_shown() {
    let inside = inside();
    inside.campaign("nightly", candidate("web-1"), true).await;
    let store = inside.get("/v1/store").await.of(200);
    assert_eq!(store["promises"]["backend"], "memory");
    assert_eq!(store["ok"], true);
    assert_eq!(store["findings"], json!([]));
}

#[tokio::test]
async fn the_document_describes_every_route_of_the_api_and_the_page_shows_them_all() {
    let inside = inside();
    let document = inside.get("/openapi.json").await.of(200);
    let page = inside.get("/docs").await;
    assert!(page.header("content-type").starts_with("text/html"));
    let page = String::from_utf8(page.bytes).unwrap();
    for entry in inside.app.routes().table().iter().filter(|entry| entry.path.starts_with("/v1/")) {
        let operation = &document["paths"][&entry.path][entry.method.as_str().to_lowercase()];
        assert!(operation["responses"]["429"].is_object(), "{entry:?} is not described");
        assert!(page.contains(&entry.path), "{entry:?} is not on the page");
    }
    assert!(!page.contains("style=") && !page.contains("onclick"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_large_elections_is_no_larger_than_others() {
    let store = Memory::new();
    let session = open(&store, Duration::from_secs(60)).await;
    for n in 0..30 {
        let metadata = [("x".to_owned(), "x".repeat(100_000))].into();
        let name = key(&format!("large-{n:02}"));
        store.join(&Candidacy { metadata, ..Candidacy::new(session.clone(), name) }).await.unwrap();
    }
    let inside = on(Arc::new(store));
    let (mut found, mut path) = (Vec::new(), "/v1/elections?consistent=true".to_owned());
    loop {
        let answer = inside.get(&path).await;
        assert!(answer.bytes.len() <= (1 << 20) + 1000, "{} bytes", answer.bytes.len());
        let page = answer.of(200);
        found.extend(page["elections"].as_array().unwrap().iter().map(|e| e["name"].to_string()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/elections?after={next}");
    }
    assert_eq!(found.len(), 30);
    assert!(found.is_sorted());
}
