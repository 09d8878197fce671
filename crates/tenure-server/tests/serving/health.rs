//! Health checks.

use tenure::Tenure;
use tenure_server::Settings;

use crate::support::{guarded, settings, test_server, until};

#[tokio::test]
async fn a_started_server_is_alive_and_becomes_ready() {
    let fixture = guarded().await;
    assert_eq!(fixture.get("/healthz").await.status, 200);
    until("it is ready", async || fixture.get("/readyz").await.status == 200).await;
}

#[tokio::test]
async fn readiness_by_leader_depends_on_the_name() {
    let fixture = test_server(Settings { name: "node-1".into(), ..settings() }).await;
    until("it is ready", async || fixture.get("/readyz").await.status == 200).await;
    // Unauthenticated clients cannot distinguish an election led elsewhere from an unknown one.
    let none = fixture.get("/readyz?leader=web&namespace=prod").await;
    assert_eq!((none.status, none.code().as_str()), (503, "not-leader"));

    let open = async |name: &str| {
        Tenure::builder().store(fixture.store.clone()).name(name).open().await.expect("a session")
    };
    let there = open("node-2").await;
    let elsewhere = there.elector("web").namespace("prod").start().await.expect("a candidate");
    let _leads = elsewhere.elected().await.expect("elected");
    let led = fixture.get("/readyz?leader=web&namespace=prod").await;
    assert_eq!((led.status, &led.body), (none.status, &none.body));

    let here = open("node-1").await;
    let elector = here.elector("db").namespace("prod").start().await.expect("a candidate");
    let _leads = elector.elected().await.expect("elected");
    until("the leader is on this node", async || {
        fixture.get("/readyz?leader=db&namespace=prod").await.status == 200
    })
    .await;
    assert_eq!(fixture.get("/readyz?leader=db").await.status, 503, "another namespace");
    assert_eq!(fixture.get("/readyz?leader=db%20x").await.status, 400);
    assert_eq!(fixture.get("/readyz?lead=db").await.status, 400);
}

#[tokio::test]
async fn replicas_are_listed_and_one_is_the_coordinator() {
    let first = test_server(Settings { name: "a".into(), priority: 10, ..settings() }).await;
    let second = Settings { name: "b".into(), advertise: Some("https://b.example".into()), ..settings() };
    let second =
        tenure_server::Server::start(second, crate::support::shared(&first.store)).await.expect("a server");
    until("both are seen", async || {
        let list = first.get("/v1/replicas").await.json();
        let replicas = list["replicas"].as_array().cloned().unwrap_or_default();
        replicas.len() == 2
            && replicas[0]["name"] == "a"
            && replicas[0]["self"] == true
            && replicas[0]["coordinator"] == true
            && replicas[0]["address"] == format!("http://{}", first.address())
            && replicas[1]["name"] == "b"
            && replicas[1]["self"] == false
            && replicas[1]["address"] == "https://b.example"
            && replicas[1]["version"] == env!("CARGO_PKG_VERSION")
    })
    .await;
    second.shutdown().await;
    until("the other has left", async || {
        first.get("/v1/replicas").await.json()["replicas"].as_array().is_some_and(|list| list.len() == 1)
    })
    .await;
}

/// Regression: `serve --priority` did not apply to the election of the broker.
#[tokio::test]
async fn the_priority_of_a_server_applies_to_all_its_elections() {
    let first = test_server(Settings { name: "a".into(), priority: 5, ..settings() }).await;
    let second = Settings { name: "b".into(), priority: 50, ..settings() };
    let second =
        tenure_server::Server::start(second, crate::support::shared(&first.store)).await.expect("a server");
    for election in ["coordinator", "broker", "scheduler"] {
        until("the highest priority leads", async || {
            let found = first.get(&format!("/v1/elections/{election}/leader?namespace=tenure")).await;
            found.status == 200 && found.json()["name"] == "b"
        })
        .await;
    }
    second.shutdown().await;
}
