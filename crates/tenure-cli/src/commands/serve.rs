//! `tenure serve`: HTTP API and dashboard.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use tenure::store::gossip::{Gossip, GossipOptions};
use tenure_server::quota::{Quota, Quotas};
use tenure_server::settings::{BoundAddress, DEFAULT_ADDRESS, Limits, ListenAddress, Timeouts, TlsFiles};
use tenure_server::{Server, Settings, StartError};

use super::signals::Signals;
use crate::allocator;
use crate::args::parsers::priority;
use crate::args::{GlobalArgs, LEASE, OutputFormat, duration};
use crate::error::{self, CliError};
use crate::output::{self, TextStyle, paint};
use crate::store;

/// Interval of the check for free memory to return to the system.
const MEMORY_EVERY: Duration = Duration::from_secs(5);

pub(crate) const EXAMPLES: &str = "\
Clients on loopback and unix sockets are trusted. Any other listen address requires TLS and --auth; otherwise the server \
does not start.

On SIGTERM or SIGINT the server finishes open requests; a second signal stops it at once.

One of all servers and workers is elected as broker for exclusive queues and pools. The others connect to it on a separate, \
encrypted port that only clients with access to the store can use: a free port on the address used to reach the store, or \
$TENURE_BROKER_LISTEN (HOST:PORT). $TENURE_BROKER_ADVERTISE overrides the advertised address.

Examples:
  tenure serve                                          SQLite, http://127.0.0.1:8368
  tenure serve --store postgres://app@db/app --name a --priority 100
  tenure serve --election-store etcd://a:2379,b:2379,c:2379 --store postgres://app@db/app   elections in etcd, data in PostgreSQL
  tenure serve --listen unix:/run/tenure.sock --listen 127.0.0.1:8368
  tenure credentials create --name ops --grant '*:admin'   then:
  tenure serve --listen 0.0.0.0:8368 --tls-cert cert.pem --tls-key key.pem --auth
  tenure serve --listen 0.0.0.0:8368 --tls-cert cert.pem --tls-key key.pem --auth --client-ca clients.pem";

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Listen address: HOST:PORT or unix:PATH (repeatable)
    #[arg(long, env = "TENURE_LISTEN", value_delimiter = ',', default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub(crate) listen: Vec<ListenAddress>,

    /// Permissions of unix sockets: 600 (this user) or 660 (this user and group)
    #[arg(long, default_value = "600", value_parser = socket_mode, value_name = "MODE")]
    pub(crate) socket_mode: u32,

    /// Name of this server [default: host name and process id]
    #[arg(long, env = "TENURE_NAME", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Lease duration of this server
    #[arg(long, env = "TENURE_LEASE", default_value = LEASE, value_parser = duration, value_name = "DURATION")]
    pub(crate) lease: Duration,

    /// Priority; the live server with the highest priority is the coordinator
    #[arg(long, env = "TENURE_PRIORITY", default_value_t = 0, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) priority: i32,

    /// URL advertised to other servers [default: the first --listen address]
    #[arg(long, env = "TENURE_ADVERTISE", value_name = "URL")]
    pub(crate) advertise: Option<String>,

    /// TLS certificate chain (PEM)
    #[arg(long, env = "TENURE_TLS_CERT", requires = "tls_key", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// TLS private key (PEM)
    #[arg(long, env = "TENURE_TLS_KEY", requires = "tls_cert", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Certificate authorities for client certificates (PEM)
    #[arg(long, env = "TENURE_CLIENT_CA", requires = "tls_cert", requires = "auth", value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,

    /// Require a credential for every request, including requests from this machine
    #[arg(long, env = "TENURE_AUTH")]
    pub(crate) auth: bool,

    /// Allow webhooks to loopback and private addresses
    #[arg(long, env = "TENURE_ALLOW_PRIVATE_WEBHOOKS")]
    pub(crate) allow_private_webhooks: bool,

    /// Do not run a scheduler in this server
    #[arg(long, env = "TENURE_NO_SCHEDULER")]
    pub(crate) no_scheduler: bool,

    /// Join a gossip cluster and show its members and soft leaders: gossip:HOST:PORT?seed=HOST:PORT&cluster=NAME
    #[arg(long, env = "TENURE_GOSSIP", value_name = "URL")]
    pub(crate) gossip: Option<String>,

    /// Maximum time for open requests to finish on shutdown
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "DURATION")]
    pub(crate) drain_timeout: Duration,

    /// Timeout of one store operation
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "DURATION")]
    pub(crate) store_timeout: Duration,

    /// Idle timeout of a connection
    #[arg(long, default_value = "75s", value_parser = duration, value_name = "DURATION")]
    pub(crate) idle_timeout: Duration,

    /// Maximum number of connections
    #[arg(long, default_value_t = Limits::default().connections, value_name = "N")]
    pub(crate) max_connections: usize,

    /// Maximum number of connections per client address
    #[arg(long, default_value_t = Limits::default().connections_per_peer, value_name = "N")]
    pub(crate) max_connections_per_peer: usize,

    /// Maximum size of a request body
    #[arg(long, default_value_t = Limits::default().body_bytes, value_name = "BYTES")]
    pub(crate) max_body_bytes: usize,

    /// Maximum number of concurrent requests
    #[arg(long, default_value_t = Limits::default().requests, value_name = "N")]
    pub(crate) max_requests: usize,

    /// Maximum number of concurrent requests per principal
    #[arg(long, default_value_t = Limits::default().requests_per_principal, value_name = "N")]
    pub(crate) max_requests_per_principal: usize,

    /// Maximum number of requests per second per principal
    #[arg(long, default_value_t = Limits::default().rate_per_principal, value_name = "N")]
    pub(crate) max_rate_per_principal: u32,

    /// Maximum number of open streams
    #[arg(long, default_value_t = Limits::default().streams, value_name = "N")]
    pub(crate) max_streams: usize,

    /// Maximum number of objects of a kind per namespace: elections, queues, topics, groups, schedules or pools (repeatable)
    #[arg(long, value_name = "KIND=N")]
    pub(crate) quota: Vec<Quota>,

    /// Log format
    #[arg(long, env = "TENURE_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub(crate) log_format: LogFormat,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

