//! A message: statements that run in one transaction and one round trip.
//!
//! Every value is a parameter of its statement and never part of the text: the server logs the text of a statement that
//! fails, and not its parameters.
//!
//! Planning a statement takes several times as long as running it, and a takeover should not wait for it. So a direct
//! connection keeps the statements prepared, under names derived from their text ([`Connection::call`]). Behind a pooler
//! in transaction mode the next call may run on another server connection: there the statements have no names, and the
//! functions of the schema keep the important plans.

use std::borrow::Cow;

use sqlx::{AssertSqlSafe, PgConnection};
use tenure_core::port::{ErrorKind, StoreError};

use super::Queries;
use super::error::PgError;
use super::value::{Value, without_comments};
#[cfg(doc)]
use super::wire::Connection;
use super::wire::{PgRow, Statement};

/// Sets the options of a call's transaction, and returns the id of the server process that executes it.
///
/// - `synchronous_commit`: a confirmed result must survive a crash of the server, whatever the default of the role is. A
///   lost grant would be repeated with the same token, and a lost heartbeat would let others take over too early.
/// - `lock_timeout`: limits the wait for a lock of another transaction. A call that its caller dropped continues in the
///   server, which does not check the socket while it waits: without a limit, the retries of a blocked heartbeat would
///   accumulate until no connection is left.
/// - `plan_cache_mode`, `jit`: plan once and not for each set of arguments, since every statement finds its rows by keys;
///   and do not compile statements that read a few rows. Without statistics the planner would compile them, and
///   maintenance took seconds.
const DURABLE: &str = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.set_config('synchronous_commit', 'on', true), \
    pg_catalog.set_config('lock_timeout', '1000', true), \
    pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true), pg_catalog.set_config('jit', 'off', true)";

/// As [`DURABLE`], for the release of a lease: the commit does not wait for the disk. If a crash loses the release,
/// the session still holds the lease, and releases it again or expires. The WAL orders the release before the next
/// grant, so it is on disk when that grant is.
const LAZY: &str = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.set_config('synchronous_commit', 'off', true), \
    pg_catalog.set_config('lock_timeout', '1000', true), \
    pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true), pg_catalog.set_config('jit', 'off', true)";

/// Isolation level of every call, whatever the default of the role is: each statement must see the changes that
/// earlier statements waited for. At a higher level, the whole transaction would read one older snapshot.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// The first statement of a transaction that must not be lost in strict mode.
pub(super) const REQUIRE_SYNC_STANDBY: &str = "SELECT tenure.require_sync_standby()";

/// A message under construction.
pub(super) struct Message<'q> {
    queries: &'q Queries,
    statements: Vec<Statement<'q>>,
    /// Whether the statements start a transaction, which a COMMIT must end.
    begins: bool,
    /// Whether a statement returns the server process that executes it.
    process: bool,
}

impl<'q> Message<'q> {
    /// A message for a transaction of the user, whose settings stay unchanged.
    pub(super) fn for_user(queries: &'q Queries) -> Self {
        Message { queries, statements: Vec::new(), begins: false, process: false }
    }

    /// A transaction of its own.
    pub(super) fn new(queries: &'q Queries) -> Self {
        Message { process: true, ..Message::for_user(queries) }.discarding("settings", DURABLE)
    }

    /// A transaction of its own in which later statements see the changes that earlier ones waited for.
    pub(super) fn fresh(queries: &'q Queries) -> Self {
        Message { begins: true, process: true, ..Message::for_user(queries) }
            .discarding("begin", BEGIN)
            .discarding("settings", DURABLE)
    }

    /// A transaction of its own that does not wait for the disk.
    pub(super) fn lazy(queries: &'q Queries) -> Self {
        Message { process: true, ..Message::for_user(queries) }.discarding("settings", LAZY)
    }

    /// A transaction of its own that waits for locks without a limit, with a snapshot for each statement.
    pub(super) fn waiting(queries: &'q Queries) -> Self {
        Message { begins: true, ..Message::for_user(queries) }.discarding("begin", BEGIN)
    }

    /// Add a statement whose rows are discarded.
    fn discarding(mut self, name: &str, sql: &'static str) -> Self {
        self.push(name, sql.into(), Vec::new(), false);
        self
    }

