//! The statements behind the server's answers.

use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tenure::port::Backend;
use tenure::{ElectionKey, backend};

use super::load::Ask;
use crate::BenchError;

/// The look at an election that the library sends: what every read would cost without the board.
pub(super) struct Look {
    store: Arc<dyn Backend>,
    key: ElectionKey,
}

impl Look {
    pub(super) async fn open(url: &str) -> Result<Look, BenchError> {
        let options = backend::StoreOptions { url: url.into(), ..Default::default() };
        let name = |text: &str| text.parse().expect("a name");
        let key = ElectionKey::new(name(crate::NAMESPACE), name("bench-0"));
        Ok(Look { store: backend::open(&options).await?, key })
    }
}

impl Ask for Look {
    async fn ask(&mut self) -> Result<(), BenchError> {
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
pub(super) struct Read(Database);

impl Read {
    pub(super) async fn open(url: &str) -> Result<Read, BenchError> {
        Database::open(url).await.map(Read)
    }
}

impl Ask for Read {
    async fn ask(&mut self) -> Result<(), BenchError> {
        match &mut self.0 {
            Database::Postgres(connection) => {
                let sql = "SELECT session, token FROM tenure.leases WHERE namespace = $1 AND name = $2 AND slot = 0";
                sqlx::query(sql).bind(crate::NAMESPACE).bind("bench-0").fetch_one(connection).await?;
            }
            Database::Sqlite(connection) => {
                let sql = "SELECT session, token FROM tenure_leases WHERE namespace = ?1 AND name = ?2 AND slot = 0";
                sqlx::query(sql).bind(crate::NAMESPACE).bind("bench-0").fetch_one(connection).await?;
            }
        }
        Ok(())
    }
}

/// A beat.
pub(super) struct Beat(Database, String);

impl Beat {
    pub(super) async fn open(url: &str, session: String) -> Result<Beat, BenchError> {
        let mut database = Database::open(url).await?;
        if let Database::Sqlite(connection) = &mut database {
            // As the library does for beats.
            sqlx::query("PRAGMA synchronous = NORMAL").execute(&mut *connection).await?;
        }
        Ok(Beat(database, session))
    }
}

impl Ask for Beat {
    async fn ask(&mut self) -> Result<(), BenchError> {
        match &mut self.0 {
            Database::Postgres(connection) => {
                let sql = "UPDATE tenure.sessions SET beat = beat + 1, beat_at = now() WHERE id = $1 AND state = 'live'";
                sqlx::query(sql).bind(&self.1).execute(connection).await?;
            }
            Database::Sqlite(connection) => {
                let sql = "UPDATE tenure_sessions SET beat = beat + 1 WHERE id = ?1 AND state = 'live'";
                sqlx::query(sql).bind(&self.1).execute(connection).await?;
            }
        }
        Ok(())
    }
}
