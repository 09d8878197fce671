//! Authentication and authorization.

use http_body_util::Full;
use tenure::port::AccessStore as _;
use tenure::runtime::wall_ms;
use tenure_server::{Server, Settings, StartError};

use crate::support::{TestServer, guarded, principal, settings, shared, test_server, until};

const LIST: &str = "/v1/elections";

async fn with_header(fixture: &TestServer, name: &str, value: &str) -> (u16, String) {
    let request = fixture.request("GET", LIST).header(name, value).body(Full::default()).expect("a request");
    let answer = fixture.send(request).await;
    let code = if answer.status == 200 { String::new() } else { answer.code() };
    (answer.status, code)
}

#[tokio::test]
async fn unauthenticated_clients_get_a_challenge_and_a_remedy() {
    let fixture = guarded().await;
    let answer = fixture.get(LIST).await;
    assert_eq!((answer.status, answer.code().as_str()), (401, "unauthenticated"));
    assert_eq!(answer.header("www-authenticate"), "Bearer realm=\"tenure\"");
    assert!(answer.json()["remedy"].as_str().expect("a remedy").contains("tenure credentials create"));
    // A browser is redirected to the login.
    let page = fixture.request("GET", "/audit?before=3").header("accept", "text/html").body(Full::default());
    let page = fixture.send(page.expect("a request")).await;
    assert_eq!((page.status, page.header("location")), (303, "/login?next=%2Faudit%3Fbefore%3D3"));
}

#[tokio::test]
async fn an_access_token_is_accepted_only_in_the_authorization_header() {
    let fixture = guarded().await;
    let token = fixture.principal("worker", &["*:read"]).await;
    let text = &token.text;
    assert_eq!(with_header(&fixture, "authorization", &format!("Bearer {text}")).await.0, 200);
    assert_eq!(with_header(&fixture, "authorization", &format!("bearer {text}")).await.0, 200);
    // An access token is not accepted as a cookie.
    for name in ["tenure_token", "tenure_session"] {
        assert_eq!(with_header(&fixture, "cookie", &format!("a=b; {name}={text}")).await.0, 401);
    }
    let other = fixture.principal("other", &["*:read"]).await;
    let swapped = format!("tenure_{}_{}", other.id, &text[text.len() - 64..]);
    let unknown = (401, "invalid-access-token".to_owned());
    for wrong in
        [swapped.as_str(), &text[..text.len() - 1], "", "tenure_", &token.digest, &text.to_uppercase()]
    {
        assert_eq!(
            with_header(&fixture, "authorization", &format!("Bearer {wrong}")).await,
            unknown,
            "{wrong}"
        );
    }
    assert_eq!(with_header(&fixture, "authorization", &format!("Basic {text}")).await, unknown);
    // A valid cookie does not replace an invalid header.
    let both = fixture
        .request("GET", LIST)
        .header("authorization", "Bearer x")
        .header("cookie", format!("tenure_session={}", log_in(&fixture, text).await));
    assert_eq!(fixture.send(both.body(Full::default()).expect("a request")).await.status, 401);
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let fixture = guarded().await;
    let token = fixture.principal("worker", &["prod:read"]).await;
    let answer = fixture.post_as(&token.text, "/v1/elections/web/pause?namespace=prod", "{}").await;
    assert_eq!((answer.status, answer.code().as_str()), (403, "forbidden"));
    let detail = answer.json()["detail"].as_str().expect("a detail").to_owned();
    assert!(detail.contains("worker") && detail.contains("admin") && detail.contains("prod"), "{detail}");
    let elsewhere = fixture.get_as(&token.text, "/v1/elections/web?namespace=dev").await;
    assert_eq!(elsewhere.code(), "forbidden");
    // The middleware and the handler must not read different namespaces.
    let two = fixture.get_as(&token.text, "/v1/elections/web?namespace=prod&namespace=dev").await;
    assert_eq!((two.status, two.code().as_str()), (400, "malformed-query"));
    let hidden = fixture.get_as(&token.text, "/v1/elections/web?namespace=prod&n%61mespace=dev").await;
    assert_eq!(hidden.status, 400);
}

#[tokio::test]
async fn a_revoked_access_token_is_rejected_on_every_replica_within_seconds() {
    let fixture = guarded().await;
    let other = Settings { auth: true, name: "other".into(), ..settings() };
    let other = Server::start(other, shared(&fixture.store)).await.expect("a server");
    let other = TestServer { server: other, store: fixture.store.clone() };
    let token = fixture.principal("worker", &["*:read"]).await;
    assert_eq!(fixture.get_as(&token.text, LIST).await.status, 200);
    assert_eq!(other.get_as(&token.text, LIST).await.status, 200);
    let stream = fixture
        .request("GET", "/internal/v1/notifications")
        .header("authorization", format!("Bearer {}", token.text));
    let stream =
        crate::support::raw(fixture.connect().await, stream.body(Full::default()).expect("a request"));
    let mut stream = stream.await.expect("a stream").into_body();

    let mut credential = fixture.store.credentials().await.expect("known").remove(0);
    credential.revoked_at_ms = Some(wall_ms());
    fixture.store.put_credential(&credential).await.expect("revoked");
    for fixture in [&fixture, &other] {
        until("it is rejected", async || {
            let answer = fixture.get_as(&token.text, LIST).await;
            answer.status == 401 && answer.code() == "revoked"
        })
        .await;
    }
    // Open streams end.
    let ended = async { while let Some(Ok(_)) = http_body_util::BodyExt::frame(&mut stream).await {} };
    crate::support::within(ended).await;
}

