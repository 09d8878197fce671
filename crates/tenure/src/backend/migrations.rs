//! Versioned, embedded migrations, the same rules for both dialects.

use tenure_core::port::StoreError;

/// One step of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// 1, 2, 3, …
    pub version: i64,
    /// What it does, from its file name.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
}

/// Where a store's schema stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaStatus {
    /// The version found; `None` if there are no tables.
    pub found: Option<i64>,
    /// The version that this program needs.
    pub wanted: i64,
    /// The migrations that [`Migrate::migrate`] would apply: version and name.
    pub pending: Vec<(i64, &'static str)>,
}

/// A store whose schema can be brought up to date.
#[async_trait::async_trait]
pub trait Migrate: Send + Sync {
    /// Where the schema stands. Changes nothing.
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError>;

    /// Applies what is pending, in one transaction; safe when many replicas start at once. Returns what was applied.
    async fn migrate(&self) -> Result<Vec<(i64, &'static str)>, StoreError>;
}
