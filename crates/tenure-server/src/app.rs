//! Shared state of all handlers.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use axum::extract::DefaultBodyLimit;
use tenure::port::{QueueKey, Store};
use tenure::runtime::Runtime;
use tenure::store::gossip::Gossip;
use tenure::{ElectionKey, Error, Name, TaskClient, Tenure};
use tokio::sync::{OnceCell, watch};

use crate::access::{AccessMode, SessionOwners};
use crate::limits::Limiter;
use crate::middleware;
use crate::quota::{Quotas, RecentlyCreated};
use crate::route::Routes;
use crate::settings::{Limits, Settings, Timeouts};
use crate::snapshot::elections::ElectionCache;
use crate::snapshot::events::EventCache;
use crate::snapshot::queues::QueueCache;
use crate::snapshot::schedule_stats::ScheduleStatsCache;
use crate::snapshot::schedules::ScheduleCache;
use crate::topic_broadcast::TopicBroadcasts;

/// Election of the servers on one store. Its candidates are the replicas; its leader is the coordinator.
pub(crate) static COORDINATOR_ELECTION: LazyLock<ElectionKey> = LazyLock::new(|| {
    let name = |text: &str| text.parse::<Name>().expect("a valid name");
    ElectionKey::new(name("tenure"), name("coordinator"))
});

/// Shared state of all handlers. Clones share it.
#[derive(Clone)]
pub struct App(Arc<AppInner>);

/// The shared state itself.
pub struct AppInner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) elections: Arc<ElectionCache>,
    pub(crate) queues: Arc<QueueCache>,
    pub(crate) events: Arc<EventCache>,
    pub(crate) schedules: ScheduleCache,
    pub(crate) schedule_stats: ScheduleStatsCache,
    pub(crate) access: Arc<AccessMode>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) replica: OnceLock<Tenure>,
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) owners: Arc<SessionOwners>,
    pub(crate) limits: Arc<Limiter>,
    pub(crate) timeouts: Timeouts,
    pub(crate) bodies: Bodies,
    pub(crate) quotas: Quotas,
    pub(crate) recently_created: RecentlyCreated,
    claims: OnceCell<TaskClient>,
    pub(crate) topic_broadcasts: TopicBroadcasts,
    /// Gossip cluster of this server, if any.
    pub(crate) gossip: Option<Gossip>,
    /// Whether webhooks to private addresses are allowed.
    pub(crate) allow_private_webhooks: bool,
    /// Queues known to be exclusive; claims on them go through the broker from then on.
    pub(crate) exclusive_queues: ExclusiveQueues,
}

/// Size and rate limits of request bodies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bodies {
    /// Maximum size of most bodies, in bytes.
    pub(crate) small: usize,
    /// Maximum size of bodies with payloads, in bytes.
    pub(crate) large: usize,
    /// Maximum size of bodies of unauthenticated clients, in bytes.
    pub(crate) unauthenticated: usize,
    /// Minimum rate in bytes per second.
    pub(crate) rate: usize,
}

impl Bodies {
    fn of(limits: &Limits) -> Bodies {
        let Limits { body_bytes: small, large_body_bytes: large, body_rate: rate, .. } = *limits;
        Bodies { small, large, unauthenticated: limits.unauthenticated_body_bytes, rate }
    }
}

/// Queues whose claims go through the broker.
#[derive(Debug, Default)]
pub(crate) struct ExclusiveQueues(Mutex<HashSet<QueueKey>>);

impl ExclusiveQueues {
    /// Maximum number of remembered queues; beyond it the set is cleared.
    const KEPT: usize = 1024;

    pub(crate) fn contains(&self, queue: &QueueKey) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(queue)
    }

    pub(crate) fn insert(&self, queue: &QueueKey) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::KEPT {
            known.clear();
        }
        known.insert(queue.clone());
    }
}

impl Deref for App {
    type Target = AppInner;
    fn deref(&self) -> &AppInner {
        &self.0
    }
}

impl App {
    /// Create the state of a server without sockets that is not a replica.
    pub fn new(store: Arc<dyn Store>, access: AccessMode, runtime: Arc<dyn Runtime>) -> App {
        App::with(store, access, &Settings { runtime, ..Settings::default() })
    }

    /// Create the state of a server with the given settings.
    pub fn with(store: Arc<dyn Store>, access: AccessMode, settings: &Settings) -> App {
        let runtime = settings.runtime.clone();
        let elections = ElectionCache::start(store.clone(), runtime.clone());
        let queues = QueueCache::start(store.clone(), runtime.clone());
        let events = EventCache::start(store.clone(), runtime.clone());
        let schedules = ScheduleCache::new(store.clone(), runtime.clone());
        let schedule_stats = ScheduleStatsCache::new(store.clone(), runtime.clone());
        let closing = watch::Sender::new(false);
        App(Arc::new(AppInner {
            store,
            elections,
            queues,
            events,
            schedules,
            schedule_stats,
            access: Arc::new(access),
            runtime,
            replica: OnceLock::new(),
            closing,
            owners: Arc::default(),
            limits: Limiter::new(settings.limits, &settings.timeouts),
            timeouts: settings.timeouts,
            bodies: Bodies::of(&settings.limits),
            quotas: settings.quotas,
            recently_created: RecentlyCreated::default(),
            claims: OnceCell::new(),
            topic_broadcasts: TopicBroadcasts::default(),
            gossip: settings.gossip.clone(),
            allow_private_webhooks: settings.allow_private_webhooks,
            exclusive_queues: ExclusiveQueues::default(),
        }))
    }

    /// Bytes of responses that this principal has not read yet.
    pub fn unread_bytes(&self, principal: &str) -> usize {
        self.limits.unread(principal)
    }

    /// Snapshot of elections.
    pub fn elections(&self) -> &Arc<ElectionCache> {
        &self.elections
    }

    /// All routes of this server with their required permissions.
    pub fn routes(&self) -> Routes {
        Routes::new()
            .merge(crate::health::routes())
            .merge(crate::metrics::routes())
            .merge(crate::api::routes())
            .merge(crate::web::routes())
    }

    /// The HTTP service.
    pub fn router(&self) -> axum::Router {
        // Install the metrics recorder first, so that every request is counted.
        let _ = crate::metrics::recorder();
        let (nowhere, no_such_method) = (self.clone(), self.clone());
        self.routes()
            .into_router(self.clone())
            .fallback(move |request| middleware::unknown_route(nowhere, request))
            .method_not_allowed_fallback(move |request| middleware::unknown_method(no_such_method, request))
            // The access middleware limits bodies.
            .layer(DefaultBodyLimit::disable())
            .layer(axum::middleware::from_fn_with_state(self.clone(), middleware::wrap))
    }

    /// Session of this server, if it is a replica.
    pub fn tenure(&self) -> Option<&Tenure> {
        self.replica.get()
    }

    /// Task and pool operations of the store: through this server's session, or through one that is opened on
    /// first use.
    pub(crate) async fn claims(&self) -> Result<&TaskClient, Error> {
        let begin = async || {
            let tenure = match self.tenure() {
                Some(tenure) => tenure.clone(),
                None => {
                    let builder = Tenure::builder().shared_store(self.store.clone());
                    builder.runtime(self.runtime.clone()).open().await?
                }
            };
            Ok(tenure.tasks())
        };
        self.claims.get_or_try_init(begin).await
    }

    pub(crate) fn set_replica(&self, tenure: Tenure) {
        // Called once at the start of the server.
        let _ = self.replica.set(tenure);
    }

    /// Start the shutdown: streams end and the server is no longer ready.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
        self.elections.close();
    }
}
