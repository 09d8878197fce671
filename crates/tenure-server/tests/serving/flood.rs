//! Floods of slow, silent and unauthenticated clients: others, and their heartbeats above all, are served meanwhile.

use std::time::Duration;

use tenure::port::{Candidacy, Store as _};
use tenure::{ElectionKey, Name, SessionId};
use tenure_server::Settings;
use tenure_server::settings::{Limits, Timeouts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{House, house, settings, until, within};

/// A connection on which a request was begun, and not finished.
async fn unfinished(house: &House, head: &str) -> TcpStream {
    let mut stream = house.connect().await;
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

fn slow_login(house: &House) -> String {
    let host = house.address();
    format!(
        "POST /login HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: 100\r\n\r\ntoken="
    )
}

/// A server in which few requests are worked on at once.
async fn small(limits: Limits) -> House {
    let timeouts = Timeouts { queue: Duration::from_millis(100), ..Timeouts::default() };
    house(Settings { limits, timeouts, auth: true, ..settings() }).await
}

/// Logins whose bodies never came took all request slots. Heartbeats were answered with 503, and leaders lost their leases.
#[tokio::test]
async fn unfinished_logins_fail_no_heartbeat() {
    let house =
        small(Limits { requests: 8, queue: 8, unauthenticated_requests: 8, ..Limits::default() }).await;
    let leader = house.principal("leader", &["*:lead"]).await;
    let session = format!("{:032x}", 1);
    let opened = format!(r#"{{"id":"{session}","name":"n","lease_ms":10000}}"#);
    assert_eq!(house.post_as(&leader.text, "/v1/sessions", &opened).await.status, 200);
    let mut flood = Vec::new();
    for _ in 0..64 {
        flood.push(unfinished(&house, &slow_login(&house)).await);
    }
    until("the flood is under way", async || house.get("/login").await.status != 200).await;
    for _ in 0..20 {
        let beat = house.post_as(&leader.text, &format!("/v1/sessions/{session}/renew"), "").await;
        assert_eq!(beat.status, 200, "{}", beat.text());
        assert_eq!(house.get_as(&leader.text, "/v1/elections").await.status, 200);
    }
    drop(flood);
    until("logins are possible again", async || house.get("/login").await.status == 200).await;
}

/// A request took its slot before its body was read, so that a client with a valid token and slow bodies kept others out.
#[tokio::test]
async fn a_slow_body_takes_no_request_slot() {
    let house = small(Limits { requests: 1, queue: 1, ..Limits::default() }).await;
    let (slow, other) =
        (house.principal("slow", &["*:lead"]).await, house.principal("other", &["*:read"]).await);
    // One byte of the body is there, and the connection's account shows it before others ask.
    let head = format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\nexpect: 100-continue\r\n\r\n",
        house.address(),
        slow.text
    );
    let mut stream = unfinished(&house, &head).await;
    let mut said = [0; 12];
    within(stream.read_exact(&mut said)).await.expect("an interim answer");
    assert_eq!(&said, b"HTTP/1.1 100", "the server reads the body now");
    for _ in 0..10 {
        assert_eq!(house.get_as(&other.text, "/v1/elections").await.status, 200);
    }
}

/// A client that sent a byte now and then had all the time for its body that a client at full speed had.
#[tokio::test]
async fn a_body_below_the_least_rate_is_cut_off() {
    let timeouts = Timeouts {
        body: Duration::from_secs(600),
        body_start: Duration::from_millis(200),
        ..Timeouts::default()
    };
    let house = house(Settings { timeouts, ..settings() }).await;
    let head = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{";
    let mut stream = unfinished(&house, head).await;
    let mut said = String::new();
    let _ = within(stream.read_to_string(&mut said)).await;
    assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("body-too-slow"), "{said}");
}

/// Sixteen idle uploads of one tenant took all places for large bodies.
#[tokio::test]
async fn idle_uploads_of_one_tenant_keep_no_large_body_of_another_out() {
    let limits =
        Limits { large_bodies: 2, large_bodies_per_principal: 1, body_bytes: 1000, ..Limits::default() };
    let house = small(limits).await;
    let (idle, busy) =
        (house.principal("idle", &["*:claim"]).await, house.principal("busy", &["*:claim"]).await);
    let head = format!(
        "POST /v1/queues/mail/tasks HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n",
        house.address(),
        idle.text
    );
    let mut uploads = Vec::new();
    for _ in 0..4 {
        let mut upload = unfinished(&house, &head).await;
        let mut said = [0; 12];
        within(upload.read_exact(&mut said)).await.expect("an interim answer");
        uploads.push(upload);
    }
    let large = format!(r#"{{"kind":"k","payload":"{}"}}"#, "x".repeat(2000));
    let sent = async || house.post_as(&busy.text, "/v1/queues/mail/tasks", &large).await;
    assert_eq!(sent().await.status, 201);
    // Uploads that do send take the places of their own principal, and no other's.
    let chunk = format!("7d0\r\n{}\r\n", "x".repeat(2000));
    for upload in &mut uploads {
        let _ = upload.write_all(chunk.as_bytes()).await;
    }
    until("one upload has its place, and the others were refused", async || {
        house.post_as(&idle.text, "/v1/queues/mail/tasks", &large).await.status == 429
    })
    .await;
    let sent = sent().await;
    assert_eq!(sent.status, 201, "{}", sent.text());
}

/// Three thousand unread watches of one token took gigabytes.
#[tokio::test]
async fn a_principal_that_does_not_read_its_streams_loses_them() {
    let most = 256 * 1024;
    let limits = Limits { response_bytes_per_principal: most, ..Limits::default() };
    let timeouts = Timeouts { write: Duration::from_secs(600), ..Timeouts::default() };
    let house = house(Settings { limits, timeouts, auth: true, ..settings() }).await;
    let (deaf, other) =
        (house.principal("deaf", &["*:read"]).await, house.principal("other", &["*:lead,read"]).await);
    // More than the system's buffers hold.
    let session = SessionId::from_stored(&format!("{:032x}", 1));
    let opened = format!(r#"{{"id":"{session}","name":"n","lease_ms":60000}}"#);
    assert_eq!(house.post_as(&other.text, "/v1/sessions", &opened).await.status, 200);
    let note = "x".repeat(1000);
    for n in 0..400 {
        let election = ElectionKey::new(Name::default_namespace(), format!("e{n}").parse().expect("a name"));
        let metadata = (0..14).map(|n| (format!("k{n}"), note.clone())).collect();
        let candidacy = Candidacy { metadata, ..Candidacy::new(session.clone(), election) };
        house.store.join(&candidacy).await.expect("joined");
    }
    house.server.app().board().look_at_all().await.expect("seen");
    let head = format!(
        "GET /v1/watch HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\r\n",
        house.address(),
        deaf.text
    );
    let mut streams = Vec::new();
    for _ in 0..40 {
        streams.push(unfinished(&house, &head).await);
    }
    // Each wants one piece in memory, and all together have room for fewer: the others are ended.
    until("some of them are ended", async || {
        assert!(house.server.app().unread_bytes("deaf") <= most);
        let metrics = house.get_as(&other.text, "/metrics").await.text();
        let ended = metrics.lines().find_map(|line| {
            line.strip_prefix(r#"tenure_http_refused_total{reason="unread"} "#)?.parse::<u64>().ok()
        });
        ended.is_some_and(|ended| ended > 0)
    })
    .await;
    assert_eq!(house.get_as(&other.text, "/v1/elections?limit=1").await.status, 200);
    drop(streams);
    until("nothing is kept for those that left", async || house.server.app().unread_bytes("deaf") == 0).await;
}
