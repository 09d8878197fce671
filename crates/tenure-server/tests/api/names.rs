//! Names, shown.

use tenure::Tenure;
use tenure::cluster::Registry;

use super::support::inside;

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
