//! A call: one message, one transaction, one round trip.
//!
//! Planning a statement costs several times what running it does, and a call that hands over a leadership should not
//! wait for it. So statements are prepared after all, but in a way that keeps no state anybody depends on: by SQL's own
//! `PREPARE`, under a name made of the statement's text. Whoever finds the name on a connection, through whatever
//! pooler, finds the same statement, whichever client prepared it. Where it is not there the message fails as a whole
//! (SQLSTATE 26000), nothing has happened, and it is sent again with the statements in front (`Lane`).

use super::Queries;
use super::literal::{Value, render, without_comments, write};
use tenure_core::port::StoreError;

/// How long any call waits for a lock of another transaction. A call that its caller gave up goes on in the server, which
/// does not look at the socket while it waits: without a bound, the retries of a beat that can not get through would pile
/// up there until no connection is left.
const BOUNDED_WAIT: &str = "SET LOCAL lock_timeout = 1000;\n";

/// Several statements in one message are one transaction. Each must see what those before it waited for, which a
/// snapshot for the whole transaction would not, whatever a role's default says.
pub(super) const FRESH_SNAPSHOTS: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;\n";

/// What was answered must survive a crash of the server, whatever the role's default is: a token that was granted and
/// forgotten would be granted again, and a beat that was counted and forgotten would be missed by others too soon.
const DURABLE: &str = "SET LOCAL synchronous_commit = on;\n";

/// A release may be forgotten: the lease is then held by a session that gives it back, or falls silent. And it is on the
/// disk before the next grant is, since that comes later in the log.
const LAZY: &str = "SET LOCAL synchronous_commit = off;\n";

/// Plan once, not for each set of arguments: every statement here finds its rows by keys. And do not compile what touches a few
/// rows: where the planner knows nothing of the tables yet it thinks that worth while, and the keeper's look took seconds.
const PLAN_ONCE: &str = "SET LOCAL plan_cache_mode = force_generic_plan;\nSET LOCAL jit = off;\n";

/// In front of what strict mode must not lose.
pub(super) const STRICT: &str = "SELECT tenure.strict()";

/// A message, being written.
pub(super) struct Message<'q> {
    queries: &'q Queries,
    /// Settings of the transaction.
    head: String,
    /// Makes the statements of `body` known to a connection that does not know them.
    prepare: String,
    body: String,
    prepared: bool,
}

impl<'q> Message<'q> {
    /// A message for somebody else's transaction, whose settings and connection are not ours.
    pub(super) fn for_user(queries: &'q Queries) -> Self {
        Message { queries, head: String::new(), prepare: String::new(), body: String::new(), prepared: false }
    }

    /// A transaction of its own.
    pub(super) fn new(queries: &'q Queries) -> Self {
        let head = [DURABLE, BOUNDED_WAIT, PLAN_ONCE].concat();
        Message { head, prepared: true, ..Message::for_user(queries) }
    }

    /// A transaction of its own in which later statements see what earlier ones waited for.
    pub(super) fn fresh(queries: &'q Queries) -> Self {
        let head = [FRESH_SNAPSHOTS, DURABLE, BOUNDED_WAIT, PLAN_ONCE].concat();
        Message { head, prepared: true, ..Message::for_user(queries) }
    }

    /// A transaction of its own that does not wait for the disk.
    pub(super) fn lazy(queries: &'q Queries) -> Self {
        let head = [LAZY, BOUNDED_WAIT, PLAN_ONCE].concat();
        Message { head, prepared: true, ..Message::for_user(queries) }
    }

    /// The next statement, if it is wanted.
    pub(super) fn plain(mut self, statement: &str, wanted: bool) -> Self {
        if wanted {
            self.body.push_str(statement);
            self.body.push_str(";\n");
        }
        self
    }

    /// The next statement, by its name.
    pub(super) fn then(mut self, name: &str, values: &[Value<'_>]) -> Result<Self, StoreError> {
        let text = self.queries.get(name);
        if !self.prepared {
            let statement = render(text, values)?;
            return Ok(self.plain(&statement, true));
        }
        let text = without_comments(text);
        let id = format!("tenure_{name}_{:016x}", fingerprint(&text));
        self.prepare.push_str(&format!(
            "IF NOT EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE name = '{id}') THEN \
             EXECUTE $tenure_statement$PREPARE {id} AS {text}$tenure_statement$; END IF;\n"
        ));
        self.body.push_str(&format!("EXECUTE {id}"));
        for (n, value) in values.iter().enumerate() {
            self.body.push_str(if n == 0 { "(" } else { ", " });
            write(&mut self.body, value)?;
        }
        self.body.push_str(if values.is_empty() { ";\n" } else { ");\n" });
        Ok(self)
    }

    /// For a connection that knows the statements.
    pub(super) fn quick(&self) -> String {
        [self.head.as_str(), &self.body].concat()
    }

    /// For one that does not. `None` if there is nothing to be known.
    pub(super) fn whole(&self) -> Option<String> {
        let prepare = format!("DO $tenure_do$ BEGIN\n{}END $tenure_do$;\n", self.prepare);
        (!self.prepare.is_empty()).then(|| [self.head.as_str(), &prepare, &self.body].concat())
    }
}

/// A number that two different statements of one name do not share (FNV-1a).
fn fingerprint(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
