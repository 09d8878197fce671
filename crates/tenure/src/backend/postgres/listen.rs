//! Hints: `LISTEN` on a connection of its own.
//!
//! The task begins with the first [`Ears::open`] and ends with the store. It connects, listens, says
//! [`Wake::Resync`] (what was notified before was missed), and then tests itself: it sends a notification through the
//! calls' connections and expects to hear it. A connection that breaks is made again, later each time; one that is silent
//! is asked for a sign of life. Whatever happens here, polling carries on.
//!
//! A pooler in transaction mode accepts a `LISTEN` and then hands the notifications to whichever client happens to use
//! that server connection. So a pooler is looked for first (two clients of ours on one server process), and nothing is
//! listened for where there is one.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_core::port::{Wake, Wakes};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use super::QUERIES;
use super::error::PgError;
use super::lane::{Endpoint, Lane};
use super::message::Message;
use super::wire::Connection;
use crate::backend::Heard;
use crate::runtime::{jittered, random};

/// The channel of all hints, which the statements name too.
const LISTEN: &str = "LISTEN tenure_wake";

/// $1 what to hear.
const PROBE: &str = "SELECT pg_catalog.pg_notify('tenure_wake', $1)";

/// How long one's own notification may take to be heard.
const HEARING: Duration = Duration::from_secs(2);

/// How long a silent connection is believed.
const SILENCE: Duration = Duration::from_secs(20);

/// How long a sign of life may take.
const SIGN: Duration = Duration::from_secs(5);

const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(15);

/// How long to leave a server alone on which nothing was heard.
const RETRY_DEAF: Duration = Duration::from_secs(60);

/// Whether hints arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListenState {
    /// Nobody has asked for hints yet.
    #[default]
    Off,
    /// The connection is being made, or is being tested.
    Starting,
    /// Its own notification was heard.
    Hearing,
    /// A pooler is in between, or its own notification was not heard. Polling carries on.
    Deaf,
    /// The connection broke, and is being made again. Polling carries on.
    Broken(String),
}

/// A task that ends with its owner.
pub(super) struct Task(AbortHandle);

impl Task {
    /// Starts it; nothing happens outside of a runtime.
    pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Option<Task> {
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(Task(runtime.spawn(work).abort_handle()))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The hints of one store.
pub(super) struct Ears {
    inner: Arc<Inner>,
    task: Mutex<Option<Task>>,
}

struct Inner {
    direct: Arc<Endpoint>,
    lane: Arc<Lane>,
    hub: broadcast::Sender<Wake>,
    state: Mutex<ListenState>,
}

impl Ears {
    pub(super) fn new(direct: Arc<Endpoint>, lane: Arc<Lane>) -> Self {
        let (hub, state) = (broadcast::channel(1024).0, Mutex::default());
        Ears { inner: Arc::new(Inner { direct, lane, hub, state }), task: Mutex::default() }
    }

    /// Where hints of this process are put in.
    pub(super) fn hub(&self) -> broadcast::Sender<Wake> {
        self.inner.hub.clone()
    }

    pub(super) fn state(&self) -> ListenState {
        locked(&self.inner.state).clone()
    }

    /// A receiver of hints; the first one starts the listening.
    pub(super) fn open(&self) -> Wakes {
        let hints = Heard(self.inner.hub.subscribe());
        let mut task = locked(&self.task);
        if task.as_ref().is_none_or(Task::is_over) {
            *task = Task::spawn(self.inner.clone().listen_forever());
        }
        Box::new(hints)
    }
}

impl Inner {
    async fn listen_forever(self: Arc<Self>) {
        let (mut retry, mut warned) = (RETRY_MIN, false);
        loop {
            self.set(ListenState::Starting);
            let ended = self.listen().await;
            let was_hearing = *locked(&self.state) == ListenState::Hearing;
            retry = if was_hearing { RETRY_MIN } else { (retry * 2).min(RETRY_MAX) };
            match ended {
                Ok(()) => {
                    if !std::mem::replace(&mut warned, true) {
                        tracing::warn!(
                            server = self.direct.place,
                            "hints do not arrive: a pooler is probably in between. Polling carries on; give a direct \
                             address for faster hand-over"
                        );
                    }
                    self.set(ListenState::Deaf);
                    retry = RETRY_DEAF;
                }
                Err(error) => {
                    tracing::debug!(server = self.direct.place, %error, "the connection for hints broke; polling carries on");
                    self.set(ListenState::Broken(error.to_string()));
                }
            }
            tokio::time::sleep(jittered(retry)).await;
        }
    }

    /// Listens until the connection breaks, or until it proves to be deaf.
    async fn listen(&self) -> Result<(), PgError> {
        let Some(mut listener) = direct_listener(&self.direct).await? else {
            return Ok(());
        };
        listener.simple(LISTEN).await?;
        self.tell(Wake::Resync);
        if !hears_itself(&mut listener, &self.lane, |payload| self.hear(payload)).await? {
            return Ok(());
        }
        self.set(ListenState::Hearing);
        loop {
            match tokio::time::timeout(SILENCE, listener.notification()).await {
                Ok(payload) => self.hear(&payload?),
                Err(_) => sign_of_life(&mut listener, SIGN).await?,
            }
        }
    }

    /// Passes a hint on. What no other process may say, or what is no hint at all, is nobody's business.
    fn hear(&self, payload: &str) {
        let wake = serde_json::from_str(payload).ok();
        let by_others = |wake: &Wake| !matches!(wake, Wake::Died(_) | Wake::Severed(_) | Wake::Resync);
        if let Some(wake) = wake.filter(by_others) {
            self.tell(wake);
        }
    }

    fn tell(&self, wake: Wake) {
        // Nobody listening is no trouble.
        let _ = self.hub.send(wake);
    }

    fn set(&self, state: ListenState) {
        *locked(&self.state) = state;
    }
}

/// A connection of its own; `None` if it is a pooler's.
pub(super) async fn direct_listener(endpoint: &Endpoint) -> Result<Option<Connection>, PgError> {
    let mut listener = endpoint.connect().await?;
    if listener.is_direct().await? {
        return Ok(Some(listener));
    }
    // A pooler in session mode serves as well.
    let mut other = endpoint.connect().await?;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push((listener.server_process().await?, other.server_process().await?));
    }
    let (ours, others) = seen[0];
    Ok((ours != others && seen.iter().all(|pair| *pair == seen[0])).then_some(listener))
}

/// Whether a notification that is sent through the lane arrives at the listener. Others that arrive are passed on.
async fn hears_itself(
    listener: &mut Connection,
    lane: &Arc<Lane>,
    mut hear: impl FnMut(&str),
) -> Result<bool, PgError> {
    let probe = format!("probe {:016x}", random());
    let message = Message::new(&QUERIES).with(PROBE, &[probe.as_str().into()]);
    let sent = async { lane.try_run(message?).await };
    sent.await.map_err(|error| PgError::Io(std::io::Error::other(error)))??;
    let heard = tokio::time::timeout(HEARING, async {
        loop {
            let payload = listener.notification().await?;
            if payload == probe {
                return Ok(true);
            }
            hear(&payload);
        }
    });
    heard.await.unwrap_or(Ok(false))
}

/// Asks a silent connection whether it is still there.
pub(super) async fn sign_of_life(listener: &mut Connection, within: Duration) -> Result<(), PgError> {
    let sign = listener.simple("SELECT 1");
    tokio::time::timeout(within, sign).await.map_err(|_| PgError::TimedOut)?.map(drop)
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
