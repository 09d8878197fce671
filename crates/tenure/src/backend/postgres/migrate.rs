//! The schema's versions. Nothing migrates by itself: `tenure migrate up` does, or a DBA with the printed script.

use async_trait::async_trait;
use sqlx::{PgConnection, Row};
use tenure_core::port::StoreError;

use super::error::{explain, garbled, sqlstate};
use super::lane::{connect, last_rows};
use super::literal::{Value, render};
use super::{Postgres, QUERIES};
use crate::backend::migrations::{Migrate, Migration, SchemaStatus};
use crate::backend::schema::status;

/// All that there are, in order.
const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "elections", sql: include_str!("migrations/0001_elections.sql") },
    Migration { version: 2, name: "server", sql: include_str!("migrations/0002_server.sql") },
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
    },
];

#[async_trait]
impl Migrate for Postgres {
    async fn schema_status(&self) -> Result<SchemaStatus, StoreError> {
        self.status().await
    }

    async fn migrate(&self) -> Result<Vec<(i64, &'static str)>, StoreError> {
        let shared = &self.shared;
        let connection = connect(&shared.options, shared.connect_timeout, &shared.place).await?;
        // A connection of its own: if this is given up half-way, the transaction goes with it.
        let applied = match connection {
            Ok(mut connection) => apply_pending(&mut connection).await,
            Err(error) => Err(error),
        };
        applied.map_err(|error| explain(&error, &shared.place))
    }
}

/// What stands at the beginning of the script for roles.
const ABOUT_ROLES: &str = "\
-- Roles for Tenure. Run this as a superuser, in the database that Tenure uses or shall use:
--
--     tenure migrate sql --roles --store postgres: | psql DATABASE
--
--   tenure_owner      owns the tables: for `tenure migrate up`, and for nothing else
--   tenure_runtime    for programs and servers: works with what is in the tables, and can not change the tables
--   tenure_publisher  for programs that only publish events, in their own transactions: calls tenure.publish, and has no
--                     right on any table
--   tenure_reader     for people and monitoring: looks at everything but the digests of secrets
--
-- They have no passwords yet: \\password tenure_runtime sets one. Or keep roles of your own, and make them members:
-- GRANT tenure_runtime TO app. Run this as often as you like; from then on `tenure migrate up` keeps the grants up to
-- date by itself.

";

/// The roles that Tenure needs, and what each of them may do.
pub(crate) fn roles() -> String {
    let statements =
        ["schema_lock", "roles_make", "roles_grant"].map(|name| format!("{};\n", QUERIES.get(name)));
    format!("{ABOUT_ROLES}BEGIN;\n{}COMMIT;\n", statements.concat())
}

/// All migrations as one script that also notes them down.
pub(crate) fn script() -> String {
    let statement = |name: &str| format!("{};\n", QUERIES.get(name));
    let mut script = format!("BEGIN;\n{}{}", statement("schema_lock"), statement("schema_create"));
    for migration in MIGRATIONS {
        script.push_str(&format!("\n{}\n{};\n", migration.sql, record(migration)));
    }
    script + "\n" + &statement("roles_grant") + "COMMIT;\n"
}

impl Postgres {
    /// Where the schema stands.
    pub(super) async fn status(&self) -> Result<SchemaStatus, StoreError> {
        let found = match self.shared.calls.try_run(QUERIES.get("schema_version").into()).await? {
            Ok(rows) => rows.first().and_then(|row| row.try_get(0).transpose()).transpose(),
            Err(error) if matches!(sqlstate(&error), Some("42P01" | "3F000")) => Ok(None),
            Err(error) => return Err(explain(&error, &self.shared.place)),
        };
        Ok(status(MIGRATIONS, found.map_err(|error| garbled("its version", error))?))
    }
}

/// One transaction, pinned to one server connection even behind a pooler, so the lock and the look hold until the end.
async fn apply_pending(connection: &mut PgConnection) -> sqlx::Result<Vec<(i64, &'static str)>> {
    for statement in ["BEGIN", QUERIES.get("schema_lock"), QUERIES.get("schema_create")] {
        last_rows(&mut *connection, statement.into()).await?;
    }
    let rows = last_rows(&mut *connection, QUERIES.get("schema_version").into()).await?;
    let found: Option<i64> = rows.first().map(|row| row.try_get(0)).transpose()?.flatten();
    let pending = status(MIGRATIONS, found).pending;
    for migration in MIGRATIONS.iter().filter(|m| pending.contains(&(m.version, m.name))) {
        last_rows(&mut *connection, migration.sql.into()).await?;
        last_rows(&mut *connection, record(migration)).await?;
    }
    for statement in [QUERIES.get("roles_grant"), "COMMIT"] {
        last_rows(&mut *connection, statement.into()).await?;
    }
    Ok(pending)
}

fn record(migration: &Migration) -> String {
    let values = [Value::Int(migration.version), migration.name.into()];
    render(QUERIES.get("schema_record"), &values).expect("a migration's name has no NUL")
}