fn socket_mode(text: &str) -> Result<u32, String> {
    match text.trim_start_matches('0') {
        "600" => Ok(0o600),
        "660" => Ok(0o660),
        _ => Err(format!("invalid socket mode {text:?}: use 600 (user) or 660 (user and group)")),
    }
}

pub(crate) async fn run(global: &GlobalArgs, args: ServeArgs) -> Result<u8, CliError> {
    let mut signals = Signals::ending()?;
    let options = store::options(global)?;
    check_store(&options.url)?;
    options.election_store.as_deref().map_or(Ok(()), check_store)?;
    let gossip = args.gossip.clone();
    let mut settings = settings(args);
    let starting = async {
        let store = store::open(global).await?;
        if let Some(address) = gossip {
            settings.gossip = Some(join(&address, &settings.name).await?);
        }
        Server::start(settings, store).await.map_err(CliError::from)
    };
    let server = tokio::select! {
        server = starting => server?,
        // A signal arrived before the server started.
        _ = signals.next() => return Ok(0),
    };
    print_addresses(global, &server);
    let trimming = tokio::spawn(trim_heap_periodically());
    tokio::select! {
        _ = signals.next() => {}
        // The store connection failed permanently, so no request can be answered. Exit, so that a supervisor restarts
        // this process.
        error = server.store_failed() => return Err(error.into()),
    }
    trimming.abort();
    tracing::info!("shutting down: waiting for open requests; send the signal again to stop at once");
    tokio::select! {
        () = server.shutdown() => {}
        _ = signals.next() => tracing::warn!("stopping at once"),
    }
    Ok(0)
}

