//! One process's part in all of this.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::lease::{Config, Machine};
use tenure_core::port::{Backend, Directory, PoolKey, QueueKey, StoreError, Takeover, TopicKey, Trouble};
use tenure_core::{Moment, Name, SessionId, Timing};
use tokio::sync::{mpsc, oneshot, watch};

use crate::Claims;
use crate::backend::{self, ServerAccess, StoreOptions};
use crate::claims::bells::Bells;
use crate::claims::hub::{BrokerAddress, Hub};
use crate::driver::{Driver, Message, Shared};
use crate::elector::ElectorBuilder;
use crate::events::{ConsumerBuilder, Publisher};
use crate::leadership::Trust;
use crate::pool::Pool;
use crate::runtime::{Runtime, System};
use crate::scheduler::{SchedulerBuilder, Schedules};
use crate::worker::WorkerBuilder;
use crate::{Error, runtime};

/// How long closing waits, beyond a lease, for work that is asked to finish.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// How long a store that is only slow may take until it has opened a session.
const OPENING_GRACE: Duration = Duration::from_secs(8);

/// A process that takes part: one session, one beat, any number of elections. Clones share it.
///
/// ```
/// # use tenure::{Tenure, backend::memory::Memory};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// # let _ = || async {
/// let tenure = Tenure::open("sqlite:tenure.db").await?;
/// # Ok::<_, tenure::Error>(()) };
/// # let tenure = Tenure::builder().store(Memory::new()).open().await?;
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
    store: Arc<dyn Backend>,
    runtime: Arc<dyn Runtime>,
    shared: Arc<Shared>,
    hub: Arc<Hub>,
    inbox: mpsc::UnboundedSender<Message>,
}

/// Settings, before the session is opened. See [`Tenure::builder`].
#[must_use = "nothing happens before `open`"]
pub struct TenureBuilder {
    store: Option<Arc<dyn Backend>>,
    options: StoreOptions,
    name: Option<String>,
    lease: Option<Duration>,
    beat: Option<Duration>,
    takeover: Takeover,
    runtime: Arc<dyn Runtime>,
    broker: BrokerAddress,
}

