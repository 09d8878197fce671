//! Whole transactions in one go: a take, and the end of a session.
//!
//! Every statement that is sent on its own is a trip to the connection's thread and back, and ten of those cost more than the
//! statements themselves. So these are sent as one. They share their arguments, `$1` to `$13`, and each decides by what
//! those before it left in the tables whether it has anything to do.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use tenure_core::port::{Expire, Take, Via, Wake};
use tenure_core::{SessionId, Token};

use super::change::number;
use super::connection::{Done, Transaction, election_of, query};
use super::lock::Life;
use super::{Sqlite, wake};
use crate::runtime;

/// After how many terms of a slot the history is pruned to the last hundred, which is all that is ever shown of it.
const PRUNE_EVERY: u64 = 16;

/// What follows from a session's end: its row says by then that it is over.
const FREE_ALL: [&str; 4] = ["lease_free", "candidate_clear", "request_clear_session", "term_end_session"];

/// What the statements are told.
#[derive(Default)]
struct Arguments<'a> {
    /// `$1` namespace, `$2` name, `$3` slot, `$4` token and `$5` holder as seen, `$6` who takes. (`$7` is the time.)
    take: Option<&'a Take>,
    /// `$8` a session that is over.
    over: Option<&'a SessionId>,
    /// `$9` the beat at which it was seen to stand still.
    beat: Option<i64>,
    /// `$10` how its leases become free.
    via: Option<Via>,
    /// `$11` how its terms end.
    how: &'a str,
    /// `$13` the epoch in which it was seen to be over. (`$12` is that of the take.)
    epoch: Option<u32>,
}

impl Sqlite {
    /// Ends a session by its own wish.
    pub(super) async fn end_session(&self, session: &SessionId) -> sqlx::Result<()> {
        let arguments =
            Arguments { over: Some(session), via: Some(Via::Release), how: "ended", ..Arguments::default() };
        let names = [&["session_end"], &FREE_ALL[..]].concat();
        let done = self.run(&names, &arguments).await?;
        if done[0].changed > 0 {
            self.follow_up(Some(session), &[Wake::Ended(session.clone())]);
        }
        Ok(())
    }

    /// Declares a session dead, if it is.
    pub(super) async fn expire_session(&self, expire: &Expire) -> sqlx::Result<()> {
        if !self.may_expire(expire) {
            return Ok(());
        }
        let names = [&["session_expire"], &FREE_ALL[..]].concat();
        let done = self.run(&names, &Arguments::expiring(expire)).await?;
        if done[0].changed > 0 {
            self.follow_up(Some(&expire.session), &changed(&done)?);
        }
        Ok(())
    }

    /// Takes a lease; `None` if what was seen is no longer so. A session whose beat stood still is dead whether or not the
    /// lease can be had.
    pub(super) async fn take_lease(&self, take: &Take) -> sqlx::Result<Option<Token>> {
        let expire = take.expire.as_ref().filter(|expire| self.may_expire(expire));
        let arguments = expire.map(Arguments::expiring).unwrap_or_default();
        let arguments = Arguments { take: Some(take), ..arguments };
        let mut names = vec!["lease_take", "term_begin", "epoch_note_grant"];
        if take.token.as_u64() % PRUNE_EVERY == PRUNE_EVERY - 1 {
            names.push("term_prune");
        }
        if expire.is_some() {
            names.insert(0, "session_expire");
            names.extend(FREE_ALL);
        }
        let done = self.run(&names, &arguments).await?;
        let expired = expire.filter(|_| done[0].changed > 0).map(|expire| expire.session.clone());
        let grant = &done[usize::from(expire.is_some())];
        let token = grant.rows.first().map(|row| row.try_get::<i64, _>("token")).transpose()?;
        let mut wakes = changed(&done)?;
        if token.is_some() {
            wakes.push(Wake::Changed(take.election.clone()));
        }
        let noted =
            done.iter().flat_map(|done| &done.rows).find_map(|row| row.try_get::<i64, _>("noted").ok());
        // The leader need not wait until the others have been told.
        let store = self.clone();
        tokio::spawn(async move {
            store.follow_up(expired.as_ref(), &wakes);
            if let Some(noted) = noted {
                store.mark_epoch(noted);
            }
        });
        Ok(token.map(|token| Token::from_u64(token.cast_unsigned())))
    }

    /// A hint that a process is dead is not believed, however it came: the kernel is asked, here and now. Before the
    /// transaction is as good as in it, since who is dead stays dead.
    fn may_expire(&self, expire: &Expire) -> bool {
        expire.beat.is_some() || self.inner.folder.life(&expire.session) == Life::Dead
    }

    /// Runs these statements as one transaction, and says what each has done.
    async fn run(&self, names: &[&str], arguments: &Arguments<'_>) -> sqlx::Result<Vec<Done>> {
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
            .bind(arguments.over.map(SessionId::as_str))
            .bind(arguments.beat)
            .bind(arguments.via.map(|via| via.as_str()))
            .bind(arguments.how)
            .bind(take.map(|take| take.epoch))
            .bind(arguments.epoch);
        Transaction::run(&self.inner.pools.writes, query).await
    }

    /// After the commit: removes the lock file of a session that is over, and tells the others.
    fn follow_up(&self, over: Option<&SessionId>, wakes: &[Wake]) {
        if let Some(session) = over {
            self.inner.folder.remove(session);
        }
        wake::ring(&self.inner.folder, wakes);
    }
}

impl<'a> Arguments<'a> {
    fn expiring(expire: &'a Expire) -> Self {
        Arguments {
            take: None,
            over: Some(&expire.session),
            beat: expire.beat.map(u64::cast_signed),
            via: Some(Via::Takeover),
            how: "expired",
            epoch: Some(expire.epoch),
        }
    }
}

/// A hint for each election in which somebody's end changed something.
fn changed(done: &[Done]) -> sqlx::Result<Vec<Wake>> {
    let names_an_election = |row: &&SqliteRow| row.try_get_raw("election").is_ok();
    let rows = done.iter().flat_map(|done| &done.rows).filter(names_an_election);
    let mut touched = rows.map(election_of).collect::<sqlx::Result<Vec<_>>>()?;
    touched.sort();
    touched.dedup();
    Ok(touched.into_iter().map(Wake::Changed).collect())
}