#[tokio::test]
async fn an_expired_access_token_is_rejected() {
    let fixture = guarded().await;
    let expired = principal(&fixture.store, "late", &["*:admin"], Some(-1)).await;
    let answer = fixture.get_as(&expired.text, LIST).await;
    assert_eq!((answer.status, answer.code().as_str()), (401, "expired"));
    let soon = principal(&fixture.store, "soon", &["*:admin"], Some(1500)).await;
    until("it has expired", async || fixture.get_as(&soon.text, LIST).await.status == 401).await;
}

#[tokio::test]
async fn unknown_access_tokens_do_not_overload_the_store() {
    let fixture = guarded().await;
    let strange = tenure_server::access::access_token::AccessToken::generate(tenure::runtime::random).text;
    let before = fixture.store.calls();
    let crowd = futures_util::future::join_all((0..500).map(|_| fixture.get_as(&strange, LIST))).await;
    // Requests beyond the limit of waiting ones are told to retry.
    let text = |status| crowd.iter().filter(|answer| answer.status == status).count();
    assert_eq!(text(401) + text(429), crowd.len(), "{crowd:?}");
    assert!(
        crowd.iter().all(|answer| matches!(&*answer.code(), "invalid-access-token" | "too-many-requests"))
    );
    assert!(text(401) > 0);
    let calls = fixture.store.calls() - before;
    assert!(calls < 250, "the store was called {calls} times for 500 requests");
}

