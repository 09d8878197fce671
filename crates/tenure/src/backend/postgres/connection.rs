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

use tenure_core::SessionId;
use tenure_core::port::{NewSession, StoreError, Trouble, Wake};
use tokio::sync::broadcast;

use super::QUERIES;
use super::error::{PgError, explain, timed_out};
use super::lane::{Endpoint, Lane};
use super::listen::{Task, direct_listener, locked, sign_of_life};
use super::message::Message;
use super::wire::Connection;
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
    direct: Arc<Endpoint>,
    lane: Arc<Lane>,
    hub: broadcast::Sender<Wake>,
}

impl Connections {
    pub(super) fn new(direct: Arc<Endpoint>, lane: Arc<Lane>, hub: broadcast::Sender<Wake>) -> Self {
        let inner = Arc::new(Inner { direct, lane, hub });
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
    async fn lock(&self, session: &SessionId) -> Result<Connection, StoreError> {
        let place = &self.direct.place;
        let lock = Message::for_user(&QUERIES).then("session_hold", &[session.as_str().into()])?.finished();
        let locked = async {
            // First the proof, then the lock: through a pooler there would be no way to let go of it.
            let Some(mut listener) = direct_listener(&self.direct).await? else {
                return Ok(None);
            };
            listener.simple(NO_LIMITS).await?;
            listener.call(&lock.statements, lock.process).await?;
            Ok(Some(listener))
        };
        let within = self.direct.patience() * 2;
        let locked: Result<_, PgError> =
            tokio::time::timeout(within, locked).await.map_err(|_| timed_out(place))?;
        locked.map_err(|error| explain(&error, place))?.ok_or_else(|| {
            StoreError::new(
                Trouble::Unfit,
                format!(
                    "take-over mode `connection` needs a direct connection, and a pooler is probably in front of {}; \
                     give a direct address or use mode `lease`",
                    place
                ),
            )
        })
    }

    /// Keeps the connection, and tells when it breaks.
    async fn keep(self: Arc<Self>, mut listener: Connection, session: SessionId, lease: Duration) {
        loop {
            let alive = match tokio::time::timeout(lease / 5, listener.notification()).await {
                // A notification, which nobody sends here, would be a sign of life.
                Ok(heard) => heard.is_ok(),
                // A whole lease: a slow server is not a broken connection, and beats tell how long we may believe.
                Err(_) => sign_of_life(&mut listener, lease).await.is_ok(),
            };
            if !alive {
                tracing::warn!(server = self.direct.place, %session, "the session's connection broke; its leases may be taken");
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
                Err(error) => tracing::debug!(server = self.direct.place, %session, %error, "watching anew"),
            }
            tokio::time::sleep(jittered(RETRY)).await;
        }
    }

    /// Waits until the session's lock is free. `false`: there is nothing to wait for.
    async fn await_death(&self, session: &SessionId) -> Result<bool, StoreError> {
        let id = [session.as_str().into()];
        let watched = || Message::for_user(&QUERIES).then("session_watched", &id);
        if self.lane.run(watched()?).await?.is_empty() {
            return Ok(false);
        }
        let told = |error: PgError| explain(&error, &self.direct.place);
        let mut connection = self.direct.connect().await.map_err(told)?;
        connection.simple(NO_LIMITS).await.map_err(told)?;
        // Here too, so that this server process knows the table by the time it matters.
        let warm = watched()?.finished();
        connection.call(&warm.statements, warm.process).await.map_err(told)?;
        // A session that ended in good order let go of its lock as well, after its row said so: the row is looked at
        // after the wait, with a newer snapshot.
        let wait =
            Message::waiting(&QUERIES).then("session_await", &id)?.then("session_watched", &id)?.finished();
        let mut answers = connection.call(&wait.statements, wait.process).await.map_err(told)?;
        Ok(answers.pop().is_some_and(|rows| !rows.is_empty()))
    }
}
