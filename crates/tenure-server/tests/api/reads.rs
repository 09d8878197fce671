//! Reads of elections and of the API document.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Request;
use serde_json::json;
use tenure::port::{Candidacy, ElectionStore as _, ReleaseLeaseRequest, StartReason, Store};
use tenure::store::memory::MemoryStore;
use tenure::{ElectionKey, Name};

use super::support::{candidate, join, key, on, open, take, test_app};

#[tokio::test]
async fn an_unknown_election_is_a_problem_with_a_remedy() {
    let app = test_app();
    let answer = app.get("/v1/elections/nightly").await;
    assert!(answer.json()["remedy"].as_str().unwrap().contains("/v1/elections"));
    answer.problem(404, "no-such-election", Some("election"));
    app.get("/v1/elections/nightly/leader").await.problem(404, "no-such-election", Some("election"));
    app.get("/v1/elections/nightly/terms").await.problem(404, "no-such-election", Some("election"));
}

#[tokio::test]
async fn invalid_names_and_numbers_are_rejected_with_the_field() {
    let app = test_app();
    app.get("/v1/elections/%20night").await.problem(400, "malformed-path", Some("election"));
    app.get("/v1/elections/a?namespace=a/b").await.problem(400, "malformed-query", Some("namespace"));
    app.get("/v1/elections/a?consistent=maybe").await.problem(400, "malformed-query", Some("consistent"));
    app.get("/v1/elections/a?colour=red").await.problem(400, "malformed-query", Some("colour"));
    // A misspelled parameter does not select the default namespace.
    for path in ["campaign", "pause", "resign", "transfer"] {
        let path = format!("/v1/elections/a/{path}?Namespace=prod");
        app.post(&path, json!({"name": "x"})).await.problem(400, "malformed-query", Some("Namespace"));
    }
    for path in
        ["/elections/a?Namespace=prod", "/?Namespace=prod", "/audit?After=3", "/elections/a/pause?ns=b"]
    {
        assert_eq!(app.get(path).await.status, 400, "{path}");
    }
    app.get("/v1/elections?limit=0").await.problem(400, "malformed-query", Some("limit"));
    app.get("/v1/elections?limit=-1").await.problem(400, "malformed-query", Some("limit"));
    app.get("/v1/elections?limit=1001").await.problem(400, "malformed-query", Some("limit"));
    app.get("/v1/elections?cursor=nightly").await.problem(400, "malformed-query", Some("cursor"));
    app.get("/v1/elections/a/terms?limit=101").await.problem(400, "malformed-query", Some("limit"));
}

#[tokio::test]
async fn a_leader_has_its_token_and_an_etag() {
    let app = test_app();
    app.get("/v1/elections").await.of(200);
    let session = join(app.store.as_ref(), "web-1", "nightly", 5).await;
    let path = "/v1/elections/nightly/leader";
    assert_eq!(app.get(&format!("{path}?consistent=true")).await.status, 204);
    let token = take(app.store.as_ref(), &session, "nightly").await;
    let leader = app.get(&format!("{path}?consistent=true")).await;
    let tag = leader.header("etag").to_owned();
    assert!(leader.header("tenure-snapshot-age-ms").parse::<u64>().is_ok());
    let body = leader.of(200);
    assert_eq!(body["name"], "web-1");
    assert_eq!(body["token"], token.as_u64());
    assert_eq!(body["session"], session.as_str());
    // A client with the same version gets no body.
    let again = Request::get(path).header("host", "localhost").header("if-none-match", &tag);
    let again = app.send(again.body(Body::empty()).unwrap()).await;
    assert_eq!((again.status.as_u16(), again.bytes.len()), (304, 0));
    let show = app.get("/v1/elections/nightly").await;
    assert_eq!(show.header("etag"), tag);
    let show = show.of(200);
    assert_eq!((&show["leader"], &show["name"]), (&json!("web-1"), &json!("nightly")));
    assert_eq!(app.get(&format!("{path}?slot=1")).await.status, 204);
    let candidates = app.get("/v1/elections/nightly/candidates").await.of(200);
    assert_eq!(candidates["candidates"][0]["slot"], 0);
    assert!(candidates["candidates"][0]["lease_remaining_ms"].as_u64().is_none_or(|ms| ms <= 6666));
    let history = app.get("/v1/elections/nightly/terms?limit=1").await.of(200);
    assert_eq!(history["terms"][0]["token"], token.as_u64());
}

#[tokio::test]
async fn the_version_is_the_same_on_every_replica_and_independent_of_heartbeats() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (a, b) = (on(store.clone()), on(store.clone()));
    let session = join(store.as_ref(), "web-1", "nightly", 0).await;
    let path = "/v1/elections/nightly?consistent=true";
    let first = a.get(path).await.of(200);
    store.heartbeat(&session).await.unwrap();
    let second = b.get(path).await.of(200);
    assert_ne!(
        first["candidates"][0]["session"]["heartbeat_count"],
        second["candidates"][0]["session"]["heartbeat_count"]
    );
    assert_eq!(first["version"], second["version"]);
    take(store.as_ref(), &session, "nightly").await;
    assert_ne!(a.get(path).await.of(200)["version"], second["version"]);
}

