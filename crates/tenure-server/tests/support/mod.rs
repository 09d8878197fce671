//! Test servers and stores.

#![allow(dead_code, unreachable_pub)]

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use tenure::port::Store;
use tenure::runtime::SystemRuntime;
use tenure::store::memory::MemoryStore;
use tenure::store::postgres::{PostgresOptions, PostgresStore};
use tenure::store::sqlite::{SqliteOptions, SqliteStore};
use tenure::store::{self, StoreOptions};
use tenure_server::App;
use tenure_server::access::AccessMode;
use tokio::task::JoinHandle;

/// Server in this process on its own port.
pub struct Replica {
    pub address: SocketAddr,
    pub app: App,
    task: JoinHandle<()>,
}

impl Replica {
    /// Serve the store without access control.
    pub async fn start(store: Arc<dyn Store>) -> Replica {
        Replica::start_with(store, AccessMode::Open).await
    }

    /// Serve the store with access control.
    pub async fn guarded(store: Arc<dyn Store>) -> Replica {
        let access = AccessMode::guarded(store.clone(), Arc::new(SystemRuntime)).await.expect("credentials");
        Replica::start_with(store, access).await
    }

    async fn start_with(store: Arc<dyn Store>, access: AccessMode) -> Replica {
        let app = App::new(store, access, Arc::new(SystemRuntime));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let router = app.router();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.expect("serving") });
        Replica { address, app, task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// HTTP store client.
pub async fn http(url: &str) -> Arc<dyn Store> {
    store::open(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await.expect("a server")
}

/// Store with its files or database, removed on drop.
pub struct Kept {
    backend: Arc<dyn Store>,
    /// URL of the store.
    pub url: String,
    _place: Box<dyn Any + Send + Sync>,
}

impl Kept {
    pub fn backend(&self) -> Arc<dyn Store> {
        self.backend.clone()
    }
}

pub fn memory() -> Kept {
    Kept { backend: Arc::new(MemoryStore::new()), url: "memory:".into(), _place: Box::new(()) }
}

/// Empty SQLite store.
pub async fn sqlite() -> Kept {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    let options = SqliteOptions::new(&path).busy_timeout(std::time::Duration::from_secs(20));
    let store = SqliteStore::open(options).await.expect("a file");
    Kept { backend: Arc::new(store), url: format!("sqlite:{}", path.display()), _place: Box::new(folder) }
}

/// Empty PostgreSQL store.
pub async fn postgres() -> Kept {
    let tables = tenure::store::migration_sql("postgres:").expect("tables");
    let database = tenure_testkit::rig::prepared_database(&tables).expect("a database");
    let url = database.url().to_owned();
    let store = PostgresStore::connect(PostgresOptions::new(&url)).await.expect("a server");
    Kept { backend: Arc::new(store), url, _place: Box::new(database) }
}
