//! Opening of stores by URL.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use tenure_core::port::{
    BoxNotificationSource, ErrorKind, Notification, NotificationSource, Store, StoreError,
};
use tokio::sync::broadcast;

use super::client_auth::ClientAuth;
use super::memory::MemoryStore;
use super::migrations::SchemaMigrator;
use super::paired::PairedStore;

/// Store URL and connection options.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// Store URL: `sqlite:PATH`, `postgres://…`, `etcd://…`, `k8s:…`, `raft:…`, `http(s)://…` or `memory:`.
    pub url: String,
    /// Direct URL, if `url` leads through a connection pooler.
    pub direct_url: Option<String>,
    /// Require synchronous replication: a grant succeeds only when a synchronous standby has it.
    pub sync_replication: bool,
    /// URL of a separate store for elections. See [`paired`](super::paired).
    pub election_store: Option<String>,
    /// Authentication of this client to a Tenure server or to etcd.
    pub access: ClientAuth,
    /// Do not create a file and do not migrate. Only SQLite does either by itself.
    pub existing_only: bool,
    /// File with the secrets of a Raft cluster, instead of `$TENURE_RAFT_SECRET` and the file named by
    /// `$TENURE_RAFT_SECRET_FILE`. One secret per line: the first encrypts, and all are accepted.
    pub cluster_secret_file: Option<PathBuf>,
}

type OpenFuture<'a, T> = BoxFuture<'a, Result<Arc<T>, StoreError>>;
type Opener<T> = fn(&StoreOptions) -> OpenFuture<'_, T>;

/// A kind of store and its URL prefixes.
struct Scheme {
    prefixes: &'static [&'static str],
    open: Opener<dyn Store>,
    migrator: Option<Opener<dyn SchemaMigrator>>,
    script: Option<fn() -> String>,
    roles: Option<fn() -> String>,
}

const SCHEMES: &[Scheme] = &[
    Scheme {
        prefixes: &["memory:"],
        open: |_| Box::pin(async { Ok(Arc::new(MemoryStore::new()) as Arc<dyn Store>) }),
        migrator: None,
        script: None,
        roles: None,
    },
    #[cfg(feature = "sqlite")]
    Scheme {
        prefixes: &["sqlite:"],
        open: super::sqlite::open_url,
        migrator: Some(super::sqlite::migrator_for_url),
        script: Some(super::sqlite::script),
        roles: None,
    },
    #[cfg(feature = "postgres")]
    Scheme {
        prefixes: &["postgres:", "postgresql:", "host=", "user=", "dbname=", "port="],
        open: super::postgres::open_url,
        migrator: Some(super::postgres::migrator_for_url),
        script: Some(super::postgres::script),
        roles: Some(super::postgres::roles),
    },
    #[cfg(feature = "etcd")]
    Scheme {
        prefixes: &["etcd:", "etcds:"],
        open: super::etcd::open_url,
        migrator: None,
        script: None,
        roles: None,
    },
    #[cfg(feature = "k8s")]
    Scheme {
        prefixes: &["k8s:"],
        open: super::kubernetes::open_url,
        migrator: None,
        script: None,
        roles: None,
    },
    #[cfg(feature = "raft")]
    Scheme { prefixes: &["raft:"], open: super::raft::open_url, migrator: None, script: None, roles: None },
    #[cfg(feature = "gossip")]
    Scheme { prefixes: &["gossip:"], open: super::gossip::refuse, migrator: None, script: None, roles: None },
    #[cfg(feature = "http")]
    Scheme {
        prefixes: &["http:", "https:", "http+unix:"],
        open: super::http::open_url,
        migrator: None,
        script: None,
        roles: None,
    },
];

/// Open the store at a URL.
pub async fn open(options: &StoreOptions) -> Result<Arc<dyn Store>, StoreError> {
    let Some(election_store) = &options.election_store else {
        return (scheme(&options.url)?.open)(options).await;
    };
    if *election_store == options.url {
        let message =
            "--election-store must differ from --store; leave it out to keep elections in the store";
        return Err(StoreError::new(ErrorKind::Address, message));
    }
    // Check both URLs before either store is opened.
    let (election_scheme, main_scheme) = (scheme(election_store)?, scheme(&options.url)?);
    let election_options = StoreOptions {
        url: election_store.clone(),
        direct_url: None,
        election_store: None,
        ..options.clone()
    };
    let elections = (election_scheme.open)(&election_options).await?;
    Ok(Arc::new(PairedStore::new(elections, (main_scheme.open)(options).await?)?))
}

