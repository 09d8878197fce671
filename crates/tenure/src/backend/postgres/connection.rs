//! Take-over mode `connection`: the end of a connection tells of a session's death.
//!
//! A session of this mode holds an advisory lock on a connection of its own, from before its row is there until it ends.
//! The server lets go of the lock when that connection ends, and whoever watches the session waits for the lock on
//! another: its being granted is [`Wake::Died`]. If our own connection breaks, that is [`Wake::Severed`].
//!
//! This is faster than a lease after a crash of the process (a machine that vanishes closes no connection, and its lease
//! is waited out), and *weaker*: a broken connection is not a dead process. A restart of the
//! server, a promotion or a network that drops connections frees the lock of a leader that lives; it learns of that when
//! its connection breaks or its next beat finds it gone, and until then two may believe. Tokens still fence. A watcher
//! whose *own* connection breaks concludes nothing and watches anew.
//!
//! Both need a direct connection: behind a pooler in transaction mode, a lock would stay with a server connection that
//! others use. So the holding connection is looked at first, and a pooler's is refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener};
use tenure_core::SessionId;
use tenure_core::port::{NewSession, StoreError, Trouble, Wake};
use tokio::sync::broadcast;

use super::QUERIES;
use super::error::{explain, timed_out};
use super::lane::{Lane, connect, last_rows};
use super::listen::{Task, direct_listener, locked, sign_of_life};
use super::literal::render;
use super::message::{FRESH_SNAPSHOTS, Message};
use crate::runtime::jittered;

/// How many sessions are watched at most, each on a connection of its own. The others' leases are waited out.
const WATCHED_MAX: usize = 32;

const RETRY: Duration = Duration::from_millis(500);

/// A server's limits are not for a connection that waits on purpose.
const NO_LIMITS: &str = "SELECT set_config(name, '0', false) FROM pg_settings \
                         WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_session_timeout')";

/// The connections that stand for sessions: those held, and those that watch.
pub(super) struct Connections {
    inner: Arc<Inner>,
    held: Mutex<BTreeMap<SessionId, Task>>,
    watched: Mutex<BTreeMap<SessionId, Task>>,
}

struct Inner {
    direct: PgConnectOptions,
    connect_timeout: Duration,
    place: String,
    lane: Arc<Lane>,
    hub: broadcast::Sender<Wake>,
}

impl Connections {
    pub(super) fn new(
        direct: PgConnectOptions,
        connect_timeout: Duration,
        place: &str,
        lane: Arc<Lane>,
        hub: broadcast::Sender<Wake>,
    ) -> Self {
        let inner = Arc::new(Inner { direct, connect_timeout, place: place.into(), lane, hub });
        Connections { inner, held: Mutex::default(), watched: Mutex::default() }
    }

    /// Takes the session's lock and holds it for as long as the task is kept.
    pub(super) async fn hold(&self, session: &NewSession) -> Result<Option<Task>, StoreError> {
        let listener = self.inner.lock(&session.id).await?;
        Ok(Task::spawn(self.inner.clone().keep(listener, session.id.clone(), session.lease)))
    }

    /// Keeps the connection of a session that is open until [`let_go`](Self::let_go).
    pub(super) fn keep(&self, session: &SessionId, held: Task) {
        locked(&self.held).insert(session.clone(), held);
    }

    /// Ends the session's connection, and so frees its lock. No effect if there is none.
    pub(super) fn let_go(&self, session: &SessionId) {
        locked(&self.held).remove(session);
    }

    /// Watches these sessions too. A watch ends by itself when its session is over; whoever asked for it may have
    /// forgotten it by then.
    pub(super) fn watch(&self, sessions: &[SessionId]) {
        let mut watched = locked(&self.watched);
        watched.retain(|_, task| !task.is_over());
        for session in sessions {
            if watched.len() < WATCHED_MAX && !watched.contains_key(session) {
                let task = Task::spawn(self.inner.clone().watch(session.clone()));
                watched.extend(task.map(|task| (session.clone(), task)));
            }
        }
    }
}

impl Inner {
    async fn lock(&self, session: &SessionId) -> Result<PgListener, StoreError> {
        let lock = render(QUERIES.get("session_hold"), &[session.as_str().into()])?;
        let locked = async {
            // First the proof, then the lock: through a pooler there would be no way to let go of it.
            let Some(mut listener) = direct_listener(&self.direct, self.connect_timeout).await? else {
                return Ok(None);
            };
            last_rows(&mut listener, NO_LIMITS.into()).await?;
            last_rows(&mut listener, lock).await?;
            Ok(Some(listener))
        };
        let within = self.connect_timeout * 2;
        let locked = tokio::time::timeout(within, locked).await.map_err(|_| timed_out(&self.place))?;
        locked.map_err(|error| explain(&error, &self.place))?.ok_or_else(|| {
            StoreError::new(
                Trouble::Unfit,
                format!(
                    "take-over mode `connection` needs a direct connection, and a pooler is probably in front of {}; \
                     give a direct address or use mode `lease`",
                    self.place
                ),
            )
        })
    }

    /// Keeps the connection, and tells when it breaks.
    async fn keep(self: Arc<Self>, mut listener: PgListener, session: SessionId, lease: Duration) {
        loop {
            let alive = match tokio::time::timeout(lease / 5, listener.try_recv()).await {
                // A notification, which nobody sends here, would be a sign of life.
                Ok(heard) => matches!(heard, Ok(Some(_))),
                // A whole lease: a slow server is not a broken connection, and beats tell how long we may believe.
                Err(_) => sign_of_life(&mut listener, lease).await.is_ok(),
            };
            if !alive {
                tracing::warn!(server = self.place, %session, "the session's connection broke; its leases may be taken");
                let _ = self.hub.send(Wake::Severed(session));
                return;
            }
        }
    }

    /// Watches one session until it is over.
    async fn watch(self: Arc<Self>, session: SessionId) {
        loop {
            match self.await_death(&session).await {
                Ok(true) => {
                    let _ = self.hub.send(Wake::Died(session));
                    return;
                }
                Ok(false) => return,
                // Our own connection broke, or could not be made: that says nothing about the session.
                Err(error) => tracing::debug!(server = self.place, %session, %error, "watching anew"),
            }
            tokio::time::sleep(jittered(RETRY)).await;
        }
    }

    /// Waits until the session's lock is free. `false`: there is nothing to wait for.
    async fn await_death(&self, session: &SessionId) -> Result<bool, StoreError> {
        let id = [session.as_str().into()];
        let watched = render(QUERIES.get("session_watched"), &id)?;
        if self.lane.run(Message::for_user(&QUERIES).plain(&watched, true)).await?.is_empty() {
            return Ok(false);
        }
        let told = |error: sqlx::Error| explain(&error, &self.place);
        let mut connection = connect(&self.direct, self.connect_timeout, &self.place).await?.map_err(told)?;
        last_rows(&mut connection, NO_LIMITS.into()).await.map_err(told)?;
        // Here too, so that this server process knows the table by the time it matters.
        last_rows(&mut connection, watched.clone()).await.map_err(told)?;
        // A session that ended in good order let go of its lock as well, after its row said so: the row is looked at
        // after the wait, in the same message.
        let lock = render(QUERIES.get("session_await"), &id)?;
        let message = [FRESH_SNAPSHOTS, &lock, ";\n", &watched].concat();
        Ok(!last_rows(&mut connection, message).await.map_err(told)?.is_empty())
    }
}
