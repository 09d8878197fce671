//! A few connections for one kind of call.
//!
//! Not sqlx's pool, for two reasons. That pool pings a connection when it comes back, so each call would be two round
//! trips. And a call that is given up (the machine gives up on each call after half a beat) would come back with its
//! statement still running, and hold its place until the server or TCP answers: behind a network that swallows packets, a
//! handful of given-up beats would leave none for the next. Here a connection comes back only after a whole answer;
//! otherwise it is dropped, socket and all, and its place is free at once.
//!
//! A connection that the server closed while it was idle is noticed before it is used. If the server closes it at the very
//! moment of its use, the call is made once more on a new connection, but only if nothing of it can have been executed
//! ([`Connection::nothing_ran`]). An outcome that is not known stays unknown.
//!
//! A hand-over must not wait for statements to be prepared and planned, whichever connection it comes upon. So once it is
//! known what that takes ([`Lane::warm_up_with`]), a connection is warmed up when it has nothing to do for the first time.
//!
//! The server may go on with a statement that was given up. Each is bounded (by `lock_timeout` where it can wait) and
//! guarded by a compare-and-swap, as [`Store`](tenure_core::port::Store) asks for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sqlx::PgPool;
use tenure_core::Moment;
use tenure_core::port::StoreError;
use tokio::sync::Semaphore;

use super::error::{PgError, explain, timed_out};
use super::listen::locked;
use super::message::{Finished, Message};
use super::options::{Address, Config};
use super::wire::{self, Connection, PgRow};
use crate::runtime::now;

/// How long a connection may lie idle before it is dropped rather than used: less than what firewalls allow.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long a connection has nothing to do before it is warmed up: a process that starts makes its first calls one after
/// the other, and needs one connection for them.
const REST: Duration = Duration::from_millis(50);

/// How long any one call may take. The machine gives up on its own calls far sooner; this is for everybody else.
pub(super) const CALL_MAX: Duration = Duration::from_secs(30);

/// Where connections lead.
pub(super) struct Endpoint {
    config: Config,
    /// How long an attempt at one host may take.
    timeout: Duration,
    /// What people are told instead of the address, which has a password.
    pub(super) place: String,
    /// Which of the hosts answered last.
    current: AtomicUsize,
    /// The user's pool, which follows to the host that answered.
    pool: OnceLock<PgPool>,
}

impl Endpoint {
    pub(super) fn new(address: Address, timeout: Duration) -> Arc<Endpoint> {
        let Address { config, place, .. } = address;
        let timeout = config.connect_timeout.unwrap_or(timeout);
        Arc::new(Endpoint { config, timeout, place, current: AtomicUsize::new(0), pool: OnceLock::new() })
    }

    /// From now on, the pool leads to the host that answered last.
    pub(super) fn lead(&self, pool: &PgPool) {
        let _ = self.pool.set(pool.clone());
    }

    /// How long a connection may take, all hosts together.
    pub(super) fn patience(&self) -> Duration {
        self.timeout.saturating_mul(self.config.hosts.len().try_into().unwrap_or(u32::MAX))
    }

    /// What the user's pool needs to connect.
    pub(super) fn pool_options(&self) -> sqlx::postgres::PgConnectOptions {
        self.config.pool_options(&self.config.hosts[self.current.load(Ordering::Relaxed)])
    }

    /// A new connection, to the first host that answers.
    pub(super) async fn connect(&self) -> Result<Connection, PgError> {
        let (connection, host) = wire::connect(&self.config, self.timeout).await?;
        if self.current.swap(host, Ordering::Relaxed) != host
            && let Some(pool) = self.pool.get()
        {
            pool.set_connect_options(self.pool_options());
        }
        Ok(connection)
    }
}

/// Connections for one kind of call.
pub(super) struct Lane {
    endpoint: Arc<Endpoint>,
    places: Semaphore,
    idle: Mutex<Vec<Idle>>,
    warm_up: OnceLock<Finished<'static>>,
}

/// A connection that nobody uses.
struct Idle {
    connection: Connection,
    since: Moment,
    warm: bool,
}

