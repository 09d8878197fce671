//! A few connections for one kind of call.
//!
//! Not sqlx's pool, for two reasons. That pool pings a connection when it comes back, so each call would be two round
//! trips. And a call that is given up (the machine gives up on each call after half a beat) would come back with its
//! statement still running, and hold its place until the server or TCP answers: behind a network that swallows packets, a
//! handful of given-up beats would leave none for the next. Here a connection comes back only after a whole answer;
//! otherwise it is dropped, socket and all, and its place is free at once.
//!
//! A hand-over must not wait for statements to be prepared and planned, whichever connection it comes upon. So once it is
//! known what that takes ([`Lane::warm_up_with`]), a connection is warmed up when it has nothing to do for the first time.
//!
//! The server may go on with a statement that was given up. Each is bounded (by `lock_timeout` where it can wait) and
//! guarded by a compare-and-swap, as [`Store`](tenure_core::port::Store) asks for.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::TryStreamExt;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, Either, Executor, PgConnection};
use tenure_core::Moment;
use tenure_core::port::StoreError;
use tokio::sync::Semaphore;

use super::error::{explain, is_fatal, sqlstate, timed_out};
use super::listen::locked;
use super::message::Message;
use crate::runtime::now;

/// How long a connection may lie idle before it is dropped rather than used: less than what firewalls allow.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long a connection has nothing to do before it is warmed up: a process that starts makes its first calls one after
/// the other, and needs one connection for them.
const REST: Duration = Duration::from_millis(50);

/// How long any one call may take. The machine gives up on its own calls far sooner; this is for everybody else.
pub(super) const CALL_MAX: Duration = Duration::from_secs(30);

/// `invalid_sql_statement_name`: this connection was not told of the statement. Nothing of the message has happened.
const UNKNOWN_STATEMENT: &str = "26000";

/// Connections for one kind of call.
pub(super) struct Lane {
    options: PgConnectOptions,
    connect_timeout: Duration,
    /// What people are told instead of the address, which has a password.
    place: String,
    places: Semaphore,
    idle: Mutex<Vec<Idle>>,
    warm_up: OnceLock<String>,
}

/// A connection that nobody uses.
struct Idle {
    connection: PgConnection,
    since: Moment,
    warm: bool,
}

impl Lane {
    pub(super) fn new(options: PgConnectOptions, connect_timeout: Duration, place: &str, size: u32) -> Self {
        let places = Semaphore::new(size.max(1) as usize);
        let (idle, warm_up) = Default::default();
        Lane { options, connect_timeout, place: place.into(), places, idle, warm_up }
    }

    /// From now on, connections are warmed up by this message, which changes nothing. The first one given stays.
    pub(super) fn warm_up_with(&self, message: &Message<'_>) {
        self.warm_up.get_or_init(|| message.whole().unwrap_or_default());
    }

    /// Sends one message and returns the rows of its last statement, once everything in it is committed.
    pub(super) async fn run(self: &Arc<Self>, message: Message<'_>) -> Result<Vec<PgRow>, StoreError> {
        let answer = self.try_with(message.quick(), message.whole()).await?;
        answer.map_err(|error| explain(&error, &self.place))
    }

    /// The same, with the rows of every statement of the message, in order.
    pub(super) async fn run_all(
        self: &Arc<Self>,
        message: Message<'_>,
    ) -> Result<Vec<Vec<PgRow>>, StoreError> {
        let answer = self.try_all(message.quick(), message.whole()).await?;
        answer.map_err(|error| explain(&error, &self.place))
    }

    /// Sends plain SQL, and returns the driver's error if there is one.
    pub(super) async fn try_run(
        self: &Arc<Self>,
        sql: String,
    ) -> Result<sqlx::Result<Vec<PgRow>>, StoreError> {
        self.try_with(sql, None).await
    }

    async fn try_with(
        self: &Arc<Self>,
        sql: String,
        otherwise: Option<String>,
    ) -> Result<sqlx::Result<Vec<PgRow>>, StoreError> {
        Ok(self.try_all(sql, otherwise).await?.map(|mut all| all.pop().unwrap_or_default()))
    }

