//! Limits: excessive, large and slow requests are rejected or cut off, and others are still served.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use tenure_server::Settings;
use tenure_server::settings::{Limits, Timeouts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Answer, answer, settings, test_server, until, within};

pub(crate) fn quick() -> Timeouts {
    Timeouts {
        header: Duration::from_millis(300),
        idle: Duration::from_millis(400),
        body: Duration::from_millis(300),
        write: Duration::from_millis(500),
        store: Duration::from_millis(300),
        queue: Duration::from_millis(100),
        ..Timeouts::default()
    }
}

/// Send bytes one by one until the server closes the connection, and return its response.
async fn trickle(fixture: &crate::support::TestServer, head: &str, drip: &str) -> String {
    let (mut read, mut write) = fixture.connect().await.into_split();
    write.write_all(head.as_bytes()).await.expect("sent");
    let drip = drip.to_owned();
    let dripping = tokio::spawn(async move {
        while write.write_all(drip.as_bytes()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut output = Vec::new();
    // The connection may be reset, because the client still sends.
    let _ = within(read.read_to_end(&mut output)).await;
    within(dripping).await.expect("the connection ends");
    String::from_utf8_lossy(&output).into_owned()
}

#[tokio::test]
async fn a_client_that_trickles_its_headers_is_cut_off() {
    let timeouts = Timeouts { idle: Duration::from_secs(600), ..quick() };
    let fixture = test_server(Settings { timeouts, ..settings() }).await;
    trickle(&fixture, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ", "a").await;
    assert_eq!(fixture.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_client_that_trickles_its_body_gets_a_408() {
    let fixture = test_server(Settings { timeouts: quick(), ..settings() }).await;
    let head = "POST /internal/v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n";
    let output = trickle(&fixture, head, " ").await;
    assert!(output.starts_with("HTTP/1.1 408 ") && output.contains("body-timeout"), "{output}");
}

#[tokio::test]
async fn a_silent_client_is_disconnected() {
    let fixture = test_server(Settings { timeouts: quick(), ..settings() }).await;
    let mut never = fixture.connect().await;
    assert_eq!(within(never.read(&mut [0; 1])).await.unwrap_or(0), 0);
    // The server also closes the connection of a client that falls silent after one request.
    let mut once = fixture.connect().await;
    once.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    let mut output = Vec::new();
    within(once.read_to_end(&mut output)).await.expect("closed in good order");
    assert!(output.starts_with(b"HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_client_that_does_not_read_responses_is_cut_off() {
    let timeouts = Timeouts { idle: Duration::from_secs(600), ..quick() };
    let fixture = test_server(Settings { timeouts, ..settings() }).await;
    let mut client = fixture.connect().await;
    // Far more than the socket buffers hold.
    let one = "GET /v1/elections HTTP/1.1\r\nhost: localhost\r\nx-request-id: a\r\n\r\n";
    let many = one.repeat(1000);
    let cut_off = async { while client.write_all(many.as_bytes()).await.is_ok() {} };
    within(cut_off).await;
    assert_eq!(fixture.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn oversized_bodies_are_rejected() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    let fixture = test_server(Settings { limits, ..settings() }).await;
    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(2000));
    let answer = fixture.post("/internal/v1/sessions", &large).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "body-too-large"));
    // A body without content-length.
    let mut client = fixture.connect().await;
    let head = "POST /internal/v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    client.write_all(head.as_bytes()).await.expect("sent");
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    for _ in 0..4 {
        let _ = client.write_all(chunk.as_bytes()).await;
    }
    let mut output = [0; 16];
    within(client.read_exact(&mut output)).await.expect("a response");
    assert!(output.starts_with(b"HTTP/1.1 413 "));
}

#[tokio::test]
async fn oversized_headers_are_rejected() {
    let fixture = test_server(settings()).await;
    let request = fixture.request("GET", "/healthz").header("x-large", "x".repeat(100_000));
    assert_eq!(fixture.send(request.body(Full::default()).expect("a request")).await.status, 431);
}

#[tokio::test]
async fn connections_beyond_the_limit_are_rejected_and_permits_are_released() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let fixture = test_server(Settings { limits, ..settings() }).await;
    let held = [fixture.connect().await, fixture.connect().await];
    until("the permits are taken", async || {
        let mut client = fixture.connect().await;
        let mut output = Vec::new();
        let _ = tokio::time::timeout(Duration::from_millis(200), client.read_to_end(&mut output)).await;
        String::from_utf8_lossy(&output).contains("too-many-connections")
    })
    .await;
    drop(held);
    until("the permits are released", async || {
        let request = fixture.request("GET", "/healthz").body(Full::default()).expect("a request");
        answer(fixture.connect().await, request).await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let limits = Limits { connections_per_peer: 1, ..Limits::default() };
    let fixture = test_server(Settings { limits, ..settings() }).await;
    let _held = fixture.stream("/internal/v1/notifications").await;
    let mut output = String::new();
    let _ = within(fixture.connect().await.read_to_string(&mut output)).await;
    assert!(output.contains("too-many-connections"), "{output}");
}

#[tokio::test]
async fn the_rate_limit_applies_per_principal_with_a_retry_delay() {
    let limits = Limits { rate_per_principal: 1, burst_per_principal: 3, ..Limits::default() };
    let fixture = test_server(Settings { limits, auth: true, ..settings() }).await;
    let (eager, calm) =
        (fixture.principal("eager", &["*:read"]).await, fixture.principal("calm", &["*:read"]).await);
    until("it is rejected", async || fixture.get_as(&eager.text, "/v1/elections").await.status == 429).await;
    let refused = fixture.get_as(&eager.text, "/v1/elections").await;
    if refused.status == 429 {
        assert_eq!(refused.code(), "too-many-requests");
        assert!(refused.header("retry-after").parse::<u32>().expect("seconds") >= 1);
    }
    assert_eq!(fixture.get_as(&calm.text, "/v1/elections").await.status, 200);
    // Failed authentication is limited too.
    until("unauthenticated clients are rejected", async || fixture.get("/v1/elections").await.status == 429)
        .await;
    assert_eq!(fixture.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn rejected_requests_count_against_the_rate_limit() {
    let limits = Limits { rate_per_principal: 1, burst_per_principal: 3, ..Limits::default() };
    let fresh = async || test_server(Settings { limits, auth: true, ..settings() }).await;
    let fixture = fresh().await;
    let poor = fixture.principal("poor", &["prod:read"]).await;
    until("forbidden requests", async || fixture.get_as(&poor.text, "/v1/credentials").await.status == 429)
        .await;
    until("unknown routes", async || fixture.get("/nowhere").await.status == 429).await;
    // Unknown routes share one limit; logins have their own.
    assert_eq!(fixture.get("/login").await.status, 200);
    until("the login page", async || fixture.get("/login").await.status == 429).await;
    let fixture = fresh().await;
    until("wrong methods", async || fixture.post("/healthz", "").await.status == 429).await;
    let login = fixture.request("POST", "/login").header("content-type", "application/x-www-form-urlencoded");
    let form = Full::new(bytes::Bytes::from_static(b"access_token=guess"));
    assert_eq!(fixture.send(login.body(form).expect("a request")).await.status, 401);
}

#[tokio::test]
async fn connections_and_streams_are_limited_per_principal() {
    let limits = Limits { connections_per_principal: 2, streams_per_principal: 1, ..Limits::default() };
    let fixture = test_server(Settings { limits, ..settings() }).await;
    let stream = fixture.stream("/internal/v1/notifications").await;
    let second = fixture.get("/internal/v1/notifications").await;
    assert_eq!((second.status, second.code().as_str()), (429, "too-many-requests"));
    assert_eq!(fixture.get("/v1/elections").await.status, 200);
    drop(stream);
    until("the permit is released", async || {
        let request =
            fixture.request("GET", "/internal/v1/notifications").body(Full::default()).expect("a request");
        crate::support::raw(fixture.connect().await, request).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}

#[tokio::test]
async fn a_hanging_store_does_not_block_other_requests() {
    let limits = Limits { requests: 2, queue: 1, ..Limits::default() };
    let fixture = test_server(Settings { timeouts: quick(), limits, ..settings() }).await;
    assert_eq!(fixture.get("/v1/elections").await.status, 200);
    fixture.store.hang(true);
    let body = |n: u32| format!(r#"{{"id":"{n:032x}","name":"n","lease_ms":10000}}"#);
    let stuck = fixture.post("/internal/v1/sessions", &body(1)).await;
    assert_eq!((stuck.status, stuck.code().as_str()), (504, "store-timeout"));
    // More requests than permits.
    let bodies: Vec<_> = (2..12).map(body).collect();
    let crowd: Vec<_> = bodies.iter().map(|body| fixture.post("/internal/v1/sessions", body)).collect();
    let crowd = futures_util::future::join_all(crowd);
    let others = async {
        for _ in 0..10 {
            assert_eq!(fixture.get("/healthz").await.status, 200);
        }
    };
    let (crowd, ()) = tokio::join!(crowd, others);
    let count = |status| crowd.iter().filter(|answer: &&Answer| answer.status == status).count();
    assert_eq!(count(504) + count(503), crowd.len(), "{crowd:?}");
    let refused: Vec<_> = crowd.iter().filter(|answer| answer.status == 503).collect();
    assert!(!refused.is_empty(), "ten at once were more than three");
    for answer in refused {
        assert_eq!((answer.code().as_str(), answer.header("retry-after")), ("overloaded", "1"));
    }
    // The snapshot is still served, and requests succeed once the store responds.
    assert_eq!(fixture.get("/v1/elections").await.status, 200);
    fixture.store.hang(false);
    until("it is served again", async || {
        fixture.post("/internal/v1/sessions", &body(99)).await.status == 200
    })
    .await;
}

/// Set `TENURE_TEST_WATCHERS=10000` for the full number of watchers.
#[tokio::test(flavor = "multi_thread")]
async fn many_idle_watchers_do_not_block_other_requests() {
    let wanted = std::env::var("TENURE_TEST_WATCHERS").ok().and_then(|text| text.parse().ok()).unwrap_or(500);
    let limits = Limits {
        connections: 2 * wanted + 100,
        streams: wanted,
        streams_per_principal: wanted,
        ..Limits::default()
    };
    let fixture = test_server(Settings { limits, ..settings() }).await;
    let mut watchers = Vec::new();
    for _ in 0..wanted {
        watchers.push(fixture.stream("/internal/v1/notifications").await);
    }
    let one_more = fixture.get("/internal/v1/notifications").await;
    assert_eq!((one_more.status, one_more.code().as_str()), (503, "too-many-streams"));
    assert_eq!(fixture.get("/v1/elections").await.status, 200);
    // Streams end with the server, which shuts down cleanly.
    let ends = futures_util::future::join_all(watchers.into_iter().map(|watcher| watcher.collect()));
    let (ends, ()) = within(async { tokio::join!(ends, fixture.server.shutdown()) }).await;
    assert!(ends.iter().all(Result::is_ok), "a stream was broken off");
}
