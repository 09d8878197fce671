//! Hints: `LISTEN` on a connection of its own.
//!
//! The task begins with the first [`Ears::open`] and ends with the store. It connects, listens, says
//! [`Wake::Resync`] (what was notified before was missed), and then tests itself: it sends a notification through the
//! calls' connections and expects to hear it. A connection that breaks is made again, later each time; one that is silent
//! is asked for a sign of life. Whatever happens here, polling carries on.
//!
//! A pooler in transaction mode accepts a `LISTEN` and then hands the notifications to whichever client happens to use
//! that server connection; sqlx's plain connections take that for a broken protocol. So a pooler is looked for first
//! (two clients of ours on one server process), and nothing is listened for where there is one.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Executor, Row};
use tenure_core::port::{Wake, Wakes};
use tokio::sync::broadcast;
use tokio::task::AbortHandle;

use super::lane::{Lane, last_rows};
use super::literal::{Value, render};
use crate::backend::Heard;
use crate::runtime::{jittered, random};

/// The channel of all hints. The statements name it too.
const CHANNEL: &str = "tenure_wake";

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
    direct: PgConnectOptions,
    connect_timeout: Duration,
    place: String,
    lane: Arc<Lane>,
    hub: broadcast::Sender<Wake>,
    state: Mutex<ListenState>,
}

impl Ears {
    pub(super) fn new(
        direct: PgConnectOptions,
        connect_timeout: Duration,
        place: &str,
        lane: Arc<Lane>,
    ) -> Self {
        let (hub, state) = (broadcast::channel(1024).0, Mutex::default());
        Ears {
            inner: Arc::new(Inner { direct, connect_timeout, place: place.into(), lane, hub, state }),
            task: Mutex::default(),
        }
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
                            server = self.place,
                            "hints do not arrive: a pooler is probably in between. Polling carries on; give a direct \
                             address for faster hand-over"
                        );
                    }
                    self.set(ListenState::Deaf);
                    retry = RETRY_DEAF;
                }
                Err(error) => {
                    tracing::debug!(server = self.place, %error, "the connection for hints broke; polling carries on");
                    self.set(ListenState::Broken(error.to_string()));
                }
            }
            tokio::time::sleep(jittered(retry)).await;
        }
    }

    /// Listens until the connection breaks, or until it proves to be deaf.
    async fn listen(&self) -> sqlx::Result<()> {
        let Some(mut listener) = direct_listener(&self.direct, self.connect_timeout).await? else {
            return Ok(());
        };
        listener.listen(CHANNEL).await?;
        self.tell(Wake::Resync);
        if !hears_itself(&mut listener, CHANNEL, &self.lane, |payload| self.hear(payload)).await? {
            return Ok(());
        }
        self.set(ListenState::Hearing);
        loop {
            match tokio::time::timeout(SILENCE, listener.try_recv()).await {
                Ok(notification) => self.hear(notification?.ok_or_else(broken)?.payload()),
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

/// A connection of its own, which notices its end and is not made again behind our back; `None` if it is a pooler's.
pub(super) async fn direct_listener(
    options: &PgConnectOptions,
    within: Duration,
) -> sqlx::Result<Option<PgListener>> {
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .max_lifetime(None)
        .idle_timeout(None)
        .test_before_acquire(false)
        .acquire_timeout(within)
        .connect_with(options.clone())
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.ignore_pool_close_event(true);
    listener.eager_reconnect(false);
    let mut other = pool.acquire().await?;
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push((server_process(&mut listener).await?, server_process(&mut *other).await?));
    }
    other.close().await?;
    let (ours, others) = seen[0];
    Ok((ours != others && seen.iter().all(|pair| *pair == seen[0])).then_some(listener))
}

/// The server's process behind a connection. A pooler changes it, or gives two clients the same one after the other.
async fn server_process<'e>(executor: impl Executor<'e, Database = sqlx::Postgres>) -> sqlx::Result<i32> {
    let rows = last_rows(executor, "SELECT pg_backend_pid()".into()).await?;
    rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get(0)
}

/// Whether a notification that is sent through the lane arrives at the listener. Others that arrive are passed on.
pub(super) async fn hears_itself(
    listener: &mut PgListener,
    channel: &str,
    lane: &Arc<Lane>,
    mut hear: impl FnMut(&str),
) -> sqlx::Result<bool> {
    let probe = format!("probe {:016x}", random());
    let values = [Value::from(channel), Value::from(probe.as_str())];
    let sql = render("SELECT pg_notify($1, $2)", &values).expect("neither has a NUL");
    let mut sent = lane.try_run(sql.clone()).await;
    if !matches!(sent, Ok(Ok(_))) {
        // After a restart of the server, the lane's connection was broken as well and nobody had noticed.
        sent = lane.try_run(sql).await;
    }
    sent.map_err(|error| sqlx::Error::Io(std::io::Error::other(error)))??;
    let heard = tokio::time::timeout(HEARING, async {
        loop {
            let notification = listener.try_recv().await?.ok_or_else(broken)?;
            if notification.payload() == probe {
                return Ok(true);
            }
            hear(notification.payload());
        }
    });
    heard.await.unwrap_or(Ok(false))
}

/// Asks a silent connection whether it is still there.
pub(super) async fn sign_of_life(listener: &mut PgListener, within: Duration) -> sqlx::Result<()> {
    let sign = last_rows(listener, "SELECT 1".into());
    tokio::time::timeout(within, sign)
        .await
        .map_err(|_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))?
        .map(drop)
}

/// The error of a connection that ended in silence.
pub(super) fn broken() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into())
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
