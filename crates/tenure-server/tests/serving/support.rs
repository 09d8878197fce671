//! Test servers, and a client that can misbehave.

#![allow(unreachable_pub)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tenure::port::{AccessStore, Credential, CredentialVerifier, Grant, Store};
use tenure::runtime::{random, wall_ms};
use tenure::store::memory::MemoryStore;
use tenure_server::access::access_token::AccessToken;
use tenure_server::settings::ListenAddress;
use tenure_server::{Server, Settings};
use tenure_testkit::PartitionableStore;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Maximum wait of a test; only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type TestStore = PartitionableStore<MemoryStore>;

/// Server on an in-memory store.
pub struct TestServer {
    pub server: Server,
    pub store: TestStore,
}

pub fn settings() -> Settings {
    Settings {
        listen: vec!["127.0.0.1:0".parse::<ListenAddress>().expect("an address")],
        name: "here".into(),
        ..Settings::default()
    }
}

pub async fn test_server(settings: Settings) -> TestServer {
    let store = PartitionableStore::new(MemoryStore::new());
    let server = Server::start(settings, Arc::new(store.clone())).await.expect("a server");
    TestServer { server, store }
}

/// Server that requires credentials.
pub async fn guarded() -> TestServer {
    test_server(Settings { auth: true, ..settings() }).await
}

impl TestServer {
    pub fn address(&self) -> SocketAddr {
        self.server.addresses()[0].socket_addr().expect("a TCP address")
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).await.expect("connected")
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        within(answer(self.connect().await, request)).await.expect("a response")
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request("GET", path).body(Full::default()).expect("a request")).await
    }

    pub async fn get_as(&self, token: &str, path: &str) -> Answer {
        let request = self.request("GET", path).header("authorization", format!("Bearer {token}"));
        self.send(request.body(Full::default()).expect("a request")).await
    }

    pub async fn post(&self, path: &str, body: &str) -> Answer {
        self.send(json(self.request("POST", path), body)).await
    }

    pub async fn post_as(&self, token: &str, path: &str, body: &str) -> Answer {
        self.send(json(self.request("POST", path).header("authorization", format!("Bearer {token}")), body))
            .await
    }

    pub fn request(&self, method: &str, path: &str) -> http::request::Builder {
        Request::builder().method(method).uri(path).header("host", self.address().to_string())
    }

    /// Create a principal with these grants.
    pub async fn principal(&self, name: &str, grants: &[&str]) -> AccessToken {
        principal(&self.store, name, grants, None).await
    }

    /// Open an event stream and return its unread body.
    pub async fn stream(&self, path: &str) -> Incoming {
        let request = self.request("GET", path).body(Full::default()).expect("a request");
        let response = within(raw(self.connect().await, request)).await.expect("a response");
        assert_eq!(response.status(), 200, "{path}");
        response.into_body()
    }
}

pub fn json(builder: http::request::Builder, body: &str) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    builder.header("content-type", "application/json").body(body).expect("a request")
}

/// Create a principal with an access token that expires after so many milliseconds.
pub async fn principal(
    store: &TestStore,
    name: &str,
    grants: &[&str],
    expires_in_ms: Option<i64>,
) -> AccessToken {
    let token = AccessToken::generate(random);
    let credential = Credential {
        id: token.id.clone(),
        name: name.into(),
        verifier: CredentialVerifier::AccessToken { digest: token.digest.clone() },
        grants: grants.iter().map(|grant| grant.parse::<Grant>().expect("a grant")).collect(),
        created_at_ms: wall_ms(),
        created_by: "the test".into(),
        expires_at_ms: expires_in_ms.map(|ms| wall_ms() + ms),
        revoked_at_ms: None,
    };
    store.put_credential(&credential).await.expect("kept");
    token
}

/// Complete response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("JSON, not {:?}", self.text()))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().expect("text")).unwrap_or_default()
    }

    /// Problem code; the response must be a valid problem.
    pub fn code(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        problem["code"].as_str().expect("a code").to_owned()
    }
}

/// Send a request over its own connection.
pub async fn answer<S>(stream: S, request: Request<Full<Bytes>>) -> Result<Answer, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let response = raw(stream, request).await?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
}

pub async fn raw<S>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> Result<http::Response<Incoming>, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(request).await
}

/// Run with the maximum wait.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("timed out")
}

/// Wait until a condition holds.
pub async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("timed out waiting until {what}"));
}

/// Shared handle of the store.
pub fn shared(store: &TestStore) -> Arc<dyn Store> {
    Arc::new(store.clone())
}
