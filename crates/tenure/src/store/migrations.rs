//! Versioned, embedded migrations, with the same rules for both SQL dialects.
//!
//! A schema version and a program version are the same number: a program is built for the version of its last migration.
//! Two adjacent versions run on one database:
//!
//! - A program runs on a **newer** schema if the schema's `oldest_compatible` is not above the program's version. Each
//!   migration records that number in the migrations table, so an old program can read it.
//! - A program runs on an **older** schema if it declares so ([`Schema::oldest_schema`]).
//!
//! There is no `migrate down`. To downgrade, run the older program on the newer schema.

use std::fmt;
use std::time::Duration;

use tenure_core::port::StoreError;

/// One step of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// 1, 2, 3, …
    pub version: i64,
    /// Short description, from the file name.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
    /// The oldest program that can still run after this migration, by the schema version that it was built for.
    /// `version - 1` for a migration that only adds what older programs do not need to know; `version` for all others.
    pub oldest_compatible: i64,
}

/// The schema that a program was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schema {
    /// All migrations, in order.
    pub migrations: &'static [Migration],
    /// The oldest schema version that the program can run on: its own version, or the one before.
    pub oldest_schema: i64,
}

impl Schema {
    /// The version of the program: that of its last migration.
    pub fn version(&self) -> i64 {
        self.migrations.last().map_or(0, |migration| migration.version)
    }
}

/// The schema of a store, compared with what this program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaStatus {
    /// The version found; `None` if there are no tables.
    pub found: Option<i64>,
    /// The oldest program version that may run on the version found.
    pub oldest_compatible: Option<i64>,
    /// The version that this program was built for.
    pub wanted: i64,
    /// The oldest version that this program can run on.
    pub oldest_schema: i64,
    /// The migrations that [`SchemaMigrator::migrate`] would apply: version and name.
    pub pending: Vec<(i64, &'static str)>,
    /// Tables, indexes, functions and other objects that belong to the version found but do not exist.
    pub missing: Vec<String>,
}

/// Whether a program can run on a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// The schema has the program's version.
    Current,
    /// The schema is newer, and allows programs of this version.
    NewerCompatible,
    /// The schema is older, and the program can run on it.
    OlderCompatible,
    /// There are no tables.
    NoTables,
    /// The schema is older, and the program needs a migration.
    TooOld,
    /// The schema is newer, and does not allow programs of this version.
    TooNew,
}

impl SchemaStatus {
    /// Compare the versions. Does not consider [`missing`](Self::missing) objects.
    pub fn compatibility(&self) -> Compatibility {
        let Some(found) = self.found else { return Compatibility::NoTables };
        if found == self.wanted {
            Compatibility::Current
        } else if found > self.wanted {
            match self.oldest_compatible.is_some_and(|oldest| self.wanted >= oldest) {
                true => Compatibility::NewerCompatible,
                false => Compatibility::TooNew,
            }
        } else if found >= self.oldest_schema {
            Compatibility::OlderCompatible
        } else {
            Compatibility::TooOld
        }
    }
}

/// A transaction that a migration waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The server process. `None` for a prepared transaction, which has no process.
    pub pid: Option<i32>,
    /// Its database user; empty if it is not known.
    pub user: String,
    /// Its `application_name`; empty if it has none.
    pub application: String,
    /// How long its transaction has been open. `None` if the role of this program may not read it; membership in
    /// `pg_read_all_stats` allows it.
    pub open_for: Option<Duration>,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid}")?,
            None => write!(f, "a prepared transaction (see pg_prepared_xacts)")?,
        }
        let about = [&self.application, &self.user].map(String::as_str);
        match about {
            ["", ""] => {}
            ["", user] => write!(f, " (user {user})")?,
            [application, ""] => write!(f, " ({application})")?,
            [application, user] => write!(f, " ({application}, user {user})")?,
        }
        match self.open_for {
            Some(age) => write!(f, ", in a transaction that began {} s ago", age.as_secs()),
            None => Ok(()),
        }
    }
}

/// A lock that a migration did not get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    /// The attempts so far, this one included.
    pub attempts: u32,
    /// How long the migration has been trying.
    pub waited: Duration,
    /// What it waits for: a table, or `the migration lock`; empty if it is not known.
    pub lock: String,
    /// The transactions that hold the lock, if they could be determined.
    pub holders: Vec<LockHolder>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lock = if self.lock.is_empty() { "a lock" } else { &self.lock };
        write!(f, "{lock} is held by ")?;
        match self.holders.as_slice() {
            [] => write!(f, "another transaction"),
            holders => {
                let holders: Vec<String> = holders.iter().map(LockHolder::to_string).collect();
                write!(f, "{}", holders.join("; "))
            }
        }
    }
}

/// How to run migrations.
#[derive(Clone, Copy)]
pub struct MigrateOptions<'a> {
    /// How long to try. A migration that does not get its locks in this time changes nothing and fails.
    pub timeout: Duration,
    /// Called after each attempt that did not get a lock.
    pub progress: &'a (dyn Fn(&Blocked) + Send + Sync),
}

/// Timeout of [`SchemaMigrator::migrate`].
pub const MIGRATE_TIMEOUT: Duration = Duration::from_secs(60);

/// A store whose schema can be migrated.
#[async_trait::async_trait]
pub trait SchemaMigrator: Send + Sync {
    /// Compare the schema with what this program needs. Changes nothing.
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError>;

    /// Apply the pending migrations in one transaction and return them. Safe when many replicas start at once.
    ///
    /// Fails and changes nothing if the locks are not free within the timeout, if the schema is too new for this program,
    /// or if objects are missing in it.
    async fn migrate_with(&self, options: MigrateOptions<'_>)
    -> Result<Vec<(i64, &'static str)>, StoreError>;

    /// Call [`migrate_with`](Self::migrate_with) with the timeout [`MIGRATE_TIMEOUT`], and log every lock that it
    /// waits for.
    async fn migrate(&self) -> Result<Vec<(i64, &'static str)>, StoreError> {
        let progress =
            |blocked: &Blocked| tracing::warn!(attempt = blocked.attempts, "migration waits: {blocked}");
        self.migrate_with(MigrateOptions { timeout: MIGRATE_TIMEOUT, progress: &progress }).await
    }
}