impl TenureBuilder {
    /// The store's address: `sqlite:PATH`, `postgres://…`, `http(s)://…` (feature `http`) or `memory:`.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.options.url = url.into();
        self
    }

    /// A store that is open already, instead of an address.
    pub fn store(mut self, store: impl Backend) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// A shared store that is open already, instead of an address.
    pub fn shared_store(mut self, store: Arc<dyn Backend>) -> Self {
        self.store = Some(store);
        self
    }

    /// Where elections live, if not in the store: an address like that of [`url`](Self::url). What is guarded in the store is then
    /// guarded by the tokens that are granted there; see [`paired`](crate::backend::paired).
    pub fn elect(mut self, url: impl Into<String>) -> Self {
        self.options.elect = Some(url.into());
        self
    }

    /// A direct address of the store, where `url` leads through a pooler: for hints and connection-bound sessions.
    pub fn direct_url(mut self, url: impl Into<String>) -> Self {
        self.options.direct_url = Some(url.into());
        self
    }

    /// The file with the secret of a Raft cluster. See [`StoreOptions::cluster_secret_file`].
    pub fn cluster_secret_file(mut self, file: impl Into<std::path::PathBuf>) -> Self {
        self.options.cluster_secret_file = Some(file.into());
        self
    }

    /// Count a grant only when it is replicated (PostgreSQL with synchronous standbys).
    pub fn strict(mut self, strict: bool) -> Self {
        self.options.strict = strict;
        self
    }

    /// How a Tenure server (`http://…`) is to know us, and whom we believe; from the environment unless set.
    pub fn access(mut self, access: ServerAccess) -> Self {
        self.options.access = access;
        self
    }

    /// What people call this process; host name and process number unless set. Need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How long a silent process keeps what it holds; [`DEFAULT_LEASE`](crate::DEFAULT_LEASE) unless set, or as the store's
    /// address says.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// How often it sends a heartbeat. Unless set: a fifth of the lease up to
    /// [`DEFAULT_HEARTBEAT`](crate::DEFAULT_HEARTBEAT), and a fifteenth of a lease longer than the default.
    pub fn beat(mut self, beat: Duration) -> Self {
        self.beat = Some(beat);
        self
    }

    /// How others learn of its death.
    pub fn takeover(mut self, takeover: Takeover) -> Self {
        self.takeover = takeover;
        self
    }

    /// Where this process listens, while it leads, for those who want exclusive tasks: `host` or `host:port`. Else
    /// `$TENURE_BROKER_LISTEN`, or a free port of the address by which the store is reached.
    pub fn broker_listen(mut self, address: impl Into<String>) -> Self {
        self.broker.listen = Some(address.into());
        self
    }

    /// Where the others reach it there, if that is another address. Else `$TENURE_BROKER_ADVERTISE`.
    pub fn broker_advertise(mut self, address: impl Into<String>) -> Self {
        self.broker.advertise = Some(address.into());
        self
    }

    /// Where time and randomness come from; tests drive them by hand.
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = runtime;
        self
    }

    /// Opens the store and a session in it.
    pub async fn open(self) -> Result<Tenure, Error> {
        // Before anything is opened, what makes no sense is refused.
        let given = Timing::new(self.lease.unwrap_or(tenure_core::DEFAULT_LEASE), self.beat)?;
        let store = match self.store {
            Some(store) => store,
            None => backend::open(&self.options).await?,
        };
        let timing = match store.pace().filter(|_| self.lease.is_none()) {
            Some(pace) => Timing::new(pace.lease(), self.beat.or(Some(pace.beat())))?,
            None => given,
        };
        let name = self.name.unwrap_or_else(runtime::process_name);
        let machine = Machine::new(Config { name: name.clone(), timing, takeover: self.takeover });
        let shared = Arc::new(Shared {
            trust: Arc::new(Trust::new(self.runtime.clone())),
            session: watch::Sender::new(None),
            trouble: Mutex::new(None),
            bells: Bells::new(),
            withdrawn: tokio::sync::Notify::new(),
        });
        let (driver, inbox) =
            Driver::new(machine, timing, store.clone(), self.runtime.clone(), shared.clone());
        tokio::spawn(driver.run());
        let broker = BrokerAddress {
            listen: self.broker.listen.or_else(|| set_in_environment("TENURE_BROKER_LISTEN")),
            advertise: self.broker.advertise.or_else(|| set_in_environment("TENURE_BROKER_ADVERTISE")),
            store_url: self.options.url,
        };
        let (runtime, store_too) = (self.runtime, store.clone());
        let hub =
            Hub::new(name.clone(), timing, store_too, runtime.clone(), shared.clone(), inbox.clone(), broker);
        let inner = Inner { name, timing, store, runtime, shared, hub, inbox };
        let tenure = Tenure { inner: Arc::new(inner) };
        tenure.opened().await?;
        Ok(tenure)
    }
}

impl Tenure {
    /// Opens the store at `url` and a session in it, with the usual settings.
    pub async fn open(url: &str) -> Result<Tenure, Error> {
        Tenure::builder().url(url).open().await
    }

    /// Settings for a session.
    pub fn builder() -> TenureBuilder {
        TenureBuilder {
            store: None,
            options: StoreOptions::default(),
            name: None,
            lease: None,
            beat: None,
            takeover: Takeover::default(),
            runtime: Arc::new(System),
            broker: BrokerAddress::default(),
        }
    }

    /// A candidate for the election `name`.
    pub fn elector(&self, name: impl Into<String>) -> ElectorBuilder {
        ElectorBuilder::new(self.clone(), name.into())
    }

    /// Tasks and resources: to submit, to claim, to work.
    pub fn claims(&self) -> Claims {
        Claims::new(self.clone())
    }

    /// A worker on the queue `name`.
    pub fn worker(&self, queue: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder::new(self.clone(), queue.into())
    }

    /// The pool `name` of the default namespace.
    pub fn pool(&self, name: &str) -> Result<Pool, Error> {
        Ok(Pool::new(self.clone(), PoolKey::new(Name::default_namespace(), name.parse()?)))
    }

    /// The queue `name` of the default namespace.
    pub fn queue(&self, name: &str) -> Result<QueueKey, Error> {
        Ok(QueueKey::new(Name::default_namespace(), name.parse()?))
    }