    /// Add a statement, if `wanted`.
    pub(super) fn plain(mut self, sql: &'static str, wanted: bool) -> Self {
        if wanted {
            self.push("plain", sql.into(), Vec::new(), true);
        }
        self
    }

    /// Add a statement with values.
    pub(super) fn with(mut self, sql: &'static str, values: &[Value<'_>]) -> Result<Self, StoreError> {
        let values = values.iter().map(text).collect::<Result<_, _>>()?;
        self.push("plain", sql.into(), values, true);
        Ok(self)
    }

    /// Add the named statement with values.
    pub(super) fn then(mut self, name: &str, values: &[Value<'_>]) -> Result<Self, StoreError> {
        let values = values.iter().map(text).collect::<Result<_, _>>()?;
        self.push(name, self.queries.get(name).into(), values, true);
        Ok(self)
    }

    fn push(&mut self, name: &str, sql: Cow<'q, str>, values: Vec<Option<String>>, answers: bool) {
        let id = format!("tenure_{name}_{:016x}", fingerprint(&sql));
        self.statements.push(Statement { id, sql, values, answers });
    }

    /// The complete message.
    pub(super) fn finished(self) -> Finished<'q> {
        let this = if self.begins { self.discarding("commit", "COMMIT") } else { self };
        Finished { statements: this.statements, process: this.process }
    }

    /// Run the statements one by one in the transaction on the user's connection, and return the rows of each.
    ///
    /// Without prepared names, so that it works behind a pooler in transaction mode. All values are bound as text, so these
    /// statements cast each parameter of another type.
    pub(super) async fn run_on(self, conn: &mut PgConnection) -> Result<Vec<Vec<PgRow>>, PgError> {
        let mut all = Vec::with_capacity(self.statements.len());
        for statement in self.statements {
            let sql = without_comments(&statement.sql);
            let mut query = sqlx::query::<sqlx::Postgres>(AssertSqlSafe(sql)).persistent(false);
            for value in statement.values {
                query = query.bind(value);
            }
            let rows = query.fetch_all(&mut *conn).await?;
            all.push(rows.into_iter().map(PgRow::from).collect());
        }
        Ok(all)
    }
}

/// A complete message, which can be sent repeatedly.
pub(super) struct Finished<'q> {
    pub(super) statements: Vec<Statement<'q>>,
    /// Whether a discarded statement returns the server process that executes it.
    pub(super) process: bool,
}

impl Finished<'_> {
    /// Clone the borrowed texts.
    pub(super) fn into_owned(self) -> Finished<'static> {
        let owned = |statement: Statement<'_>| {
            let Statement { id, sql, values, answers } = statement;
            Statement { id, sql: Cow::Owned(sql.into_owned()), values, answers }
        };
        Finished { statements: self.statements.into_iter().map(owned).collect(), process: self.process }
    }
}

/// A value in text form.
fn text(value: &Value<'_>) -> Result<Option<String>, StoreError> {
    let text = match value {
        Value::Text(text) => (*text).to_owned(),
        Value::Json(json) => json.clone(),
        Value::Int(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Null => return Ok(None),
    };
    if text.contains('\0') {
        return Err(StoreError::new(
            ErrorKind::Request,
            "PostgreSQL cannot store the character NUL in a name, an id or metadata; remove it",
        ));
    }
    Ok(Some(text))
}

/// Hash that tells apart statements of the same name (FNV-1a).
fn fingerprint(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_texts_and_nul_is_rejected() {
        let value = |value: Value<'_>| text(&value).unwrap();
        assert_eq!(value("it's \\ here".into()).as_deref(), Some("it's \\ here"));
        assert_eq!(value(Value::Int(i64::MIN)).as_deref(), Some("-9223372036854775808"));
        assert_eq!(value(Value::Bool(true)).as_deref(), Some("true"));
        assert_eq!(value(Value::Json("[]".into())).as_deref(), Some("[]"));
        assert_eq!(value(Value::Null), None);
        assert_eq!(text(&Value::from("a\0b")).unwrap_err().kind, ErrorKind::Request);
    }
}
