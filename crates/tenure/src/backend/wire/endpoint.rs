//! One server: how it is reached, and one try to have it answer.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use tenure_core::port::{StoreError, Trouble};
use tokio::net::UnixStream;

use super::Base;

/// How long a server may take to accept a connection. Whoever calls for a beat waits for less.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long a server may take to answer, for callers who have no bound of their own.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long a connection is kept for the next call. Servers keep theirs for longer.
const IDLE_LIMIT: Duration = Duration::from_secs(20);
/// How many connections are kept.
const IDLE_MAX: usize = 8;
/// The longest answer that is read.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// After how many calls in a row without an answer all kept connections count as dead.
const STRIKES: u32 = 2;

/// One call of the API.
#[derive(Clone, Debug)]
pub(in crate::backend) struct Call {
    pub(in crate::backend) method: Method,
    /// Path and query.
    pub(in crate::backend) path: String,
    /// JSON.
    pub(in crate::backend) body: Option<Vec<u8>>,
    /// Whether it may be sent again when nobody knows whether it happened.
    pub(in crate::backend) again: bool,
}

/// What a server answered.
#[derive(Debug)]
pub(in crate::backend) struct Reply {
    pub(in crate::backend) status: StatusCode,
    pub(in crate::backend) headers: HeaderMap,
    pub(in crate::backend) body: Bytes,
}

/// Why there is no answer.
pub(in crate::backend) enum Miss {
    /// It was never sent.
    Unsent(StoreError),
    /// Whether it happened is unknown.
    Unknown(StoreError),
}

impl Miss {
    pub(in crate::backend) fn into_error(self) -> StoreError {
        match self {
            Miss::Unsent(error) | Miss::Unknown(error) => error,
        }
    }
}

/// One server.
pub(in crate::backend) struct Endpoint {
    pub(in crate::backend) base: Base,
    tls: ClientConfig,
    line: Mutex<Line>,
    /// When it last failed, as a number that grows with each failure of any; 0 if it did not since it last answered.
    failed: AtomicU64,
    strikes: AtomicU32,
}

impl Endpoint {
    pub(in crate::backend) fn new(base: Base, tls: ClientConfig) -> Endpoint {
        let line = Mutex::new(Line::to(&base, &tls));
        Endpoint { base, tls, line, failed: AtomicU64::new(0), strikes: AtomicU32::new(0) }
    }

    /// When it last failed.
    pub(in crate::backend) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// It failed, as the `nth` failure of all.
    pub(in crate::backend) fn fails(&self, nth: u64) {
        self.failed.store(nth, Ordering::Relaxed);
        if self.strikes.fetch_add(1, Ordering::Relaxed) + 1 >= STRIKES {
            // Behind a balancer that moved on, every connection that is kept may lead nowhere.
            *self.line() = Line::to(&self.base, &self.tls);
            self.strikes.store(0, Ordering::Relaxed);
        }
    }

    /// It answers.
    pub(in crate::backend) fn answers(&self) {
        self.failed.store(0, Ordering::Relaxed);
        self.strikes.store(0, Ordering::Relaxed);
    }

