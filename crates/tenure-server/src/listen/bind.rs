//! Where it listens, and whether it may.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream, UnixListener};

use super::connection::Shop;
use super::hub::Full;
use super::peer::Peer;
use crate::server::StartError;
use crate::settings::{Address, Bound, Settings};

/// How long to wait when the system has no more room for connections.
const BREATH: Duration = Duration::from_millis(100);

/// One place where it listens.
pub(crate) enum Listener {
    Tcp { listener: TcpListener, address: SocketAddr },
    Unix { listener: UnixListener, socket: Socket },
}

/// A socket in the file system; removed when dropped, if it is still ours.
pub(crate) struct Socket {
    path: std::path::PathBuf,
}

/// Listens everywhere, or nowhere.
pub(crate) async fn bind(settings: &Settings) -> Result<Vec<Listener>, StartError> {
    let mut listeners = Vec::new();
    for address in &settings.listen {
        let failed = |error: io::Error| StartError::Listen(address.to_string(), in_words(&error, address));
        match address {
            Address::Unix(path) => listeners.push(unix(path).map_err(failed)?),
            Address::Tcp(text) => {
                let found: Vec<_> = tokio::net::lookup_host(text).await.map_err(failed)?.collect();
                if let Some(open) = found.iter().find(|found| !found.ip().to_canonical().is_loopback())
                    && !(settings.auth && settings.tls.is_some())
                {
                    return Err(StartError::Exposed(open.to_string()));
                }
                for found in found {
                    let listener = TcpListener::bind(found).await.map_err(failed)?;
                    let address = listener.local_addr().map_err(failed)?;
                    listeners.push(Listener::Tcp { listener, address });
                }
            }
        }
    }
    Ok(listeners)
}

fn unix(path: &Path) -> io::Result<Listener> {
    let listener = UnixListener::bind(path)?;
    Ok(Listener::Unix { listener, socket: Socket { path: path.into() } })
}

fn in_words(error: &io::Error, address: &Address) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "somebody listens there already; end them (`ss -ltnp` says who), or choose another place with --listen ({address})"
        ),
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
            Listener::Tcp { address, .. } => Bound::Tcp { address: *address, tls: false },
            Listener::Unix { socket, .. } => Bound::Unix(socket.path.clone()),
        }
    }

    /// Accepts until it is aborted.
    pub(crate) async fn run(self, shop: Arc<Shop>) {
        loop {
            let accepted = match &self {
                Listener::Tcp { listener, .. } => {
                    listener.accept().await.map(|(stream, peer)| tcp(stream, peer, &shop))
                }
                Listener::Unix { listener, .. } => {
                    listener.accept().await.map(|(stream, _)| local(stream, &shop))
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

fn tcp(stream: TcpStream, address: SocketAddr, shop: &Arc<Shop>) {
    let _ = stream.set_nodelay(true);
    let peer = Peer::new(Some(address));
    match shop.admit(Some(address)) {
        Ok(place) => {
            let shop = shop.clone();
            tokio::spawn(async move { shop.serve(stream, place, peer).await });
        }
        Err(full) => refuse(stream, full),
    }
}

fn local(stream: tokio::net::UnixStream, shop: &Arc<Shop>) {
    if let Ok(place) = shop.admit(None) {
        let shop = shop.clone();
        tokio::spawn(async move { shop.serve(stream, place, Peer::new(None)).await });
    }
}

/// Says that there is no place, without waiting for anybody to hear it.
fn refuse(mut stream: TcpStream, full: Full) {
    tracing::warn!(?full, "a connection was refused");
    crate::metrics::refused("too-many-connections");
    tokio::spawn(async move {
        let body = r#"{"type":"urn:tenure:too-many-connections","title":"Service Unavailable","status":503,"code":"too-many-connections","detail":"this server has as many connections as it takes","remedy":"close some, or try another replica","retry_after":1}"#;
        let text = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(text.as_bytes())).await;
    });
}
