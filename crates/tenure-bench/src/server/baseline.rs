//! Baselines: the statements behind the server's responses.

use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tenure::port::Store;
use tenure::{ElectionKey, store};

use super::load::LoadRequest;
use crate::BenchError;

/// The library's read of an election: the cost of a read without the server's snapshot.
pub(super) struct ElectionReadBaseline {
    store: Arc<dyn Store>,
    key: ElectionKey,
}

impl ElectionReadBaseline {
    pub(super) async fn open(url: &str) -> Result<ElectionReadBaseline, BenchError> {
        let options = store::StoreOptions { url: url.into(), ..Default::default() };
        let name = |text: &str| text.parse().expect("a name");
        let key = ElectionKey::new(name(crate::NAMESPACE), name("bench-0"));
        Ok(ElectionReadBaseline { store: store::open(&options).await?, key })
    }
}

impl LoadRequest for ElectionReadBaseline {
    async fn send(&mut self) -> Result<(), BenchError> {
        self.store.election(&self.key).await?;
        Ok(())
    }
}

enum Database {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Database {
    async fn open(url: &str) -> Result<Database, BenchError> {
        Ok(match url.strip_prefix("sqlite:") {
            Some(path) => Database::Sqlite(SqliteConnectOptions::new().filename(path).connect().await?),
            None => Database::Postgres(PgConnection::connect(url).await?),
        })
    }
}

/// One row by its key.
pub(super) struct RowReadBaseline(Database);

impl RowReadBaseline {
    pub(super) async fn open(url: &str) -> Result<RowReadBaseline, BenchError> {
        Database::open(url).await.map(RowReadBaseline)
    }
}

impl LoadRequest for RowReadBaseline {
    async fn send(&mut self) -> Result<(), BenchError> {
        match &mut self.0 {
            Database::Postgres(connection) => {
                let sql = "SELECT session, token FROM tenure.leases WHERE namespace = $1 AND election = $2 AND slot = 0";
                sqlx::query(sql).bind(crate::NAMESPACE).bind("bench-0").fetch_one(connection).await?;
            }
            Database::Sqlite(connection) => {
                let sql = "SELECT session, token FROM tenure_leases WHERE namespace = ?1 AND election = ?2 AND slot = 0";
                sqlx::query(sql).bind(crate::NAMESPACE).bind("bench-0").fetch_one(connection).await?;
            }
        }
        Ok(())
    }
}

/// One heartbeat statement.
pub(super) struct HeartbeatBaseline(Database, String);

impl HeartbeatBaseline {
    pub(super) async fn open(url: &str, session: String) -> Result<HeartbeatBaseline, BenchError> {
        let mut database = Database::open(url).await?;
        if let Database::Sqlite(connection) = &mut database {
            // The same setting as the library uses for heartbeats.
            sqlx::query("PRAGMA synchronous = NORMAL").execute(&mut *connection).await?;
        }
        Ok(HeartbeatBaseline(database, session))
    }
}

impl LoadRequest for HeartbeatBaseline {
    async fn send(&mut self) -> Result<(), BenchError> {
        match &mut self.0 {
            Database::Postgres(connection) => {
                let sql = "UPDATE tenure.sessions SET heartbeat_count = heartbeat_count + 1, heartbeat_at = now() WHERE id = $1 AND state = 'live'";
                sqlx::query(sql).bind(&self.1).execute(connection).await?;
            }
            Database::Sqlite(connection) => {
                let sql = "UPDATE tenure_sessions SET heartbeat_count = heartbeat_count + 1 WHERE id = ?1 AND state = 'live'";
                sqlx::query(sql).bind(&self.1).execute(connection).await?;
            }
        }
        Ok(())
    }
}
