//! Takeover mode `connection`: the end of a connection ends the session.
//!
//! A session of this mode holds an advisory lock on a separate connection, from before its row exists until it ends. The
//! server releases the lock when that connection ends. A process that watches the session waits for the lock on another
//! connection; when it gets the lock, it sends [`Notification::SessionExpired`]. If the session's own connection breaks, its
//! process sends [`Notification::ConnectionLost`].
//!
//! After a crash of a process this is faster than waiting for the lease (a machine that fails closes no connection; others
//! wait for its lease). It is also *weaker*: a broken connection does not prove that the process has ended. A restart of
//! the server, a promotion or a network that drops connections releases the lock of a live leader. That leader learns of it
//! when its connection breaks or its next heartbeat fails; until then two processes may act as leader. Tokens still fence. A
//! watcher whose *own* connection breaks draws no conclusion and watches again.
//!
//! Both sides need a direct connection: behind a pooler in transaction mode, the lock would stay with a server connection
//! that other clients use. So the connection is checked first, and a pooler is rejected.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::SessionId;
use tenure_core::port::{ErrorKind, Notification, OpenSessionRequest, StoreError};
use tokio::sync::broadcast;

use super::QUERIES;
use super::call_pool::{CallPool, Endpoint};
use super::error::{PgError, explain, timed_out};
use super::listen::{AbortOnDrop, direct_listener, locked, probe};
use super::message::Message;
use super::wire::Connection;
use crate::runtime::jittered;

/// Maximum number of watched sessions, each on a connection of its own. For other sessions a takeover waits for the lease.
const WATCHED_MAX: usize = 32;

const RETRY: Duration = Duration::from_millis(500);

/// Disables the timeouts of a connection that waits on purpose.
const NO_LIMITS: &str = "SELECT set_config(name, '0', false) FROM pg_settings \
                         WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout')";

/// The connections that hold the locks of sessions, and those that watch sessions.
pub(super) struct Connections {
    inner: Arc<Inner>,
    held: Mutex<BTreeMap<SessionId, AbortOnDrop>>,
    watched: Mutex<BTreeMap<SessionId, AbortOnDrop>>,
}

struct Inner {
    direct: Arc<Endpoint>,
    pool: Arc<CallPool>,
    sender: broadcast::Sender<Notification>,
}

impl Connections {
    pub(super) fn new(
        direct: Arc<Endpoint>,
        pool: Arc<CallPool>,
        sender: broadcast::Sender<Notification>,
    ) -> Self {
        let inner = Arc::new(Inner { direct, pool, sender });
        Connections { inner, held: Mutex::default(), watched: Mutex::default() }
    }

    /// Take the lock of the session and hold it until the returned task is dropped.
    pub(super) async fn hold(&self, session: &OpenSessionRequest) -> Result<Option<AbortOnDrop>, StoreError> {
        let listener = self.inner.lock(&session.id).await?;
        Ok(AbortOnDrop::spawn(self.inner.clone().keep(listener, session.id.clone(), session.lease)))
    }

    /// Keep the connection of an open session until [`release`](Self::release).
    pub(super) fn keep(&self, session: &SessionId, held: AbortOnDrop) {
        locked(&self.held).insert(session.clone(), held);
    }

    /// Close the connection of a session and so release its lock. Does nothing if there is none.
    pub(super) fn release(&self, session: &SessionId) {
        locked(&self.held).remove(session);
    }

    /// Watch these sessions too. A watch ends with its session.
    pub(super) fn watch(&self, sessions: &[SessionId]) {
        let mut watched = locked(&self.watched);
        watched.retain(|_, task| !task.is_finished());
        for session in sessions {
            if watched.len() < WATCHED_MAX && !watched.contains_key(session) {
                let task = AbortOnDrop::spawn(self.inner.clone().watch(session.clone()));
                watched.extend(task.map(|task| (session.clone(), task)));
            }
        }
    }
}

impl Inner {
    async fn lock(&self, session: &SessionId) -> Result<Connection, StoreError> {
        let address = &self.direct.address;
        let lock = Message::for_user(&QUERIES)
            .then("session_hold_connection_lock", &[session.as_str().into()])?
            .finished();
        let locked = async {
            // Check the connection before taking the lock: through a pooler the lock could not be released.
            let Some(mut listener) = direct_listener(&self.direct).await? else {
                return Ok(None);
            };
            listener.simple(NO_LIMITS).await?;
            listener.call(&lock.statements, lock.process).await?;
            Ok(Some(listener))
        };
        let within = self.direct.connect_timeout() * 2;
        let locked: Result<_, PgError> =
            tokio::time::timeout(within, locked).await.map_err(|_| timed_out(address))?;
        locked.map_err(|error| explain(&error, address))?.ok_or_else(|| {
            StoreError::new(
                ErrorKind::Misconfigured,
                format!(
                    "takeover mode `connection` needs a direct connection, but {} is probably behind a pooler; \
                     set a direct URL or use mode `lease`",
                    address
                ),
            )
        })
    }

    /// Keep the connection open, and send a notification when it breaks.
    async fn keep(self: Arc<Self>, mut listener: Connection, session: SessionId, lease: Duration) {
        loop {
            let alive = match tokio::time::timeout(lease / 5, listener.notification()).await {
                // No notification is expected here; one would show that the connection works.
                Ok(received) => received.is_ok(),
                // Wait for a whole lease: a slow server is not a broken connection, and heartbeats still limit the
                // lease.
                Err(_) => probe(&mut listener, lease).await.is_ok(),
            };
            if !alive {
                tracing::warn!(server = self.direct.address, %session, "session connection broke; other candidates may take its leases");
                let _ = self.sender.send(Notification::ConnectionLost(session));
                return;
            }
        }
    }

    /// Watch one session until it ends.
    async fn watch(self: Arc<Self>, session: SessionId) {
        loop {
            match self.await_end(&session).await {
                Ok(true) => {
                    let _ = self.sender.send(Notification::SessionExpired(session));
                    return;
                }
                Ok(false) => return,
                // The connection of the watcher failed, which says nothing about the session.
                Err(error) => {
                    tracing::debug!(server = self.direct.address, %session, %error, "watching session again")
                }
            }
            tokio::time::sleep(jittered(RETRY)).await;
        }
    }

    /// Wait until the lock of the session is free. `false` if the session has ended or has another takeover mode.
    async fn await_end(&self, session: &SessionId) -> Result<bool, StoreError> {
        let id = [session.as_str().into()];
        let watched = || Message::for_user(&QUERIES).then("session_is_watched", &id);
        if self.pool.run(watched()?).await?.is_empty() {
            return Ok(false);
        }
        let explained = |error: PgError| explain(&error, &self.direct.address);
        let mut connection = self.direct.connect().await.map_err(explained)?;
        connection.simple(NO_LIMITS).await.map_err(explained)?;
        // Run the check on this connection too, so that its server process has cached the table before the takeover.
        let warm = watched()?.finished();
        connection.call(&warm.statements, warm.process).await.map_err(explained)?;
        // A session that ended regularly has also released its lock, after the change of its row. So read the row after
        // the wait, with a newer snapshot.
        let wait = Message::waiting(&QUERIES)
            .then("session_await_connection_lock", &id)?
            .then("session_is_watched", &id)?
            .finished();
        let mut answers = connection.call(&wait.statements, wait.process).await.map_err(explained)?;
        Ok(answers.pop().is_some_and(|rows| !rows.is_empty()))
    }
}
