//! The client of one process: one session on one store, and everything the process does with it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::port::{
    ElectionAdmin, ErrorKind, PoolKey, QueueKey, Store, StoreError, TakeoverMode, TopicKey,
};
use tenure_core::rules::lease::{LeaseMachine, LeaseMachineConfig};
use tenure_core::{BootInstant, Name, SessionId, Timing};
use tokio::sync::{mpsc, oneshot, watch};

use crate::TaskClient;
use crate::election::elector::ElectorBuilder;
use crate::election::leadership::SessionTrust;
use crate::event::{ConsumerBuilder, Publisher};
use crate::pool::Pool;
use crate::queue::context::{BrokerOptions, ClientContext};
use crate::queue::notifier::Notifier;
use crate::runtime::{Runtime, SystemRuntime};
use crate::schedule::{SchedulerBuilder, Schedules};
use crate::session::driver::{Driver, DriverMessage, SessionShared};
use crate::store::{self, ClientAuth, StoreOptions};
use crate::worker::WorkerBuilder;
use crate::{Error, runtime};

/// Additional time, beyond a lease, that `close` waits for running work to finish.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Time limit for a slow store to open the first session.
const OPENING_GRACE: Duration = Duration::from_secs(8);

/// A client of a store: one session with one heartbeat, and any number of elections, workers and consumers.
/// Clones share the session.
///
/// ```
/// # use tenure::{Tenure, store::memory::MemoryStore};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let _ = || async {
/// let tenure = Tenure::open("sqlite:tenure.db").await?;
/// # Ok::<_, tenure::Error>(()) };
/// # let tenure = Tenure::builder().store(MemoryStore::new()).open().await?;
/// let nightly = tenure.elector("nightly").priority(100).start().await?;
/// let leadership = nightly.elected().await?;
/// println!("{} leads under token {}", tenure.name(), leadership.token());
/// # drop(leadership); tenure.close().await }
/// ```
#[derive(Clone)]
pub struct Tenure {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    timing: Timing,
    store: Arc<dyn Store>,
    runtime: Arc<dyn Runtime>,
    shared: Arc<SessionShared>,
    ctx: Arc<ClientContext>,
    inbox: mpsc::UnboundedSender<DriverMessage>,
}

/// Settings of a client whose session is not open yet. See [`Tenure::builder`].
#[must_use = "the session is opened by `open`"]
pub struct TenureBuilder {
    store: Option<Arc<dyn Store>>,
    options: StoreOptions,
    name: Option<String>,
    lease: Option<Duration>,
    heartbeat_interval: Option<Duration>,
    takeover: TakeoverMode,
    runtime: Arc<dyn Runtime>,
    broker: BrokerOptions,
}

