//! Clients that continue at another server.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::port::Store;
use tenure::store::StoreOptions;
use tenure_server::settings::ListenAddress;
use tenure_server::{Server, Settings};
use tenure_testkit::rig::{FreshDatabase, fresh_database};
use tokio::process::Command;

use super::support::{TestApp, at, candidate, on, sqlite};

async fn postgres() -> (FreshDatabase, Arc<dyn Store>, Arc<dyn Store>) {
    let database = fresh_database().unwrap();
    let options = StoreOptions { url: database.url().into(), ..StoreOptions::default() };
    tenure::store::migrator(&options).await.unwrap().migrate().await.unwrap();
    let (a, b) = (at(database.url()).await, at(database.url()).await);
    (database, a, b)
}

async fn heartbeat(app: &TestApp, answer: &Value) -> Value {
    app.post(&format!("/v1/sessions/{}/heartbeat", answer["session"].as_str().unwrap()), json!({}))
        .await
        .of(200)
}

/// Campaign through one server and continue through the other without losing the lease.
async fn continues_at_another_server(a: TestApp, b: TestApp) {
    let first = a.campaign("nightly", candidate("web-1"), true).await;
    let other = b.post("/v1/elections/nightly/campaign", json!({"name": "web-2"})).await.of(200);
    assert_eq!((&other["leading"], &other["leader"]["name"]), (&json!(false), &json!("web-1")));
    drop(a);
    assert_eq!(heartbeat(&b, &first).await["state"], "live");
    let mut body = candidate("web-1");
    (body["session"], body["token"]) = (first["session"].clone(), first["token"].clone());
    let again = b.post("/v1/elections/nightly/campaign", body).await.of(200);
    assert_eq!((&again["leading"], &again["token"]), (&json!(true), &first["token"]));
    let resign = json!({"session": first["session"], "token": first["token"]});
    b.post("/v1/elections/nightly/resign", resign).await.of(200);
    let body = json!({"name": "web-2", "session": other["session"], "wait_ms": 3000});
    let second = b.campaign("nightly", body, true).await;
    assert!(second["token"].as_u64() > first["token"].as_u64());
}

#[tokio::test]
async fn a_client_moves_to_another_replica_and_keeps_its_token_on_postgres() {
    let (_database, a, b) = postgres().await;
    continues_at_another_server(on(a), on(b)).await;
}

#[tokio::test]
async fn a_client_moves_to_another_replica_and_keeps_its_token_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    continues_at_another_server(on(sqlite(folder.path()).await), on(sqlite(folder.path()).await)).await;
}

/// The other server has not observed the silence yet: it waits for the whole lease and then takes over with a greater
/// token.
#[tokio::test]
async fn a_silent_leader_is_replaced_through_another_replica() {
    let (_database, a, b) = postgres().await;
    let (a, b) = (on(a), on(b));
    let body = json!({"name": "web-1", "lease_ms": 1000});
    let first = a.campaign("nightly", body, true).await;
    drop(a);
    let body = json!({"name": "web-2", "lease_ms": 60_000, "wait_ms": 20_000});
    let second = b.campaign("nightly", body, true).await;
    assert!(second["token"].as_u64() > first["token"].as_u64());
    let history = b.get("/v1/elections/nightly/terms?consistent=true").await.of(200);
    assert_eq!(history["terms"][0]["start_reason"], "takeover");
    b.post(&format!("/v1/sessions/{}/heartbeat", first["session"].as_str().unwrap()), json!({}))
        .await
        .problem(410, "session-ended", None);
}

async fn serve(store: Arc<dyn Store>, name: &str) -> (Server, String) {
    let listen = vec![ListenAddress::Tcp("127.0.0.1:0".into())];
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

/// Over sockets, with curl: a client repeats a waiting campaign at another server when the first one stops.
#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_at_a_stopping_server_succeeds_at_another() {
    let (_database, a, b) = postgres().await;
    let ((first, at_a), (second, at_b)) = (serve(a, "a").await, serve(b, "b").await);
    let holder = curl(&format!("{at_b}/v1/elections/nightly/campaign"), candidate("web-1")).await.unwrap();
    assert_eq!(holder["leading"], true);
    let body = json!({"name": "web-2", "lease_ms": 120_000, "wait_ms": 30_000});
    let opened =
        curl(&format!("{at_a}/v1/elections/nightly/campaign"), json!({"name": "web-2", "lease_ms": 120_000}))
            .await
            .unwrap();
    let mut waits = body.clone();
    waits["session"] = opened["session"].clone();
    let (url, again) = (format!("{at_a}/v1/elections/nightly/campaign"), waits.clone());
    let waiting = tokio::spawn(async move { curl(&url, waits).await });
    // The request may or may not be waiting already. Either the server answers it, or the client repeats it.
    first.shutdown().await;
    let text = waiting.await.unwrap();
    assert!(text.is_none_or(|text| text["leading"] == false));
    let resign = json!({"session": holder["session"], "token": holder["token"]});
    assert_eq!(
        curl(&format!("{at_b}/v1/elections/nightly/resign"), resign).await.unwrap()["completed"],
        true
    );
    let led = curl(&format!("{at_b}/v1/elections/nightly/campaign"), again).await.unwrap();
    assert_eq!(led["leading"], true, "{led}");
    assert_eq!(led["session"], opened["session"]);
    tokio::time::timeout(Duration::from_secs(60), second.shutdown()).await.unwrap();
}
