//! Who gets in.

use http_body_util::Full;
use tenure::port::Office as _;
use tenure::runtime::wall_ms;
use tenure_server::{Server, Settings, StartError};

use crate::support::{House, guarded, house, principal, settings, shared, until};

const LIST: &str = "/v1/elections";

async fn with_header(house: &House, name: &str, value: &str) -> (u16, String) {
    let request = house.request("GET", LIST).header(name, value).body(Full::default()).expect("a request");
    let answer = house.send(request).await;
    let code = if answer.status == 200 { String::new() } else { answer.code() };
    (answer.status, code)
}

#[tokio::test]
async fn strangers_are_told_how_to_prove_who_they_are() {
    let house = guarded().await;
    let answer = house.get(LIST).await;
    assert_eq!((answer.status, answer.code().as_str()), (401, "unauthenticated"));
    assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"tenure\"");
    assert!(answer.json()["remedy"].as_str().expect("a remedy").contains("tenure token create"));
    // A browser is shown the way instead.
    let page = house.request("GET", "/audit?before=3").header("accept", "text/html").body(Full::default());
    let page = house.send(page.expect("a request")).await;
    assert_eq!((page.status, page.header("location")), (303, "/login?next=%2Faudit%3Fbefore%3D3"));
}

#[tokio::test]
async fn a_token_lets_in_by_header_and_nothing_else_does() {
    let house = guarded().await;
    let token = house.principal("worker", &["*:read"]).await;
    let text = &token.text;
    assert_eq!(with_header(&house, "authorization", &format!("Bearer {text}")).await.0, 200);
    assert_eq!(with_header(&house, "authorization", &format!("bearer {text}")).await.0, 200);
    // It is no cookie: scripts of the API and sessions of browsers have nothing in common.
    for name in ["tenure_token", "tenure_session"] {
        assert_eq!(with_header(&house, "cookie", &format!("a=b; {name}={text}")).await.0, 401);
    }
    let other = house.principal("other", &["*:read"]).await;
    let swapped = format!("tenure_{}_{}", other.id, &text[text.len() - 64..]);
    let unknown = (401, "unknown-token".to_owned());
    for wrong in
        [swapped.as_str(), &text[..text.len() - 1], "", "tenure_", &token.digest, &text.to_uppercase()]
    {
        assert_eq!(
            with_header(&house, "authorization", &format!("Bearer {wrong}")).await,
            unknown,
            "{wrong}"
        );
    }
    assert_eq!(with_header(&house, "authorization", &format!("Basic {text}")).await, unknown);
    // A wrong header is not made good by a right cookie.
    let both = house
        .request("GET", LIST)
        .header("authorization", "Bearer x")
        .header("cookie", format!("tenure_session={}", log_in(&house, text).await));
    assert_eq!(house.send(both.body(Full::default()).expect("a request")).await.status, 401);
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let house = guarded().await;
    let token = house.principal("worker", &["prod:read"]).await;
    let answer = house.post_as(&token.text, "/v1/elections/web/pause?namespace=prod", "{}").await;
    assert_eq!((answer.status, answer.code().as_str()), (403, "denied"));
    let detail = answer.json()["detail"].as_str().expect("a detail").to_owned();
    assert!(detail.contains("worker") && detail.contains("admin") && detail.contains("prod"), "{detail}");
    let elsewhere = house.get_as(&token.text, "/v1/elections/web?namespace=dev").await;
    assert_eq!(elsewhere.code(), "denied");
    // The gate and the handler must not read two different namespaces.
    let two = house.get_as(&token.text, "/v1/elections/web?namespace=prod&namespace=dev").await;
    assert_eq!((two.status, two.code().as_str()), (400, "malformed-query"));
    let hidden = house.get_as(&token.text, "/v1/elections/web?namespace=prod&n%61mespace=dev").await;
    assert_eq!(hidden.status, 400);
}

#[tokio::test]
async fn a_revoked_token_is_worth_nothing_on_any_replica_within_seconds() {
    let house = guarded().await;
    let other = Settings { auth: true, name: "other".into(), ..settings() };
    let other = Server::start(other, shared(&house.store)).await.expect("a server");
    let other = House { server: other, store: house.store.clone() };
    let token = house.principal("worker", &["*:read"]).await;
    assert_eq!(house.get_as(&token.text, LIST).await.status, 200);
    assert_eq!(other.get_as(&token.text, LIST).await.status, 200);
    let stream = house.request("GET", "/v1/wakes").header("authorization", format!("Bearer {}", token.text));
    let stream = crate::support::raw(house.connect().await, stream.body(Full::default()).expect("a request"));
    let mut stream = stream.await.expect("a stream").into_body();

    let mut credential = house.store.credentials().await.expect("known").remove(0);
    credential.revoked_at_ms = Some(wall_ms());
    house.store.put_credential(&credential).await.expect("revoked");
    for house in [&house, &other] {
        until("it is refused", async || {
            let answer = house.get_as(&token.text, LIST).await;
            answer.status == 401 && answer.code() == "revoked"
        })
        .await;
    }
    // Whoever was listening hears no more.
    let ended = async { while let Some(Ok(_)) = http_body_util::BodyExt::frame(&mut stream).await {} };
    crate::support::within(ended).await;
}

