//! Migrations of the schema. Programs never migrate PostgreSQL by themselves: `tenure migrate up` does, or a DBA with the
//! script of `tenure migrate sql`.
//!
//! An `ALTER TABLE` needs an exclusive lock. While it waits for one, every later statement on that table queues behind it,
//! including heartbeats. So a migration waits for each lock for [`LOCK_TIMEOUT`] only, rolls back, and tries again after a
//! pause for heartbeats. It changes nothing until it has all locks.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::port::{ErrorKind, StoreError};

use super::call_pool::last_rows;
use super::error::{PgError, explain, unexpected_response};
use super::listen::locked;
use super::message::Message;
use super::value::Value;
use super::wire::{ColumnError, Connection, PgRow};
use super::{PostgresStore, QUERIES};
use crate::runtime::{jittered, now};
use crate::store::migrations::{
    Blocked, LockHolder, MigrateOptions, Migration, Schema, SchemaMigrator, SchemaStatus,
};
use crate::store::schema;

/// Limit of the wait for a lock on a table. Heartbeats on that table wait as long, so it must be far below usual leases.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// Limit of the wait for another program that migrates. No other statement waits behind it.
const MIGRATION_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Time after which the server ends the transaction of a program that stopped in the middle of a migration.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// Interval at which the locks are inspected while an attempt runs.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(15);

/// The schema that this program was built for.
pub(super) const SCHEMA: Schema = Schema { migrations: MIGRATIONS, oldest_schema: 1 };

/// All migrations, in order.
const MIGRATIONS: &[Migration] = &[Migration {
    version: 1,
    name: "initial",
    sql: concat!(
        include_str!("migrations/0001/elections.sql"),
        include_str!("migrations/0001/epoch.sql"),
        include_str!("migrations/0001/access.sql"),
        include_str!("migrations/0001/queues/tables.sql"),
        include_str!("migrations/0001/queues/submit.sql"),
        include_str!("migrations/0001/queues/claim.sql"),
        include_str!("migrations/0001/queues/settle.sql"),
        include_str!("migrations/0001/queues/maintain.sql"),
        include_str!("migrations/0001/pools.sql"),
        include_str!("migrations/0001/queues/json.sql"),
        include_str!("migrations/0001/queues/api.sql"),
        include_str!("migrations/0001/events/tables.sql"),
        include_str!("migrations/0001/events/publish.sql"),
        include_str!("migrations/0001/events/read.sql"),
        include_str!("migrations/0001/events/groups.sql"),
        include_str!("migrations/0001/events/maintain.sql"),
        include_str!("migrations/0001/events/json.sql"),
        include_str!("migrations/0001/events/api.sql"),
        include_str!("migrations/0001/schedules/tables.sql"),
        include_str!("migrations/0001/schedules/fire.sql"),
        include_str!("migrations/0001/schedules/admin.sql"),
        include_str!("migrations/0001/schedules/views.sql"),
    ),
    oldest_compatible: 1,
}];

#[async_trait]
impl SchemaMigrator for PostgresStore {
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError> {
        let mut status = self.status().await?;
        let message = Message::for_user(&QUERIES).then("schema_objects", &[])?;
        let rows = self.shared.calls.run(message).await?;
        let present = present(&rows).map_err(|error| unexpected_response("the tables", error))?;
        schema::note_missing(&mut status, &self.shared.schema, &present);
        Ok(status)
    }