/// Returns free memory to the system from time to time.
async fn trim_heap_periodically() {
    let mut kept = 0;
    loop {
        tokio::time::sleep(MEMORY_EVERY).await;
        allocator::trim_heap(&mut kept);
    }
}

/// Joins a gossip cluster under the name of the server, unless the URL sets a name.
async fn join(address: &str, name: &str) -> Result<Gossip, CliError> {
    let mut options: GossipOptions = address.parse()?;
    if !address.contains("name=") {
        name.clone_into(&mut options.name);
    }
    options.metadata.insert("role".into(), "server".into());
    options.metadata.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    Ok(Gossip::join(options).await?)
}

/// Rejects stores that a server cannot use. A restarted server must know the leases it granted before: with a memory
/// store a second leader would get a token of the first one, which still leads. A server on another server would own
/// the sessions of its own clients.
fn check_store(url: &str) -> Result<(), CliError> {
    let reason = match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
        "memory" => "loses all leases when the server restarts",
        "http" | "https" | "http+unix" => "is a server, not a database",
        "gossip" => "keeps no state (join it with --gossip)",
        _ => return Ok(()),
    };
    let message = format!("cannot serve {url}: it {reason}; use sqlite:PATH or postgres://…");
    Err(CliError::new(error::USAGE, message))
}

fn settings(args: ServeArgs) -> Settings {
    let limits = Limits {
        connections: args.max_connections,
        connections_per_peer: args.max_connections_per_peer,
        body_bytes: args.max_body_bytes,
        requests: args.max_requests,
        requests_per_principal: args.max_requests_per_principal,
        rate_per_principal: args.max_rate_per_principal,
        burst_per_principal: args.max_rate_per_principal.saturating_mul(2),
        streams: args.max_streams,
        ..Limits::default()
    };
    let mut quotas = Quotas::default();
    args.quota.into_iter().for_each(|quota| quotas.set(quota));
    let timeouts = Timeouts {
        drain: args.drain_timeout,
        store: args.store_timeout,
        idle: args.idle_timeout,
        ..Timeouts::default()
    };
    let tls = args.tls_cert.zip(args.tls_key);
    let defaults = Settings::default();
    Settings {
        listen: args.listen,
        socket_mode: args.socket_mode,
        name: args.name.unwrap_or(defaults.name),
        priority: args.priority,
        advertise: args.advertise,
        tls: tls.map(|(cert, key)| TlsFiles { cert, key, client_ca: args.client_ca }),
        auth: args.auth,
        limits,
        quotas,
        timeouts,
        lease: args.lease,
        runtime: defaults.runtime,
        allow_private_webhooks: args.allow_private_webhooks,
        scheduler: !args.no_scheduler,
        gossip: None,
    }
}

/// Prints the listen addresses and a first command to try.
fn print_addresses(global: &GlobalArgs, server: &Server) {
    let urls: Vec<_> = server.addresses().iter().map(BoundAddress::url).collect();
    if global.output == OutputFormat::Json {
        return output::print_json(&json!({"listening": urls, "name": server.tenure().name()}));
    }
    for url in &urls {
        output::print_line(&format!(
            "{} {}",
            paint("listening on", TextStyle::Green),
            paint(url, TextStyle::Bold)
        ));
    }
    if let Some(url) = urls.iter().find(|url| url.starts_with("http")) {
        output::print_line(&format!("  open {url} in a browser, and in another terminal:"));
        output::print_line(&format!("  tenure run hello --store {url} -- sh -c 'echo I lead; sleep 60'"));
    }
}

impl From<StartError> for CliError {
    fn from(error: StartError) -> CliError {
        match error {
            StartError::Store(error) => error.into(),
            StartError::Exposed(_) => CliError::usage(error.to_string()),
            error => CliError::new(error::INTERNAL_ERROR, error.to_string()),
        }
    }
}