#[tokio::test]
async fn an_expired_token_is_worth_nothing() {
    let house = guarded().await;
    let expired = principal(&house.store, "late", &["*:admin"], Some(-1)).await;
    let answer = house.get_as(&expired.text, LIST).await;
    assert_eq!((answer.status, answer.code().as_str()), (401, "expired"));
    let soon = principal(&house.store, "soon", &["*:admin"], Some(1500)).await;
    until("it has expired", async || house.get_as(&soon.text, LIST).await.status == 401).await;
}

#[tokio::test]
async fn unknown_tokens_do_not_wear_out_the_store() {
    let house = guarded().await;
    let strange = tenure_server::access::token::Token::generate(tenure::runtime::random).text;
    let before = house.store.calls();
    let crowd = futures_util::future::join_all((0..500).map(|_| house.get_as(&strange, LIST))).await;
    // Those that would wait for the store beyond the bound are told to come back.
    let told = |status| crowd.iter().filter(|answer| answer.status == status).count();
    assert_eq!(told(401) + told(429), crowd.len(), "{crowd:?}");
    assert!(crowd.iter().all(|answer| matches!(&*answer.code(), "unknown-token" | "too-many-requests")));
    assert!(told(401) > 0);
    let calls = house.store.calls() - before;
    assert!(calls < 250, "the store was called {calls} times for 500 requests");
}

#[tokio::test]
async fn a_session_is_its_owners_alone() {
    let house = guarded().await;
    let (a, b) = (house.principal("a", &["*:lead"]).await, house.principal("b", &["*:admin"]).await);
    let id = format!("{:016x}{:016x}", tenure::runtime::random(), tenure::runtime::random());
    let body = format!(r#"{{"id":"{id}","name":"n","lease_ms":10000}}"#);
    let opened = house.post_as(&a.text, "/v1/sessions", &body).await;
    assert_eq!(opened.status, 200, "{opened:?}");
    let renew = format!("/v1/sessions/{id}/renew");
    assert_eq!(house.post_as(&a.text, &renew, "").await.status, 200);
    let refused = house.post_as(&b.text, &renew, "").await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "not-your-session"));
    // Not even an operator speaks for a process that has the store in its own hands.
    let own = house.server.tenure().session().expect("open");
    let refused = house.post_as(&b.text, &format!("/v1/sessions/{own}/renew"), "").await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "not-your-session"));
    let gone = house.post_as(&a.text, &format!("/v1/sessions/{}/renew", "0".repeat(32)), "").await;
    assert_eq!((gone.status, gone.code().as_str()), (410, "session-gone"));
    assert_eq!(house.post_as(&a.text, "/v1/sessions/x%00y/renew", "").await.status, 400);
}

#[tokio::test]
async fn with_access_off_only_loopback_names_and_own_pages_are_answered() {
    let house = house(settings()).await;
    assert_eq!(house.get(LIST).await.status, 200);
    let rebound = http::Request::builder().uri(LIST).header("host", "evil.example").body(Full::default());
    let refused = house.send(rebound.expect("a request")).await;
    assert_eq!((refused.status, refused.code().as_str()), (403, "host-not-allowed"));
    for (name, value) in
        [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example"), ("origin", "null")]
    {
        let request = house.request("POST", "/v1/elections/web/pause").header(name, value);
        let refused = house.send(request.body(Full::default()).expect("a request")).await;
        assert_eq!((refused.status, refused.code().as_str()), (403, "cross-site-request"), "{name}: {value}");
    }
    let own = house.request("POST", "/v1/elections/web/pause").header("sec-fetch-site", "same-origin");
    assert_ne!(house.send(own.body(Full::default()).expect("a request")).await.status, 403);
}

#[tokio::test]
async fn what_others_can_reach_needs_tls_and_authentication() {
    for (auth, address) in [(false, "0.0.0.0:0"), (true, "0.0.0.0:0"), (true, "[::]:0"), (false, "[::]:0")] {
        let settings = Settings { listen: vec![address.parse().expect("an address")], auth, ..settings() };
        let refused =
            Server::start(settings, std::sync::Arc::new(tenure::backend::memory::Memory::new())).await;
        let error = refused.err().expect("refused");
        assert!(matches!(error, StartError::Exposed(_)), "{error}");
        let text = error.to_string();
        for way in ["--tls-cert", "--tls-key", "--auth", "tenure token create"] {
            assert!(text.contains(way), "{text}");
        }
    }
}

/// Logs in; the value of the cookie.
async fn log_in(house: &House, token: &str) -> String {
    let answer = login(house, token).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    let cookie = answer.header("set-cookie");
    let (name, rest) = cookie.split_once('=').expect("a cookie");
    assert_eq!(name, "tenure_session");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(rest.contains(part), "{rest}");
    }
    rest.split(';').next().expect("a value").to_owned()
}

