//! Settings and limits of a server.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tenure::runtime::{Runtime, SystemRuntime, process_name};
use tenure::store::gossip::Gossip;

use crate::quota::Quotas;

/// Default listen address.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8368";

/// Settings of a server.
#[derive(Clone)]
pub struct Settings {
    /// Listen addresses.
    pub listen: Vec<ListenAddress>,
    /// Mode of Unix sockets: `0o600` for the user, `0o660` for the group too.
    pub socket_mode: u32,
    /// Name of this replica.
    pub name: String,
    /// Priority; the live replica with the highest one is the coordinator.
    pub priority: i32,
    /// Address for other replicas and their clients; by default the first listen address.
    pub advertise: Option<String>,
    /// Certificate and key.
    pub tls: Option<TlsFiles>,
    /// Whether clients need credentials.
    pub auth: bool,
    /// Limits.
    pub limits: Limits,
    /// Quotas of objects per namespace.
    pub quotas: Quotas,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Lease of the replica's session.
    pub lease: Duration,
    /// Source of time and randomness.
    pub runtime: Arc<dyn Runtime>,
    /// Whether webhooks may be sent to loopback and private addresses.
    pub allow_private_webhooks: bool,
    /// Whether this server runs a scheduler.
    pub scheduler: bool,
    /// Gossip cluster to show; left when the server ends.
    pub gossip: Option<Gossip>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: vec![ListenAddress::Tcp(DEFAULT_ADDRESS.into())],
            socket_mode: 0o600,
            name: process_name(),
            priority: 0,
            advertise: None,
            tls: None,
            auth: false,
            limits: Limits::default(),
            quotas: Quotas::default(),
            timeouts: Timeouts::default(),
            lease: tenure::DEFAULT_LEASE,
            runtime: Arc::new(SystemRuntime),
            allow_private_webhooks: false,
            scheduler: true,
            gossip: None,
        }
    }
}

/// PEM files for TLS. They are reloaded when they change.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificate, followed by its chain.
    pub cert: PathBuf,
    /// Private key.
    pub key: PathBuf,
    /// Certificate authorities for client certificates.
    pub client_ca: Option<PathBuf>,
}