    /// Sends `sql`, and `otherwise` if the connection does not know a statement of it.
    async fn try_all(
        self: &Arc<Self>,
        sql: String,
        otherwise: Option<String>,
    ) -> Result<sqlx::Result<Vec<Vec<PgRow>>>, StoreError> {
        let call = async {
            let _place = self.places.acquire().await.map_err(|_| timed_out(&self.place))?;
            let (mut connection, warm) = match self.take_idle() {
                Some(idle) => (idle.connection, idle.warm),
                None => match connect(&self.options, self.connect_timeout, &self.place).await? {
                    Ok(connection) => (connection, false),
                    Err(error) => return Ok(Err(error)),
                },
            };
            let mut rows = all_rows(&mut connection, sql).await;
            if let (Err(error), Some(whole)) = (&rows, otherwise)
                && sqlstate(error) == Some(UNKNOWN_STATEMENT)
            {
                rows = all_rows(&mut connection, whole).await;
            }
            match &rows {
                Err(error) if is_fatal(error) => locked(&self.idle).clear(),
                _ => self.put_back(connection, warm),
            }
            Ok(rows)
        };
        tokio::time::timeout(CALL_MAX, call).await.unwrap_or_else(|_| Err(timed_out(&self.place)))
    }

    fn take_idle(&self) -> Option<Idle> {
        let mut idle = locked(&self.idle);
        idle.retain(|idle| now().since(idle.since) < IDLE_MAX);
        idle.pop()
    }

    fn put_back(self: &Arc<Self>, connection: PgConnection, warm: bool) {
        locked(&self.idle).push(Idle { connection, since: now(), warm });
        if !warm && self.warm_up.get().is_some() {
            let lane = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(REST).await;
                let _ = tokio::time::timeout(CALL_MAX, lane.warm_up_one()).await;
            });
        }
    }

    /// Warms up a connection that needs it. What fails here is told by the next call.
    async fn warm_up_one(self: &Arc<Self>) {
        let Ok(_place) = self.places.acquire().await else { return };
        let cold = {
            let mut idle = locked(&self.idle);
            idle.iter().position(|idle| !idle.warm).map(|cold| idle.swap_remove(cold))
        };
        let (Some(mut cold), Some(message)) = (cold, self.warm_up.get()) else { return };
        if last_rows(&mut cold.connection, message.clone()).await.is_ok() {
            self.put_back(cold.connection, true);
        }
    }
}

/// A new connection, within a time.
pub(super) async fn connect(
    options: &PgConnectOptions,
    within: Duration,
    place: &str,
) -> Result<sqlx::Result<PgConnection>, StoreError> {
    tokio::time::timeout(within, PgConnection::connect_with(options)).await.map_err(|_| timed_out(place))
}

/// Sends one message and returns the rows of its last statement.
pub(super) async fn last_rows<'e, E>(executor: E, sql: String) -> sqlx::Result<Vec<PgRow>>
where
    E: Executor<'e, Database = sqlx::Postgres>,
{
    Ok(all_rows(executor, sql).await?.pop().unwrap_or_default())
}

/// Sends one message, reads its answer to the very end and returns the rows of each of its statements.
///
/// To the end, since rows may arrive before the commit: what the last row says is so only when nothing follows it. This is
/// the one place that sends SQL made at run time; all of it is from this crate's files, with arguments written in by
/// [`render`](super::literal::render) alone.
pub(super) async fn all_rows<'e, E>(executor: E, sql: String) -> sqlx::Result<Vec<Vec<PgRow>>>
where
    E: Executor<'e, Database = sqlx::Postgres>,
{
    let mut answer = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_many(executor);
    let (mut rows, mut all) = (Vec::new(), Vec::new());
    while let Some(step) = answer.try_next().await? {
        match step {
            Either::Right(row) => rows.push(row),
            Either::Left(_) => all.push(std::mem::take(&mut rows)),
        }
    }
    Ok(all)
}
