//! `tenure serve`: elections over HTTP, and a page in the browser.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use tenure::backend::gossip::{Gossip, GossipOptions};
use tenure_server::quota::{Quota, Quotas};
use tenure_server::settings::{Address, Bound, DEFAULT_ADDRESS, Limits, Timeouts, TlsFiles};
use tenure_server::{Server, Settings, StartError};

use super::signals::Signals;
use crate::args::values::priority;
use crate::args::{Format, Global, LEASE, duration};
use crate::exit::{self, Failure};
use crate::memory;
use crate::output::{self, Ink, paint};
use crate::store;

/// How often memory that is free is looked at.
const MEMORY_EVERY: Duration = Duration::from_secs(5);

pub(crate) const EXAMPLES: &str = "\
On loopback and unix sockets everybody on this machine is trusted. Anything else needs TLS and --auth, or it does not start.
SIGTERM and SIGINT let what is under way finish; a second one does not.

Of all replicas (and processes with workers), one is elected to hand out what is exclusive. The others reach it at a port of
its own, encrypted and for those alone who can read the store: a free port of the address by which it reaches the store, or
$TENURE_BROKER_LISTEN (HOST:PORT); the others are told $TENURE_BROKER_ADVERTISE, if that is another.

Examples:
  tenure serve                                          SQLite, http://127.0.0.1:8368, a page in the browser
  tenure serve --store postgres://app@db/app --name a --priority 100
  tenure serve --elect etcd://a:2379,b:2379,c:2379 --store postgres://app@db/app   etcd elects, PostgreSQL is fenced
  tenure serve --listen unix:/run/tenure.sock --listen 127.0.0.1:8368
  tenure token create --name ops --grant '*:admin'      then:
  tenure serve --listen 0.0.0.0:8368 --tls-cert cert.pem --tls-key key.pem --auth
  tenure serve --listen 0.0.0.0:8368 --tls-cert cert.pem --tls-key key.pem --auth --client-ca clients.pem";

#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Where to listen: HOST:PORT or unix:PATH (repeatable)
    #[arg(long, env = "TENURE_LISTEN", value_delimiter = ',', default_value = DEFAULT_ADDRESS, value_name = "ADDRESS")]
    pub(crate) listen: Vec<Address>,

    /// Who may use unix sockets: 600 this user, 660 the group too
    #[arg(long, default_value = "600", value_parser = socket_mode, value_name = "MODE")]
    pub(crate) socket_mode: u32,

    /// What people call this replica [default: host name and process number]
    #[arg(long, env = "NODE_ID", value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// How long this replica may be silent before another does what it did
    #[arg(long, env = "TENURE_LEASE", default_value = LEASE, value_parser = duration, value_name = "TIME")]
    pub(crate) lease: Duration,

    /// The highest priority alive does the housekeeping
    #[arg(long, env = "NODE_PRIORITY", default_value_t = 0, allow_negative_numbers = true, value_parser = priority, value_name = "N")]
    pub(crate) priority: i32,

    /// The address that others are told [default: the first of --listen]
    #[arg(long, env = "TENURE_ADVERTISE", value_name = "URL")]
    pub(crate) advertise: Option<String>,

    /// A file with the certificate, and those that lead from it to a trusted authority (PEM)
    #[arg(long, env = "TENURE_TLS_CERT", requires = "tls_key", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// A file with its private key (PEM)
    #[arg(long, env = "TENURE_TLS_KEY", requires = "tls_cert", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,

    /// A file with the authorities whose certificates prove who a client is (PEM)
    #[arg(long, env = "TENURE_CLIENT_CA", requires = "tls_cert", requires = "auth", value_name = "FILE")]
    pub(crate) client_ca: Option<PathBuf>,

    /// Let nobody in without a token or a certificate, not even on this machine
    #[arg(long, env = "TENURE_AUTH")]
    pub(crate) auth: bool,

    /// Let groups be pushed, and schedules call, to this machine and to private networks too, and not only to public addresses
    #[arg(long, env = "TENURE_PUSH_PRIVATE")]
    pub(crate) push_private: bool,

    /// Leave it to others to fire schedules: to servers without this, and to `tenure schedule run`
    #[arg(long, env = "TENURE_NO_SCHEDULER")]
    pub(crate) no_scheduler: bool,

    /// Join a cluster by gossip, and show its members and soft leaders: gossip:HOST:PORT?seed=HOST:PORT&cluster=NAME
    #[arg(long, env = "TENURE_GOSSIP", value_name = "ADDRESS")]
    pub(crate) gossip: Option<String>,

    /// How long what is under way may take when the server is told to end
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub(crate) drain: Duration,

    /// How long one answer of the store may take
    #[arg(long, default_value = "5s", value_parser = duration, value_name = "TIME")]
    pub(crate) store_timeout: Duration,

    /// How long a connection may stay open on which nothing is asked
    #[arg(long, default_value = "75s", value_parser = duration, value_name = "TIME")]
    pub(crate) idle_timeout: Duration,

    /// How many connections at once
    #[arg(long, default_value_t = Limits::default().connections, value_name = "N")]
    pub(crate) max_connections: usize,

    /// How many connections from one address
    #[arg(long, default_value_t = Limits::default().connections_per_peer, value_name = "N")]
    pub(crate) max_connections_per_peer: usize,

    /// How many bytes a request's body may have
    #[arg(long, default_value_t = Limits::default().body_bytes, value_name = "BYTES")]
    pub(crate) max_body: usize,

    /// How many requests at once
    #[arg(long, default_value_t = Limits::default().requests, value_name = "N")]
    pub(crate) max_requests: usize,

    /// How many requests of one principal at once
    #[arg(long, default_value_t = Limits::default().requests_per_principal, value_name = "N")]
    pub(crate) max_requests_per_principal: usize,

    /// How many requests of one principal in a second
    #[arg(long, default_value_t = Limits::default().rate_per_principal, value_name = "N")]
    pub(crate) max_rate_per_principal: u32,

    /// How many watchers at once
    #[arg(long, default_value_t = Limits::default().streams, value_name = "N")]
    pub(crate) max_watchers: usize,

    /// Limit how many objects of a kind one namespace may have: elections, queues, topics, groups, schedules or pools
    /// (repeat for several)
    #[arg(long, value_name = "KIND=N")]
    pub(crate) quota: Vec<Quota>,

    /// The log for people, or for machines
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
        _ => Err(format!("{text:?} is not possible; choose 600 (this user) or 660 (the group too)")),
    }
}

