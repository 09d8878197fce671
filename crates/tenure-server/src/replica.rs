//! This server among the others: a candidate of the election `tenure/servers`.
//!
//! The candidates of that election are the replicas, so there is no table of them and nothing to clear away after one
//! that died. Whoever leads it does the housekeeping.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::Backend;
use tenure::{Error, Tenure};
use tokio::task::JoinHandle;

use crate::App;
use crate::app::SERVERS;
use crate::server::StartError;
use crate::settings::{Bound, Settings};

/// How often the leader clears away.
const FORGET_EVERY: Duration = Duration::from_secs(24 * 3600);
/// How long deeds, and credentials that are worth nothing, are remembered.
const REMEMBER_MS: i64 = 400 * 24 * 3600 * 1000;
/// How soon clearing away is tried again after it failed.
const RETRY: Duration = Duration::from_secs(60);

/// Opens this server's own session.
pub(crate) async fn open(settings: &Settings, store: Arc<dyn Backend>) -> Result<Tenure, StartError> {
    let builder = Tenure::builder()
        .shared_store(store)
        .name(&settings.name)
        .lease(settings.lease)
        .runtime(settings.runtime.clone());
    builder.open().await.map_err(|error| match error {
        Error::Store(error) => StartError::Store(error),
        error => StartError::Replica(error),
    })
}

/// Stands among the replicas, and does the housekeeping whenever it leads them.
pub(crate) async fn stand(
    tenure: &Tenure,
    settings: &Settings,
    addresses: &[Bound],
    app: App,
) -> Result<JoinHandle<()>, Error> {
    let first = addresses.first().map(Bound::url).unwrap_or_default();
    let address = settings.advertise.clone().unwrap_or(first);
    let elector = tenure
        .elector(SERVERS.name.as_str())
        .namespace(SERVERS.namespace.as_str())
        .id(&settings.name)
        .priority(settings.priority)
        .metadata("address", address)
        .metadata("version", env!("CARGO_PKG_VERSION"))
        .start()
        .await?;
    Ok(tokio::spawn(async move {
        loop {
            match elector.elected().await {
                // Nothing that can not be left at any moment: who is asked to finish does so at once.
                Ok(leadership) => tokio::select! {
                    _ = leadership.lost() => {}
                    _ = leadership.asked() => {}
                    never = keep_house(&app) => match never {},
                },
                Err(Error::Closed) => return,
                Err(error) => {
                    tracing::error!("this server does not stand among the replicas any more: {error}");
                    return;
                }
            }
        }
    }))
}

/// Clears away what nobody asks for any more, day by day.
async fn keep_house(app: &App) -> std::convert::Infallible {
    tracing::info!("this replica keeps house for all");
    loop {
        let before = app.runtime.wall_ms() - REMEMBER_MS;
        let pause = match app.store.forget(before).await {
            Ok(()) => FORGET_EVERY,
            Err(error) => {
                tracing::warn!("clearing away: {error}");
                RETRY
            }
        };
        app.runtime.sleep_until(app.runtime.now() + pause).await;
    }
}