/// Open the store at a URL to inspect or migrate its schema.
pub async fn migrator(options: &StoreOptions) -> Result<Arc<dyn SchemaMigrator>, StoreError> {
    match scheme(&options.url)?.migrator {
        Some(migrator) => migrator(options).await,
        None => Err(no_schema(&options.url)),
    }
}

/// Return all migrations of a kind of store as one SQL script. Opens no connection.
pub fn migration_sql(url: &str) -> Result<String, StoreError> {
    scheme(url)?.script.map(|script| script()).ok_or_else(|| no_schema(url))
}

/// Return the roles of a kind of store and their privileges as an SQL script. Opens no connection.
pub fn roles_sql(url: &str) -> Result<String, StoreError> {
    scheme(url)?.roles.map(|roles| roles()).ok_or_else(|| {
        let kind = url.split_once(':').map_or(url, |(kind, _)| kind);
        let message = format!("a {kind}: store has no roles; only PostgreSQL does: use --store postgres:");
        StoreError::new(ErrorKind::Request, message)
    })
}

fn no_schema(url: &str) -> StoreError {
    let advice = if url.starts_with("http") { "; migrate the database behind the server" } else { "" };
    StoreError::new(ErrorKind::Request, format!("{url} has no schema to migrate{advice}"))
}

/// Check that a URL has a known scheme. Opens no connection.
pub fn check_scheme(url: &str) -> Result<(), StoreError> {
    scheme(url).map(drop)
}

/// Suggest a URL for a text without a scheme.
fn guess(url: &str) -> Option<String> {
    let host = url.split('/').next().unwrap_or(url);
    let is_server = host
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && !host.contains('@') && port.parse::<u16>().is_ok());
    let path = url.split('?').next().unwrap_or(url);
    let is_file = !url.contains(':')
        && (path.contains('/') || [".db", ".sqlite", ".sqlite3"].iter().any(|end| path.ends_with(end)));
    match (is_server, is_file) {
        (true, _) => Some(format!("for a Tenure server write http://{url}")),
        (_, true) => Some(format!("for a SQLite file write sqlite:{url}")),
        _ => None,
    }
}

fn scheme(url: &str) -> Result<&'static Scheme, StoreError> {
    let matches = |scheme: &&Scheme| scheme.prefixes.iter().any(|prefix| url.starts_with(prefix));
    SCHEMES.iter().find(matches).ok_or_else(|| {
        // The text after the scheme may contain a password.
        let given = url.split_once(':').map_or("without a scheme", |(scheme, _)| scheme);
        if let Some(guess) = guess(url) {
            return StoreError::new(ErrorKind::Address, format!("{url:?} is not a store URL; {guess}"));
        }
        let known: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.prefixes.first()).copied().collect();
        let message = format!(
            "unknown store {given:?}; a store URL starts with one of: {}; for a file, sqlite:PATH",
            known.join(", ")
        );
        StoreError::new(ErrorKind::Address, message)
    })
}

/// Notifications from a broadcast channel. A receiver that lags gets a `Resync`.
pub(crate) struct BroadcastNotificationSource(pub(crate) broadcast::Receiver<Notification>);

#[async_trait]
impl NotificationSource for BroadcastNotificationSource {
    async fn next(&mut self) -> Option<Notification> {
        match self.0.recv().await {
            Ok(wake) => Some(wake),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Notification::Resync),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// A notification source that never yields.
pub(crate) fn no_notifications() -> BoxNotificationSource {
    Box::new(NoNotifications)
}

struct NoNotifications;

#[async_trait]
impl NotificationSource for NoNotifications {
    async fn next(&mut self) -> Option<Notification> {
        std::future::pending().await
    }
}
