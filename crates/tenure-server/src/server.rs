//! A running server: sockets, replica and shutdown.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{Store, StoreError};
use tenure::{Scheduler, Tenure};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use crate::access::AccessMode;
use crate::listen::{Listener, ListenerSet, Tls};
use crate::replica;
use crate::settings::{BoundAddress, Limits, Settings};
use crate::timeout_store::TimeoutStore;
use crate::webhooks::{GroupWebhooks, ScheduleWebhooks};
use crate::{App, listen};

/// File descriptors for everything except connections: store, files, listeners.
const OTHER_FILES: usize = 256;
/// Maximum time to leave the election of the replicas, in addition to the drain timeout.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Running server. On drop it stops listening at once and leaves the election of the replicas if possible.
pub struct Server {
    app: App,
    addresses: Vec<BoundAddress>,
    listening: ListenerSet,
    tenure: Tenure,
    ended: watch::Sender<bool>,
    drain: Duration,
    tasks: [JoinHandle<()>; 2],
    webhooks: GroupWebhooks,
    calls: ScheduleWebhooks,
    scheduler: Mutex<Option<Scheduler>>,
}

/// Reason why a server did not start. A failed start leaves nothing behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It would be reachable without authentication.
    #[error(
        "{0} is reachable from other machines, which requires TLS and authentication. Set --tls-cert and --tls-key (PEM files) and \
         --auth, and create the first access token with `tenure credentials create --name NAME --grant '*:admin'`; or listen on 127.0.0.1 or unix:PATH"
    )]
    Exposed(String),
    /// It cannot listen on an address.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, String),
    /// The certificate or the key is invalid.
    #[error("{0}")]
    Tls(String),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The replica cannot join the election of the replicas.
    #[error("cannot join the election of the replicas: {0}")]
    Replica(tenure::Error),
}

impl Server {
    /// Start a server on a store: bind the listeners, join the election of the replicas, and start the
    /// scheduler, the webhooks and the broker candidate.
    pub async fn start(mut settings: Settings, store: Arc<dyn Store>) -> Result<Server, StartError> {
        limit_connections(&mut settings.limits);
        let tls = settings.tls.as_ref().map(Tls::read).transpose()?;
        let listeners = listen::bind(&settings, tls.as_ref()).await?;
        let addresses: Vec<_> = listeners.iter().map(Listener::bound).collect();
        // Detect a missing schema or an unreachable store before anything starts.
        let bounded: Arc<dyn Store> = Arc::new(TimeoutStore::new(store.clone(), settings.timeouts.store));
        bounded.sessions(Some(&[])).await?;
        let access = match settings.auth {
            true => AccessMode::guarded(bounded.clone(), settings.runtime.clone()).await?,
            false => AccessMode::Open,
        };
        let app = App::with(bounded, access, &settings);
        let tenure = replica::open(&settings, store).await?;
        let standing = replica::join(&tenure, &settings, &addresses, app.clone());
        let standing = standing.await.map_err(StartError::Replica)?;
        app.set_replica(tenure.clone());
        // The broker also serves clients that have only HTTP: it assigns exclusive tasks and recovers lost
        // claims.
        tenure
            .tasks()
            .campaign_for_maintenance_with_priority(settings.priority)
            .await
            .map_err(StartError::Replica)?;
        let scheduler = start_scheduler(&settings, &tenure, app.store.as_ref()).await?;
        let listening = listen::serve(listeners, tls, &app, &settings);
        let drain = settings.timeouts.drain;
        let tasks = [standing, tokio::spawn(crate::metrics::upkeep())];
        let webhooks = GroupWebhooks::start(app.clone(), tenure.clone());
        let schedule_webhooks = ScheduleWebhooks::start(app.clone(), tenure.clone());
        let (ended, scheduler) = (watch::Sender::new(false), Mutex::new(scheduler));
        Ok(Server {
            app,
            addresses,
            listening,
            tenure,
            ended,
            drain,
            tasks,
            webhooks,
            calls: schedule_webhooks,
            scheduler,
        })
    }

    /// Addresses that the server listens on.
    pub fn addresses(&self) -> &[BoundAddress] {
        &self.addresses
    }

    /// Shared state of the handlers.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Session of the server in the store.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Stop listening, let current requests finish within the drain timeout, and leave the election of the
    /// replicas.
    pub async fn shutdown(&self) {
        self.app.close();
        if !self.listening.drain(self.drain).await {
            tracing::warn!(after = ?self.drain, "requests cut off after the drain timeout");
        }
        tokio::join!(
            self.webhooks.wait_until_stopped(),
            self.calls.wait_until_stopped(),
            self.stop_scheduler()
        );
        match tokio::time::timeout(LEAVE_TIMEOUT, self.tenure.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "leaving the election of the replicas failed"),
            Err(_) => {
                tracing::warn!("the store did not confirm the end of the session; it ends with its lease")
            }
        }
        if let Some(gossip) = &self.app.gossip {
            gossip.leave().await;
        }
        self.ended.send_replace(true);
    }

    /// Stop the scheduler.
    async fn stop_scheduler(&self) {
        if let Some(scheduler) = self.scheduler.lock().await.take()
            && let Err(error) = scheduler.stop().await
        {
            tracing::warn!(%error, "stopping the scheduler failed");
        }
    }

    /// Wait until the store has stopped permanently, and return the reason. The process must then be
    /// restarted.
    pub async fn store_failed(&self) -> StoreError {
        self.app.store.failed().await
    }

    /// Wait until the server has ended.
    pub async fn wait(&self) {
        // The sender is part of this value, so the wait cannot fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The last handle of the session is dropped with the tasks.
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Start a scheduler, unless it is disabled or the store does not support schedules.
async fn start_scheduler(
    settings: &Settings,
    tenure: &Tenure,
    store: &dyn Store,
) -> Result<Option<Scheduler>, StartError> {
    if !settings.scheduler || !store.supports_work() || store.routes_to_broker() {
        return Ok(None);
    }
    let scheduler = tenure.scheduler().priority(settings.priority).start().await;
    scheduler.map(Some).map_err(StartError::Replica)
}

/// Raise the limit of open files as far as possible, and reduce the number of connections if that is not
/// enough.
fn limit_connections(limits: &mut Limits) {
    let wanted = (limits.connections + OTHER_FILES) as u64;
    let files = tenure::open_files::raise_limit();
    if files < wanted {
        let room = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES).max(1);
        tracing::warn!(
            files,
            connections = room,
            wanted = limits.connections,
            "the open file limit is lower than the connection limit; raise `ulimit -n`"
        );
        limits.connections = room;
    }
}
