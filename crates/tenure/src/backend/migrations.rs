//! Versioned, embedded migrations, the same rules for both dialects.

use tenure_core::port::{StoreError, Trouble};

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

/// What is missing between `found` and `all`.
pub(crate) fn status(all: &[Migration], found: Option<i64>) -> SchemaStatus {
    let wanted = all.last().map_or(0, |migration| migration.version);
    let pending =
        all.iter().filter(|m| m.version > found.unwrap_or(0)).map(|m| (m.version, m.name)).collect();
    SchemaStatus { found, wanted, pending }
}

/// Refuses to work on a schema that this program does not know.
pub(crate) fn check(status: &SchemaStatus, store: &str) -> Result<(), StoreError> {
    match status.found {
        None => Err(StoreError::new(
            Trouble::SchemaMissing,
            format!("{store} has no Tenure tables; create them with `tenure migrate up --store {store}`"),
        )),
        Some(found) if found < status.wanted => Err(StoreError::new(
            Trouble::SchemaVersion,
            format!(
                "the Tenure tables in {store} are at version {found} and this program needs {}; \
                 run `tenure migrate up --store {store}`",
                status.wanted
            ),
        )),
        Some(found) if found > status.wanted => Err(StoreError::new(
            Trouble::SchemaVersion,
            format!(
                "the Tenure tables in {store} are at version {found}, made by a newer Tenure; \
                 this program knows up to {}. Upgrade it",
                status.wanted
            ),
        )),
        Some(_) => Ok(()),
    }
}
