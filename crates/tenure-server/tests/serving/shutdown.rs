//! Shutdown of a server.

use std::time::Duration;

use http_body_util::Full;
use tenure::port::ElectionAdmin as _;
use tenure_server::settings::{ListenAddress, Timeouts};
use tenure_server::{Server, Settings, StartError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::support::{answer, settings, shared, test_server, until, within};

#[tokio::test]
async fn current_requests_finish_and_new_ones_are_rejected() {
    let fixture = test_server(settings()).await;
    // The second half of the request arrives after the shutdown started.
    let mut half = fixture.connect().await;
    let head = "POST /internal/v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{";
    half.write_all(head.as_bytes()).await.expect("sent");
    // A later connection is answered only after the earlier one was accepted.
    assert_eq!(fixture.get("/healthz").await.status, 200);
    let address = fixture.address();
    let rest = async {
        until("new connections are rejected", async || {
            tokio::net::TcpStream::connect(address).await.is_err()
        })
        .await;
        half.write_all(b"}").await.expect("sent");
        let mut output = String::new();
        within(half.read_to_string(&mut output)).await.expect("a response");
        output
    };
    let ((), output) = within(async { tokio::join!(fixture.server.shutdown(), rest) }).await;
    assert!(output.starts_with("HTTP/1.1 422 "), "{output}");
    within(fixture.server.wait()).await;
    let live = fixture.store.sessions(None).await.expect("asked");
    assert!(live.is_empty(), "the replica's own session was not ended: {live:?}");
}

#[tokio::test]
async fn unfinished_requests_are_cut_off_after_the_drain_timeout() {
    let timeouts =
        Timeouts { drain: Duration::from_millis(200), body: Duration::from_secs(600), ..Timeouts::default() };
    let fixture = test_server(Settings { timeouts, ..settings() }).await;
    let mut half = fixture.connect().await;
    let head = "POST /internal/v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{";
    half.write_all(head.as_bytes()).await.expect("sent");
    assert_eq!(fixture.get("/healthz").await.status, 200);
    within(fixture.server.shutdown()).await;
    let mut output = String::new();
    let _ = within(half.read_to_string(&mut output)).await;
    assert!(!output.contains("200"), "{output}");
}

#[tokio::test]
async fn a_hanging_store_does_not_block_the_shutdown() {
    // A short lease, because the shutdown waits for it.
    let fixture = test_server(Settings { lease: Duration::from_secs(1), ..settings() }).await;
    fixture.store.hang(true);
    within(fixture.server.shutdown()).await;
}

#[tokio::test]
async fn a_unix_socket_is_served_and_removed_afterwards() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.sock");
    let both = vec![ListenAddress::Unix(path.clone()), "127.0.0.1:0".parse().expect("an address")];
    let fixture = test_server(Settings { listen: both.clone(), ..settings() }).await;
    let ask = async |host: &str| {
        let request =
            http::Request::builder().uri("/v1/elections").header("host", host).body(Full::default());
        let stream = UnixStream::connect(&path).await.expect("connected");
        answer(stream, request.expect("a request")).await.expect("a response").status
    };
    assert_eq!(ask("localhost").await, 200);
    // Browsers cannot reach a Unix socket, so any host is accepted.
    assert_eq!(ask("tenure.sock").await, 200);
    let again = Server::start(Settings { listen: both, ..settings() }, shared(&fixture.store)).await;
    assert!(matches!(again.err(), Some(StartError::Listen(..))));
    fixture.server.shutdown().await;
    drop(fixture);
    until("it is gone", async || !path.exists()).await;
}

#[tokio::test]
async fn a_busy_port_is_reported_with_a_remedy() {
    let fixture = test_server(settings()).await;
    let taken = Settings { listen: vec![ListenAddress::Tcp(fixture.address().to_string())], ..settings() };
    let error = Server::start(taken, shared(&fixture.store)).await.err().expect("refused");
    let text = error.to_string();
    assert!(
        text.contains("in use") && text.contains("--listen") && text.contains(&fixture.address().to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn a_store_without_schema_is_reported_at_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.db");
    std::fs::write(&path, b"this is no database at all, and it is long enough to be sure of that")
        .expect("written");
    let options =
        tenure::store::StoreOptions { url: format!("sqlite:{}", path.display()), ..Default::default() };
    let opened = tenure::store::open(&options).await;
    let refused = match opened {
        Err(_) => true,
        Ok(store) => Server::start(settings(), store).await.is_err(),
    };
    assert!(refused);
}