    /// One try.
    pub(in crate::backend) async fn send(
        &self,
        call: &Call,
        proof: Option<HeaderValue>,
    ) -> Result<Reply, Miss> {
        let exchange = async {
            let response = self.begin(call, proof, "application/json").await?;
            let (head, body) = response.into_parts();
            let read = Limited::new(body, ANSWER_MAX).collect().await;
            let body = read.map_err(|error| Miss::Unknown(self.broken(error.as_ref())))?.to_bytes();
            Ok(Reply { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(ANSWER_LIMIT, exchange)
            .await
            .unwrap_or_else(|_| Err(Miss::Unknown(self.silent())))
    }

    /// One try whose answer is a stream.
    pub(in crate::backend) async fn stream(
        &self,
        call: &Call,
        proof: Option<HeaderValue>,
    ) -> Result<Response<Incoming>, StoreError> {
        let opening = self.begin(call, proof, "text/event-stream");
        let opened = tokio::time::timeout(ANSWER_LIMIT, opening).await;
        opened.unwrap_or_else(|_| Err(Miss::Unknown(self.silent()))).map_err(Miss::into_error)
    }

    async fn begin(
        &self,
        call: &Call,
        proof: Option<HeaderValue>,
        accept: &'static str,
    ) -> Result<Response<Incoming>, Miss> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.base.origin(), call.path))
            .header(ACCEPT, accept);
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Base::Unix(_) = self.base {
            request = request.header(HOST, "localhost");
        }
        if let Some(proof) = proof {
            request = request.header(AUTHORIZATION, proof);
        }
        let body = Full::new(Bytes::from(call.body.clone().unwrap_or_default()));
        let request = request.body(body).map_err(|error| {
            let message = format!("{} cannot be asked for {}: {error}", self.base.place(), call.path);
            Miss::Unsent(StoreError::new(Trouble::Address, message))
        })?;
        let sent = self.line().request(request);
        sent.await.map_err(|error| {
            let told = self.broken(&error);
            if error.is_connect() { Miss::Unsent(told) } else { Miss::Unknown(told) }
        })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silent(&self) -> StoreError {
        let message = format!("the server at {} did not answer within {ANSWER_LIMIT:?}", self.base.place());
        StoreError::new(Trouble::Timeout, message)
    }

    /// What broke, down to its cause.
    fn broken(&self, error: &(dyn Error + 'static)) -> StoreError {
        let place = self.base.place();
        let mut cause = error;
        let mut tls = None;
        loop {
            tls = tls.or_else(|| rustls_in(cause));
            let Some(deeper) = cause.source() else { break };
            cause = deeper;
        }
        if let Some(tls) = tls {
            let message = format!(
                "no safe connection to the server at {place}: {tls}; check that it speaks TLS, that its certificate names \
                 this host, and that $TENURE_CA_FILE names the authority that signed it"
            );
            return StoreError::new(Trouble::Unfit, message);
        }
        let message = if error.to_string().contains("connect") || !is_parse(cause) {
            // A server that misses a certificate may hang up before it has said so.
            let certificate = match place.starts_with("https") {
                true => ", and if it wants a client certificate, that $TENURE_CLIENT_CERT names it",
                false => "",
            };
            format!(
                "no answer from the server at {place}: {cause}; check that it runs and that host and port are right{certificate}"
            )
        } else {
            format!(
                "what answers at {place} does not speak HTTP ({cause}); is it https://, or another service?"
            )
        };
        StoreError::new(Trouble::Unreachable, message)
    }
}

fn rustls_in(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(error.to_string());
    }
    // An error of input and output keeps its cause inside, and does not name it as its source.
    let inner = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref())?;
    rustls_in(inner)
}

fn is_parse(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)
}

/// A way to a server. HTTP/1 only: a call that is given up closes its own connection and nobody else's, and no call waits
/// behind another on a connection that leads nowhere.
enum Line {
    Tcp(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
    Unix(Client<Socket, Full<Bytes>>),
}

impl Line {
    fn to(base: &Base, tls: &ClientConfig) -> Line {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_LIMIT).pool_max_idle_per_host(IDLE_MAX);
        match base {
            Base::Unix(path) => Line::Unix(builder.build(Socket(path.clone()))),
            Base::Tcp { .. } => {
                let mut tcp = HttpConnector::new();
                tcp.enforce_http(false);
                tcp.set_nodelay(true);
                tcp.set_connect_timeout(Some(CONNECT_LIMIT));
                tcp.set_keepalive(Some(IDLE_LIMIT));
                let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone());
                Line::Tcp(builder.build(https.https_or_http().enable_http1().wrap_connector(tcp)))
            }
        }
    }

    fn request(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        match self {
            Line::Tcp(client) => client.request(request),
            Line::Unix(client) => client.request(request),
        }
    }
}

/// Connects to a socket on this machine, whatever the address of the request says.
#[derive(Clone)]
struct Socket(PathBuf);

impl tower_service::Service<Uri> for Socket {
    type Response = TokioIo<UnixStream>;
    type Error = std::io::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}
