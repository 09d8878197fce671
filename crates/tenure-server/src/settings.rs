//! How a server is set up: where it listens, who it is, and its bounds.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::gossip::Gossip;
use tenure::runtime::{Runtime, System, process_name};

use crate::quota::Quotas;

/// Where a server listens unless told otherwise.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:8368";

/// How a server is set up.
#[derive(Clone)]
pub struct Settings {
    /// Where it listens.
    pub listen: Vec<Address>,
    /// Who may use its unix sockets: `0o600` its own user, `0o660` the group too.
    pub socket_mode: u32,
    /// What people call this replica.
    pub name: String,
    /// The highest priority alive does the housekeeping.
    pub priority: i32,
    /// The address that the other replicas and their clients are told; the first that it listens on unless set.
    pub advertise: Option<String>,
    /// Its certificate and key.
    pub tls: Option<TlsFiles>,
    /// Whether callers have to prove who they are.
    pub auth: bool,
    /// How much at once.
    pub limits: Limits,
    /// How many objects a namespace may have.
    pub quotas: Quotas,
    /// How long.
    pub timeouts: Timeouts,
    /// The lease of the replica's own session.
    pub lease: Duration,
    /// Where time and randomness come from.
    pub runtime: Arc<dyn Runtime>,
    /// Whether events may be pushed to this machine and to private networks, and schedules may call there, and not only public
    /// addresses.
    pub push_private: bool,
    /// Whether it is one of those who would fire what falls due.
    pub scheduler: bool,
    /// The cluster that it shows, joined by gossip; left when the server ends.
    pub gossip: Option<Gossip>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            listen: vec![Address::Tcp(DEFAULT_ADDRESS.into())],
            socket_mode: 0o600,
            name: process_name(),
            priority: 0,
            advertise: None,
            tls: None,
            auth: false,
            limits: Limits::default(),
            quotas: Quotas::default(),
            timeouts: Timeouts::default(),
            lease: Duration::from_secs(10),
            runtime: Arc::new(System),
            push_private: false,
            scheduler: true,
            gossip: None,
        }
    }
}

/// Files with what TLS needs, in PEM. They are read again when they change.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, then those that lead from it to a trusted authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities whose certificates are taken as proof of who a client is.
    pub client_ca: Option<PathBuf>,
}

/// Somewhere to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host (name or number) and a port; port 0 is any free one.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.trim_start_matches("//") {
                "" => Err("unix: needs a path, such as unix:/run/tenure.sock".into()),
                path => Ok(Address::Unix(path.into())),
            };
        }
        let port = text.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
        match port {
            Some((host, Ok(_))) if !host.is_empty() && (!host.contains(':') || host.starts_with('[')) => {
                Ok(Address::Tcp(text.into()))
            }
            _ => Err(format!(
                "{text:?} is nowhere to listen; write HOST:PORT, such as 127.0.0.1:8368 or [::1]:8368, or unix:PATH"
            )),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => f.write_str(address),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Where a server listens, now that it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// At this address.
    Tcp {
        /// The address, with its real port.
        address: SocketAddr,
        /// Whether callers must speak TLS.
        tls: bool,
    },
    /// At this path.
    Unix(PathBuf),
}

