//! Too much, too large, too slow: each is refused or cut off, and others are served meanwhile.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use tenure_server::Settings;
use tenure_server::settings::{Limits, Timeouts};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Answer, answer, house, settings, until, within};

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

/// Sends bytes one by one until the server has enough of it; what it said.
async fn trickle(house: &crate::support::House, head: &str, drip: &str) -> String {
    let (mut read, mut write) = house.connect().await.into_split();
    write.write_all(head.as_bytes()).await.expect("sent");
    let drip = drip.to_owned();
    let dripping = tokio::spawn(async move {
        while write.write_all(drip.as_bytes()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut said = Vec::new();
    // It may be reset, since it goes on sending.
    let _ = within(read.read_to_end(&mut said)).await;
    within(dripping).await.expect("its end is heard");
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn a_client_that_trickles_its_headers_is_cut_off() {
    let timeouts = Timeouts { idle: Duration::from_secs(600), ..quick() };
    let house = house(Settings { timeouts, ..settings() }).await;
    trickle(&house, "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ", "a").await;
    assert_eq!(house.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_client_that_trickles_its_body_is_told_and_cut_off() {
    let house = house(Settings { timeouts: quick(), ..settings() }).await;
    let head = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n";
    let said = trickle(&house, head, " ").await;
    assert!(said.starts_with("HTTP/1.1 408 ") && said.contains("body-too-slow"), "{said}");
}

#[tokio::test]
async fn a_client_that_says_nothing_is_let_go() {
    let house = house(Settings { timeouts: quick(), ..settings() }).await;
    let mut never = house.connect().await;
    assert_eq!(within(never.read(&mut [0; 1])).await.unwrap_or(0), 0);
    // And one that asked once, and then nothing more.
    let mut once = house.connect().await;
    once.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    let mut said = Vec::new();
    within(once.read_to_end(&mut said)).await.expect("closed in good order");
    assert!(said.starts_with(b"HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answers_is_cut_off() {
    let timeouts = Timeouts { idle: Duration::from_secs(600), ..quick() };
    let house = house(Settings { timeouts, ..settings() }).await;
    let mut client = house.connect().await;
    // Far more than the system's buffers hold.
    let one = "GET /v1/elections HTTP/1.1\r\nhost: localhost\r\nx-request-id: a\r\n\r\n";
    let many = one.repeat(1000);
    let cut_off = async { while client.write_all(many.as_bytes()).await.is_ok() {} };
    within(cut_off).await;
    assert_eq!(house.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn bodies_that_are_too_large_are_refused() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    let house = house(Settings { limits, ..settings() }).await;
    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(2000));
    let answer = house.post("/v1/sessions", &large).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "body-too-large"));
    // One that does not say how large it is.
    let mut client = house.connect().await;
    let head = "POST /v1/sessions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    client.write_all(head.as_bytes()).await.expect("sent");
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    for _ in 0..4 {
        let _ = client.write_all(chunk.as_bytes()).await;
    }
    let mut said = [0; 16];
    within(client.read_exact(&mut said)).await.expect("an answer");
    assert!(said.starts_with(b"HTTP/1.1 413 "));
}

#[tokio::test]
async fn headers_that_are_too_large_are_refused() {
    let house = house(settings()).await;
    let request = house.request("GET", "/healthz").header("x-large", "x".repeat(100_000));
    assert_eq!(house.send(request.body(Full::default()).expect("a request")).await.status, 431);
}

#[tokio::test]
async fn connections_beyond_the_bound_are_refused_and_places_are_given_back() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let house = house(Settings { limits, ..settings() }).await;
    let held = [house.connect().await, house.connect().await];
    until("the places are taken", async || {
        let mut client = house.connect().await;
        let mut said = Vec::new();
        let _ = tokio::time::timeout(Duration::from_millis(200), client.read_to_end(&mut said)).await;
        String::from_utf8_lossy(&said).contains("too-many-connections")
    })
    .await;
    drop(held);
    until("the places are given back", async || {
        let request = house.request("GET", "/healthz").body(Full::default()).expect("a request");
        answer(house.connect().await, request).await.is_ok_and(|answer| answer.status == 200)
    })
    .await;
}

#[tokio::test]
async fn one_address_does_not_take_all_connections() {
    let limits = Limits { connections_per_peer: 1, ..Limits::default() };
    let house = house(Settings { limits, ..settings() }).await;
    let _held = house.stream("/v1/wakes").await;
    let mut said = String::new();
    let _ = within(house.connect().await.read_to_string(&mut said)).await;
    assert!(said.contains("too-many-connections"), "{said}");
}

#[tokio::test]
async fn whoever_asks_too_often_is_told_when_to_come_back_and_others_are_not_concerned() {
    let limits = Limits { rate_per_principal: 1, burst_per_principal: 3, ..Limits::default() };
    let house = house(Settings { limits, auth: true, ..settings() }).await;
    let (eager, calm) =
        (house.principal("eager", &["*:read"]).await, house.principal("calm", &["*:read"]).await);
    until("it is refused", async || house.get_as(&eager.text, "/v1/elections").await.status == 429).await;
    let refused = house.get_as(&eager.text, "/v1/elections").await;
    if refused.status == 429 {
        assert_eq!(refused.code(), "too-many-requests");
        assert!(refused.header("retry-after").parse::<u32>().expect("seconds") >= 1);
    }
    assert_eq!(house.get_as(&calm.text, "/v1/elections").await.status, 200);
    // Guessing is bounded, too.
    until("strangers are refused", async || house.get("/v1/elections").await.status == 429).await;
    assert_eq!(house.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn whatever_is_refused_is_counted_too() {
    let limits = Limits { rate_per_principal: 1, burst_per_principal: 3, ..Limits::default() };
    let fresh = async || house(Settings { limits, auth: true, ..settings() }).await;
    let house = fresh().await;
    let poor = house.principal("poor", &["prod:read"]).await;
    until("the denied", async || house.get_as(&poor.text, "/v1/tokens").await.status == 429).await;
    until("the lost", async || house.get("/nowhere").await.status == 429).await;
    // The same bucket, so that it makes no difference what is tried; a login has its own.
    assert_eq!(house.get("/login").await.status, 200);
    until("the page of the login", async || house.get("/login").await.status == 429).await;
    let house = fresh().await;
    until("the mistaken", async || house.post("/healthz", "").await.status == 429).await;
    let login = house.request("POST", "/login").header("content-type", "application/x-www-form-urlencoded");
    let form = Full::new(bytes::Bytes::from_static(b"token=guess"));
    assert_eq!(house.send(login.body(form).expect("a request")).await.status, 401);
}

#[tokio::test]
async fn a_principal_has_so_many_connections_and_requests_under_way() {
    let limits = Limits { connections_per_principal: 2, streams_per_principal: 1, ..Limits::default() };
    let house = house(Settings { limits, ..settings() }).await;
    let stream = house.stream("/v1/wakes").await;
    let second = house.get("/v1/wakes").await;
    assert_eq!((second.status, second.code().as_str()), (429, "too-many-requests"));
    assert_eq!(house.get("/v1/elections").await.status, 200);
    drop(stream);
    until("the place is given back", async || {
        let request = house.request("GET", "/v1/wakes").body(Full::default()).expect("a request");
        crate::support::raw(house.connect().await, request).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
}

#[tokio::test]
async fn a_store_that_hangs_holds_up_nobody_else() {
    let limits = Limits { requests: 2, queue: 1, ..Limits::default() };
    let house = house(Settings { timeouts: quick(), limits, ..settings() }).await;
    assert_eq!(house.get("/v1/elections").await.status, 200);
    house.store.hang(true);
    let body = |n: u32| format!(r#"{{"id":"{n:032x}","name":"n","lease_ms":10000}}"#);
    let stuck = house.post("/v1/sessions", &body(1)).await;
    assert_eq!((stuck.status, stuck.code().as_str()), (504, "store-timeout"));
    // As many as there is room for, and more.
    let bodies: Vec<_> = (2..12).map(body).collect();
    let crowd: Vec<_> = bodies.iter().map(|body| house.post("/v1/sessions", body)).collect();
    let crowd = futures_util::future::join_all(crowd);
    let others = async {
        for _ in 0..10 {
            assert_eq!(house.get("/healthz").await.status, 200);
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
    // What was seen is still shown, and when the store is back all is well.
    assert_eq!(house.get("/v1/elections").await.status, 200);
    house.store.hang(false);
    until("it is served again", async || house.post("/v1/sessions", &body(99)).await.status == 200).await;
}

/// `TENURE_TEST_WATCHERS=10000` for the whole crowd.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_of_idle_watchers_is_held_and_others_are_served() {
    let wanted = std::env::var("TENURE_TEST_WATCHERS").ok().and_then(|text| text.parse().ok()).unwrap_or(500);
    let limits = Limits {
        connections: 2 * wanted + 100,
        streams: wanted,
        streams_per_principal: wanted,
        ..Limits::default()
    };
    let house = house(Settings { limits, ..settings() }).await;
    let mut watchers = Vec::new();
    for _ in 0..wanted {
        watchers.push(house.stream("/v1/wakes").await);
    }
    let one_more = house.get("/v1/wakes").await;
    assert_eq!((one_more.status, one_more.code().as_str()), (503, "too-many-watchers"));
    assert_eq!(house.get("/v1/elections").await.status, 200);
    // They are told when the server ends, and it ends in good order.
    let ends = futures_util::future::join_all(watchers.into_iter().map(|watcher| watcher.collect()));
    let (ends, ()) = within(async { tokio::join!(ends, house.server.shutdown()) }).await;
    assert!(ends.iter().all(Result::is_ok), "a stream was broken off");
}
