//! Servers of a test's own.

#![allow(dead_code, unreachable_pub)]

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use tenure::backend::memory::Memory;
use tenure::backend::postgres::{Postgres, PostgresOptions};
use tenure::backend::sqlite::{Sqlite, SqliteOptions};
use tenure::backend::{self, StoreOptions};
use tenure::port::Backend;
use tenure::runtime::System;
use tenure_server::App;
use tenure_server::access::Access;
use tokio::task::JoinHandle;

/// A server in this process, on a port of its own.
pub struct Replica {
    pub address: SocketAddr,
    pub app: App,
    task: JoinHandle<()>,
}

impl Replica {
    /// Serves this store to whoever is on this machine.
    pub async fn start(store: Arc<dyn Backend>) -> Replica {
        Replica::start_with(store, Access::Open).await
    }

    /// Serves this store to those whom it knows.
    pub async fn guarded(store: Arc<dyn Backend>) -> Replica {
        let access = Access::guarded(store.clone(), Arc::new(System)).await.expect("credentials");
        Replica::start_with(store, access).await
    }

    async fn start_with(store: Arc<dyn Backend>, access: Access) -> Replica {
        let app = App::new(store, access, Arc::new(System));
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

/// A client.
pub async fn http(url: &str) -> Arc<dyn Backend> {
    backend::open(&StoreOptions { url: url.into(), ..StoreOptions::default() }).await.expect("a server")
}

/// A store, and what it lies in: gone with this value.
pub struct Kept {
    backend: Arc<dyn Backend>,
    /// Its address, where it has one.
    pub url: String,
    _place: Box<dyn Any + Send + Sync>,
}

impl Kept {
    pub fn backend(&self) -> Arc<dyn Backend> {
        self.backend.clone()
    }
}

pub fn memory() -> Kept {
    Kept { backend: Arc::new(Memory::new()), url: "memory:".into(), _place: Box::new(()) }
}

/// An empty file.
pub async fn sqlite() -> Kept {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.db");
    let options = SqliteOptions::new(&path).busy_timeout(std::time::Duration::from_secs(20));
    let store = Sqlite::open(options).await.expect("a file");
    Kept { backend: Arc::new(store), url: format!("sqlite:{}", path.display()), _place: Box::new(folder) }
}

/// A database with empty tables.
pub async fn postgres() -> Kept {
    let tables = tenure::backend::migration_sql("postgres:").expect("tables");
    let database = tenure_testkit::rig::prepared_database(&tables).expect("a database");
    let url = database.url().to_owned();
    let store = Postgres::connect(PostgresOptions::new(&url)).await.expect("a server");
    Kept { backend: Arc::new(store), url, _place: Box::new(database) }
}