    async fn migrate_with(
        &self,
        options: MigrateOptions<'_>,
    ) -> Result<Vec<(i64, &'static str)>, StoreError> {
        let endpoint = &self.shared.endpoint;
        let explained = |error: &PgError| explain(error, &endpoint.address);
        // A separate connection: if this future is dropped, the transaction ends with the connection.
        let mut connection = endpoint.connect().await.map_err(|error| explained(&error))?;
        let (start, mut pause) = (now(), PAUSES.0);
        let attempt = Mutex::new(Attempt::default());
        loop {
            let error = match self.attempt(&mut connection, &attempt).await {
                Ok(result) => return result,
                Err(error) => error,
            };
            if !matches!(error.sqlstate(), Some(LOCK_NOT_AVAILABLE | DEADLOCK_DETECTED)) {
                return Err(explained(&error));
            }
            last_rows(&mut connection, "ROLLBACK").await.map_err(|error| explained(&error))?;
            let (step, blocked) = {
                let mut attempt = locked(&attempt);
                attempt.blocked.attempts += 1;
                attempt.blocked.waited = now().since(start);
                (attempt.step.clone(), attempt.blocked.clone())
            };
            (options.progress)(&blocked);
            if blocked.waited >= options.timeout {
                return Err(lock_timeout_error(&step, &blocked, &endpoint.address));
            }
            tokio::time::sleep(jittered(pause).min(options.timeout - blocked.waited)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// `lock_not_available`: `lock_timeout` expired.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// `deadlock_detected`.
const DEADLOCK_DETECTED: &str = "40P01";

/// The current step of an attempt, and the last lock that it waited for.
#[derive(Default)]
struct Attempt {
    step: String,
    blocked: Blocked,
}

fn lock_timeout_error(step: &str, blocked: &Blocked, address: &str) -> StoreError {
    StoreError::new(
        ErrorKind::Timeout,
        format!(
            "PostgreSQL at {address}: {step} did not get its locks within {:.1?} in {} attempts: {blocked}. Nothing was \
             changed, and running programs continue with the current schema. Wait for that transaction to end, or end it \
             (pg_terminate_backend), and run `tenure migrate up` again",
            blocked.waited, blocked.attempts
        ),
    )
}

/// Header of the script for roles.
const ROLES_HEADER: &str = "\
-- Roles for Tenure. Run this as a superuser in the database of Tenure:
--
--     tenure migrate sql --roles --store postgres: | psql DATABASE
--
--   tenure_owner      owns the tables: only for `tenure migrate up`
--   tenure_server     for `tenure serve` and `tenure credentials`: as tenure_runtime, and manages access tokens
--   tenure_runtime    for programs, workers and the CLI: elections, queues, events and schedules; no access tokens
--   tenure_publisher  for programs that only publish events in their own transactions: may call tenure.publish, and has
--                     no rights on tables
--   tenure_reader     for operators and monitoring: reads everything except secrets, and writes nothing
--
-- Only tenure_owner can change or delete entries of the audit log.
--
-- The roles have no passwords yet: \\password tenure_runtime sets one. Or keep your own roles and make them members:
-- GRANT tenure_runtime TO app. The script can be run repeatedly; afterwards `tenure migrate up` keeps the grants up to
-- date.

";

/// The script that creates the roles and grants their rights.
pub(crate) fn roles() -> String {
    let [lock, create, grant] =
        ["schema_lock", "roles_create", "roles_grant"].map(|name| format!("{};\n", QUERIES.get(name)));
    format!("{ROLES_HEADER}BEGIN;\n{lock}{create}{SCRIPT_LOCK_TIMEOUT}{grant}COMMIT;\n")
}

/// The script that applies and records all migrations.
pub(crate) fn script() -> String {
    let statement = |name: &str| format!("{};\n", QUERIES.get(name));
    let mut script =
        format!("BEGIN;\n{}{SCRIPT_LOCK_TIMEOUT}{}", statement("schema_lock"), statement("schema_create"));
    for migration in MIGRATIONS {
        script.push_str(&format!("\n{}\n{};\n", migration.sql, record(migration)));
    }
    script + "\n" + &statement("roles_grant") + "COMMIT;\n"
}

/// The lock timeout of the scripts.
const SCRIPT_LOCK_TIMEOUT: &str = "\
-- While a statement waits for a lock on a table, heartbeats wait behind it. If this script fails, it has changed nothing: run it again.
SET LOCAL lock_timeout = '500ms';
";

impl PostgresStore {
    /// Compare the recorded version with the one that the program needs. Does not check for missing objects.
    pub(super) async fn status(&self) -> Result<SchemaStatus, StoreError> {
        let message = Message::for_user(&QUERIES).then("schema_version", &[])?;
        let recorded = match self.shared.calls.try_run(message).await? {
            Ok(rows) => recorded(&rows),
            Err(error) if matches!(error.sqlstate(), Some("42P01" | "3F000")) => Ok(None),
            Err(error) => return Err(explain(&error, &self.shared.endpoint.address)),
        };
        let recorded = recorded.map_err(|error| unexpected_response("the schema version", error))?;
        Ok(schema::status(&self.shared.schema, recorded))
    }

    /// Make one attempt in one transaction, which stays on one server connection even behind a pooler.
    async fn attempt(
        &self,
        connection: &mut Connection,
        attempt: &Mutex<Attempt>,
    ) -> Result<Result<Vec<(i64, &'static str)>, StoreError>, PgError> {
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}; SELECT pg_backend_pid() AS pid",
            MIGRATION_LOCK_TIMEOUT.as_millis(),
            IDLE_TIMEOUT.as_millis()
        );
        let rows = last_rows(connection, &begin).await?;
        let pid: i32 = rows.first().map_or(Ok(0), |row| row.try_get("pid")).map_err(protocol_error)?;
        tokio::select! {
            biased;
            done = self.apply(connection, attempt) => done,
            never = self.watch_locks(pid, attempt) => match never {},
        }
    }

    async fn apply(
        &self,
        connection: &mut Connection,
        attempt: &Mutex<Attempt>,
    ) -> Result<Result<Vec<(i64, &'static str)>, StoreError>, PgError> {
        let set_step = |step: String| locked(attempt).step = step;
        set_step("the migration lock".into());
        last_rows(connection, QUERIES.get("schema_lock")).await?;
        let short = format!("SET LOCAL lock_timeout = {}", LOCK_TIMEOUT.as_millis());
        for statement in [&short, QUERIES.get("schema_create")] {
            last_rows(connection, statement).await?;
        }
        let rows = last_rows(connection, QUERIES.get("schema_version")).await?;
        let mut status = schema::status(&self.shared.schema, recorded(&rows).map_err(protocol_error)?);
        let rows = last_rows(connection, QUERIES.get("schema_objects")).await?;
        schema::note_missing(&mut status, &self.shared.schema, &present(&rows).map_err(protocol_error)?);
        if let Err(error) = schema::check_migratable(&status, &self.shared.endpoint.address) {
            return Ok(Err(error));
        }
        if status.found > Some(status.wanted) {
            // Do not grant rights either: `roles_grant` revokes all others, and this older program does not know the
            // newer tables.
            return Ok(Ok(Vec::new()));
        }
        let pending = |m: &&Migration| status.pending.contains(&(m.version, m.name));
        for migration in self.shared.schema.migrations.iter().filter(pending) {
            set_step(format!("migration {:04} {}", migration.version, migration.name));
            last_rows(connection, migration.sql).await?;
            last_rows(connection, &record(migration)).await?;
        }
        set_step("granting rights to the roles".into());
        for statement in [QUERIES.get("roles_grant"), "COMMIT"] {
            last_rows(connection, statement).await?;
        }
        Ok(Ok(status.pending))
    }

    /// Record the lock that the server process waits for, and its holders. After a lock timeout the server does not
    /// report them.
    async fn watch_locks(&self, pid: i32, attempt: &Mutex<Attempt>) -> Infallible {
        loop {
            tokio::time::sleep(LOCK_POLL_INTERVAL).await;
            let query = Message::for_user(&QUERIES).then("schema_blockers", &[Value::Int(pid.into())]);
            if let Ok(query) = query
                && let Ok(rows) = self.shared.calls.run(query).await
                && let Ok(Some((lock, holders))) = blockers(&rows)
            {
                let blocked = &mut locked(attempt).blocked;
                (blocked.lock, blocked.holders) = (lock, holders);
            }
        }
    }
}

fn protocol_error(error: ColumnError) -> PgError {
    PgError::Protocol(error.to_string())
}

/// The version in the migrations table, and the oldest program version that it allows.
fn recorded(rows: &[PgRow]) -> Result<schema::Recorded, ColumnError> {
    let Some(row) = rows.first() else { return Ok(None) };
    let version: Option<i64> = row.try_get("version")?;
    let oldest: Option<i64> = row.try_get("oldest_compatible")?;
    Ok(version.map(|version| (version, oldest.unwrap_or(version))))
}

/// The objects that exist, such as `table sessions`.
fn present(rows: &[PgRow]) -> Result<BTreeSet<String>, ColumnError> {
    rows.iter().map(|row| row.try_get("object")).collect()
}

/// The lock that a process waits for, and its holders. `None` if it waits for no lock.
fn blockers(rows: &[PgRow]) -> Result<Option<(String, Vec<LockHolder>)>, ColumnError> {
    let Some(first) = rows.first() else { return Ok(None) };
    let text =
        |row: &PgRow, column: &str| row.try_get::<Option<String>>(column).map(Option::unwrap_or_default);
    let holder = |row: &PgRow| {
        let age: Option<i64> = row.try_get("open_ms")?;
        Ok(LockHolder {
            pid: Some(row.try_get::<i32>("pid")?).filter(|pid| *pid != 0),
            user: text(row, "usename")?,
            application: text(row, "application_name")?,
            open_for: age.map(|ms| Duration::from_millis(ms.max(0).unsigned_abs())),
        })
    };
    Ok(Some((text(first, "lock")?, rows.iter().map(holder).collect::<Result<_, ColumnError>>()?)))
}

fn record(migration: &Migration) -> String {
    // All three are constants of this program.
    let Migration { version, name, oldest_compatible, .. } = migration;
    format!(
        "INSERT INTO tenure.migrations (version, name, oldest_compatible) VALUES ({version}, '{name}', {oldest_compatible})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_on_its_own_version_or_the_one_before() {
        assert!((SCHEMA.version() - 1..=SCHEMA.version()).contains(&SCHEMA.oldest_schema));
        for migration in MIGRATIONS {
            let version = migration.version;
            assert!((version - 1..=version).contains(&migration.oldest_compatible), "{}", migration.name);
        }
    }
}
