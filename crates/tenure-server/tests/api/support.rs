//! A server's inside on a store of its own, and short words to ask it things.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tenure::backend::memory::Memory;
use tenure::port::{Backend, Candidacy, NewSession, Pulse, Scope, Take, Takeover};
use tenure::runtime::System;
use tenure::{ElectionKey, Name, SessionId, Token};
use tenure_server::App;
use tenure_server::access::Access;
use tower::ServiceExt;

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// The answer, which must have this status.
    pub(crate) fn of(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.bytes));
        if self.bytes.is_empty() { Value::Null } else { self.json() }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// A problem with this status and code, about this field.
    pub(crate) fn problem(self, status: u16, code: &str, field: Option<&str>) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let body = self.of(status);
        assert_eq!(body["code"], code, "{body}");
        assert_eq!(body["field"].as_str(), field, "{body}");
        assert_eq!(body["type"], format!("urn:tenure:{code}"));
        assert!(!body["detail"].as_str().unwrap().is_empty());
    }
}

/// A server's inside.
#[derive(Clone)]
pub(crate) struct Inside {
    pub(crate) app: App,
    router: axum::Router,
    pub(crate) store: Arc<dyn Backend>,
}

pub(crate) fn inside() -> Inside {
    on(Arc::new(Memory::new()))
}

pub(crate) fn on(store: Arc<dyn Backend>) -> Inside {
    let app = App::new(store.clone(), Access::default(), Arc::new(System));
    Inside::of(app, store)
}

/// A SQLite store in a folder.
pub(crate) async fn sqlite(folder: &std::path::Path) -> Arc<dyn Backend> {
    let url = format!("sqlite:{}", folder.join("tenure.db").display());
    at(&url).await
}

/// The store at an address, opened anew.
pub(crate) async fn at(url: &str) -> Arc<dyn Backend> {
    let options = tenure::backend::StoreOptions { url: url.into(), ..Default::default() };
    tenure::backend::open(&options).await.unwrap()
}

impl Inside {
    pub(crate) fn of(app: App, store: Arc<dyn Backend>) -> Inside {
        Inside { router: app.router(), app, store }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        self.send_unless_stream(request).await.expect("a stream has no end")
    }

    /// The answer, unless it is a stream of events.
    pub(crate) async fn send_unless_stream(&self, request: Request<Body>) -> Option<Answer> {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        if headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
            return None;
        }
        let bytes = response.into_body().collect().await.unwrap().to_bytes().to_vec();
        Some(Answer { status, headers, bytes })
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).header("host", "localhost").body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_text(path, body.to_string()).await
    }

    pub(crate) async fn post_text(&self, path: &str, body: impl Into<Body>) -> Answer {
        let request =
            Request::post(path).header("host", "localhost").header("content-type", "application/json");
        self.send(request.body(body.into()).unwrap()).await
    }

    /// Campaigns until it is answered with `leading`.
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

/// A session with the store in its own hands.
pub(crate) async fn open(store: &dyn Backend, lease: Duration) -> SessionId {
    let id = SessionId::from_stored(&format!(
        "{:016x}{:016x}",
        tenure::runtime::random(),
        tenure::runtime::random()
    ));
    let session =
        NewSession { id: id.clone(), name: "by hand".into(), lease, takeover: Takeover::Lease, owner: None };
    assert!(matches!(store.open(&session).await.unwrap(), Pulse::Alive { .. }));
    id
}

/// A candidate with the store in its own hands.
pub(crate) async fn stand(store: &dyn Backend, id: &str, election: &str, priority: i32) -> SessionId {
    let session = open(store, Duration::from_secs(10)).await;
    let candidacy = Candidacy { id: id.into(), priority, ..Candidacy::new(session.clone(), key(election)) };
    store.join(&candidacy).await.unwrap();
    session
}

/// Takes the first slot of an election, which must be free.
pub(crate) async fn take(store: &dyn Backend, session: &SessionId, election: &str) -> Token {
    let seen = store.observe(session, &Scope::Only(vec![key(election)])).await.unwrap();
    let take = Take {
        session: session.clone(),
        epoch: seen.epoch,
        election: key(election),
        slot: 0,
        token: seen.elections[0].leases[0].token,
        holder: None,
        expire: None,
    };
    store.take(&take).await.unwrap().expect("the lease was free")
}

/// A campaign's body.
pub(crate) fn candidate(id: &str) -> Value {
    json!({"id": id, "lease_ms": 10_000, "wait_ms": 3000})
}