    /// Publishes to the topic `name` of the default namespace.
    pub fn publisher(&self, topic: &str) -> Result<Publisher, Error> {
        Ok(Publisher::new(self.clone(), self.topic(topic)?))
    }

    /// A member of the group `group` of a topic.
    pub fn consumer(&self, topic: impl Into<String>, group: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), topic.into(), group.into())
    }

    /// A scheduler: one of those who would fire what falls due.
    pub fn scheduler(&self) -> SchedulerBuilder {
        SchedulerBuilder::new(self.clone())
    }

    /// The schedules of the default namespace: to set and to look at.
    pub fn schedules(&self) -> Schedules {
        Schedules::new(self.clone(), Name::default_namespace())
    }

    /// The topic `name` of the default namespace.
    pub fn topic(&self, name: &str) -> Result<TopicKey, Error> {
        Ok(TopicKey::new(Name::default_namespace(), name.parse()?))
    }

    /// The elections of the store, for people and their tools.
    pub fn directory(&self) -> &dyn Directory {
        self.inner.store.as_ref()
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn Backend> {
        &self.inner.store
    }

    /// What people call this process.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its lease and beat.
    pub fn timing(&self) -> Timing {
        self.inner.timing
    }

    /// The current session, if one is open.
    pub fn session(&self) -> Option<SessionId> {
        self.inner.shared.session.borrow().clone()
    }

    /// Until when everything that this process leads is trusted, if no further beat is counted.
    pub fn trusted_until(&self) -> Moment {
        self.inner.shared.trust.until()
    }

    /// The last trouble with the store, if a session was not opened since.
    pub fn trouble(&self) -> Option<StoreError> {
        self.inner.shared.trouble.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Finishes and gives back everything, and ends the session. Others take over at once. Bounded: when the store does
    /// not answer, or work does not end, it gives up after a while and says so.
    pub async fn close(&self) -> Result<(), Error> {
        let runtime = &self.inner.runtime;
        // What was said about claims counts only while the session lives.
        tokio::select! {
            biased;
            () = self.inner.hub.settler.rest() => {}
            () = runtime.sleep_until(runtime.now() + CLOSE_GRACE) => {}
        }
        let (reply, closed) = oneshot::channel();
        if self.send(Message::Close(Some(reply))).is_err() {
            // A driver that has gone has closed.
            return Ok(());
        }
        let limit = CLOSE_GRACE + self.inner.timing.lease();
        let start = runtime.now();
        tokio::pin!(closed);
        tokio::select! {
            _ = &mut closed => return Ok(()),
            () = runtime.sleep_until(start + limit) => {}
        }
        // The store does not confirm, or somebody's work does not end. With nothing running, the session may end anyhow.
        let _ = self.send(Message::CloseNow);
        tokio::select! {
            _ = &mut closed => Ok(()),
            () = runtime.sleep_until(start + limit * 2) => Err(Error::NotClosed(limit * 2)),
        }
    }

    /// Waits for the first session, or says why there is none.
    async fn opened(&self) -> Result<(), Error> {
        let mut session = self.inner.shared.session.subscribe();
        let limit = self.inner.timing.request_timeout() + Duration::from_secs(1);
        let runtime = &self.inner.runtime;
        let begun = runtime.now();
        let given_up = async {
            runtime.sleep_until(begun + limit).await;
            // How long an answer may take follows from the lease, which may be short; but nothing is held yet that could be lost.
            if self.trouble().is_some_and(|trouble| trouble.kind == Trouble::Timeout) {
                runtime.sleep_until(begun + OPENING_GRACE).await;
            }
        };
        tokio::select! {
            opened = session.wait_for(Option::is_some) => opened.map(|_| ()).map_err(|_| Error::Closed),
            () = given_up => {
                let _ = self.send(Message::Close(None));
                Err(self.trouble().map_or(Error::Closed, Error::Store))
            }
        }
    }

    pub(crate) fn send(&self, message: Message) -> Result<(), Error> {
        self.inner.inbox.send(message).map_err(|_| Error::Closed)
    }

    pub(crate) fn hub(&self) -> &Arc<Hub> {
        &self.inner.hub
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
        // The last handle is gone: leave in good order, as far as the runtime still lets us.
        let _ = self.inbox.send(Message::Close(None));
    }
}
