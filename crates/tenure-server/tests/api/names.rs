//! Names, shown.

use std::sync::Arc;

use tenure::Tenure;
use tenure::backend::gossip::{Gossip, GossipOptions};
use tenure::backend::memory::Memory;
use tenure::cluster::Registry;
use tenure::port::Backend;
use tenure_server::access::Access;
use tenure_server::{App, Settings};

use super::support::{Inside, inside};

#[tokio::test]
async fn a_name_is_shown_with_who_has_it_and_what_it_says() {
    let inside = inside();
    let tenure = Tenure::builder().shared_store(inside.store.clone()).name("web-1").open().await.unwrap();
    let registry = Registry::strict(&tenure);
    let held = registry.register("printer", [("address", "10.0.0.7:631")]).await.unwrap();
    let shown = inside.get("/v1/names/printer?consistent=true").await;
    let tag = shown.header("etag").to_owned();
    assert!(!tag.is_empty());
    let shown = shown.of(200);
    assert_eq!((&shown["holder"], &shown["token"]), (&"web-1".into(), &held.token().as_u64().into()));
    assert_eq!(shown["metadata"]["address"], "10.0.0.7:631");
    let all = inside.get("/v1/names?consistent=true").await.of(200);
    assert_eq!(all["names"].as_array().unwrap().len(), 1, "those who use the registry are no name: {all}");
    assert_eq!(all["names"][0], shown);
    let page = inside.get("/names").await;
    let text = String::from_utf8_lossy(&page.bytes).into_owned();
    assert!(text.contains("printer") && text.contains("10.0.0.7:631"), "{text}");

    held.unregister().await.unwrap();
    inside.get("/v1/names/printer?consistent=true").await.problem(404, "no-such-name", Some("name"));
    let none = inside.get("/v1/names?consistent=true").await.of(200);
    assert!(none["names"].as_array().unwrap().is_empty());
    // Names apart from those.
    let other = registry.in_namespace("prod".parse().unwrap());
    let _held = other.register("printer", [("address", "10.0.0.8:631")]).await.unwrap();
    inside.get("/v1/names/printer?namespace=prod&consistent=true").await.of(200);
    inside.get("/v1/names?colour=red").await.problem(400, "malformed-query", Some("colour"));
    tenure.close().await.unwrap();
}

#[tokio::test]
async fn names_of_a_cluster_that_gossips_have_no_token() {
    let store: Arc<dyn Backend> = Arc::new(Memory::new());
    let gossip = Gossip::join(GossipOptions::new("127.0.0.1:0").name("web-1")).await.unwrap();
    let settings = Settings { gossip: Some(gossip.clone()), ..Settings::default() };
    let inside = Inside::of(App::with(store.clone(), Access::default(), &settings), store);
    let _held = Registry::soft(&gossip).register("printer", [("zone", "a")]).await.unwrap();
    let shown = inside.get("/v1/names/printer?soft=true").await.of(200);
    assert_eq!((&shown["holder"], &shown["metadata"]["zone"]), (&"web-1".into(), &"a".into()));
    assert!(shown.get("token").is_none(), "{shown}");
    assert_eq!(inside.get("/v1/names?soft=true").await.of(200)["names"][0], shown);
    inside.get("/v1/names/scanner?soft=true").await.problem(404, "no-such-name", Some("name"));
    assert!(
        inside.get("/v1/names").await.of(200)["names"].as_array().unwrap().is_empty(),
        "the store has none"
    );
    let page = inside.get("/names").await;
    assert!(String::from_utf8_lossy(&page.bytes).contains("by gossip"));
    gossip.leave().await;
    super::support::inside().get("/v1/names?soft=true").await.problem(404, "no-gossip", None);
}