pub(crate) async fn run(global: &Global, args: ServeArgs) -> Result<u8, Failure> {
    let mut signals = Signals::ending()?;
    let options = store::options(global)?;
    durable(&options.url)?;
    options.elect.as_deref().map_or(Ok(()), durable)?;
    let gossip = args.gossip.clone();
    let mut settings = settings(args);
    let starting = async {
        let store = store::open(global).await?;
        if let Some(address) = gossip {
            settings.gossip = Some(join(&address, &settings.name).await?);
        }
        Server::start(settings, store).await.map_err(Failure::from)
    };
    let server = tokio::select! {
        server = starting => server?,
        // Told to end before it began.
        _ = signals.next() => return Ok(0),
    };
    say(global, &server);
    let tidy = tokio::spawn(give_memory_back());
    tokio::select! {
        _ = signals.next() => {}
        // Nothing can be said to the store any more, and no request be answered: whoever supervises this process starts it again.
        error = server.store_failed() => return Err(error.into()),
    }
    tidy.abort();
    tracing::info!("ending: what is under way may finish; once more to end at once");
    tokio::select! {
        () = server.shutdown() => {}
        _ = signals.next() => tracing::warn!("ending at once"),
    }
    Ok(0)
}

/// Gives memory that is free back to the system now and then.
async fn give_memory_back() {
    let mut kept = 0;
    loop {
        tokio::time::sleep(MEMORY_EVERY).await;
        memory::give_back(&mut kept);
    }
}

/// Joins a cluster under the server's name, unless the address names it.
async fn join(address: &str, name: &str) -> Result<Gossip, Failure> {
    let mut options: GossipOptions = address.parse()?;
    if !address.contains("name=") {
        name.clone_into(&mut options.name);
    }
    options.metadata.insert("role".into(), "server".into());
    options.metadata.insert("version".into(), env!("CARGO_PKG_VERSION").into());
    Ok(Gossip::join(options).await?)
}

/// A server is started again, and must then know what it granted before: in memory, a second leader would be elected under
/// a token of the first one, which still believes. And a server of a server would own the sessions of its own clients.
fn durable(url: &str) -> Result<(), Failure> {
    let reason = match url.split_once(':').map_or(url, |(scheme, _)| scheme) {
        "memory" => "forgets who leads when the server is started again",
        "http" | "https" | "http+unix" => "is a server itself",
        "gossip" => "is not a store, it keeps nothing (join it with --gossip)",
        _ => return Ok(()),
    };
    let message = format!("{url} {reason}; serve sqlite:PATH or postgres://… instead");
    Err(Failure::new(exit::USAGE, message))
}

fn settings(args: ServeArgs) -> Settings {
    let limits = Limits {
        connections: args.max_connections,
        connections_per_peer: args.max_connections_per_peer,
        body_bytes: args.max_body,
        requests: args.max_requests,
        requests_per_principal: args.max_requests_per_principal,
        rate_per_principal: args.max_rate_per_principal,
        burst_per_principal: args.max_rate_per_principal.saturating_mul(2),
        streams: args.max_watchers,
        ..Limits::default()
    };
    let mut quotas = Quotas::default();
    args.quota.into_iter().for_each(|quota| quotas.set(quota));
    let timeouts = Timeouts {
        drain: args.drain,
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
        push_private: args.push_private,
        scheduler: !args.no_scheduler,
        gossip: None,
    }
}

/// Where it listens, and what to try first.
fn say(global: &Global, server: &Server) {
    let urls: Vec<_> = server.addresses().iter().map(Bound::url).collect();
    if global.output == Format::Json {
        return output::print_json(&json!({"listening": urls, "name": server.tenure().name()}));
    }
    for url in &urls {
        output::print_line(&format!("{} {}", paint("listening on", Ink::Green), paint(url, Ink::Bold)));
    }
    if let Some(url) = urls.iter().find(|url| url.starts_with("http")) {
        output::print_line(&format!("  open {url} in a browser, and in another terminal:"));
        output::print_line(&format!("  tenure run hello --store {url} -- sh -c 'echo I lead; sleep 60'"));
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Failure {
        match error {
            StartError::Store(error) => error.into(),
            StartError::Exposed(_) => Failure::usage(error.to_string()),
            error => Failure::new(exit::OWN_FAILURE, error.to_string()),
        }
    }
}