impl Lane {
    pub(super) fn new(endpoint: &Arc<Endpoint>, size: u32) -> Arc<Self> {
        let places = Semaphore::new(size.max(1) as usize);
        let (idle, warm_up) = Default::default();
        Arc::new(Lane { endpoint: endpoint.clone(), places, idle, warm_up })
    }

    /// From now on, connections are warmed up by this message, which changes nothing. The first one given stays.
    pub(super) fn warm_up_with(&self, message: Message<'_>) {
        self.warm_up.get_or_init(|| message.finished().into_owned());
    }

    /// Sends one message and returns the rows of its last statement, once everything in it is committed.
    pub(super) async fn run(self: &Arc<Self>, message: Message<'_>) -> Result<Vec<PgRow>, StoreError> {
        Ok(self.run_all(message).await?.pop().unwrap_or_default())
    }

    /// The same, with the rows of every statement of the message, in order.
    pub(super) async fn run_all(
        self: &Arc<Self>,
        message: Message<'_>,
    ) -> Result<Vec<Vec<PgRow>>, StoreError> {
        let answer = self.try_all(message).await?;
        answer.map_err(|error| explain(&error, &self.endpoint.place))
    }

    /// Sends one message and returns the rows of its last statement, or the server's own error if there is one.
    pub(super) async fn try_run(
        self: &Arc<Self>,
        message: Message<'_>,
    ) -> Result<Result<Vec<PgRow>, PgError>, StoreError> {
        Ok(self.try_all(message).await?.map(|mut all| all.pop().unwrap_or_default()))
    }

    async fn try_all(
        self: &Arc<Self>,
        message: Message<'_>,
    ) -> Result<Result<Vec<Vec<PgRow>>, PgError>, StoreError> {
        let place = &self.endpoint.place;
        let message = message.finished();
        let call = async {
            let _place = self.places.acquire().await.map_err(|_| timed_out(place))?;
            if let Some(Idle { connection, warm, .. }) = self.take_idle() {
                match self.call(connection, warm, &message).await {
                    Err((_, true)) => {}
                    answer => return Ok(answer.map_err(|(error, _)| error)),
                }
            }
            Ok(match self.endpoint.connect().await {
                Ok(connection) => self.call(connection, false, &message).await.map_err(|(error, _)| error),
                Err(error) => Err(error),
            })
        };
        tokio::time::timeout(CALL_MAX, call).await.unwrap_or_else(|_| Err(timed_out(place)))
    }

    /// One call on one connection, which is kept if it can be. After an error: whether the call may be made once more,
    /// because nothing of it was executed.
    async fn call(
        self: &Arc<Self>,
        mut connection: Connection,
        warm: bool,
        message: &Finished<'_>,
    ) -> Result<Vec<Vec<PgRow>>, (PgError, bool)> {
        match connection.call(&message.statements, message.process).await {
            Ok(rows) => {
                self.put_back(connection, warm);
                Ok(rows)
            }
            Err(error) if error.is_fatal() || error.is_stale_statement() => {
                // Whatever happened to this connection has happened to the others, or will.
                locked(&self.idle).clear();
                let again = error.is_stale_statement() || connection.nothing_ran(&error);
                Err((error, again))
            }
            Err(error) => {
                self.put_back(connection, warm);
                Err((error, false))
            }
        }
    }

    /// The connection that was used last, of those that the server has not closed.
    fn take_idle(&self) -> Option<Idle> {
        let mut idle = locked(&self.idle);
        idle.retain(|idle| now().since(idle.since) < IDLE_MAX);
        std::iter::from_fn(|| idle.pop()).find(|idle| idle.connection.is_usable())
    }

    fn put_back(self: &Arc<Self>, connection: Connection, warm: bool) {
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
        if cold.connection.call(&message.statements, message.process).await.is_ok() {
            self.put_back(cold.connection, true);
        }
    }
}

/// Sends SQL without values and returns the rows of its last statement.
pub(super) async fn last_rows(connection: &mut Connection, sql: &str) -> Result<Vec<PgRow>, PgError> {
    Ok(connection.simple(sql).await?.pop().unwrap_or_default())
}