#[tokio::test]
async fn a_notification_refreshes_the_snapshot() {
    let app = test_app();
    let mut changes = app.app.elections().changes();
    app.app.elections().ready().await.unwrap();
    let session = join(app.store.as_ref(), "web-1", "nightly", 0).await;
    let token = take(app.store.as_ref(), &session, "nightly").await;
    let led = || {
        app.app
            .elections()
            .snapshot()
            .elections
            .get(&key("nightly"))
            .is_some_and(|entry| entry.holders().count() == 1)
    };
    while !led() {
        changes.changed().await.unwrap();
    }
    let release = ReleaseLeaseRequest {
        session,
        election: key("nightly"),
        slot: 0,
        token,
        successor: None,
        start_reason: StartReason::Release,
        leave: true,
    };
    app.store.release_lease(&release).await.unwrap();
    while led() {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn elections_are_listed_in_pages() {
    let app = test_app();
    let session = open(app.store.as_ref(), Duration::from_secs(60)).await;
    for n in 0..250 {
        let namespace: Name = if n % 2 == 0 { "even" } else { "odd" }.parse().unwrap();
        let election = ElectionKey::new(namespace, format!("e{n:03}").parse().unwrap());
        app.store.join_election(&Candidacy::new(session.clone(), election)).await.unwrap();
    }
    let (mut path, mut names) = ("/v1/elections?limit=100&consistent=true".to_owned(), Vec::new());
    loop {
        let page = app.get(&path).await.of(200);
        let elections = page["elections"].as_array().unwrap();
        assert!(elections.len() <= 100);
        names.extend(elections.iter().map(|e| format!("{}/{}", e["namespace"], e["name"])));
        let Some(next) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/elections?limit=100&cursor={next}");
    }
    assert_eq!(names.len(), 250);
    assert!(names.is_sorted());
    let odd = app.get("/v1/elections?namespace=odd&limit=1000").await.of(200);
    assert_eq!(odd["elections"].as_array().unwrap().len(), 125);
    assert_eq!(odd["next_cursor"], json!(null));
}

#[tokio::test]
async fn the_store_status_has_guarantees_and_findings() {
    let app = test_app();
    app.campaign("nightly", candidate("web-1"), true).await;
    let store = app.get("/v1/store").await.of(200);
    assert_eq!(store["guarantees"]["backend"], "memory");
    assert_eq!(store["ok"], true);
    assert_eq!(store["findings"], json!([]));
}

#[tokio::test]
async fn the_openapi_document_and_the_page_describe_every_public_route() {
    let app = test_app();
    let document = app.get("/openapi.json").await.of(200);
    let page = app.get("/docs").await;
    assert!(page.header("content-type").starts_with("text/html"));
    let page = String::from_utf8(page.bytes).unwrap();
    for entry in app.app.routes().table().iter().filter(|entry| entry.path.starts_with("/v1/")) {
        let operation = &document["paths"][&entry.path][entry.method.as_str().to_lowercase()];
        assert!(operation["responses"]["429"].is_object(), "{entry:?} is not described");
        assert!(page.contains(&entry.path), "{entry:?} is not on the page");
    }
    assert!(!page.contains("style=") && !page.contains("onclick"));
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.keys().all(|path| path.starts_with("/v1/")), "internal routes are not documented");
    let mut ids = std::collections::BTreeSet::new();
    for operation in paths.values().flat_map(|item| item.as_object().unwrap().values()) {
        let Some(id) = operation["operationId"].as_str() else { continue };
        assert!(ids.insert(id.to_owned()), "operationId {id} is not unique");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_large_elections_are_limited_in_bytes() {
    let store = MemoryStore::new();
    let session = open(&store, Duration::from_secs(60)).await;
    for n in 0..30 {
        let metadata = [("x".to_owned(), "x".repeat(100_000))].into();
        let name = key(&format!("large-{n:02}"));
        store.join_election(&Candidacy { metadata, ..Candidacy::new(session.clone(), name) }).await.unwrap();
    }
    let app = on(Arc::new(store));
    let (mut found, mut path) = (Vec::new(), "/v1/elections?consistent=true".to_owned());
    loop {
        let answer = app.get(&path).await;
        assert!(answer.bytes.len() <= (1 << 20) + 1000, "{} bytes", answer.bytes.len());
        let page = answer.of(200);
        found.extend(page["elections"].as_array().unwrap().iter().map(|e| e["name"].to_string()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/elections?cursor={next}");
    }
    assert_eq!(found.len(), 30);
    assert!(found.is_sorted());
}