impl TenureBuilder {
    /// Store URL: `sqlite:PATH`, `postgres://…`, `http(s)://…` (feature `http`) or `memory:`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.options.url = url.into();
        self
    }

    /// Use a store that is already open instead of a URL.
    pub fn store(mut self, store: impl Store) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Use a shared store that is already open instead of a URL.
    pub fn shared_store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// URL of a separate store for elections, in the form of [`url`](Self::url). Guards in the main store then
    /// check the tokens of this store; see [`paired`](crate::store::paired).
    pub fn election_store(mut self, url: impl Into<String>) -> Self {
        self.options.election_store = Some(url.into());
        self
    }

    /// Direct URL of the store, if `url` goes through a connection pooler. Used for notifications and
    /// connection-bound sessions.
    pub fn direct_url(mut self, url: impl Into<String>) -> Self {
        self.options.direct_url = Some(url.into());
        self
    }

    /// File with the secret of a Raft cluster. See [`StoreOptions::cluster_secret_file`].
    pub fn cluster_secret_file(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.options.cluster_secret_file = Some(file.into());
        self
    }

    /// Require synchronous replication: a grant counts only when a synchronous standby has it (PostgreSQL).
    pub fn sync_replication(mut self, required: bool) -> Self {
        self.options.sync_replication = required;
        self
    }

    /// Credentials for a Tenure server (`http://…`) and the certificates to trust. Default: from the
    /// environment.
    pub fn access(mut self, access: ClientAuth) -> Self {
        self.options.access = access;
        self
    }

    /// Name of this process for operators. Need not be unique. Default: host name and process number.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Lease duration: how long a silent process keeps its leases. Default: the value in the store URL, or
    /// [`DEFAULT_LEASE`](crate::DEFAULT_LEASE).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Time between heartbeats. Default: a fifth of the lease, at most
    /// [`DEFAULT_HEARTBEAT`](crate::DEFAULT_HEARTBEAT); a fifteenth of a lease longer than the default lease.
    pub fn heartbeat_interval(mut self, heartbeat_interval: Duration) -> Self {
        self.heartbeat_interval = Some(heartbeat_interval);
        self
    }

    /// How other processes detect the death of this one.
    pub fn takeover(mut self, takeover: TakeoverMode) -> Self {
        self.takeover = takeover;
        self
    }

    /// Address on which this process accepts claim requests for exclusive queues while it is the broker: `host`
    /// or `host:port`. Default: `$TENURE_BROKER_LISTEN`, or a free port of the local address that reaches the
    /// store.
    pub fn broker_listen(mut self, address: impl Into<String>) -> Self {
        self.broker.listen = Some(address.into());
        self
    }

    /// Address that the broker advertises, if it differs from the listen address. Default:
    /// `$TENURE_BROKER_ADVERTISE`.
    pub fn broker_advertise(mut self, address: impl Into<String>) -> Self {
        self.broker.advertise = Some(address.into());
        self
    }

    /// Source of time and randomness; tests replace it.
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = runtime;
        self
    }

    /// Opens the store and a session on it. Must be called inside a tokio runtime.
    ///
    /// Fails with [`Error::Timing`] if the lease and the heartbeat interval do not fit together, and with
    /// [`Error::Store`] if the store cannot be opened or no session opens in time.
    pub async fn open(self) -> Result<Tenure, Error> {
        // Reject invalid timing before the store is opened.
        let timing = Timing::new(self.lease.unwrap_or(tenure_core::DEFAULT_LEASE), self.heartbeat_interval)?;
        let store = match self.store {
            Some(store) => store,
            None => store::open(&self.options).await?,
        };
        let timing = match store.default_timing().filter(|_| self.lease.is_none()) {
            Some(pace) => {
                Timing::new(pace.lease(), self.heartbeat_interval.or(Some(pace.heartbeat_interval())))?
            }
            None => timing,
        };
        let name = self.name.unwrap_or_else(runtime::process_name);
        let machine =
            LeaseMachine::new(LeaseMachineConfig { name: name.clone(), timing, takeover: self.takeover });
        let shared = Arc::new(SessionShared {
            trust: Arc::new(SessionTrust::new(self.runtime.clone())),
            session: watch::Sender::new(None),
            last_error: Mutex::new(None),
            notifier: Notifier::new(),
            withdrawn: tokio::sync::Notify::new(),
        });
        let (driver, inbox) =
            Driver::new(machine, timing, store.clone(), self.runtime.clone(), shared.clone());
        tokio::spawn(driver.run());
        let broker = BrokerOptions {
            listen: self.broker.listen.or_else(|| set_in_environment("TENURE_BROKER_LISTEN")),
            advertise: self.broker.advertise.or_else(|| set_in_environment("TENURE_BROKER_ADVERTISE")),
            store_url: self.options.url,
        };
        let (runtime, store_clone) = (self.runtime, store.clone());
        let ctx = ClientContext::new(
            name.clone(),
            timing,
            store_clone,
            runtime.clone(),
            shared.clone(),
            inbox.clone(),
            broker,
        );
        let inner = Inner { name, timing, store, runtime, shared, ctx, inbox };
        let tenure = Tenure { inner: Arc::new(inner) };
        tenure.opened().await?;
        Ok(tenure)
    }
}

impl Tenure {
    /// Opens the store at `url` and a session on it, with default settings.
    pub async fn open(url: &str) -> Result<Tenure, Error> {
        Tenure::builder().url(url).open().await
    }

    /// Returns a builder for a client.
    pub fn builder() -> TenureBuilder {
        TenureBuilder {
            store: None,
            options: StoreOptions::default(),
            name: None,
            lease: None,
            heartbeat_interval: None,
            takeover: TakeoverMode::default(),
            runtime: Arc::new(SystemRuntime),
            broker: BrokerOptions::default(),
        }
    }

    /// Returns a builder for a candidate of the election `name`.
    pub fn elector(&self, name: impl Into<String>) -> ElectorBuilder {
        ElectorBuilder::new(self.clone(), name.into())
    }

    /// Returns the client for single tasks and pool requests.
    pub fn tasks(&self) -> TaskClient {
        TaskClient::new(self.clone())
    }

    /// Returns a builder for a worker on `queue`.
    pub fn worker(&self, queue: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder::new(self.clone(), queue.into())
    }

    /// Returns the pool `name` of the default namespace.
    pub fn pool(&self, name: &str) -> Result<Pool, Error> {
        Ok(Pool::new(self.clone(), PoolKey::new(Name::default_namespace(), name.parse()?)))
    }

    /// Returns the key of the queue `name` in the default namespace.
    pub fn queue(&self, name: &str) -> Result<QueueKey, Error> {
        Ok(QueueKey::new(Name::default_namespace(), name.parse()?))
    }

