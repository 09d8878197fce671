//! Servers of a test's own, and a client that can misbehave.

#![allow(unreachable_pub)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tenure::backend::memory::Memory;
use tenure::port::{Backend, Credential, Grant, Office, Proof};
use tenure::runtime::{random, wall_ms};
use tenure_server::access::token::Token;
use tenure_server::settings::Address;
use tenure_server::{Server, Settings};
use tenure_testkit::Cuttable;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// How long a test waits for something that must happen. Only a hang reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub type Store = Cuttable<Memory>;

/// A server on a store in memory.
pub struct House {
    pub server: Server,
    pub store: Store,
}

pub fn settings() -> Settings {
    Settings {
        listen: vec!["127.0.0.1:0".parse::<Address>().expect("an address")],
        name: "here".into(),
        ..Settings::default()
    }
}

pub async fn house(settings: Settings) -> House {
    let store = Cuttable::new(Memory::new());
    let server = Server::start(settings, Arc::new(store.clone())).await.expect("a server");
    House { server, store }
}

/// A server that asks for credentials.
pub async fn guarded() -> House {
    house(Settings { auth: true, ..settings() }).await
}

impl House {
    pub fn address(&self) -> SocketAddr {
        self.server.addresses()[0].socket_addr().expect("a TCP address")
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).await.expect("connected")
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        within(answer(self.connect().await, request)).await.expect("an answer")
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

    /// A principal that may do this.
    pub async fn principal(&self, name: &str, grants: &[&str]) -> Token {
        principal(&self.store, name, grants, None).await
    }

    /// Opens a stream of events; its body, not read yet.
    pub async fn stream(&self, path: &str) -> Incoming {
        let request = self.request("GET", path).body(Full::default()).expect("a request");
        let response = within(raw(self.connect().await, request)).await.expect("an answer");
        assert_eq!(response.status(), 200, "{path}");
        response.into_body()
    }
}

pub fn json(builder: http::request::Builder, body: &str) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    builder.header("content-type", "application/json").body(body).expect("a request")
}

/// A principal with a token that expires after so many milliseconds.
pub async fn principal(store: &Store, name: &str, grants: &[&str], expires_in_ms: Option<i64>) -> Token {
    let token = Token::generate(random);
    let credential = Credential {
        id: token.id.clone(),
        name: name.into(),
        proof: Proof::Token { digest: token.digest.clone() },
        grants: grants.iter().map(|grant| grant.parse::<Grant>().expect("a grant")).collect(),
        created_at_ms: wall_ms(),
        created_by: "the test".into(),
        expires_at_ms: expires_in_ms.map(|ms| wall_ms() + ms),
        revoked_at_ms: None,
    };
    store.put_credential(&credential).await.expect("kept");
    token
}

/// An answer, whole.
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

    /// The code of a problem, which must be one in every respect.
    pub fn code(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status, "{problem}");
        problem["code"].as_str().expect("a code").to_owned()
    }
}

/// Sends a request over a connection of its own.
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

/// Something that must happen.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("this hangs")
}

/// Waits until something is so.
pub async fn until<F: Future<Output = bool>>(what: &str, mut so: impl FnMut() -> F) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("this never came: {what}"));
}

/// A store that others share.
pub fn shared(store: &Store) -> Arc<dyn Backend> {
    Arc::new(store.clone())
}
