//! What every handler can reach.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};

use axum::extract::DefaultBodyLimit;
use tenure::backend::gossip::Gossip;
use tenure::port::{Backend, QueueKey};
use tenure::runtime::Runtime;
use tenure::{Claims, ElectionKey, Error, Name, Tenure};
use tokio::sync::{OnceCell, watch};

use crate::access::{Access, Owners};
use crate::agenda::Agenda;
use crate::board::Board;
use crate::calendar::Calendar;
use crate::envelope;
use crate::floor::Floor;
use crate::gauge::Gauge;
use crate::limits::Limiter;
use crate::quota::{Made, Quotas};
use crate::route::Routes;
use crate::settings::{Limits, Settings, Timeouts};
use crate::tails::Tails;

/// The election in which the servers of a store stand: who they are, and which of them keeps house.
pub(crate) static SERVERS: LazyLock<ElectionKey> = LazyLock::new(|| {
    let name = |text: &str| text.parse::<Name>().expect("a name");
    ElectionKey::new(name("tenure"), name("servers"))
});

/// What every handler can reach. Clones share it, and cost one count.
#[derive(Clone)]
pub struct App(Arc<Inside>);

/// What is shared.
pub struct Inside {
    pub(crate) store: Arc<dyn Backend>,
    pub(crate) board: Arc<Board>,
    pub(crate) floor: Arc<Floor>,
    pub(crate) gauge: Arc<Gauge>,
    pub(crate) agenda: Agenda,
    pub(crate) calendar: Calendar,
    pub(crate) access: Arc<Access>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) replica: OnceLock<Tenure>,
    pub(crate) closing: watch::Sender<bool>,
    pub(crate) owners: Arc<Owners>,
    pub(crate) limits: Arc<Limiter>,
    pub(crate) timeouts: Timeouts,
    pub(crate) bodies: Bodies,
    pub(crate) quotas: Quotas,
    pub(crate) made: Made,
    claims: OnceCell<Claims>,
    pub(crate) tails: Tails,
    /// The cluster that this server has joined by gossip, if any.
    pub(crate) gossip: Option<Gossip>,
    /// Whether events may be pushed to private addresses.
    pub(crate) push_private: bool,
    /// Queues that were found to be exclusive: asked for through the leader from then on, whatever becomes of them.
    pub(crate) routed: Routed,
}

/// How large and how slow the bodies of requests may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bodies {
    /// Bytes of most bodies.
    pub(crate) small: usize,
    /// Bytes of bodies that carry payloads.
    pub(crate) large: usize,
    /// Bytes of bodies of clients that have not authenticated.
    pub(crate) unauthenticated: usize,
    /// Bytes in a second, at least.
    pub(crate) rate: usize,
}

impl Bodies {
    fn of(limits: &Limits) -> Bodies {
        let Limits { body_bytes: small, large_body_bytes: large, body_rate: rate, .. } = *limits;
        Bodies { small, large, unauthenticated: limits.unauthenticated_body_bytes, rate }
    }
}

/// Queues that are not asked for directly any more.
#[derive(Debug, Default)]
pub(crate) struct Routed(Mutex<HashSet<QueueKey>>);

impl Routed {
    /// How many are remembered; then it begins anew.
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
    type Target = Inside;
    fn deref(&self) -> &Inside {
        &self.0
    }
}

impl App {
    /// A server's inside, without its sockets and without a place among the replicas.
    pub fn new(store: Arc<dyn Backend>, access: Access, runtime: Arc<dyn Runtime>) -> App {
        App::with(store, access, &Settings { runtime, ..Settings::default() })
    }

    /// A server's inside, set up like this.
    pub fn with(store: Arc<dyn Backend>, access: Access, settings: &Settings) -> App {
        let runtime = settings.runtime.clone();
        let board = Board::watching(store.clone(), runtime.clone());
        let floor = Floor::watching(store.clone(), runtime.clone());
        let gauge = Gauge::watching(store.clone(), runtime.clone());
        let agenda = Agenda::new(store.clone(), runtime.clone());
        let calendar = Calendar::new(store.clone(), runtime.clone());
        let closing = watch::Sender::new(false);
        App(Arc::new(Inside {
            store,
            board,
            floor,
            gauge,
            agenda,
            calendar,
            access: Arc::new(access),
            runtime,
            replica: OnceLock::new(),
            closing,
            owners: Arc::default(),
            limits: Limiter::new(settings.limits, &settings.timeouts),
            timeouts: settings.timeouts,
            bodies: Bodies::of(&settings.limits),
            quotas: settings.quotas,
            made: Made::default(),
            claims: OnceCell::new(),
            tails: Tails::default(),
            gossip: settings.gossip.clone(),
            push_private: settings.push_private,
            routed: Routed::default(),
        }))
    }

    /// How many bytes of answers this server keeps for a principal that has not read them yet.
    pub fn unread_bytes(&self, principal: &str) -> usize {
        self.limits.unread(principal)
    }

    /// What this server knows of its store.
    pub fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Every route of this server, with what it needs.
    pub fn routes(&self) -> Routes {
        Routes::new()
            .merge(crate::health::routes())
            .merge(crate::metrics::routes())
            .merge(crate::api::routes())
            .merge(crate::pages::routes())
    }

    /// The service that answers requests.
    pub fn router(&self) -> axum::Router {
        // Installed by the first router, so that everything is counted from the first request on.
        let _ = crate::metrics::recorder();
        let (nowhere, no_such_method) = (self.clone(), self.clone());
        self.routes()
            .into_router(self.clone())
            .fallback(move |request| envelope::nowhere(nowhere, request))
            .method_not_allowed_fallback(move |request| envelope::no_such_method(no_such_method, request))
            // The gate bounds bodies.
            .layer(DefaultBodyLimit::disable())
            .layer(axum::middleware::from_fn_with_state(self.clone(), envelope::envelope))
    }

    /// This server's own session, if it stands among the replicas.
    pub fn tenure(&self) -> Option<&Tenure> {
        self.replica.get()
    }

    /// Tasks and resources of the store: through this server's own session, or one that is opened for it where it has none.
    pub(crate) async fn claims(&self) -> Result<&Claims, Error> {
        let begin = async || {
            let tenure = match self.tenure() {
                Some(tenure) => tenure.clone(),
                None => {
                    let builder = Tenure::builder().shared_store(self.store.clone());
                    builder.runtime(self.runtime.clone()).open().await?
                }
            };
            Ok(tenure.claims())
        };
        self.claims.get_or_try_init(begin).await
    }

    pub(crate) fn serve_as(&self, tenure: Tenure) {
        // Said once, when the server starts.
        let _ = self.replica.set(tenure);
    }

    /// The server is about to end: streams end, and nobody new is sent here.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
        self.board.close();
    }
}
