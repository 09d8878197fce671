//! The end of a server: nothing half done, nothing left behind.

use std::time::Duration;

use http_body_util::Full;
use tenure::port::Directory as _;
use tenure_server::settings::{Address, Timeouts};
use tenure_server::{Server, Settings, StartError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::support::{answer, house, settings, shared, until, within};

#[tokio::test]
async fn what_is_under_way_is_answered_and_nothing_new_is_accepted() {
    let house = house(settings()).await;
    // Half of a request is there when the server is told to end, the other half comes after.
    let mut half = house.connect().await;
    let head = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{";
    half.write_all(head.as_bytes()).await.expect("sent");
    // A connection that comes later is answered after the earlier one was accepted.
    assert_eq!(house.get("/healthz").await.status, 200);
    let address = house.address();
    let rest = async {
        until("nobody new is let in", async || tokio::net::TcpStream::connect(address).await.is_err()).await;
        half.write_all(b"}").await.expect("sent");
        let mut said = String::new();
        within(half.read_to_string(&mut said)).await.expect("an answer");
        said
    };
    let ((), said) = within(async { tokio::join!(house.server.shutdown(), rest) }).await;
    assert!(said.starts_with("HTTP/1.1 422 "), "{said}");
    within(house.server.wait()).await;
    let live = house.store.sessions(None).await.expect("asked");
    assert!(live.is_empty(), "the replica's own session was not ended: {live:?}");
}

#[tokio::test]
async fn whoever_does_not_finish_is_cut_off_within_the_bound() {
    let timeouts =
        Timeouts { drain: Duration::from_millis(200), body: Duration::from_secs(600), ..Timeouts::default() };
    let house = house(Settings { timeouts, ..settings() }).await;
    let mut half = house.connect().await;
    let head = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{";
    half.write_all(head.as_bytes()).await.expect("sent");
    assert_eq!(house.get("/healthz").await.status, 200);
    within(house.server.shutdown()).await;
    let mut said = String::new();
    let _ = within(half.read_to_string(&mut said)).await;
    assert!(!said.contains("200"), "{said}");
}

#[tokio::test]
async fn a_store_that_hangs_does_not_keep_the_server_from_ending() {
    // It waits for a lease, so that others need not.
    let house = house(Settings { lease: Duration::from_secs(1), ..settings() }).await;
    house.store.hang(true);
    within(house.server.shutdown()).await;
}

#[tokio::test]
async fn a_unix_socket_serves_and_is_gone_afterwards() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.sock");
    let both = vec![Address::Unix(path.clone()), "127.0.0.1:0".parse().expect("an address")];
    let house = house(Settings { listen: both.clone(), ..settings() }).await;
    let ask = async |host: &str| {
        let request =
            http::Request::builder().uri("/v1/elections").header("host", host).body(Full::default());
        let stream = UnixStream::connect(&path).await.expect("connected");
        answer(stream, request.expect("a request")).await.expect("an answer").status
    };
    assert_eq!(ask("localhost").await, 200);
    // No browser gets here under a name of its own.
    assert_eq!(ask("tenure.sock").await, 200);
    let again = Server::start(Settings { listen: both, ..settings() }, shared(&house.store)).await;
    assert!(matches!(again.err(), Some(StartError::Listen(..))));
    house.server.shutdown().await;
    drop(house);
    until("it is gone", async || !path.exists()).await;
}

#[tokio::test]
async fn a_busy_port_is_told_with_a_remedy() {
    let house = house(settings()).await;
    let taken = Settings { listen: vec![Address::Tcp(house.address().to_string())], ..settings() };
    let error = Server::start(taken, shared(&house.store)).await.err().expect("refused");
    let text = error.to_string();
    assert!(
        text.contains("already") && text.contains("--listen") && text.contains(&house.address().to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn a_store_without_tables_is_told_before_anything_is_promised() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.db");
    std::fs::write(&path, b"this is no database at all, and it is long enough to be sure of that")
        .expect("written");
    let options =
        tenure::backend::StoreOptions { url: format!("sqlite:{}", path.display()), ..Default::default() };
    let opened = tenure::backend::open(&options).await;
    let refused = match opened {
        Err(_) => true,
        Ok(store) => Server::start(settings(), store).await.is_err(),
    };
    assert!(refused);
}
