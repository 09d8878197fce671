//! This server as a replica: a candidate of the election `tenure/coordinator`.
//!
//! The candidates of that election are the replicas, so there is no table of replicas and nothing to clean up
//! after one that died. The leader runs maintenance.

use std::sync::Arc;
use std::time::Duration;

use tenure::port::Store;
use tenure::{Error, Tenure};
use tokio::task::JoinHandle;

use crate::App;
use crate::app::COORDINATOR_ELECTION;
use crate::server::StartError;
use crate::settings::{BoundAddress, Settings};

/// Interval between runs of maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Retention of audit entries and of invalid credentials.
const RETENTION_MS: i64 = 400 * 24 * 3600 * 1000;
/// Delay after failed maintenance.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Open the session of this server.
pub(crate) async fn open(settings: &Settings, store: Arc<dyn Store>) -> Result<Tenure, StartError> {
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

/// Join the election of the replicas, and run maintenance while leading it.
pub(crate) async fn join(
    tenure: &Tenure,
    settings: &Settings,
    addresses: &[BoundAddress],
    app: App,
) -> Result<JoinHandle<()>, Error> {
    let first = addresses.first().map(BoundAddress::url).unwrap_or_default();
    let address = settings.advertise.clone().unwrap_or(first);
    let elector = tenure
        .elector(COORDINATOR_ELECTION.name.as_str())
        .namespace(COORDINATOR_ELECTION.namespace.as_str())
        .candidate_name(&settings.name)
        .priority(settings.priority)
        .metadata("address", address)
        .metadata("version", env!("CARGO_PKG_VERSION"))
        .start()
        .await?;
    Ok(tokio::spawn(async move {
        loop {
            match elector.elected().await {
                // Maintenance can be interrupted at any time, so a request to resign is served at once.
                Ok(leadership) => tokio::select! {
                    _ = leadership.lost() => {}
                    _ = leadership.leader_request() => {}
                    never = run_maintenance(&app) => match never {},
                },
                Err(Error::Closed) => return,
                Err(error) => {
                    tracing::error!(%error, "this server is no longer a candidate for coordinator");
                    return;
                }
            }
        }
    }))
}

/// Delete old audit entries and credentials once a day.
async fn run_maintenance(app: &App) -> std::convert::Infallible {
    tracing::info!("this replica runs maintenance");
    loop {
        let before = app.runtime.wall_ms() - RETENTION_MS;
        let pause = match app.store.prune_access(before).await {
            Ok(()) => MAINTENANCE_INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "maintenance failed");
                RETRY_DELAY
            }
        };
        app.runtime.sleep_until(app.runtime.now() + pause).await;
    }
}