impl Bound {
    /// The address, unless it is a path.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self {
            Bound::Tcp { address, .. } => Some(*address),
            Bound::Unix(_) => None,
        }
    }

    /// As a browser or `--store` takes it: `http://127.0.0.1:8368`.
    pub fn url(&self) -> String {
        match self {
            Bound::Tcp { address, tls } => {
                let scheme = if *tls { "https" } else { "http" };
                // Nobody can call an unspecified address; on this machine, loopback is the same.
                match (address.ip().is_unspecified(), address.is_ipv4()) {
                    (true, true) => format!("{scheme}://127.0.0.1:{}", address.port()),
                    (true, false) => format!("{scheme}://[::1]:{}", address.port()),
                    (false, _) => format!("{scheme}://{address}"),
                }
            }
            Bound::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

/// How much at once. What is beyond is refused, and told when to come back.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections from one address.
    pub connections_per_peer: usize,
    /// Connections of one principal.
    pub connections_per_principal: usize,
    /// Connections on which no request has authenticated yet. Beyond it, the oldest of them is closed for a new one. Not
    /// counted where access control is off.
    pub unauthenticated_connections: usize,
    /// Bytes of a request's headers.
    pub header_bytes: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of a body that carries payloads: tasks, outputs.
    pub large_body_bytes: usize,
    /// Bytes of a body from a client that has not authenticated: a login.
    pub unauthenticated_body_bytes: usize,
    /// Bytes in a second that a client has to send of a body, on average after the first seconds
    /// ([`Timeouts::body_start`]).
    pub body_rate: usize,
    /// Bodies that one principal may send at once.
    pub bodies_per_principal: usize,
    /// Bodies of more than `body_bytes` that are in memory at once.
    pub large_bodies: usize,
    /// Such bodies of one principal.
    pub large_bodies_per_principal: usize,
    /// Bytes of all bodies that are in memory at once.
    pub request_bytes: usize,
    /// Bytes of the bodies of one principal.
    pub request_bytes_per_principal: usize,
    /// Bytes of all answers that clients have not read yet.
    pub response_bytes: usize,
    /// Bytes of the answers that one principal has not read yet.
    pub response_bytes_per_principal: usize,
    /// Answers that may be large, such as pages of tasks and events, that are made at once.
    pub large_answers: usize,
    /// Requests of clients that have not authenticated that are worked on at once.
    pub unauthenticated_requests: usize,
    /// Such requests from one address.
    pub unauthenticated_requests_per_peer: usize,
    /// Heartbeats that are worked on at once. Their slots are used for nothing else.
    pub heartbeats: usize,
    /// Heartbeats of one principal that are worked on or wait.
    pub heartbeats_per_principal: usize,
    /// Requests that are worked on at once, except heartbeats and those of unauthenticated clients.
    pub requests: usize,
    /// Requests that wait for their turn when those are busy.
    pub queue: usize,
    /// Requests of one principal that are worked on or wait.
    pub requests_per_principal: usize,
    /// Requests of one principal in a second, on average. Whoever is on this machine with access off is not counted.
    pub rate_per_principal: u32,
    /// Requests of one principal that may come at once after a pause.
    pub burst_per_principal: u32,
    /// Streams and long waits in all.
    pub streams: usize,
    /// Streams and long waits of one principal.
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
            large_answers: 8,
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

/// How long. Whoever takes longer is cut off, or told so.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For the headers of a request, from its first byte.
    pub header: Duration,
    /// For a connection on which nothing is asked.
    pub idle: Duration,
    /// For the whole body of a request.
    pub body: Duration,
    /// For the start of a body, before the client has to keep up [`Limits::body_rate`].
    pub body_start: Duration,
    /// For the whole body of a request from a client that has not authenticated.
    pub unauthenticated_body: Duration,
    /// For a client to take what it was sent, and for each 128 KiB of it.
    pub write: Duration,
    /// For one answer of the store.
    pub store: Duration,
    /// For a whole answer, streams excepted.
    pub request: Duration,
    /// For a place among the requests that are worked on.
    pub queue: Duration,
    /// For what is under way when the server is told to end.
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
    fn addresses_are_read() {
        for text in ["127.0.0.1:0", "localhost:8368", "[::1]:8368", "0.0.0.0:443", "unix:/run/t.sock"] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn nonsense_addresses_name_themselves() {
        for text in ["", "8368", ":8368", "host:", "host:99999", "::1:8368", "http://x", "unix:"] {
            let error = text.parse::<Address>().expect_err(text);
            assert!(error.contains(text), "{error}");
        }
    }
}
