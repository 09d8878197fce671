//! From an address to a store.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures_core::future::BoxFuture;
use tenure_core::port::{Backend, StoreError, Trouble, Wake, WakeSource, Wakes};
use tokio::sync::broadcast;

use super::access::ServerAccess;
use super::memory::Memory;
use super::migrations::Migrate;
use super::paired::Paired;

/// Which store, and how to use it.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// `sqlite:PATH`, `postgres://…`, `etcd://…`, `http(s)://…` or `memory:`.
    pub url: String,
    /// A direct address, where `url` leads through a pooler.
    pub direct_url: Option<String>,
    /// Count a grant only when it is replicated.
    pub strict: bool,
    /// Where elections live, if not in the same store: an address like `url`. See [`paired`](super::paired).
    pub elect: Option<String>,
    /// How a Tenure server is to know us.
    pub access: ServerAccess,
    /// Create no file and migrate nothing: for commands that only read. Only SQLite does either by itself.
    pub existing_only: bool,
    /// The file with the secret of a Raft cluster, instead of `$TENURE_RAFT_SECRET` and the file that `$TENURE_RAFT_SECRET_FILE` names. It
    /// has one secret in each line: the first seals what this process sends, and all are accepted.
    pub cluster_secret_file: Option<PathBuf>,
}

type Opening<'a, T> = BoxFuture<'a, Result<Arc<T>, StoreError>>;
type Opener<T> = fn(&StoreOptions) -> Opening<'_, T>;

/// A kind of store, as an address begins.
struct Scheme {
    prefixes: &'static [&'static str],
    open: Opener<dyn Backend>,
    migrator: Option<Opener<dyn Migrate>>,
    script: Option<fn() -> String>,
    roles: Option<fn() -> String>,
}

const SCHEMES: &[Scheme] = &[
    Scheme {
        prefixes: &["memory:"],
        open: |_| Box::pin(async { Ok(Arc::new(Memory::new()) as Arc<dyn Backend>) }),
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

/// Opens the store at an address.
pub async fn open(options: &StoreOptions) -> Result<Arc<dyn Backend>, StoreError> {
    let Some(elect) = &options.elect else { return (scheme(&options.url)?.open)(options).await };
    if *elect == options.url {
        let message =
            "elections live in the store itself unless they are to live elsewhere: leave out --elect";
        return Err(StoreError::new(Trouble::Address, message));
    }
    // Both make sense before either is opened.
    let (elector, keeper) = (scheme(elect)?, scheme(&options.url)?);
    let electing = StoreOptions { url: elect.clone(), direct_url: None, elect: None, ..options.clone() };
    let elector = (elector.open)(&electing).await?;
    Ok(Arc::new(Paired::new(elector, (keeper.open)(options).await?)?))
}

/// Opens the store at an address only to look at or change its schema.
pub async fn migrator(options: &StoreOptions) -> Result<Arc<dyn Migrate>, StoreError> {
    match scheme(&options.url)?.migrator {
        Some(migrator) => migrator(options).await,
        None => Err(no_schema(&options.url)),
    }
}

/// All migrations of a kind of store as one script, for people who apply their own. Connects to nothing.
pub fn migration_sql(url: &str) -> Result<String, StoreError> {
    scheme(url)?.script.map(|script| script()).ok_or_else(|| no_schema(url))
}

/// The roles of a kind of store, and what each may do, as a script. Connects to nothing.
pub fn roles_sql(url: &str) -> Result<String, StoreError> {
    scheme(url)?.roles.map(|roles| roles()).ok_or_else(|| {
        let kind = url.split_once(':').map_or(url, |(kind, _)| kind);
        let message = format!(
            "a {kind}: store has no roles of its own, PostgreSQL has; name it with --store postgres:"
        );
        StoreError::new(Trouble::Request, message)
    })
}

fn no_schema(url: &str) -> StoreError {
    let advice = if url.starts_with("http") { "; migrate the database behind the server" } else { "" };
    StoreError::new(Trouble::Request, format!("{url} has no schema to migrate{advice}"))
}

/// Whether an address begins as that of a store. Connects to nothing.
pub fn check_scheme(url: &str) -> Result<(), StoreError> {
    scheme(url).map(drop)
}

/// What somebody may have meant who wrote an address without its scheme.
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
        // Whatever follows the scheme may hold a password.
        let given = url.split_once(':').map_or("without a scheme", |(scheme, _)| scheme);
        if let Some(guess) = guess(url) {
            return StoreError::new(Trouble::Address, format!("{url:?} is no address of a store; {guess}"));
        }
        let known: Vec<_> = SCHEMES.iter().flat_map(|scheme| scheme.prefixes.first()).copied().collect();
        let message = format!(
            "unknown store {given:?}; an address begins with one of: {}; for a file, sqlite:PATH",
            known.join(", ")
        );
        StoreError::new(Trouble::Address, message)
    })
}

/// Hints that are told to all in this process; who was too slow looks at everything.
pub(crate) struct Heard(pub(crate) broadcast::Receiver<Wake>);

#[async_trait]
impl WakeSource for Heard {
    async fn next(&mut self) -> Option<Wake> {
        match self.0.recv().await {
            Ok(wake) => Some(wake),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Wake::Resync),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// Hints that never come.
pub(crate) fn no_hints() -> Wakes {
    Box::new(Silence)
}

struct Silence;

#[async_trait]
impl WakeSource for Silence {
    async fn next(&mut self) -> Option<Wake> {
        std::future::pending().await
    }
}
