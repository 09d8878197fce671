//! A small connection pool for one kind of call.
//!
//! It differs from sqlx's pool in two ways. That pool pings a connection when it is returned, so each call would take two
//! round trips. And a dropped call (the lease machine drops each call after half a heartbeat interval) would return its
//! connection with the statement still running, and occupy the pool until the server or TCP responds: in a network that
//! loses packets, a few dropped heartbeats would leave no connection for the next one. Here a connection is returned only
//! after a complete response; otherwise it is closed, and its permit is free at once.
//!
//! A connection that the server closed while it was idle is detected before it is used. If the server closes it during
//! the call, the call is repeated on a new connection, but only if nothing can have been executed
//! ([`Connection::nothing_ran`]). An unknown outcome stays unknown.
//!
//! A takeover must not wait for statements to be prepared and planned, on any connection. So after
//! [`CallPool::warm_up_with`], each connection is warmed up when it is idle for the first time.
//!
//! The server may continue with a statement that was dropped. Each statement is limited (by `lock_timeout` where it can
//! wait) and guarded by a compare-and-swap, as [`Store`](tenure_core::port::Store) requires.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sqlx::PgPool;
use tenure_core::BootInstant;
use tenure_core::port::StoreError;
use tokio::sync::Semaphore;

use super::error::{PgError, explain, timed_out};
use super::listen::locked;
use super::message::{Finished, Message};
use super::options::{Address, Config};
use super::wire::{self, Connection, PgRow};
use crate::runtime::now;

/// Maximum idle time of a connection; shorter than the idle timeouts of firewalls.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// Idle time before a connection is warmed up. A process that starts makes its first calls one after the other on one
/// connection.
const WARM_UP_DELAY: Duration = Duration::from_millis(50);

/// Maximum duration of a call. The lease machine drops its own calls much earlier.
pub(super) const CALL_MAX: Duration = Duration::from_secs(30);

/// The servers that connections lead to.
pub(super) struct Endpoint {
    config: Config,
    /// Timeout of an attempt at one host.
    timeout: Duration,
    /// The address without the password, for messages.
    pub(super) address: String,
    /// Index of the host that answered last.
    current: AtomicUsize,
    /// The pool of the user. It connects to the host that answered last.
    pool: OnceLock<PgPool>,
}

impl Endpoint {
    pub(super) fn new(address: Address, timeout: Duration) -> Arc<Endpoint> {
        let Address { config, display: address, .. } = address;
        let timeout = config.connect_timeout.unwrap_or(timeout);
        Arc::new(Endpoint { config, timeout, address, current: AtomicUsize::new(0), pool: OnceLock::new() })
    }

    /// Set the pool of the user, which from now on connects to the host that answered last.
    pub(super) fn follow_with(&self, pool: &PgPool) {
        let _ = self.pool.set(pool.clone());
    }

    /// Timeout of a connection over all hosts.
    pub(super) fn connect_timeout(&self) -> Duration {
        self.timeout.saturating_mul(self.config.hosts.len().try_into().unwrap_or(u32::MAX))
    }

    /// Connect options for the pool of the user.
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

/// A connection pool for one kind of call.
pub(super) struct CallPool {
    endpoint: Arc<Endpoint>,
    permits: Semaphore,
    idle: Mutex<Vec<Idle>>,
    warm_up: OnceLock<Finished<'static>>,
}

/// An idle connection.
struct Idle {
    connection: Connection,
    since: BootInstant,
    warm: bool,
}

impl CallPool {
    pub(super) fn new(endpoint: &Arc<Endpoint>, size: u32) -> Arc<Self> {
        let permits = Semaphore::new(size.max(1) as usize);
        let (idle, warm_up) = Default::default();
        Arc::new(CallPool { endpoint: endpoint.clone(), permits, idle, warm_up })
    }

    /// Set the message that warms up connections. It changes nothing. Only the first call has an effect.
    pub(super) fn warm_up_with(&self, message: Message<'_>) {
        self.warm_up.get_or_init(|| message.finished().into_owned());
    }

    /// Send a message and return the rows of its last statement after the commit.
    pub(super) async fn run(self: &Arc<Self>, message: Message<'_>) -> Result<Vec<PgRow>, StoreError> {
        Ok(self.run_all(message).await?.pop().unwrap_or_default())
    }

    /// Send a message and return the rows of every statement, in order.
    pub(super) async fn run_all(
        self: &Arc<Self>,
        message: Message<'_>,
    ) -> Result<Vec<Vec<PgRow>>, StoreError> {
        let answer = self.try_all(message).await?;
        answer.map_err(|error| explain(&error, &self.endpoint.address))
    }

    /// Send a message and return the rows of its last statement, or the error of the server.
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
        let address = &self.endpoint.address;
        let message = message.finished();
        let call = async {
            let _permit = self.permits.acquire().await.map_err(|_| timed_out(address))?;
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
        tokio::time::timeout(CALL_MAX, call).await.unwrap_or_else(|_| Err(timed_out(address)))
    }

    /// Make one call on one connection, and keep the connection if it is usable. The second part of an error tells
    /// whether the call may be repeated because nothing was executed.
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
                // The cause probably affects the other connections too.
                locked(&self.idle).clear();
                let retryable = error.is_stale_statement() || connection.nothing_ran(&error);
                Err((error, retryable))
            }
            Err(error) => {
                self.put_back(connection, warm);
                Err((error, false))
            }
        }
    }

    /// The most recently used connection that the server has not closed.
    fn take_idle(&self) -> Option<Idle> {
        let mut idle = locked(&self.idle);
        idle.retain(|idle| now().since(idle.since) < IDLE_MAX);
        std::iter::from_fn(|| idle.pop()).find(|idle| idle.connection.is_usable())
    }

    fn put_back(self: &Arc<Self>, connection: Connection, warm: bool) {
        locked(&self.idle).push(Idle { connection, since: now(), warm });
        if !warm && self.warm_up.get().is_some() {
            let pool = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(WARM_UP_DELAY).await;
                let _ = tokio::time::timeout(CALL_MAX, pool.warm_up_one()).await;
            });
        }
    }

    /// Warm up one connection. Ignores errors: the next call reports them.
    async fn warm_up_one(self: &Arc<Self>) {
        let Ok(_permit) = self.permits.acquire().await else { return };
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

/// Send SQL without values and return the rows of its last statement.
pub(super) async fn last_rows(connection: &mut Connection, sql: &str) -> Result<Vec<PgRow>, PgError> {
    Ok(connection.simple(sql).await?.pop().unwrap_or_default())
}
