//! Notifications: `LISTEN` on a separate connection.
//!
//! The task starts with the first [`NotifyListener::subscribe`] and ends with the store. It connects, listens, sends
//! [`Notification::Resync`] (earlier notifications were missed), and then tests itself: it sends a notification through
//! the call pool and expects to receive it. A broken connection is reopened with a growing delay, and a silent one is
//! probed. Polling continues in any case.
//!
//! A pooler in transaction mode accepts `LISTEN` and then delivers the notifications to any client that uses the same
//! server connection. So the task checks for a pooler first (two clients on one server process), and does not listen
//! through one.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::port::{BoxNotificationSource, Notification};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use super::QUERIES;
use super::call_pool::{CallPool, Endpoint};
use super::error::PgError;
use super::message::Message;
use super::wire::Connection;
use crate::runtime::{jittered, random};
use crate::store::BroadcastNotificationSource;

/// Subscribes to the channel of all notifications.
const LISTEN: &str = "LISTEN tenure_notify";

/// $1 payload of the self-test.
const PROBE: &str = "SELECT pg_catalog.pg_notify('tenure_notify', $1)";

/// Timeout of the self-test.
const SELF_TEST: Duration = Duration::from_secs(2);

/// Silence after which the connection is probed.
const PROBE_AFTER: Duration = Duration::from_secs(20);

/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// Delay before the next attempt if notifications do not arrive.
const RETRY_UNAVAILABLE: Duration = Duration::from_secs(60);

/// Whether notifications arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenState {
    /// There is no subscriber yet.
    #[default]
    Off,
    /// The connection is being opened or tested.
    Starting,
    /// The self-test succeeded.
    Active,
    /// There is a pooler, or the self-test failed. Polling continues.
    Unavailable,
    /// The connection broke and is being reopened. Polling continues.
    Broken(String),
}

/// A task that is aborted when its owner is dropped.
pub(super) struct AbortOnDrop(AbortHandle);

impl AbortOnDrop {
    /// Start a task. Does nothing outside of a runtime.
    pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Option<AbortOnDrop> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(AbortOnDrop(runtime.spawn(work).abort_handle()))
    }

    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The `LISTEN` connection of a store.
pub(super) struct NotifyListener {
    inner: Arc<Inner>,
    task: Mutex<Option<AbortOnDrop>>,
}

struct Inner {
    direct: Arc<Endpoint>,
    pool: Arc<CallPool>,
    sender: broadcast::Sender<Notification>,
    state: Mutex<ListenState>,
}

impl NotifyListener {
    pub(super) fn new(direct: Arc<Endpoint>, pool: Arc<CallPool>) -> Self {
        let (sender, state) = (broadcast::channel(1024).0, Mutex::default());
        NotifyListener { inner: Arc::new(Inner { direct, pool, sender, state }), task: Mutex::default() }
    }

    /// The sender for notifications of this process.
    pub(super) fn sender(&self) -> broadcast::Sender<Notification> {
        self.inner.sender.clone()
    }

    pub(super) fn state(&self) -> ListenState {
        locked(&self.inner.state).clone()
    }

    /// A receiver of notifications. The first one starts the task.
    pub(super) fn subscribe(&self) -> BoxNotificationSource {
        let source = BroadcastNotificationSource(self.inner.sender.subscribe());
        let mut task = locked(&self.task);
        if task.as_ref().is_none_or(AbortOnDrop::is_finished) {
            *task = AbortOnDrop::spawn(self.inner.clone().listen_forever());
        }
        Box::new(source)
    }
}

impl Inner {
    async fn listen_forever(self: Arc<Self>) {
        let (mut retry, mut warned) = (RETRY_MIN, false);
        loop {
            self.set(ListenState::Starting);
            let ended = self.listen().await;
            let was_active = *locked(&self.state) == ListenState::Active;
            retry = if was_active { RETRY_MIN } else { (retry * 2).min(RETRY_MAX) };
            match ended {
                Ok(()) => {
                    if !std::mem::replace(&mut warned, true) {
                        tracing::warn!(
                            server = self.direct.address,
                            "notifications do not arrive, probably because of a pooler; polling continues. Set a direct URL for \
                             faster takeovers"
                        );
                    }
                    self.set(ListenState::Unavailable);
                    retry = RETRY_UNAVAILABLE;
                }
                Err(error) => {
                    tracing::debug!(server = self.direct.address, %error, "notification connection broke; polling continues");
                    self.set(ListenState::Broken(error.to_string()));
                }
            }
            tokio::time::sleep(jittered(retry)).await;
        }
    }

    /// Listen until the connection breaks. `Ok` if notifications do not arrive.
    async fn listen(&self) -> Result<(), PgError> {
        let Some(mut listener) = direct_listener(&self.direct).await? else {
            return Ok(());
        };
        listener.simple(LISTEN).await?;
        self.send(Notification::Resync);
        if !self_test(&mut listener, &self.pool, |payload| self.receive(payload)).await? {
            return Ok(());
        }
        self.set(ListenState::Active);
        loop {
            match tokio::time::timeout(PROBE_AFTER, listener.notification()).await {
                Ok(payload) => self.receive(&payload?),
                Err(_) => probe(&mut listener, PROBE_TIMEOUT).await?,
            }
        }
    }

    /// Forward a notification. Ignores invalid payloads, and notifications that only this process may send.
    fn receive(&self, payload: &str) {
        let notification = serde_json::from_str(payload).ok();
        let is_remote = |notification: &Notification| {
            !matches!(
                notification,
                Notification::SessionExpired(_) | Notification::ConnectionLost(_) | Notification::Resync
            )
        };
        if let Some(notification) = notification.filter(is_remote) {
            self.send(notification);
        }
    }

    fn send(&self, notification: Notification) {
        // There may be no receiver.
        let _ = self.sender.send(notification);
    }

    fn set(&self, state: ListenState) {
        *locked(&self.state) = state;
    }
}

/// Open a direct connection; `None` if it leads to a pooler in transaction mode.
pub(super) async fn direct_listener(endpoint: &Endpoint) -> Result<Option<Connection>, PgError> {
    let mut listener = endpoint.connect().await?;
    if listener.is_direct().await? {
        return Ok(Some(listener));
    }
    // A pooler in session mode works too.
    let mut other = endpoint.connect().await?;
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push((listener.server_process().await?, other.server_process().await?));
    }
    let (first, second) = processes[0];
    Ok((first != second && processes.iter().all(|pair| *pair == processes[0])).then_some(listener))
}

/// Whether a notification that is sent through the call pool arrives at the listener. Other notifications are forwarded.
async fn self_test(
    listener: &mut Connection,
    pool: &Arc<CallPool>,
    mut receive: impl FnMut(&str),
) -> Result<bool, PgError> {
    let payload_sent = format!("self-test {:016x}", random());
    let message = Message::new(&QUERIES).with(PROBE, &[payload_sent.as_str().into()]);
    let sent = async { pool.try_run(message?).await };
    sent.await.map_err(|error| PgError::Io(std::io::Error::other(error)))??;
    let received = tokio::time::timeout(SELF_TEST, async {
        loop {
            let payload = listener.notification().await?;
            if payload == payload_sent {
                return Ok(true);
            }
            receive(&payload);
        }
    });
    received.await.unwrap_or(Ok(false))
}

/// Check that a silent connection still works.
pub(super) async fn probe(listener: &mut Connection, within: Duration) -> Result<(), PgError> {
    let response = listener.simple("SELECT 1");
    tokio::time::timeout(within, response).await.map_err(|_| PgError::TimedOut)?.map(drop)
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
