//! The schema's versions. Programs never migrate PostgreSQL by themselves: `tenure migrate up` does, or a DBA with the
//! printed script.
//!
//! An `ALTER TABLE` needs an exclusive lock. While it waits for one, every later statement on that table queues behind it,
//! heartbeats included. So a migration waits for each lock for [`LOCK_TIMEOUT`] only, rolls back, and tries again after a
//! pause in which heartbeats get through. It changes nothing until it has all locks.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::port::{StoreError, Trouble};

use super::error::{PgError, explain, garbled};
use super::lane::last_rows;
use super::listen::locked;
use super::message::Message;
use super::value::Value;
use super::wire::{ColumnError, Connection, PgRow};
use super::{Postgres, QUERIES};
use crate::backend::migrations::{
    Blocked, LockHolder, Migrate, MigrateOptions, Migration, Schema, SchemaStatus,
};
use crate::backend::schema;
use crate::runtime::{jittered, now};

/// How long an attempt waits for a lock on a table. Heartbeats on that table queue for as long: it must be far below any
/// usual lease.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// How long an attempt waits for another program that migrates. Nothing queues behind this wait.
const TURN_TIMEOUT: Duration = Duration::from_secs(1);

/// After how long the server ends the transaction of a program that is stopped in the middle of a migration.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest and the longest pause between two attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));

/// How often the locks are looked at while an attempt runs.
const LOOK: Duration = Duration::from_millis(15);

/// The schema that this program was built for.
pub(super) const SCHEMA: Schema = Schema { migrations: MIGRATIONS, oldest_schema: 5 };

/// All that there are, in order.
const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "elections",
        sql: include_str!("migrations/0001_elections.sql"),
        oldest_compatible: 1,
    },
    Migration {
        version: 2,
        name: "server",
        sql: include_str!("migrations/0002_server.sql"),
        oldest_compatible: 2,
    },
    Migration {
        version: 3,
        name: "claims",
        sql: concat!(
            include_str!("migrations/0003/tables.sql"),
            include_str!("migrations/0003/submit.sql"),
            include_str!("migrations/0003/claim.sql"),
            include_str!("migrations/0003/settle.sql"),
            include_str!("migrations/0003/tend.sql"),
            include_str!("migrations/0003/pools.sql"),
            include_str!("migrations/0003/views.sql"),
            include_str!("migrations/0003/api.sql"),
        ),
        oldest_compatible: 3,
    },
    Migration {
        version: 4,
        name: "events",
        sql: concat!(
            include_str!("migrations/0004/tables.sql"),
            include_str!("migrations/0004/publish.sql"),
            include_str!("migrations/0004/read.sql"),
            include_str!("migrations/0004/groups.sql"),
            include_str!("migrations/0004/tend.sql"),
            include_str!("migrations/0004/views.sql"),
            include_str!("migrations/0004/api.sql"),
        ),
        oldest_compatible: 4,
    },
    Migration {
        version: 5,
        name: "schedules",
        sql: concat!(
            include_str!("migrations/0005/tables.sql"),
            include_str!("migrations/0005/fire.sql"),
            include_str!("migrations/0005/set.sql"),
            include_str!("migrations/0005/views.sql"),
        ),
        oldest_compatible: 5,
    },
];

#[async_trait]
impl Migrate for Postgres {
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError> {
        let mut status = self.status().await?;
        let message = Message::for_user(&QUERIES).then("schema_objects", &[])?;
        let rows = self.shared.calls.run(message).await?;
        let present = present(&rows).map_err(|error| garbled("its tables", error))?;
        schema::note_missing(&mut status, &self.shared.schema, &present);
        Ok(status)
    }

