//! Clients of servers that die, on stores that several servers share.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::backend::StoreOptions;
use tenure::port::Backend;
use tenure_server::settings::Address;
use tenure_server::{Server, Settings};
use tenure_testkit::rig::{FreshDatabase, fresh_database};
use tokio::process::Command;

use super::support::{Inside, at, candidate, on, sqlite};

async fn postgres() -> (FreshDatabase, Arc<dyn Backend>, Arc<dyn Backend>) {
    let database = fresh_database().unwrap();
    let options = StoreOptions { url: database.url().into(), ..StoreOptions::default() };
    tenure::backend::migrator(&options).await.unwrap().migrate().await.unwrap();
    let (a, b) = (at(database.url()).await, at(database.url()).await);
    (database, a, b)
}

async fn renew(inside: &Inside, answer: &Value) -> Value {
    inside
        .post(&format!("/v1/sessions/{}/renew", answer["session"].as_str().unwrap()), json!({}))
        .await
        .of(200)
}

/// Campaigns through one, goes on through the other, and nobody else gets in between.
async fn moves_on(a: Inside, b: Inside) {
    let first = a.campaign("nightly", candidate("web-1"), true).await;
    let other = b.post("/v1/elections/nightly/campaign", json!({"id": "web-2"})).await.of(200);
    assert_eq!((&other["leading"], &other["leader"]["id"]), (&json!(false), &json!("web-1")));
    drop(a);
    assert_eq!(renew(&b, &first).await["state"], "alive");
    let mut body = candidate("web-1");
    (body["session"], body["token"]) = (first["session"].clone(), first["token"].clone());
    let again = b.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!((&again["leading"], &again["token"]), (&json!(true), &first["token"]));
    let resign = json!({"session": first["session"], "token": first["token"]});
    b.post("/v1/elections/nightly/resign", resign).await.of(200);
    let body = json!({"id": "web-2", "session": other["session"], "wait_ms": 3000});
    let second = b.campaign("nightly", body, true).await;
    assert!(second["token"].as_u64() > first["token"].as_u64());
}

#[tokio::test]
async fn a_client_moves_to_another_replica_and_keeps_its_token_on_postgres() {
    let (_database, a, b) = postgres().await;
    moves_on(on(a), on(b)).await;
}

#[tokio::test]
async fn a_client_moves_to_another_replica_and_keeps_its_token_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    moves_on(on(sqlite(folder.path()).await), on(sqlite(folder.path()).await)).await;
}

/// A server that is gone has seen nobody silent: the other one waits out the whole lease by itself, and only then takes
/// over, with a greater token.
#[tokio::test]
async fn a_holder_that_fell_silent_is_taken_over_through_another_replica() {
    let (_database, a, b) = postgres().await;
    let (a, b) = (on(a), on(b));
    let body = json!({"id": "web-1", "lease_ms": 1000});
    let first = a.campaign("nightly", body, true).await;
    drop(a);
    let body = json!({"id": "web-2", "lease_ms": 60_000, "wait_ms": 20_000});
    let second = b.campaign("nightly", body, true).await;
    assert!(second["token"].as_u64() > first["token"].as_u64());
    let history = b.get("/v1/elections/nightly/history?consistent=true").await.of(200);
    assert_eq!(history["terms"][0]["via"], "takeover");
    b.post(&format!("/v1/sessions/{}/renew", first["session"].as_str().unwrap()), json!({})).await.problem(
        410,
        "session-gone",
        None,
    );
}

async fn serve(store: Arc<dyn Backend>, name: &str) -> (Server, String) {
    let listen = vec![Address::Tcp("127.0.0.1:0".into())];
    let settings = Settings { listen, name: name.into(), ..Settings::default() };
    let server = Server::start(settings, store).await.unwrap();
    let address = format!("http://{}", server.addresses()[0].socket_addr().unwrap());
    (server, address)
}

async fn curl(url: &str, body: Value) -> Option<Value> {
    let output = Command::new("curl")
        .args(["-sS", "-m", "30", url, "-H", "content-type: application/json", "-d", &body.to_string()])
        .kill_on_drop(true)
        .output()
        .await
        .expect("this test needs curl");
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// The same with curl and real sockets: a campaign that waits at a server which ends is asked again at the other one.
#[tokio::test(flavor = "multi_thread")]
async fn curl_waits_at_a_server_that_ends_and_leads_through_another() {
    let (_database, a, b) = postgres().await;
    let ((first, at_a), (second, at_b)) = (serve(a, "a").await, serve(b, "b").await);
    let holder = curl(&format!("{at_b}/v1/elections/nightly/campaign"), candidate("web-1")).await.unwrap();
    assert_eq!(holder["leading"], true);
    let body = json!({"id": "web-2", "lease_ms": 120_000, "wait_ms": 30_000});
    let opened =
        curl(&format!("{at_a}/v1/elections/nightly/campaign"), json!({"id": "web-2", "lease_ms": 120_000}))
            .await
            .unwrap();
    let mut waits = body.clone();
    waits["session"] = opened["session"].clone();
    let (url, again) = (format!("{at_a}/v1/elections/nightly/campaign"), waits.clone());
    let waiting = tokio::spawn(async move { curl(&url, waits).await });
    // Whether it waits already does not matter: either way it is answered, or has to ask elsewhere.
    first.shutdown().await;
    let told = waiting.await.unwrap();
    assert!(told.is_none_or(|told| told["leading"] == false));
    let resign = json!({"session": holder["session"], "token": holder["token"]});
    assert_eq!(curl(&format!("{at_b}/v1/elections/nightly/resign"), resign).await.unwrap()["done"], true);
    let led = curl(&format!("{at_b}/v1/elections/nightly/campaign"), again).await.unwrap();
    assert_eq!(led["leading"], true, "{led}");
    assert_eq!(led["session"], opened["session"]);
    tokio::time::timeout(Duration::from_secs(60), second.shutdown()).await.unwrap();
}