/// Listen address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// Host name or address, and a port; port 0 selects a free one.
    Tcp(String),
    /// Unix socket.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<ListenAddress, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.trim_start_matches("//") {
                "" => Err("unix: needs a path, such as unix:/run/tenure.sock".into()),
                path => Ok(ListenAddress::Unix(path.into())),
            };
        }
        let port = text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        match port {
            Some((host, Ok(_))) if !host.is_empty() && (!host.contains(':') || host.starts_with('[')) => {
                Ok(ListenAddress::Tcp(text.into()))
            }
            _ => Err(format!(
                "{text:?} is not a listen address; use HOST:PORT, such as 127.0.0.1:8368 or [::1]:8368, or unix:PATH"
            )),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => f.write_str(address),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Address that a server listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundAddress {
    /// TCP address.
    Tcp {
        /// Address with the actual port.
        address: SocketAddr,
        /// Whether TLS is required.
        tls: bool,
    },
    /// Unix socket.
    Unix(PathBuf),
}

impl BoundAddress {
    /// Socket address; `None` for a Unix socket.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            BoundAddress::Tcp { address, .. } => Some(*address),
            BoundAddress::Unix(_) => None,
        }
    }

    /// URL for a browser or `--store`: `http://127.0.0.1:8368`.
    pub fn url(&self) -> String {
        match self {
            BoundAddress::Tcp { address, tls } => {
                let scheme = if *tls { "https" } else { "http" };
                // An unspecified address cannot be connected to; use loopback instead.
                match (address.ip().is_unspecified(), address.is_ipv4()) {
                    (true, true) => format!("{scheme}://127.0.0.1:{}", address.port()),
                    (true, false) => format!("{scheme}://[::1]:{}", address.port()),
                    (false, _) => format!("{scheme}://{address}"),
                }
            }
            BoundAddress::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

/// Limits on concurrency and size; each field is a maximum unless it says otherwise. A request beyond a limit
/// is rejected with a retry delay.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in total.
    pub connections: usize,
    /// Connections per address.
    pub connections_per_peer: usize,
    /// Connections per principal.
    pub connections_per_principal: usize,
    /// Connections without an authenticated request. Beyond it, a new connection replaces the oldest one. Not
    /// counted without access control.
    pub unauthenticated_connections: usize,
    /// Bytes of request headers.
    pub header_bytes: usize,
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// Bytes of a body with payloads: tasks, results, events.
    pub large_body_bytes: usize,
    /// Bytes of a body of an unauthenticated client: a login.
    pub unauthenticated_body_bytes: usize,
    /// Minimum bytes per second of a body, on average after the first seconds ([`Timeouts::body_start`]).
    pub body_rate: usize,
    /// Concurrent bodies per principal.
    pub bodies_per_principal: usize,
    /// Bodies larger than `body_bytes` in memory.
    pub large_bodies: usize,
    /// Such bodies per principal.
    pub large_bodies_per_principal: usize,
    /// Bytes of all bodies in memory.
    pub request_bytes: usize,
    /// Bytes of bodies per principal.
    pub request_bytes_per_principal: usize,
    /// Bytes of all responses that clients have not read yet.
    pub response_bytes: usize,
    /// Bytes of unread responses per principal.
    pub response_bytes_per_principal: usize,
    /// Large responses, such as pages of tasks and events, that are built concurrently.
    pub large_responses: usize,
    /// Concurrent requests of unauthenticated clients.
    pub unauthenticated_requests: usize,
    /// Such requests per address.
    pub unauthenticated_requests_per_peer: usize,
    /// Concurrent heartbeats. Their permits are used for nothing else.
    pub heartbeats: usize,
    /// Heartbeats per principal, running or waiting.
    pub heartbeats_per_principal: usize,
    /// Concurrent requests, except heartbeats and unauthenticated ones.
    pub requests: usize,
    /// Requests that wait for a permit.
    pub queue: usize,
    /// Requests per principal, running or waiting.
    pub requests_per_principal: usize,
    /// Average requests per second per principal. Local clients without access control are not limited.
    pub rate_per_principal: u32,
    /// Burst of requests per principal after a pause.
    pub burst_per_principal: u32,
    /// Streams and long polls in total.
    pub streams: usize,
    /// Streams and long polls per principal.
    pub streams_per_principal: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 16_384,
            connections_per_peer: 12_288,
            connections_per_principal: 12_288,
            unauthenticated_connections: 1024,
            header_bytes: 32 * 1024,
            body_bytes: 1024 * 1024,
            large_body_bytes: 16 * 1024 * 1024,
            unauthenticated_body_bytes: 16 * 1024,
            body_rate: 4096,
            bodies_per_principal: 256,
            large_bodies: 16,
            large_bodies_per_principal: 4,
            request_bytes: 64 * 1024 * 1024,
            request_bytes_per_principal: 32 * 1024 * 1024,
            response_bytes: 32 * 1024 * 1024,
            response_bytes_per_principal: 16 * 1024 * 1024,
            large_responses: 8,
            unauthenticated_requests: 256,
            unauthenticated_requests_per_peer: 64,
            heartbeats: 256,
            heartbeats_per_principal: 128,
            requests: 1024,
            queue: 1024,
            requests_per_principal: 512,
            rate_per_principal: 1000,
            burst_per_principal: 2000,
            streams: 12_288,
            streams_per_principal: 10_240,
        }
    }
}

/// Timeouts. Each field is the maximum duration of the step that it names.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// TLS handshake.
    pub handshake: Duration,
    /// Request headers, from the first byte.
    pub header: Duration,
    /// Connection without requests.
    pub idle: Duration,
    /// Complete request body.
    pub body: Duration,
    /// Start of a body, before [`Limits::body_rate`] applies.
    pub body_start: Duration,
    /// Complete body of an unauthenticated client.
    pub unauthenticated_body: Duration,
    /// Reading of the response by the client, per 128 KiB.
    pub write: Duration,
    /// One store call.
    pub store: Duration,
    /// Complete response, except streams.
    pub request: Duration,
    /// Wait for a permit.
    pub queue: Duration,
    /// Current requests at shutdown.
    pub drain: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            handshake: Duration::from_secs(10),
            header: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            body: Duration::from_secs(15),
            body_start: Duration::from_secs(3),
            unauthenticated_body: Duration::from_secs(5),
            write: Duration::from_secs(30),
            store: Duration::from_secs(5),
            request: Duration::from_secs(90),
            queue: Duration::from_secs(2),
            drain: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        for text in ["127.0.0.1:0", "localhost:8368", "[::1]:8368", "0.0.0.0:443", "unix:/run/t.sock"] {
            assert_eq!(text.parse::<ListenAddress>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn errors_of_addresses_contain_the_text() {
        for text in ["", "8368", ":8368", "host:", "host:99999", "::1:8368", "http://x", "unix:"] {
            let error = text.parse::<ListenAddress>().expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }
}
