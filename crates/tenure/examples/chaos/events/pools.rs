//! Connection pools of the test processes.

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{PgPool, SqlitePool};

use crate::Failed;

pub(crate) fn sqlite(url: &str, most: u32) -> Result<SqlitePool, Failed> {
    let options = url.parse::<SqliteConnectOptions>()?.busy_timeout(Duration::from_secs(5));
    Ok(SqlitePoolOptions::new().max_connections(most).connect_lazy_with(options))
}

pub(crate) fn postgres(url: &str, most: u32) -> Result<PgPool, Failed> {
    let options = PgPoolOptions::new().max_connections(most).acquire_timeout(Duration::from_secs(3));
    Ok(options.connect_lazy(url)?)
}
