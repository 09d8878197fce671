//! One server: its connections, and single requests to it.

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
use tenure_core::port::{ErrorKind, StoreError};
use tokio::net::UnixStream;

use super::ServerAddress;

/// Timeout of connecting. Heartbeats have a shorter timeout of their own.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// Timeout of a response, for callers without their own.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Idle timeout of connections; servers have a longer one.
const IDLE_LIMIT: Duration = Duration::from_secs(20);
/// Maximum number of idle connections.
const IDLE_MAX: usize = 8;
/// Maximum size of a response.
const ANSWER_MAX: usize = 64 * 1024 * 1024;
/// Number of consecutive calls without a response after which all idle connections are dropped.
const STRIKES: u32 = 2;

/// A request to a server.
#[derive(Clone, Debug)]
pub(in crate::store) struct HttpRequest {
    pub(in crate::store) method: Method,
    /// Path and query.
    pub(in crate::store) path: String,
    /// JSON body.
    pub(in crate::store) body: Option<Vec<u8>>,
    /// Whether the request may be repeated when its outcome is unknown.
    pub(in crate::store) again: bool,
}

/// A complete response of a server.
#[derive(Debug)]
pub(in crate::store) struct HttpReply {
    pub(in crate::store) status: StatusCode,
    pub(in crate::store) headers: HeaderMap,
    pub(in crate::store) body: Bytes,
}

/// Why a request has no response.
pub(in crate::store) enum NoReply {
    /// The request was not sent.
    Unsent(StoreError),
    /// The outcome is unknown.
    Unknown(StoreError),
}

impl NoReply {
    pub(in crate::store) fn into_error(self) -> StoreError {
        match self {
            NoReply::Unsent(error) | NoReply::Unknown(error) => error,
        }
    }
}

/// A server with its idle connections and its recent failures.
pub(in crate::store) struct Endpoint {
    pub(in crate::store) base: ServerAddress,
    tls: ClientConfig,
    line: Mutex<ServerConnector>,
    /// Sequence number of its last failure, counted over all servers; 0 if it has responded since.
    failed: AtomicU64,
    strikes: AtomicU32,
}

impl Endpoint {
    pub(in crate::store) fn new(base: ServerAddress, tls: ClientConfig) -> Endpoint {
        let line = Mutex::new(ServerConnector::to(&base, &tls));
        Endpoint { base, tls, line, failed: AtomicU64::new(0), strikes: AtomicU32::new(0) }
    }

    /// Sequence number of the last failure.
    pub(in crate::store) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Record a failure with its sequence number.
    pub(in crate::store) fn fails(&self, nth: u64) {
        self.failed.store(nth, Ordering::Relaxed);
        if self.strikes.fetch_add(1, Ordering::Relaxed) + 1 >= STRIKES {
            // After a failover of a load balancer, every idle connection may be dead: drop all of them.
            *self.line() = ServerConnector::to(&self.base, &self.tls);
            self.strikes.store(0, Ordering::Relaxed);
        }
    }

    /// Record a response.
    pub(in crate::store) fn answers(&self) {
        self.failed.store(0, Ordering::Relaxed);
        self.strikes.store(0, Ordering::Relaxed);
    }

