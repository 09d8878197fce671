//! Listeners, and the check that they are allowed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::activity::ConnectionCommand;
use super::certificate_subject;
use super::connection::ConnectionContext;
use super::connection_table::{ConnectionPermit, ConnectionRefusal};
use super::peer::Peer;
use super::socket::Socket;
use super::tls::Tls;
use crate::metrics::RejectReason;
use crate::server::StartError;
use crate::settings::{BoundAddress, ListenAddress, Settings};

/// Delay when the system cannot accept more connections.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long a client may be unreachable before the system closes its connection.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum unsent bytes that the system keeps per connection. A client that does not read costs this much
/// instead of the megabytes to which the system would grow the buffer.
const UNSENT_BYTES: u32 = 32 * 1024;

/// Listener.
pub(crate) enum Listener {
    Tcp { listener: TcpListener, address: SocketAddr, tls: Option<Arc<Tls>> },
    Unix { listener: UnixListener, socket: Socket },
}

/// Listen on all addresses, or fail.
pub(crate) async fn bind(settings: &Settings, tls: Option<&Arc<Tls>>) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    for address in &settings.listen {
        let failed = |error: io::Error| StartError::Listen(address.to_string(), describe_error(&error));
        match address {
            ListenAddress::Unix(path) => {
                let bound = Socket::bind(path, settings.socket_mode, settings.runtime.random());
                let (listener, socket) = bound.map_err(failed)?;
                listeners.push(Listener::Unix { listener, socket });
            }
            ListenAddress::Tcp(text) => {
                let found: Vec<_> = tokio::net::lookup_host(text).await.map_err(failed)?.collect();
                let open = found.iter().find(|found| !found.ip().to_canonical().is_loopback());
                if let Some(open) = open
                    && !(settings.auth && tls.is_some())
                {
                    return Err(StartError::Exposed(open.to_string()));
                }
                for found in found {
                    let listener = TcpListener::bind(found).await.map_err(failed)?;
                    let address = listener.local_addr().map_err(failed)?;
                    listeners.push(Listener::Tcp { listener, address, tls: tls.cloned() });
                }
            }
        }
    }
    Ok(listeners)
}

fn describe_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the address is in use; find the process with `ss -ltnp`, or choose another address with --listen"
                .into()
        }
        io::ErrorKind::PermissionDenied => {
            format!("{error}; this user lacks the right to use ports below 1024 or this directory")
        }
        io::ErrorKind::AddrNotAvailable => format!("{error}: this machine does not have the address"),
        _ => error.to_string(),
    }
}

impl Listener {
    pub(crate) fn bound(&self) -> BoundAddress {
        match self {
            Listener::Tcp { address, tls, .. } => BoundAddress::Tcp { address: *address, tls: tls.is_some() },
            Listener::Unix { socket, .. } => BoundAddress::Unix(socket.path.clone()),
        }
    }

    /// Accept connections until aborted.
    pub(crate) async fn run(self, context: Arc<ConnectionContext>) {
        loop {
            let accepted = match &self {
                Listener::Tcp { listener, tls, .. } => listener
                    .accept()
                    .await
                    .map(|(stream, address)| tcp(stream, address, tls.clone(), &context)),
                Listener::Unix { listener, .. } => {
                    listener.accept().await.map(|(stream, _)| unix(stream, &context))
                }
            };
            if let Err(error) = accepted {
                // Out of file descriptors, or the client disconnected at once: the listener itself still
                // works.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

fn tcp(stream: TcpStream, address: SocketAddr, tls: Option<Arc<Tls>>, context: &Arc<ConnectionContext>) {
    let place = match context.admit(Some(address)) {
        Ok(place) => place,
        Err(full) => return refuse(stream, full, tls.is_some()),
    };
    // These options only improve performance, so errors are ignored.
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(&stream);
    let _ = socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(UNREACHABLE_TIMEOUT / 2)
            .with_interval(UNREACHABLE_TIMEOUT / 6)
            .with_retries(3),
    );
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(UNREACHABLE_TIMEOUT));
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES);
    let context = context.clone();
    let peer = Peer::new(Some(address), Some(place.auth.clone()));
    tokio::spawn(async move {
        match tls {
            None => context.serve(stream, place, peer).await,
            Some(tls) => shake(stream, &tls, place, peer, &context).await,
        }
    });
}

/// Serve a connection after its TLS handshake.
async fn shake(
    stream: TcpStream,
    tls: &Tls,
    place: ConnectionPermit,
    mut peer: Peer,
    context: &ConnectionContext,
) {
    let mut commands = place.activity.commands();
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(context.handshake, tls.acceptor().accept(stream)) => shaken,
        // No request was received yet, so there is nothing to finish.
        _ = commands.wait_for(|word| *word != ConnectionCommand::On) => return,
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(peer = peer.label(), %error, "TLS handshake failed"),
        Err(_) => return tracing::debug!(peer = peer.label(), "TLS handshake timed out"),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    peer.tls = true;
    peer.subject = certificate.and_then(certificate_subject::of).map(Into::into);
    context.serve(stream, place, peer).await;
}

fn unix(stream: UnixStream, context: &Arc<ConnectionContext>) {
    let place = match context.admit(None) {
        Ok(place) => place,
        Err(full) => return refuse(stream, full, false),
    };
    let context = context.clone();
    let peer = Peer::new(None, Some(place.auth.clone()));
    tokio::spawn(async move { context.serve(stream, place, peer).await });
}

/// Reject a connection without waiting for the client to read the response.
fn refuse(mut stream: impl AsyncWrite + Unpin + Send + 'static, full: ConnectionRefusal, tls: bool) {
    tracing::warn!(?full, "connection rejected");
    crate::metrics::rejected(RejectReason::Connections);
    if tls {
        return;
    }
    tokio::spawn(async move {
        let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(FULL.as_bytes())).await;
    });
}

const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\n\r\n\
    {\"type\":\"urn:tenure:too-many-connections\",\"title\":\"Service Unavailable\",\"status\":503,\
    \"code\":\"too-many-connections\",\"detail\":\"the server has reached the maximum number of connections\",\
    \"remedy\":\"close some, or use another replica\",\"retry_after_ms\":1000}";
