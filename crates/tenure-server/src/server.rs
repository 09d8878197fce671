//! A running server: its sockets, its replica, its end.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::{Backend, StoreError};
use tenure::{Scheduler, Tenure};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use crate::access::Access;
use crate::bounded::Bounded;
use crate::listen::{Listener, Listening, Tls};
use crate::replica;
use crate::settings::{Bound, Limits, Settings};
use crate::webhooks::{Calls, Webhooks};
use crate::{App, listen};

/// Descriptors for everything but connections: the store, files, listeners.
const OTHER_FILES: usize = 256;
/// How long leaving the other replicas may take, beyond the time for draining.
const LEAVE: Duration = Duration::from_secs(5);

/// A running server. Dropped, it stops listening at once and leaves the others as far as it still can.
pub struct Server {
    app: App,
    addresses: Vec<Bound>,
    listening: Listening,
    tenure: Tenure,
    ended: watch::Sender<bool>,
    drain: Duration,
    tasks: [JoinHandle<()>; 2],
    webhooks: Webhooks,
    calls: Calls,
    scheduler: Mutex<Option<Scheduler>>,
}

/// Why a server did not start. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It would be open to strangers.
    #[error(
        "{0} can be reached by others: that needs TLS and authentication. Give --tls-cert and --tls-key (PEM files) and \
         --auth, and make the first token with `tenure token create --name NAME --grant '*:admin'`; or listen on 127.0.0.1 or unix:PATH"
    )]
    Exposed(String),
    /// It can not listen there.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, String),
    /// The certificate or the key is of no use.
    #[error("{0}")]
    Tls(String),
    /// The store is of no use.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The replica can not stand among the others.
    #[error("cannot stand among the replicas: {0}")]
    Replica(tenure::Error),
}

impl Server {
    /// Starts a server on a store.
    pub async fn start(mut settings: Settings, store: Arc<dyn Backend>) -> Result<Server, StartError> {
        make_room(&mut settings.limits);
        let tls = settings.tls.as_ref().map(Tls::read).transpose()?;
        let listeners = listen::bind(&settings, tls.as_ref()).await?;
        let addresses: Vec<_> = listeners.iter().map(Listener::bound).collect();
        // Tells a missing schema and a store that does not answer before anybody is promised anything.
        let bounded: Arc<dyn Backend> = Arc::new(Bounded::new(store.clone(), settings.timeouts.store));
        bounded.sessions(Some(&[])).await?;
        let access = match settings.auth {
            true => Access::guarded(bounded.clone(), settings.runtime.clone()).await?,
            false => Access::Open,
        };
        let app = App::with(bounded, access, &settings);
        let tenure = replica::open(&settings, store).await?;
        let standing = replica::stand(&tenure, &settings, &addresses, app.clone());
        let standing = standing.await.map_err(StartError::Replica)?;
        app.serve_as(tenure.clone());
        // Whoever leads hands out what is exclusive, and recovers what was lost: for those, too, who have only HTTP.
        tenure.claims().stand_with_priority(settings.priority).await.map_err(StartError::Replica)?;
        let scheduler = schedule(&settings, &tenure, app.store.as_ref()).await?;
        let listening = listen::serve(listeners, tls, &app, &settings);
        let drain = settings.timeouts.drain;
        let tasks = [standing, tokio::spawn(crate::metrics::upkeep())];
        let webhooks = Webhooks::start(app.clone(), tenure.clone());
        let calls = Calls::start(app.clone(), tenure.clone());
        let (ended, scheduler) = (watch::Sender::new(false), Mutex::new(scheduler));
        Ok(Server { app, addresses, listening, tenure, ended, drain, tasks, webhooks, calls, scheduler })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[Bound] {
        &self.addresses
    }

    /// Its inside.
    pub fn app(&self) -> &App {
        &self.app
    }

    /// Its own session in the store.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }

    /// Stops listening, lets what is under way finish within the bound, and leaves the other replicas.
    pub async fn shutdown(&self) {
        self.app.close();
        if !self.listening.drain(self.drain).await {
            tracing::warn!(after = ?self.drain, "requests were cut off: they did not finish in time");
        }
        tokio::join!(self.webhooks.over(), self.calls.over(), self.unschedule());
        match tokio::time::timeout(LEAVE, self.tenure.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("leaving the other replicas: {error}"),
            Err(_) => {
                tracing::warn!("the store did not confirm that we left; the session runs out by itself")
            }
        }
        if let Some(gossip) = &self.app.gossip {
            gossip.leave().await;
        }
        self.ended.send_replace(true);
    }

    /// Leaves it to others to fire what falls due.
    async fn unschedule(&self) {
        if let Some(scheduler) = self.scheduler.lock().await.take()
            && let Err(error) = scheduler.stop().await
        {
            tracing::warn!("schedules were left in the middle: {error}");
        }
    }

    /// Completes, with the reason, when its store can never answer again and the process must be restarted.
    pub async fn store_failed(&self) -> StoreError {
        self.app.store.failed().await
    }

    /// Waits until it has ended.
    pub async fn wait(&self) {
        // The sender lives in this very value.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The last handle of its session goes with them.
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// One of those who would fire what falls due, unless it is not wanted, the store keeps no work, or others fire it.
async fn schedule(
    settings: &Settings,
    tenure: &Tenure,
    store: &dyn Backend,
) -> Result<Option<Scheduler>, StartError> {
    if !settings.scheduler || !store.keeps_work() || store.routes_claims() {
        return Ok(None);
    }
    let scheduler = tenure.scheduler().priority(settings.priority).start().await;
    scheduler.map(Some).map_err(StartError::Replica)
}

/// Raises how many files this process may have open as far as it may, and takes fewer connections if that is not enough for them.
fn make_room(limits: &mut Limits) {
    let wanted = (limits.connections + OTHER_FILES) as u64;
    let files = tenure::open_files::raise_limit();
    if files < wanted {
        let room = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(OTHER_FILES).max(1);
        tracing::warn!(
            files,
            connections = room,
            wanted = limits.connections,
            "this process may not open as many files as connections were asked for; raise `ulimit -n`"
        );
        limits.connections = room;
    }
}