    /// Returns a publisher to `topic` in the default namespace.
    pub fn publisher(&self, topic: &str) -> Result<Publisher, Error> {
        Ok(Publisher::new(self.clone(), self.topic(topic)?))
    }

    /// Returns a builder for a consumer: a member of the consumer group `group` of `topic`.
    pub fn consumer(&self, topic: impl Into<String>, group: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), topic.into(), group.into())
    }

    /// Returns a builder for a scheduler. Of all schedulers on a store, one fires at a time.
    pub fn scheduler(&self) -> SchedulerBuilder {
        SchedulerBuilder::new(self.clone())
    }

    /// Returns a client for the schedules of the default namespace.
    pub fn schedules(&self) -> Schedules {
        Schedules::new(self.clone(), Name::default_namespace())
    }

    /// Returns the key of the topic `name` in the default namespace.
    pub fn topic(&self, name: &str) -> Result<TopicKey, Error> {
        Ok(TopicKey::new(Name::default_namespace(), name.parse()?))
    }

    /// Returns the administrative operations on elections.
    pub fn election_admin(&self) -> &dyn ElectionAdmin {
        self.inner.store.as_ref()
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Name of this process for operators.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Lease duration and heartbeat interval of the session.
    pub fn timing(&self) -> Timing {
        self.inner.timing
    }

    /// Identifier of the current session, if one is open.
    pub fn session(&self) -> Option<SessionId> {
        self.inner.shared.session.borrow().clone()
    }

    /// The instant until which all leases of this session are trusted if no further heartbeat succeeds.
    pub fn trusted_until(&self) -> BootInstant {
        self.inner.shared.trust.until()
    }

    /// Last store error since the session was opened, if any.
    pub fn last_error(&self) -> Option<StoreError> {
        self.inner.shared.last_error.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Finishes all work, releases all leases and ends the session, so that other processes take over at once.
    ///
    /// Waits a bounded time: fails with [`Error::NotClosed`] if the store does not respond or work does not
    /// end.
    pub async fn close(&self) -> Result<(), Error> {
        let runtime = &self.inner.runtime;
        // Settlements must reach the store while the session is alive.
        tokio::select! {
            biased;
            () = self.inner.ctx.settler.wait_idle() => {}
            () = runtime.sleep_until(runtime.now() + CLOSE_GRACE) => {}
        }
        let (reply, closed) = oneshot::channel();
        if self.send(DriverMessage::Close(Some(reply))).is_err() {
            // A driver that has ended has closed the session.
            return Ok(());
        }
        let limit = CLOSE_GRACE + self.inner.timing.lease();
        let start = runtime.now();
        tokio::pin!(closed);
        tokio::select! {
            _ = &mut closed => return Ok(()),
            () = runtime.sleep_until(start + limit) => {}
        }
        // The store does not confirm, or work does not end. If no work runs, end the session anyway.
        let _ = self.send(DriverMessage::CloseNow);
        tokio::select! {
            _ = &mut closed => Ok(()),
            () = runtime.sleep_until(start + limit * 2) => Err(Error::NotClosed(limit * 2)),
        }
    }

    /// Waits for the first session. Returns the store error if none opens in time.
    async fn opened(&self) -> Result<(), Error> {
        let mut session = self.inner.shared.session.subscribe();
        let limit = self.inner.timing.request_timeout() + Duration::from_secs(1);
        let runtime = &self.inner.runtime;
        let started = runtime.now();
        let given_up = async {
            runtime.sleep_until(started + limit).await;
            // The request timeout follows from the lease and may be short. No lease is held yet, so a slow
            // store gets more time.
            if self.last_error().is_some_and(|last_error| last_error.kind == ErrorKind::Timeout) {
                runtime.sleep_until(started + OPENING_GRACE).await;
            }
        };
        tokio::select! {
            opened = session.wait_for(Option::is_some) => opened.map(|_| ()).map_err(|_| Error::Closed),
            () = given_up => {
                let _ = self.send(DriverMessage::Close(None));
                Err(self.last_error().map_or(Error::Closed, Error::Store))
            }
        }
    }

    pub(crate) fn send(&self, message: DriverMessage) -> Result<(), Error> {
        self.inner.inbox.send(message).map_err(|_| Error::Closed)
    }

    pub(crate) fn ctx(&self) -> &Arc<ClientContext> {
        &self.inner.ctx
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.inner.inbox.is_closed()
    }

    pub(crate) async fn closed(&self) {
        self.inner.inbox.closed().await;
    }

    pub(crate) fn runtime(&self) -> &dyn Runtime {
        self.inner.runtime.as_ref()
    }
}

fn set_in_environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The last handle was dropped: release everything, as far as the runtime still allows it.
        let _ = self.inbox.send(DriverMessage::Close(None));
    }
}