async fn login(house: &House, token: &str) -> crate::support::Answer {
    let form = Full::new(format!("token={token}&next=/").into());
    let request = house.request("POST", "/login").header("content-type", "application/x-www-form-urlencoded");
    house.send(request.body(form).expect("a request")).await
}

async fn status_with(house: &House, session: &str) -> u16 {
    with_header(house, "cookie", &format!("tenure_session={session}")).await.0
}

/// The cookie was the access token itself: a log-out did not end it, and whoever got hold of it had the API for a month.
#[tokio::test]
async fn a_dashboard_session_is_no_token_and_ends_with_its_log_out_or_its_token() {
    let house = guarded().await;
    let other = Settings { auth: true, name: "other".into(), ..settings() };
    let other = Server::start(other, shared(&house.store)).await.expect("a server");
    let other = House { server: other, store: house.store.clone() };
    let token = house.principal("ops", &["*:read"]).await;
    let session = log_in(&house, &token.text).await;
    let secret = session.split_once('.').expect("an id and a secret").1;
    assert!(!session.contains(&token.text) && !token.text.contains(secret));
    assert_eq!(status_with(&house, &session).await, 200);
    assert_eq!(status_with(&other, &session).await, 200, "any replica knows it");
    // At rest there is a digest, and nothing that has rights of its own.
    let kept = house.store.credentials().await.expect("known");
    let kept =
        kept.iter().find(|it| it.id.contains(session.split_once('.').expect("an id").0)).expect("kept");
    assert!(!format!("{kept:?}").contains(secret) && kept.grants.is_empty());
    // It proves nothing in a header, and does not appear among the tokens.
    for text in [session.clone(), format!("tenure_{}", session.replace('.', "_"))] {
        assert_eq!(with_header(&house, "authorization", &format!("Bearer {text}")).await.0, 401);
    }
    let admin = house.principal("admin", &["*:admin"]).await;
    assert!(!house.get_as(&admin.text, "/v1/tokens").await.text().contains("dashboard."));
    // Another secret, or another id.
    assert_eq!(status_with(&house, &format!("{}{}", &session[..session.len() - 1], "z")).await, 401);
    let flipped = if session.ends_with('0') { "1" } else { "0" };
    assert_eq!(status_with(&house, &format!("{}{flipped}", &session[..session.len() - 1])).await, 401);

    let second = log_in(&house, &token.text).await;
    let leave = house.request("POST", "/logout").header("cookie", format!("tenure_session={session}"));
    let left = house.send(leave.body(Full::default()).expect("a request")).await;
    assert_eq!(left.status, 303);
    assert!(left.header("set-cookie").starts_with("tenure_session=; "));
    assert_eq!(status_with(&house, &session).await, 401, "the log-out ended it");
    until("other replicas have heard of it", async || status_with(&other, &session).await == 401).await;
    assert_eq!(status_with(&house, &second).await, 200, "and no other");

    let mut credential = house
        .store
        .credentials()
        .await
        .expect("known")
        .into_iter()
        .find(|it| it.id == token.id)
        .expect("kept");
    credential.revoked_at_ms = Some(wall_ms());
    house.store.put_credential(&credential).await.expect("revoked");
    until("it ends with its token", async || status_with(&house, &second).await == 401).await;
    assert_eq!(login(&house, &token.text).await.status, 401);
}

/// Behind a proxy that sets `Host: 127.0.0.1`, a server without access control served everybody as its administrator.
#[tokio::test]
async fn a_forwarded_request_is_refused_without_access_control() {
    let open = crate::support::house(settings()).await;
    let (house, token) = (guarded().await, "x-forwarded-for");
    let principal = house.principal("worker", &["*:read"]).await;
    for header in ["forwarded", "via", token, "x-forwarded-host", "x-real-ip"] {
        let request = open.request("GET", LIST).header(header, "203.0.113.7");
        let answer = open.send(request.body(Full::default()).expect("a request")).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "forwarded-request"), "{header}");
        let request = house.request("GET", LIST).header(header, "203.0.113.7");
        let request = request.header("authorization", format!("Bearer {}", principal.text));
        assert_eq!(
            house.send(request.body(Full::default()).expect("a request")).await.status,
            200,
            "{header}"
        );
    }
}
