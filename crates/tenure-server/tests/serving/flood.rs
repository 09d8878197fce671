//! Floods of slow, silent and unauthenticated clients: other clients, above all their heartbeats, are still served.

use std::time::Duration;

use tenure::port::{Candidacy, ElectionStore as _};
use tenure::{ElectionKey, Name, SessionId};
use tenure_server::Settings;
use tenure_server::settings::{Limits, Timeouts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{TestServer, settings, test_server, until, within};

/// Connection with an unfinished request.
async fn unfinished(fixture: &TestServer, head: &str) -> TcpStream {
    let mut stream = fixture.connect().await;
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

fn slow_login(fixture: &TestServer) -> String {
    let host = fixture.address();
    format!(
        "POST /login HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: 100\r\n\r\naccess_token="
    )
}

/// Server with few concurrent requests.
async fn small(limits: Limits) -> TestServer {
    let timeouts = Timeouts { queue: Duration::from_millis(100), ..Timeouts::default() };
    test_server(Settings { limits, timeouts, auth: true, ..settings() }).await
}

/// Regression: Logins without bodies took all permits. Heartbeats got 503, and leaders lost their leases.
#[tokio::test]
async fn unfinished_logins_do_not_block_heartbeats() {
    let fixture =
        small(Limits { requests: 8, queue: 8, unauthenticated_requests: 8, ..Limits::default() }).await;
    let leader = fixture.principal("leader", &["*:lead"]).await;
    let session = format!("{:032x}", 1);
    let opened = format!(r#"{{"id":"{session}","name":"n","lease_ms":10000}}"#);
    assert_eq!(fixture.post_as(&leader.text, "/internal/v1/sessions", &opened).await.status, 200);
    let mut flood = Vec::new();
    for _ in 0..64 {
        flood.push(unfinished(&fixture, &slow_login(&fixture)).await);
    }
    until("the flood is running", async || fixture.get("/login").await.status != 200).await;
    for _ in 0..20 {
        let heartbeat = fixture.post_as(&leader.text, &format!("/v1/sessions/{session}/heartbeat"), "").await;
        assert_eq!(heartbeat.status, 200, "{}", heartbeat.text());
        assert_eq!(fixture.get_as(&leader.text, "/v1/elections").await.status, 200);
    }
    drop(flood);
    until("logins are possible again", async || fixture.get("/login").await.status == 200).await;
}

/// Regression: A request took its permit before its body was read, so a client with slow bodies blocked
/// others.
#[tokio::test]
async fn a_slow_body_takes_no_permit() {
    let fixture = small(Limits { requests: 1, queue: 1, ..Limits::default() }).await;
    let (slow, other) =
        (fixture.principal("slow", &["*:lead"]).await, fixture.principal("other", &["*:read"]).await);
    // The server has started to read the body before other clients send requests.
    let head = format!(
        "POST /internal/v1/sessions HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\nexpect: 100-continue\r\n\r\n",
        fixture.address(),
        slow.text
    );
    let mut stream = unfinished(&fixture, &head).await;
    let mut output = [0; 12];
    within(stream.read_exact(&mut output)).await.expect("an interim response");
    assert_eq!(&output, b"HTTP/1.1 100", "the server reads the body now");
    for _ in 0..10 {
        assert_eq!(fixture.get_as(&other.text, "/v1/elections").await.status, 200);
    }
}

/// Regression: A client that sent single bytes had as much time for its body as a fast one.
#[tokio::test]
async fn a_body_below_the_minimum_rate_is_cut_off() {
    let timeouts = Timeouts {
        body: Duration::from_secs(600),
        body_start: Duration::from_millis(200),
        ..Timeouts::default()
    };
    let fixture = test_server(Settings { timeouts, ..settings() }).await;
    let head = "POST /internal/v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{";
    let mut stream = unfinished(&fixture, head).await;
    let mut output = String::new();
    let _ = within(stream.read_to_string(&mut output)).await;
    assert!(output.starts_with("HTTP/1.1 408 ") && output.contains("body-timeout"), "{output}");
}

/// Regression: Sixteen idle uploads of one principal took all permits for large bodies.
#[tokio::test]
async fn idle_uploads_of_one_principal_do_not_block_large_bodies_of_another() {
    let limits =
        Limits { large_bodies: 2, large_bodies_per_principal: 1, body_bytes: 1000, ..Limits::default() };
    let fixture = small(limits).await;
    let (idle, busy) =
        (fixture.principal("idle", &["*:claim"]).await, fixture.principal("busy", &["*:claim"]).await);
    let head = format!(
        "POST /v1/queues/mail/tasks HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n",
        fixture.address(),
        idle.text
    );
    let mut uploads = Vec::new();
    for _ in 0..4 {
        let mut upload = unfinished(&fixture, &head).await;
        let mut output = [0; 12];
        within(upload.read_exact(&mut output)).await.expect("an interim response");
        uploads.push(upload);
    }
    let large = format!(r#"{{"kind":"k","payload":"{}"}}"#, "x".repeat(2000));
    let sent = async || fixture.post_as(&busy.text, "/v1/queues/mail/tasks", &large).await;
    assert_eq!(sent().await.status, 201);
    // Active uploads use the permits of their own principal only.
    let chunk = format!("7d0\r\n{}\r\n", "x".repeat(2000));
    for upload in &mut uploads {
        let _ = upload.write_all(chunk.as_bytes()).await;
    }
    until("one upload has its permit, and the others were rejected", async || {
        fixture.post_as(&idle.text, "/v1/queues/mail/tasks", &large).await.status == 429
    })
    .await;
    let sent = sent().await;
    assert_eq!(sent.status, 201, "{}", sent.text());
}

/// Regression: Three thousand unread watches of one access token took gigabytes.
#[tokio::test]
async fn a_principal_that_does_not_read_its_streams_loses_them() {
    let most = 256 * 1024;
    let limits = Limits { response_bytes_per_principal: most, ..Limits::default() };
    let timeouts = Timeouts { write: Duration::from_secs(600), ..Timeouts::default() };
    let fixture = test_server(Settings { limits, timeouts, auth: true, ..settings() }).await;
    let (deaf, other) =
        (fixture.principal("deaf", &["*:read"]).await, fixture.principal("other", &["*:lead,read"]).await);
    // More than the socket buffers hold.
    let session = SessionId::from_stored(&format!("{:032x}", 1));
    let opened = format!(r#"{{"id":"{session}","name":"n","lease_ms":60000}}"#);
    assert_eq!(fixture.post_as(&other.text, "/internal/v1/sessions", &opened).await.status, 200);
    let note = "x".repeat(1000);
    for n in 0..400 {
        let election = ElectionKey::new(Name::default_namespace(), format!("e{n}").parse().expect("a name"));
        let metadata = (0..14).map(|n| (format!("k{n}"), note.clone())).collect();
        let candidacy = Candidacy { metadata, ..Candidacy::new(session.clone(), election) };
        fixture.store.join_election(&candidacy).await.expect("joined");
    }
    fixture.server.app().elections().refresh_all().await.expect("seen");
    let head = format!(
        "GET /v1/watch HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\r\n",
        fixture.address(),
        deaf.text
    );
    let mut streams = Vec::new();
    for _ in 0..40 {
        streams.push(unfinished(&fixture, &head).await);
    }
    // Each stream needs one piece in memory. The limit allows fewer, so the server ends the others.
    until("some of them are ended", async || {
        assert!(fixture.server.app().unread_bytes("deaf") <= most);
        let metrics = fixture.get_as(&other.text, "/metrics").await.text();
        let ended = metrics.lines().find_map(|line| {
            line.strip_prefix(r#"tenure_http_rejected_total{reason="unread"} "#)?.parse::<u64>().ok()
        });
        ended.is_some_and(|ended| ended > 0)
    })
    .await;
    assert_eq!(fixture.get_as(&other.text, "/v1/elections?limit=1").await.status, 200);
    drop(streams);
    until("nothing is buffered for disconnected clients", async || {
        fixture.server.app().unread_bytes("deaf") == 0
    })
    .await;
}