    async fn migrate_with(
        &self,
        options: MigrateOptions<'_>,
    ) -> Result<Vec<(i64, &'static str)>, StoreError> {
        let endpoint = &self.shared.endpoint;
        let explained = |error: &PgError| explain(error, &endpoint.place);
        // A connection of its own: if this future is dropped half-way, the transaction ends with the connection.
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
                return Err(gave_up(&step, &blocked, &endpoint.place));
            }
            tokio::time::sleep(jittered(pause).min(options.timeout - blocked.waited)).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// `lock_not_available`: `lock_timeout` has passed.
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// `deadlock_detected`.
const DEADLOCK_DETECTED: &str = "40P01";

/// What an attempt was doing, and the last lock that an attempt was seen to wait for.
#[derive(Default)]
struct Attempt {
    step: String,
    blocked: Blocked,
}

fn gave_up(step: &str, blocked: &Blocked, place: &str) -> StoreError {
    StoreError::new(
        Trouble::Timeout,
        format!(
            "PostgreSQL at {place}: {step} did not get its locks within {:.1?} in {} attempts: {blocked}. Nothing was \
             changed, and running programs go on with the schema as it is. Wait for that transaction to end, or end it \
             (pg_terminate_backend), and run `tenure migrate up` again",
            blocked.waited, blocked.attempts
        ),
    )
}

/// What stands at the beginning of the script for roles.
const ABOUT_ROLES: &str = "\
-- Roles for Tenure. Run this as a superuser, in the database that Tenure uses or shall use:
--
--     tenure migrate sql --roles --store postgres: | psql DATABASE
--
--   tenure_owner      owns the tables: for `tenure migrate up`, and for nothing else
--   tenure_server     for `tenure serve` and `tenure token`: as tenure_runtime, and manages access tokens
--   tenure_runtime    for programs, workers and the CLI: elections, queues, events and schedules; no access tokens
--   tenure_publisher  for programs that only publish events, in their own transactions: calls tenure.publish, and has no
--                     right on any table
--   tenure_reader     for people and monitoring: reads everything but secrets, and writes nothing
--
-- No role but tenure_owner can change or delete entries of the audit.
--
-- They have no passwords yet: \\password tenure_runtime sets one. Or keep roles of your own, and make them members:
-- GRANT tenure_runtime TO app. Run this as often as you like; from then on `tenure migrate up` keeps the grants up to
-- date by itself.

";

/// The roles that Tenure needs, and what each of them may do.
pub(crate) fn roles() -> String {
    let [lock, make, grant] =
        ["schema_lock", "roles_make", "roles_grant"].map(|name| format!("{};\n", QUERIES.get(name)));
    format!("{ABOUT_ROLES}BEGIN;\n{lock}{make}{SHORT_WAITS}{grant}COMMIT;\n")
}

/// All migrations as one script that also records them.
pub(crate) fn script() -> String {
    let statement = |name: &str| format!("{};\n", QUERIES.get(name));
    let mut script =
        format!("BEGIN;\n{}{SHORT_WAITS}{}", statement("schema_lock"), statement("schema_create"));
    for migration in MIGRATIONS {
        script.push_str(&format!("\n{}\n{};\n", migration.sql, record(migration)));
    }
    script + "\n" + &statement("roles_grant") + "COMMIT;\n"
}

/// What a script for people says about locks.
const SHORT_WAITS: &str = "\
-- While a statement waits for a lock on a table, heartbeats queue behind it. If this fails, nothing has changed: try again.
SET LOCAL lock_timeout = '500ms';
";

impl Postgres {
    /// Compares the recorded version with what the program needs. Does not look for missing objects.
    pub(super) async fn status(&self) -> Result<SchemaStatus, StoreError> {
        let message = Message::for_user(&QUERIES).then("schema_version", &[])?;
        let recorded = match self.shared.calls.try_run(message).await? {
            Ok(rows) => recorded(&rows),
            Err(error) if matches!(error.sqlstate(), Some("42P01" | "3F000")) => Ok(None),
            Err(error) => return Err(explain(&error, &self.shared.endpoint.place)),
        };
        let recorded = recorded.map_err(|error| garbled("its version", error))?;
        Ok(schema::status(&self.shared.schema, recorded))
    }

    /// Tries once, in one transaction, which is pinned to one server connection even behind a pooler.
    async fn attempt(
        &self,
        connection: &mut Connection,
        attempt: &Mutex<Attempt>,
    ) -> Result<Result<Vec<(i64, &'static str)>, StoreError>, PgError> {
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {}; \
             SET LOCAL idle_in_transaction_session_timeout = {}; SELECT pg_backend_pid() AS pid",
            TURN_TIMEOUT.as_millis(),
            IDLE_TIMEOUT.as_millis()
        );
        let rows = last_rows(connection, &begin).await?;
        let pid: i32 = rows.first().map_or(Ok(0), |row| row.try_get("pid")).map_err(unreadable)?;
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
        let doing = |step: String| locked(attempt).step = step;
        doing("the start of a migration".into());
        last_rows(connection, QUERIES.get("schema_lock")).await?;
        let short = format!("SET LOCAL lock_timeout = {}", LOCK_TIMEOUT.as_millis());
        for statement in [&short, QUERIES.get("schema_create")] {
            last_rows(connection, statement).await?;
        }
        let rows = last_rows(connection, QUERIES.get("schema_version")).await?;
        let mut status = schema::status(&self.shared.schema, recorded(&rows).map_err(unreadable)?);
        let rows = last_rows(connection, QUERIES.get("schema_objects")).await?;
        schema::note_missing(&mut status, &self.shared.schema, &present(&rows).map_err(unreadable)?);
        if let Err(error) = schema::check_migratable(&status, &self.shared.endpoint.place) {
            return Ok(Err(error));
        }
        if status.found > Some(status.wanted) {
            // Not even grants: an older program does not know what newer tables need.
            return Ok(Ok(Vec::new()));
        }
        let pending = |m: &&Migration| status.pending.contains(&(m.version, m.name));
        for migration in self.shared.schema.migrations.iter().filter(pending) {
            doing(format!("migration {:04} {}", migration.version, migration.name));
            last_rows(connection, migration.sql).await?;
            last_rows(connection, &record(migration)).await?;
        }
        doing("granting rights to the roles".into());
        for statement in [QUERIES.get("roles_grant"), "COMMIT"] {
            last_rows(connection, statement).await?;
        }
        Ok(Ok(status.pending))
    }

    /// Notes what the server process waits for, and who holds it. After a lock timeout the server does not tell.
    async fn watch_locks(&self, pid: i32, attempt: &Mutex<Attempt>) -> Infallible {
        loop {
            tokio::time::sleep(LOOK).await;
            let look = Message::for_user(&QUERIES).then("schema_blockers", &[Value::Int(pid.into())]);
            if let Ok(look) = look
                && let Ok(rows) = self.shared.calls.run(look).await
                && let Ok(Some((lock, holders))) = blockers(&rows)
            {
                let blocked = &mut locked(attempt).blocked;
                (blocked.lock, blocked.holders) = (lock, holders);
            }
        }
    }
}

fn unreadable(error: ColumnError) -> PgError {
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

/// What is waited for, and by whom it is held. `None` if nothing is waited for.
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
