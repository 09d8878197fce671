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

use super::activity::{Answer, Noted, Word};
use super::hub::{Full, Hub, Place};
use super::peer::{Peer, ip_of};
use crate::App;
use crate::settings::Settings;

/// How many requests one HTTP/2 connection may have under way.
const STREAMS_PER_CONNECTION: u32 = 256;
/// How often a silent HTTP/2 client is asked whether it is there, and for how long its answer is awaited.
const PING: Duration = Duration::from_secs(20);

/// What every connection needs.
pub(crate) struct Shop {
    router: Router,
    secure: Builder<TokioExecutor>,
    plain: Builder<TokioExecutor>,
    hub: Arc<Hub>,
    /// How long a handshake may take.
    pub(super) handshake: Duration,
}

impl Shop {
    pub(crate) fn new(app: &App, settings: &Settings, hub: Arc<Hub>) -> Shop {
        let mut builder = Builder::new(TokioExecutor::new());
        let header_bytes = settings.limits.header_bytes.max(8192);
        // The sweeper bounds the time for headers: hyper's own bound would count the idle time before them, too.
        builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(header_bytes);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .max_header_list_size(u32::try_from(header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .max_send_buf_size(64 * 1024);
        // Who speaks HTTP/2 says so in the handshake. Without one there is HTTP/1 alone: to find out what is spoken costs each
        // connection twice the memory.
        let plain = builder.clone().http1_only();
        Shop { router: app.router(), secure: builder, plain, hub, handshake: settings.timeouts.handshake }
    }

    pub(crate) fn admit(&self, address: Option<SocketAddr>) -> Result<Place, Full> {
        self.hub.admit(address.map(ip_of))
    }

    /// Answers what is asked on a connection until it ends.
    pub(crate) async fn serve<S>(&self, stream: S, place: Place, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = place.activity.clone();
        let mut words = activity.words();
        let service = service_fn(|request: Request<Incoming>| {
            let ongoing = activity.begin(request.version() >= Version::HTTP_2);
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(peer.clone());
            let answer = self.router.clone().oneshot(request);
            async move {
                let response: Response<Body> = answer.await?;
                let wrap =
                    |body: Body| Answer { inner: http_body_util::BodyExt::boxed_unsync(body), ongoing };
                Ok::<_, Infallible>(response.map(wrap))
            }
        });
        let stream = Noted { inner: stream, activity: activity.clone() };
        let builder = if peer.tls { &self.secure } else { &self.plain };
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(peer = peer.label(), "a connection broke: {error}");
                    }
                    break;
                }
                told = words.changed() => {
                    let word = *words.borrow_and_update();
                    if told.is_err() || word == Word::Stop {
                        tracing::debug!(peer = peer.label(), "a connection was cut off");
                        break;
                    }
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
        drop(place);
    }
}