#[tokio::test]
async fn a_session_is_usable_only_by_its_owner() {
    let fixture = guarded().await;
    let (a, b) = (fixture.principal("a", &["*:lead"]).await, fixture.principal("b", &["*:admin"]).await);
    let id = format!("{:016x}{:016x}", tenure::runtime::random(), tenure::runtime::random());
    let body = format!(r#"{{"id":"{id}","name":"n","lease_ms":10000}}"#);
    let opened = fixture.post_as(&a.text, "/internal/v1/sessions", &body).await;
    assert_eq!(opened.status, 200, "{opened:?}");
    let heartbeat = format!("/v1/sessions/{id}/heartbeat");
    assert_eq!(fixture.post_as(&a.text, &heartbeat, "").await.status, 200);
    let rejected = fixture.post_as(&b.text, &heartbeat, "").await;
    assert_eq!((rejected.status, rejected.code().as_str()), (403, "session-owned-by-other"));
    // Not even an operator may use a session that was opened directly in the store.
    let own = fixture.server.tenure().session().expect("open");
    let rejected = fixture.post_as(&b.text, &format!("/v1/sessions/{own}/heartbeat"), "").await;
    assert_eq!((rejected.status, rejected.code().as_str()), (403, "session-owned-by-other"));
    let ended = fixture.post_as(&a.text, &format!("/v1/sessions/{}/heartbeat", "0".repeat(32)), "").await;
    assert_eq!((ended.status, ended.code().as_str()), (410, "session-ended"));
    assert_eq!(fixture.post_as(&a.text, "/v1/sessions/x%00y/heartbeat", "").await.status, 400);
}

#[tokio::test]
async fn without_access_control_only_loopback_hosts_and_same_origin_requests_pass() {
    let fixture = test_server(settings()).await;
    assert_eq!(fixture.get(LIST).await.status, 200);
    let rebound = http::Request::builder().uri(LIST).header("host", "evil.example").body(Full::default());
    let rejected = fixture.send(rebound.expect("a request")).await;
    assert_eq!((rejected.status, rejected.code().as_str()), (403, "host-not-allowed"));
    for (name, value) in
        [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example"), ("origin", "null")]
    {
        let request = fixture.request("POST", "/v1/elections/web/pause").header(name, value);
        let rejected = fixture.send(request.body(Full::default()).expect("a request")).await;
        assert_eq!(
            (rejected.status, rejected.code().as_str()),
            (403, "cross-site-request"),
            "{name}: {value}"
        );
    }
    let own = fixture.request("POST", "/v1/elections/web/pause").header("sec-fetch-site", "same-origin");
    assert_ne!(fixture.send(own.body(Full::default()).expect("a request")).await.status, 403);
}

#[tokio::test]
async fn a_public_address_requires_tls_and_authentication() {
    for (auth, address) in [(false, "0.0.0.0:0"), (true, "0.0.0.0:0"), (true, "[::]:0"), (false, "[::]:0")] {
        let settings = Settings { listen: vec![address.parse().expect("an address")], auth, ..settings() };
        let rejected =
            Server::start(settings, std::sync::Arc::new(tenure::store::memory::MemoryStore::new())).await;
        let error = rejected.err().expect("rejected");
        assert!(matches!(error, StartError::Exposed(_)), "{error}");
        let text = error.to_string();
        for way in ["--tls-cert", "--tls-key", "--auth", "tenure credentials create"] {
            assert!(text.contains(way), "{text}");
        }
    }
}

/// Log in and return the value of the cookie.
async fn log_in(fixture: &TestServer, token: &str) -> String {
    let answer = login(fixture, token).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    let cookie = answer.header("set-cookie");
    let (name, rest) = cookie.split_once('=').expect("a cookie");
    assert_eq!(name, "tenure_session");
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"] {
        assert!(rest.contains(part), "{rest}");
    }
    rest.split(';').next().expect("a value").to_owned()
}

async fn login(fixture: &TestServer, token: &str) -> crate::support::Answer {
    let form = Full::new(format!("access_token={token}&next=/").into());
    let request =
        fixture.request("POST", "/login").header("content-type", "application/x-www-form-urlencoded");
    fixture.send(request.body(form).expect("a request")).await
}

async fn status_with(fixture: &TestServer, session: &str) -> u16 {
    with_header(fixture, "cookie", &format!("tenure_session={session}")).await.0
}

/// Regression: The cookie was the access token itself: a logout did not end it, and a stolen cookie gave
/// access to the API for a month.
#[tokio::test]
async fn a_dashboard_session_is_no_access_token_and_ends_with_logout_or_its_access_token() {
    let fixture = guarded().await;
    let other = Settings { auth: true, name: "other".into(), ..settings() };
    let other = Server::start(other, shared(&fixture.store)).await.expect("a server");
    let other = TestServer { server: other, store: fixture.store.clone() };
    let token = fixture.principal("ops", &["*:read"]).await;
    let session = log_in(&fixture, &token.text).await;
    let secret = session.split_once('.').expect("an id and a secret").1;
    assert!(!session.contains(&token.text) && !token.text.contains(secret));
    assert_eq!(status_with(&fixture, &session).await, 200);
    assert_eq!(status_with(&other, &session).await, 200, "every replica accepts it");
    // The store has only a digest, and the session has no grants.
    let kept = fixture.store.credentials().await.expect("known");
    let kept =
        kept.iter().find(|it| it.id.contains(session.split_once('.').expect("an id").0)).expect("kept");
    assert!(!format!("{kept:?}").contains(secret) && kept.grants.is_empty());
    // It is not accepted in a header and not listed among the credentials.
    for text in [session.clone(), format!("tenure_{}", session.replace('.', "_"))] {
        assert_eq!(with_header(&fixture, "authorization", &format!("Bearer {text}")).await.0, 401);
    }
    let admin = fixture.principal("admin", &["*:admin"]).await;
    assert!(!fixture.get_as(&admin.text, "/v1/credentials").await.text().contains("dashboard."));
    // A wrong secret or id.
    assert_eq!(status_with(&fixture, &format!("{}{}", &session[..session.len() - 1], "z")).await, 401);
    let flipped = if session.ends_with('0') { "1" } else { "0" };
    assert_eq!(status_with(&fixture, &format!("{}{flipped}", &session[..session.len() - 1])).await, 401);

    let second = log_in(&fixture, &token.text).await;
    let leave = fixture.request("POST", "/logout").header("cookie", format!("tenure_session={session}"));
    let left = fixture.send(leave.body(Full::default()).expect("a request")).await;
    assert_eq!(left.status, 303);
    assert!(left.header("set-cookie").starts_with("tenure_session=; "));
    assert_eq!(status_with(&fixture, &session).await, 401, "the logout ended it");
    until("other replicas have read it", async || status_with(&other, &session).await == 401).await;
    assert_eq!(status_with(&fixture, &second).await, 200, "other sessions continue");

    let mut credential = fixture
        .store
        .credentials()
        .await
        .expect("known")
        .into_iter()
        .find(|it| it.id == token.id)
        .expect("kept");
    credential.revoked_at_ms = Some(wall_ms());
    fixture.store.put_credential(&credential).await.expect("revoked");
    until("it ends with its access token", async || status_with(&fixture, &second).await == 401).await;
    assert_eq!(login(&fixture, &token.text).await.status, 401);
}

/// Regression: Behind a proxy that sets `Host: 127.0.0.1`, a server without access control gave every client
/// administrator rights.
#[tokio::test]
async fn a_forwarded_request_is_rejected_without_access_control() {
    let open = crate::support::test_server(settings()).await;
    let (fixture, token) = (guarded().await, "x-forwarded-for");
    let principal = fixture.principal("worker", &["*:read"]).await;
    for header in ["forwarded", "via", token, "x-forwarded-host", "x-real-ip"] {
        let request = open.request("GET", LIST).header(header, "203.0.113.7");
        let answer = open.send(request.body(Full::default()).expect("a request")).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "forwarded-request"), "{header}");
        let request = fixture.request("GET", LIST).header(header, "203.0.113.7");
        let request = request.header("authorization", format!("Bearer {}", principal.text));
        assert_eq!(
            fixture.send(request.body(Full::default()).expect("a request")).await.status,
            200,
            "{header}"
        );
    }
}
