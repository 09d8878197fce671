//! One connection, from the first byte to the last.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

use super::activity::{ConnectionCommand, TrackedBody, TrackedStream};
use super::connection_table::{ConnectionPermit, ConnectionRefusal, ConnectionTable};
use super::peer::{Peer, ip_of};
use crate::App;
use crate::settings::Settings;

/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS_PER_CONNECTION: u32 = 256;
/// Interval and timeout of pings to a silent HTTP/2 client.
const PING: Duration = Duration::from_secs(20);

/// Context that every connection needs.
pub(crate) struct ConnectionContext {
    router: Router,
    secure: Builder<TokioExecutor>,
    plain: Builder<TokioExecutor>,
    table: Arc<ConnectionTable>,
    /// Timeout of the TLS handshake.
    pub(super) handshake: Duration,
}

impl ConnectionContext {
    pub(crate) fn new(app: &App, settings: &Settings, table: Arc<ConnectionTable>) -> ConnectionContext {
        let mut builder = Builder::new(TokioExecutor::new());
        let header_bytes = settings.limits.header_bytes.max(8192);
        // The sweeper limits the time for headers: hyper's own timeout would include the idle time before
        // them.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(header_bytes);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .max_send_buf_size(64 * 1024);
        // HTTP/2 is negotiated in the TLS handshake. Without TLS only HTTP/1 is served: detecting the
        // protocol would double the memory of each connection.
        let plain = builder.clone().http1_only();
        ConnectionContext {
            router: app.router(),
            secure: builder,
            plain,
            table,
            handshake: settings.timeouts.handshake,
        }
    }

    pub(crate) fn admit(&self, address: Option<SocketAddr>) -> Result<ConnectionPermit, ConnectionRefusal> {
        self.table.accept(address.map(ip_of))
    }

    /// Serve the requests of a connection until it ends.
    pub(crate) async fn serve<S>(&self, stream: S, place: ConnectionPermit, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = place.activity.clone();
        let mut commands = activity.commands();
        let service = service_fn(|request: Request<Incoming>| {
            let ongoing = activity.begin(request.version() >= Version::HTTP_2);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            let answer = self.router.clone().oneshot(request);
            async move {
                let response: Response<Body> = answer.await?;
                let wrap =
                    |body: Body| TrackedBody { inner: http_body_util::BodyExt::boxed_unsync(body), ongoing };
                Ok::<_, Infallible>(response.map(wrap))
            }
        });
        let stream = TrackedStream { inner: stream, activity: activity.clone() };
        let builder = if peer.tls { &self.secure } else { &self.plain };
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(peer = peer.label(), %error, "connection failed");
                    }
                    break;
                }
                changed = commands.changed() => {
                    let word = *commands.borrow_and_update();
                    if changed.is_err() || word == ConnectionCommand::Stop {
                        tracing::debug!(peer = peer.label(), "connection closed by the server");
                        break;
                    }
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
        drop(place);
    }
}
