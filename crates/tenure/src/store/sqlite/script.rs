//! Scripts: whole transactions that are sent as one statement list. Taking a lease and ending a session are scripts.
//!
//! A statement that is sent alone costs a round trip to the thread of the connection, and ten round trips cost more than the
//! statements. The statements of a script share the parameters `$1` to `$13`. Each statement checks the tables to decide whether it
//! has an effect.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{ExpireSessionRequest, Notification, StartReason, TakeLeaseRequest};
use tenure_core::{SessionId, Token};

use super::connection::{StatementResult, Transaction, election_of, query};
use super::lock::LockState;
use super::write_transaction::number;
use super::{SqliteStore, fifo};
use crate::runtime;

/// The history of a slot is pruned to the last 100 terms after this many terms.
const PRUNE_EVERY: u64 = 16;

/// The statements that release everything of an ended session. They run after the row of the session has changed.
const END_SESSION: [&str; 4] = [
    "lease_release_session",
    "candidate_delete_session",
    "leader_request_delete_session",
    "term_end_session",
];

/// The parameters of the statements.
#[derive(Default)]
struct Arguments<'a> {
    /// `$1` namespace, `$2` election, `$3` slot, `$4` observed token, `$5` observed holder, `$6` session that takes the lease, `$12`
    /// epoch. (`$7` is the current time.)
    take: Option<&'a TakeLeaseRequest>,
    /// `$8` session that ends.
    ended_session: Option<&'a SessionId>,
    /// `$9` observed heartbeat count.
    heartbeat_count: Option<i64>,
    /// `$10` start reason of the next terms of its leases.
    start_reason: Option<StartReason>,
    /// `$11` end reason of its terms.
    end_reason: &'a str,
    /// `$13` epoch in which the session was observed.
    epoch: Option<u32>,
}

impl SqliteStore {
    /// End a session at its own request.
    pub(super) async fn end_session(&self, session: &SessionId) -> sqlx::Result<()> {
        let arguments = Arguments {
            ended_session: Some(session),
            start_reason: Some(StartReason::Release),
            end_reason: "ended",
            ..Arguments::default()
        };
        let names = [&["session_end"], &END_SESSION[..]].concat();
        let results = self.run(&names, &arguments).await?;
        if results[0].changed > 0 {
            self.after_commit(Some(session), &[Notification::SessionEnded(session.clone())]);
        }
        Ok(())
    }

    /// Expire a session, if its process is dead or its heartbeat count has not changed.
    pub(super) async fn expire_session(&self, expire: &ExpireSessionRequest) -> sqlx::Result<()> {
        if !self.may_expire(expire) {
            return Ok(());
        }
        let names = [&["session_expire"], &END_SESSION[..]].concat();
        let results = self.run(&names, &Arguments::expiring(expire)).await?;
        if results[0].changed > 0 {
            self.after_commit(Some(&expire.session), &changed_elections(&results)?);
        }
        Ok(())
    }

    /// Take a lease. `None` if the lease is not as observed. The observed silent holder expires even if another condition refuses the
    /// lease.
    pub(super) async fn take_lease(&self, take: &TakeLeaseRequest) -> sqlx::Result<Option<Token>> {
        let expire = take.expire.as_ref().filter(|expire| self.may_expire(expire));
        let arguments = expire.map(Arguments::expiring).unwrap_or_default();
        let arguments = Arguments { take: Some(take), ..arguments };
        let mut names = vec!["lease_take", "term_start", "epoch_count_grant"];
        if take.token.as_u64() % PRUNE_EVERY == PRUNE_EVERY - 1 {
            names.push("term_prune");
        }
        if expire.is_some() {
            names.insert(0, "session_expire");
            names.extend(END_SESSION);
        }
        let results = self.run(&names, &arguments).await?;
        let expired = expire.filter(|_| results[0].changed > 0).map(|expire| expire.session.clone());
        let grant = &results[usize::from(expire.is_some())];
        let token = grant.rows.first().map(|row| row.try_get::<i64, _>("token")).transpose()?;
        let mut notifications = changed_elections(&results)?;
        if token.is_some() {
            notifications.push(Notification::ElectionChanged(take.election.clone()));
        }
        let counted_writes = results
            .iter()
            .flat_map(|results| &results.rows)
            .find_map(|row| row.try_get::<i64, _>("counted_write_count").ok());
        // The leader does not wait for the notifications.
        let store = self.clone();
        tokio::spawn(async move {
            store.after_commit(expired.as_ref(), &notifications);
            if let Some(counted_writes) = counted_writes {
                store.write_epoch_mark(counted_writes);
            }
        });
        Ok(token.map(|token| Token::from_u64(token.cast_unsigned())))
    }

    /// Whether a session may expire. A claim that its process is dead counts only if the kernel confirms it now. The check may precede
    /// the transaction, because a dead process stays dead.
    fn may_expire(&self, expire: &ExpireSessionRequest) -> bool {
        expire.heartbeat_count.is_some()
            || self.inner.directory.lock_state(&expire.session) == LockState::Dead
    }

    /// Run these statements as one transaction and return their results.
    async fn run(&self, names: &[&str], arguments: &Arguments<'_>) -> sqlx::Result<Vec<StatementResult>> {
        let statements: Vec<&str> = names.iter().map(|name| self.queries.get(name)).collect();
        let script = Transaction::whole(&statements);
        let take = arguments.take;
        let query = query(&script)
            .bind(take.map(|take| take.election.namespace.as_str()))
            .bind(take.map(|take| take.election.name.as_str()))
            .bind(take.map(|take| take.slot))
            .bind(take.map(|take| number(take.token)))
            .bind(take.and_then(|take| take.holder.as_ref()).map(SessionId::as_str))
            .bind(take.map(|take| take.session.as_str()))
            .bind(runtime::wall_ms())
            .bind(arguments.ended_session.map(SessionId::as_str))
            .bind(arguments.heartbeat_count)
            .bind(arguments.start_reason.map(|start_reason| start_reason.as_str()))
            .bind(arguments.end_reason)
            .bind(take.map(|take| take.epoch))
            .bind(arguments.epoch);
        Transaction::run(&self.inner.pools.writes, query).await
    }

    /// Remove the lock file of an ended session, and send notifications.
    fn after_commit(&self, ended_session: Option<&SessionId>, notifications: &[Notification]) {
        if let Some(session) = ended_session {
            self.inner.directory.remove(session);
        }
        fifo::notify(&self.inner.directory, notifications);
    }
}

impl<'a> Arguments<'a> {
    fn expiring(expire: &'a ExpireSessionRequest) -> Self {
        Arguments {
            take: None,
            ended_session: Some(&expire.session),
            heartbeat_count: expire.heartbeat_count.map(u64::cast_signed),
            start_reason: Some(StartReason::Takeover),
            end_reason: "expired",
            epoch: Some(expire.epoch),
        }
    }
}

/// A notification for each election that the results name.
fn changed_elections(results: &[StatementResult]) -> sqlx::Result<Vec<Notification>> {
    let names_an_election = |row: &&SqliteRow| row.try_get_raw("election").is_ok();
    let rows = results.iter().flat_map(|results| &results.rows).filter(names_an_election);
    let mut touched = rows.map(election_of).collect::<sqlx::Result<Vec<_>>>()?;
    touched.sort();
    touched.dedup();
    Ok(touched.into_iter().map(Notification::ElectionChanged).collect())
}
