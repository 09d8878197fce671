//! Whether a schema is the one that this program knows; the same for both dialects.

use tenure_core::port::{StoreError, Trouble};

use super::migrations::{Migration, SchemaStatus};

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
