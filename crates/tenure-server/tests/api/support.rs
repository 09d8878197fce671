//! Application state on its own store, and helpers for requests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tenure::port::{
    Candidacy, HeartbeatResponse, ObserveScope, OpenSessionRequest, Store, TakeLeaseRequest, TakeoverMode,
};
use tenure::runtime::SystemRuntime;
use tenure::store::memory::MemoryStore;
use tenure::{ElectionKey, Name, SessionId, Token};
use tenure_server::App;
use tenure_server::access::AccessMode;
use tower::ServiceExt;

/// Response, read to its end.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl TestResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// The body; the response must have this status.
    pub(crate) fn of(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        if self.bytes.is_empty() { Value::Null } else { self.json() }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Expect a problem with this status, code and field.
    pub(crate) fn problem(self, status: u16, code: &str, field: Option<&str>) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let body = self.of(status);
        assert_eq!(body["code"], code, "{body}");
        assert_eq!(body["field"].as_str(), field, "{body}");
        assert_eq!(body["type"], format!("urn:tenure:{code}"));
        assert!(!body["detail"].as_str().unwrap().is_empty());
    }
}

/// Application state and its router.
#[derive(Clone)]
pub(crate) struct TestApp {
    pub(crate) app: App,
    router: axum::Router,
    pub(crate) store: Arc<dyn Store>,
}

pub(crate) fn test_app() -> TestApp {
    on(Arc::new(MemoryStore::new()))
}

pub(crate) fn on(store: Arc<dyn Store>) -> TestApp {
    let app = App::new(store.clone(), AccessMode::default(), Arc::new(SystemRuntime));
    TestApp::of(app, store)
}

/// SQLite store in a directory.
pub(crate) async fn sqlite(folder: &std::path::Path) -> Arc<dyn Store> {
    let url = format!("sqlite:{}", folder.join("tenure.db").display());
    at(&url).await
}

/// Newly opened store at a URL.
pub(crate) async fn at(url: &str) -> Arc<dyn Store> {
    let options = tenure::store::StoreOptions { url: url.into(), ..Default::default() };
    tenure::store::open(&options).await.unwrap()
}

impl TestApp {
    pub(crate) fn of(app: App, store: Arc<dyn Store>) -> TestApp {
        TestApp { router: app.router(), app, store }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> TestResponse {
        self.send_unless_stream(request).await.expect("not a stream")
    }

    /// The response, unless it is an event stream.
    pub(crate) async fn send_unless_stream(&self, request: Request<Body>) -> Option<TestResponse> {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        if headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
            return None;
        }
        let bytes = response.into_body().collect().await.unwrap().to_bytes().to_vec();
        Some(TestResponse { status, headers, bytes })
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        self.send(Request::get(path).header("host", "localhost").body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> TestResponse {
        self.post_text(path, body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: impl Into<Body>) -> TestResponse {
        let request =
            Request::post(path).header("host", "localhost").header("content-type", "application/json");
        self.send(request.body(body.into()).unwrap()).await
    }

    /// Campaign until the response has this value of `leading`.
    pub(crate) async fn campaign(&self, election: &str, mut body: Value, leading: bool) -> Value {
        let path = format!("/v1/elections/{election}/campaign");
        loop {
            let answer = self.post(&path, body.clone()).await.of(200);
            if answer["leading"] == leading {
                return answer;
            }
            body["session"] = answer["session"].clone();
            body["token"] = answer["token"].clone();
        }
    }
}

pub(crate) fn key(name: &str) -> ElectionKey {
    ElectionKey::new(Name::default_namespace(), name.parse().unwrap())
}

/// Session opened directly in the store.
pub(crate) async fn open(store: &dyn Store, lease: Duration) -> SessionId {
    let id = SessionId::from_stored(&format!(
        "{:016x}{:016x}",
        tenure::runtime::random(),
        tenure::runtime::random()
    ));
    let session = OpenSessionRequest {
        id: id.clone(),
        name: "direct".into(),
        lease,
        takeover: TakeoverMode::Lease,
        owner: None,
    };
    assert!(matches!(store.open_session(&session).await.unwrap(), HeartbeatResponse::Live { .. }));
    id
}

/// Candidate that joined directly in the store.
pub(crate) async fn join(store: &dyn Store, id: &str, election: &str, priority: i32) -> SessionId {
    let session = open(store, Duration::from_secs(10)).await;
    let candidacy = Candidacy { name: id.into(), priority, ..Candidacy::new(session.clone(), key(election)) };
    store.join_election(&candidacy).await.unwrap();
    session
}

/// Take the free first slot of an election.
pub(crate) async fn take(store: &dyn Store, session: &SessionId, election: &str) -> Token {
    let seen = store.observe(session, &ObserveScope::Listed(vec![key(election)])).await.unwrap();
    let take = TakeLeaseRequest {
        session: session.clone(),
        epoch: seen.epoch,
        election: key(election),
        slot: 0,
        token: seen.elections[0].leases[0].token,
        holder: None,
        expire: None,
    };
    store.take_lease(&take).await.unwrap().expect("the lease was free")
}

/// Body of a campaign.
pub(crate) fn candidate(name: &str) -> Value {
    json!({"name": name, "lease_ms": 10_000, "wait_ms": 3000})
}
