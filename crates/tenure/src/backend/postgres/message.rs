//! A call: statements that are one transaction and one round trip.
//!
//! Every value goes as a parameter of its statement and never in the text: the server logs the text of a statement that
//! fails, and not its parameters.
//!
//! Planning a statement costs several times what running it does, and a call that hands over a leadership should not
//! wait for it. So a connection that leads straight to the server keeps the statements prepared, under names made of their
//! text ([`Connection::call`]). Behind a pooler in transaction mode the next call may run on another server connection, so
//! there the statements have no names, and the functions of the schema keep the plans that matter.

use std::borrow::Cow;

use sqlx::{AssertSqlSafe, PgConnection};
use tenure_core::port::{StoreError, Trouble};

use super::Queries;
use super::error::PgError;
use super::value::{Value, without_comments};
#[cfg(doc)]
use super::wire::Connection;
use super::wire::{PgRow, Statement};

/// Settings of a call's transaction, and the process that executes it.
///
/// - `synchronous_commit`: what was answered must survive a crash of the server, whatever the role's default is: a token
///   that was granted and forgotten would be granted again, and a beat that was counted and forgotten would be missed by
///   others too soon.
/// - `lock_timeout`: how long any call waits for a lock of another transaction. A call that its caller gave up goes on in
///   the server, which does not look at the socket while it waits: without a bound, the retries of a beat that can not get
///   through would pile up there until no connection is left.
/// - `plan_cache_mode`, `jit`: plan once, not for each set of arguments, since every statement here finds its rows by keys;
///   and do not compile what touches a few rows. Where the planner knows nothing of the tables yet it thinks that worth
///   while, and the keeper's look took seconds.
const DURABLE: &str = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.set_config('synchronous_commit', 'on', true), \
    pg_catalog.set_config('lock_timeout', '1000', true), \
    pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true), pg_catalog.set_config('jit', 'off', true)";

/// The same for a release, which may be forgotten: the lease is then held by a session that gives it back, or falls silent.
/// And it is on the disk before the next grant is, since that comes later in the log.
const LAZY: &str = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.set_config('synchronous_commit', 'off', true), \
    pg_catalog.set_config('lock_timeout', '1000', true), \
    pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true), pg_catalog.set_config('jit', 'off', true)";

/// Each statement must see what those before it waited for, which a snapshot for the whole transaction would not, whatever
/// a role's default says.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// In front of what strict mode must not lose.
pub(super) const STRICT: &str = "SELECT tenure.strict()";

/// A message, being written.
pub(super) struct Message<'q> {
    queries: &'q Queries,
    statements: Vec<Statement<'q>>,
    /// Whether the statements begin a transaction that is to be committed after them.
    begins: bool,
    /// Whether the first statement says which process executes it.
    process: bool,
}

impl<'q> Message<'q> {
    /// A message for somebody else's transaction, whose settings are not ours.
    pub(super) fn for_user(queries: &'q Queries) -> Self {
        Message { queries, statements: Vec::new(), begins: false, process: false }
    }

    /// A transaction of its own.
    pub(super) fn new(queries: &'q Queries) -> Self {
        Message { process: true, ..Message::for_user(queries) }.silently("settings", DURABLE)
    }

    /// A transaction of its own in which later statements see what earlier ones waited for.
    pub(super) fn fresh(queries: &'q Queries) -> Self {
        Message { begins: true, process: true, ..Message::for_user(queries) }
            .silently("begin", BEGIN)
            .silently("settings", DURABLE)
    }

    /// A transaction of its own that does not wait for the disk.
    pub(super) fn lazy(queries: &'q Queries) -> Self {
        Message { process: true, ..Message::for_user(queries) }.silently("settings", LAZY)
    }

    /// A transaction of its own that waits for locks for as long as it takes, with a snapshot for each statement.
    pub(super) fn waiting(queries: &'q Queries) -> Self {
        Message { begins: true, ..Message::for_user(queries) }.silently("begin", BEGIN)
    }

    /// The next statement, whose rows are not wanted.
    fn silently(mut self, name: &str, sql: &'static str) -> Self {
        self.push(name, sql.into(), Vec::new(), false);
        self
    }

    /// The next statement, if it is wanted.
    pub(super) fn plain(mut self, sql: &'static str, wanted: bool) -> Self {
        if wanted {
            self.push("plain", sql.into(), Vec::new(), true);
        }
        self
    }

    /// The next statement, with values.
    pub(super) fn with(mut self, sql: &'static str, values: &[Value<'_>]) -> Result<Self, StoreError> {
        let values = values.iter().map(text).collect::<Result<_, _>>()?;
        self.push("plain", sql.into(), values, true);
        Ok(self)
    }

    /// The next statement, by its name.
    pub(super) fn then(mut self, name: &str, values: &[Value<'_>]) -> Result<Self, StoreError> {
        let values = values.iter().map(text).collect::<Result<_, _>>()?;
        self.push(name, self.queries.get(name).into(), values, true);
        Ok(self)
    }

    fn push(&mut self, name: &str, sql: Cow<'q, str>, values: Vec<Option<String>>, answers: bool) {
        let id = format!("tenure_{name}_{:016x}", fingerprint(&sql));
        self.statements.push(Statement { id, sql, values, answers });
    }

    /// All that is to be sent.
    pub(super) fn finished(self) -> Finished<'q> {
        let this = if self.begins { self.silently("commit", "COMMIT") } else { self };
        Finished { statements: this.statements, process: this.process }
    }

    /// Runs the statements one by one in the transaction on the user's connection, and returns the rows of each.
    ///
    /// Without names, so that it works behind a pooler in transaction mode. The values are texts there, so the statements
    /// that are used in this way cast each parameter that is not one.
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

/// A message that is ready to be sent, as often as it takes.
pub(super) struct Finished<'q> {
    pub(super) statements: Vec<Statement<'q>>,
    /// Whether one of the statements that do not answer says which process executes it.
    pub(super) process: bool,
}

impl Finished<'_> {
    /// The same, for longer than the queries that it is made of.
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
            Trouble::Request,
            "PostgreSQL can not store the character NUL, which a name, an id or the metadata has; leave it out",
        ));
    }
    Ok(Some(text))
}

/// A number that two different statements of one name do not share (FNV-1a).
fn fingerprint(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_texts_and_nul_is_refused() {
        let value = |value: Value<'_>| text(&value).unwrap();
        assert_eq!(value("it's \\ here".into()).as_deref(), Some("it's \\ here"));
        assert_eq!(value(Value::Int(i64::MIN)).as_deref(), Some("-9223372036854775808"));
        assert_eq!(value(Value::Bool(true)).as_deref(), Some("true"));
        assert_eq!(value(Value::Json("[]".into())).as_deref(), Some("[]"));
        assert_eq!(value(Value::Null), None);
        assert_eq!(text(&Value::from("a\0b")).unwrap_err().kind, Trouble::Request);
    }
}
