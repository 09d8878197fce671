//! Where it listens, and whether it may.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::activity::Word;
use super::connection::Shop;
use super::hub::{Full, Place};
use super::peer::Peer;
use super::socket::Socket;
use super::subject;
use super::tls::Tls;
use crate::metrics::Reason;
use crate::server::StartError;
use crate::settings::{Address, Bound, Settings};

/// How long to wait when the system has no more room for connections.
const BREATH: Duration = Duration::from_millis(100);
/// How long a client may say nothing at all, not even that it is there, before the system ends its connection.
const SILENCE: Duration = Duration::from_secs(60);

/// How many bytes that were not sent yet the system keeps for one connection. A client that reads nothing costs this much,
/// and not the megabytes to which the system lets the buffer of a connection grow.
const UNSENT: u32 = 32 * 1024;

/// One place where it listens.
pub(crate) enum Listener {
    Tcp { listener: TcpListener, address: SocketAddr, tls: Option<Arc<Tls>> },
    Unix { listener: UnixListener, socket: Socket },
}

/// Listens everywhere, or nowhere.
pub(crate) async fn bind(settings: &Settings, tls: Option<&Arc<Tls>>) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    for address in &settings.listen {
        let failed = |error: io::Error| StartError::Listen(address.to_string(), in_words(&error));
        match address {
            Address::Unix(path) => {
                let bound = Socket::bind(path, settings.socket_mode, settings.runtime.random());
                let (listener, socket) = bound.map_err(failed)?;
                listeners.push(Listener::Unix { listener, socket });
            }
            Address::Tcp(text) => {
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

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "somebody listens there already; `ss -ltnp` says who; end them, or choose another place with --listen".into()
        }
        io::ErrorKind::PermissionDenied => {
            format!("{error}; ports below 1024 and folders of others need rights that this user has not")
        }
        io::ErrorKind::AddrNotAvailable => format!("{error}: this machine has no such address"),
        _ => error.to_string(),
    }
}

impl Listener {
    pub(crate) fn bound(&self) -> Bound {
        match self {
            Listener::Tcp { address, tls, .. } => Bound::Tcp { address: *address, tls: tls.is_some() },
            Listener::Unix { socket, .. } => Bound::Unix(socket.path.clone()),
        }
    }

    /// Accepts until it is aborted.
    pub(crate) async fn run(self, shop: Arc<Shop>) {
        loop {
            let accepted = match &self {
                Listener::Tcp { listener, tls, .. } => {
                    listener.accept().await.map(|(stream, address)| tcp(stream, address, tls.clone(), &shop))
                }
                Listener::Unix { listener, .. } => {
                    listener.accept().await.map(|(stream, _)| unix(stream, &shop))
                }
            };
            if let Err(error) = accepted {
                // Out of descriptors, or the client left at once: the listener itself is sound.
                tracing::warn!("accepting a connection: {error}");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

fn tcp(stream: TcpStream, address: SocketAddr, tls: Option<Arc<Tls>>, shop: &Arc<Shop>) {
    let place = match shop.admit(Some(address)) {
        Ok(place) => place,
        Err(full) => return refuse(stream, full, tls.is_some()),
    };
    // A connection works without these, only less well.
    let _ = stream.set_nodelay(true);
    let socket = SockRef::from(&stream);
    let _ = socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(SILENCE / 2).with_interval(SILENCE / 6).with_retries(3),
    );
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(SILENCE));
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_notsent_lowat(UNSENT);
    let shop = shop.clone();
    let peer = Peer::new(Some(address), Some(place.standing.clone()));
    tokio::spawn(async move {
        match tls {
            None => shop.serve(stream, place, peer).await,
            Some(tls) => shake(stream, &tls, place, peer, &shop).await,
        }
    });
}

/// Serves a connection after its handshake.
async fn shake(stream: TcpStream, tls: &Tls, place: Place, mut peer: Peer, shop: &Shop) {
    let mut words = place.activity.words();
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(shop.handshake, tls.acceptor().accept(stream)) => shaken,
        // Nothing was asked yet, so there is nothing to finish.
        _ = words.wait_for(|word| *word != Word::On) => return,
    };
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(peer = peer.label(), "a handshake failed: {error}"),
        Err(_) => return tracing::debug!(peer = peer.label(), "a handshake took too long"),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    peer.tls = true;
    peer.subject = certificate.and_then(subject::of).map(Into::into);
    shop.serve(stream, place, peer).await;
}

fn unix(stream: UnixStream, shop: &Arc<Shop>) {
    let place = match shop.admit(None) {
        Ok(place) => place,
        Err(full) => return refuse(stream, full, false),
    };
    let shop = shop.clone();
    let peer = Peer::new(None, Some(place.standing.clone()));
    tokio::spawn(async move { shop.serve(stream, place, peer).await });
}

/// Says that there is no place, without waiting for anybody to hear it.
fn refuse(mut stream: impl AsyncWrite + Unpin + Send + 'static, full: Full, tls: bool) {
    tracing::warn!(?full, "a connection was refused");
    crate::metrics::refused(Reason::Connections);
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
    \"code\":\"too-many-connections\",\"detail\":\"this server has as many connections as it takes\",\
    \"remedy\":\"close some, or ask another replica\",\"retry_after\":1}";
