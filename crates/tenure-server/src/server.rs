//! A running server: its sockets, its replica, its end.

use std::sync::Arc;
use std::time::Duration;

use tenure::Tenure;
use tenure::port::{Backend, StoreError};
use tokio::sync::watch;

use crate::access::Access;
use crate::bounded::Bounded;
use crate::listen::{Listener, Listening};
use crate::replica;
use crate::settings::{Bound, Settings};
use crate::{App, listen};

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
}

/// Why a server did not start. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// It would be open to strangers.
    #[error(
        "{0} can be reached by others: that needs TLS and authentication. Give --tls-cert and --tls-key (PEM files) and \
         --auth, and make the first token with `tenure token create NAME --grant '*:admin'`; or listen on 127.0.0.1 or unix:PATH"
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
    pub async fn start(settings: Settings, store: Arc<dyn Backend>) -> Result<Server, StartError> {
        let listeners = listen::bind(&settings).await?;
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
        replica::stand(&tenure, &settings, &addresses, app.clone()).await.map_err(StartError::Replica)?;
        app.serve_as(tenure.clone());
        let listening = listen::serve(listeners, &app, &settings);
        let drain = settings.timeouts.drain;
        Ok(Server { app, addresses, listening, tenure, ended: watch::Sender::new(false), drain })
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
        match tokio::time::timeout(LEAVE, self.tenure.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("leaving the other replicas: {error}"),
            Err(_) => {
                tracing::warn!("the store did not confirm that we left; the session runs out by itself")
            }
        }
        self.ended.send_replace(true);
    }

    /// Waits until it has ended.
    pub async fn wait(&self) {
        // The sender lives in this very value.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }
}