    /// Send a request once.
    pub(in crate::store) async fn send(
        &self,
        call: &HttpRequest,
        authorization: Option<HeaderValue>,
    ) -> Result<HttpReply, NoReply> {
        let exchange = async {
            let response = self.begin(call, authorization, "application/json").await?;
            let (head, body) = response.into_parts();
            let read = Limited::new(body, ANSWER_MAX).collect().await;
            let body = read.map_err(|error| NoReply::Unknown(self.broken(error.as_ref())))?.to_bytes();
            Ok(HttpReply { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(ANSWER_LIMIT, exchange)
            .await
            .unwrap_or_else(|_| Err(NoReply::Unknown(self.silent())))
    }

    /// Send a request once whose response is a stream.
    pub(in crate::store) async fn stream(
        &self,
        call: &HttpRequest,
        authorization: Option<HeaderValue>,
    ) -> Result<Response<Incoming>, StoreError> {
        let opening = self.begin(call, authorization, "text/event-stream");
        let opened = tokio::time::timeout(ANSWER_LIMIT, opening).await;
        opened.unwrap_or_else(|_| Err(NoReply::Unknown(self.silent()))).map_err(NoReply::into_error)
    }

    async fn begin(
        &self,
        call: &HttpRequest,
        authorization: Option<HeaderValue>,
        accept: &'static str,
    ) -> Result<Response<Incoming>, NoReply> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.base.origin(), call.path))
            .header(ACCEPT, accept);
        if call.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let ServerAddress::Unix(_) = self.base {
            request = request.header(HOST, "localhost");
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let body = Full::new(Bytes::from(call.body.clone().unwrap_or_default()));
        let request = request.body(body).map_err(|error| {
            let message =
                format!("cannot build a request to {} for {}: {error}", self.base.place(), call.path);
            NoReply::Unsent(StoreError::new(ErrorKind::Address, message))
        })?;
        let sent = self.line().request(request);
        sent.await.map_err(|error| {
            let message = self.broken(&error);
            if error.is_connect() { NoReply::Unsent(message) } else { NoReply::Unknown(message) }
        })
    }

    fn line(&self) -> MutexGuard<'_, ServerConnector> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn silent(&self) -> StoreError {
        let message = format!("the server at {} did not respond within {ANSWER_LIMIT:?}", self.base.place());
        StoreError::new(ErrorKind::Timeout, message)
    }

    /// Describe an error by its innermost cause.
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
                "no TLS connection to the server at {place}: {tls}; check that it uses TLS, that its certificate names \
                this host, and that $TENURE_CA has the authority that signed it"
            );
            return StoreError::new(ErrorKind::Misconfigured, message);
        }
        let message = if error.to_string().contains("connect") || !is_parse(cause) {
            // A server that requires a client certificate may close the connection without giving this reason.
            let certificate = match place.starts_with("https") {
                true => ", and if it requires a client certificate, that $TENURE_CLIENT_CERT is set",
                false => "",
            };
            format!(
                "no response from the server at {place}: {cause}; check that it runs and that host and port are correct{certificate}"
            )
        } else {
            format!("the service at {place} does not use HTTP ({cause}); try https://, or check the address")
        };
        StoreError::new(ErrorKind::Unreachable, message)
    }
}

fn rustls_in(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(error.to_string());
    }
    // An I/O error wraps its cause without naming it as its source.
    let inner = error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref())?;
    rustls_in(inner)
}

fn is_parse(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)
}

/// Connections to a server. HTTP/1 only: a cancelled call closes only its own connection, and no call waits
/// behind another on a dead connection.
enum ServerConnector {
    Tcp(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
    Unix(Client<Socket, Full<Bytes>>),
}

impl ServerConnector {
    fn to(base: &ServerAddress, tls: &ClientConfig) -> ServerConnector {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE_LIMIT).pool_max_idle_per_host(IDLE_MAX);
        match base {
            ServerAddress::Unix(path) => ServerConnector::Unix(builder.build(Socket(path.clone()))),
            ServerAddress::Tcp { .. } => {
                let mut tcp = HttpConnector::new();
                tcp.enforce_http(false);
                tcp.set_nodelay(true);
                tcp.set_connect_timeout(Some(CONNECT_LIMIT));
                tcp.set_keepalive(Some(IDLE_LIMIT));
                let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone());
                ServerConnector::Tcp(builder.build(https.https_or_http().enable_http1().wrap_connector(tcp)))
            }
        }
    }

    fn request(&self, request: Request<Full<Bytes>>) -> ResponseFuture {
        match self {
            ServerConnector::Tcp(client) => client.request(request),
            ServerConnector::Unix(client) => client.request(request),
        }
    }
}

/// Connects to a Unix socket and ignores the host in the URI.
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
