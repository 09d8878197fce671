//! Registered names.

use std::sync::Arc;

use tenure::Tenure;
use tenure::cluster::Registry;
use tenure::port::Store;
use tenure::store::gossip::{Gossip, GossipOptions};
use tenure::store::memory::MemoryStore;
use tenure_server::access::AccessMode;
use tenure_server::{App, Settings};

use super::support::{TestApp, test_app};

#[tokio::test]
async fn a_registered_name_has_its_holder_and_metadata() {
    let app = test_app();
    let tenure = Tenure::builder().shared_store(app.store.clone()).name("web-1").open().await.unwrap();
    let registry = Registry::strict(&tenure);
    let held = registry.register("printer", [("address", "10.0.0.7:631")]).await.unwrap();
    let shown = app.get("/v1/names/printer?consistent=true").await;
    let tag = shown.header("etag").to_owned();
    assert!(!tag.is_empty());
    let shown = shown.of(200);
    assert_eq!((&shown["holder"], &shown["token"]), (&"web-1".into(), &held.token().as_u64().into()));
    assert_eq!(shown["metadata"]["address"], "10.0.0.7:631");
    let all = app.get("/v1/names?consistent=true").await.of(200);
    assert_eq!(
        all["names"].as_array().unwrap().len(),
        1,
        "users of the registry are not listed as names: {all}"
    );
    assert_eq!(all["names"][0], shown);
    let page = app.get("/names").await;
    let text = String::from_utf8_lossy(&page.bytes).into_owned();
    assert!(text.contains("printer") && text.contains("10.0.0.7:631"), "{text}");

    held.unregister().await.unwrap();
    app.get("/v1/names/printer?consistent=true").await.problem(404, "no-such-name", Some("name"));
    let none = app.get("/v1/names?consistent=true").await.of(200);
    assert!(none["names"].as_array().unwrap().is_empty());
    // Names of another namespace.
    let other = registry.in_namespace("prod".parse().unwrap());
    let _held = other.register("printer", [("address", "10.0.0.8:631")]).await.unwrap();
    app.get("/v1/names/printer?namespace=prod&consistent=true").await.of(200);
    app.get("/v1/names?colour=red").await.problem(400, "malformed-query", Some("colour"));
    tenure.close().await.unwrap();
}

#[tokio::test]
async fn soft_names_have_no_token() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let gossip = Gossip::join(GossipOptions::new("127.0.0.1:0").name("web-1")).await.unwrap();
    let settings = Settings { gossip: Some(gossip.clone()), ..Settings::default() };
    let app = TestApp::of(App::with(store.clone(), AccessMode::default(), &settings), store);
    let _held = Registry::soft(&gossip).register("printer", [("zone", "a")]).await.unwrap();
    let shown = app.get("/v1/names/printer?soft=true").await.of(200);
    assert_eq!((&shown["holder"], &shown["metadata"]["zone"]), (&"web-1".into(), &"a".into()));
    assert!(shown.get("token").is_none(), "{shown}");
    assert_eq!(app.get("/v1/names?soft=true").await.of(200)["names"][0], shown);
    app.get("/v1/names/scanner?soft=true").await.problem(404, "no-such-name", Some("name"));
    assert!(app.get("/v1/names").await.of(200)["names"].as_array().unwrap().is_empty(), "the store has none");
    let page = app.get("/names").await;
    assert!(String::from_utf8_lossy(&page.bytes).contains("over gossip"));
    gossip.leave().await;
    super::support::test_app().get("/v1/names?soft=true").await.problem(404, "gossip-disabled", None);
}
